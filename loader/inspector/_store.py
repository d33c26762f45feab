"""The latest operations, within a bound of memory.

What an operation did is kept as it was recorded, and made into something to show when somebody looks.
"""

from __future__ import annotations

from collections import deque
from itertools import count, islice
from sys import getsizeof
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from loader.observe import BatchRecord, Holder, Outcome, Place
from loader.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from loader.observe import RunRecord

BATCH, PLACE, RUN, LINK = 1024, 400, 320, 16
"""Bytes that a record of each kind takes at most, without its texts; measured, and held by a test."""

LONGEST = 300  # characters of a name; parameters and aliases are somebody else's choice
SHARE = 8  # one operation takes at most this part of the memory
BAD = {Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CANCELLED}


class Ended(NamedTuple):
    """An operation that is over, as its collector leaves it."""

    timeline: Timeline
    seconds: float
    claimed: int


class Operation:
    """An operation that is over.

    Attributes:
        id: What links call it.
        number: Its position among all operations, from 1.
        timeline: What it did. It refers to nothing else that was recorded, so that nothing else is kept for it.
        seconds: How long it took, from the opening of its scope to the closing.
        weight: How many bytes it takes, by a cautious estimate.
    """

    __slots__ = ("_summary", "id", "number", "seconds", "timeline", "weight")

    def __init__(self, number: int, run: str, ended: Ended, most: int) -> None:
        self.id = f"{run}-{number}"
        self.number = number
        self.seconds = ended.seconds
        self.timeline, self.weight = _detached(ended.timeline, most)
        self._summary: dict[str, Any] | None = None

    def summary(self) -> dict[str, Any]:
        """A line of the list."""
        if self._summary is None:
            timeline = self.timeline
            records = _records(timeline)
            self._summary = {
                "id": self.id,
                "number": self.number,
                "name": timeline.name or _described(timeline),
                "named": bool(timeline.name),
                "began": timeline.began_at,
                "seconds": self.seconds,
                "batches": len(timeline.batches),
                "runs": len(timeline.runs),
                "left_out": timeline.left_out,
                "keys": sum(batch.size for batch in timeline.batches),
                "failures": sum(each.outcome in BAD for each in records),
                "hints": [hint.kind.value for hint in timeline.hints()],
                "loaders": list(dict.fromkeys(each.label for each in records)),
            }
        return self._summary

    def detail(self) -> dict[str, Any]:
        """Everything that the page shows of it; times are in seconds since `lead` seconds after the scope opened."""
        timeline = self.timeline
        return {**timeline.data(), "operation": self.summary(), "lead": timeline.start - timeline.began}


