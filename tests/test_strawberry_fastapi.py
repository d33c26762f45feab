"""The context getter for FastAPI: a dependency like any other, with dependencies of its own.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pytest
import strawberry
from fastapi import Depends, FastAPI, Header
from starlette.requests import HTTPConnection, Request
from strawberry.fastapi import BaseContext, GraphQLRouter

from loader import Loaders, dataloader
from loader.strawberry import install
from loader.strawberry.fastapi import context_getter
from tests import annotated
from tests.serving import LEGACY_WS, PROTOCOLS, SSE, TRANSPORT_WS, Server, connect, in_process, post, stream

Info = strawberry.Info[Any, None]


class Names(Loaders):
    def __init__(self, prefix: str = "name") -> None:
        self.prefix = prefix
        self.running = asyncio.Event()
        self.log: list[str] = []

    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        await asyncio.sleep(0)
        return [f"{self.prefix} {n}" for n in ids]

    @dataloader
    async def forever(self, ids: list[int]) -> list[str]:
        self.running.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.log.append("batch ended")
        return []


class Plain(Loaders):
    """Without a constructor."""

    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        return [f"plain {n}" for n in ids]


@strawberry.type
class Query:
    @strawberry.field
    async def name(self, info: Info) -> str:
        name: str = await info.context["loaders"].names.load(1)
        return name

    @strawberry.field
    def user(self, info: Info) -> str:
        return str(info.context["user"])

    @strawberry.field
    async def forever(self, info: Info) -> str:
        name: str = await info.context["loaders"].forever.load(1)
        return name


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def names(self, info: Info) -> AsyncGenerator[str, None]:
        yield await info.context["loaders"].names.load(1)
        yield await info.context["loaders"].forever.load(1)


schema = strawberry.Schema(Query, subscription=Subscription)
install(schema)


def app_of(getter: Any, schema: strawberry.Schema = schema) -> FastAPI:
    app = FastAPI()
    router = GraphQLRouter[Any, Any](schema, context_getter=getter, subscription_protocols=PROTOCOLS)
    app.include_router(router, prefix="/graphql")
    return app


async def ask(getter: Any, schema: strawberry.Schema = schema, *, prefix: str = "mine") -> Any:
    async with in_process(app_of(getter, schema)) as client:
        response = await client.post("/graphql?tenant=query", json={"query": "{ name }"}, headers={"x-prefix": prefix})
    assert response.status_code == 200, response.text
    return response.json()["data"]["name"]


# Dependencies


async def prefix_of(x_prefix: Annotated[str, Header()] = "header") -> str:
    return x_prefix


async def opened(prefix: Annotated[str, Depends(prefix_of)]) -> AsyncIterator[str]:
    yield f"opened {prefix}"


def bare(request):  # type: ignore[no-untyped-def]  # as in a first try
    return Names(type(request).__name__)


def bare_with_dependency(prefix=Depends(prefix_of)):  # type: ignore[no-untyped-def]  # noqa: B008  # FastAPI's older way
    return Names(prefix)


def bare_with_default(tenant="default"):  # type: ignore[no-untyped-def]
    return Names(tenant)


def of_request(request: Request) -> Names:
    return Names(request.url.path)


def of_connection(connection: HTTPConnection, prefix: Annotated[str, Depends(prefix_of)]) -> Names:
    return Names(f"{connection.url.path} {prefix}")


async def of_dependency(prefix: Annotated[str, Depends(opened)]) -> Names:
    return Names(prefix)


async def generated(prefix: str = Depends(opened)) -> AsyncIterator[Names]:
    yield Names(prefix)


def of_anything(*arguments: Any, tenant: str, **named: Any) -> Names:
    assert (arguments, named) == ((), {})
    return Names(tenant)


def of_two(prefix: str, tenant: str) -> Names:
    return Names(f"{prefix} {tenant}")


class OfDependency(Names):
    def __init__(self, prefix: Annotated[str, Depends(prefix_of)]) -> None:
        super().__init__(prefix)


class Maker:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    async def __call__(self, tenant: str) -> Names:
        return Names(f"{self.prefix} {tenant}")


MAKERS: dict[str, tuple[Any, str]] = {
    "no parameter": (lambda: Names(), "name 1"),
    "a bare parameter": (bare, "Request 1"),
    "a bare parameter with a dependency": (bare_with_dependency, "mine 1"),
    "a bare parameter with a default": (bare_with_default, "query 1"),
    "the request": (of_request, "/graphql 1"),
    "the connection and a dependency": (of_connection, "/graphql mine 1"),
    "a dependency with a dependency": (of_dependency, "opened mine 1"),
    "a generator function with one": (generated, "opened mine 1"),
    "a query parameter, and whatever comes": (of_anything, "query 1"),
    "a class": (OfDependency, "mine 1"),
    "a class without a constructor": (Plain, "plain 1"),
    "a partial": (partial(of_two, "part"), "part query 1"),
    "an object": (Maker("object"), "object query 1"),
    "annotations that are strings": (annotated.make_loaders, "/graphql mine 1"),
}


@pytest.mark.parametrize("maker", MAKERS)
async def test_parameters_are_those_of_a_dependency(maker: str) -> None:
    make_loaders, name = MAKERS[maker]
    assert await ask(context_getter(make_loaders)) == name


@pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])
@pytest.mark.real_time
async def test_over_a_websocket_the_parameter_is_the_websocket(protocol: str) -> None:
    async with Server(app_of(context_getter(bare))) as server, connect(server.address, protocol) as client:
        await client.start("1", "subscription { names }")
        assert await client.get("1") == ("next", {"data": {"names": "WebSocket 1"}})


async def test_the_context_may_be_an_object() -> None:
    class Context(BaseContext):
        def __init__(self, loaders: Names) -> None:
            super().__init__()
            self.loaders = loaders

    get_base = context_getter(of_dependency)

    async def get_context(base: Annotated[dict[str, Any], Depends(get_base)]) -> Context:
        return Context(base["loaders"])

    @strawberry.type
    class Attributes:
        @strawberry.field
        async def name(self, info: strawberry.Info[Context, None]) -> str:
            assert info.context.request is not None
            return await info.context.loaders.names.load(1)

    attributes = strawberry.Schema(Attributes)
    install(attributes)
    assert await ask(get_context, attributes) == "opened mine 1"


@dataclass(frozen=True)
class Frozen(Loaders):
    prefix: str

    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        return [f"{self.prefix} {n}" for n in ids]


async def test_loaders_may_be_a_dataclass() -> None:
    assert await ask(context_getter(lambda: Frozen("frozen"))) == "frozen 1"


async def not_loaders() -> AsyncIterator[Any]:
    yield [Names()]


@pytest.mark.parametrize("make_loaders", [lambda: None, not_loaders])
async def test_what_makes_no_loaders_is_told_so(make_loaders: Any) -> None:
    async with in_process(app_of(context_getter(make_loaders))) as client:
        with pytest.raises(TypeError, match="make_loaders must return, or yield once"):
            await client.post("/graphql", json={"query": "{ name }"})


# Closing


class Resources:
    def __init__(self) -> None:
        self.loaders = Names()
        self.closed = asyncio.Event()

    @property
    def log(self) -> list[str]:
        return self.loaders.log

    async def make(self) -> AsyncIterator[Names]:
        try:
            yield self.loaders
        except BaseException as error:
            self.log.append(f"after {type(error).__name__}")
            raise
        finally:
            self.log.append("closed")
            self.closed.set()


@pytest.mark.real_time
async def test_loaders_are_closed_after_the_response() -> None:
    resources = Resources()
    async with Server(app_of(context_getter(resources.make))) as server:
        response = await post(server.address, "{ name }")
        assert response.json() == {"data": {"name": "name 1"}}
        await resources.closed.wait()
    assert resources.log == ["closed"]


@pytest.mark.real_time
async def test_a_client_that_leaves_a_stream() -> None:
    resources = Resources()
    async with Server(app_of(context_getter(resources.make))) as server:
        async with stream(server.address, "subscription { names }", SSE) as payloads:
            assert await anext(payloads) == {"data": {"names": "name 1"}}
            await resources.loaders.running.wait()
            assert resources.log == []
        await resources.closed.wait()
    assert resources.log == ["batch ended", "closed"]


@pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])
@pytest.mark.real_time
async def test_a_websocket_that_ends(protocol: str) -> None:
    resources = Resources()
    async with Server(app_of(context_getter(resources.make))) as server:
        async with connect(server.address, protocol) as client:
            await client.start("1", "subscription { names }")
            await resources.loaders.running.wait()
            assert await client.get("1") == ("next", {"data": {"names": "name 1"}})
            assert resources.log == []
        await resources.closed.wait()
    assert resources.log == ["batch ended", "closed"]


async def test_a_request_that_is_cancelled() -> None:
    resources = Resources()
    async with in_process(app_of(context_getter(resources.make))) as client:
        request = asyncio.create_task(client.post("/graphql", json={"query": "{ forever }"}))
        await resources.loaders.running.wait()
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()
    assert resources.log == ["batch ended", "after CancelledError", "closed"]


async def test_a_getter_of_ones_own_may_depend_on_it_and_add_to_the_context() -> None:
    resources = Resources()

    async def get_context(
        context: Annotated[dict[str, Any], Depends(context_getter(resources.make))],
        user: Annotated[str, Header()] = "nobody",
    ) -> dict[str, Any]:
        return {**context, "user": user}

    async with in_process(app_of(get_context)) as client:
        response = await client.post("/graphql", json={"query": "{ name user }"}, headers={"user": "ada"})
    assert response.json()["data"] == {"name": "name 1", "user": "ada"}
    assert resources.log[-1] == "closed"


def test_what_cannot_make_loaders_is_refused_when_the_getter_is_made() -> None:
    def yields(request: Any) -> Iterator[Loaders]:
        yield Loaders()

    def by_position(request: Any, /) -> Loaders:
        return Loaders()

    nothing: Any
    for nothing, message in (
        (None, "make_loaders is a function that makes the loaders of a request, not None"),
        (Loaders(), "make_loaders is a function that makes the loaders of a request"),
        (yields, "make_loaders yields, so it has to be async"),
        (by_position, "make_loaders gets its parameters by name, so 'request' must not be positional-only"),
    ):
        with pytest.raises(TypeError, match=message):
            context_getter(nothing)
