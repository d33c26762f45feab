"""A loop that tells of every moment between two of its callbacks, and where its tasks wait at that moment."""

from __future__ import annotations

import asyncio
import gc
import inspect
import selectors
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.testing import DeadlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Line = tuple[str, int]
    """A line of the library: its file, relative to the library, and its number."""

LIBRARY = str(Path(loader.__file__).parent) + "/"

PATIENCE = 20.0
"""After how many seconds a loop that waits for threads is taken to wait for ever."""

A_WHILE = 0.2
"""How many seconds threads get to answer before the virtual clock moves on."""


class Clock(selectors.DefaultSelector):
    """A clock that moves where the loop would block; in scripts with threads, once these have had time to answer.

    That of `loader.testing` lets real time pass while a thread runs, and a script waits for many seconds.
    """

    def __init__(self, *, threads: bool) -> None:
        super().__init__()
        self.now = 0.0
        self._threads = threads

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        patience = PATIENCE if timeout is None else A_WHILE
        ready = super().select(patience if self._threads and timeout != 0 else 0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise DeadlockError("nothing is scheduled: whoever waits now would wait forever")
        # The loop counts a timer as due within its clock's resolution; a sum of floats may end just below it.
        self.now += max(timeout, 1e-9)
        return ready


class Moments(asyncio.SelectorEventLoop):
    """Calls `before` with each callback before that runs."""

    def __init__(self, before: Callable[[Any], None], *, threads: bool = False) -> None:
        self.clock = Clock(threads=threads)
        super().__init__(self.clock)
        self.before = before

    def time(self) -> float:
        return self.clock.now

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        step = _Step(self, callback, args)
        step.handle = super()._call_soon(step, (), context)  # type: ignore[misc]  # the base's
        return step.handle

    def call_at(  # type: ignore[override]  # the types of the callback do not matter here
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        step = _Step(self, callback, args)
        step.handle = timer = super().call_at(when, step, context=context)
        return timer


class _Step:
    """A callback, and the moment before it."""

    handle: asyncio.Handle

    def __init__(self, loop: Moments, callback: Any, args: tuple[Any, ...]) -> None:
        self._loop, self._callback, self._args = loop, callback, args

    def __call__(self) -> None:
        self._loop.before(self._callback)
        if not self.handle.cancelled():  # just now, by what was done in this moment
            self._callback(*self._args)


class Threads(futures.ThreadPoolExecutor):
    """Worker threads that are none: what they are given runs on the loop, some virtual time later."""

    def __init__(self, start: Callable[[futures.Future[Any], Callable[[], Any]], None]) -> None:
        super().__init__(max_workers=1)
        self._start = start

    def submit(self, fn: Any, /, *args: Any, **named: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_running_or_notify_cancel()  # a thread that runs cannot be stopped
        self._start(future, lambda: fn(*args, **named))
        return future


def task_of(callback: Any) -> asyncio.Task[Any] | None:
    """The task that a callback of the loop is a step of."""
    owner = getattr(callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


def lines(task: asyncio.Task[Any]) -> list[Line]:
    """The lines of the library where a suspended task waits, the outermost first."""
    return [
        (frame.f_code.co_filename.removeprefix(LIBRARY), frame.f_lineno)
        for frame in _frames(task.get_coro())
        if frame.f_code.co_filename.startswith(LIBRARY)
    ]


def _frames(awaited: Any) -> Iterator[FrameType]:
    while awaited is not None:
        frame = None
        if inspect.iscoroutine(awaited):
            frame, awaited = awaited.cr_frame, awaited.cr_await
        elif inspect.isgenerator(awaited):
            frame, awaited = awaited.gi_frame, awaited.gi_yieldfrom
            if frame is not None and awaited is None:  # one that drives a coroutine by hand
                awaited = getattr(frame.f_locals.get("self"), "_coroutine", None)
        elif inspect.isasyncgen(awaited):
            frame, awaited = awaited.ag_frame, awaited.ag_await
        else:  # such as what `anext` returns, which shows only to the collector what it steps
            awaited = next((each for each in gc.get_referents(awaited) if _has_frame(each)), None)
        if frame is not None:
            yield frame


def _has_frame(thing: object) -> bool:
    return inspect.iscoroutine(thing) or inspect.isgenerator(thing) or inspect.isasyncgen(thing)
