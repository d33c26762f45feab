"""What a key costs: CPU time of loading it, beside the peers in the same process, and the memory that it holds.

Every way asks a batch function that returns its keys. A round measures each way once, one after the other, with the
garbage of the one before collected and the collector running; the figures are medians over the rounds, their spread
the middle half of the rounds. How the cost grows with the number of keys is the exponent of the power that fits best.
"""

from __future__ import annotations

import asyncio
import gc
import math
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

from aiodataloader import DataLoader as AioDataLoader
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from benchmarks.table import show
from loader import DataLoader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KEYS, ROUNDS = 1000, 100
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)


async def fetch(keys: list[int]) -> list[int]:
    """The values of the keys: themselves."""
    return keys


PEERS: dict[str, Callable[[], Any]] = {
    "aiodataloader": lambda: AioDataLoader(fetch),
    "strawberry.dataloader": lambda: StrawberryDataLoader(fetch),
    "loader": lambda: DataLoader(fetch),
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


async def costs() -> list[list[object]]:
    """A row for each course and peer: nanoseconds for a key, the spread, the ratios."""
    rows: list[list[object]] = []
    for course, run in COURSES.items():
        took: dict[str, list[float]] = {name: [] for name in PEERS}
        for _ in range(ROUNDS):
            for name, make in PEERS.items():
                loader = make()
                gc.collect()
                took[name].append(await run(loader, KEYS) / KEYS)
        median = {name: statistics.median(times) for name, times in took.items()}
        for name, times in took.items():
            low, _, high = statistics.quantiles(times, n=4)
            rows.append(
                [
                    course,
                    name,
                    f"{median[name] / median['aiodataloader']:.2f}",
                    f"{median[name] / median['strawberry.dataloader']:.2f}",
                    f"{median[name] * 1e9:.0f} ns",
                    f"{low * 1e9:.0f} to {high * 1e9:.0f} ns",
                ]
            )
    return rows


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


async def memory() -> list[list[object]]:
    """A row for each peer: bytes for a key that waits, and for one that is cached."""
    return [
        [name, f"{await held(waiting, make(), KEYS * 10):.0f} B", f"{await held(answered, make(), KEYS * 10):.0f} B"]
        for name, make in PEERS.items()
    ]


async def growth() -> list[list[object]]:
    """A row for each course: seconds for a million keys, and the exponent over all sizes."""
    rows: list[list[object]] = []
    for course in ("load, all distinct", "load_many"):
        took = []
        for size in SIZES:
            times = []
            for _ in range(max(1, 30_000 // size)):
                gc.collect()
                times.append(await COURSES[course](DataLoader(fetch), size))
            took.append(statistics.median(times))
        slope, _ = statistics.linear_regression([math.log(size) for size in SIZES], [math.log(each) for each in took])
        rows.append(
            [course, *(f"{each / size * 1e9:.0f} ns" for size, each in zip(SIZES, took, strict=True)), f"{slope:.2f}"]
        )
    return rows


def main() -> None:
    """Print the tables."""
    print(f"CPU time of {KEYS:,} keys in one loader, for each key:\n")
    show(
        ["course", "way", "of aiodataloader", "of Strawberry's", "median", "middle half"],
        asyncio.run(costs()),
    )
    print(f"\nMemory held for each of {KEYS * 10:,} keys, their futures included where a caller has one:\n")
    show(["way", "a key that waits", "a key that is cached"], asyncio.run(memory()))
    print("\nCPU time for each key, by how many there are:\n")
    show(["course", *(f"{size:,}" for size in SIZES), "exponent"], asyncio.run(growth()))
