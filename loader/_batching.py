"""The machinery of a DataLoader: its batches, from the first key to the last answer."""

from __future__ import annotations

import contextvars
import reprlib
from asyncio import BaseEventLoop, CancelledError, _get_running_loop
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping
from functools import partial
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any

from loader._batch import Batch, BatchState
from loader._dispatch import Activity, Settle
from loader._histogram import SIZES, Recorder
from loader._hooks import everywhere
from loader._limits import Limit
from loader._loops import home_loop, start_task
from loader._waiters import Known, answer
from loader._waits import asking_work
from loader.errors import (
    BatchCancelledError,
    BatchResultError,
    LoaderClosedError,
    LoaderOverloadedError,
    LoaderTimeoutError,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Task
    from collections.abc import Callable, Collection, MutableMapping
    from contextvars import Context

    from loader._backed import Backed
    from loader._hooks import Both
    from loader._results import BatchFunction, Shape
    from loader._waiters import Group
    from loader._watching import LoaderNotes
    from loader.observe import Observer


class _NoHome:
    """The home of a loader that has none: no running loop equals it, nor the lack of one, and no thread."""

    _thread_id = None


_NOWHERE: Any = _NoHome()
_CLOSED: Any = _NoHome()


class _Nothing(dict[Hashable, Any]):
    """Has nothing, and does not look at what it is asked for: a key that is not hashable may have a cache key."""

    def get(self, key: object, default: Any = None) -> Any:  # noqa: ARG002  # the base's signature
        return None


_NOTHING = _Nothing()


class _Foreign:
    """In which thread a loop runs that is not asyncio's own, under the name that those have it; it runs here now."""

    __slots__ = ("_loop", "_thread")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()

    @property
    def _thread_id(self) -> int | None:
        return self._thread if self._loop.is_running() else None


class Batching:
    """What `DataLoader` is made of. Every batch runs in a task of its own, and every way out of it is in `_serve`."""

    _notes: LoaderNotes | None = None
    """What is remembered while somebody observes. It is no attribute of its own before: the instances of a class with
    30 attributes or more lose what makes reading them fast."""
    _backed: Backed | None = None
    """What stands for the batch function and the shape where there is a second-level cache; no attribute otherwise."""

    def __init__(
        self,
        name: str,
        call: BatchFunction | Backed,
        shape: Shape | Backed,
        *,
        max_batch_size: int | None,
        window: float | Settle,
        values: MutableMapping[Hashable, Any] | None,
        own_values: bool,
        cache_key_fn: Callable[[Any], Hashable] | None,
        max_concurrent_batches: int | None,
        max_pending: int | None,
        timeout: float | None,
        cancel_abandoned: bool,
        observer: Observer | None,
    ) -> None:
        self.name = name
        self._call = call
        self._shape = shape
        self._max_batch_size = max_batch_size
        self._window = window
        self._cache_key_fn = cache_key_fn
        self._max_pending = max_pending
        self._timeout = timeout
        self._cancel_abandoned = cancel_abandoned

        # What the scope replaces where the loader is one of a `Loaders`.
        self._context: Context = contextvars.copy_context()
        self._activity = Activity()
        self._limits: tuple[Limit, ...] = () if max_concurrent_batches is None else (Limit(max_concurrent_batches),)
        self._observers: Collection[Observer] | Both = () if observer is None else (observer,)  # and those of the scope

        # Nowhere before the first load and after closing: a load at home pays for one comparison, and every other one
        # goes through `_come_home`, which has the clear errors.
        self._loop: AbstractEventLoop = _NOWHERE
        self._runs: Any = _NOWHERE  # the same for who asks for the thread

        # An outcome that is there stands in `_values`, and once it was asked for again as a finished future in
        # `_answered` too: a finished future cannot be cancelled, so one may serve any number of callers. A user's
        # mapping forgets when it likes, so nothing is kept beside it.
        self._values = values
        self._answered: dict[Hashable, Future[Any]] = {}
        # What a new key is looked up in first; a user's mapping, which stands for None here, is asked only once.
        self._own: Collection[Hashable] | None = (() if values is None else values) if own_values else None
        # Where to look a key up before anything else is done: nowhere, if its cache key has to be made first.
        self._known = self._answered if cache_key_fn is None else _NOTHING
        # The batch that a key waits for, until it is answered, cleared or dropped.
        self._waiting: dict[Hashable, Batch] = {}
        self._open: Batch | None = None  # the batch that takes new keys
        self._batches: set[Batch] = set()  # all whose task goes on: the function of one that ended may still run
        self._unsent = 0  # keys of batches that take no more and have not left
        self._clears = 0  # how often anything was cleared

        self._failures = 0
        self._abandoned = 0
        self._sizes = Recorder(SIZES)

    # -- keys in -----------------------------------------------------------------------------------------------

    @property
    def _closed(self) -> bool:
        return self._loop is _CLOSED

    def _come_home(self) -> None:
        """Make the running loop the loader's, or say why not."""
        if self._closed:
            scoped = self._activity.scope is not None
            remedy = "its scope is over. Use the loader of the current scope" if scoped else "make a new one"
            raise LoaderClosedError(f"{self!r} was closed: {remedy}")
        home = None if self._loop is _NOWHERE else self._loop
        loop = home_loop(home, self)
        if home is not None and home is not loop:
            # The old loop is closed. What was under way there never ends, and its callers are gone with it.
            self._waiting.clear()
            self._answered.clear()
            self._batches.clear()
            self._open = None
            self._unsent = 0
        self._loop = loop
        self._runs = loop if isinstance(loop, BaseEventLoop) else _Foreign(loop)

    def _hashable(self, key: Any) -> Hashable:
        """The cache key of `key`, known to be hashable."""
        cache_key: Hashable = key if self._cache_key_fn is None else self._cache_key_fn(key)
        try:
            hash(cache_key)
        except TypeError as error:
            raise self._unhashable(cache_key) from error
        return cache_key

    def _unhashable(self, cache_key: Any) -> TypeError:
        remedy = (
            "give the loader a cache_key_fn that makes" if self._cache_key_fn is None else "let cache_key_fn return"
        )
        return TypeError(
            f"{self!r}: the key {reprlib.repr(cache_key)} is not hashable; {remedy} something hashable of it"
        )

    def _pending(self) -> int:
        """How many keys wait to be sent."""
        return self._unsent + (0 if self._open is None else len(self._open.callers.futures))

    @property
    def observed(self) -> bool:
        """Whether somebody observes what this loader does."""
        return bool(everywhere or self._observers)

    def _open_batch(self, adding: int) -> Batch:
        """The batch that takes new keys: the one that is open, or a new one."""
        if self._max_pending is not None and self._pending() + adding > self._max_pending:
            if everywhere or self._observers:
                _watching().refused(self, adding)
            raise LoaderOverloadedError(
                f"{self!r}: {self._pending()} keys wait to be sent and {adding} more would exceed "
                f"max_pending={self._max_pending}; try again when some have been answered"
            )
        if self._open is not None:
            return self._open
        loop = self._loop
        batch = Batch(loop, self._limits, self._clears, own_keys=self._cache_key_fn is None)
        if not isinstance(self._window, Settle):
            batch.opened = loop.time()
        if everywhere or self._observers:
            batch.watch = _watching().BatchWatch.of_loader(self)
        batch.attended = self._cancel_abandoned or (batch.watch is not None and batch.watch.attentive)
        batch.plain = batch.keys is None and self._max_batch_size is None and not batch.attended
        batch.task = start_task(loop, self._context, self._serve(batch))
        batch.task.add_done_callback(partial(self._task_ended, batch))
        self._open = batch
        self._batches.add(batch)
        return batch

    def _close_batch(self, batch: Batch) -> None:
        """Let a full batch leave."""
        self._open = None
        batch.state = BatchState.WAITING
        self._unsent += len(batch.callers.futures)
        batch.departure.now()

    def _add_group(self, group: Group, keys: dict[Hashable, Any]) -> None:
        """Put down the new keys of a `load_many`, in as many batches as they need."""
        self._activity.moved = True
        rest = iter(keys.items())
        while part := keys if self._max_batch_size is None else self._fitting(rest):
            batch = self._open_batch(adding=0)
            self._note_asking(batch)
            futures = batch.callers.futures
            # In bulk: key by key it would cost three times as much.
            futures.update(dict.fromkeys(part, group.future))
            batch.callers.note_group(group, part)
            self._waiting.update(dict.fromkeys(part, batch))
            if batch.keys is not None:
                batch.keys.update(part)
            if batch.attended:
                self._attend(batch, group.future, len(part))
            if self._max_batch_size is None:
                return
            if len(futures) == self._max_batch_size:
                self._close_batch(batch)

    def _fitting(self, rest: Iterable[tuple[Hashable, Any]]) -> dict[Hashable, Any]:
        """As many of the keys as the open batch, or a new one, has room for."""
        taken = 0 if self._open is None else len(self._open.callers.futures)
        return dict(islice(rest, (self._max_batch_size or 0) - taken))

    def _recall(self, cache_key: Hashable, outcome: Any) -> Future[Any]:
        """A finished future of what is cached."""
        future = Known(loop=self._loop)
        answer(future, outcome)
        if everywhere or self._observers:
            _watching().cached(self, 1)  # and it is not kept: the next caller shall come here too
        elif self._own is not None:
            self._answered[cache_key] = future
        return future

    def _note_asking(self, batch: Batch) -> None:
        """If a batch function is asking here, note that its batch waits for `batch`."""
        asking = asking_work()
        if asking is not None:
            asking.ask_for(batch, self)

    def _attend(self, batch: Batch, future: Future[Any], keys: int) -> None:
        """Look at a new caller of `batch`, which asked for so many keys."""
        if batch.watch is not None:
            batch.watch.asked(keys)
        if self._cancel_abandoned:  # when none of the callers waits for the batch any more, and some have left it
            batch.watched += 1
            future.add_done_callback(partial(self._left, batch))

    def _left(self, batch: Batch, _: Future[Any]) -> None:
        batch.watched -= 1
        if not batch.watched and batch.callers.futures and batch.state is BatchState.RUNNING:
            self._abandoned += len(batch.callers.futures)
            self._end(batch, CancelledError())
            self._cancel(batch)

    def _drop(self, batch: Batch, cache_key: Hashable) -> None:
        """Take a key out of a batch that has not left. Its callers are the caller's business."""
        del self._waiting[cache_key]
        if batch.keys is not None:
            del batch.keys[cache_key]
        if batch.state is BatchState.WAITING:
            self._unsent -= 1

    def _clear(self, cache_key: Hashable) -> None:
        if everywhere or self._observers:
            _watching().cleared(self, cache_key)
        self._clears += 1
        self._answered.pop(cache_key, None)
        if self._values is not None:
            self._values.pop(cache_key, None)
        batch = self._waiting.get(cache_key)
        if batch is not None and batch.state is BatchState.RUNNING:
            del self._waiting[cache_key]

    # -- values out --------------------------------------------------------------------------------------------

    async def _serve(self, batch: Batch) -> None:
        """The task of a batch."""
        loop = batch.callers.loop
        held: list[Limit] = []
        try:
            if isinstance(self._window, Settle):
                await batch.departure.settled(self._window, self._activity)
            else:
                await batch.departure.at(loop, batch.opened + self._window)
            if batch.watch is not None:
                full = batch.state is BatchState.WAITING
                batch.watch.sent(self._window, full=full, flushed=batch.departure.due)
            if self._timeout is not None:
                batch.timer = loop.call_later(self._timeout, self._time_out, batch)
            for limit in batch.limits:
                await limit.acquire(batch, loop)
                held.append(limit)
            cache_keys = self._leave(batch)
            if cache_keys:
                await self._fetch(batch, cache_keys)
        except BaseException as error:
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._end(batch)
            batch.finish()
            for limit in held:
                limit.release(batch)

    def _leave(self, batch: Batch) -> list[Hashable]:
        """Close a batch that has its turn; its cache keys, without those that nobody waits for any more."""
        if batch.state is BatchState.COLLECTING:
            self._open = None
        abandoned = batch.callers.abandoned()
        for cache_key in abandoned:
            self._drop(batch, cache_key)
            del batch.callers.futures[cache_key]
        self._abandoned += len(abandoned)
        if abandoned and batch.watch is not None:
            batch.watch.dropped(len(abandoned))
        if batch.state is BatchState.WAITING:
            self._unsent -= len(batch.callers.futures)
        batch.state = BatchState.RUNNING
        batch.clears = self._clears
        return list(batch.callers.futures)

    async def _fetch(self, batch: Batch, cache_keys: list[Hashable]) -> None:
        """Call the batch function and answer everybody."""
        keys: list[Any] = cache_keys if batch.keys is None else list(batch.keys.values())
        self._sizes.record(len(keys))
        if batch.watch is not None:
            batch.watch.started(self, batch, cache_keys, keys)
        batch.begin()
        result = await self._call(keys.copy())
        if isinstance(result, AsyncIterator):
            await self._stream(batch, result)
            missed = self._shape.missed
            outcomes = {
                cache_key: self._shape.missing(self.name, cache_key if batch.keys is None else batch.keys[cache_key])
                for cache_key in batch.callers.futures
            }
            extra: Mapping[Hashable, Any] = {}
        else:
            missed = self._shape.missed
            outcomes, extra = self._shape.read(self.name, keys, cache_keys, result)
        if batch.watch is not None:
            batch.watch.record.missing = self._shape.missed - missed
        self._finish(batch, outcomes, extra)

    async def _stream(self, batch: Batch, pairs: AsyncIterator[Any]) -> None:
        """Answer each caller as its pair comes, and close what the pairs come from."""
        try:
            await self._take_pairs(batch, pairs)
        finally:
            close = getattr(pairs, "aclose", None)
            if close is not None:
                await close()

    async def _take_pairs(self, batch: Batch, pairs: AsyncIterator[Any]) -> None:
        answered: set[Hashable] = set()
        async for pair in pairs:
            cache_key, outcome = self._shape.pair(self.name, pair)
            if cache_key in answered:
                raise BatchResultError(
                    f"{self.name}: the batch function yielded the key {reprlib.repr(cache_key)} twice"
                )
            answered.add(cache_key)
            if batch.state is BatchState.ENDED:
                return
            if cache_key not in batch.callers.futures:
                self._keep(batch, {}, {cache_key: outcome})
                continue
            current = self._waiting.get(cache_key) is batch
            if current:
                del self._waiting[cache_key]
            batch.callers.answer_key(cache_key, outcome)
            self._activity.moved = True
            if current:
                self._keep(batch, {cache_key: outcome}, {})

    def _finish(self, batch: Batch, outcomes: dict[Hashable, Any], extra: Mapping[Hashable, Any]) -> None:
        """Answer the callers of a batch and keep what it brought."""
        if batch.state is BatchState.ENDED:
            return  # it was timed out or closed, and its function took no notice
        callers = batch.callers
        if len(outcomes) != len(callers.futures):
            raise BatchResultError(
                f"{self.name}: keys have become equal while their batch was under way. What a key is equal to must "
                "not change: load immutable keys, or give the loader a cache_key_fn that makes one of what they are"
            )
        kept = outcomes
        if batch.clears != self._clears:
            # What was cleared meanwhile may have changed since it was read.
            kept = {key: outcome for key, outcome in outcomes.items() if self._waiting.get(key) is batch}
        self._end(batch)
        callers.answer_all(outcomes)
        self._keep(batch, kept, extra)

    def _keep(self, batch: Batch, outcomes: Mapping[Hashable, Any], extra: Mapping[Hashable, Any]) -> None:
        """Cache outcomes that callers have got, and what came for keys that nobody asked this batch for."""
        if self._values is None or not self._activity.keeps:
            return
        try:
            self._values.update(outcomes)
            if batch.clears == self._clears:
                for key, outcome in extra.items():
                    if key not in self._waiting and key not in self._values:
                        self._values[key] = outcome
        except Exception as error:  # noqa: BLE001  # a user's cache_map that fails must not fail who still waits
            self._report(batch, error, "error after callers were answered")

    # -- ends --------------------------------------------------------------------------------------------------

    def _end(self, batch: Batch, error: BaseException | None = None) -> None:
        """Take a batch out of everything. Its callers are answered right before or after, with `error` if it failed."""
        if batch.state is BatchState.ENDED:
            return
        if self._open is batch:
            self._open = None
        keys = batch.callers.futures
        if batch.state is BatchState.WAITING:
            self._unsent -= len(keys)
        batch.state = BatchState.ENDED
        self._activity.moved = True
        batch.end()
        if batch.timer is not None:
            batch.timer.cancel()
        waiting = self._waiting
        if batch.clears == self._clears and len(waiting) == len(keys):
            waiting.clear()  # they are the same keys: none was cleared, and no other batch is under way
        else:
            try:
                for key in keys:
                    if waiting.get(key) is batch:
                        del waiting[key]
            except Exception:  # noqa: BLE001  # a key is not hashable any more: its callers get that error, or another
                waiting.clear()  # nothing here can be relied on: what is under way is asked for again
        if batch.watch is not None:
            batch.watch.finished(error, batch.asked_by)

    def _fail(self, batch: Batch, error: BaseException) -> None:
        """Answer everybody who still waits with an exception."""
        if batch.state is BatchState.ENDED:
            batch.callers.fail_all(error)  # who is left, where answering itself failed: with the hash of a key, say
            if isinstance(error, Exception):
                self._report(batch, error, "error after callers were answered")
            return
        self._failures += 1
        if isinstance(error, Exception) and not batch.callers.futures:
            self._report(batch, error, "an async generator failed after it had answered everybody")
        self._end(batch, error)
        task = batch.task
        if isinstance(error, CancelledError) and task is not None and task.cancelling():
            stopped = BatchCancelledError(f"{self.name}: the batch was cancelled with its task, as when a loop ends")
            batch.callers.fail_all(stopped, quietly=True)
        else:
            batch.callers.fail_all(error)

    def _report(self, batch: Batch, error: Exception, what: str) -> None:
        """Hand asyncio an error that is nobody's answer: those whom it could concern have theirs already."""
        batch.callers.loop.call_exception_handler({"message": f"{self!r}: {what}", "exception": error})

    def _time_out(self, batch: Batch) -> None:
        """End a batch that took too long. Whether its function notices or not, its callers are answered."""
        self._failures += 1
        count = len(batch.callers.futures)
        late = LoaderTimeoutError(
            f"{self.name}: a batch of {count} keys was not answered within {self._timeout} seconds"
        )
        self._end(batch, late)
        batch.callers.fail_all(late)
        self._cancel(batch)

    def _task_ended(self, batch: Batch, task: Task[None]) -> None:
        """Settle what a task that was cancelled before its first step could not."""
        self._batches.discard(batch)
        if batch.state is not BatchState.ENDED:
            self._fail(batch, CancelledError())
        if not task.cancelled():
            task.exception()  # the callers have it; KeyboardInterrupt and SystemExit have left through the loop
        batch.task = None  # whose exception has a traceback, which has this batch and all that its function loaded

    def _cancel(self, batch: Batch) -> None:
        assert batch.task is not None
        if not batch.task.cancelling():  # a second cancellation would break into the clean-up after the first
            batch.task.cancel()

    def _close(self) -> list[Task[None]]:
        """Answer everybody, cancel every batch and refuse more; the tasks that are ending."""
        running = _get_running_loop()
        if running is not self._loop and any(batch.state is not BatchState.ENDED for batch in self._batches):
            self._come_home()
        self._loop = _CLOSED
        self._runs = _CLOSED
        for batch in self._batches:
            if batch.state is not BatchState.ENDED:
                closed = LoaderClosedError(f"{self.name}: closed before this key was answered")
                self._end(batch, closed)
                batch.callers.fail_all(closed, quietly=True)
                self._cancel(batch)
        self._answered.clear()
        tasks = [batch.task for batch in self._batches if batch.task is not None]
        return [task for task in tasks if task.get_loop() is running]


def _watching() -> Any:
    """What records things, imported when somebody observes."""
    from loader import _watching

    return _watching
