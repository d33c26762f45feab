"""Debouncer: run once things have been quiet for a while."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, TypeVar, final

from loader._dispatch import boolean
from loader._runs import Trigger
from loader._work import checked_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from loader._runs import OnError, Run

T = TypeVar("T")


@final
class Debouncer(Trigger[T]):
    """Runs an async function once its triggers have paused for `wait` seconds. All times are in seconds.

    Each trigger moves the run further away, so that triggers that never pause never let it run: set `max_wait`
    unless you know that they pause. Runs never overlap, and a trigger that comes during a run leads to another one.
    The function runs in a task of its own, in a copy of the context in which the debouncer was made.

    Failures go to those who wait in `request()`; if nobody does, to `on_error`, or else to the loop's exception
    handler, which logs them. A failed run does not keep the next one from starting.

    Args:
        fn: The function to run, without arguments: `async def`, or anything that returns an awaitable.
        wait: How long triggers must pause. 0 merges only what comes within one turn of the event loop.
        max_wait: The longest that a run may be put off, counted from the first trigger that it answers, unless one
            is in flight. None sets no limit.
        leading: True runs at once on the first trigger after a pause; those that follow within `wait` make one
            more run, as usual.
        name: What to call it in errors and in its `repr`; by default it is named after the function.
        on_error: Called with the exception of a run that nobody waited for, in the debouncer's context.

    Raises:
        TypeError: If `fn` is not callable or a generator function, if `on_error` is no plain function, a time no
            number, `leading` neither True nor False, or `name` no string.
        ValueError: If a time is negative or not finite, or if `max_wait` is shorter than `wait`.

    Examples:
        >>> import asyncio
        >>> from loader import Debouncer
        >>> async def main() -> None:
        ...     async def reindex() -> None:
        ...         print("reindexed")
        ...
        ...     async with Debouncer(reindex, wait=0.05, max_wait=0.5) as reindexing:
        ...         for _ in range(200):
        ...             reindexing.trigger()
        >>> asyncio.run(main())
        reindexed
    """

    def __init__(
        self,
        fn: Callable[[], Awaitable[T]],
        *,
        wait: float,
        max_wait: float | None = None,
        leading: bool = False,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> None:
        self._wait = checked_seconds("Debouncer", "wait", wait)
        self._max_wait = inf if max_wait is None else checked_seconds("Debouncer", "max_wait", max_wait)
        if self._max_wait < self._wait:
            raise ValueError(
                f"Debouncer: with max_wait ({max_wait!r}) shorter than wait ({wait!r}), wait would never count"
            )
        self._leading = boolean("Debouncer: leading", leading)
        super().__init__(fn, name=name, on_error=on_error)

    def _leads(self, run: Run[T]) -> bool:
        return self._leading and run.first >= self._rests_until

    def _due(self, run: Run[T]) -> float:
        if self._leads(run):
            return run.first
        return min(run.last + self._wait, run.first + self._max_wait)

    def _rest_after(self, run: Run[T]) -> float:
        # Neither a run at the beginning of a burst ends it, nor one in the middle, which `max_wait` or a flush makes.
        return run.last + self._wait if self._leading else float("-inf")
