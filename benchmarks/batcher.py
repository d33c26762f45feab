"""The Batcher beside a call for each item, and beside the queue that one writes by hand.

Items arrive at random (Poisson, the same arrivals for each way) for a second. The backend serves one call at a time,
which takes 5 ms and 20 µs an item.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.table import show
from loader import Batcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    Submit = Callable[[int], Awaitable[int]]

CALL, ITEM, SECONDS, SIZE = 0.005, 0.00002, 1.0, 100


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


async def measure(
    rate: float, enter: Callable[[Backend], AbstractAsyncContextManager[Submit]]
) -> tuple[int, int, list[float], float]:
    """Items, calls, waits and CPU seconds of one way."""
    rng, backend, waits = random.Random(7), Backend(), list[float]()
    loop = asyncio.get_running_loop()

    async def one(submit: Submit, item: int) -> None:
        started = loop.time()
        await submit(item)
        waits.append(loop.time() - started)

    cpu = time.process_time()
    async with enter(backend) as submit, asyncio.TaskGroup() as tasks:
        at, item, start = 0.0, 0, loop.time()
        while (at := at + rng.expovariate(rate)) < SECONDS:
            await asyncio.sleep(max(0.0, start + at - loop.time()))
            tasks.create_task(one(submit, item := item + 1))
    return item, backend.calls, sorted(waits), time.process_time() - cpu


def main() -> None:
    """Print the table."""
    rows: list[list[object]] = []
    for rate in (100, 1000, 5000):
        for name, enter in WAYS.items():
            if name == "a call for each" and rate > 1 / CALL:
                rows.append([f"{rate:,}/s", name, "", "the backend", "cannot", "keep up"])
                continue
            items, calls, waits, cpu = asyncio.run(measure(rate, enter))
            rows.append(
                [
                    f"{rate:,}/s",
                    name,
                    calls,
                    f"{1000 * statistics.median(waits):.1f} ms",
                    f"{1000 * waits[int(len(waits) * 0.99)]:.1f} ms",
                    f"{1e6 * cpu / items:.0f} µs",
                ]
            )
    print(f"Items at random for {SECONDS:.0f} s; a call takes 5 ms and 20 µs an item, one at a time:\n")
    show(["arrivals", "way", "calls", "p50", "p99", "CPU an item"], rows)
