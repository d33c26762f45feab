"""Rows by key, grouped and paged: on SQLite, and on PostgreSQL where a server answers."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, assert_type

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    MetaData,
    Row,
    String,
    Table,
    and_,
    case,
    event,
    func,
    insert,
    make_url,
    select,
    tuple_,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    column_property,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
    with_loader_criteria,
)
from sqlalchemy.pool import StaticPool

from loader.errors import BatchResultError
from loader.sqlalchemy import Page, _execution, grouped_pages, grouped_rows, rows_by_key
from tests import postgres as server
from tests.postgres import postgres  # noqa: F401  # a fixture, found by its name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from sqlalchemy.orm import ORMExecuteState

pytestmark = pytest.mark.real_time


class Base(DeclarativeBase):
    pass


class Airport(Base):
    __tablename__ = "airports"

    code: Mapped[str] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column("full_name")
    flights: Mapped[list[Flight]] = relationship(order_by="Flight.id")


class Flight(Base):
    __tablename__ = "flights"

    id: Mapped[int] = mapped_column(primary_key=True)
    origin: Mapped[str | None] = mapped_column(ForeignKey(Airport.code))
    distance: Mapped[int | None]
    tenant: Mapped[int] = mapped_column(default=1)


class Weather(Base):
    __tablename__ = "weather"

    airport: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[int] = mapped_column(primary_key=True)
    station: Mapped[str | None]
    wind: Mapped[int]


class Vehicle(Base):
    """Joined inheritance, and below `Bus` single-table inheritance."""

    __tablename__ = "vehicles"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "vehicle"}  # noqa: RUF012

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    owner: Mapped[str] = mapped_column()
    loud_owner: Mapped[str] = column_property(func.upper(owner))


class Bus(Vehicle):
    __tablename__ = "buses"
    __mapper_args__ = {"polymorphic_identity": "bus"}  # noqa: RUF012

    id: Mapped[int] = mapped_column(ForeignKey(Vehicle.id), primary_key=True)
    seats: Mapped[int]


class Coach(Bus):
    __mapper_args__ = {"polymorphic_identity": "coach"}  # noqa: RUF012


airports = Base.metadata.tables["airports"]
flights = Base.metadata.tables["flights"]
notes = Table("notes", Base.metadata, Column("code", String), Column("text", String))
names = Table("names", Base.metadata, Column("name", String(collation="NOCASE"), primary_key=True))


class Database:
    """An engine, and the SELECT statements that it was sent."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.statements: list[tuple[str, Any]] = []
        self.running = 0
        event.listen(engine.sync_engine, "before_cursor_execute", self._before)

    def _before(self, *arguments: Any) -> None:
        _, _, statement, parameters, _, _ = arguments
        if statement.startswith("SELECT"):
            self.statements.append((statement, parameters))

    def sent(self) -> int:
        """How many statements were sent since the last look."""
        count = len(self.statements)
        self.statements.clear()
        return count


@asynccontextmanager
async def opened(engine: AsyncEngine, *rows: Base) -> AsyncIterator[tuple[Database, AsyncSession]]:
    """A database with these rows, and a session."""
    try:
        async with engine.begin() as connection:
            tables = [table for table in Base.metadata.sorted_tables if table is not names]
            await connection.run_sync(Base.metadata.create_all, tables)
        async with AsyncSession(engine) as session:
            session.add_all(rows)
            await session.commit()
        async with AsyncSession(engine) as session:
            yield Database(engine), session
    finally:
        await engine.dispose()


def sqlite() -> AsyncEngine:
    return create_async_engine("sqlite+aiosqlite://", poolclass=StaticPool)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Callable[[], AsyncEngine]:
    """Makes the engine inside of the test's loop."""
    if request.param == "sqlite":
        return sqlite
    schema: server.Schema = request.getfixturevalue("postgres")
    return schema.engine


AIRPORTS = [("EWR", "Newark"), ("JFK", "Kennedy"), ("LGA", "La Guardia")]


def three_airports() -> list[Airport]:
    return [Airport(code=code, title=title) for code, title in AIRPORTS]


def flight(id_: int, origin: str | None, distance: int | None = None, tenant: int = 1) -> Flight:
    return Flight(id=id_, origin=origin, distance=distance, tenant=tenant)


