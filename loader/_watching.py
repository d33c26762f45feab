"""What is recorded of a batch or a run that somebody observes. Nothing here is called, nor imported, if nobody does.

Whoever tells observers of something is in the middle of its work, and who waits for that must get an answer whatever
an observer does: `tell` lets nothing through.
"""

from __future__ import annotations

import logging
import sys
from asyncio import CancelledError, _get_running_loop
from contextvars import copy_context
from time import perf_counter as now
from typing import TYPE_CHECKING, Any

from loader import _hooks
from loader._dispatch import Settle
from loader.errors import BatchCancelledError, LoaderClosedError, LoaderTimeoutError, RunCancelledError
from loader.observe import BatchRecord, Observer, Outcome, Place, Reason, RunRecord, asking

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Sequence
    from contextvars import Context
    from types import CodeType, FrameType

    from loader._batch import Batch
    from loader._batcher import Batcher, _Entry
    from loader._batching import Batching
    from loader._runs import Run
    from loader._scope import Scope
    from loader._waits import Work

BETWEEN = ("loader", "contextlib", "functools")
"""Packages whose code only passes on what the user's code asks."""

OUTSIDE = ("asyncio", "concurrent", "graphql", "strawberry", "uvloop")
"""Packages that call the user's code: what is outside of them on the stack has nothing to do with who asks."""

NOWHERE = Place("", 0, "(a task of its own)")
MOST_PLACES = 10_000
MOST_ASKERS = 1000  # of a run, whose contexts are kept until it starts

_places: dict[tuple[int, int], tuple[CodeType, Place]] = {}  # with the code, whose hash is dear: its id stays its own
_owners: dict[str, str] = {}
YOURS = "yours"


def tell(observers: Iterable[Observer], event: str, *arguments: Any) -> None:
    """Call a method of each observer. What one raises is reported, and nothing more."""
    for observer in observers:
        try:
            getattr(observer, event)(*arguments)
        except BaseException as error:  # see above: even SystemExit would leave callers waiting
            message = f"the observer {observer!r} failed in {event}"
            loop = _get_running_loop()
            if loop is None:
                logging.getLogger("loader").error(message, exc_info=error)
            else:
                loop.call_exception_handler({"message": message, "exception": error})


# -- places ----------------------------------------------------------------------------------------------------


def who_asks(frame: FrameType | None) -> tuple[Place, FrameType | None]:
    """The place of the innermost frame of the user's code, from `frame` outwards, and that frame."""
    while frame is not None:
        known = _places.get((id(frame.f_code), frame.f_lasti))
        if known is not None:
            return known[1], frame
        whose = _whose(frame)
        if whose is YOURS:
            return _new_place(frame), frame
        frame = frame.f_back if whose in BETWEEN else None
    return NOWHERE, None


def _new_place(frame: FrameType) -> Place:
    code = frame.f_code
    if len(_places) >= MOST_PLACES:
        _places.clear()  # somebody makes code as it goes
    place = Place(code.co_filename, frame.f_lineno, code.co_qualname)
    _places[id(code), frame.f_lasti] = code, place
    return place


def _asking_place() -> Place:
    """The place that asks for what is not part of a batch (yet)."""
    stated = asking.get()
    return who_asks(sys._getframe(1))[0] if stated is None else stated[0]


def _outermost(frame: FrameType | None) -> FrameType | None:
    """The call of the user's code that `frame` is part of: the last frame outwards before somebody else's.

    A resolver that has been awaiting is always on the stack below what it awaits, however many functions are in
    between. So it is the same frame for whatever one call of a resolver asks.
    """
    while frame is not None and frame.f_back is not None and _whose(frame.f_back) is YOURS:
        frame = frame.f_back
    return frame


def _whose(frame: FrameType) -> str:
    """`YOURS`, or the package above that a frame's code is in."""
    name: str = frame.f_globals.get("__name__", "")
    whose = _owners.get(name)
    if whose is None:
        package = name.partition(".")[0]
        whose = _owners[name] = package if package in BETWEEN or package in OUTSIDE else YOURS
    return whose


# -- batches ---------------------------------------------------------------------------------------------------


class LoaderNotes:
    """What an observed loader remembers from one batch to the next.

    Attributes:
        alone: The last batch of one key, and which call of the user's code asked for it.
        cleared: Keys that were known when they were cleared, and where that was.
    """

    __slots__ = ("alone", "cleared")

    def __init__(self) -> None:
        self.alone: tuple[BatchRecord, FrameType] | None = None
        self.cleared: dict[Hashable, Place] = {}


