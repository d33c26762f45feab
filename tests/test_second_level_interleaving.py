"""No old value is ever written back after an invalidation: every interleaving of two loads and two changes.

A worker's load asks the cache, reads the backend, and writes back; a change is committed, and then its key deleted.
Each of these steps is taken at any time relative to those of the others.
"""

from __future__ import annotations

import asyncio
from functools import cache as remembered
from typing import TYPE_CHECKING, Any

from loader import DataLoader
from loader.redis import RedisCache
from loader.second_level import (
    Change,
    Entry,
    Found,
    MemoryCache,
    Namespace,
    SecondLevelCache,
    Stored,
    drain,
    invalidate,
    receive,
)
from tests.fakes import together, turns
from tests.loops import run
from tests.redis_servers import Place, place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["place"]

NAMESPACE = Namespace("rows")


@remembered
def interleavings(*lengths: int) -> list[tuple[int, ...]]:
    """All orders in which actors may take their steps: so many each."""

    def orders(left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not any(left):
            yield ()
        for actor, steps in enumerate(left):
            if steps:
                for rest in orders((*left[:actor], steps - 1, *left[actor + 1 :])):
                    yield (actor, *rest)

    return list(orders(lengths))


class World:
    """A backend with one row, whose value is its version, and actors that each take a step when told to."""

    def __init__(self, cache: SecondLevelCache, key: str) -> None:
        self.cache = cache
        self.key = key
        self.version = 0
        self.announced = 0  # the newest version whose deletion is over
        self.served: list[tuple[int, int]] = []  # what the cache served, and what was announced before it was asked

    async def load(self) -> Any:
        """A load, as a generator of steps."""
        announced = self.announced
        found = await self.cache.get_many(NAMESPACE, [self.key])
        yield
        if self.key in found.stored:
            self.served.append((int(found.stored[self.key].data), announced))
            return
        value = self.version
        yield
        if self.key in found.leases:
            await self.cache.set_many([Entry(NAMESPACE, self.key, found.leases[self.key], b"%d" % value, 60)])

    async def change(self) -> Any:
        version = self.version = self.version + 1
        yield
        await self.cache.delete_many(NAMESPACE, [self.key])
        self.announced = max(self.announced, version)


async def play(world: World, order: tuple[int, ...]) -> bool:
    """Let the actors of an order take their steps; whether nothing old was served afterwards."""
    actors = [world.load(), world.load(), world.change(), world.change()]  # the second change where there is one
    for actor in order:
        await anext(actors[actor], None)
    async for _ in world.load():  # somebody asks when everything is over
        pass
    async for _ in world.load():
        pass
    return all(served >= announced for served, announced in world.served)


def test_of_all_orders_of_two_loads_and_two_changes_none_serves_what_is_old() -> None:
    orders = interleavings(3, 3, 2, 2)
    assert len(orders) == 25_200

    async def main() -> None:
        cache = MemoryCache()
        assert [order for number, order in enumerate(orders) if not await play(World(cache, str(number)), order)] == []

    run(main, debug=False)


def test_nor_does_any_on_a_real_server(place: Place) -> None:
    orders = interleavings(3, 3, 2)
    assert len(orders) == 560

    async def main() -> None:
        async with RedisCache.from_url(place.url, prefix=place.prefix, timeout=5) as cache:
            for at in range(0, len(orders), 20):
                some = orders[at : at + 20]
                worlds = [World(cache, str(at + number)) for number in range(len(some))]
                assert all(await together(*map(play, worlds, some))), some

    run(main, real_time=True, debug=False)


class Naive:
    """A cache that writes what it is given, as one with plain GET, SET and DEL would."""

    codec = None
    shared = True

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def get_many(self, namespace: Namespace, keys: Sequence[str], *, wait: bool = False) -> Found:
        stored = {key: Stored(self.kept[key], None) for key in keys if key in self.kept}
        return Found(stored, {key: None for key in keys if key not in stored})

    async def set_many(self, entries: Sequence[Entry]) -> None:
        self.kept.update({entry.key: entry.data for entry in entries})

    async def delete_many(self, namespace: Namespace, keys: Sequence[str] | None) -> None:
        for key in keys or ():
            self.kept.pop(key, None)


async def test_without_leases_some_would() -> None:
    cache = Naive()
    orders = interleavings(3, 3, 2)
    bad = [order for number, order in enumerate(orders) if not await play(World(cache, str(number)), order)]
    assert len(bad) > 50


# -- the same with loaders, whose own caches and write-back take part ----------------------------------------------


class Worker:
    """A process: a loader that lives on, and the steps of its loads, each of which waits until it is let through."""

    codec = None
    shared = True

    def __init__(self, everybodys: MemoryCache, table: dict[int, int]) -> None:
        self.everybodys = everybodys
        self.table = table
        self.gates: list[asyncio.Future[None]] = []
        self.loader = DataLoader(self.read, second_level=self, fresh_for=60, name="rows")

    async def gate(self) -> None:
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate

    async def step(self) -> None:
        """Let one step through, and see it done."""
        if self.gates:
            self.gates.pop(0).set_result(None)
        await turns(5)

    async def get_many(self, namespace: Namespace, keys: Sequence[str], *, wait: bool = False) -> Found:
        await self.gate()
        return await self.everybodys.get_many(namespace, keys, wait=wait)

    async def set_many(self, entries: Sequence[Entry]) -> None:
        await self.gate()
        await self.everybodys.set_many(entries)

    async def delete_many(self, namespace: Namespace, keys: Sequence[str] | None) -> None:
        await self.everybodys.delete_many(namespace, keys)

    async def read(self, keys: list[int]) -> list[int]:
        await self.gate()
        return [self.table[key] for key in keys]

    async def value(self) -> int:
        """What a load that begins now comes to."""
        load = self.loader.load(1)
        while not load.done():
            await self.step()
        return await load

    async def finish(self) -> None:
        while self.gates:
            await self.step()
        await drain(self)


async def no_load_that_begins_after_an_invalidation_gets_what_is_older() -> None:
    everybodys, table = MemoryCache(max_wait=0), {1: 0}
    for order in interleavings(3, 3, 2):
        table[1] = 0
        workers = [Worker(everybodys, table) for _ in range(2)]
        loads = [worker.loader.load(1) for worker in workers]
        await turns()
        change = Change()
        for actor in order:
            if actor < 2:
                await workers[actor].step()
            elif not table[1]:
                table[1] = 1
            else:
                change = await invalidate(workers[0].loader, [1])
        await receive(change)
        assert [await worker.value() for worker in workers] == [1, 1], order
        for worker in workers:
            await worker.finish()
        assert {await load for load in loads} <= {0, 1}
        await everybodys.delete_many(Namespace("rows"), None)


def test_no_load_that_begins_after_an_invalidation_gets_what_is_older() -> None:
    run(no_load_that_begins_after_an_invalidation_gets_what_is_older, debug=False)
