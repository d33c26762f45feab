"""One batch: one call of a batch function, from its first key to its last answer."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from loader._dispatch import Departure
from loader._waiters import Callers
from loader._waits import Work

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task, TimerHandle
    from collections.abc import Hashable

    from loader._limits import Limit


class BatchState(Enum):
    """Where a batch is on its way; it only ever moves down this list."""

    COLLECTING = "collecting"  # takes new keys: its departure, or its slot, is still to come
    WAITING = "waiting"  # takes no new keys any more, and its function has not been called
    RUNNING = "running"  # its function has been called
    ENDED = "ended"  # every caller has been answered


class Batch(Work):
    """One call of the batch function: its keys, its callers and its life.

    Attributes:
        callers: Who waits for what.
        keys: The keys as the batch function gets them, by cache key; None while each is its own cache key.
        departure: What makes it leave.
        opened: `loop.time()` when the first key came, where a window counts from it.
        clears: How often the loader's cache had been cleared when the batch was opened, then when it left.
        state: Set by the loader alone.
        task: Its own task.
        timer: What ends it when it takes too long.
        plain: Whether nothing is to be done for a new key but to put it down.
        attended: Whether a new caller is worth a look: it is counted (`watched`), or told to observers.
        watched: How many callers it has, counted only where a batch without any is cancelled.
    """

    __slots__ = (
        "attended",
        "callers",
        "clears",
        "departure",
        "keys",
        "opened",
        "plain",
        "state",
        "task",
        "timer",
        "watched",
    )

    def __init__(self, loop: AbstractEventLoop, limits: tuple[Limit, ...], clears: int, *, own_keys: bool) -> None:
        super().__init__(limits)
        self.callers = Callers(loop)
        self.keys: dict[Hashable, Any] | None = None if own_keys else {}
        self.departure = Departure()
        self.opened = 0.0
        self.clears = clears
        self.state = BatchState.COLLECTING
        self.task: Task[None] | None = None
        self.timer: TimerHandle | None = None
        self.plain = False
        self.attended = False
        self.watched = 0
