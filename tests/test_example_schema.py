"""The demo's graph: the values are those of the CSV files, and the statements are as few as the query's levels."""
# ruff: noqa: A001, A002  # `id` is GraphQL's word

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sqlite3
from collections import Counter
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest
import strawberry
from sqlalchemy import URL, event

from example_app.database import Database, Statement
from example_app.loaders import STATEMENTS_AT_ONCE, AppLoaders
from example_app.schema import Query, schema
from loader import DataLoader
from loader.strawberry import install
from tests.test_example_data import built, by, flight, ids_by, in_order, table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sized
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncSession

    from loader.testing import Batches

pytestmark = pytest.mark.real_time

ACCEPTANCE = (
    "{ flights(first: 1000) { number airline { name } plane { model manufacturer } "
    "origin { name } destination { name } weather { temperature } } }"
)


DEEP = """
    { jfk: airport(code: "JFK") { ...levels } lga: airport(code: "LGA") { ...levels } }
    fragment levels on Airport { departures(first: 100) {
        id airline { code } weather { hour } destination { code arrivals(first: 5) {
            id airline { code } weather { hour } plane { tailNumber flights(first: 2) {
                id destination { code } } } } } } }
"""


class Client:
    """Executes queries with new loaders each; `statements` are what the last one took, `sql` what the engine saw."""

    def __init__(self, database: type[Database] = Database, url: URL | None = None) -> None:
        self.schema: strawberry.Schema = schema
        self.statements: list[Statement] = []
        self.sql: list[str] = []
        self.database = database(url or built(), on_statement=self.statements.append)
        event.listen(self.database.engine.sync_engine, "before_cursor_execute", self._see)

    def _see(self, *arguments: Any) -> None:
        self.sql.append(arguments[2])

    async def execute(self, query: str, **variables: Any) -> Any:
        self.statements.clear()
        self.sql.clear()
        result = await self.schema.execute(
            query, variable_values=variables, context_value={"loaders": AppLoaders(self.database)}
        )
        assert len(self.sql) == len(self.statements)
        return result

    async def data(self, query: str, **variables: Any) -> Any:
        result = await self.execute(query, **variables)
        assert result.errors is None
        return result.data

    async def error(self, query: str, **variables: Any) -> str:
        result = await self.execute(query, **variables)
        (error,) = result.errors
        return str(error.message)

    def taken(self) -> list[tuple[str, int | None]]:
        return sorted((statement.source, statement.keys) for statement in self.statements)


@asynccontextmanager
async def connected(database: type[Database] = Database, url: URL | None = None) -> AsyncIterator[Client]:
    client = Client(database, url)
    try:
        yield client
    finally:
        await client.database.aclose()


def of(name: str, columns: Iterable[str], *key: str) -> dict[str, str] | None:
    """The row with this key in these columns, None if there is none."""
    return by(name, *columns).get(key)


def pick(row: dict[str, str] | None, **fields: str | Callable[[dict[str, str]], object]) -> dict[str, object] | None:
    """An object of the answer from a row of a file: each field a column, or computed."""
    if row is None:
        return None
    return {name: row[take] if isinstance(take, str) else take(row) for name, take in fields.items()}


def number(column: str) -> Callable[[dict[str, str]], float | None]:
    return lambda row: float(row[column]) if row[column] else None


def utc(row: dict[str, str], minutes: int) -> str:
    return (dt.datetime.fromisoformat(row["time_hour"]) + dt.timedelta(minutes=minutes)).isoformat()


def clock(text: str) -> str | None:
    return f"{int(text) // 100 % 24:02}:{int(text) % 100:02}:00" if text else None


