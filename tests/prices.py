"""A market whose price changes all the time, behind a loader: what is read from a cache is wrong, and shows.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import strawberry
from strawberry.schema.config import StrawberryConfig

from loader import Loaders, dataloader
from loader.strawberry import LoaderExtension, install, relation
from tests.serving import PATIENCE, post

Info = strawberry.Info[Any, None]


class Market:
    """The price of everything; `batches` has the keys of each call."""

    def __init__(self) -> None:
        self.price = 100
        self.batches: list[list[str]] = []


class Prices(Loaders):
    def __init__(self, market: Market) -> None:
        self.market = market

    @dataloader
    async def prices(self, names: list[str]) -> list[int]:
        self.market.batches.append(list(names))
        price = self.market.price
        await asyncio.sleep(0)
        return [price for _ in names]


def loaders_of(info: Info) -> Prices:
    """The loaders in a context that is a dict or an object."""
    context = info.context
    loaders: Prices = context["loaders"] if isinstance(context, dict) else context.loaders
    return loaders


@strawberry.type
class Quote:
    name: str
    seen: int = 0
    related: int = relation(Prices.prices, "name")

    @strawberry.field
    async def price(self, info: Info) -> int:
        return await loaders_of(info).prices.load(self.name)


@strawberry.type
class Query:
    @strawberry.field
    def quote(self, name: str = "apple") -> Quote:
        return Quote(name=name)

    @strawberry.field
    def quotes(self) -> list[Quote]:
        return [Quote(name="apple"), Quote(name="pear")]


@strawberry.type
class Mutation:
    @strawberry.mutation
    def rise(self, info: Info, by: int = 1) -> Quote:
        loaders_of(info).market.price += by
        return Quote(name="apple")


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def quotes(self, info: Info) -> AsyncGenerator[Quote, None]:
        """Three events, before each of which the price changes; the source has asked for it before the first."""
        market = loaders_of(info).market
        assert await loaders_of(info).prices.load("apple") == market.price
        for _ in range(3):
            market.price += 1
            yield Quote(name="apple", seen=await loaders_of(info).prices.load("apple"))

    @strawberry.subscription
    async def changes(self, info: Info) -> AsyncGenerator[int, None]:
        """The source looks again and again, and yields when it sees a change: three times."""
        market = loaders_of(info).market
        last = await loaders_of(info).prices.load("apple")
        for _ in range(3):
            market.price += 1
            # To look again and again is the point.
            while (price := await loaders_of(info).prices.load("apple")) == last:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            yield price
            last = price

    @strawberry.subscription
    async def polled(self, info: Info) -> AsyncGenerator[int, None]:
        """The same, but a task looks, and the source waits for what it tells."""
        market, prices = loaders_of(info).market, loaders_of(info).prices
        changed: asyncio.Queue[int] = asyncio.Queue()

        async def poll(last: int) -> None:
            for _ in range(3):
                market.price += 1
                while (price := await prices.load("apple")) == last:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                changed.put_nowait(price)
                last = price

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(poll(await prices.load("apple")))
            for _ in range(3):
                yield await changed.get()


EVENTS = "subscription { quotes { seen price related } }"


def by_install(**options: Any) -> strawberry.Schema:
    schema = strawberry.Schema(Query, Mutation, Subscription, **options)
    install(schema, loaders=Prices)
    return schema


def by_extension(**options: Any) -> strawberry.Schema:
    return strawberry.Schema(Query, Mutation, Subscription, extensions=[LoaderExtension], **options)


SCHEMAS: dict[str, Callable[..., strawberry.Schema]] = {"install": by_install, "extension": by_extension}
INCREMENTAL = StrawberryConfig(enable_experimental_incremental_execution=True)


async def see_fresh_events(payloads: AsyncIterator[Any], first: int = 101) -> None:
    """Each event, and the source before it, has the price of its moment."""
    async with asyncio.timeout(PATIENCE):
        seen = [payload["data"]["quotes"] async for payload in payloads]
    assert seen == [{"seen": price, "price": price, "related": price} for price in range(first, first + 3)]


async def see_fresh_answers(market: Market, address: str, *, path: str = "/graphql") -> None:
    """Over HTTP a query has the price of its moment, and so has each root field of a mutation."""
    market.price = 999
    assert (await post(address, "{ quote { price related } }", path=path)).json()["data"] == {
        "quote": {"price": 999, "related": 999}
    }
    response = await post(
        address, "mutation { a: rise { price related } b: rise(by: 10) { price related } }", path=path
    )
    assert response.json()["data"] == {"a": {"price": 1000, "related": 1000}, "b": {"price": 1010, "related": 1010}}
