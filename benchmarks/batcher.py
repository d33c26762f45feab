"""The Batcher beside a call for each item, and beside the queue that one writes by hand.

Items arrive at random (Poisson, the same arrivals for each way) for a second. The backend serves one call at a time,
which takes 5 ms and 20 µs an item.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.rounds import in_turns
from benchmarks.table import Table, median, nine_in_ten, percentile
from loader import Batcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    Submit = Callable[[int], Awaitable[int]]

CALL, ITEM, SECONDS, SIZE, ROUNDS = 0.005, 0.00002, 1.0, 100, 3


class Backend:
    """Serves one call at a time, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.free = asyncio.Lock()

    async def handle(self, items: list[int]) -> list[int]:
        """The results of the items: themselves."""
        self.calls += 1
        async with self.free:
            await asyncio.sleep(CALL + ITEM * len(items))
        return items


@asynccontextmanager
async def each(backend: Backend) -> AsyncIterator[Submit]:
    """A call for each item."""

    async def submit(item: int) -> int:
        return (await backend.handle([item]))[0]

    yield submit


@asynccontextmanager
async def queue(backend: Backend, window: float = 0.005) -> AsyncIterator[Submit]:
    """A queue, and a task that waits for a first item and then for as many as come within the window."""
    items: asyncio.Queue[tuple[int, asyncio.Future[int]]] = asyncio.Queue()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await items.get()]
            until = loop.time() + window
            while len(batch) < SIZE and (left := until - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(items.get(), left))
                except TimeoutError:
                    break
            for (_, future), result in zip(batch, await backend.handle([item for item, _ in batch]), strict=True):
                future.set_result(result)

    def submit(item: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        items.put_nowait((item, future))
        return future

    task = asyncio.create_task(serve())
    yield submit
    task.cancel()


@asynccontextmanager
async def batcher(backend: Backend, window: float | None = None) -> AsyncIterator[Submit]:
    """A Batcher."""
    async with Batcher(backend.handle, max_batch_size=SIZE, window=window) as batcher:
        yield batcher.submit


WAYS: dict[str, Callable[[Backend], AbstractAsyncContextManager[Submit]]] = {
    "a call for each": each,
    "a queue by hand, 5 ms": queue,
    "Batcher, no window": batcher,
    "Batcher, window=0.005": lambda backend: batcher(backend, 0.005),
}


@dataclass
class Course:
    """What one way did with the items of one round.

    Attributes:
        calls: How often it called the backend.
        waits: How long each item waited for its result, in seconds.
        cpu: The CPU seconds for an item.
    """

    calls: int
    waits: list[float]
    cpu: float


async def course(enter: Callable[[Backend], AbstractAsyncContextManager[Submit]], rate: float, length: float) -> Course:
    """Items at random for some time."""
    rng, backend, waits = random.Random(7), Backend(), list[float]()
    loop = asyncio.get_running_loop()

    async def one(submit: Submit, item: int) -> None:
        started = loop.time()
        await submit(item)
        waits.append(loop.time() - started)

    cpu = time.process_time()
    async with enter(backend) as submit, asyncio.TaskGroup() as tasks:
        at, item, start = 0.0, 0, loop.time()
        while (at := at + rng.expovariate(rate)) < length:
            await asyncio.sleep(max(0.0, start + at - loop.time()))
            tasks.create_task(one(submit, item := item + 1))
    return Course(backend.calls, waits, (time.process_time() - cpu) / item)


async def measure(rate: float, rounds: int, length: float) -> list[list[object]]:
    """A row for each way that can keep up."""
    ways = {name: enter for name, enter in WAYS.items() if enter is not each or rate <= 1 / CALL}
    took = await in_turns(rounds, {name: partial(course, enter, rate, length) for name, enter in ways.items()})
    rows: list[list[object]] = []
    for name, courses in took.items():
        waits = [wait for course in courses for wait in course.waits]
        calls, cpu = [course.calls for course in courses], [course.cpu for course in courses]
        rows.append(
            [
                f"{rate:,}/s",
                name,
                median(calls, "", 0),
                median(waits, "ms"),
                nine_in_ten(waits, "ms"),
                percentile(waits, 99, "ms"),
                median(cpu, "µs", 0),
                nine_in_ten(cpu, "µs", 0),
            ]
        )
    return rows


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The one table."""
    rounds, length = (1, 0.1) if quick else (ROUNDS, SECONDS)
    yield Table(
        "batcher",
        f"Items at random for {length:g} s; a call takes 5 ms and 20 µs an item, one at a time. Of more than "
        f"{1 / CALL:.0f} items a second the backend cannot serve each with a call of its own.",
        ["arrivals", "way", "calls", "p50", "nine in ten", "p99", "CPU an item", "its nine in ten"],
        [row for rate in (100, 1000, 5000) for row in asyncio.run(measure(rate, rounds, length))],
        chart="p50",
        ours=[name for name in WAYS if name.startswith("Batcher")],
    )
