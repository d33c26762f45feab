"""The application: the schema behind `/graphql`, with loaders of its own for each request, and the service for all."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Route, WebSocketRoute
from strawberry.subscriptions import GRAPHQL_TRANSPORT_WS_PROTOCOL

from example_app.database import Database
from example_app.loaders import AppLoaders
from example_app.schema import schema
from example_app.service import Service
from loader.strawberry.asgi import GraphQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import URL
    from starlette.requests import HTTPConnection, Request


def create_app(url: URL) -> Starlette:
    """The application on a database that is there already (`build.database_url`)."""
    service = Service(Database(url))

    class App(GraphQL[None]):
        async def get_context(self, request: Any, response: Any) -> dict[str, Any]:
            """The context, as `Context` says it."""
            return {**await super().get_context(request, response), "service": service}

    def make_loaders(_: HTTPConnection) -> AppLoaders:
        return AppLoaders(service.database)

    def home(_: Request) -> RedirectResponse:
        return RedirectResponse("/graphql")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            await service.changes.start()
            yield
        finally:
            await service.aclose()

    # The older protocol is left out: its tasks are not waited for when a connection ends.
    graphql = App(schema, make_loaders, graphql_ide="graphiql", subscription_protocols=[GRAPHQL_TRANSPORT_WS_PROTOCOL])
    routes = [Route("/", home), Route("/graphql", graphql), WebSocketRoute("/graphql", graphql)]
    return Starlette(routes=routes, lifespan=lifespan)
