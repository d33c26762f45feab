"""How triggers come over from other threads."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Any

from loader.errors import LoaderLoopError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Hashable, Mapping


class Doorbell:
    """Takes triggers from other threads; however often it rings, the loop is woken once.

    Reentrant, since a signal handler or a finalizer may ring in the middle of a ring.
    """

    __slots__ = ("_lock", "_rings", "_shut")

    def __init__(self) -> None:
        self._lock = RLock()
        self._rings: dict[Hashable, int] = {}
        self._shut = False

    def ring(
        self, who: object, loop: AbstractEventLoop | None, answer: Callable[[], object], key: Hashable = None
    ) -> bool:
        """Count a trigger for `key` and have `answer` called on the loop, which takes what came together by then."""
        with self._lock:
            if self._shut or (loop is not None and loop.is_closed()):
                return False
            if loop is None:
                raise LoaderLoopError(
                    f"{who!r} does not know its event loop yet. Make it in a coroutine, enter it with `async with`, "
                    "or trigger it once on its loop before other threads do."
                )
            asleep = not self._rings
            self._rings[key] = self._rings.get(key, 0) + 1
            if asleep:
                try:
                    loop.call_soon_threadsafe(answer)
                except RuntimeError:  # closed since we looked
                    self._rings.clear()
                    return False
            return True

    def take(self) -> Mapping[Any, int]:
        """What rang since the last time, with how often. The next ring wakes the loop again."""
        if not self._rings:
            return {}
        with self._lock:
            rings, self._rings = self._rings, {}
        return rings

    def shut(self) -> Mapping[Any, int]:
        """Refuse all further rings, and take those that were promised an answer."""
        with self._lock:
            self._shut = True
            return self.take()

    @property
    def rang(self) -> bool:
        """Whether something waits to be taken."""
        return bool(self._rings)
