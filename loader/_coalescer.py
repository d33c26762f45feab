"""Coalescer: run at once, and once more for all that came meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, final

from loader._runs import Trigger
from loader._work import checked_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from loader._runs import OnError, Run

T = TypeVar("T")


@final
class Coalescer(Trigger[T]):
    """Runs an async function at once when triggered, and once more for all triggers that come during a run.

    Runs never overlap, and the last one starts after the last trigger. Triggers of one turn of the event loop make
    one run. Under triggers that never pause it runs without a pause, too: unlike a `Debouncer` it puts nothing
    off, unless `min_interval` says so. The function runs in a task of its own, in a copy of the context in which the
    coalescer was made.

    Failures go to those who wait in `request()`; if nobody does, to `on_error`, or else to the loop's exception
    handler, which logs them. A failed run does not keep the next one from starting.

    Args:
        fn: The function to run, without arguments: `async def`, or anything that returns an awaitable.
        min_interval: The least time in seconds from the start of one run to the start of the next. 0 sets none.
        name: What to call it in errors and in its `repr`; by default it is named after the function.
        on_error: Called with the exception of a run that nobody waited for, in the coalescer's context.

    Raises:
        TypeError: If `fn` is not callable or a generator function, if `on_error` is no plain function,
            `min_interval` no number, or `name` no string.
        ValueError: If `min_interval` is negative or not finite.

    Examples:
        >>> import asyncio
        >>> from loader import Coalescer
        >>> async def main() -> None:
        ...     async def refresh() -> None:
        ...         print("refreshing")
        ...         await asyncio.sleep(0.1)
        ...
        ...     async with Coalescer(refresh) as refreshing:
        ...         for _ in range(10):
        ...             refreshing.trigger()
        ...             await asyncio.sleep(0)
        >>> asyncio.run(main())
        refreshing
        refreshing
    """

    def __init__(
        self,
        fn: Callable[[], Awaitable[T]],
        *,
        min_interval: float = 0.0,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self._min_interval = checked_seconds("Coalescer", "min_interval", min_interval)
        super().__init__(fn, name=name, on_error=on_error)

    def _due(self, run: Run[T]) -> float:
        return max(run.first, self._rests_until)

    def _rest_after(self, run: Run[T]) -> float:
        return run.started + self._min_interval
