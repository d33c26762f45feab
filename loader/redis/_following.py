"""Who is to be told of changes, and of which."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias, final

from loader.second_level import Change, LoaderChange, change_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from loader import DataLoader

    About: TypeAlias = str | DataLoader[Any, Any]
    Action: TypeAlias = Callable[[Change], Awaitable[object] | object]


@final
class Follower:
    """An action, what it is about, and what changed since it was called last.

    Args:
        action: What is called with what changed.
        about: Tags, and loaders: those of all requests that have the name and the tenant of these.
    """

    __slots__ = ("_about", "_tags", "action", "changed")

    def __init__(self, action: Action, about: tuple[About, ...]) -> None:
        self.action: Action = action
        self.changed: Change = Change()
        self._tags = frozenset(each for each in about if isinstance(each, str))
        self._about = [change_of(each, ()) for each in about if not isinstance(each, str)]

    def concerns(self, change: Change) -> bool:
        """Note what of a change is followed; whether anything is."""
        loaders = tuple(part for part in change.loaders if any(map(part_of(part), self._about)))
        mine = Change(loaders, change.tags & self._tags, change.anything)
        self.changed |= mine
        return mine != Change()

    async def act(self) -> None:
        """Tell what changed."""
        change, self.changed = self.changed, Change()
        result = self.action(change)
        if asyncio.iscoroutine(result) or asyncio.isfuture(result):
            await result


def part_of(change: LoaderChange) -> Callable[[LoaderChange], bool]:
    """Whether a change is one of this loader's."""
    return lambda own: own.loader == change.loader and change.tenant in (None, own.tenant)


@final
class Following:
    """What changed, as it changes: for a subscription. Changes that come faster than they are taken become one.

    It is an async iterator of `loader.second_level.Change`, which ends when it, or the bus, is closed.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._changed = Change()
        self._news = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """What changed since the last call; waits until something has.

        Raises:
            StopAsyncIteration: If it was closed.

        Cancellation: Nothing is lost.
        """
        await self._news.wait()
        if self._closed:
            raise StopAsyncIteration
        self._news.clear()
        change, self._changed = self._changed, Change()
        return change

    async def aclose(self) -> None:
        """Follow no more. A call of `__anext__` that is waiting ends with StopAsyncIteration."""
        self._end()
        self._stop()

    def _tell(self, change: Change) -> None:
        self._changed |= change
        self._news.set()

    def _end(self) -> None:
        self._closed = True
        self._news.set()