async def test_a_thousand_flights_with_all_they_point_to_take_five_statements(batches: Batches) -> None:
    async with connected() as client:
        answer = await client.data(ACCEPTANCE)
        rows = [flight(id) for id in in_order()[:1000]]
        batches.assert_batches(airlines=1, airports=1, planes=1, weather=1)
        assert {name: sorted(keys) for name, (keys,) in batches.items()} == {
            "airlines": sorted({row["carrier"] for row in rows}),
            "airports": sorted({row[end] for row in rows for end in ("origin", "dest")}),
            "planes": sorted({row["tailnum"] for row in rows} - {""}),
            "weather": sorted({(row["origin"], dt.datetime.fromisoformat(row["time_hour"])) for row in rows}),
        }
        assert len(client.sql) == 5
        assert answer["flights"] == [
            {
                "number": int(row["flight"]),
                "airline": pick(of("airlines", ["carrier"], row["carrier"]), name="name"),
                "plane": pick(of("planes", ["tailnum"], row["tailnum"]), model="model", manufacturer="manufacturer"),
                "origin": pick(of("airports", ["faa"], row["origin"]), name="name"),
                "destination": pick(of("airports", ["faa"], row["dest"]), name="name"),
                "weather": pick(
                    of("weather", ["origin", "time_hour"], row["origin"], row["time_hour"]),
                    temperature=number("temp"),
                ),
            }
            for row in rows
        ]


async def test_paging_through_all_flights_meets_each_once_in_order_with_the_values_of_the_file() -> None:
    query = """query ($after: ID) { flights(first: 1000, after: $after) {
        id date number carrierCode tailNumber originCode destinationCode scheduledDeparture departure
        departureDelay scheduledArrival arrival arrivalDelay cancelled airTime distance weatherHour } }"""
    seen: list[dict[str, Any]] = []
    async with connected() as client:
        while page := (await client.data(query, after=seen[-1]["id"] if seen else None))["flights"]:
            seen += page
    assert [item["id"] for item in seen] == in_order()
    for item in seen:
        row = flight(item.pop("id"))
        assert item == {
            "date": f"{row['year']}-{row['month'].zfill(2)}-{row['day'].zfill(2)}",
            "number": int(row["flight"]),
            "carrierCode": row["carrier"],
            "tailNumber": row["tailnum"] or None,
            "originCode": row["origin"],
            "destinationCode": row["dest"],
            "scheduledDeparture": utc(row, int(row["minute"])),
            "departure": utc(row, int(row["minute"]) + int(row["dep_delay"])) if row["dep_time"] else None,
            "departureDelay": number("dep_delay")(row),
            "scheduledArrival": clock(row["sched_arr_time"]),
            "arrival": clock(row["arr_time"]),
            "arrivalDelay": number("arr_delay")(row),
            "cancelled": row["dep_time"] == "",
            "airTime": number("air_time")(row),
            "distance": int(row["distance"]),
            "weatherHour": utc(row, 0),
        }


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        ('origin: "LGA"', {"origin": "LGA"}),
        ('destination: "STT"', {"dest": "STT"}),
        ('carrier: "OO"', {"carrier": "OO"}),
        ("day: 31", {"day": "31"}),
        (
            'origin: "JFK", destination: "LAX", carrier: "AA", day: 7',
            {"origin": "JFK", "dest": "LAX", "carrier": "AA", "day": "7"},
        ),
        ('origin: "LAX"', {"origin": "LAX"}),
    ],
)  # fmt: skip
async def test_flights_are_filtered_by_each_argument_and_all_together(arguments: str, columns: dict[str, str]) -> None:
    async with connected() as client:
        answer = await client.data(f"{{ flights(first: 1000, {arguments}) {{ id }} }}")
    matching = [id for id in in_order() if all(flight(id)[name] == value for name, value in columns.items())]
    assert [item["id"] for item in answer["flights"]] == matching[:1000]


async def test_a_filtered_list_goes_on_after_any_flight(batches: Batches) -> None:
    after = in_order()[500]
    async with connected() as client:
        answer = await client.data(f'{{ flights(carrier: "HA", after: "{after}") {{ id }} }}')
        assert batches == {"flights": [[int(after)]]}
        assert len(client.sql) == 2
    later = in_order()[501:]
    assert [item["id"] for item in answer["flights"]] == [id for id in later if flight(id)["carrier"] == "HA"][:20]


async def test_a_list_has_twenty_flights_unless_told_otherwise() -> None:
    async with connected() as client:
        answer = await client.data("{ flights { id } }")
    assert [item["id"] for item in answer["flights"]] == in_order()[:20]


