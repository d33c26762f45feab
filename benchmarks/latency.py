"""How long a batch takes to start: from the first `load` of it to the call of the batch function.

On an idle loop, and while 50 requests share the loop: each of them asks for ten keys of its own loader, works a little
on what came, and asks again.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from aiodataloader import DataLoader as AioDataLoader
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from benchmarks.rounds import in_turns
from benchmarks.table import Table, median, nine_in_ten, percentile, ratio
from loader import DataLoader, Settle

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

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


async def waited(make: Callable[[Fetch], Any], requests: int) -> list[float]:
    """The waits of all batches of some requests at once."""
    return [wait for waits in await asyncio.gather(*[Request(make).run() for _ in range(requests)]) for wait in waits]


async def measure(requests: int, rounds: int) -> dict[str, list[float]]:
    """The waits of all batches of each way, over all rounds."""
    took = await in_turns(rounds, {name: partial(waited, make, requests) for name, make in WAYS.items()})
    return {name: [wait for waits in each for wait in waits] for name, each in took.items()}


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The one table."""
    rows: list[list[object]] = []
    for requests in (1, REQUESTS):
        waits = asyncio.run(measure(requests, 1 if quick else ROUNDS * REQUESTS // requests))
        rows += [
            [
                "one request" if requests == 1 else f"{requests} requests",
                name,
                ratio(each, waits["aiodataloader"]),
                median(each, "µs", 0),
                nine_in_ten(each, "µs", 0),
                percentile(each, 99, "µs", 0),
            ]
            for name, each in waits.items()
        ]
    yield Table(
        "latency",
        "From the first load of a batch to the call of its function.",
        ["at once", "way", "of aiodataloader", "median", "nine in ten", "p99"],
        rows,
        chart="median",
        ours=[name for name in WAYS if name.startswith("loader")],
    )
