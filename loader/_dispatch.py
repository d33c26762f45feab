"""When a batch leaves.

A batch leaves when its loaders have *settled* (no resolver that can run has a new key to add), when a time *window*
is over, or at once because it is full or was flushed. Whichever it is, the batch's own task waits for it, so that
nothing is left armed behind a batch that has left.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Generator
    from weakref import ref

    from loader._scope import Scope


@final
@dataclass(frozen=True, slots=True)
class Settle:
    """Let a batch leave once no loader of its scope has got a new key for `turns` turns of the event loop.

    Nor has one answered meanwhile: whoever waited for the answer goes on in the next turn, and may ask for more.
    One turn reaches the least number of batches for every ordinary shape of a query. A resolver that gives way to
    the loop several times before it loads (`await asyncio.sleep(0)`, a permission that awaits what is already
    there) needs more; each turn costs a few microseconds of an idle loop, and under load 4 to 5 % of the service
    time of a request.

    Args:
        turns: How many quiet turns in a row count as settled, at least 1.
        max_turns: After how many turns the batch leaves whether it is quiet or not, at least `turns`.

    Raises:
        ValueError: If one of them is too small.
        TypeError: If one of them is no whole number.
    """

    turns: int = 1
    max_turns: int = 50

    def __post_init__(self) -> None:
        whole_number("Settle(turns=)", self.turns, least=1)
        whole_number("Settle(max_turns=)", self.max_turns, least=self.turns)


class Activity:
    """What the loaders of one scope share: whether they are still asked for new keys, or answer, as settling watches.

    Attributes:
        keeps: Whether they keep what was answered.
        moved: Whether that happened since somebody looked. A loader sets it for each new key: counting them would
            cost three times as much.
        scope: The scope; None for a loader without one.
    """

    __slots__ = ("_moves", "keeps", "moved", "scope")

    def __init__(self, scope: ref[Scope] | None = None) -> None:
        self.keeps = True
        self.moved = False
        self.scope = scope
        self._moves = 0

    def moves(self) -> int:
        """A number that has grown since an earlier look if something moved between the two, whoever else looks."""
        if self.moved:
            self.moved = False
            self._moves += 1
        return self._moves


class Departure:
    """One batch's leaving. `now` makes it leave at the next turn of the loop, whatever it was waiting for."""

    __slots__ = ("_wake", "due")

    def __init__(self) -> None:
        self.due = False
        self._wake: Future[None] | None = None

    def now(self) -> None:
        """End the wait."""
        self.due = True
        self._leave()

    def _leave(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def settled(self, rule: Settle, activity: Activity) -> None:
        """Wait until the scope has settled."""
        quiet, seen = 0, activity.moves()
        if not self.due:
            # The first key may come from a plain resolver, before the tasks of the asynchronous ones beside it are
            # made. Those run behind this one in the next turn, so that turn says nothing yet.
            await _turn()
        for _ in range(rule.max_turns - 1):
            if self.due:
                return
            await _turn()
            moves = activity.moves()
            quiet = quiet + 1 if moves == seen else 0
            if quiet == rule.turns:
                return
            seen = moves

    async def at(self, loop: AbstractEventLoop, when: float) -> None:
        """Wait until `loop.time()` is `when`."""
        if self.due:
            return
        self._wake = loop.create_future()
        timer = loop.call_at(when, self._leave)
        try:
            await self._wake
        finally:
            timer.cancel()


@types.coroutine
def _turn() -> Generator[None, Any, None]:
    """Give way to the loop for one turn: `asyncio.sleep(0)` without its second coroutine."""
    yield


def whole_number(name: str, value: object, *, least: int) -> None:
    """Refuse what is no whole number, or too small a one.

    Raises:
        TypeError: If `value` is no int.
        ValueError: If it is below `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} takes a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def seconds(name: str, value: object) -> float:
    """A time span as a float.

    Raises:
        TypeError: If `value` is no number.
        ValueError: If it is negative or not finite.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} takes a number of seconds, not {value!r}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} takes a number of seconds that is finite and not negative, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} takes a number of seconds that a float can hold") from None


def boolean(name: str, value: object) -> bool:
    """True or False: of anything else it is not sure what it says.

    Raises:
        TypeError: If `value` is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} takes True or False, not {value!r}")
    return value


def string(name: str, value: object) -> str:
    """A string.

    Raises:
        TypeError: If `value` is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} takes a string, not {value!r}")
    return value
