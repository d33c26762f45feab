"""The reference loads: 1,000 lookups in one burst, and 1,000 that trickle in.

The backend is simulated: a call takes 10 ms and 0.1 ms for each key. The burst asks for 600 distinct keys 1,000
times. Its floor is what no loader can beat: 1,000 tasks that each sleep as long as one batch of 100 keys takes.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

from aiodataloader import DataLoader as AioDataLoader
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from benchmarks.table import show
from loader import DataLoader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Lookup = Callable[[int], Awaitable[Any]]

LOOKUPS, DISTINCT, PER_BATCH = 1000, 600, 100
CALL, KEY = 0.010, 0.0001


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


BURST: dict[str, Callable[[Backend], Lookup]] = {
    "1,000 tasks that sleep for one batch": floor,
    "one call per lookup, 50 at a time": one_call_each,
    "strawberry.dataloader, cache off": lambda backend: (
        StrawberryDataLoader(backend.fetch, max_batch_size=PER_BATCH, cache=False).load
    ),
    "strawberry.dataloader": lambda backend: StrawberryDataLoader(backend.fetch, max_batch_size=PER_BATCH).load,
    "aiodataloader": lambda backend: AioDataLoader(backend.fetch, max_batch_size=PER_BATCH).load,
    "loader, cache off": lambda backend: DataLoader(backend.fetch, max_batch_size=PER_BATCH, cache=False).load,
    "loader": lambda backend: DataLoader(backend.fetch, max_batch_size=PER_BATCH).load,
}


async def burst(rounds: int = 5) -> list[list[object]]:
    """The best of some interleaved rounds of each way."""
    best: dict[str, tuple[float, list[float], Backend]] = {}
    for _ in range(rounds):
        for name, make in BURST.items():
            backend = Backend()
            took, waits = await timed(make(backend), burst_keys())
            if name not in best or took < best[name][0]:
                best[name] = took, waits, backend
    lowest = best[next(iter(BURST))][0]
    return [
        [
            name,
            backend.calls,
            backend.keys,
            f"{1000 * took:.0f} ms",
            f"{1000 * waits[989]:.0f} ms",
            f"{took / lowest:.2f}",
        ]
        for name, (took, waits, backend) in best.items()
    ]


async def trickle() -> list[list[object]]:
    """1,000 lookups about 1 ms apart, of distinct keys, under windows of growing length."""
    rows: list[list[object]] = []
    for window in (None, 0.002, 0.005):
        backend = Backend()
        _, waits = await timed(DataLoader(backend.fetch, window=window).load, list(range(LOOKUPS)), pause=0.001)
        name = "none (settle)" if window is None else f"{1000 * window:.0f} ms"
        rows.append([name, backend.calls, f"{1000 * waits[499]:.1f} ms", f"{1000 * waits[989]:.1f} ms"])
    return rows


def main() -> None:
    """Print both tables."""
    print("1,000 lookups at once, 600 distinct keys, at most 100 keys a batch:\n")
    show(["way", "calls", "keys", "time", "p99", "times the floor"], asyncio.run(burst()))
    print("\n1,000 lookups about 1 ms apart:\n")
    show(["window", "calls", "p50", "p99"], asyncio.run(trickle()))
