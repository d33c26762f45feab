"""Which event loop an object belongs to, and how it starts a task there."""

from __future__ import annotations

from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any, TypeVar

from loader.errors import LoaderLoopError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Coroutine
    from contextvars import Context

T = TypeVar("T")

_alive: set[Task[Any]] = set()
"""The tasks that have not ended: a loop refers to its tasks weakly, and what waits for one would wait forever."""


def home_loop(home: AbstractEventLoop | None, who: object) -> AbstractEventLoop:
    """The running loop, if it is `home` or may become it.

    Args:
        home: The loop that `who` belongs to so far. None, or a loop that is closed, gives way to the running one.
        who: Whose `repr` the error names.

    Raises:
        LoaderLoopError: If no loop runs in this thread, or another one than `home`.
    """
    try:
        running = get_running_loop()
    except RuntimeError:
        raise LoaderLoopError(
            f"{who!r} was called where no event loop runs. Call it from a coroutine or a callback of the loop; "
            "from another thread, hand the call over with loop.call_soon_threadsafe(). Synchronous execution "
            "(schema.execute_sync) runs none and cannot load."
        ) from None
    if home is None or home is running or home.is_closed():
        return running
    raise LoaderLoopError(
        f"{who!r} belongs to another event loop, which is still open. Make one for each loop: "
        "what waits on one loop cannot be woken from another."
    )


def start_task(loop: AbstractEventLoop, context: Context, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
    """Start `coroutine` in a task whose context variables are a copy of `context`, and keep the task until it ends.

    The task copies the context that is current when it is created. `create_task(context=)` would say the same,
    but task factories that take two arguments refuse it. The copy keeps two things apart: an eager task factory
    runs the first step at once, and a context cannot be entered twice.
    """
    task = context.copy().run(loop.create_task, coroutine)
    _alive.add(task)
    task.add_done_callback(_alive.discard)
    return task
