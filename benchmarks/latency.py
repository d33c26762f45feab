"""How long a batch takes to start: from the first `load` of it to the call of the batch function.

On an idle loop, and while 50 requests share the loop: each of them asks for ten keys of its own loader, works a little
on what came, and asks again.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from aiodataloader import DataLoader as AioDataLoader
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from benchmarks.table import show
from loader import DataLoader, Settle

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Fetch = Callable[[list[int]], Coroutine[Any, Any, list[int]]]

REQUESTS, KEYS, REPEATS, ROUNDS = 50, 10, 20, 5

WAYS: dict[str, Callable[[Fetch], Any]] = {
    "aiodataloader": AioDataLoader,
    "strawberry.dataloader": StrawberryDataLoader,
    "loader": DataLoader,
    "loader, Settle(turns=3)": lambda fetch: DataLoader(fetch, window=Settle(turns=3)),
}


class Request:
    """Asks for keys again and again, and notes how long each batch took to start."""

    def __init__(self, make: Callable[[Fetch], Any]) -> None:
        self.loader = make(self.fetch)
        self.asked = 0.0
        self.waits: list[float] = []

    async def fetch(self, keys: list[int]) -> list[int]:
        """The values of the keys: themselves."""
        self.waits.append(time.perf_counter() - self.asked)
        return keys

    async def run(self) -> list[float]:
        """Ask, work, and ask for others."""
        for repeat in range(REPEATS):
            self.asked = time.perf_counter()
            found = await asyncio.gather(*[self.loader.load(repeat * KEYS + number) for number in range(KEYS)])
            sum(value * value for value in found * 20)
        return self.waits


async def measure(requests: int) -> dict[str, list[float]]:
    """The waits of all batches of each way, over interleaved rounds."""
    waits: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS * REQUESTS // requests):
        for name, make in WAYS.items():
            for each in await asyncio.gather(*[Request(make).run() for _ in range(requests)]):
                waits[name] += each
    return waits


def main() -> None:
    """Print the table."""
    rows: list[list[object]] = []
    for requests in (1, REQUESTS):
        waits = asyncio.run(measure(requests))
        reference = statistics.median(waits["aiodataloader"])
        for name, each in waits.items():
            median, worst = statistics.median(each), statistics.quantiles(each, n=100)[98]
            rows.append(
                [requests, name, f"{median / reference:.2f}", f"{median * 1e6:.0f} µs", f"{worst * 1e6:.0f} µs"]
            )
    print("From the first load of a batch to the call of its function:\n")
    show(["requests at once", "way", "of aiodataloader", "median", "p99"], rows)
