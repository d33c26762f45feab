"""What the tests of the triggers have run: a job that keeps a log and notices when two of its runs overlap."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from loader._runs import Trigger

    Make = Callable[[Callable[[], Awaitable[Any]]], Trigger[Any]]


class Job:
    """An async function whose runs take `seconds`, and return their number; `then` is awaited inside.

    With a key it is the job of a keyed trigger, and no two runs of one key may overlap.
    """

    def __init__(self, seconds: float = 0.0, then: Callable[[], Awaitable[object]] | None = None) -> None:
        self.seconds = seconds
        self.then = then
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.keys: list[object] = []
        self.cancelled = 0
        self._inside: set[object] = set()

    @property
    def runs(self) -> int:
        return len(self.starts)

    async def __call__(self, key: object = None) -> int:
        loop = asyncio.get_running_loop()
        assert key not in self._inside, "two runs at once"
        self._inside.add(key)
        self.keys.append(key)
        self.starts.append(loop.time())
        number = self.runs
        try:
            if self.seconds:
                await asyncio.sleep(self.seconds)
            if self.then is not None:
                await self.then()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._inside.remove(key)
            self.ends.append(loop.time())
        return number


class JobError(Exception):
    """What a job raises on purpose."""


async def fail() -> None:
    """The body of a job that fails."""
    raise JobError


async def turns(count: int = 5) -> None:
    """Let the loop go around a few times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that tells nobody when it happens, a millisecond at a time, and less at first."""
    for step in itertools.count():
        if condition():
            return
        await asyncio.sleep(0.001 if step > 5 else 0)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """The result, or the exception as a value, unless it is this very caller that is cancelled."""
    try:
        return await awaitable
    except Exception as error:
        return error