def notes_of(loader: Batching) -> LoaderNotes:
    """The notes of a loader, new ones if it has none."""
    if loader._notes is None:
        loader._notes = LoaderNotes()
    notes: LoaderNotes = loader._notes
    return notes


class BatchWatch:
    """The record of one batch that is observed, and who is told of it.

    Attributes:
        record: The record.
        attentive: Whether somebody wants to know who asks for its keys.
    """

    __slots__ = ("_askers", "_caller", "_observers", "_planned", "_wants_places", "attentive", "record")

    def __init__(self, record: BatchRecord, observers: Sequence[Observer]) -> None:
        self.record = record
        self._observers = observers
        self._askers = overriding("key_asked", observers)
        self._wants_places = any(each.wants_places for each in observers)
        if any(each.wants_keys for each in observers):
            record.keys = []
        self._caller: FrameType | None = None
        stated = asking.get()
        self._planned = stated is not None and stated[1]
        self.attentive = bool(self._wants_places or self._askers)

    @classmethod
    def of_loader(cls, loader: Batching) -> BatchWatch:
        """That of a new batch of a loader."""
        record = BatchRecord(loader.name, "loader", now(), loader._max_batch_size, loader._activity.scope)
        watch = cls(record, observers_of(loader))
        tell(watch._observers, "batch_opened", record)
        return watch

    @classmethod
    def of_items(
        cls, batcher: Batcher[Any, Any], reason: str, waited: float, entries: Sequence[_Entry[Any, Any]]
    ) -> BatchWatch:
        """That of a batch that a batcher is about to send."""
        time = now()
        record = BatchRecord(batcher.name, "batcher", time - waited, batcher._max_batch_size, None)
        observers = _once(_hooks.everywhere, *(each.asked.observers for each in entries if each.asked is not None))
        watch = cls(record, observers)
        record.sent = time
        record.reason = Reason(reason)
        record.size = len(entries)
        if record.keys is not None:
            record.keys += [entry.item for entry in entries]
        for entry in entries:
            if entry.asked is not None and entry.asked.place is not None:
                record.ask(entry.asked.place, entry.asked.at)
        tell(observers, "batch_opened", record)
        for entry in entries:
            if entry.asked is not None and entry.asked.context is not None:
                entry.asked.context.run(tell, watch._askers, "key_asked", record, entry.asked.place, 1)
        return watch

    def asked(self, count: int) -> None:
        """Keys of the batch were asked for. Called for every key, by the loader's method that the user has called."""
        record, place = self.record, None
        if self._wants_places:
            stated = asking.get()
            if stated is None:
                place, frame = who_asks(sys._getframe(3))
                if not record.asked:
                    self._caller = _outermost(frame)
            else:
                place = stated[0]
            record.ask(place, now(), count)
        if self._askers:
            tell(self._askers, "key_asked", record, place, count)

    def sent(self, window: float | Settle, *, full: bool, flushed: bool) -> None:
        """The batch is ready to leave."""
        self.record.sent = now()
        if full:
            self.record.reason = Reason.FULL
        elif flushed:
            self.record.reason = Reason.FLUSHED
        elif not isinstance(window, Settle):
            self.record.reason = Reason.WINDOW
        else:
            self.record.reason = Reason.PLANNED if self._planned else Reason.SETTLED

    def queued(self, holders: Iterable[Work]) -> None:
        """The batch has to wait for a slot."""
        self.record.waited_for += [record.as_holder for record in _records(holders)]

    def dropped(self, count: int) -> None:
        """Nobody waits for some of the keys any more."""
        tell(self._observers, "key_dropped", "loader", self.record.name, self.record.scope, count)

    def started(self, loader: Batching, batch: Batch, cache_keys: Sequence[Hashable], keys: Sequence[Any]) -> None:
        """The batch function is about to be called."""
        record = self.record
        record.size = len(keys)
        if record.keys is not None:
            record.keys += keys
        record.parents = _records(batch.asked_by)
        notes = notes_of(loader)
        for cache_key in cache_keys if notes.cleared else ():
            place = notes.cleared.pop(cache_key, None)
            if place is not None:
                record.refetched[place] = record.refetched.get(place, 0) + 1
        if len(keys) == 1 and self._caller is not None:
            if notes.alone is not None:
                before, caller = notes.alone
                in_a_row = before.finished is not None and before.finished <= record.opened
                if in_a_row and caller is self._caller and before.asked.keys() == record.asked.keys():
                    record.repeats = before.repeats + 1
            notes.alone = record, self._caller
        self._caller = None
        self.called()

    def called(self) -> None:
        """The function is about to be called, in the task of the batch."""
        self.record.started = now()
        tell(self._observers, "batch_sent", self.record)

    def finished(self, error: BaseException | None, asked_by: Collection[Work] = ()) -> None:
        """Everybody has an answer, or is about to get it."""
        record = self.record
        record.finished = now()
        record.outcome = outcome_of(error)
        if error is None and record.started is None:
            record.outcome = Outcome.EMPTY
        record.error = None if error is None else type(error)
        if len(asked_by) > len(record.parents):
            record.parents = _records(asked_by)
        self._caller = None
        if error is not None:
            tell(self._observers, "failed", record, error)
        tell(self._observers, "batch_finished", record)