class Store:
    """The latest operations. It may be used from any thread.

    Args:
        operations: How many are kept.
        memory: How many bytes they may take; those under way may take as much again.
    """

    def __init__(self, operations: int, memory: int) -> None:
        self.run = uuid4().hex[:8]  # an operation of another process, or of before a restart, has another id
        self.operations = operations
        self.memory = memory
        self._lock = Lock()
        self._kept: deque[Operation] = deque()
        self._weight = 0
        self._numbers = count(1)
        self._under_way = 0  # batches and runs of operations that are not over
        # Finalizers add to it wherever the garbage collector runs, perhaps while the lock is held: they must not ask
        # for it, and `append` is one step.
        self.ended: deque[Ended] = deque()
        self._told: list[Callable[[], None]] = []

    def claim(self) -> bool:
        """Whether there is room for one more record of an operation under way, which gives it back as it ends."""
        with self._lock:
            room = self._under_way * BATCH < self.memory
            self._under_way += room
            return room

    def take(self) -> None:
        """Keep what has ended, instead of the oldest."""
        with self._lock:
            if not self.ended:
                return
            while self.ended:
                self._keep(self.ended.popleft())
        for tell in tuple(self._told):
            tell()

    def _keep(self, ended: Ended) -> None:
        self._under_way -= ended.claimed
        timeline = ended.timeline
        if not (timeline.batches or timeline.runs or timeline.cached or timeline.left_out):
            return  # nothing happened in it: that of a `Loaders` that serves operations which have scopes of their own
        operation = Operation(next(self._numbers), self.run, ended, self.memory // SHARE)
        self._kept.append(operation)
        self._weight += operation.weight
        while len(self._kept) > self.operations or self._weight > self.memory:
            self._weight -= self._kept.popleft().weight

    def after(self, number: int) -> list[Operation]:
        """Those that are kept with a higher number, in their order."""
        self.take()
        with self._lock:
            newer = 0 if not self._kept else max(self._kept[-1].number - number, 0)
            return list(islice(reversed(self._kept), newer))[::-1]

    def find(self, id: str) -> Operation | None:  # noqa: A002
        """The operation with an id, if it is kept."""
        return next((operation for operation in self.after(0) if operation.id == id), None)

    def on_change(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Call `tell`, from whatever thread, when there are more; the function returned ends it."""
        self._told.append(tell)
        return lambda: self._told.remove(tell)


def _records(timeline: Timeline) -> list[BatchRecord | RunRecord]:
    return [*timeline.batches, *timeline.runs]


def _described(timeline: Timeline) -> str:
    """What an operation without a name is called: its root fields as far as relations know them, or its loaders."""
    places = (place for batch in timeline.batches for place in batch.asked)
    roots = dict.fromkeys(place.function.partition(".")[0] for place in places if _is_in_query(place))
    if roots:
        return f"{{ {' '.join(islice(roots, 3))}{' …' if len(roots) > 3 else ''} }}"
    names = [each.label for each in _records(timeline)] or list(timeline.cached)
    owners = dict.fromkeys(name.partition(".")[0] for name in names)
    return f"{', '.join(islice(owners, 3))}{', …' if len(owners) > 3 else ''}" or "(nothing kept)"


def _is_in_query(place: Place) -> bool:
    return not place.file and not place.function.startswith("(")


# -- what is kept of a timeline --------------------------------------------------------------------------------


def _detached(timeline: Timeline, most: int) -> tuple[Timeline, int]:
    """A timeline with records of its own, and its weight; what would weigh more than `most` is left out."""
    kept = Timeline(_cut(timeline.name))
    kept.began, kept.began_at, kept.left_out = timeline.began, timeline.began_at, timeline.left_out
    weight = BATCH
    copies: dict[BatchRecord, BatchRecord] = {}
    holders: dict[Holder, Holder] = {}
    for batch in timeline.batches:
        weight += _weight(batch, holders)
        if weight > most:
            break
        # One that a batcher still works on is told of its end in place; it waits for nothing.
        copies[batch] = batch if batch.finished is None and batch.kind == "batcher" else _copy(batch)
        holders[batch.as_holder] = copies[batch].as_holder
    for run in timeline.runs:
        weight += RUN + getsizeof(run.name)
        if weight > most:
            break
        kept.runs.append(run)
    for name, times in timeline.cached.items():
        weight += PLACE + getsizeof(name)
        if weight > most:
            break
        kept.cached[_cut(name)] = times
    kept.batches.extend(copies.values())
    kept.left_out += len(timeline.batches) - len(copies) + len(timeline.runs) - len(kept.runs)
    for batch, copy in copies.items():
        if copy is batch:
            continue
        copy.parents = [copies[parent] for parent in batch.parents if parent in copies]
        copy.waited_for = [holders.get(each) or _copied(each) for each in batch.waited_for]
    return kept, min(weight, most)


def _weight(batch: BatchRecord, holders: Container[Holder]) -> int:
    places = [*batch.asked, *batch.refetched]
    texts = getsizeof(batch.name) + sum(getsizeof(place.function) for place in places)
    records = 1 + sum(holder not in holders for holder in batch.waited_for)  # one of another operation is copied too
    return records * BATCH + len(places) * PLACE + texts + LINK * (len(batch.parents) + len(batch.waited_for))


def _copy(batch: BatchRecord) -> BatchRecord:
    """The record as it stands, without others."""
    copy = BatchRecord(_cut(batch.name), batch.kind, batch.opened, batch.capacity, None)
    copy.sent, copy.started, copy.finished = batch.sent, batch.started, batch.finished
    copy.size, copy.reason, copy.outcome, copy.error = batch.size, batch.reason, batch.outcome, batch.error
    copy.missing, copy.repeats = batch.missing, batch.repeats
    copy.refetched = _by_cut_place(batch.refetched.items())
    copy.asked = _by_cut_place(batch.asked.items())
    return copy


def _copied(holder: Holder) -> Holder:
    copy = Holder(_cut(holder.name))
    copy.started, copy.finished = holder.started, holder.finished
    return copy


def _by_cut_place(items: Iterable[tuple[Place, Any]]) -> dict[Place, Any]:
    return {
        place if len(place.function) <= LONGEST else place._replace(function=_cut(place.function)): value
        for place, value in items
    }


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
