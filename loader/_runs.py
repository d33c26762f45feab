"""The core of Debouncer and Coalescer: one run in flight, one pending, no trigger lost, never two runs at once.

A trigger joins the pending run, or makes one. A pending run has no task; at most one timer (or, if it is due, one
callback) stands for it, and only while no run is in flight: the end of a run looks for the next one itself. Until
the moment a run starts, triggers join it; from then on they belong to the next. What distinguishes the two classes
is when a pending run is due.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Handle, get_running_loop
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loader._dispatch import string
from loader._doorbell import Doorbell
from loader._histogram import SECONDS, Histogram, Recorder
from loader._hooks import everywhere, observers_here
from loader._loops import home_loop
from loader._work import (
    Bell,
    Call,
    capture_context,
    check_function,
    checked_seconds,
    fallback_report,
    is_ending,
    name_of,
    waiting_for,
)
from loader.errors import LoaderClosedError, RunCancelledError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context
    from types import TracebackType
    from typing import Self

    from loader._waits import Work
    from loader._watching import RunWatch
    from loader.observe import Observer

T = TypeVar("T")

OnError = Callable[[Exception], object]


def _is_async(fn: object) -> bool:
    """Whether a call of `fn` returns a coroutine, or an async generator, as far as that can be seen beforehand."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    functions = (fn, getattr(type(fn), "__call__", None))  # noqa: B004  # the method itself is asked for
    return any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in functions)


@final
@dataclass(frozen=True, slots=True)
class TriggerStatistics:
    """What a debouncer, a coalescer or a keyed form of one did so far.

    Every trigger ends as one of three: it started a run, it was merged into the run of an earlier one, or it was
    dropped. `received` is the sum of the three and of those that are pending.

    Attributes:
        received: Triggers, `request()`s included.
        runs: Runs started.
        merged: Triggers that shared a run with an earlier one.
        failures: Runs that ended with an exception.
        cancelled: Runs that were cancelled.
        dropped: Triggers whose run was given up by `cancel()` or by closing.
        delay: Seconds from the first trigger of a run to its start.
        run_time: Seconds from the start of a run to its end.
    """

    received: int
    runs: int
    merged: int
    failures: int
    cancelled: int
    dropped: int
    delay: Histogram
    run_time: Histogram


class Tally:
    """Counts for `TriggerStatistics`; the keys of a `Keyed` share one."""

    __slots__ = ("cancelled", "delay", "dropped", "failures", "merged", "run_time", "runs")

    def __init__(self) -> None:
        self.runs = self.merged = self.failures = self.cancelled = self.dropped = 0
        self.delay = Recorder(SECONDS)
        self.run_time = Recorder(SECONDS)

    def statistics(self, pending: int) -> TriggerStatistics:
        """The counts so far, while `pending` triggers wait."""
        return TriggerStatistics(
            received=self.runs + self.merged + self.dropped + pending,
            runs=self.runs,
            merged=self.merged,
            failures=self.failures,
            cancelled=self.cancelled,
            dropped=self.dropped,
            delay=self.delay.snapshot(),
            run_time=self.run_time.snapshot(),
        )


class Closing(ABC):
    """Becoming idle and closing, for one trigger or for many behind one front."""

    _closed = False

    def __init__(self) -> None:
        self._idle = Bell()
        self._closers = 0

    @abstractmethod
    def _home(self) -> AbstractEventLoop: ...

    @abstractmethod
    def _is_idle(self) -> bool: ...

    @abstractmethod
    def _cut(self, failure: Exception | None) -> None:
        """Drop what is pending and cancel what runs; `failure` is reported for a run that nobody waits for."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close, and wait until nothing is left."""

    async def __aenter__(self) -> Self:
        self._home()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _until_idle(self) -> None:
        if not self._is_idle():
            await self._idle.wait(self._home())

    async def _close(self, *, timeout: float | None, report: bool) -> None:  # noqa: ASYNC109  # handed on
        """Wait until idle; after `timeout` seconds, or if the last one who waits here is cancelled, cut it short."""
        self._closers += 1
        try:
            async with asyncio.timeout(timeout):
                await self._until_idle()
        except TimeoutError:
            late = RunCancelledError(f"{self!r} was closed with {timeout:g} s to finish, and was not done by then")
            self._cut(late if report else None)
            await self._until_idle()
        except asyncio.CancelledError:
            if self._closers == 1:
                self._cut(None)
            raise
        finally:
            self._closers -= 1


