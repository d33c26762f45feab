"""`python -m tests.soak`: an hour of traffic in virtual time, or some minutes in real time; nothing may grow.

Requests with scopes of their own, nested loaders and limits come at random, some leave early and some backends fail;
behind them are services that live as long as the process. Every minute the traffic pauses until all is answered. What
is there then must be what was there at the first pause: the same number of tasks and timers, and the same memory, but
for the bounds below. The exit status is 1 if it is not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import strawberry

from loader import (
    Batcher,
    Coalescer,
    DataLoader,
    Debouncer,
    Keyed,
    LoaderError,
    Loaders,
    Scope,
    SingleFlight,
    Snapshot,
    dataloader,
)
from loader.strawberry import install, relation
from loader.streams import conflate, debounce, throttle
from tests import loops

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEYS = 200
"""How many different keys the traffic asks for."""

PAUSE = 5.0
"""How many seconds of quiet answer everything: more than any time-out here."""

TRACED = 64 * 1024
RESIDENT = 2 * 1024 * 1024
"""By how many bytes the memory of the last pauses may be above that of the first ones. What Python allocated is
exact; what the system gave also shows how the allocator happens to fill its arenas."""


class BackendError(Exception):
    """A backend fails now and then."""


class Library(Loaders, max_concurrent_batches=2):
    """The loaders of one request."""

    def __init__(self, random: Random) -> None:
        self.random = random

    async def query(self) -> None:
        await asyncio.sleep(self.random.expovariate(200))
        if self.random.random() < 0.01:
            raise BackendError

    @dataloader(timeout=1, max_batch_size=20)
    async def books(self, keys: list[int]) -> list[Book]:
        await self.query()
        return [Book(id=key, author_id=key % 50) for key in keys]

    @dataloader(window=0.002, abandoned="cancel")
    async def authors(self, keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        names = await self.names.load_many(keys)
        for key, name in zip(keys, names, strict=True):
            yield key, f"author {name}"

    @dataloader(default=None, max_concurrent_batches=1)
    async def names(self, keys: list[int]) -> dict[int, str]:
        await self.query()
        return {key: f"name {key}" for key in keys}


@strawberry.type
class Book:
    id: int
    author_id: strawberry.Private[int]
    author: str = relation(Library.authors, "author_id")


@strawberry.type
class Query:
    @strawberry.field
    def books(self, ids: list[int]) -> list[Book]:
        return [Book(id=key, author_id=key % 50) for key in ids]


class Quiet(strawberry.Schema):
    """Logs no error of a field: some of the backends are meant to fail."""

    def process_errors(self, errors: Any, execution_context: Any = None) -> None:
        pass


schema = Quiet(Query)
install(schema)
QUERY = "query ($ids: [Int!]!) { books(ids: $ids) { id author } }"


@dataclass(frozen=True)
class Sample:
    """What was there in a pause.

    Attributes:
        at: Seconds since the start, by the loop's clock.
        tasks: The tasks that had not ended.
        timers: The timers that would still fire, 0 on a loop that does not tell.
        traced: The bytes that Python had allocated.
        resident: The bytes that the process had.
    """

    at: float
    tasks: int
    timers: int
    traced: int
    resident: int

    @classmethod
    def take(cls, at: float) -> Sample:
        gc.collect()
        loop = asyncio.get_running_loop()
        pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
        traced, _ = tracemalloc.get_traced_memory()
        return cls(at, len(asyncio.all_tasks()), len(loops.timers(loop)), traced, pages * 4096)


class Service:
    """What lives as long as the process, and what one request does with it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.requests = self.left = self.failed = 0
        self.flights = SingleFlight()
        self.stock: DataLoader[int, int] = DataLoader(self.count, cache=False, timeout=1, max_pending=500)
        self.log = Batcher(self.write, max_batch_size=20, window=0.01, max_pending=100, timeout=1)
        self.reindex: Keyed[int, None] = Keyed(
            self.work, lambda fn: Debouncer(fn, wait=0.05, max_wait=0.5, on_error=self.ignore)
        )
        self.refresh = Coalescer(lambda: self.work(0), min_interval=0.1, on_error=self.ignore)
        self.board = Snapshot(self.read_board, fresh_for=0.5, stale_for=2, timeout=1, on_error=self.ignore)

    def ignore(self, error: Exception) -> None:
        self.failed += 1
        assert isinstance(error, BackendError | LoaderError), error

    async def backend(self) -> None:
        await asyncio.sleep(self.random.expovariate(200))
        if self.random.random() < 0.01:
            raise BackendError

    async def count(self, keys: list[int]) -> list[int]:
        await self.backend()
        return keys

    async def write(self, items: list[str]) -> list[int]:
        await self.backend()
        return [len(item) for item in items]

    async def work(self, key: int) -> None:
        await self.backend()

    async def read_board(self) -> list[int]:
        return [*await self.stock.load_many(range(10))]

    async def events(self) -> AsyncIterator[int]:
        for number in range(20):
            await asyncio.sleep(0.01)
            yield number

    async def request(self) -> None:
        """Something or other; some of the callers leave before they have their answer."""
        self.requests += 1
        keys = [int(self.random.paretovariate(0.5)) % KEYS for _ in range(self.random.randint(1, 20))]
        kinds = (self.query, self.load, self.trigger, self.read, self.follow)
        try:
            async with asyncio.timeout(self.random.choice((0.003, 0.02, 3))):
                await self.random.choice(kinds)(keys)
        except TimeoutError:
            self.left += 1
        except (BackendError, LoaderError):
            self.failed += 1

    async def query(self, keys: list[int]) -> None:
        async with Library(self.random) as library:
            result = await schema.execute(QUERY, {"ids": keys}, context_value={"loaders": library})
        for error in result.errors or ():
            raise error.original_error or error

    async def load(self, keys: list[int]) -> None:
        async with Scope(), Library(self.random) as library:
            books = await library.books.load_many(keys)
            assert [book.id for book in books] == keys
            await library.authors.load(keys[0])

    async def trigger(self, keys: list[int]) -> None:
        self.refresh.trigger()
        for key in keys:
            self.reindex.trigger(key)
        await self.reindex.request(keys[0])
        await self.log.submit_many(map(str, keys))

    async def read(self, keys: list[int]) -> None:
        await self.board.get(max_age=self.random.choice((0, None)))
        await self.flights.do(keys[0], self.work, keys[0])
        assert await self.stock.load(keys[0]) == keys[0]

    async def follow(self, keys: list[int]) -> None:
        operator = self.random.choice(
            (
                lambda: conflate(self.events()),
                lambda: throttle(self.events(), interval=0.05),
                lambda: debounce(self.events(), wait=0.02, max_wait=0.05),
            )
        )()
        async with operator:
            async for _ in operator:
                await asyncio.sleep(0.02)
        changes = self.board.changes()
        await anext(changes)
        await changes.aclose()


