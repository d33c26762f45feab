"""The application: the schema behind `/graphql`, with loaders of its own for each request, and the service for all."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sqlalchemy import NullPool, text
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Mount, Route, WebSocketRoute
from uvicorn.config import STARTUP_FAILURE

from example_app import log
from example_app.build import database_url
from example_app.database import Database, engine_for
from example_app.loaders import AppLoaders
from example_app.metrics import Metrics
from example_app.schema import make_schema
from example_app.service import Service
from example_app.settings import Settings, StartError
from example_app.view import View
from loader import SingleFlight
from loader.inspector import Inspector
from loader.observe import observing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import URL
    from starlette.requests import HTTPConnection, Request

    from example_app.database import Statement

HEALTH_SECONDS = 2


def from_environment() -> Starlette:
    """The application for `uvicorn --factory example_app.app:from_environment`, in one process or in several."""
    try:
        settings = Settings.from_environment()
        # uvicorn calls this on its event loop, and the check of PostgreSQL needs one for itself.
        with ThreadPoolExecutor(1) as elsewhere:
            url = elsewhere.submit(database_url, settings).result()
    except StartError as error:
        print(f"example_app: {error}", file=sys.stderr)
        sys.exit(STARTUP_FAILURE)  # with any other, uvicorn would start a worker again and again
    log.set_up(settings.log)
    return create_app(url, settings)


def create_app(url: URL, settings: Settings | None = None) -> Starlette:
    """The application on a database that is there already (`build.database_url`)."""
    settings = settings or Settings()
    metrics = Metrics()
    inspector = Inspector()  # at /inspector, for the machine that the demo runs on

    def count(statement: Statement) -> None:
        log.count_statement(statement)
        metrics.count_statement(statement)

    database = Database(url, on_statement=count, pool_size=settings.pool_size, pool_seconds=settings.pool_seconds)
    service = Service(database)
    checks = SingleFlight()

    def make_loaders(_: HTTPConnection) -> AppLoaders:
        return AppLoaders(database)

    def home(_: Request) -> RedirectResponse:
        return RedirectResponse("/graphql")

    async def health(_: Request) -> JSONResponse:
        healthy = await checks.do("database", reaches, url)
        shown = {"service": "ok", "database": "ok" if healthy else "cannot be reached"}
        return JSONResponse(shown, 200 if healthy else 503)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with observing(log.CountBatches()), metrics.of_loaders():
            try:
                await service.changes.start()
                yield
            finally:
                await inspector.aclose()
                await service.aclose()

    graphql = View(make_schema(settings), make_loaders, service, settings)
    routes = [
        Route("/", home),
        Route("/health", health),
        Route("/metrics", metrics.show),
        Route("/graphql", graphql),
        WebSocketRoute("/graphql", graphql),
        Mount("/inspector", inspector),
    ]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=sorted(settings.allowed_origins),
        allow_methods=["GET", "POST"],
        allow_headers=["content-type"],
    )
    return Starlette(routes=routes, lifespan=lifespan, middleware=[cors] if settings.allowed_origins else [])


async def reaches(url: URL) -> bool:
    """Whether the database answers, on a connection of its own: a busy pool does not make a service ill."""
    engine = engine_for(url, poolclass=NullPool)
    try:
        async with asyncio.timeout(HEALTH_SECONDS), engine.connect() as connection:
            await connection.execute(text("SELECT 1 FROM flights LIMIT 1"))
    except Exception:  # noqa: BLE001  # whatever keeps it from answering
        return False
    finally:
        await engine.dispose()
    return True
