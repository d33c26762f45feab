"""Batch functions that record what they are asked for, and small helpers around them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Backend:
    """A batch function: `batches` has the keys of each call, in the order of the calls.

    Args:
        answer: The value for a key.
        gate: What a call waits for before it answers.
        takes: How many seconds a call takes.
    """

    def __init__(
        self, answer: Callable[[Any], Any] = "v{}".format, *, gate: asyncio.Event | None = None, takes: float = 0.0
    ) -> None:
        self.answer = answer
        self.gate = gate
        self.takes = takes
        self.batches: list[list[Any]] = []
        self.running = 0
        self.most_running = 0
        self.cancelled = 0

    async def __call__(self, keys: list[Any]) -> list[Any]:
        self.batches.append(keys)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.takes:
                await asyncio.sleep(self.takes)
            return [self.answer(key) for key in keys]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


async def turns(count: int = 10) -> None:
    """Let the loop turn: more often than anything here needs to settle."""
    for _ in range(count):
        await asyncio.sleep(0)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """The value of an awaitable, or the exception that it raised."""
    return (await asyncio.gather(awaitable, return_exceptions=True))[0]


async def together(*awaitables: Awaitable[Any], return_exceptions: bool = False) -> list[Any]:
    """`asyncio.gather`, whose list is a list to type checkers too."""
    return [*await asyncio.gather(*awaitables, return_exceptions=return_exceptions)]


def awaits(awaitable: Awaitable[Any]) -> asyncio.Task[Any]:
    """A caller: a task that awaits."""

    async def caller() -> Any:
        return await awaitable

    return asyncio.ensure_future(caller())