class AskedItem:
    """Where and when an item was submitted to a batcher, and who is told of its batch."""

    __slots__ = ("at", "context", "observers", "place")

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = list(observers)
        self.at = now()
        self.place: Place | None = None
        if any(observer.wants_places for observer in self.observers):
            self.place = _asking_place()
        self.context: Context | None = copy_context() if overriding("key_asked", self.observers) else None


def _records(work: Iterable[Work]) -> list[BatchRecord]:
    return [each.watch.record for each in work if each.watch is not None]


def outcome_of(error: BaseException | None) -> Outcome:
    """What became of work that ended with `error`."""
    if error is None:
        return Outcome.DONE
    if isinstance(error, LoaderTimeoutError):
        return Outcome.TIMED_OUT
    if isinstance(error, BatchCancelledError | LoaderClosedError | RunCancelledError | CancelledError):
        return Outcome.CANCELLED
    return Outcome.FAILED


def observers_of(loader: Batching) -> list[Observer]:
    """Who observes a loader, each once."""
    return _once(_hooks.everywhere, loader._observers)


def overriding(event: str, observers: Iterable[Observer]) -> list[Observer]:
    """Those of the observers who want to be told of an event that it takes something to tell of."""
    nothing = getattr(Observer, event)
    return [each for each in observers if getattr(type(each), event) is not nothing]


def _once(*several: Iterable[Observer]) -> list[Observer]:
    found: list[Observer] = []
    for observers in several:
        for observer in tuple(observers):
            if not any(observer is each for each in found):
                found.append(observer)
    return found


def _scope_of(loader: Batching) -> Scope | None:
    return None if loader._activity.scope is None else loader._activity.scope()


# -- what is told of loaders besides their batches -------------------------------------------------------------


def cached(loader: Batching, count: int) -> None:
    """Keys were answered from the cache."""
    observers = observers_of(loader)
    place = _asking_place() if any(observer.wants_places for observer in observers) else None
    tell(observers, "key_cached", loader.name, _scope_of(loader), place, count)


def refused(loader: Batching, count: int) -> None:
    """Keys were refused, since too many wait."""
    tell(observers_of(loader), "overloaded", "loader", loader.name, _scope_of(loader), count)


def cleared(loader: Batching, cache_key: Hashable) -> None:
    """A key is about to be forgotten."""
    batch = loader._waiting.get(cache_key)
    known = loader._values is not None and cache_key in loader._values
    under_way = batch is not None and batch.watch is not None and batch.watch.record.started is not None
    notes = notes_of(loader)
    if (known or under_way) and len(notes.cleared) < MOST_PLACES:
        notes.cleared[cache_key] = _asking_place()


# -- runs ------------------------------------------------------------------------------------------------------


def asked_for_run(run: Run[Any], observers: Sequence[Observer]) -> None:
    """A run is asked for in this context, which these observe."""
    run.observers = _once(run.observers, observers)
    if len(run.asked_in) < MOST_ASKERS and overriding("run_asked", observers):
        run.asked_in.append(copy_context())


class RunWatch:
    """The record of a run that is observed, and who is told of it."""

    __slots__ = ("_observers", "_started", "record")

    def __init__(self, run: Run[Any], name: str, kind: str) -> None:
        self._observers = observers = _once(_hooks.everywhere, run.observers)
        began = now()
        self.record = RunRecord(name, kind, began - (run.started - run.first), run.triggers, began)
        self._started = False
        askers = overriding("run_asked", observers)
        for context in run.asked_in:
            context.run(tell, askers, "run_asked", self.record)
        run.asked_in.clear()

    def started(self) -> None:
        """The function is about to be called, in the task of the run."""
        self._started = True
        tell(self._observers, "run_started", self.record)

    def finished(self, error: BaseException | None) -> None:
        """It is over."""
        if not self._started:  # cancelled before its first step; what an observer sets here is for nobody
            copy_context().run(self.started)
        self.record.finished = now()
        self.record.outcome = outcome_of(error)
        self.record.error = None if error is None else type(error)
        if error is not None:
            tell(self._observers, "failed", self.record, error)
        tell(self._observers, "run_finished", self.record)