async def soak(seconds: float, *, rate: float, every: float, seed: int) -> tuple[Service, list[Sample]]:
    """So many seconds of traffic, so many requests each, with a pause after every so many."""
    random = Random(seed)
    loop = asyncio.get_running_loop()
    samples: list[Sample] = []
    running: set[asyncio.Task[None]] = set()
    began = loop.time()
    async with AsyncExitStack() as stack:
        service = Service(random)
        for each in (service.stock, service.log, service.reindex, service.refresh, service.board):
            await stack.enter_async_context(each)
        while loop.time() < began + seconds:
            until = loop.time() + every
            while loop.time() < until:
                task = loop.create_task(service.request())
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(random.expovariate(rate))
            await asyncio.gather(*running)
            await asyncio.sleep(PAUSE)
            samples.append(Sample.take(loop.time() - began))
    return service, samples


def growth(samples: list[Sample]) -> list[str]:
    """What grew: the last half of the samples beside the one before, without the first ones, which warm up."""
    warm = samples[len(samples) // 4 :]
    before, after = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    found = [
        f"{name}: {sorted(counts)}"
        for name, counts in (("tasks", {each.tasks for each in samples}), ("timers", {each.timers for each in samples}))
        if len(counts) > 1
    ]
    for name, most in (("traced", TRACED), ("resident", RESIDENT)):
        more = median(getattr(each, name) for each in after) - median(getattr(each, name) for each in before)
        if more > most:
            found.append(f"{name}: {more:,.0f} bytes more")
    return found


def run(
    seconds: float, *, rate: float, every: float, seed: int = 0, real_time: bool = False
) -> tuple[Service, list[Sample]]:
    """`soak` on a loop of its own, with Python's allocations traced."""
    reports: list[Any] = []
    loop = loops.new_loop(real_time=real_time)
    loop.set_exception_handler(lambda _, report: reports.append(report))
    tracemalloc.start()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            found = runner.run(soak(seconds, rate=rate, every=every, seed=seed))
    finally:
        tracemalloc.stop()
    assert not reports, reports
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="how much virtual time")
    parser.add_argument("--real", type=float, metavar="SECONDS", help="so much real time in its place")
    parser.add_argument("--rate", type=float, default=5, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    seconds, every = (options.real, options.real / 20) if options.real else (options.seconds, options.seconds / 60)
    service, samples = run(
        seconds, rate=options.rate, every=every, seed=options.seed, real_time=options.real is not None
    )
    for each in samples[:: max(1, len(samples) // 10)]:
        print(
            f"{each.at:7.0f} s  {each.tasks} tasks  {each.timers} timers  {each.traced / 1e6:8.3f} MB allocated  "
            f"{each.resident / 1e6:6.1f} MB resident"
        )
    found = growth(samples)
    print(
        f"{service.requests} requests, {service.left} left early, {service.failed} failures, {len(samples)} pauses, "
        f"{time.monotonic() - began:.0f} s of real time: {'; '.join(found) or 'nothing grew'}"
    )
    return int(bool(found))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
