"""Sessions, one for each statement, and a report of what each statement took."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sized

    from sqlalchemy import URL


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


class Database:
    """The pool of connections that all requests share.

    A session serves one statement at a time, and the loaders of a request run side by side: so each statement has
    a session of its own. Its rows are whole, and stay usable after it.

    Args:
        url: An SQLAlchemy URL with an async driver.
        on_statement: Called after each statement.
    """

    def __init__(self, url: URL, *, on_statement: Callable[[Statement], None] | None = None) -> None:
        self.engine = create_async_engine(url)
        self._on_statement = on_statement

    @asynccontextmanager
    async def session(self, source: str, keys: Sized | None = None) -> AsyncIterator[AsyncSession]:
        """A session for one statement, which is reported when the block is left, unless it failed.

        Args:
            source: Who asks, for the report.
            keys: The keys that it asks for, if it asks by key.
        """
        started = time.perf_counter()
        async with AsyncSession(self.engine) as session:
            yield session
            rows = len(session.identity_map)  # it holds no row by itself, but whoever is returning them still does
        if self._on_statement is not None:
            seconds = time.perf_counter() - started
            self._on_statement(Statement(source, None if keys is None else len(keys), rows, seconds))

    async def aclose(self) -> None:
        """Close all connections."""
        await self.engine.dispose()
