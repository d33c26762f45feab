"""Scripts of loaders with a second-level cache: one in memory, and one on the other side of a wire, which may break."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import strawberry

from loader import BatchResultError, DataLoader, LoaderClosedError, Loaders, Scope, dataloader
from loader._backing import backing_of
from loader.second_level import (
    Change,
    MemoryCache,
    change_of,
    drain,
    invalidate,
    invalidate_tags,
    receive,
    statistics,
)
from loader.strawberry import install
from tests.explorer.core import offer_all, watch
from tests.explorer.graphql import judged
from tests.explorer.world import Boom, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from loader.second_level import Entry, Found, Namespace, SecondLevelCache


class WireError(Exception):
    """What a broken wire raises. No caller of a loader ever gets it."""


class Remote:
    """A cache behind a wire, on which an answer may be lost, with its leases, or what is to be written or deleted."""

    shared = False

    def __init__(self, world: World, codec: Json | None = None) -> None:
        self.codec = codec
        self._world = world
        self._memory = MemoryCache(lease_for=0.1, max_wait=0.02)
        world.permitted += (WireError,)

    async def _wire(self, *, in_batch: bool = True) -> None:
        try:
            await self._world.io(0.001, in_batch=in_batch)
        except Boom:
            raise WireError from None

    async def get_many(self, namespace: Namespace, keys: Sequence[str], *, wait: bool = False) -> Found:
        found = await self._memory.get_many(namespace, keys, wait=wait)
        await self._wire()
        return found

    async def set_many(self, entries: Sequence[Entry]) -> None:
        await self._wire()
        await self._memory.set_many(entries)

    async def delete_many(self, namespace: Namespace, keys: Sequence[str] | None) -> None:
        await self._wire(in_batch=False)
        await self._memory.delete_many(namespace, keys)


class Json:
    """A codec."""

    def encode(self, value: Any, value_type: Any) -> bytes:
        return json.dumps(value).encode()

    def decode(self, data: bytes, value_type: Any) -> Any:
        return json.loads(data)


class Table:
    """Rows, each with the number of changes before it was read. There is none of the key 8."""

    def __init__(self, world: World, cache: SecondLevelCache) -> None:
        self.world, self.cache = world, cache
        self.changes: Counter[int] = Counter()
        self.announced: Counter[int] = Counter()

    def loader(self, load: Callable[[list[int]], Any], **options: Any) -> DataLoader[int, Any]:
        """The loader of one more request, or of one more worker."""
        return DataLoader(
            load,
            name="rows",
            second_level=self.cache,
            fresh_for=60,
            missing_fresh_for=60,
            default=None,
            timeout=1,
            **options,
        )

    async def listed(self, keys: list[int]) -> dict[int, list[int]]:
        rows = {key: [key, self.changes[key]] for key in keys if key != 8}
        await self.world.io()
        return rows

    async def pairs(self, keys: list[int]) -> AsyncIterator[tuple[int, list[int]]]:
        """Pairs that come one after the other, once there is a connection."""
        await self.world.io(0.001)
        return self._generate(keys)

    async def _generate(self, keys: list[int]) -> AsyncIterator[tuple[int, list[int]]]:
        try:
            for key in keys:
                if key != 8:
                    row = [key, self.changes[key]]
                    await self.world.io(0.002)
                    yield key, row
        finally:
            await self.world.io(0.001)

    async def change(self, loader: DataLoader[int, Any], key: int) -> None:
        """Change a row, and say so."""
        self.changes[key] += 1
        changes, failures = self.changes[key], statistics(self.cache).failures
        await invalidate(loader, [key])
        if statistics(self.cache).failures == failures:  # else it may not have been deleted
            self.announced[key] = max(self.announced[key], changes)

    def ask(self, loader: DataLoader[int, Any], keys: list[int], *permitted: type[BaseException]) -> None:
        """A caller, who gets rows that are no older than what was announced before he asked."""

        async def numbers() -> list[Any]:
            announced = self.announced.copy()
            try:
                rows = await loader.load_many(keys)
            except WireError as error:
                return [f"what a caller must not see: {error!r}"]
            return [row if row is None else row[0] if row[1] >= announced[row[0]] else f"{row} is old" for row in rows]

        self.world.ask(numbers(), [None if key == 8 else key for key in keys], *permitted)


def watch_memory(world: World, cache: MemoryCache) -> None:
    """At the end nobody may wait, or hold a lease that has not run out, unless what was to give it back was broken."""

    def leases() -> list[Any]:
        if any(writes.statistics().failures for writes in backing_of(cache)._writes.values()):
            return []
        return [each for each in cache._slots.values() if each.stored is None and each.until > world.loop.time()]

    world.expect("waiting", lambda: cache._waiting, set())
    world.expect("leases", leases, [])


async def serve(world: World, table: Table, make: Callable[[], DataLoader[int, Any]]) -> None:
    """Two requests at once for the same rows, a change, and a third one that finds what they left."""
    one, two, three = make(), make(), make()
    watch(world, one, two, three)
    offer_all(world, one)
    world.withdraw("prime")
    world.withdraw("prime by force")
    world.withdraw("load")
    world.offer("drain", lambda: drain(table.cache))
    world.offer("change", lambda: table.change(two, 1))
    table.ask(one, [1, 2, 8], LoaderClosedError)
    await asyncio.sleep(0)
    table.ask(two, [2, 3, 8])
    table.ask(two, [1])
    await asyncio.sleep(0.004)
    world.ask(table.change(three, 3))
    table.ask(three, [3, 2])
    await world.answered()
    await drain(table.cache)
    table.ask(two, [1, 3])
    table.ask(make(), [1, 3, 8, 9])
    await world.answered()
    await drain(table.cache)
    for loader in (one, two, three):
        await loader.aclose()


async def in_memory(world: World) -> None:
    cache = MemoryCache(max_wait=0.02)
    watch_memory(world, cache)
    table = Table(world, cache)
    await serve(world, table, lambda: table.loader(table.listed))


async def in_memory_without_patience(world: World) -> None:
    cache = MemoryCache(max_wait=0.005, codec=Json())
    watch_memory(world, cache)
    table = Table(world, cache)
    await serve(world, table, lambda: table.loader(table.pairs, abandoned="cancel", max_batch_size=2))


async def behind_a_wire(world: World) -> None:
    table = Table(world, Remote(world, Json()))
    await serve(world, table, lambda: table.loader(table.listed))


async def pairs_behind_a_wire(world: World) -> None:
    table = Table(world, Remote(world))
    await serve(world, table, lambda: table.loader(table.pairs, abandoned="cancel"))

    async def twice(keys: list[int]) -> AsyncIterator[tuple[int, list[int]]]:
        return table._generate([keys[0], *keys])

    loader = table.loader(twice)

    async def refused() -> str:
        try:
            return f"there are {await loader.load_many([4, 5])}"
        except BatchResultError:
            return "refused"

    world.ask(refused(), "refused")  # with what yields it still open
    await world.answered()
    await drain(table.cache)
    await loader.aclose()


async def declared(world: World) -> None:
    """Loaders with parameters and tenants that load from one another, in scopes, and all that says what changed."""
    cache = Remote(world)

    class Library(Loaders, tenant="tenant", max_concurrent_batches=2):
        def __init__(self, tenant: str) -> None:
            self.tenant = tenant

        @dataloader(second_level=cache, fresh_for=60, tags=["books"])
        async def books(self, keys: list[int]) -> dict[int, str]:
            await world.io(0.002)
            authors = await self.authors(upper=True).load_many(keys)
            return {key: f"{self.tenant} {key} by {author}" for key, author in zip(keys, authors, strict=True)}

        @dataloader(second_level=cache, fresh_for=60)
        async def authors(self, keys: list[int], *, upper: bool = False) -> list[str]:
            await world.io(0.001)
            return [f"A{key}" if upper else f"a{key}" for key in keys]

    libraries = one, _ = Library("one"), Library("two")

    async def request(library: Library) -> list[str]:
        async with Scope() as scope:
            world.offer("close scope", scope.aclose, LoaderClosedError)
            return [await library.books.load(1), *await library.authors.load_many([1, 2])]

    world.offer("drain", lambda: drain(cache))
    for library in libraries:
        world.ask(request(library), [f"{library.tenant} 1 by A1", "a1", "a2"])
    await world.answered()
    everything = change_of(one.books)
    world.ask(invalidate_tags("books"), Change((everything,), frozenset({"books"})))
    world.ask(receive(Change((change_of(one.books, [1]),))))
    world.ask(receive(Change(anything=True)))
    world.ask(request(one), ["one 1 by A1", "a1", "a2"])
    await world.answered()
    await drain(cache)
    for library in libraries:
        await library.aclose()


Info = strawberry.Info[dict[str, DataLoader[int, Any]], None]


@strawberry.type
class Query:
    @strawberry.field
    async def row(self, info: Info, id: int) -> str:  # noqa: A002  # what a key is called
        number, _ = await info.context["rows"].load(id)
        return f"row {number}"


schema = strawberry.Schema(Query)
install(schema)


async def operations(world: World) -> None:
    """Two operations at once, and then one that finds what they left."""
    table = Table(world, MemoryCache())

    async def execute() -> bool:
        async with table.loader(table.listed) as rows:
            result = await schema.execute("{ a: row(id: 1) b: row(id: 2) }", context_value={"rows": rows})
            judged(world, result.data, result.errors, {"a": "row 1", "b": "row 2"})
        return True

    for together in (2, 1):
        for _ in range(together):
            world.ask(execute(), True)
        await world.answered()
        await drain(table.cache)


SCRIPTS = (in_memory, in_memory_without_patience, behind_a_wire, pairs_behind_a_wire, declared, operations)
