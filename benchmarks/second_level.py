"""A request with a second-level cache on Redis: cold, warm, and without one.

The backend is simulated as in the reference load: a call takes 10 ms and 0.1 ms for each key. A request loads 100
flights, and then the airlines and airports of these: three batches of 100, 16 and 80 keys on two levels, of records
with four fields. Requests run one after the other, each with loaders of its own; times are medians.

The server's own time is what it says itself (INFO commandstats); it is the same machine, over loopback.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from benchmarks.reference import CALL, KEY
from benchmarks.table import Figure, Table, median, nine_in_ten
from benchmarks.workers import NO_SERVER, URL, answers, removed
from loader import Loaders, dataloader
from loader.redis import RedisCache
from loader.second_level import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

REQUESTS = 100
FLIGHTS, AIRLINES, AIRPORTS = 100, 16, 80


@dataclass
class Record:
    """A row."""

    id: int
    name: str
    airline: int
    airport: int


@dataclass
class Figures:
    """What some requests took."""

    calls: int = 0
    keys: int = 0
    trips: int = 0
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    def row(self, name: str) -> list[object]:
        """A line of the table, for one request."""
        count = len(self.times)
        return [
            name,
            median(self.times, "ms"),
            nine_in_ten(self.times, "ms"),
            median(self.cpu, "ms", 2),
            median(self.server, "µs", 0),
            Figure(self.calls / count, digits=1),
            Figure(self.keys / count, digits=1),
            Figure(self.trips / count, digits=1),
        ]


def application(cache: RedisCache | None, figures: Figures) -> Callable[[], Any]:
    """Loaders, with a second-level cache or without."""
    cached: Any = dataloader if cache is None else dataloader(second_level=cache, fresh_for=60.0)

    async def fetch(keys: list[int]) -> list[Record]:
        figures.calls += 1
        figures.keys += len(keys)
        await asyncio.sleep(CALL + KEY * len(keys))
        return [Record(key, f"record {key}", key % AIRLINES, key % AIRPORTS) for key in keys]

    class App(Loaders):
        @cached  # type: ignore[untyped-decorator]
        async def flights(self, keys: list[int]) -> list[Record]:
            return await fetch(keys)

        @cached  # type: ignore[untyped-decorator]
        async def airlines(self, keys: list[int]) -> list[Record]:
            return await fetch(keys)

        @cached  # type: ignore[untyped-decorator]
        async def airports(self, keys: list[int]) -> list[Record]:
            return await fetch(keys)

    return App


async def request(loaders: Any, first: int) -> None:
    """Flights, and then the airlines and airports of these."""
    flights = await asyncio.gather(*(loaders.flights.load(key) for key in range(first, first + FLIGHTS)))
    await asyncio.gather(
        *(loaders.airlines.load(flight.airline) for flight in flights),
        *(loaders.airports.load(flight.airport) for flight in flights),
    )


async def server_time(client: Redis) -> float:
    """How many seconds the server has spent on scripts, with all that they call."""
    stats = await client.info("commandstats")
    return float(sum(each["usec"] for name, each in stats.items() if "evalsha" in name)) / 1e6


async def measure(cache: RedisCache | None, requests: int, *, cold: bool) -> Figures:
    """Requests with the cache empty before each, or full."""
    figures = Figures()
    app = application(cache, figures)

    async def one() -> None:
        async with app() as loaders:
            await request(loaders, 0)
        if cache is not None:
            await drain(cache)

    async def emptied() -> None:
        async with app() as loaders:
            for loader in (loaders.flights, loaders.airlines, loaders.airports):
                await cache.delete_many(loader._backed.namespace, None)  # type: ignore[union-attr]

    await one()
    figures.calls = figures.keys = 0
    async with Redis.from_url(URL) as client:
        for _ in range(requests):
            if cold:
                await emptied()
            trips = 0 if cache is None else cache.statistics().round_trips
            server = await server_time(client) if cache is not None else 0.0
            started, cpu = time.perf_counter(), time.process_time()
            async with app() as loaders:
                await request(loaders, 0)
                figures.times.append(time.perf_counter() - started)
            if cache is not None:
                await drain(cache)
            figures.cpu.append(time.process_time() - cpu)
            figures.server.append(0.0 if cache is None else await server_time(client) - server)
            if cache is not None:
                figures.trips += cache.statistics().round_trips - trips
    return figures


async def ways(requests: int) -> AsyncIterator[tuple[str, Figures]]:
    """Each way with its figures."""
    prefix = f"benchmark-{os.getpid()}"
    yield "absent", await measure(None, requests, cold=False)
    if not answers(URL):
        return
    with removed(URL, prefix):
        async with RedisCache.from_url(URL, prefix=prefix, timeout=5.0) as cache:
            yield "cold", await measure(cache, requests, cold=True)
            yield "warm", await measure(cache, requests, cold=False)


async def measured(requests: int) -> list[list[object]]:
    """A row for each way."""
    return [figures.row(name) async for name, figures in ways(requests)]


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The one table."""
    rows = asyncio.run(measured(3 if quick else REQUESTS))
    yield Table(
        "second-level",
        f"One request of 3 batches, {FLIGHTS + AIRLINES + AIRPORTS} keys; writing back is counted, not waited for."
        f"{NO_SERVER if len(rows) == 1 else ''}",
        [
            "cache",
            "request time",
            "nine in ten",
            "CPU time",
            "server's time",
            "backend calls",
            "backend keys",
            "round trips",
        ],
        rows,
        chart="request time",
        ours=["cold", "warm"],
    )
