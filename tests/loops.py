"""Event loops for the tests: time is virtual, a deadlock is an error, and what is left behind is found.

`run(main)` runs a coroutine function on a new loop. On the default loop the clock stands still while anything can
run and jumps to the next timer when nothing can: an hour of `asyncio.sleep` takes no time. Where no timer is left
either, nothing could ever happen again, and `DeadlockError` is raised instead of waiting. A loop that has threads or
sockets to wait for runs in real time (`real_time=True`). The clock is that of `loader.testing`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from loader.testing import VirtualClockLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

KINDS = ("default", "eager", "uvloop") if sys.version_info >= (3, 12) else ("default", "uvloop")


# asyncio's debug mode also notes, for every future, task and callback, the whole stack that made it. That takes two
# thirds of the time of a test, and shows only in the text of a failure: whoever looks into one sets the variable.
STACKS = bool(os.environ.get("PYTHONASYNCIODEBUG"))


class LeftBehindError(AssertionError):
    """The test left a task or a timer, or asyncio logged something."""


class _WithoutStacks:
    """A loop whose debug mode checks as much as ever: what notes stacks asks `get_debug`, what checks does not."""

    def get_debug(self) -> bool:
        return STACKS


class _VirtualLoop(_WithoutStacks, VirtualClockLoop):
    pass


class _RealLoop(_WithoutStacks, asyncio.SelectorEventLoop):
    pass


def new_loop(kind: str = "default", *, real_time: bool = False) -> asyncio.AbstractEventLoop:
    """A loop of one of `KINDS`; uvloop always runs in real time."""
    loop: asyncio.AbstractEventLoop
    if kind == "uvloop":
        loop = _uvloop()()
    elif real_time:
        loop = _RealLoop()
    else:
        loop = _VirtualLoop()
    if kind == "eager":
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]  # 3.12
    return loop


@cache
def _uvloop() -> type[asyncio.AbstractEventLoop]:
    import uvloop

    return type("_UvLoop", (_WithoutStacks, uvloop.Loop), {})


def timers(loop: asyncio.AbstractEventLoop) -> list[asyncio.TimerHandle]:
    """The timers that will still fire, on loops that let one look."""
    return [handle for handle in getattr(loop, "_scheduled", ()) if not handle.cancelled()]


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    kind: str = "default",
    real_time: bool = False,
    debug: bool = True,
    expect_logged: list[str] | None = None,
) -> T:
    """Run `main` to its end and fail if it leaves anything: a task, a timer, or a complaint of asyncio's.

    Args:
        main: The coroutine function.
        kind: One of `KINDS`.
        real_time: Wait for sockets and threads as usual instead of moving a virtual clock.
        debug: asyncio's debug mode.
        expect_logged: A list that takes what asyncio reports; without it, any report is a failure.
    """
    loop = new_loop(kind, real_time=real_time)
    loop.set_debug(debug)
    loop.slow_callback_duration = 3600  # time is virtual or shared with other jobs: slowness says nothing
    reports: list[str] = [] if expect_logged is None else expect_logged
    loop.set_exception_handler(lambda _, context: reports.append(f"{context['message']}: {context.get('exception')!r}"))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main())

        async def look_around() -> tuple[list[str], list[asyncio.TimerHandle]]:
            for _ in range(3):
                gc.collect()
                await asyncio.sleep(0)
            me = asyncio.current_task()
            return [repr(task) for task in asyncio.all_tasks() if task is not me], timers(loop)

        tasks, handles = runner.run(look_around())
        if tasks or handles:
            raise LeftBehindError(f"left behind: tasks {tasks}, timers {handles}")
    if expect_logged is None and reports:
        raise LeftBehindError("asyncio reported: " + "; ".join(reports))
    return result