def six_flights() -> list[Base]:
    """JFK has 1, 3, 5 and 6 (distances 30, 10, 10, NULL), EWR has 2, LGA none; 4 starts nowhere."""
    return [
        *three_airports(),
        flight(1, "JFK", 30),
        flight(2, "EWR", 20),
        flight(3, "JFK", 10),
        flight(4, None, 10),
        flight(5, "JFK", 10),
        flight(6, "JFK"),
    ]


def ids(groups: dict[Any, Any]) -> dict[Any, list[int]]:
    return {
        key: [row.id for row in (group.rows if isinstance(group, Page) else group)] for key, group in groups.items()
    }


# rows_by_key


async def test_a_session_gives_instances_by_key_and_leaves_out_what_is_not_there(engine: Any) -> None:
    async with opened(engine(), *three_airports()) as (database, session):
        found = await rows_by_key(session, Airport, Airport.code, ["LGA", "XXX", "EWR"])
        assert_type(found, dict[str, Airport])
        assert [(code, airport.title) for code, airport in found.items()] == [
            ("LGA", "La Guardia"),
            ("EWR", "Newark"),
        ]
        assert database.sent() == 1
        assert found["EWR"] is await session.get(Airport, "EWR")


async def test_a_connection_gives_rows_for_a_table_and_for_a_model(engine: Any) -> None:
    async with opened(engine(), *three_airports()) as (database, session):
        async with database.engine.connect() as connection:
            found = await rows_by_key(connection, airports, airports.c.code, ["JFK"])
            assert_type(found, dict[str, Row[*tuple[Any, ...]]])
            modelled = await rows_by_key(connection, Airport, Airport.code, ["JFK"])
            assert_type(modelled, dict[str, Row[*tuple[Any, ...]]])
        tabled = await rows_by_key(session, airports, "code", ["JFK"])
        assert_type(tabled, dict[str, Row[*tuple[Any, ...]]])
        assert found == modelled == tabled == {"JFK": ("JFK", "Kennedy")}
        row = found["JFK"]
        assert isinstance(row, Row)
        assert row._fields == ("code", "full_name")
        assert row.full_name == row._mapping[airports.c.full_name] == "Kennedy"
        assert database.sent() == 3


async def test_a_key_is_asked_for_once_and_none_never() -> None:
    async with opened(sqlite(), *three_airports()) as (database, session):
        keys = (key for key in ["JFK", None, "JFK", "EWR", None])
        found = await rows_by_key(session, Airport, "code", keys)
        assert list(found) == ["JFK", "EWR"]
        assert database.statements[0][1] == ("JFK", "EWR")


@pytest.mark.parametrize("keys", [[], [None]])
async def test_no_statement_is_sent_without_keys(keys: list[Any]) -> None:
    async with opened(sqlite()) as (database, session):
        assert await rows_by_key(session, Airport, "code", keys) == {}
        assert await grouped_rows(session, Flight, "origin", keys) == {key: [] for key in keys}
        pages = await grouped_pages(session, Flight, "origin", keys)
        assert pages == {key: Page((), 0, has_previous=False, has_next=False, total=None) for key in keys}
        assert database.sent() == 0


async def test_several_columns_take_tuples_in_which_a_null_matches_nothing(engine: Any) -> None:
    rows = [
        Weather(airport="JFK", hour=1, station=None, wind=10),
        Weather(airport="JFK", hour=2, station="a", wind=20),
        Weather(airport="EWR", hour=1, station="a", wind=30),
    ]
    async with opened(engine(), *rows) as (database, session):
        keys: list[tuple[str, int | None]] = [("JFK", 2), ("EWR", 2), ("JFK", 1), ("JFK", None), ("JFK", 2)]
        found = await rows_by_key(session, Weather, [Weather.airport, "hour"], keys)
        assert_type(found, dict[tuple[str, int | None], Weather])
        assert {key: row.wind for key, row in found.items()} == {("JFK", 2): 20, ("JFK", 1): 10}
        assert database.sent() == 1

        stations = [("JFK", None), ("JFK", "a"), ("EWR", "a")]
        grouped = await grouped_rows(session, Weather, ("airport", "station"), stations, limit=5)
        assert {key: [row.wind for row in group] for key, group in grouped.items()} == {
            ("JFK", None): [],
            ("JFK", "a"): [20],
            ("EWR", "a"): [30],
        }
        assert {key: row.wind for key, row in (await rows_by_key(session, Weather, ["wind"], [(30,)])).items()} == {
            (30,): 30
        }


