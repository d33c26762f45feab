"""What a key costs: CPU time of loading it, beside the peers in the same process, and the memory that it holds.

Every way asks a batch function that returns its keys. A round measures each way once, one after the other, with the
garbage of the one before collected and the collector running; the figures are medians over the rounds, and between
their spread lie nine rounds in ten. How the cost grows with the number of keys is the exponent of the power that fits
best.
"""

from __future__ import annotations

import asyncio
import gc
import math
import statistics
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any

from aiodataloader import DataLoader as AioDataLoader
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from benchmarks.rounds import in_turns
from benchmarks.table import Figure, Table, compared_each, ratio_in_rounds
from loader import DataLoader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

KEYS, MANY, ROUNDS = 1000, 10_000, 100
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)


async def fetch(keys: list[int]) -> list[int]:
    """The values of the keys: themselves."""
    return keys


OURS = "loader"
PEERS: dict[str, Callable[[], Any]] = {
    "aiodataloader": lambda: AioDataLoader(fetch),
    "strawberry.dataloader": lambda: StrawberryDataLoader(fetch),
    OURS: lambda: DataLoader(fetch),
}


async def distinct(loader: Any, count: int) -> float:
    """Ask for keys that are all new, until the last one is answered."""
    started = time.process_time()
    futures = [loader.load(key) for key in range(count)]
    await futures[-1]
    took = time.process_time() - started
    await asyncio.gather(*futures)
    return took


async def repeated(loader: Any, count: int) -> float:
    """Ask for each of a tenth as many keys ten times, until the last one is answered."""
    keys = [key % (count // 10) for key in range(count)]
    started = time.process_time()
    futures = [loader.load(key) for key in keys]
    await futures[-1]
    took = time.process_time() - started
    await asyncio.gather(*futures)
    return took


async def cached(loader: Any, count: int) -> float:
    """Ask for keys that have been asked for, and answered, twice."""
    for _ in range(2):
        await asyncio.gather(*[loader.load(key) for key in range(count)])
    started = time.process_time()
    for key in range(count):
        loader.load(key)
    return time.process_time() - started


async def many(loader: Any, count: int) -> float:
    """Ask for all keys in one call."""
    started = time.process_time()
    await loader.load_many(range(count))
    return time.process_time() - started


async def alone(loader: Any, count: int) -> float:
    """Ask for one key after the other, each in a batch of its own."""
    started = time.process_time()
    for key in range(count):
        await loader.load(key)
    return time.process_time() - started


COURSES: dict[str, Callable[[Any, int], Awaitable[float]]] = {
    "load, all distinct": distinct,
    "load, 90 % repeated": repeated,
    "load, all cached": cached,
    "load_many": many,
    "a batch of one key": alone,
}


async def timed(run: Callable[[Any, int], Awaitable[float]], make: Callable[[], Any]) -> float:
    """The seconds for a key, with a loader of its own."""
    return await run(make(), KEYS) / KEYS


async def costs(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds for a key, of each course and peer."""
    return {
        course: await in_turns(rounds, {name: partial(timed, run, make) for name, make in PEERS.items()})
        for course, run in COURSES.items()
    }


async def waiting(loader: Any, count: int) -> list[Any]:
    """Ask for keys and give the loop no turn."""
    return [loader.load(key) for key in range(count)]


async def answered(loader: Any, count: int) -> None:
    """Ask for keys, and keep what the loader keeps."""
    await asyncio.gather(*[loader.load(key) for key in range(count)])


async def held(use: Callable[[Any, int], Awaitable[Any]], loader: Any, count: int) -> float:
    """The bytes that are held for each key after the loader was used, without the keys themselves."""
    keys = list(range(count))
    gc.collect()
    tracemalloc.start()
    kept = await use(loader, count)
    gc.collect()
    bytes_held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if kept is not None:
        await asyncio.gather(*kept)
    return (bytes_held - sum(key.__sizeof__() for key in keys)) / count


async def memory(count: int) -> list[list[object]]:
    """A row for each peer: bytes for a key that waits, and for one that is cached."""
    return [
        [name, *[Figure(await held(use, make(), count), "B") for use in (waiting, answered)]]
        for name, make in PEERS.items()
    ]


async def growth(sizes: Sequence[int]) -> list[list[object]]:
    """A row for each course: seconds for a key, by how many there are, and the exponent over all sizes."""
    rows: list[list[object]] = []
    for course in ("load, all distinct", "load_many"):
        took = []
        for size in sizes:
            times = []
            for _ in range(max(1, 30_000 // size)):
                gc.collect()
                times.append(await COURSES[course](DataLoader(fetch), size))
            took.append(statistics.median(times))
        slope, _ = statistics.linear_regression([math.log(size) for size in sizes], [math.log(each) for each in took])
        rows.append(
            [course, *(Figure(each / size, "ns") for size, each in zip(sizes, took, strict=True)), Figure(slope, "", 2)]
        )
    return rows


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The ratios, the times, the memory, the growth."""
    rounds, many, sizes = (1, KEYS, SIZES[:2]) if quick else (ROUNDS, MANY, SIZES)
    took = asyncio.run(costs(rounds))
    setting = f"CPU time of {KEYS:,} keys in one loader, for each key"
    yield Table(
        "keys-ratios",
        f"{setting}: that of loader, as a multiple of what a peer takes in the same round: the median, and "
        "between what nine rounds in ten lie.",
        ["course", *(f"of {peer}" for peer in PEERS if peer != OURS)],
        [
            [course, *(ratio_in_rounds(ways[OURS], ways[peer]) for peer in PEERS if peer != OURS)]
            for course, ways in took.items()
        ],
    )
    yield Table(
        "keys",
        f"{setting}.",
        ["course", "way", "of aiodataloader", "of Strawberry's", "median", "nine in ten"],
        compared_each(took, ["aiodataloader", "strawberry.dataloader"], "ns", 0),
        chart="median",
        ours=[OURS],
    )
    yield Table(
        "memory",
        f"Memory held for each of {many:,} keys, their futures included where a caller has one.",
        ["way", "a key that waits", "a key that is cached"],
        asyncio.run(memory(many)),
    )
    yield Table(
        "growth",
        "CPU time for each key, by how many there are, and the exponent of the power that fits best: 1 is linear.",
        ["course", *(f"{size:,}" for size in sizes), "exponent"],
        asyncio.run(growth(sizes)),
    )
