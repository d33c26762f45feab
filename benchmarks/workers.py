"""Workers that share values over Redis while all of them change rows: how old is what they read?

Each worker is a process. A row is its version, in memory that all of them map: the backend. Every worker changes rows
of its own and reads all of them, through requests that load, wait a moment, and load again; what a change made stale
for how long is checked at each read. After the last change each looks how long it takes until everything it has,
open scopes included, is as the backend says.

`python -m benchmarks workers` runs four for 10,000 reads and more.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from benchmarks.table import Figure, Table
from loader import Loaders, dataloader
from loader.redis import RedisBus, RedisCache
from loader.second_level import statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 200
REMEMBERED = 512  # so many commits of each row
WORKERS = 16  # at most
FRESH_FOR = 30.0
PATIENCE = 20.0
NO_SERVER = " No Redis answers where EXAMPLE_REDIS_URL says, so its rows are left out."
URL = os.environ.get("EXAMPLE_REDIS_URL", "redis://127.0.0.1:6379/0")


class Rows:
    """What all workers map: the version of each row, when each version was committed, and who has ended."""

    SIZE = 8 * (ROWS + ROWS * REMEMBERED + WORKERS)

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.SIZE)
        whole = memoryview(self._map)
        self.versions = whole[: 8 * ROWS].cast("q")
        self._commits = whole[8 * ROWS : 8 * (ROWS + ROWS * REMEMBERED)].cast("d")
        self.ended = whole[8 * (ROWS + ROWS * REMEMBERED) :].cast("q")

    def commit(self, row: int) -> int:
        """The next version of a row, which only one worker changes."""
        version = self.versions[row] + 1
        self._commits[row * REMEMBERED + version % REMEMBERED] = time.monotonic()
        self.versions[row] = version
        return version

    def age(self, row: int, version: int, now: float) -> float:
        """For how many seconds this version had not been the newest any more."""
        if self.versions[row] == version:
            return 0.0
        return max(0.0, now - self._commits[row * REMEMBERED + (version + 1) % REMEMBERED])


@dataclass
class Report:
    """What a worker saw.

    Attributes:
        reads: How many values it checked.
        changes: How many rows it changed.
        stale: How many of the values were out of date when they were asked for.
        oldest: For how many seconds the worst of them had been.
        own_lost: How often it did not read what it had written itself.
        settled: How many seconds after the last change of all workers it had nothing old any more.
        backend_calls: How often it asked the backend.
        hits: How many keys the second-level cache had.
    """

    reads: int = 0
    changes: int = 0
    stale: int = 0
    oldest: float = 0.0
    own_lost: int = 0
    settled: float = 0.0
    backend_calls: int = 0
    hits: int = 0


class Worker:
    """One process."""

    def __init__(self, rows: Rows, number: int, workers: int, reads: int, cache: RedisCache, bus: RedisBus) -> None:
        self.rows, self.number, self.workers, self.reads = rows, number, workers, reads
        self.bus = bus
        self.cache = cache
        self.report = Report()
        self.random = random.Random(number)
        worker = self

        class App(Loaders):
            @dataloader(second_level=cache, fresh_for=FRESH_FOR)
            async def rows(self, keys: list[int]) -> list[int]:
                worker.report.backend_calls += 1
                await asyncio.sleep(worker.random.random() * 0.004)
                values = [rows.versions[key] for key in keys]
                await asyncio.sleep(worker.random.random() * 0.004)
                return values

        self.app = App

    async def check(self, loaders: Any, keys: list[int]) -> None:
        now = time.monotonic()
        for key, version in zip(keys, await loaders.rows.load_many(keys), strict=True):
            age = self.rows.age(key, version, now)
            self.report.reads += 1
            self.report.stale += age > 0
            self.report.oldest = max(self.report.oldest, age)

    async def request(self) -> None:
        """Load, wait a moment, load again; every fifth time, change a row in between."""
        async with self.app() as loaders:
            keys = self.random.sample(range(ROWS), 8)
            await self.check(loaders, keys)
            if self.random.random() < 0.2:
                row = self.random.randrange(ROWS // self.workers) * self.workers + self.number
                version = self.rows.commit(row)
                await self.bus.invalidate(loaders.rows, [row])
                self.report.changes += 1
                async with self.app() as others:
                    for each in (loaders, others):
                        self.report.own_lost += await each.rows.load(row) < version
            await asyncio.sleep(self.random.random() * 0.02)
            await self.check(loaders, keys)

    async def run(self) -> Report:
        """Requests, four at a time; then wait until nothing that is open has anything old."""

        async def client() -> None:
            while self.report.reads < self.reads:
                await self.request()

        async with self.app() as long:
            everything = list(range(ROWS))
            await long.rows.load_many(everything)
            await asyncio.gather(*(client() for _ in range(4)))
            await long.rows.load_many(everything)  # full of what others still change
            self.rows.ended[self.number] = 1
            await until(lambda: sum(self.rows.ended) == self.workers)
            since = time.monotonic()
            while await long.rows.load_many(everything) != list(self.rows.versions):
                await asyncio.sleep(0.001)
                if time.monotonic() > since + PATIENCE:
                    break
            async with self.app() as new:
                self.report.own_lost += await new.rows.load_many(everything) != list(self.rows.versions)
            self.report.settled = time.monotonic() - since
        self.report.hits = statistics(self.cache).hits
        return self.report


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so that other processes bring about."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # nothing here tells when
            await asyncio.sleep(0.001)


async def work(options: dict[str, Any]) -> Report:
    """Be a worker."""
    rows = Rows(Path(options["path"]))
    where = {"prefix": options["prefix"], "timeout": 5.0}
    async with (
        RedisCache.from_url(options["url"], **where) as cache,
        RedisBus.from_url(options["url"], **where) as bus,
    ):
        await bus.start(wait=10)
        return await Worker(rows, options["number"], options["workers"], options["reads"], cache, bus).run()


def run(url: str, prefix: str, *, workers: int, reads: int) -> list[Report]:
    """What each of some workers saw, that checked so many reads each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows")
        path.write_bytes(bytes(Rows.SIZE))
        options = {"path": str(path), "url": url, "prefix": prefix, "workers": workers, "reads": reads}
        processes = [
            subprocess.Popen(  # noqa: S603  # ourselves
                [sys.executable, "-m", "benchmarks.workers", json.dumps({**options, "number": number})],
                stdout=subprocess.PIPE,
                cwd=Path(__file__).parent.parent,
            )
            for number in range(workers)
        ]
        try:
            outputs = [process.communicate(timeout=10 * PATIENCE)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        return [Report(**json.loads(output)) for output in outputs]


@contextmanager
def removed(url: str, prefix: str) -> Iterator[None]:
    """Leave nothing with a prefix on a server."""
    try:
        yield
    finally:
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(f"*{prefix}*", count=1000):
                client.delete(key)


def answers(url: str) -> bool:
    """Whether there is a server."""
    with redis.Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def measured(reads: int) -> list[Report]:
    """What each of four workers saw; nothing without a server."""
    if not answers(URL):
        return []
    prefix = f"benchmark-{os.getpid()}"
    with removed(URL, prefix):
        return run(URL, prefix, workers=4, reads=reads)


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The one table."""
    reports = measured(200 if quick else 5000)
    yield Table(
        "workers",
        f"Four processes that share values over Redis while all of them change rows.{'' if reports else NO_SERVER}",
        ["worker", "reads", "changes", "out of date", "for at most", "own lost", "fresh after the last change"],
        [
            [
                f"worker {number}",
                report.reads,
                report.changes,
                report.stale,
                Figure(report.oldest, "ms"),
                report.own_lost,
                Figure(report.settled, "ms"),
            ]
            for number, report in enumerate(reports, start=1)
        ],
    )


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(work(json.loads(sys.argv[1]))))))