async def test_a_key_with_two_rows_is_an_error_where_one_was_promised(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (_, session):
        with pytest.raises(BatchResultError) as caught:
            await rows_by_key(session, Flight, Flight.origin, ["EWR", "JFK"])
        assert str(caught.value) == (
            "rows_by_key(Flight.origin) promises one row per key, but 'JFK' has 4. "
            "Narrow them down with where=, or use grouped_rows()."
        )
        nearest = await rows_by_key(session, Flight, Flight.origin, ["EWR", "JFK"], where=Flight.distance > 10)
        assert ids({key: [row] for key, row in nearest.items()}) == {"EWR": [2], "JFK": [1]}


async def test_keys_of_another_type_than_the_column_do_not_vanish_silently() -> None:
    async with opened(sqlite(), *six_flights()) as (_, session):
        with pytest.raises(BatchResultError) as caught:
            await rows_by_key(session, Flight, Flight.id, ["1", "2"])
        assert str(caught.value) == (
            "rows_by_key(Flight.id): the database answered for the key 1, which is none of those asked for "
            "(such as '1'). It compares the values of this column in another way than Python does: "
            "give the keys exactly as the column returns them."
        )


async def test_postgres_itself_refuses_keys_of_another_type(postgres: server.Schema) -> None:  # noqa: F811
    async with opened(postgres.engine(), *six_flights()) as (_, session):
        with pytest.raises(DBAPIError):
            await rows_by_key(session, Flight, Flight.id, ["1", "2"])


async def test_a_column_that_ignores_case_does_not_lose_rows_silently() -> None:
    async with opened(sqlite()) as (database, session):
        async with database.engine.begin() as connection:
            await connection.run_sync(names.create)
            await connection.execute(insert(names), [{"name": "Kennedy"}])
        assert await rows_by_key(session, names, "name", ["Kennedy"]) == {"Kennedy": ("Kennedy",)}
        with pytest.raises(BatchResultError, match="answered for the key 'Kennedy'"):
            await grouped_rows(session, names, "name", ["kennedy"])


async def test_loader_options_apply_to_instances(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (database, session):
        for option, statements in ((selectinload(Airport.flights), 2), (joinedload(Airport.flights), 1)):
            session.expunge_all()
            database.sent()
            found = await rows_by_key(session, Airport, "code", ["JFK", "LGA"], options=[option])
            assert {code: [f.id for f in airport.flights] for code, airport in found.items()} == {
                "JFK": [1, 3, 5, 6],
                "LGA": [],
            }
            session.expunge_all()
            limited = await grouped_rows(session, Airport, "code", ["JFK"], limit=1, options=[option])
            assert [f.id for f in limited["JFK"][0].flights] == [1, 3, 5, 6]
            assert database.sent() == 2 * statements


async def test_loader_options_without_instances_are_refused() -> None:
    async with opened(sqlite()) as (_, session):
        with pytest.raises(TypeError, match=r"^rows_by_key\(airports.code\) gives no instances that options="):
            await rows_by_key(session, airports, "code", ["JFK"], options=[selectinload(Airport.flights)])


# more keys than parameters


async def test_more_keys_than_parameters_are_split(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (database, session):
        found = await rows_by_key(session, Flight, Flight.id, range(70_000))
        assert list(found) == [1, 2, 3, 4, 5, 6]
        assert [len(parameters) for _, parameters in database.statements] == [32_650, 32_650, 4_700]
        database.sent()
        beside = and_(Flight.id.in_(range(3)), Flight.tenant == 1)
        pages = await grouped_pages(session, Flight, Flight.id, range(32_649), first=1, where=beside)
        assert len(pages) == 32_649
        assert [key for key, page in pages.items() if page.rows] == [1, 2]
        assert database.sent() == 2


async def test_the_parameters_of_criteria_and_orders_are_counted_as_the_database_counts_them(engine: Any) -> None:
    where = tuple_(Flight.id, Flight.tenant).in_([(number, 1) for number in range(1_000)])
    order = case({number: -number for number in range(100)}, value=Flight.id)
    async with opened(engine(), *six_flights()) as (database, session):
        rows = await rows_by_key(session, Flight, Flight.id, range(40_000), where=where)
        assert list(rows) == [row.id for row in await session.scalars(select(Flight).where(where).order_by("id"))]
        groups = await grouped_rows(session, Flight, Flight.id, range(40_000), order_by=order, limit=1)
        assert [key for key, found in groups.items() if found] == [1, 2, 3, 4, 5, 6]
        pages = await grouped_pages(session, Flight, Flight.id, range(40_000), order_by=order, last=1)
        assert [key for key, page in pages.items() if page.rows] == [1, 2, 3, 4, 5, 6]
        assert max(len(parameters) for _, parameters in database.statements) <= 32_700


async def test_a_class_whose_rows_are_told_apart_by_an_expression() -> None:
    class Own(DeclarativeBase):
        pass

    class Person(Own):
        __tablename__ = "persons"
        id: Mapped[int] = mapped_column(primary_key=True)
        letter: Mapped[str] = mapped_column()
        __mapper_args__ = {  # noqa: RUF012  # as SQLAlchemy's own documentation writes it
            "polymorphic_identity": "person",
            "polymorphic_on": case((letter == "M", "manager"), else_="person"),
        }

    class Manager(Person):
        __mapper_args__ = {"polymorphic_identity": "manager"}  # noqa: RUF012

    made = sqlite()
    async with made.begin() as connection:
        await connection.run_sync(Own.metadata.create_all)
    async with AsyncSession(made) as session:
        session.add_all([Person(id=1, letter="P"), Manager(id=2, letter="M")])
        await session.commit()
        found = await rows_by_key(session, Person, Person.id, [2, 1])
        assert {key: type(row) for key, row in found.items()} == {2: Manager, 1: Person}
        managers = await grouped_rows(session, Manager, "letter", ["M", "P"], limit=1)
        assert {key: [row.id for row in rows] for key, rows in managers.items()} == {"M": [2], "P": []}
        pages = await grouped_pages(session, Person, "letter", ["P"], first=1, total=True)
        assert (pages["P"].total, [row.id for row in pages["P"].rows]) == (1, [1])
    async with made.connect() as connection:
        rows = await rows_by_key(connection, Person, "id", [1])
        assert rows[1].letter == "P"
    await made.dispose()


async def test_an_old_sqlite_gets_fewer_keys_at_once() -> None:
    async with opened(sqlite(), *six_flights()) as (database, session):
        database.engine.dialect.insertmanyvalues_max_parameters = 999
        assert list(await rows_by_key(session, Flight, "id", range(2_000))) == [1, 2, 3, 4, 5, 6]
        assert max(len(parameters) for _, parameters in database.statements) < 999
        assert database.sent() == 3


async def test_tuples_are_split_where_their_columns_are_the_parameters(engine: Any) -> None:
    rows = [Weather(airport="JFK", hour=hour, station=None, wind=hour) for hour in range(0, 20_000, 5_000)]
    async with opened(engine(), *rows) as (database, session):
        keys = [("JFK", hour) for hour in range(20_000)]
        found = await rows_by_key(session, Weather, ("airport", "hour"), keys)
        assert [row.wind for row in found.values()] == [0, 5_000, 10_000, 15_000]
        # PostgreSQL could not parse 16,000 tuples at once.
        assert database.sent() == (20 if database.engine.dialect.name == "postgresql" else 2)


async def test_criteria_that_fill_a_statement_leave_room_for_a_key() -> None:
    async with opened(sqlite(), *six_flights()) as (database, session):
        database.engine.dialect.insertmanyvalues_max_parameters = 60
        where = Flight.id.in_(range(100))
        assert list(await rows_by_key(session, Flight, "id", [1, 2, 99], where=where)) == [1, 2]
        assert database.sent() == 3


# grouped_rows


async def test_every_key_has_a_list_and_the_primary_key_orders_it(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (database, session):
        groups = await grouped_rows(session, Flight, Flight.origin, ["LGA", "JFK", "EWR", "JFK", None])
        assert_type(groups, dict[str | None, list[Flight]])
        assert ids(groups) == {"LGA": [], "JFK": [1, 3, 5, 6], "EWR": [2], None: []}
        assert list(groups) == ["LGA", "JFK", "EWR", None]
        assert database.sent() == 1


async def test_the_limit_and_the_offset_count_per_key(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (database, session):

        async def limited(**options: Any) -> dict[str, list[int]]:
            return ids(await grouped_rows(session, Flight, "origin", ["JFK", "EWR"], **options))

        assert await limited(limit=2) == {"JFK": [1, 3], "EWR": [2]}
        assert await limited(limit=2, offset=1) == {"JFK": [3, 5], "EWR": []}
        assert await limited(offset=3) == {"JFK": [6], "EWR": []}
        assert await limited(limit=0) == {"JFK": [], "EWR": []}
        assert await limited(limit=10**30, offset=0) == {"JFK": [1, 3, 5, 6], "EWR": [2]}
        assert await limited(limit=1, offset=10**30) == {"JFK": [], "EWR": []}
        assert database.sent() == 6


async def test_rows_are_ordered_as_asked_and_equals_by_primary_key(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (_, session):

        async def ordered(order_by: Any, **options: Any) -> list[int]:
            groups = await grouped_rows(session, Flight, "origin", ["JFK"], order_by=order_by, **options)
            return ids(groups)["JFK"]

        known = Flight.distance.is_not(None)
        assert await ordered("distance", where=known) == [3, 5, 1]
        assert await ordered(Flight.distance, where=known, limit=2) == [3, 5]
        assert await ordered(Flight.distance.desc(), where=known, limit=2) == [1, 3]
        assert await ordered(flights.c.distance.desc().nulls_first(), limit=3) == [6, 1, 3]
        assert await ordered(["distance", Flight.id.desc()], where=known) == [5, 3, 1]
        assert await ordered((func.abs(Flight.id - 4), "distance"), limit=3) == [3, 5, 6]


async def test_a_connection_and_a_table_give_grouped_rows_with_the_columns_of_the_table(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (database, session), database.engine.connect() as connection:
        for source, entity in ((connection, flights), (connection, Flight), (session, flights)):
            groups: Any = await grouped_rows(source, entity, "origin", ["JFK"], limit=2)
            assert groups == {"JFK": [(1, "JFK", 30, 1), (3, "JFK", 10, 1)]}
            assert groups["JFK"][0]._fields == ("id", "origin", "distance", "tenant")
            pages: Any = await grouped_pages(source, entity, "origin", ["JFK"], first=1)
            assert pages["JFK"].rows[0]._mapping == {"id": 1, "origin": "JFK", "distance": 30, "tenant": 1}
        assert_type(
            await grouped_rows(connection, flights, "origin", ["JFK"]),
            dict[str, list[Row[*tuple[Any, ...]]]],
        )
        assert_type(
            await grouped_pages(connection, Flight, "origin", ["JFK"]),
            dict[str, Page[Row[*tuple[Any, ...]]]],
        )


async def test_a_subclass_gives_only_its_own_rows(engine: Any) -> None:
    rows: list[Base] = [
        Vehicle(id=1, owner="a"),
        Bus(id=2, owner="a", seats=20),
        Coach(id=3, owner="a", seats=50),
        Coach(id=4, owner="b", seats=51),
    ]
    async with opened(engine(), *rows) as (database, session):

        async def owned(model: type[Vehicle], **page: int) -> dict[str, list[int]]:
            grouped = ids(await grouped_rows(session, model, "owner", ["a", "b"], limit=9))
            assert grouped == ids(await grouped_rows(session, model, model.owner, ["a", "b"]))
            pages = await grouped_pages(session, model, Vehicle.owner, ["a", "b"], last=9)
            assert [page.total for page in pages.values()] == [len(group) for group in grouped.values()]
            async with database.engine.connect() as connection:
                assert ids(await grouped_rows(connection, model, "owner", ["a", "b"], limit=9)) == grouped
            return grouped

        assert await owned(Vehicle) == {"a": [1, 2, 3], "b": [4]}
        assert await owned(Bus) == {"a": [2, 3], "b": [4]}
        assert await owned(Coach) == {"a": [3], "b": [4]}
        coach = (await rows_by_key(session, Coach, Bus.seats, [51]))[51]
        assert (type(coach), coach.owner) == (Coach, "b")
        assert list(await rows_by_key(session, Bus, "loud_owner", ["B"])) == ["B"]


async def test_criteria_that_the_session_adds_count_for_the_limit(engine: Any) -> None:
    rows = [*three_airports(), *(flight(number, "JFK", tenant=number % 2) for number in range(1, 9))]
    async with opened(engine(), *rows) as (_, session):

        @event.listens_for(session.sync_session, "do_orm_execute")
        def only_one_tenant(state: ORMExecuteState) -> None:
            state.statement = state.statement.options(with_loader_criteria(Flight, Flight.tenant == 0))

        assert ids(await grouped_rows(session, Flight, "origin", ["JFK"], limit=2)) == {"JFK": [2, 4]}
        page = (await grouped_pages(session, Flight, "origin", ["JFK"], last=2))["JFK"]
        assert ([row.id for row in page.rows], page.total) == ([6, 8], 4)


# grouped_pages


async def test_pages_say_what_lies_around_them(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (database, session):
        pages = await grouped_pages(session, Flight, Flight.origin, ["JFK", "EWR", "LGA"], first=2)
        assert_type(pages, dict[str, Page[Flight]])
        assert ids(pages) == {"JFK": [1, 3], "EWR": [2], "LGA": []}
        assert [(p.has_previous, p.has_next, p.total) for p in pages.values()] == [
            (False, True, None),
            (False, False, None),
            (False, False, None),
        ]
        assert list(pages["JFK"].positions) == [0, 1]
        behind = await grouped_pages(
            session, Flight, Flight.origin, ["JFK", "EWR", "LGA"], first=2, after=1, total=True
        )
        assert ids(behind) == {"JFK": [5, 6], "EWR": [], "LGA": []}
        assert [(p.has_previous, p.has_next, p.total) for p in behind.values()] == [
            (True, False, 4),
            (True, False, 1),
            (False, False, 0),
        ]
        assert list(behind["JFK"].positions) == [2, 3]
        assert database.sent() == 2


async def test_cursors_beyond_all_bounds_give_empty_pages(engine: Any) -> None:
    far = 10**30
    beyond: list[dict[str, int]] = [{"after": far}, {"after": far, "first": far, "last": far}]
    around: list[dict[str, int]] = [{"before": far, "first": far, "last": far}, {"before": far}, {"last": far}]
    async with opened(engine(), *six_flights()) as (_, session):

        async def page(arguments: dict[str, Any]) -> tuple[list[int], bool, bool]:
            found = (await grouped_pages(session, Flight, "origin", ["JFK"], **arguments))["JFK"]
            return [row.id for row in found.rows], found.has_previous, found.has_next

        assert [await page(arguments) for arguments in beyond] == [([], True, False)] * 2
        assert [await page(arguments) for arguments in around] == [([1, 3, 5, 6], False, False)] * 3


def relay(
    rows: Sequence[int], first: int | None, after: int | None, last: int | None, before: int | None
) -> tuple[list[int], int, bool, bool]:
    """What the specification's algorithm says, on a list that is there: rows, offset, what is before, what after."""
    begin, end = 0, len(rows)
    if after is not None:
        begin = after + 1
    if before is not None:
        end = min(end, before)
    if first is not None and end - begin > first:
        end = begin + first
    if last is not None and end - begin > last:
        begin = end - last
    return list(rows[begin:end]), begin, bool(rows[:begin]), bool(rows[max(begin, end) :])


async def test_random_pages_are_those_of_one_query_per_key(engine: Any) -> None:
    chance = random.Random(20)
    parents = ["A", "B", "C", "D", "E"]
    rows: list[Base] = [Airport(code=code, title=code) for code in parents]
    for number in range(1, 60):
        distance = chance.choice([None, 1, 2, 3, 4])
        rows.append(flight(number, chance.choice("AAAABBC"), distance, tenant=chance.choice([1, 2])))
    orders: list[Any] = [
        [],
        [Flight.distance],
        [Flight.distance.desc(), Flight.tenant],
        [func.abs(Flight.id - 30).desc()],
    ]
    async with opened(engine(), *rows) as (database, session):
        for _ in range(150):
            order, where = chance.choice(orders), chance.choice([None, Flight.tenant == 1])
            arguments: dict[str, Any] = {
                name: None if chance.random() < 0.5 else chance.choice([0, 1, 2, 3, 7, 12, 40, 80])
                for name in ("first", "after", "last", "before")
            }
            asked = chance.sample(parents, chance.randint(1, 5))
            database.sent()
            total = chance.random() < 0.5
            pages = await grouped_pages(
                session, Flight, "origin", asked, order_by=order, where=where, total=total, **arguments
            )
            offset, limit = chance.randint(0, 10), chance.choice([None, 0, 1, 5, 100])
            groups = await grouped_rows(
                session, Flight, "origin", asked, order_by=order, where=where, offset=offset, limit=limit
            )
            assert database.sent() == 2
            assert list(pages) == list(groups) == asked
            for key in asked:
                naive = select(Flight.id).where(Flight.origin == key).order_by(*order, Flight.id)
                whole = list(await session.scalars(naive if where is None else naive.where(where)))
                stop = None if limit is None else offset + limit
                assert [row.id for row in groups[key]] == whole[offset:stop]
                page = pages[key]
                expected = relay(whole, **arguments)
                assert (
                    [row.id for row in page.rows],
                    page.offset,
                    page.has_previous,
                    page.has_next,
                ) == expected, (arguments, whole)
                counted = total or arguments["last"] is not None
                assert page.total == (len(whole) if counted else None)


async def test_postgres_stops_numbering_where_the_page_ends(postgres: server.Schema) -> None:  # noqa: F811
    async with opened(postgres.engine()) as (database, session):
        await grouped_rows(session, Flight, "origin", ["JFK"], limit=2)
        await grouped_pages(session, Flight, "origin", ["JFK"], first=2, after=1)
        for statement, parameters in list(database.statements):
            connection = await session.connection()
            if connection.dialect.server_version_info >= (15,):  # type: ignore[operator]  # an open connection knows it
                plan = await connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
                assert "Run Condition" in "\n".join(plan.scalars())


def test_a_page_is_frozen() -> None:
    page = Page(rows=("a", "b"), offset=3, has_previous=True, has_next=False, total=None)
    assert list(page.positions) == [3, 4]
    with pytest.raises(dataclasses.FrozenInstanceError):
        page.offset = 4  # type: ignore[misc]


# one session, many batches


@pytest.mark.every_loop
async def test_batches_that_share_a_session_take_turns(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (database, session):
        calls: list[Any] = [rows_by_key(session, Flight, "id", [number]) for number in range(1, 7)]
        calls += [grouped_rows(session, Flight, "origin", ["JFK"], limit=number) for number in range(3)]
        assert [len(rows) for rows in await asyncio.gather(*calls)] == [1] * 9
        async with database.engine.connect() as connection:
            await asyncio.gather(*(rows_by_key(connection, flights, "id", [number]) for number in range(1, 7)))
        assert database.sent() == 15


@pytest.mark.every_loop
async def test_leaving_while_waiting_for_a_turn_changes_nothing_for_others(engine: Any) -> None:
    async with opened(engine(), *six_flights()) as (database, session):
        calls = [asyncio.ensure_future(rows_by_key(session, Flight, "id", [number])) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [False, True, False]
        assert [parameters for _, parameters in database.statements] == [(1,), (3,)]


async def test_a_statement_that_fails_gives_the_turn_to_the_next() -> None:
    async with opened(sqlite(), *six_flights()) as (_, session):
        results = await asyncio.gather(
            rows_by_key(session, Flight, "id", [1], where=func.no_such_function() == 1),
            rows_by_key(session, Flight, "id", [1]),
            return_exceptions=True,
        )
        assert isinstance(results[0], DBAPIError)
        assert not isinstance(results[1], BaseException)
        assert list(results[1]) == [1]


async def test_a_session_that_is_gone_leaves_nothing_behind() -> None:
    async with opened(sqlite(), *six_flights()) as (database, _):
        before = len(_execution._turns)
        async with AsyncSession(database.engine) as session:
            await rows_by_key(session, Flight, "id", [1])
        assert len(_execution._turns) == before + 1
        del session
        gc.collect()
        assert len(_execution._turns) == before


# arguments that make no sense

elsewhere = Table("elsewhere", MetaData(), Column("code", String, primary_key=True))


@pytest.mark.parametrize(
    ("entity", "column", "keys", "error", "text"),
    [
        (Airport, Flight.origin, ["JFK"], ValueError, "Airport has no column 'Flight.origin', only code, title"),
        (Airport, "full_name", ["JFK"], ValueError, "Airport has no column 'full_name', only code, title"),
        (Airport, "flights", ["JFK"], ValueError, "Airport has no column 'flights'"),
        (Airport, Airport.flights, ["JFK"], ValueError, "Airport has no column 'Airport.flights'"),
        (Airport, elsewhere.c.code, ["JFK"], ValueError, "Airport has no column 'elsewhere.code'"),
        (Airport, aliased(Airport).code, ["JFK"], ValueError, "Airport has no column "),
        (Vehicle, Bus.seats, [1], ValueError, "Vehicle has no column 'Bus.seats'"),
        (airports, elsewhere.c.code, ["JFK"], ValueError, "airports has no column 'elsewhere.code'"),
        (airports, "title", ["JFK"], ValueError, "airports has no column 'title', only code, full_name"),
        (airports, flights.c.origin, ["JFK"], ValueError, "airports has no column 'flights.origin'"),
        (airports, Airport.title, ["JFK"], ValueError, "airports has no column 'Airport.title'"),
        (Airport, [], [()], ValueError, r"rows_by_key\(\) needs at least one column of Airport as the key"),
        (Airport, 3, ["JFK"], TypeError, "a column of Airport is an attribute, a Column or a name, not 3"),
        (Airport, None, ["JFK"], TypeError, "a column of Airport is an attribute, a Column or a name, not None"),
        (int, "code", ["JFK"], TypeError, r"rows_by_key\(\) needs a mapped class or a Table, not <class 'int'>"),
        (Airport(), "code", ["JFK"], TypeError, r"rows_by_key\(\) needs a mapped class or a Table, not <.*Airport"),
        (aliased(Airport), "code", ["JFK"], TypeError, r"rows_by_key\(\) needs a mapped class or a Table, not <A"),
        (select(airports).subquery(), "code", ["J"], TypeError, r"rows_by_key\(\) needs a mapped class or a Table"),
        (Airport, "code", "JFK", TypeError, r"rows_by_key\(Airport.code\) takes a collection of keys, not the str"),
        (Airport, "code", [["JFK"]], TypeError, "unhashable"),
        (
            Weather,
            ("airport", "hour"),
            [["JFK", 1]],
            TypeError,
            r"rows_by_key\(Weather.airport\+hour\) takes tuples of 2 as keys, not \['JFK', 1\]",
        ),
        (Weather, ("airport", "hour"), ["JF"], TypeError, "takes tuples of 2 as keys, not 'JF'"),
        (Weather, ("airport", "hour"), [("JFK",)], ValueError, r"takes tuples of 2 as keys, not of 1: \('JFK',\)"),
    ],
)
async def test_arguments_that_cannot_be_meant_are_refused(
    entity: Any, column: Any, keys: Any, error: type[Exception], text: str
) -> None:
    async with opened(sqlite()) as (database, session):
        with pytest.raises(error, match=text):
            await rows_by_key(session, entity, column, keys)
        assert database.sent() == 0


async def test_columns_of_the_table_are_those_of_its_model() -> None:
    async with opened(sqlite(), *three_airports()) as (_, session):
        assert list(await rows_by_key(session, Airport, airports.c.full_name, ["Newark"])) == ["Newark"]
        assert list(await rows_by_key(session, airports, "full_name", ["Newark"])) == ["Newark"]


@pytest.mark.parametrize(
    "source", [Session(), create_async_engine("sqlite+aiosqlite://"), None], ids=["session", "engine", "none"]
)
async def test_only_async_sessions_and_connections_run_statements(source: Any) -> None:
    with pytest.raises(TypeError, match=r"^grouped_rows\(\) needs an open AsyncSession or AsyncConnection, not "):
        await grouped_rows(source, Flight, "origin", ["JFK"])


async def test_rows_without_a_primary_key_have_no_order() -> None:
    async with opened(sqlite()) as (_, session):
        with pytest.raises(
            ValueError,
            match=r"^grouped_rows\(notes.code\) puts rows in order, which takes a primary key: notes has none$",
        ):
            await grouped_rows(session, notes, "code", ["JFK"], order_by="text")
        with pytest.raises(ValueError, match="takes a primary key"):
            await grouped_pages(session, notes, "code", ["JFK"])
        assert await rows_by_key(session, notes, "code", ["JFK"]) == {}


async def test_negative_counts_are_refused() -> None:
    async with opened(sqlite()) as (_, session):
        for name in ("limit", "offset"):
            count: dict[str, Any] = {name: -1}
            with pytest.raises(ValueError, match=f"^{name}= must not be negative, got -1$"):
                await grouped_rows(session, Flight, "origin", ["JFK"], **count)
            for wrong in (1.5, "2", True):
                count[name] = wrong
                with pytest.raises(TypeError, match=f"^{name}= takes a whole number or None, not {wrong!r}$"):
                    await grouped_rows(session, Flight, "origin", ["JFK"], **count)
        for name in ("first", "after", "last", "before"):
            count = {name: -1}
            with pytest.raises(ValueError, match=f"^{name}= must not be negative, got -1$"):
                await grouped_pages(session, Flight, "origin", ["JFK"], **count)


# the fixture


def test_without_a_server_tests_are_skipped_but_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = make_url("postgresql+asyncpg://postgres@127.0.0.1:1/test")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no PostgreSQL at .*127.0.0.1:1/test"):
        server.schema_on(nowhere).__enter__()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"no PostgreSQL at .*127.0.0.1:1/test"):
        server.schema_on(nowhere).__enter__()
