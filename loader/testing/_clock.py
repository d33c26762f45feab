"""An event loop whose clock jumps to the next timer where the loop would have to wait."""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from loader.errors import LoaderError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION = 1e-9
"""Seconds: what asyncio takes as the resolution of its clock, where that is as good as that of Linux."""


class DeadlockError(LoaderError, RuntimeError):
    """Nothing can run on a loop with a virtual clock, and no timer will ever change that."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop on which an hour of `asyncio.sleep` takes no time, and a deadlock is an error.

    Its clock, `loop.time()` in seconds, starts at 0 and stands still while anything can run. Where nothing can, it
    jumps to the next timer. If there is none either, or none but at infinity, whoever waits would wait forever, and
    `DeadlockError` is raised from what runs the loop.

    Where something outside of the loop may be about to answer, time passes as usual: while worker threads of the loop
    run (`asyncio.to_thread`, a batch function that is a plain `def`), and as long as the loop watches a socket, a
    connection that stays open included. It knows nothing of threads that somebody else has started, such as those of
    some database drivers: what waits for them needs an ordinary loop.

    Examples:
        >>> import asyncio
        >>> from loader.testing import VirtualClockLoop
        >>> async def main() -> float:
        ...     await asyncio.sleep(3600)
        ...     return asyncio.get_running_loop().time()
        >>> with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        ...     round(runner.run(main()))
        3600
    """

    def __init__(self) -> None:
        self._clock = _Clock(self._next_timer, self._deadlock)
        super().__init__(self._clock)

    def time(self) -> float:
        """The virtual time, in seconds since the loop was made."""
        return self._clock.now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As on any loop. Until the thread is done, time passes as usual."""
        future = super().run_in_executor(executor, func, *args)
        self._clock.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *arguments: Any, **named: Any) -> None:
        """As on any loop: another thread waits for the worker threads, and this loop for it."""
        self._clock.threads += 1
        try:
            await super().shutdown_default_executor(*arguments, **named)
        finally:
            self._clock.threads -= 1

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self._clock.threads -= 1

    def _next_timer(self) -> float:
        """When the next timer is due, however far away that is; the loop cuts what it tells a selector at a day."""
        when: float = self._scheduled[0].when()  # type: ignore[attr-defined]
        return when

    def _deadlock(self) -> DeadlockError:
        waiting = sorted(f"{task.get_name()}{_place(task)}" for task in asyncio.all_tasks(self))
        return DeadlockError(
            "nothing can run and no timer will ever be due, so who waits now would wait forever. "
            f"Waiting: {', '.join(waiting) or 'no task'}. What waits for a thread that the loop did not start "
            "(a database driver's, say) needs an ordinary loop"
        )


class _Clock(selectors.DefaultSelector):
    """A selector that moves the clock where it would block, if only a timer could end that."""

    def __init__(self, next_timer: Callable[[], float], deadlock: Callable[[], DeadlockError]) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0  # that will wake the loop
        self._next_timer = next_timer
        self._deadlock = deadlock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        __tracebackhide__ = True
        # The loop itself has one file registered, by which threads wake it; any other is a socket or the like.
        if self.threads or len(self.get_map()) > 1:
            began = time.monotonic()
            ready = super().select(timeout)
            self.now += time.monotonic() - began
            return ready
        ready = super().select(0)
        if ready:
            return ready
        if timeout:
            timeout = self._next_timer() - self.now
        if timeout is None or timeout == math.inf:
            raise self._deadlock()
        # The loop takes a timer as due if it is before the time plus the clock's resolution. A sum of floats may end
        # just below that; and from half a year on the resolution vanishes in the time, and the next float must do.
        if timeout or self.now + RESOLUTION == self.now:
            self.now += max(timeout, RESOLUTION, math.ulp(self.now))
        return ready


def _place(task: asyncio.Task[Any]) -> str:
    """Where a task waits, in its outermost function."""
    return "".join(f" at {frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack(limit=1))
