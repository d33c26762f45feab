"""The reference loads: 1,000 lookups in one burst, and 1,000 that trickle in.

The backend is simulated: a call takes 10 ms and 0.1 ms for each key. The burst asks for 600 distinct keys 1,000
times. Its floor is what no loader can beat: 1,000 tasks that each sleep as long as one batch of 100 keys takes.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aiodataloader import DataLoader as AioDataLoader
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from benchmarks.rounds import in_turns
from benchmarks.table import Table, around, median, percentile, ratio_in_rounds
from loader import DataLoader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Lookup = Callable[[int], Awaitable[Any]]

LOOKUPS, DISTINCT, PER_BATCH = 1000, 600, 100
CALL, KEY = 0.010, 0.0001
ROUNDS, TRICKLE_ROUNDS = 15, 9
BACKEND = "a call takes 10 ms and 0.1 ms a key"


class Backend:
    """Answers many keys in one call, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.keys = 0

    async def fetch(self, keys: list[int]) -> list[int]:
        """The values of the keys: themselves."""
        self.calls += 1
        self.keys += len(keys)
        await asyncio.sleep(CALL + KEY * len(keys))
        return keys


def burst_keys() -> list[int]:
    """1,000 keys, 600 of them distinct, in the same random order every time."""
    rng = random.Random(11)
    keys = [*range(DISTINCT), *rng.choices(range(DISTINCT), k=LOOKUPS - DISTINCT)]
    rng.shuffle(keys)
    return keys


async def timed(lookup: Lookup, keys: list[int], pause: float = 0.0) -> tuple[float, list[float]]:
    """How long the lookups of all keys took together, and each of them, in seconds."""
    waits: list[float] = []

    async def one(key: int) -> None:
        started = time.perf_counter()
        await lookup(key)
        waits.append(time.perf_counter() - started)

    started = time.perf_counter()
    tasks = []
    for key in keys:
        tasks.append(asyncio.create_task(one(key)))
        if pause:
            await asyncio.sleep(pause)
    await asyncio.gather(*tasks)
    return time.perf_counter() - started, sorted(waits)


def one_call_each(backend: Backend) -> Lookup:
    """No batching: a call for each lookup, 50 at a time."""
    slots = asyncio.Semaphore(50)

    async def lookup(key: int) -> None:
        async with slots:
            await backend.fetch([key])

    return lookup


def floor(_: Backend) -> Lookup:
    """Every lookup sleeps as long as one full batch takes."""
    return lambda _key: asyncio.sleep(CALL + KEY * PER_BATCH)


FLOOR = "1,000 tasks that sleep for one batch"
BURST: dict[str, Callable[[Backend], Lookup]] = {
    FLOOR: floor,
    "one call per lookup, 50 at a time": one_call_each,
    "strawberry.dataloader, cache off": lambda backend: (
        StrawberryDataLoader(backend.fetch, max_batch_size=PER_BATCH, cache=False).load
    ),
    "strawberry.dataloader": lambda backend: StrawberryDataLoader(backend.fetch, max_batch_size=PER_BATCH).load,
    "aiodataloader": lambda backend: AioDataLoader(backend.fetch, max_batch_size=PER_BATCH).load,
    "loader, cache off": lambda backend: DataLoader(backend.fetch, max_batch_size=PER_BATCH, cache=False).load,
    "loader": lambda backend: DataLoader(backend.fetch, max_batch_size=PER_BATCH).load,
}

TRICKLE: dict[str, Callable[[Backend], Lookup]] = {
    "none (settle)": lambda backend: DataLoader(backend.fetch).load,
    "2 ms": lambda backend: DataLoader(backend.fetch, window=0.002).load,
    "5 ms": lambda backend: DataLoader(backend.fetch, window=0.005).load,
}


@dataclass
class Course:
    """What one way did with the lookups of one round: calls, keys asked for, seconds in all, and of each lookup."""

    calls: int
    keys: int
    took: float
    waits: list[float]


async def course(make: Callable[[Backend], Lookup], keys: list[int], pause: float = 0.0) -> Course:
    """All lookups, with a backend of their own."""
    backend = Backend()
    took, waits = await timed(make(backend), keys, pause)
    return Course(backend.calls, backend.keys, took, waits)


async def burst(rounds: int) -> list[list[object]]:
    """A row for each way: 1,000 lookups at once."""
    keys = burst_keys()
    courses = await in_turns(rounds, {name: partial(course, make, keys) for name, make in BURST.items()})
    took = {name: [course.took for course in each] for name, each in courses.items()}
    return [
        [
            name,
            ratio_in_rounds(took[name], took[FLOOR]),
            around(took[name], "ms", 0),
            around([percentile(course.waits, 99, "ms") for course in each], "ms", 0),
            median([course.calls for course in each], "", 0),
            median([course.keys for course in each], "", 0),
        ]
        for name, each in courses.items()
    ]


async def trickle(rounds: int, lookups: int) -> list[list[object]]:
    """A row for each window: lookups about 1 ms apart, of distinct keys."""
    keys = list(range(lookups))
    courses = await in_turns(rounds, {name: partial(course, make, keys, 0.001) for name, make in TRICKLE.items()})
    return [
        [
            name,
            around([course.calls for course in each], "", 0),
            around([percentile(course.waits, 50, "ms") for course in each], "ms"),
            around([percentile(course.waits, 99, "ms") for course in each], "ms"),
        ]
        for name, each in courses.items()
    ]


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The burst and the trickle."""
    yield Table(
        "burst",
        f"{LOOKUPS:,} lookups at once, {DISTINCT} distinct keys, at most {PER_BATCH} keys a batch; {BACKEND}.",
        ["way", "of the floor", "burst", "p99", "calls", "keys"],
        asyncio.run(burst(1 if quick else ROUNDS)),
        chart="burst",
        ours=[name for name in BURST if name.startswith("loader")],
    )
    rounds, lookups = (1, 50) if quick else (TRICKLE_ROUNDS, LOOKUPS)
    yield Table(
        "trickle",
        f"{lookups:,} lookups about 1 ms apart; {BACKEND}.",
        ["window", "calls", "p50", "p99"],
        asyncio.run(trickle(rounds, lookups)),
        chart="p50",
        ours=TRICKLE,
    )
