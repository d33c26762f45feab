"""The price experiment under every view: what keeps answers fresh is in the schema and knows no framework.

There is no `from __future__ import annotations` here: frameworks read the annotations of what they call.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp.test_utils
import aiohttp.web
import channels.routing  # type: ignore[import-untyped,unused-ignore]  # it has no types
import django  # type: ignore[import-untyped,unused-ignore]  # it has no types
import django.urls  # type: ignore[import-untyped,unused-ignore]  # as above
import pytest
import strawberry
from django.conf import settings  # type: ignore[import-untyped,unused-ignore]  # as above
from django.core.asgi import get_asgi_application  # type: ignore[import-untyped,unused-ignore]  # as above
from fastapi import FastAPI
from litestar import Litestar
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount
from strawberry.aiohttp.views import GraphQLView as AiohttpView
from strawberry.asgi import GraphQL
from strawberry.channels import GraphQLHTTPConsumer, GraphQLWSConsumer
from strawberry.django.context import StrawberryDjangoContext
from strawberry.django.views import AsyncGraphQLView
from strawberry.fastapi import GraphQLRouter
from strawberry.litestar import make_graphql_controller

from loader.strawberry.fastapi import context_getter
from tests.prices import EVENTS, SCHEMAS, Market, Prices, see_fresh_answers, see_fresh_events
from tests.serving import LEGACY_WS, MULTIPART, PROTOCOLS, SSE, TRANSPORT_WS, Server, connect, subscribed

View = Callable[[strawberry.Schema, Market], AbstractAsyncContextManager[str]]
Schema = strawberry.Schema


@asynccontextmanager
async def bare(schema: Schema, market: Market) -> AsyncIterator[str]:
    """Strawberry's own app, with a context that its user makes."""

    class App(GraphQL[Any, Any]):
        async def get_context(self, request: Any, response: Any) -> Any:
            return {"loaders": Prices(market)}

    async with Server(App(schema, subscription_protocols=PROTOCOLS)) as server:
        yield server.address


@asynccontextmanager
async def behind_middleware(schema: Schema, market: Market) -> AsyncIterator[str]:
    """Behind a middleware that runs the app in a task of its own."""

    class App(GraphQL[Any, Any]):
        async def get_context(self, request: Any, response: Any) -> Any:
            return {"loaders": Prices(market)}

    async def pass_on(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    app = Starlette(
        routes=[Mount("/graphql", App(schema, subscription_protocols=PROTOCOLS))],
        middleware=[Middleware(BaseHTTPMiddleware, dispatch=pass_on)],
    )
    async with Server(app) as server:
        yield server.address


@asynccontextmanager
async def fastapi(schema: Schema, market: Market) -> AsyncIterator[str]:
    app = FastAPI()
    getter: Any = context_getter(lambda: Prices(market))
    router = GraphQLRouter[Any, Any](schema, context_getter=getter, subscription_protocols=PROTOCOLS)
    app.include_router(router, prefix="/graphql")
    async with Server(app) as server:
        yield server.address


@asynccontextmanager
async def litestar(schema: Schema, market: Market) -> AsyncIterator[str]:
    async def get_context() -> dict[str, Any]:
        return {"loaders": Prices(market)}

    controller = make_graphql_controller(
        schema, path="/graphql", context_getter=get_context, subscription_protocols=PROTOCOLS
    )
    async with Server(Litestar([controller], openapi_config=None, logging_config=None)) as server:
        yield server.address


@asynccontextmanager
async def aiohttp_(schema: Schema, market: Market) -> AsyncIterator[str]:
    class App(AiohttpView[Any, Any]):
        async def get_context(self, request: Any, response: Any) -> Any:
            return {"loaders": Prices(market)}

    app = aiohttp.web.Application()
    app.router.add_route("*", "/graphql", App(schema=schema, subscription_protocols=PROTOCOLS))
    async with aiohttp.test_utils.TestServer(app) as server:
        yield f"{server.host}:{server.port}"


class DjangoContext(StrawberryDjangoContext):
    """Has the loaders as an attribute."""

    loaders: Prices


class DjangoView(AsyncGraphQLView[Any, Any]):
    market: Market = Market()

    async def get_context(self, request: Any, response: Any) -> Any:
        context = DjangoContext(request=request, response=response)
        context.loaders = Prices(self.market)
        return context


class Urls:
    """The URLs of the test that runs."""

    urlpatterns: list[Any] = []  # noqa: RUF012  # Django's name and kind


settings.configure(ROOT_URLCONF=Urls, ALLOWED_HOSTS=["*"], MIDDLEWARE=[], SECRET_KEY="not one")  # noqa: S106
django.setup(set_prefix=False)


@asynccontextmanager
async def django_(schema: Schema, market: Market) -> AsyncIterator[str]:
    Urls.urlpatterns = [
        django.urls.path("graphql", DjangoView.as_view(schema=schema, market=market, subscription_protocols=PROTOCOLS))
    ]
    django.urls.clear_url_caches()
    async with Server(get_asgi_application()) as server:
        yield server.address


@asynccontextmanager
async def channels_(schema: Schema, market: Market) -> AsyncIterator[str]:
    async def get_context(self: Any, request: Any, response: Any) -> Any:
        return {"loaders": Prices(market)}

    consumers: dict[str, Any] = {"http": GraphQLHTTPConsumer, "websocket": GraphQLWSConsumer}
    apps = {
        kind: type(kind, (consumer,), {"get_context": get_context}).as_asgi(  # type: ignore[attr-defined]  # made here
            schema=schema, subscription_protocols=PROTOCOLS
        )
        for kind, consumer in consumers.items()
    }
    app = channels.routing.ProtocolTypeRouter(apps)
    async with Server(app) as server:
        yield server.address


VIEWS: dict[str, tuple[View, tuple[str, ...]]] = {
    "bare": (bare, (TRANSPORT_WS, LEGACY_WS, SSE, MULTIPART)),
    "behind middleware": (behind_middleware, (TRANSPORT_WS, LEGACY_WS, SSE, MULTIPART)),
    "fastapi": (fastapi, (TRANSPORT_WS, LEGACY_WS, SSE, MULTIPART)),
    "litestar": (litestar, (TRANSPORT_WS, LEGACY_WS, SSE, MULTIPART)),
    "aiohttp": (aiohttp_, (TRANSPORT_WS, LEGACY_WS, SSE, MULTIPART)),
    "django": (django_, (SSE, MULTIPART)),
    "channels": (channels_, (TRANSPORT_WS, LEGACY_WS, SSE, MULTIPART)),
}


@pytest.mark.parametrize("way", SCHEMAS)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.filterwarnings("ignore:.*Inferred dependency field:DeprecationWarning")  # of Litestar, at Strawberry
@pytest.mark.real_time
async def test_nothing_stale_is_read(view: str, way: str) -> None:
    serve, transports = VIEWS[view]
    market = Market()
    path = "/graphql/" if view == "behind middleware" else "/graphql"
    async with serve(SCHEMAS[way](), market) as address:
        await see_fresh_answers(market, address, path=path)
        for transport in transports:
            async with subscribed(address, EVENTS, transport, path=path) as payloads:
                await see_fresh_events(payloads, market.price + 1)
        if TRANSPORT_WS in transports:
            async with connect(address, TRANSPORT_WS, path=path) as client:
                for price in (5, 6):
                    market.price = price
                    assert await client.ask("{ quote { price related } }") == {
                        "data": {"quote": {"price": price, "related": price}}
                    }
