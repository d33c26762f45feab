"""What all requests of the demo share: it ends with the service. And, for the tests of its parts, a demo in no time."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine

from example_app.database import Database, Statement
from example_app.loaders import AppLoaders
from example_app.schema import schema
from example_app.service import Service
from tests.test_example_data import built

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sized

    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncSession

STREAMS = [
    'subscription { departures(origin: "JFK", speed: 60) { time } }',
    "subscription { routeStatistics { age } }",
    'subscription { searchAirports(id: "mine") { text } }',
]


class InThisThread(Database):
    """A database whose statements block the loop: no thread is waited for, so that the clock may be virtual."""

    def __init__(self, url: URL) -> None:
        super().__init__(url, on_statement=lambda statement: self.statements.append(statement))
        engine = create_engine(url.set(drivername="sqlite"), poolclass=NullPool)
        engine.dialect.is_async = True  # as far as SQLAlchemy looks
        self.engine = AsyncEngine(engine)
        self.statements: list[Statement] = []

    def taken(self, source: str) -> int:
        """How many statements there were for a loader or a field."""
        return [statement.source for statement in self.statements].count(source)


class Demo:
    """The service as its clients see it."""

    def __init__(self, database: InThisThread) -> None:
        self.database = database
        self.service = Service(database)

    def context(self) -> dict[str, Any]:
        return {"loaders": AppLoaders(self.database), "service": self.service}

    async def ask(self, query: str) -> Any:
        """The data that a query or mutation brings."""
        result = await schema.execute(query, context_value=self.context())
        assert result.errors is None, result.errors
        return result.data

    async def error(self, query: str) -> str:
        """What a query, mutation or the first event of a subscription is told that is refused."""
        if query.startswith("subscription"):
            async with aclosing(await self.results(query)) as results:
                result = await anext(results)
        else:
            result = await schema.execute(query, context_value=self.context())
        (error,) = result.errors or []
        return str(error.message)

    async def results(self, query: str) -> AsyncGenerator[Any, None]:
        results: Any = await schema.subscribe(query, context_value=self.context())
        return results  # type: ignore[no-any-return]

    async def follow(self, query: str) -> AsyncGenerator[Any, None]:
        """The events of a subscription."""
        async with aclosing(await self.results(query)) as results:
            async for result in results:
                assert result.errors is None, result.errors
                yield next(iter(result.data.values()))


@asynccontextmanager
async def demo(database: type[InThisThread] = InThisThread) -> AsyncIterator[Demo]:
    """A demo on a database of its own."""
    with tempfile.TemporaryDirectory(prefix="flights") as directory:
        copy = Path(directory, "flights.sqlite3")
        shutil.copy(built().database or "", copy)
        demo = Demo(database(built().set(database=str(copy))))
        try:
            yield demo
        finally:
            await demo.service.aclose()


def others() -> set[asyncio.Task[Any]]:
    """All tasks but this one."""
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("query", STREAMS)
async def test_a_subscription_ends_with_the_service(query: str) -> None:
    async with demo() as it:
        events = it.follow(query)
        await anext(events)
        closing = asyncio.create_task(it.service.aclose())
        assert len([event async for event in events]) < 10
        await closing
        assert others() == set()


@pytest.mark.parametrize("query", STREAMS)
async def test_a_subscription_that_is_closed_or_cancelled_leaves_no_task(query: str) -> None:
    async with demo() as it:
        for _ in range(2):  # the id of a search is free again
            events = it.follow(query)
            await anext(events)
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
            await events.aclose()
            assert others() == set()


@pytest.mark.parametrize("query", STREAMS)
async def test_a_subscription_that_is_left_between_two_events_leaves_no_task(query: str) -> None:
    async with demo() as it:
        async with aclosing(it.follow(query)) as events:
            await anext(events)
        assert others() == set()


async def test_closing_twice_is_fine() -> None:
    async with demo() as it:
        await it.ask("{ routeStatistics { age } }")
        await it.service.aclose()


class Unclosable(InThisThread):
    """A database whose sessions for boards fail when they are left."""

    @asynccontextmanager
    async def session(self, source: str, keys: Sized | None = None) -> AsyncIterator[AsyncSession]:
        async with super().session(source, keys) as session:
            yield session
            if source == "Subscription.departures":
                try:
                    await asyncio.sleep(1)
                finally:
                    raise RuntimeError("the line is cut")


async def test_what_fails_to_close_keeps_nothing_else_open() -> None:
    async with demo(Unclosable) as it:
        events, statistics = it.follow(STREAMS[0]), it.follow(STREAMS[1])
        waiting = asyncio.ensure_future(anext(events))
        await anext(statistics)
        await asyncio.sleep(0.5)
        with pytest.raises(RuntimeError, match="the line is cut"):
            await it.service.aclose()
        assert [event async for event in statistics] == []
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), StopAsyncIteration)
        assert others() == set()


async def test_closing_makes_the_refresh_that_is_due_at_once() -> None:
    async with demo() as it:
        await it.ask("{ routeStatistics { age } }")
        await it.ask("mutation { delayFlight(id: 1, minutes: 5) { id } }")
        await it.service.aclose()
        assert asyncio.get_running_loop().time() == 0
        assert it.database.taken("statistics") == 2
        assert others() == set()
