"""A script of the SQLAlchemy functions: several batches at once on one session, with a real driver and its thread."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import NullPool

from loader import LoaderClosedError, Loaders, dataloader
from loader.sqlalchemy import Page, grouped_pages, grouped_rows, rows_by_key

if TYPE_CHECKING:
    from tests.explorer.world import World


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "flights"

    id: Mapped[int] = mapped_column(primary_key=True)
    origin: Mapped[str]


DATABASE = "file:explorer?mode=memory&cache=shared&uri=true"

# It lives as long as somebody is connected.
_keeper = sqlite3.connect("file:explorer?mode=memory&cache=shared", uri=True)
_keeper.execute("CREATE TABLE flights (id INTEGER PRIMARY KEY, origin TEXT)")
_keeper.executemany("INSERT INTO flights VALUES (?, ?)", [(id, "JFK" if id % 2 else "EWR") for id in range(6)])  # noqa: A001
_keeper.commit()


class Flights(Loaders):
    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    @dataloader
    async def by_id(self, ids: list[int]) -> dict[int, Row]:
        return await rows_by_key(self.session, Row, "id", ids)

    @dataloader
    async def by_origin(self, codes: list[str]) -> dict[str, list[Row]]:
        return await grouped_rows(self.session, Row, "origin", codes, order_by=Row.id, limit=2)

    @dataloader
    async def pages(self, codes: list[str]) -> dict[str, Page[Row]]:
        return await grouped_pages(self.session, Row, "origin", codes, order_by=Row.id, first=1)


async def rows(world: World) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{DATABASE}", poolclass=NullPool)
    # A statement that is broken off leaves the session with a transaction that has to be rolled back.
    world.lost_with_a_task += (SQLAlchemyError,)
    try:
        async with AsyncSession(engine) as session, Flights(session) as flights:
            await flights.by_id.load(0)
            world.begin()

            async def ids(future: Any) -> list[int]:
                found = await future
                return [row.id for row in (found.rows if isinstance(found, Page) else found)]

            world.offer("close", flights.aclose, LoaderClosedError)
            world.ask(ids(flights.by_id.load_many([1, 2])), [1, 2])
            world.ask(ids(flights.by_origin.load("JFK")), [1, 3])
            world.ask(ids(flights.pages.load("EWR")), [0])
            await world.answered()
            world.end()
    finally:
        await engine.dispose()


rows.threads = True  # type: ignore[attr-defined]  # it is a mark for whoever runs it

SCRIPTS = (rows,)
