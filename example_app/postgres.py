"""The database in PostgreSQL: a schema of its own, built in one transaction, one start after the other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg  # type: ignore[import-untyped]  # it brings no types
from sqlalchemy import URL, Connection, NullPool, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from example_app import build, models
from example_app.build import VARIABLE, UnusableDatabaseError, bad_url
from example_app.database import CONNECT_SECONDS, SCHEMA, engine_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy.ext.asyncio import AsyncConnection

OURS = "The demo of strawberry-loader, which replaces this when its data change: "
"""What the comment of our schema begins with, before the stamp: no other schema is replaced."""

BUILDING, SERVING = (int.from_bytes(b"NYC" + letter) for letter in (b"B", b"S"))
"""The advisory locks of a build, and of the servers."""


def prepare(chosen: str) -> URL:
    """The URL, when the data are there; they are built first if there are none, or broken or outdated ones.

    Raises:
        UnusableDatabaseError: If there are none, and none can be made.
    """
    url = build.parsed(chosen)
    if url.drivername != "postgresql+asyncpg" or not url.database or url.query:
        raise bad_url(chosen)
    with _in_one_line(url):
        asyncio.run(_prepare(url))
    return url


@contextmanager
def attached(url: URL) -> Iterator[None]:
    """See `build.attached`. A connection that stays open holds a lock that says that a server is there."""
    with asyncio.Runner() as runner:
        attachment = _attached(url)
        with _in_one_line(url):
            runner.run(attachment.__aenter__())
        try:
            yield
        finally:
            runner.run(attachment.__aexit__(None, None, None))


async def _prepare(url: URL) -> None:
    async with _connected(url) as connection:
        raw: Any = (await connection.get_raw_connection()).driver_connection
        building = asyncio.create_task(_prepare_over(connection, url))
        try:
            await asyncio.shield(building)
        except asyncio.CancelledError:
            # A connection of asyncpg's whose executemany is cancelled while it sends cannot be closed: it is cut off.
            raw.terminate()
            building.cancel()
            await asyncio.gather(building, return_exceptions=True)
            raise


async def _prepare_over(connection: AsyncConnection, url: URL) -> None:
    async with connection.begin():
        # The lock ends with the transaction, and what a killed process had done in it is as if it had never been.
        if not await connection.scalar(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": BUILDING}):
            build.say_that_we_wait(url.render_as_string())
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": BUILDING})
        await connection.run_sync(_build_unless_usable, url)


def _build_unless_usable(connection: Connection, url: URL) -> None:
    query = text("SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = :name")
    comments = list(connection.scalars(query, {"name": SCHEMA}))
    if comments and not (comments[0] or "").startswith(OURS):
        raise UnusableDatabaseError(
            f"the schema {SCHEMA} of the database {url.database} is not of this demo and is left alone: "
            f"rename it, or name another database in {VARIABLE}"
        )
    tables = set(inspect(connection).get_table_names(SCHEMA)) if comments else set()
    if tables >= set(models.Base.metadata.tables) and comments == [f"{OURS}{build.stamp(connection)}"]:
        return
    with build.progress(url.render_as_string()):
        connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
        build.fill(connection)
        connection.exec_driver_sql(f"COMMENT ON SCHEMA {SCHEMA} IS '{OURS}{build.stamp(connection)}'")


@asynccontextmanager
async def _attached(url: URL) -> AsyncIterator[None]:
    async with _connected(url) as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        alone = await connection.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": SERVING})
        if alone:
            await connection.run_sync(build.undo_delays)
        await connection.execute(text("SELECT pg_advisory_lock_shared(:lock)"), {"lock": SERVING})
        if alone:
            await connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": SERVING})
        yield


@asynccontextmanager
async def _connected(url: URL) -> AsyncIterator[AsyncConnection]:
    engine = engine_for(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


@contextmanager
def _in_one_line(url: URL) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise UnusableDatabaseError(
            f"cannot use {url.render_as_string()}: no PostgreSQL answered there within {CONNECT_SECONDS} s"
        ) from error
    except (OSError, SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        reason = getattr(error, "orig", None) or error
        raise UnusableDatabaseError(
            f"cannot use {url.render_as_string()} ({str(reason) or type(reason).__name__}): start the server, "
            f"create the database or permit its use, or name another in {VARIABLE}"
        ) from error
