"""Batcher: items in, results out, many items in one call of a handler, with back-pressure in front of it."""

from __future__ import annotations

from asyncio import all_tasks, gather
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, final, overload

from loader._dispatch import seconds, string, whole_number
from loader._histogram import SECONDS, SIZES, Histogram, Recorder
from loader._hooks import everywhere, observers_here
from loader._loops import home_loop, start_task
from loader._results import BatchFunction, _short
from loader._waiters import answer, failed, failure
from loader._waits import Wait, Work, current_work
from loader._work import capture_context, waiting_for
from loader.errors import (
    BatchCancelledError,
    BatchResultError,
    LoaderClosedError,
    LoaderOverloadedError,
    LoaderTimeoutError,
    SelfWaitError,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Handle, Task
    from collections.abc import Awaitable, Callable, Collection, Iterator
    from types import TracebackType
    from typing import Self

    from loader._waits import Awaited
    from loader._watching import AskedItem

T = TypeVar("T")
R = TypeVar("R")


@final
@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """What a `Batcher` did so far, counted in items where nothing else is said.

    Attributes:
        submitted: Items taken in, whether they found room at once or had to wait for it.
        rejected: Items refused with `LoaderOverloadedError`.
        cancelled: Items dropped because their caller left before the batch did.
        failures: Items whose caller got an exception, of its own or of the whole batch.
        batches: Calls of the handler.
        pending: Items that wait to be sent now, `max_pending` at most.
        blocked: Items that wait for room behind them now.
        running: Batches in flight now.
        batch_size: The sizes of the batches.
        wait: The seconds from a submission until its batch left.
    """

    submitted: int
    rejected: int
    cancelled: int
    failures: int
    batches: int
    pending: int
    blocked: int
    running: int
    batch_size: Histogram
    wait: Histogram


@dataclass(slots=True)
class _Entry(Generic[T, R]):
    item: T
    future: Future[R]  # its caller's own, who may cancel it at any time: whoever settles it looks first
    serial: int
    since: float
    asked: AskedItem | None = None  # who is told of it, if somebody observes
    batch: _Batch[T, R] | None = None  # once it is sent


class _Batch(Work, Generic[T, R]):
    __slots__ = ("deadline", "entries", "home", "serial", "task")

    def __init__(self, home: Batcher[T, R], entries: list[_Entry[T, R]]) -> None:
        super().__init__(())
        self.home = home
        self.entries = entries  # emptied by whoever settles them, so that nobody does it twice
        self.serial = entries[0].serial  # stays when the entries are gone
        self.task: Task[list[R | BaseException]] | None = None
        self.deadline: Handle | None = None

    def __str__(self) -> str:
        return f"a batch of {self.home!r}"

    def askers(self) -> list[Work]:
        return self.home._awaited_by


@final
class Batcher(Generic[T, R]):
    """Takes single items, sends them to `handler` many at a time, and gives each caller its own result.

    Without a `window` a batch leaves as soon as a slot is free: at the next turn of the loop, so that the
    items of one burst share it, and while every slot is taken items gather. Nothing waits while the backend
    idles, and batches grow with the load. With a `window` a batch waits for company, for that long after
    its first item; later items do not prolong it. A full batch leaves at once either way, and so does one
    behind which a submission found no room.

    Each batch runs in a task of its own, in the context variables that were current when the batcher was
    made. A caller that is cancelled takes its item along if the batch has not left yet, and never disturbs
    anybody else. All times are in seconds.

    The handler gets a list of items and returns a sequence of as many results, in the same order. An
    exception in place of a result fails the caller of that item only; an exception raised fails the callers
    of the batch, all with the same object. What would do harm in a caller arrives wrapped: a cancelled
    batch as `BatchCancelledError`, and `StopIteration` or anything that is no `Exception` as
    `BatchFailedError`, with the original as `__cause__`. `KeyboardInterrupt` and `SystemExit` also end the
    loop, as from any task.

    A handler may submit to its own batcher. It may wait for the result as long as a slot is left for that
    item; where every slot is taken by handlers that wait in this way, also through other batchers, loaders, triggers
    and flights, the wait raises `SelfWaitError` instead of never ending. Code that the handler started counts as
    the handler while that runs. A future of `submit_nowait` can be awaited unseen, so a handler must not await one of
    its own batcher.

    Args:
        handler: An `async def` function of a list of items, or anything that can be called like one. A plain
            function runs in a worker thread, with the context variables carried over. A thread cannot be
            stopped: after a time-out or `aclose(flush=False)` its callers are told at once, and its slot is
            free when the function returns.
        max_batch_size: The most items of one batch.
        window: How long a batch waits for more items after its first one. None: until the next turn of the
            loop.
        max_pending: How many items may wait to be sent. None: any number.
        overflow: What `submit` does beyond that: `"wait"` for room, first come, first served, or `"reject"`.
        max_concurrent_batches: How many batches may be in flight.
        timeout: How long one batch may take. After that its callers get `LoaderTimeoutError` at once, the
            handler is cancelled, and its slot is free when it has ended. None: for ever.
        name: What errors and `repr` call this batcher. The default is the name of the handler.

    Raises:
        TypeError: If `handler` cannot be called, a number is none, or `name` no string.
        ValueError: If a limit is below 1, a time is negative or not finite, or `overflow` is neither word.

    Examples:
        >>> import asyncio
        >>> from loader import Batcher
        >>> async def store(rows: list[str]) -> list[int]:
        ...     print("one call for", rows)
        ...     return [len(row) for row in rows]
        >>> async def main() -> None:
        ...     async with Batcher(store, max_batch_size=50) as batcher:
        ...         print(await asyncio.gather(batcher.submit("JFK"), batcher.submit("Newark")))
        >>> asyncio.run(main())
        one call for ['JFK', 'Newark']
        [3, 6]
    """

    def __init__(
        self,
        handler: Callable[[list[T]], Awaitable[Sequence[R | Exception]] | Sequence[R | Exception]],
        *,
        max_batch_size: int = 100,
        window: float | None = None,
        max_pending: int | None = None,
        overflow: Literal["wait", "reject"] = "wait",
        max_concurrent_batches: int = 1,
        timeout: float | None = None,
        name: str | None = None,
    ) -> None:
        for option, value in (
            ("max_batch_size", max_batch_size),
            ("max_pending", max_pending),
            ("max_concurrent_batches", max_concurrent_batches),
        ):
            if value is not None or option != "max_pending":
                whole_number(option, value, least=1)
        if overflow not in {"wait", "reject"}:
            raise ValueError(f"overflow is 'wait' or 'reject', not {overflow!r}")
        if not callable(handler):
            raise TypeError(f"handler must be a function of a list of items, not {_short(handler)}")
        self.name: str = _name_of(handler) if name is None else string("name", name)
        self._call = BatchFunction(handler)
        self._max_batch_size = max_batch_size
        self._window = None if window is None else seconds("window", window)
        self._max_pending: float = inf if max_pending is None else max_pending
        self._may_wait = overflow == "wait"
        self._max_concurrent_batches = max_concurrent_batches
        self._timeout = None if timeout is None else seconds("timeout", timeout)
        self._context = capture_context()
        self._closed = False
        self._loop: AbstractEventLoop | None = None
        # What is not sent yet, in order of arrival. The first `max_pending` are pending; whoever stands
        # behind them is waiting for room, and moves up without being woken.
        self._queue: OrderedDict[Future[R], _Entry[T, R]] = OrderedDict()
        self._running: set[_Batch[T, R]] = set()
        self._alarm: Handle | None = None  # set exactly while a slot is free and something is in the queue
        self._serials = count(1)
        self._last_serial = 0
        self._leave_through = 0  # items up to this serial wait for a slot, but no longer for company
        self._drains: dict[Future[None], int] = {}  # who waits until no item up to a serial is left
        self._awaited_by: list[Work] = []
        self._observed = True  # not where it is machinery of our own, of which nobody is told
        self._rejected = self._cancelled = self._failures = self._batches = 0
        self._batch_size = Recorder(SIZES)
        self._wait = Recorder(SECONDS)

    def __repr__(self) -> str:
        closed = " closed," if self._closed else ""
        return f"<Batcher {self.name!r}:{closed} {len(self._queue)} waiting, {len(self._running)} running>"

    async def submit(self, item: T) -> R:
        """Submit one item and wait for its result.

        If `max_pending` items are waiting already, this one waits for room first, in order of arrival; the
        batch in front of it then leaves without waiting for its window.

        Returns:
            What the handler returned in the item's place.

        Raises:
            LoaderOverloadedError: If there is no room and `overflow` is `"reject"`.
            LoaderTimeoutError: If the batch took longer than `timeout`.
            LoaderClosedError: If the batcher is closed, or was closed with `flush=False` before the batch
                left.
            BatchResultError: If the handler returned a wrong number of results, or no sequence.
            BatchCancelledError: If the batch was cancelled, from within, from outside, or by
                `aclose(flush=False)`.
            BatchFailedError: If the batch ended with something else that is no `Exception`.
            SelfWaitError: If what the item waits for waits for the code that submits it.
            LoaderLoopError: If called from another event loop or another thread.
            Exception: Whatever the handler raised, or returned in the item's place.

        Cancellation:
            Before the batch left, the item is dropped; afterwards its result is. No other caller notices.
        """
        if current_work.get() is None:
            return await self._add(item, may_wait=self._may_wait)
        with self._waiting() as entries:
            return await self._add(item, may_wait=self._may_wait, also=entries)

    def submit_nowait(self, item: T) -> Future[R]:
        """Submit one item without waiting for anything.

        Returns:
            A future of the caller's own: cancelling it drops the item if the batch has not left yet. A
            failure that nobody takes from it is reported by asyncio.

        Raises:
            LoaderOverloadedError: If `max_pending` items are waiting, whatever `overflow` says.
            LoaderClosedError: If the batcher is closed.
            LoaderLoopError: If called from another event loop or another thread.
        """
        return self._add(item, may_wait=False)

    @overload
    async def submit_many(self, items: Iterable[T], *, return_exceptions: Literal[False] = False) -> list[R]: ...

    @overload
    async def submit_many(self, items: Iterable[T], *, return_exceptions: bool) -> list[R | Exception]: ...

    async def submit_many(self, items: Iterable[T], *, return_exceptions: bool = False) -> Sequence[object]:
        """Submit all `items` at once, and wait until every one of them has its result.

        Args:
            items: Any number of items. They may go to several batches, and share them with other callers'
                items.
            return_exceptions: Put exceptions in the list instead of raising one of them.

        Returns:
            The results in the order of the items.

        Raises:
            LoaderOverloadedError: If there is no room for all of them and `overflow` is `"reject"`; none is
                submitted.
            TypeError: If `items` is a string or not iterable.
            Exception: That of the first item that failed, once all are done; otherwise as `submit` raises.

        Cancellation:
            Items whose batch has not left are dropped.
        """
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise TypeError(f"{self!r}: submit_many takes an iterable of items, not {items!r}; one item is for submit")
        with self._waiting() as entries:
            outcomes = await self._add_many(list(items), entries)
        if not return_exceptions:
            for outcome in outcomes:
                if failed(outcome):
                    raise outcome
        return outcomes

    async def flush(self) -> None:
        """Send what waits for company, and wait until all that was submitted so far is settled.

        Raises:
            SelfWaitError: If called by the handler, or by what it waits for.
            LoaderLoopError: If called from another event loop or another thread.

        Cancellation:
            Only the wait ends; what was sent goes on.
        """
        self._refuse_inside("flush()")
        self._home()
        with waiting_for(Wait(self, partial(self._left, self._last_serial))):
            await self._drain()

    async def aclose(self, *, flush: bool = True) -> None:
        """Take no more items, and wait until nothing is left to do.

        Closing again is allowed, also with `flush=False` while another call is flushing. `async with`
        closes with `flush=True`, whatever ended its block.

        Args:
            flush: Send what is waiting, and serve those who wait for room. False: they get
                `LoaderClosedError` and their items are never sent; batches in flight are cancelled, and
                their callers get `BatchCancelledError` at once; a handler that takes no notice is waited for.

        Raises:
            SelfWaitError: If called by the handler.
            LoaderLoopError: If called from another event loop or another thread.

        Cancellation:
            The batcher stays closed, and what it was flushing goes on.
        """
        self._refuse_inside("aclose()")
        self._home()
        if flush:
            with waiting_for(Wait(self, partial(self._left, self._last_serial))):
                self._closed = True
                await self._drain()
        else:
            self._closed = True
            self._abandon()
            await self._drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def statistics(self) -> BatcherStatistics:
        """What this batcher did so far; later work does not change it."""
        pending = int(min(len(self._queue), self._max_pending))
        return BatcherStatistics(
            submitted=self._last_serial,
            rejected=self._rejected,
            cancelled=self._cancelled,
            failures=self._failures,
            batches=self._batches,
            pending=pending,
            blocked=len(self._queue) - pending,
            running=len(self._running),
            batch_size=self._batch_size.snapshot(),
            wait=self._wait.snapshot(),
        )

    # What follows keeps one promise: whenever it is not running itself, either the queue is empty, or every
    # slot is taken, or the alarm is set. So there is always something that will move the queue on.

    def _home(self) -> AbstractEventLoop:
        loop = home_loop(self._loop, self)
        if loop is not self._loop:
            # What belonged to a loop that is closed can neither run nor be woken any more.
            self._queue.clear()
            self._running.clear()
            self._drains.clear()
            self._alarm = None
            self._loop = loop
        return loop

    @contextmanager
    def _waiting(self) -> Iterator[list[_Entry[T, R]]]:
        """Around the wait for those items that are added to what it gives."""
        entries: list[_Entry[T, R]] = []

        def ahead() -> Iterable[Awaited | Work]:
            return [entry.batch or self for entry in entries if not entry.future.done()] if entries else [self]

        with waiting_for(Wait(self, ahead)):
            yield entries

    def _add(self, item: T, *, may_wait: bool, also: list[_Entry[T, R]] | None = None) -> Future[R]:
        loop = self._admit(1, may_wait=may_wait)
        future: Future[R] = loop.create_future()
        self._last_serial = serial = next(self._serials)
        entry = self._queue[future] = _Entry(item, future, serial, loop.time())
        if self._observed and (observers := observers_here()):
            entry.asked = _watching().AskedItem(observers)
        if also is not None:
            also.append(entry)  # before it is sent: an eager task runs the handler at once
        future.add_done_callback(self._forget)
        self._pump()
        return future

    async def _add_many(self, items: list[T], entries: list[_Entry[T, R]]) -> list[R | BaseException]:
        self._admit(len(items), may_wait=self._may_wait)
        futures = [self._add(item, may_wait=True, also=entries) for item in items]
        return await gather(*futures, return_exceptions=True)

    async def _drain(self) -> None:
        loop = self._home()
        self._leave_through = through = self._last_serial
        self._pump()
        if self._left(through):
            drained: Future[None] = loop.create_future()
            self._drains[drained] = through
            try:
                await drained
            finally:
                self._drains.pop(drained, None)

    def _admit(self, items: int, *, may_wait: bool) -> AbstractEventLoop:
        loop = self._home()
        if self._closed:
            raise LoaderClosedError(f"{self!r} takes no more items. Submit before aclose().")
        if not may_wait and len(self._queue) + items > self._max_pending:
            self._rejected += items
            # The rest of a window would be spent refusing.
            self._leave_through = self._last_serial
            waiting = len(self._queue)
            if self._observed and (observers := observers_here()):
                _watching().tell(observers, "overloaded", "batcher", self.name, None, items)
            self._pump()
            raise LoaderOverloadedError(
                f"{self!r} has no room for {items} more: {waiting} items were waiting, and max_pending is "
                f"{self._max_pending}. Try again later, or let submit() wait for room."
            )
        return loop

    def _forget(self, future: Future[R]) -> None:
        """Drop the item of a caller that left. What is settled otherwise is not in the queue any more."""
        entry = self._queue.pop(future, None)
        if entry is not None:
            self._note_dropped(entry)
            if not self._queue:
                self._disarm()
            self._wake_drained()

    def _pump(self) -> None:
        """Send each batch that is to leave now, and see to it that the next one leaves in time."""
        loop = cast("AbstractEventLoop", self._loop)
        while self._queue and len(self._running) < self._max_concurrent_batches:
            first = next(iter(self._queue.values()))
            if len(self._queue) >= self._max_batch_size:
                self._send("full")
                continue
            if len(self._queue) > self._max_pending or first.serial <= self._leave_through:
                self._send("flushed")
                continue
            if self._alarm is None:
                if self._window is None:
                    self._alarm = loop.call_soon(self._ring)
                else:
                    self._alarm = loop.call_at(first.since + self._window, self._ring)
            return

    def _ring(self) -> None:
        self._send("idle" if self._window is None else "window")
        self._pump()

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _note_dropped(self, entry: _Entry[T, R]) -> None:
        self._cancelled += 1
        if entry.asked is not None:
            _watching().tell(entry.asked.observers, "key_dropped", "batcher", self.name, None, 1)

    def _send(self, reason: str) -> None:
        """Start a batch of the items at the head of the queue; a slot is free, and there is a `Reason` to leave."""
        self._disarm()
        loop = cast("AbstractEventLoop", self._loop)
        now = loop.time()
        entries: list[_Entry[T, R]] = []
        size = min(len(self._queue), self._max_batch_size, self._max_pending)
        while self._queue and len(entries) < size:
            future, entry = self._queue.popitem(last=False)
            if future.done():  # its caller left a moment ago, and `_forget` is still on its way
                self._note_dropped(entry)
                continue
            self._wait.record(now - entry.since)
            entries.append(entry)
        if not entries:
            self._wake_drained()
            return
        self._batches += 1
        self._batch_size.record(len(entries))
        batch = _Batch(self, entries)
        for entry in entries:
            entry.batch = batch
        if self._observed and (everywhere or any(entry.asked is not None for entry in entries)):
            batch.watch = _watching().BatchWatch.of_items(self, reason, now - entries[0].since, entries)
        self._running.add(batch)  # before the task: an eager one runs the handler now, which may submit
        try:
            task = start_task(loop, self._context, self._run(batch, [entry.item for entry in entries]))
        except BaseException as error:  # SystemExit of an eager task leaves here, and leaves no task
            self._running.discard(batch)
            for future in self._fail(batch.entries, error):
                future.exception()  # one of the callers may be on the stack, and never see its future
            self._note_finished(batch, error)
            self._go_on(ending=True)
            raise
        batch.task = task
        if self._timeout is not None:
            batch.deadline = loop.call_later(self._timeout, self._time_out, batch)
        # A callback and not the end of `_run`: a task that is cancelled before its first step never gets
        # there.
        task.add_done_callback(partial(self._ended, batch))

    async def _run(self, batch: _Batch[T, R], items: list[T]) -> list[R | BaseException]:
        expected = len(items)  # counted before the handler can change the list
        batch.begin()
        if batch.watch is not None:
            batch.watch.called()
        results = await self._call(items)
        if not isinstance(results, Sequence) or isinstance(results, str | bytes | bytearray | memoryview):
            raise BatchResultError(
                f"{self!r}: the handler got {expected} items and must return a sequence of as many results, "
                f"in their order, not {_short(results)}"
            )
        outcomes = list(results)
        if len(outcomes) != expected:
            raise BatchResultError(
                f"{self!r}: the handler got {expected} items and must return a sequence of as many results, "
                f"in their order, but returned {len(outcomes)}: {_short(results)}"
            )
        return outcomes

    def _ended(self, batch: _Batch[T, R], task: Task[list[R | BaseException]]) -> None:
        """Settle the callers of a batch whose task is done, and go on."""
        # A cancellation from outside, other than our own after a time-out, comes from a loop that is ending; unless
        # the handler has survived it, and not all that is left on the loop was cancelled: then it came from within.
        ending = task.cancelling() > (0 if batch.entries else 1)
        ending = ending and (task.cancelled() or all(other.cancelling() for other in all_tasks(self._loop)))
        batch.ended = True
        batch.finish()
        self._running.discard(batch)
        if batch.deadline is not None:
            batch.deadline.cancel()
        if task.cancelled():
            error: BaseException | None = self._cancelled_error()
        else:
            error = task.exception()
            ending = ending or isinstance(error, KeyboardInterrupt | SystemExit)
        if error is None:
            self._answer(batch, task.result())
        else:
            self._fail(batch.entries, error)
        self._note_finished(batch, error)
        self._go_on(ending=ending)

    @staticmethod
    def _note_finished(batch: _Batch[T, R], error: BaseException | None) -> None:
        watch, batch.watch = batch.watch, None  # a batch that was timed out or closed ends once more with its task
        if watch is not None:
            watch.finished(error)

    def _go_on(self, *, ending: bool) -> None:
        """Use the slot that became free, unless the loop is ending and would destroy a new task."""
        if ending:
            self._fail(self._take_queue(), self._cancelled_error())
        else:
            self._pump()
        self._wake_drained()

    def _time_out(self, batch: _Batch[T, R]) -> None:
        task = cast("Task[list[R | BaseException]]", batch.task)
        if not task.done():  # otherwise its results are on their way
            late = LoaderTimeoutError(
                f"a batch of {len(batch.entries)} items of {self!r} took longer than its "
                f"timeout of {self._timeout} s. What it did by then may stand."
            )
            self._fail(batch.entries, late)
            self._note_finished(batch, late)
            task.cancel()

    def _abandon(self) -> None:
        """Fail everybody, before the batch and in it, and cancel what runs."""
        closed = LoaderClosedError(f"{self!r} was closed before the item was sent.")
        cut = BatchCancelledError(f"{self!r} was closed while the batch ran. What it did by then may stand.")
        failed = self._fail(self._take_queue(), closed)
        for batch in self._running:
            if batch.task is not None and not batch.task.done():  # otherwise its results are on their way
                failed += self._fail(batch.entries, cut)
                self._note_finished(batch, cut)
                batch.task.cancel()
        for future in failed:
            future.exception()  # whoever closes like this knows that items are dropped: nothing to report

    def _take_queue(self) -> list[_Entry[T, R]]:
        entries = list(self._queue.values())
        self._queue.clear()
        self._disarm()
        return entries

    def _answer(self, batch: _Batch[T, R], outcomes: list[R | BaseException]) -> None:
        entries, batch.entries = batch.entries, []
        for entry, outcome in zip(entries, outcomes, strict=False):  # no entry is left after a time-out
            self._failures += failed(outcome) and not entry.future.done()
            answer(entry.future, outcome)

    def _fail(self, entries: list[_Entry[T, R]], error: BaseException) -> list[Future[R]]:
        """Give `error` to those callers that still wait, and forget them all."""
        futures = [entry.future for entry in entries if not entry.future.done()]
        entries.clear()
        self._failures += len(futures)
        error = failure(error)
        for future in futures:
            future.set_exception(error)
        return futures

    def _cancelled_error(self) -> BatchCancelledError:
        return BatchCancelledError(
            f"{self!r}: the batch was cancelled, because its loop is ending or what the handler waited for "
            "was cancelled. Nobody cancelled the caller."
        )

    def _left(self, through: int) -> list[Awaited | Work]:
        """The batches in flight with items up to this serial, and the batcher itself if such are waiting."""
        left: list[Awaited | Work] = [batch for batch in self._running if batch.serial <= through]
        if self._queue and next(iter(self._queue.values())).serial <= through:
            left.append(self)
        return left

    def _wake_drained(self) -> None:
        for drained, through in list(self._drains.items()):
            if not self._left(through):
                del self._drains[drained]
                if not drained.done():
                    drained.set_result(None)

    def _refuse_inside(self, what: str) -> None:
        if current_work.get() in self._running:
            raise SelfWaitError(f"the handler of {self!r} called {what}, which waits for the handler to end.")

    def _holders(self) -> Collection[_Batch[T, R]]:
        return self._running if len(self._running) >= self._max_concurrent_batches else ()


def _name_of(handler: object) -> str:
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__qualname__", type(handler).__qualname__)


def _watching() -> Any:
    """What records things, imported when somebody observes."""
    from loader import _watching

    return _watching
