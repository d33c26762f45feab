"""Scripts of the wiring to Strawberry: every kind of operation, over the schema and over ASGI apps.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import strawberry
from fastapi import FastAPI
from starlette.requests import Request
from strawberry import relay
from strawberry.extensions import FieldExtension
from strawberry.fastapi import GraphQLRouter
from strawberry.types import ExecutionResult

from loader import LoaderClosedError, Loaders, Scope, dataloader
from loader.strawberry import install, relation
from loader.strawberry.asgi import GraphQL
from loader.strawberry.fastapi import context_getter
from tests.answers import INCREMENTAL
from tests.explorer.world import World
from tests.serving import call

Info = strawberry.Info[dict[str, Any], None]


class Shop(Loaders, max_concurrent_batches=2):
    def __init__(self, world: World) -> None:
        self.world = world
        self.running = 0
        world.expect("slots", lambda: (self._limit._holders, self._limit._queue), (set(), {}))  # type: ignore[union-attr]

    @dataloader
    async def names(self, ids: list[int]) -> dict[int, str]:
        self.running += 1
        try:
            await self.world.io(0.001)
        finally:
            try:
                await self.world.io(0.0005)
            finally:
                self.running -= 1
        return {key: f"name {key}" for key in ids}

    @dataloader
    async def authors(self, ids: list[int]) -> dict[int, "Author"]:
        names = await self.names.load_many(ids)
        return {key: Author(id=key, name=name) for key, name in zip(ids, names, strict=True)}

    @dataloader(timeout=1)
    async def writings(self, ids: list[int]) -> list[list["Book"]]:
        await self.world.io(0.001)
        return [[Book(id=key * 10 + n, author_id=key) for n in range(2)] for key in ids]

    @dataloader
    async def notes(self, ids: list[int]) -> list["Note"]:
        """Each has a text that is still to come, which shows only when it is looked at."""
        await self.world.io(0.001)
        return [Note(author_id=key, text=self.names.load(key)) for key in ids]  # type: ignore[arg-type]  # a future


class Loudly(FieldExtension):
    """Works on the value, later."""

    async def resolve_async(self, next_: Any, source: Any, info: Any, **kwargs: Any) -> Any:
        return (await next_(source, info, **kwargs)).upper()


@strawberry.type
class Author(relay.Node):
    id: relay.NodeID[int]
    name: str
    writings: relay.ListConnection["Book"] = relation(Shop.writings, "id")
    books: list["Book"] = relation(Shop.writings, "id")


@strawberry.type
class Note:
    text: str
    author_id: strawberry.Private[int]
    author: Author = relation(Shop.authors, "author_id")


@strawberry.type
class Book(relay.Node):
    id: relay.NodeID[int]
    author_id: strawberry.Private[int]
    author: Author = relation(Shop.authors, "author_id")
    note: Note = relation(Shop.notes, "id")

    @strawberry.field
    async def title(self, info: Info) -> str:
        title: str = await info.context["loaders"].names.load(self.id)
        return title

    @strawberry.field(extensions=[Loudly()])  # type: ignore[untyped-decorator]  # with extensions it is
    def shout(self, info: Info) -> str:
        return info.context["loaders"].names.load(self.id)  # type: ignore[no-any-return]  # a future, which is awaited


class SourceError(Exception):
    """What a source of items ends with."""


@strawberry.type
class Query:
    @strawberry.field
    def books(self) -> list[Book]:
        return [Book(id=1, author_id=1), Book(id=2, author_id=2), Book(id=3, author_id=1)]

    @strawberry.field
    def book(self) -> Book:
        return Book(id=1, author_id=1)

    @strawberry.field
    async def later(self, info: Info) -> strawberry.Streamable[Book]:
        for key in (1, 2):
            await info.context["loaders"].names.load(key)
            yield Book(id=key, author_id=key)

    @strawberry.field
    async def failing(self) -> strawberry.Streamable[Book]:
        for key in (1, 2):
            yield Book(id=key, author_id=key)
        raise SourceError


@strawberry.type
class Mutation:
    @strawberry.mutation
    async def write(self, info: Info, id: int) -> Book:  # noqa: A002  # what a key is called
        await info.context["loaders"].world.io(0.001, in_batch=False)
        return Book(id=id, author_id=1)


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def books(self, info: Info) -> AsyncGenerator[Book, None]:
        shop: Shop = info.context["loaders"]
        try:
            for key in (1, 2):
                await shop.names.load(key)
                yield Book(id=key, author_id=key)
                await shop.world.io(0.001, in_batch=False)
        finally:
            await shop.world.io(0.001, in_batch=False)


def made(**options: Any) -> strawberry.Schema:
    schema = strawberry.Schema(Query, Mutation, Subscription, config=INCREMENTAL)
    install(schema, loaders=Shop, **options)
    return schema


planned, plain, early = made(), made(plan=False), made(early_execution=True)

RELATIONS = "{ books { title author { name books { author { name } } } } }"
RELATIONS_DATA = {
    "books": [
        {
            "title": f"name {key}",
            "author": {"name": f"name {author}", "books": [{"author": {"name": f"name {author}"}}] * 2},
        }
        for key, author in ((1, 1), (2, 2), (3, 1))
    ]
}
PLANNED = "{ books { author { name writings(first: 1) { edges { node { author { name } } } } } } }"
PLANNED_DATA = {
    "books": [
        {"author": {"name": f"name {key}", "writings": {"edges": [{"node": {"author": {"name": f"name {key}"}}}]}}}
        for key in (1, 2, 1)
    ]
}
SURPRISE = "{ books { note { text author { name } } } }"
SURPRISE_DATA = {"books": [{"note": {"text": f"name {key}", "author": {"name": f"name {key}"}}} for key in (1, 2, 3)]}
SINGLE = "{ book { shout author { writings(first: 1) { edges { node { title } } } } } }"
SINGLE_DATA = {"book": {"shout": "NAME 1", "author": {"writings": {"edges": [{"node": {"title": "name 10"}}]}}}}
MUTATION = "mutation { a: write(id: 1) { author { name } } b: write(id: 2) { title } }"
MUTATION_DATA = {"a": {"author": {"name": "name 1"}}, "b": {"title": "name 2"}}
EVENTS = "subscription { books { title author { name } } }"
EVENTS_DATA = [{"books": {"title": f"name {key}", "author": {"name": f"name {key}"}}} for key in (1, 2)]


def judged(world: World, data: Any, errors: Any, expected: Any) -> None:
    """Raise the errors of a response, one that no fault permits first; without any, the data must be right."""
    originals = [error.original_error or error for error in errors or ()]
    for error in sorted(originals, key=lambda error: isinstance(error, world.permitted)):
        raise error
    assert data == expected, data


async def execute(world: World, schema: strawberry.Schema, query: str, expected: Any) -> bool:
    async with Shop(world) as shop:
        result: Any = await schema.execute(query, context_value={"loaders": shop})
        judged(world, result.data, result.errors, expected)
    assert Scope.current() is None
    return True


def serve(world: World, schema: strawberry.Schema, queries: dict[str, Any]) -> None:
    for query, data in queries.items():
        world.ask(execute(world, schema, query, data), True)


async def queries(world: World) -> None:
    serve(world, planned, {RELATIONS: RELATIONS_DATA, SINGLE: SINGLE_DATA})
    await world.answered()


async def planned_queries(world: World) -> None:
    async with Shop(world) as shop:
        world.offer("close loaders", shop.aclose, LoaderClosedError)

        async def shared() -> bool:
            result = await planned.execute(PLANNED, context_value={"loaders": shop})
            judged(world, result.data, result.errors, PLANNED_DATA)
            return True

        world.ask(shared(), True)
        world.ask(shared(), True)
        await world.answered()


async def unplanned_queries(world: World) -> None:
    serve(world, plain, {PLANNED: PLANNED_DATA})
    await world.answered()


async def surprises(world: World) -> None:
    serve(world, planned, {SURPRISE: SURPRISE_DATA})
    await world.answered()


async def mutations(world: World) -> None:
    serve(world, planned, {MUTATION: MUTATION_DATA})
    await world.answered()


async def subscriptions(world: World) -> None:
    async def follow() -> bool:
        async with Shop(world) as shop:
            world.offer("close loaders", shop.aclose, LoaderClosedError)
            count = 0
            events: Any = await planned.subscribe(EVENTS, context_value={"loaders": shop})
            async with aclosing(events):
                async for event in events:
                    judged(world, [event.data], event.errors, EVENTS_DATA[count : count + 1])
                    count += 1
        return count == len(EVENTS_DATA)

    async def leaves() -> None:
        async with asyncio.timeout(0.0025):
            await follow()

    world.ask(follow(), True)
    world.ask(leaves(), None, TimeoutError)
    await world.answered()


PARTS = "{ books @stream(initialCount: 1) { title ... @defer { author { name } } } later @stream { title } }"


async def in_parts(
    world: World, schema: strawberry.Schema, query: str = PARTS, names: int = 8, *permitted: type[Exception]
) -> None:
    async def receive() -> int:
        """How many names came."""
        async with Shop(world) as shop:
            result: Any = await schema.execute(query, context_value={"loaders": shop})
            if isinstance(result, ExecutionResult):
                judged(world, result.data, result.errors, None)
            parts = [result.initial_result]
            async with aclosing(result.subsequent_results):
                async for part in result.subsequent_results:
                    failed = [
                        error
                        for each in (*(part.incremental or ()), *(part.completed or ()))
                        for error in each.errors or ()
                    ]
                    judged(world, None, failed, None)
                    parts.append(
                        [
                            each.to_dict() if hasattr(each, "to_dict") else each.formatted
                            for each in part.incremental or ()
                        ]
                    )
            judged(world, None, result.initial_result.errors, None)
        return str([parts[0].data, parts[1:]]).count("name ")

    world.lost_with_a_task += (RuntimeError,)  # a stream says that its source was cancelled
    world.ask(receive(), names, *permitted)
    await world.answered()


async def parts_as_they_come(world: World) -> None:
    await in_parts(world, planned)


async def parts_early(world: World) -> None:
    await in_parts(world, early)


async def parts_of_a_source_that_fails(world: World) -> None:
    await in_parts(world, early, "{ failing @stream { title } }", 2, SourceError)


present: ContextVar[World] = ContextVar("present")
"""The world of the request: the apps serve one after the other."""


async def generate(request: Request) -> AsyncIterator[Shop]:
    """A factory of loaders that opens and closes something."""
    world = present.get()
    await world.io(0.001, in_batch=False)
    opened = Counter(["open"])
    world.expect("open shops", lambda: opened, Counter(["open", "closed"]))
    shop = Shop(world)
    try:
        yield shop
    finally:
        assert not shop.running or world.permitted, "what the batches work with is closed before they have ended"
        try:
            await world.io(0.001, in_batch=False)
        finally:
            opened["closed"] += 1


async def make(request: Request) -> Shop:
    """A factory of loaders that waits for something."""
    await present.get().io(0.001, in_batch=False)
    return Shop(present.get())


async def generate_twice(request: Request) -> AsyncIterator[Shop]:
    """A factory with a fault, which is closed and may take its time."""
    world = present.get()
    try:
        yield Shop(world)
        yield Shop(world)
    finally:
        await world.io(0.001, in_batch=False)


starlette_app = GraphQL[None](planned, generate)
faulty_app = GraphQL[None](planned, generate_twice)
fastapi_app = FastAPI()
fastapi_app.include_router(GraphQLRouter(planned, context_getter=context_getter(make)), prefix="/graphql")


async def requests(world: World, app: Any) -> None:
    """Requests over ASGI. How an app answers a fault is its own affair, as long as it says that there was one."""
    present.set(world)

    async def post(query: str, expected: Any) -> bool:
        sent: list[Any] = []
        await call(app, query, sent)
        body = json.loads(b"".join(each for each in sent if isinstance(each, bytes)))
        return body.get("data") == expected or ("errors" in body and bool(world.permitted))

    world.ask(post(SINGLE, SINGLE_DATA), True)
    world.ask(post(MUTATION, MUTATION_DATA), True)
    await world.answered()


async def asgi(world: World) -> None:
    await requests(world, starlette_app)


async def asgi_with_a_faulty_factory(world: World) -> None:
    present.set(world)
    world.ask(call(faulty_app, "{ book { title } }", []), None, TypeError)
    await world.answered()


async def fastapi(world: World) -> None:
    await requests(world, fastapi_app)


SCRIPTS = (
    queries,
    planned_queries,
    unplanned_queries,
    surprises,
    mutations,
    subscriptions,
    parts_as_they_come,
    parts_early,
    parts_of_a_source_that_fails,
    asgi,
    asgi_with_a_faulty_factory,
    fastapi,
)