async def test_a_flight_by_its_id(batches: Batches) -> None:
    async with connected() as client:
        answer = await client.data('{ text: flight(id: "1") { id number } integer: flight(id: 27004) { id number } }')
        assert batches == {"flights": [[1, 27004]]}
    assert answer == {
        "text": {"id": "1", "number": int(table("flights")[0]["flight"])},
        "integer": {"id": "27004", "number": int(table("flights")[-1]["flight"])},
    }


@pytest.mark.parametrize("id", ["0", "27005", "-1", "1.0", "x", "", "٣", "9" * 30])
async def test_a_flight_that_does_not_exist_is_null(id: str) -> None:
    async with connected() as client:
        assert await client.data("query ($id: ID!) { flight(id: $id) { id } }", id=id) == {"flight": None}


async def test_an_airport_with_its_departures_and_arrivals(batches: Batches) -> None:
    async with connected() as client:
        answer = await client.data(
            """{ airport(code: "JFK") { code name latitude longitude altitude utcOffset dst timeZone
                 departures(first: 30) { id } arrivals { id } } }"""
        )
        assert batches == {"airports": [["JFK"]], "departures(first=30)": [["JFK"]], "arrivals(first=20)": [["JFK"]]}
    assert answer["airport"] == {
        **(pick(
            of("airports", ["faa"], "JFK"), code="faa", name="name", latitude=number("lat"),
            longitude=number("lon"), altitude=number("alt"), utcOffset=number("tz"), dst="dst", timeZone="tzone",
        ) or {}),
        "departures": [{"id": id} for id in ids_by("origin")["JFK"][:30]],
        "arrivals": [{"id": id} for id in ids_by("dest").get("JFK", [])],
    }  # fmt: skip


async def test_an_airline_with_its_flights() -> None:
    async with connected() as client:
        answer = await client.data('{ airline(code: "HA") { code name flights(first: 1000) { id } } }')
    assert answer["airline"] == {
        "code": "HA",
        "name": "Hawaiian Airlines Inc.",
        "flights": [{"id": id} for id in ids_by("carrier")["HA"]],
    }


async def test_a_plane_with_its_flights() -> None:
    tail = next(row["tailnum"] for row in table("planes") if not row["year"] and row["tailnum"] in ids_by("tailnum"))
    async with connected() as client:
        answer = await client.data(
            """query ($tail: String!) { plane(tailNumber: $tail) {
                tailNumber year type manufacturer model engines seats speed engine flights(first: 1000) { id } } }""",
            tail=tail,
        )
    assert answer["plane"] == {
        **(pick(
            of("planes", ["tailnum"], tail), tailNumber="tailnum", year=number("year"), type="type",
            manufacturer="manufacturer", model="model", engines=number("engines"), seats=number("seats"),
            speed=number("speed"), engine="engine",
        ) or {}),
        "flights": [{"id": id} for id in ids_by("tailnum")[tail]],
    }  # fmt: skip