class Run(Call[T]):
    """A run, from the first trigger that asks for it to its end.

    Attributes:
        triggers: How many triggers it answers; complete once it starts.
        first: When the first of them came.
        last: When the last of them came.
        urgent: Whether it shall start as soon as no other is in flight.
        started: When it started.
        observers: Who is told of it besides those who observe the process: who observes a scope that triggered it, or
            waits for it.
        asked_in: The contexts in which it was asked for, until it starts, if an observer wants to know.
        run_watch: Its record, None if nobody observes it.
    """

    __slots__ = ("asked_in", "first", "last", "observers", "run_watch", "started", "triggers", "urgent")

    def __init__(self, owner: Trigger[T], loop: AbstractEventLoop, now: float) -> None:
        super().__init__(owner, loop)
        self.first = self.last = self.started = now
        self.triggers = 0
        self.urgent = False
        self.observers: Sequence[Observer] = ()
        self.asked_in: list[Context] = []
        self.run_watch: RunWatch | None = None

    def _enter(self) -> None:
        super()._enter()
        if self.run_watch is not None:
            self.run_watch.started()


class Trigger(Closing, Generic[T]):
    """What Debouncer and Coalescer share; not to be made by itself."""

    def __init__(
        self, fn: Callable[[], Awaitable[T]], *, name: str | None = None, on_error: OnError | None = None
    ) -> None:
        super().__init__()
        who = type(self).__name__
        check_function(who, fn)
        if on_error is not None and (not callable(on_error) or _is_async(on_error)):
            raise TypeError(f"{who}: on_error is a plain function that takes the exception, not {on_error!r}")
        self._fn = fn
        self._name = None if name is None else string(f"{who}: name", name)
        self._on_error = on_error
        self._context = capture_context()
        self._tally = Tally()
        self._doorbell = Doorbell()
        self._awaited_by: list[Work] = []
        # `_open_on` is `_loop` while triggers are welcome and None otherwise: one comparison tells a trigger all.
        self._loop: AbstractEventLoop | None = None
        self._open_on: AbstractEventLoop | None = None
        self._thread = 0
        self._pending: Run[T] | None = None
        self._current: Run[T] | None = None
        # Stands for the pending run while none is in flight; calls `_fire` at `_armed_for`.
        self._handle: Handle | None = None
        self._armed_for = 0.0
        # Until when the last run still matters to the next one: a cool-down, the rest of a burst whose first run led.
        self._rests_until = float("-inf")
        # Set by a Keyed, which forgets what is idle.
        self._on_idle: Callable[[Any], None] | None = None
        self._label: str | None = None  # set by a Keyed too: what observers call it, without the key
        try:
            get_running_loop()
        except RuntimeError:
            return  # made outside any loop: the first one that it is used on will be its home
        self._home()

    @abstractmethod
    def _due(self, run: Run[T]) -> float:
        """When the pending `run` may start, by the loop's clock."""

    @abstractmethod
    def _rest_after(self, run: Run[T]) -> float:
        """Until when `run`, which starts now, matters to later ones."""

    # What callers use. A trigger is the hot path: it joins the pending run by counting itself.

    def trigger(self) -> None:
        """Have the function run; see the class for when.

        From inside a run it means "again, afterwards".

        Raises:
            LoaderClosedError: If this was closed.
            LoaderLoopError: If the call comes from no event loop, or from another one than the calls before.
        """
        run, loop = self._pending, self._open_on
        # As good as asking for the running loop, which on some systems costs more than all the rest.
        if run is not None and loop is not None and self._thread == get_ident() and loop.is_running():
            run.triggers += 1
            run.last = loop.time()
            return
        self._add(1)

    def trigger_threadsafe(self) -> bool:
        """Have the function run; callable from any thread, a signal handler included.

        Triggers that come before the loop gets around to them wake it once. Their time is when the loop takes
        notice.

        Returns:
            Whether the trigger was taken; False once this, or its loop, was closed.

        Raises:
            LoaderLoopError: If it does not know its loop yet: it was made where none ran, and never used on one.
        """
        return self._doorbell.ring(self, self._loop, self._answer)

    async def request(self) -> T:
        """Trigger, and wait for the result of a run that starts after this call.

        A run that is already in flight may have read what the caller has just changed: it does not count.

        Returns:
            What the function returned.

        Raises:
            Exception: Whatever the function raised.
            RunCancelledError: If the run was cancelled, or dropped by `cancel()`.
            LoaderClosedError: If this was closed before the call, or the run was dropped by closing.
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside a run, or from something that a run waits for.

        Cancellation:
            Only this wait ends. The run takes place all the same.
        """
        with waiting_for(self):
            return await self._add(1).result()

    async def flush(self) -> None:
        """Run what is pending as soon as no run is in flight, and wait until it is over.

        With nothing pending it waits for the run in flight, if any. Triggers that come later are not waited for.
        A failure is not raised here; it goes where failures go.

        Raises:
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside a run, or from something that a run waits for.

        Cancellation:
            Only this wait ends; the run is still hurried.
        """
        self._answer()
        with waiting_for(self):
            if (run := self._hurry()) is not None:
                await run.until_over()

    async def wait_idle(self) -> None:
        """Wait until nothing is pending and no run is in flight.

        It hurries nothing, and under steady triggers it may wait for ever: `flush()` does not.

        Raises:
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside a run, or from something that a run waits for.

        Cancellation:
            Only this wait ends.
        """
        self._answer()
        with waiting_for(self):
            await self._until_idle()

    def cancel(self) -> bool:
        """Drop what is pending. A run in flight goes on.

        Returns:
            Whether something was pending. Who waits for it in `request()` gets a RunCancelledError.

        Raises:
            LoaderLoopError: If the call comes from no event loop, or from another one than the calls before.
        """
        self._answer()
        return self._drop(RunCancelledError(f"the pending run of {self!r} was dropped by cancel()"))

    # An outer timeout would cancel the closing itself; this one is what to do about runs that take long
    async def aclose(self, *, flush: bool = True, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Close: take no more triggers, finish or drop what is pending, and wait until no run is in flight.

        Nothing is left when it returns: no task, no timer. Closing twice is fine; both wait for the end.

        Args:
            flush: True runs what is pending at once, so that the last state is applied. False drops it, and
                `request()`s that wait for it get a LoaderClosedError.
            timeout: Seconds to give to the runs; then what is pending is dropped and the run in flight cancelled,
                and its RunCancelledError goes where failures go, unless `flush` is False. 0 cancels at once, None
                gives all the time it takes.

        Raises:
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside a run, or from something that a run waits for.
            TypeError: If `timeout` is no number; nothing is closed then.
            ValueError: If `timeout` is negative or not finite; nothing is closed then.

        Cancellation:
            It is closed all the same: what is pending is dropped, and the run in flight cancelled, unless somebody
            else waits in `aclose()` too.
        """
        self._home()
        limit = None if timeout is None else checked_seconds("aclose()", "timeout", timeout)
        with waiting_for(self):
            self._shut(flush=flush)
            await self._close(timeout=limit, report=flush)

    @property
    def pending(self) -> bool:
        """Whether a run will start that has not started."""
        return self._pending is not None or self._doorbell.rang

    @property
    def running(self) -> bool:
        """Whether a run is in flight."""
        return self._current is not None

    def statistics(self) -> TriggerStatistics:
        """What happened so far."""
        return self._tally.statistics(self._pending.triggers if self._pending is not None else 0)

    def __repr__(self) -> str:
        facts = {"closed": self._closed, "running": self.running, "pending": self.pending}
        state = ", ".join(fact for fact, holds in facts.items() if holds) or "idle"
        return f"<{type(self).__name__} {self._name or name_of(self._fn)}: {state}>"

    # The life of a run: added, hurried or dropped, armed, fired, ended.

    def _home(self) -> AbstractEventLoop:
        loop = home_loop(self._loop, self)
        if loop is not self._loop:
            # What was under way on a loop that is closed will never go on. Who waited for it is gone, too.
            lost = sum(self._doorbell.take().values())
            if self._pending is not None:
                lost += self._pending.triggers
            self._tally.dropped += lost
            self._pending = self._current = self._handle = None
            self._rests_until = float("-inf")
            self._loop = loop
            self._open_on = None if self._closed else loop
        return loop

    def _answer(self) -> None:
        """Take notice of what other threads triggered."""
        self._home()
        for triggers in self._doorbell.take().values():
            self._add(triggers)

    def _add(self, triggers: int) -> Run[T]:
        if self._closed:
            raise LoaderClosedError(f"{self!r} takes no more triggers. Make a new one, or trigger before closing.")
        loop = self._home()
        self._thread = get_ident()
        now = loop.time()
        run = self._pending
        if run is None:
            run = self._pending = Run(self, loop, now)
            self._next()
        run.triggers += triggers
        run.last = now
        if observers := observers_here():
            from loader._watching import asked_for_run

            asked_for_run(run, observers)
        return run

    def _hurry(self) -> Run[T] | None:
        """Make the pending run due, and say which run to wait for."""
        run = self._pending
        if run is None:
            return self._current
        run.urgent = True
        self._disarm()
        self._next()
        return run

    def _drop(self, failure: Exception) -> bool:
        run, self._pending = self._pending, None
        if run is None:
            return False
        self._disarm()
        self._tally.dropped += run.triggers
        run.settle(failure=failure)
        self._next()
        return True

    def _next(self) -> None:
        """With no run in flight: see that the pending run will start, or tell that there is none."""
        if self._current is not None:
            return
        run = self._pending
        if run is None:
            self._idle.ring()
            if self._on_idle is not None:
                self._on_idle(self)
        elif self._handle is None:
            loop = self._home()
            self._armed_for = self._due_now(run)
            # In our own context: the handle shall not keep the caller's, a request perhaps, alive.
            if self._armed_for <= loop.time():
                self._handle = loop.call_soon(self._fire, run, loop, context=self._context)
            else:
                self._handle = loop.call_at(self._armed_for, self._fire, run, loop, context=self._context)

    def _due_now(self, run: Run[T]) -> float:
        return run.first if run.urgent else self._due(run)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self, run: Run[T], loop: AbstractEventLoop) -> None:
        """Start the pending run, unless triggers have moved its time since this callback was armed."""
        self._handle = None
        now = loop.time()
        # A clock with a coarse tick may call us before the time that we asked for: that is no reason to wait again.
        if now < self._due_now(run) > self._armed_for:
            self._next()
            return
        run.started = now
        self._pending, self._current = None, run
        self._rests_until = self._rest_after(run)
        self._tally.runs += 1
        self._tally.merged += run.triggers - 1
        self._tally.delay.record(now - run.first)
        if everywhere or run.observers:
            from loader._watching import RunWatch

            name = self._label or self._name or name_of(self._fn)
            run.run_watch = RunWatch(run, name, type(self).__name__.lower())
        run.start(self._context, self._fn, then=self._ended)

    def _ended(self, run: Run[T]) -> None:
        self._current = None
        self._tally.run_time.record(self._home().time() - run.started)
        if run.run_watch is not None:
            run.run_watch.finished(run.failure)
        if isinstance(run.failure, RunCancelledError):
            self._tally.cancelled += 1
        elif run.failure is not None:
            self._tally.failures += 1
        task = run.task
        if task is not None and task.cancelling() and (task.cancelled() or is_ending(self._home())):
            # Cancelled from outside, by a loop that is being torn down most likely: to start another would leave it
            # behind there. A run that survived, on a loop that goes on, is like any other.
            self._drop(RunCancelledError(f"the run before this one of {self!r} was cancelled from outside"))
        try:
            self._left_alone(run)
        finally:
            self._next()

    def _left_alone(self, work: Call[Any]) -> None:
        error = work.take_unheard()
        if error is None:
            return
        loop = self._home()
        if self._on_error is None:
            fallback_report(loop, f"{self!r}: a run failed, and nobody waited for it", error)
            return
        try:
            answer = self._context.copy().run(self._on_error, error)
            if inspect.iscoroutine(answer):
                answer.close()
                raise TypeError("on_error returned a coroutine, which nobody awaits: it must be a plain function")
        except Exception as second:  # noqa: BLE001  # whatever a callback raises must not stop the next run
            fallback_report(loop, f"{self!r}: on_error raised for {type(error).__name__}", second)

    def _holders(self) -> tuple[Run[T], ...]:
        return () if self._current is None else (self._current,)

    def _is_idle(self) -> bool:
        return self._pending is None and self._current is None

    def _shut(self, *, flush: bool) -> None:
        """Take no more triggers; hurry or drop what is pending."""
        for triggers in () if self._closed else self._doorbell.shut().values():
            self._add(triggers)  # they were promised to be heard
        self._closed = True
        self._open_on = None
        if flush:
            self._hurry()
        else:
            self._drop(LoaderClosedError(f"the pending run was dropped: {self!r} was closed without flushing"))

    def _cut(self, failure: Exception | None) -> None:
        self._drop(LoaderClosedError(f"the pending run was dropped: {self!r} was closed before it could start"))
        if self._current is not None:
            self._current.cut_short(failure)
