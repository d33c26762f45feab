"""Scripts of the core: loaders of every kind, nested and limited, in scopes that open and close."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from loader import BatchResultError, DataLoader, LoaderClosedError, Loaders, Scope, dataloader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.explorer.world import World


def values(keys: Any) -> list[str]:
    return [f"v{key}" for key in keys]


def watch(world: World, *loaders: DataLoader[Any, Any]) -> None:
    """At the end nothing may be under way in the loaders."""
    for loader in loaders:
        world.expect(
            f"{loader!r} at rest",
            lambda loader=loader: (loader._waiting, loader._batches, loader._open, loader._unsent),  # type: ignore[misc]
            ({}, set(), None, 0),
        )


def offer_all(world: World, loader: DataLoader[int, str]) -> None:
    """What anybody may do with a loader at any time."""
    world.offer("close", loader.aclose, LoaderClosedError)
    world.offer("clear", lambda: loader.clear(1))
    world.offer("clear all", loader.clear_all)
    world.offer("prime", lambda: loader.prime(2, "v2"))
    world.offer("prime by force", lambda: loader.prime(2, "v2", force=True))
    world.offer("flush", loader.flush)

    world.offer("load", lambda: world.ask(loader.load_many([1, 3, 8]), values([1, 3, 8]), LoaderClosedError))


async def serve(world: World, loader: DataLoader[int, str]) -> None:
    """Callers of a loader, together and later, one of whom is there when it closes."""
    watch(world, loader)
    offer_all(world, loader)
    async with loader:
        try:
            world.ask(loader.load(1), "v1")
            world.ask(loader.load(1), "v1")
            world.ask(loader.load_many([2, 1, 3]), values([2, 1, 3]))
            await asyncio.sleep(0)
            world.ask(loader.load_many([3, 4, 4]), values([3, 4, 4]))
            world.ask(loader.load(7), "v7")
            await world.answered()
            world.ask(loader.load_many([1, 5], return_exceptions=True), values([1, 5]))
            await world.answered()
            world.ask(loader.load(6), "v6", LoaderClosedError)
            await asyncio.sleep(0.005)
        except LoaderClosedError:
            assert loader._closed
    world.expect("the close", lambda: loader._closed, True)


async def coroutine(world: World) -> None:
    async def load(keys: list[int]) -> list[str]:
        await world.io()
        return values(keys)

    await serve(world, DataLoader(load, timeout=1))


async def mapping_in_a_window(world: World) -> None:
    async def load(keys: list[int]) -> dict[int, str]:
        await world.io()
        return dict(zip(keys, values(keys), strict=True))

    loader = DataLoader(load, window=0.003, timeout=1, max_batch_size=2, max_concurrent_batches=1, max_pending=50)
    await serve(world, loader)


async def generator(world: World) -> None:
    async def load(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        try:
            for key in keys:
                await world.io(0.002)
                yield key, f"v{key}"
        finally:
            await world.io(0.001)

    await serve(world, DataLoader(load, max_batch_size=3, cache=False, abandoned="cancel"))


async def generator_that_repeats_itself(world: World) -> None:
    """Its callers get an error, and it is closed, which takes a while."""

    async def load(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        try:
            for key in [*keys, keys[0]]:
                await world.io(0.002)
                yield key, f"v{key}"
            yield keys[-1], "never asked for"
        finally:
            await world.io(0.002)

    loader = DataLoader(load, timeout=1)
    watch(world, loader)
    world.offer("close", loader.aclose, LoaderClosedError)
    # The callers have their answers by then: nobody is there to get the error but the loop.
    world.permitted = (BatchResultError,)
    world.ask(loader.load_many([1, 2]), values([1, 2]))
    await world.answered()
    await asyncio.sleep(0.02)
    await loader.aclose()


async def abandoned(world: World) -> None:
    async def load(keys: list[int]) -> list[str]:
        try:
            await world.io()
        finally:
            await world.io(0.001)
        return values(keys)

    await serve(world, DataLoader(load, max_batch_size=2, abandoned="cancel", max_concurrent_batches=2))
    again = DataLoader(load, abandoned="cancel")
    watch(world, again)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.005):
            await again.load(1)
    world.ask(again.load(1), "v1")  # while the batch that everybody left is ending
    await world.answered()


async def in_threads(world: World) -> None:
    def load(keys: list[int]) -> list[str]:
        return values(keys)

    await serve(world, DataLoader(load, max_batch_size=3, timeout=1))


class Library(Loaders, max_concurrent_batches=1):
    """Loaders that load from one another, with one session between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.busy = 0

    async def query(self) -> None:
        await self.world.io(0.002)

    @dataloader(timeout=30)
    async def books(self, keys: list[int]) -> list[str]:
        await self.query()
        authors = await self.authors.load_many([key % 3 for key in keys])
        return [f"v{key} by {author}" for key, author in zip(keys, authors, strict=True)]

    @dataloader(max_batch_size=2, max_concurrent_batches=1)
    async def authors(self, keys: list[int]) -> dict[int, str]:
        await self.query()
        places = await asyncio.gather(*(self.places(upper=True).load(key) for key in keys))
        return {key: f"author {key} of {place}" for key, place in zip(keys, places, strict=True)}

    @dataloader(window=0.001, abandoned="cancel")
    async def places(self, keys: list[int], *, upper: bool = False) -> AsyncIterator[tuple[int, str]]:
        for key in keys:
            await self.query()
            yield key, f"PLACE {key}" if upper else f"place {key}"