async def test_the_weather_of_a_flight() -> None:
    async with connected() as client:
        answer = await client.data(
            """{ flight(id: 1) { weather { originCode hour temperature dewPoint humidity windDirection windSpeed
                 windGust precipitation pressure visibility } } }"""
        )
    row = flight("1")
    assert answer["flight"]["weather"] == pick(
        of("weather", ["origin", "time_hour"], row["origin"], row["time_hour"]),
        originCode="origin", hour=lambda row: utc(row, 0), temperature=number("temp"), dewPoint=number("dewp"),
        humidity=number("humid"), windDirection=number("wind_dir"), windSpeed=number("wind_speed"),
        windGust=number("wind_gust"), precipitation=number("precip"), pressure=number("pressure"),
        visibility=number("visib"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parents", "field", "column"),
    [
        ("airport", "departures", "origin"),
        ("airport", "arrivals", "dest"),
        ("airline", "flights", "carrier"),
        ("plane", "flights", "tailnum"),
    ],
)
async def test_the_limit_is_of_each_parent_and_all_parents_with_the_same_one_share_a_statement(
    parents: str, field: str, column: str, batches: Batches
) -> None:
    values = [value for value in ids_by(column) if value and value not in {"BQN", "PSE", "STT", "SJU"}]
    asked = [value for value in values if parents != "plane" or of("planes", ["tailnum"], value)][:16]
    argument = "tailNumber" if parents == "plane" else "code"
    roots = " ".join(
        f"p{place}: {parents}({argument}: {json.dumps(value)}) {{ {field}(first: {place % 3 + 1}) {{ id }} }}"
        for place, value in enumerate(asked)
    )
    async with connected() as client:
        answer = await client.data(f"{{ {roots} }}")
        limits = Counter(place % 3 for place in range(len(asked)))
        sizes = [len(keys) for sent in batches.values() for keys in sent]
        assert sorted(sizes) == sorted([len(asked), *limits.values()])
        assert len(client.sql) == len(sizes)
    assert answer == {
        f"p{place}": {field: [{"id": id} for id in ids_by(column)[value][: place % 3 + 1]]}
        for place, value in enumerate(asked)
    }


async def test_each_limit_of_one_parent_takes_a_statement(batches: Batches) -> None:
    async with connected() as client:
        answer = await client.data(
            """{ airport(code: "EWR") {
                few: departures(first: 2) { id } many: departures(first: 200) { id } again: departures(first: 2) { id }
                some: departures { id } } }"""
        )
        batches.assert_batches({f"departures(first={first})": 1 for first in (2, 20, 200)}, airports=1)
        assert batches["departures"] == [["EWR"]] * 3
        assert len(client.sql) == 4
    ids = [{"id": id} for id in ids_by("origin")["EWR"]]
    assert answer["airport"] == {"few": ids[:2], "many": ids[:200], "again": ids[:2], "some": ids[:20]}


async def test_four_levels_take_a_statement_a_loader_and_level(batches: Batches) -> None:
    async with connected() as client:
        answer = await client.data(
            """{ flights(first: 300, origin: "JFK") { destination { code arrivals(first: 3) {
                 id airline { name } plane { model flights(first: 2) { id } } } } } }"""
        )
        batches.assert_batches(airlines=1, airports=1, arrivals=1, flights_of_plane=1, planes=1)
        assert len(client.sql) == 6
    for item in answer["flights"]:
        if item["destination"] is not None:
            ids = ids_by("dest")[item["destination"]["code"]][:3]
            assert [arrival["id"] for arrival in item["destination"]["arrivals"]] == ids
            for arrival in item["destination"]["arrivals"]:
                if arrival["plane"] is not None:
                    tail = flight(arrival["id"])["tailnum"]
                    assert arrival["plane"]["flights"] == [{"id": id} for id in ids_by("tailnum")[tail][:2]]


def named(ids: Iterable[str], column: str) -> set[str]:
    """What these flights have in this column."""
    return {flight(id)[column] for id in ids} - {""}


def known(name: str, column: str, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if of(name, [column], key)]


def hours(ids: Iterable[str]) -> set[tuple[str, str]]:
    return {(flight(id)["origin"], flight(id)["time_hour"]) for id in ids}


async def test_seven_levels_ask_for_each_key_once_and_take_a_statement_a_loader_and_level(batches: Batches) -> None:
    departures = [id for code in ("JFK", "LGA") for id in ids_by("origin")[code][:100]]
    destinations = known("airports", "faa", named(departures, "dest"))
    arrivals = [id for code in destinations for id in ids_by("dest")[code][:5]]
    planes = known("planes", "tailnum", named(arrivals, "tailnum"))
    flights = [id for tail in planes for id in ids_by("tailnum")[tail][:2]]
    async with connected() as client:
        answer = await client.data(DEEP)
        batches.assert_batches(
            airports=3, departures=1, airlines=2, weather=2, arrivals=1, planes=1, flights_of_plane=1
        )
        assert {name: [len(keys) for keys in sent] for name, sent in batches.items()} == {
            "airports": [
                2,
                len(named(departures, "dest") - {"JFK", "LGA"}),
                len(named(flights, "dest") - named(departures, "dest") - {"JFK", "LGA"}),
            ],
            "departures(first=100)": [2],
            "airlines": [
                len(named(departures, "carrier")),
                len(named(arrivals, "carrier") - named(departures, "carrier")),
            ],
            "weather": [len(hours(departures)), len(hours(arrivals) - hours(departures))],
            "arrivals(first=5)": [len(destinations)],
            "planes": [len(named(arrivals, "tailnum"))],
            "flights_of_plane(first=2)": [len(planes)],
        }
        assert len(client.sql) == 11
    found = [item for airport in answer.values() for item in airport["departures"]]
    assert [item["id"] for item in found] == departures
    for item in found:
        assert item["airline"] == {"code": flight(item["id"])["carrier"]}
        if item["destination"] is not None:
            code = item["destination"]["code"]
            assert code == flight(item["id"])["dest"]
            assert [arrival["id"] for arrival in item["destination"]["arrivals"]] == ids_by("dest")[code][:5]
            for arrival in item["destination"]["arrivals"]:
                tail = flight(arrival["id"])["tailnum"]
                assert arrival["plane"] == pick(
                    of("planes", ["tailnum"], tail), tailNumber="tailnum",
                    flights=lambda row: [
                        {"id": id, "destination": pick(of("airports", ["faa"], flight(id)["dest"]), code="faa")}
                        for id in ids_by("tailnum")[row["tailnum"]][:2]
                    ],
                )  # fmt: skip


async def test_going_to_and_fro_asks_nothing_twice(batches: Batches) -> None:
    fields = "number"
    for _ in range(4):
        fields = f"origin {{ departures(first: 3) {{ {fields} }} }}"
    async with connected() as client:
        await client.data(f"{{ flights(first: 50) {{ {fields} }} }}")
        batches.assert_batches(airports=1, departures=1)
        assert {name: sorted(keys) for name, (keys,) in batches.items()} == {
            "airports": ["EWR", "JFK", "LGA"],
            "departures(first=3)": ["EWR", "JFK", "LGA"],
        }


@pytest.mark.parametrize("query", [ACCEPTANCE, DEEP])
async def test_with_the_plan_no_field_waits_and_the_answer_and_the_statements_are_those_without_it(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: Counter[str] = Counter()

    def load(loader: DataLoader[Any, Any], key: Any, load: Any = DataLoader.load) -> Any:
        waits[loader.name] += 1
        return load(loader, key)

    monkeypatch.setattr(DataLoader, "load", load)
    async with connected() as client:
        planned = await client.data(query), client.taken()
        roots = {"AppLoaders.airports": 2, "AppLoaders.departures(first=100)": 2}
        assert waits == ({} if query is ACCEPTANCE else roots)
        client.schema = strawberry.Schema(Query)
        install(client.schema, loaders=AppLoaders, plan=False)
        assert (await client.data(query), client.taken()) == planned
        assert waits.total() > 1000


async def test_an_error_inside_has_the_path_of_each_field_and_leaves_the_rest_answered() -> None:
    query = "{ flights(first: 40) { id airline { code } origin { code departures(first: 0) { id } } } }"
    async with connected() as client:
        result = await client.execute(query)
        assert [source for source, _ in client.taken()] == ["Query.flights", "airlines", "airports"]
    assert [error.path for error in result.errors] == [
        ["flights", place, "origin", "departures"] for place in range(40)
    ]
    assert {error.message for error in result.errors} == {"first must be from 1 to 1000, not 0"}
    assert result.data["flights"] == [
        {"id": id, "airline": {"code": flight(id)["carrier"]}, "origin": None} for id in in_order()[:40]
    ]


class Weatherless(Database):
    """A database that fails where it is asked for the weather."""

    @asynccontextmanager
    async def session(self, source: str, keys: Sized | None = None) -> AsyncIterator[AsyncSession]:
        async with super().session(source, keys) as session:
            if source == "weather":
                raise RuntimeError("no weather today")
            yield session


async def test_a_statement_that_fails_costs_its_own_fields_and_no_other() -> None:
    async with connected(Weatherless) as client:
        result = await client.execute("{ flights(first: 30) { id airline { code } weather { hour } } }")
        assert client.taken() == [("Query.flights", None), ("airlines", len(named(in_order()[:30], "carrier")))]
    assert [(error.message, error.path) for error in result.errors] == [
        ("the service failed to answer this: what happened is in its log", ["flights", place, "weather"])
        for place in range(30)
    ]
    assert result.data["flights"] == [
        {"id": id, "airline": {"code": flight(id)["carrier"]}, "weather": None} for id in in_order()[:30]
    ]


async def test_a_database_without_tables_is_an_error_of_the_field(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(url=URL.create("sqlite+aiosqlite", database=str(tmp_path / "empty"))) as client:
        result = await client.schema.execute(
            '{ airport(code: "JFK") { name } }', context_value={"loaders": AppLoaders(client.database)}
        )
        assert client.statements == []
    assert result.errors is not None
    (error,) = result.errors
    assert error.message == "the database cannot be reached or is busy, try again later"
    assert [record.getMessage() for record in caplog.records] == ["airports failed: no such table: airports"]
    assert result.data == {"airport": None}


async def test_the_report_says_how_many_rows_came() -> None:
    ids = ids_by("carrier")["HA"][:9]
    async with connected() as client:
        await client.data('{ airline(code: "HA") { flights(first: 9) { plane { model } } } flights(first: 8) { id } }')
        assert sorted((statement.source, statement.rows) for statement in client.statements) == [
            ("Query.flights", 8),
            ("airlines", 1),
            ("flights_of_airline", 9),
            ("planes", len(known("planes", "tailnum", named(ids, "tailnum")))),
        ]
        assert all(statement.seconds > 0 for statement in client.statements)


class Together(Database):
    """A database that answers no loader before all four of a level ask."""

    def __init__(self, url: URL, **options: Any) -> None:
        super().__init__(url, **options)
        self.all_here = asyncio.Barrier(4)
        self.sessions: list[AsyncSession] = []

    @asynccontextmanager
    async def session(self, source: str, keys: Sized | None = None) -> AsyncIterator[AsyncSession]:
        async with super().session(source, keys) as session:
            if keys is not None:
                self.sessions.append(session)
                await self.all_here.wait()
            yield session


async def test_the_statements_of_a_level_run_side_by_side_each_in_a_session_of_its_own() -> None:
    async with connected(Together) as client:
        await client.data(ACCEPTANCE)
        assert len(client.statements) == 5
        assert isinstance(client.database, Together)
        assert len(set(client.database.sessions)) == 4


class Counting(Database):
    """A database that knows how many sessions it had open at once."""

    def __init__(self, url: URL, **options: Any) -> None:
        super().__init__(url, **options)
        event.listen(self.engine.sync_engine, "checkout", self._count)
        self.most = 0

    def _count(self, *_: object) -> None:
        self.most = max(self.most, self.engine.pool.checkedout())  # type: ignore[attr-defined]  # a queue's


async def test_a_request_of_many_statements_leaves_connections_to_others() -> None:
    limits = range(1, 41)
    fields = " ".join(f"f{limit}: departures(first: {limit}) {{ id }}" for limit in limits)
    async with connected(Counting) as client:
        answer = await client.data(f'{{ airport(code: "JFK") {{ {fields} }} }}')
        assert len(client.statements) == 41
        assert isinstance(client.database, Counting)
        assert client.database.most == STATEMENTS_AT_ONCE
    ids = [{"id": id} for id in ids_by("origin")["JFK"]]
    assert answer["airport"] == {f"f{limit}": ids[:limit] for limit in limits}


async def test_what_the_data_does_not_know_is_null_and_no_error() -> None:
    measured = by("weather", "origin", "time_hour")
    examples = [
        next(id for id in in_order() if not flight(id)["tailnum"]),
        next(id for id in in_order() if flight(id)["tailnum"] and not of("planes", ["tailnum"], flight(id)["tailnum"])),
        next(id for id in in_order() if flight(id)["dest"] == "SJU"),
        next(id for id in in_order() if (flight(id)["origin"], flight(id)["time_hour"]) not in measured),
    ]
    async with connected() as client:
        roots = " ".join(
            f"f{id}: flight(id: {id}) {{ plane {{ model }} destination {{ code }} weather {{ hour }} }}"
            for id in examples
        )
        roots += ' airport(code: "SJU") { name } airline(code: "") { name } plane(tailNumber: "N0") { model }'
        answer = await client.data(f"{{ {roots} }}")
    tailless, unknown, puerto_rico, unmeasured = (answer.pop(f"f{id}") for id in examples)
    assert tailless["plane"] is None
    assert unknown["plane"] is None
    assert puerto_rico["destination"] is None
    assert unmeasured["weather"] is None
    assert answer == {"airport": None, "airline": None, "plane": None}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("{ flights(first: 0) { id } }", "first must be from 1 to 1000, not 0"),
        ("{ flights(first: 1001) { id } }", "first must be from 1 to 1000, not 1001"),
        ("{ flights(first: -5) { id } }", "first must be from 1 to 1000, not -5"),
        ("{ flights(day: 0) { id } }", "day must be from 1 to 31, not 0"),
        ("{ flights(day: 32) { id } }", "day must be from 1 to 31, not 32"),
        ('{ flights(after: "27005") { id } }', "after must be the id of a flight: there is none with '27005'"),
        ('{ flights(after: "soon") { id } }', "after must be the id of a flight: there is none with 'soon'"),
        ('{ airport(code: "JFK") { departures(first: 0) { id } } }', "first must be from 1 to 1000, not 0"),
        ('{ airline(code: "UA") { flights(first: 2000) { id } } }', "first must be from 1 to 1000, not 2000"),
    ],
)  # fmt: skip
async def test_a_bad_argument_gets_an_error_that_says_what_is_good(query: str, message: str) -> None:
    async with connected() as client:
        assert await client.error(query) == message


@pytest.mark.parametrize("text", ["\ud800", "JF\ud83dK"])
async def test_half_a_surrogate_pair_reaches_no_database_and_gets_a_clear_error(text: str) -> None:
    message = "variables must be Unicode text: there is half a surrogate pair in them"
    async with connected() as client:
        query = "query($code: String!) { airport(code: $code) { name } flights(origin: $code) { id } }"
        assert await client.error(query, code=text) == message
        assert client.sql == []
        assert (await client.error(f'{{ airport(code: "{text}") {{ name }} }}')).startswith("Syntax Error: ")
        assert await client.data(query, code="\U0001f6eb") == {"airport": None, "flights": []}


@pytest.mark.parametrize(
    ("query", "variables"),
    [
        ("{ flights(first: 0) { id } }", {}),
        (
            '{ airport(code: "JFK") { departures(first: 0) { id } } airline(code: "UA") { flights(first: 0) { id } } }',
            {},
        ),
        ("{ nothing }", {}),
        ("{ flights(", {}),
        ("query($first: Int!) { flights(first: $first) { id } }", {"first": "many"}),
        ("query($id: ID!) { flight(id: $id) { id } }", {"id": "\ud800"}),
    ],
)
async def test_what_a_client_did_wrong_is_in_its_answer_and_not_in_the_log(
    query: str, variables: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as client:
        assert (await client.execute(query, **variables)).errors
    assert caplog.records == []


async def test_what_went_wrong_in_the_service_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(Weatherless) as client:
        result = await client.execute(
            '{ flights(first: 3) { weather { hour } } airline(code: "UA") { flights(first: 0) { id } } }'
        )
        assert len(result.errors) == 4
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


async def test_a_bad_argument_of_one_field_leaves_its_siblings_answered() -> None:
    async with connected() as client:
        result = await client.execute(
            '{ bad: flight(id: 1) { id } airport(code: "JFK") { name departures(first: 0) { id } } }'
        )
    assert result.data == {"bad": {"id": "1"}, "airport": None}


async def test_a_statement_holds_a_thousand_keys_of_two_parts(batches: Batches) -> None:
    keys = [(row["origin"], dt.datetime.fromisoformat(row["time_hour"])) for row in table("weather")]
    async with connected() as client:
        loaders = AppLoaders(client.database)
        found = await loaders.weather.load_many(keys)
        assert [(row.origin_code, row.hour) for row in found if row is not None] == keys
        assert [len(keys) for keys in batches["weather"]] == [1000, 1000, 226]
        assert len(client.sql) == 3


def test_every_index_serves_a_list_without_sorting() -> None:
    with closing(sqlite3.connect(built().database or "")) as connection:
        for condition in (
            "1",
            "date = 1",
            "origin_code = 1",
            "destination_code = 1",
            "carrier_code = 1",
            "tail_number = 1",
        ):
            query = f"SELECT * FROM flights WHERE {condition} ORDER BY scheduled_departure, id LIMIT 9"  # noqa: S608
            plan = connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
            assert "USING INDEX flights_" in plan[0][3]
            assert len(plan) == 1
