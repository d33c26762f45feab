"""Runs statements, each on a connection of its own from the pool, and reports each one that it ran."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import URL, Select

Model = TypeVar("Model")


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

    async def fetch(self, select: Select[Model], *, source: str, keys: int | None = None) -> Sequence[Model]:
        """All rows of a statement, reported under the name `source`."""
        started = time.perf_counter()
        async with AsyncSession(self.engine) as session:
            rows = (await session.scalars(select)).all()
        if self._on_statement is not None:
            self._on_statement(Statement(source, keys, len(rows), time.perf_counter() - started))
        return rows

    async def aclose(self) -> None:
        """Close all connections."""
        await self.engine.dispose()
