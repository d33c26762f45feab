"""Measuring several ways beside one another."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")


async def in_turns(rounds: int, ways: Mapping[str, Callable[[], Awaitable[T]]]) -> dict[str, list[T]]:
    """What each way took, in each round.

    In a round each way has its turn, so that a noisy machine disturbs all of them alike; the garbage of the one before
    is collected. Every other round goes the other way around: what follows upon a way that leaves the machine's caches
    full of its own data is slower for it, by a twentieth, measured, and it shall not always be the same one.
    """
    took: dict[str, list[T]] = {way: [] for way in ways}
    order = list(ways)
    for _ in range(rounds):
        for way in order:
            gc.collect()
            took[way].append(await ways[way]())
        order.reverse()
    return took
