"""Sessions, one for each statement, and a report of what each statement took."""

from __future__ import annotations

import copy
import logging
import time
from asyncio import Semaphore
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphql import GraphQLError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sized
    from typing import Self

    from sqlalchemy import URL

SCHEMA = "strawberry_loader_demo"
"""Where the tables are in PostgreSQL."""

CONNECT_SECONDS = 5
"""How long a PostgreSQL server may take to answer."""

DATA_EXCEPTION = "22"
"""What the SQL standard's codes begin with for a value that cannot be."""

_log = logging.getLogger("example_app")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that was run.

    Attributes:
        source: The loader, or the field, that asked.
        keys: How many keys it asked for; None where it did not ask by key.
        rows: How many rows came.
        seconds: How long it took, from asking for a connection to the last row.
    """

    source: str
    keys: int | None
    rows: int
    seconds: float


def engine_for(url: URL, **options: Any) -> AsyncEngine:
    """An engine whose tables are where the demo has them."""
    if url.drivername.startswith("postgresql"):
        options["connect_args"] = {"server_settings": {"search_path": SCHEMA}, "timeout": CONNECT_SECONDS}
    return create_async_engine(url, **options)


class Database:
    """The pool of connections that all requests share.

    A session serves one statement at a time, and the loaders of a request run side by side: so each statement has
    a session of its own. Its rows are whole, and stay usable after it.

    Args:
        url: An SQLAlchemy URL with an async driver.
        on_statement: Called after each statement.
        pool_size: How many statements run at a time, at most.
        pool_seconds: How long a statement waits for its turn.
    """

    def __init__(
        self,
        url: URL,
        *,
        on_statement: Callable[[Statement], None] | None = None,
        pool_size: int = 15,
        pool_seconds: float = 5.0,
    ) -> None:
        self.engine = engine_for(url, pool_size=pool_size, max_overflow=0, pool_timeout=pool_seconds)
        self._on_statement = on_statement
        self._turns: Semaphore | nullcontext[None] = nullcontext()

    def share(self, statements: int) -> Self:
        """The same database for one request, so many of whose statements run at a time: none takes the whole pool."""
        share = copy.copy(self)
        share._turns = Semaphore(statements)  # noqa: SLF001  # it is ours
        return share

    @asynccontextmanager
    async def session(self, source: str, keys: Sized | None = None) -> AsyncIterator[AsyncSession]:
        """A session for one statement, which is reported when the block is left, unless it failed.

        Args:
            source: Who asks, for the report.
            keys: The keys that it asks for, if it asks by key.

        Raises:
            GraphQLError: If the database cannot answer; clients may read it, and details are logged.
        """
        async with self._turns:
            started = time.perf_counter()
            try:
                async with AsyncSession(self.engine) as session:
                    yield session
                    rows = len(session.identity_map)  # it holds no row by itself, but whoever returns them still does
            except PoolTimeoutError:
                raise GraphQLError("the service is busy: no database connection became free, try again later") from None
            except (DBAPIError, OSError) as error:
                if (getattr(getattr(error, "orig", None), "sqlstate", None) or "").startswith(DATA_EXCEPTION):
                    raise GraphQLError("the database takes no such value: text must have no NUL characters") from error
                _log.error("%s failed: %s", source, getattr(error, "orig", error))  # its text has the statement, too
                raise GraphQLError("the database cannot be reached or is busy, try again later") from error
            seconds = time.perf_counter() - started
        if self._on_statement is not None:
            self._on_statement(Statement(source, None if keys is None else len(keys), rows, seconds))

    async def aclose(self) -> None:
        """Close all connections."""
        await self.engine.dispose()
