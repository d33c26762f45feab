"""The service: the schema behind `/graphql`, with loaders of its own for each request."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Route, WebSocketRoute

from example_app.database import Database
from example_app.loaders import AppLoaders
from example_app.schema import schema
from loader.strawberry.asgi import GraphQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import URL
    from starlette.requests import HTTPConnection, Request


def create_app(url: URL) -> Starlette:
    """The application on a database that is there already (`build.database_url`)."""
    database = Database(url)

    def make_loaders(_: HTTPConnection) -> AppLoaders:
        return AppLoaders(database)

    def home(_: Request) -> RedirectResponse:
        return RedirectResponse("/graphql")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await database.aclose()

    graphql: GraphQL[None] = GraphQL(schema, make_loaders, graphql_ide="graphiql")
    routes = [Route("/", home), Route("/graphql", graphql), WebSocketRoute("/graphql", graphql)]
    return Starlette(routes=routes, lifespan=lifespan)
