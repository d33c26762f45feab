"""A PostgreSQL schema of a test's own: made before it, dropped after it.

Import the fixture `postgres` where it is wanted. Where no server answers, the test is skipped and says why; on a
continuous-integration machine (`CI=true`) it fails instead: there a missing server is a mistake, not a circumstance.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]  # it brings no types
import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine

SERVER = make_url("postgresql+asyncpg://postgres@127.0.0.1:5432/test")
TIMEOUT = 10


@dataclass(frozen=True)
class Schema:
    """A schema that exists, on a server that answers."""

    server: URL
    name: str

    def engine(self, **options: Any) -> AsyncEngine:
        """An engine whose tables are made in this schema; the caller disposes of it."""
        return create_async_engine(self.server, connect_args={"server_settings": {"search_path": self.name}}, **options)


@contextmanager
def schema_on(server: URL) -> Iterator[Schema]:
    """Make a schema on `server` and drop it with all that it holds; skip, or in CI fail, if there is no server."""
    schema = Schema(server, f"test_{uuid4().hex}")
    _execute_or_skip(server, f"CREATE SCHEMA {schema.name}")
    try:
        yield schema
    finally:
        asyncio.run(_execute(server, f"DROP SCHEMA {schema.name} CASCADE"))


@contextmanager
def database_on(server: URL, *, template: str = "template1") -> Iterator[URL]:
    """Make a database, empty or as `template` is, and drop it; skip, or in CI fail, if there is no server."""
    name = f"test_{uuid4().hex}"
    _execute_or_skip(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server.set(database=name)
    finally:
        asyncio.run(_execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def postgres() -> Iterator[Schema]:
    with schema_on(SERVER) as schema:
        yield schema


def _execute_or_skip(server: URL, statement: str) -> None:
    try:
        asyncio.run(_execute(server, statement))
    except (OSError, asyncpg.PostgresError) as error:
        reason = f"no PostgreSQL at {server}: {error!r}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


async def _execute(server: URL, statement: str) -> None:
    address = server.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(address, timeout=TIMEOUT)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
