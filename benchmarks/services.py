"""Requests against services: a database file's driver, a database server, and a service that takes its time.

The same query in each way; what is counted is how often the service was asked, and how long the request took for who
waits for it. Connections are one for each service, so statements run one after the other; the simulated service
answers any number of calls at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import aiosqlite
import asyncpg  # type: ignore[import-untyped]  # it brings no types

from benchmarks.rounds import in_turns
from benchmarks.schema import (
    A_CALL_FOR_EACH,
    ATTRIBUTES,
    KEYS,
    LEVELS,
    OBJECTS,
    OURS,
    PEERS,
    RELATIONS,
    STRAWBERRY,
)
from benchmarks.table import Table, compared, median

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from benchmarks.schema import Way

ROUNDS, QUICK, SECONDS = 15, 30, 0.005
POSTGRES = os.environ.get("BENCHMARK_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/test")
BOUND = "asked for ahead, attributes"
WAYS = {"a call for each": A_CALL_FOR_EACH, BOUND: ATTRIBUTES, **OURS, **PEERS}
# How many records of records the resolver of the list asks for that knows what is wanted.
AHEAD = {"one relation": ("author", 1), "three levels": ("parent", 3)}


class Service:
    """A source that counts its calls; how it answers them, its subclasses know."""

    def __init__(self, record: type[Any]) -> None:
        self.record = record
        self.calls = 0

    async def items(self) -> list[Any]:
        """The list, in one call."""
        self.calls += 1
        return [self.record(key=key, name=name) for key, name in await self.listed()]

    async def fetch(self, relation: str, keys: list[int]) -> list[Any]:
        """The records of these numbers, in one call."""
        self.calls += 1
        names = dict(await self.named(relation, keys))
        return [self.record(key=key + KEYS, name=names[key]) for key in keys]

    async def listed(self) -> Sequence[tuple[int, str]]:
        """The key and the name of each item."""
        raise NotImplementedError

    async def named(self, relation: str, keys: list[int]) -> Sequence[tuple[int, str]]:
        """The number and the name of each of these records, in any order."""
        raise NotImplementedError


def rows(relation: str) -> list[tuple[int, str]]:
    """All records that items, or other records, may be related to."""
    return [(number, f"{relation} {number}") for number in range(KEYS * LEVELS)]


def item_rows(objects: int) -> list[tuple[int, str]]:
    """All items."""
    return [(number % KEYS, f"item {number}") for number in range(objects)]


class Simulated(Service):
    """Takes 5 ms for a call."""

    def __init__(self, objects: int, record: type[Any]) -> None:
        super().__init__(record)
        self.items_listed = item_rows(objects)

    async def listed(self) -> Sequence[tuple[int, str]]:
        await asyncio.sleep(SECONDS)
        return self.items_listed

    async def named(self, relation: str, keys: list[int]) -> Sequence[tuple[int, str]]:
        await asyncio.sleep(SECONDS)
        return [(key, f"{relation} {key}") for key in keys]


class Sqlite(Service):
    """A database in memory."""

    def __init__(self, connection: aiosqlite.Connection, record: type[Any]) -> None:
        super().__init__(record)
        self.connection = connection

    async def listed(self) -> Sequence[tuple[int, str]]:
        return await self.connection.execute_fetchall("SELECT key, name FROM item")  # type: ignore[return-value]

    async def named(self, relation: str, keys: list[int]) -> Sequence[tuple[int, str]]:
        marks = ", ".join("?" * len(keys))
        statement = f"SELECT key, name FROM {relation} WHERE key IN ({marks})"  # noqa: S608  # one of ours
        return await self.connection.execute_fetchall(statement, keys)  # type: ignore[return-value]


class Postgres(Service):
    """A server; a connection answers one statement at a time."""

    def __init__(self, connection: Any, free: asyncio.Lock, record: type[Any]) -> None:
        super().__init__(record)
        self.connection, self.free = connection, free

    async def listed(self) -> Sequence[tuple[int, str]]:
        async with self.free:
            return await self.connection.fetch("SELECT key, name FROM item")  # type: ignore[no-any-return]

    async def named(self, relation: str, keys: list[int]) -> Sequence[tuple[int, str]]:
        statement = f"SELECT key, name FROM {relation} WHERE key = ANY($1)"  # noqa: S608  # one of ours
        async with self.free:
            return await self.connection.fetch(statement, keys)  # type: ignore[no-any-return]


@asynccontextmanager
async def sqlite(objects: int) -> AsyncIterator[Callable[[type[Any]], Service]]:
    """A database with all records."""
    async with aiosqlite.connect(":memory:") as connection:
        await connection.execute("CREATE TABLE item (key INTEGER, name TEXT)")
        await connection.executemany("INSERT INTO item VALUES (?, ?)", item_rows(objects))
        for name in RELATIONS:
            await connection.execute(f"CREATE TABLE {name} (key INTEGER PRIMARY KEY, name TEXT)")
            await connection.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows(name))  # noqa: S608
        yield partial(Sqlite, connection)


@asynccontextmanager
async def postgres(objects: int) -> AsyncIterator[Callable[[type[Any]], Service]]:
    """The same on a server, in tables that end with the connection."""
    connection = await asyncpg.connect(POSTGRES, timeout=5)
    try:
        await connection.execute("CREATE TEMPORARY TABLE item (key INTEGER, name TEXT)")
        await connection.executemany("INSERT INTO item VALUES ($1, $2)", item_rows(objects))
        for name in RELATIONS:
            await connection.execute(f"CREATE TEMPORARY TABLE {name} (key INTEGER PRIMARY KEY, name TEXT)")
            await connection.executemany(f"INSERT INTO {name} VALUES ($1, $2)", rows(name))  # noqa: S608
        yield partial(Postgres, connection, asyncio.Lock())
    finally:
        await connection.close()


class Ahead:
    """Asks for a list and, level by level, for what its records are related to: no loader makes fewer calls."""

    def __init__(self, service: Service, relation: str, levels: int) -> None:
        self.service, self.relation, self.levels = service, relation, levels

    async def items(self) -> list[Any]:
        """The list, with all that is wanted of it."""
        items = records = await self.service.items()
        for _ in range(self.levels):
            keys = list(dict.fromkeys(record.key for record in records))
            found = dict(zip(keys, await self.service.fetch(self.relation, keys), strict=True))
            for record in records:
                setattr(record, self.relation, found[record.key])
            records = list(found.values())
        return items

    async def fetch(self, relation: str, keys: list[int]) -> list[Any]:
        """Nothing is left to ask for."""
        raise NotImplementedError


async def wall_time(way: Way, shape: str, make: Callable[[type[Any]], Service]) -> tuple[float, int]:
    """The seconds of one request, and the calls that it took."""
    service = make(way.record)
    context = way.context(Ahead(service, *AHEAD[shape]) if way is ATTRIBUTES else service)
    started = time.perf_counter()
    result = await way.schema.execute(way.query(shape), context_value=context)
    took = time.perf_counter() - started
    if result.errors:
        raise result.errors[0]
    return took, service.calls


async def measure(rounds: int, objects: int) -> tuple[list[list[object]], str]:
    """A row for each service, shape and way; and what is left out, in words."""
    left_out = ""
    measured: list[list[object]] = []
    async with AsyncExitStack() as stack:
        services: dict[str, Callable[[type[Any]], Service]] = {
            "simulated, 5 ms": partial(Simulated, objects),
            "SQLite": await stack.enter_async_context(sqlite(objects)),
        }
        try:
            services["PostgreSQL"] = await stack.enter_async_context(postgres(objects))
        except (OSError, asyncpg.PostgresError) as error:
            left_out = f" No PostgreSQL answers where BENCHMARK_POSTGRES_URL says, so its rows are left out: {error}"
        for service, make in services.items():
            for shape in AHEAD:
                took = await in_turns(
                    rounds, {name: partial(wall_time, way, shape, make) for name, way in WAYS.items()}
                )
                times = {name: [seconds for seconds, _ in each] for name, each in took.items()}
                measured += [
                    [service, shape, name, *cells, median([calls for _, calls in took[name]], "", 0)]
                    for name, cells in compared(times, [BOUND, STRAWBERRY], "ms").items()
                ]
    return measured, left_out


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The one table."""
    rounds, objects = (1, QUICK) if quick else (ROUNDS, OBJECTS)
    measured, left_out = asyncio.run(measure(rounds, objects))
    yield Table(
        "services",
        f"{objects:,} objects, {KEYS} distinct keys for each relation, one connection; time of one request, and the "
        f"calls or statements that it took.{left_out}",
        ["service", "query", "way", "of the least", "of Strawberry's", "median", "nine in ten", "calls"],
        measured,
        chart="median",
        ours=OURS,
    )