def watch_limit(world: World, library: Library) -> None:
    """At the end nobody may hold, lend or wait for a slot."""
    limit = library._limit
    assert limit is not None
    world.expect("slots", lambda: (limit._holders, limit._queue, limit._lenders, limit._asked), (set(), {}, {}, {}))


def book(key: int) -> str:
    return f"v{key} by author {key % 3} of PLACE {key % 3}"


async def nested(world: World) -> None:
    async with Library(world) as library:
        world.offer("close loaders", library.aclose, LoaderClosedError)
        watch_limit(world, library)
        world.expect("endings", lambda: library._ending, set())

        async def request(keys: list[int]) -> list[str]:
            async with Scope() as scope:
                world.offer("close scope", scope.aclose, LoaderClosedError)
                world.offer("clear scope", scope.clear_all)
                watch(world, library.books, library.authors, library.places(upper=True))
                return list(await library.books.load_many(keys))

        async def alone() -> str:
            return f"{await library.places.load(7)} {await library.books.load(1)}"

        world.ask(request([1, 2]), [book(1), book(2)])
        world.ask(request([2, 3, 4]), [book(2), book(3), book(4)])
        world.ask(alone(), f"place 7 {book(1)}")
        await world.answered()
        try:
            world.ask(library.books.load(5), book(5), LoaderClosedError)
        except LoaderClosedError:
            assert library._own.closed
        await asyncio.sleep(0.004)


async def scopes_that_close(world: World) -> None:
    """Whoever holds a scope leaves it while its batches run."""
    library = Library(world)
    world.offer("close loaders", library.aclose, LoaderClosedError)

    async def leaves(seconds: float) -> None:
        async with Scope():
            world.ask(library.books.load(1), book(1), LoaderClosedError)
            world.ask(library.places.load(2), "place 2", LoaderClosedError)
            await asyncio.sleep(seconds)

    for seconds in (0.0, 0.001, 0.005):
        world.ask(leaves(seconds), None, LoaderClosedError)
    await asyncio.sleep(0)
    await world.answered()
    await library.aclose()
    watch_limit(world, library)


SCRIPTS = (
    coroutine,
    mapping_in_a_window,
    generator,
    generator_that_repeats_itself,
    abandoned,
    in_threads,
    nested,
    scopes_that_close,
)
