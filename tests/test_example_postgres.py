"""The demo on a real PostgreSQL server: the same data and answers, built whole or not at all."""
# ruff: noqa: A001  # `id` is GraphQL's word

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import asyncpg  # type: ignore[import-untyped]  # it brings no types
import pytest

from example_app import build, database, models
from example_app.database import SCHEMA, Database
from example_app.loaders import AppLoaders
from example_app.schema import schema
from example_app.service import Service
from tests.postgres import SERVER, database_on
from tests.test_example_app import environment
from tests.test_example_build import COMPLETE, MOMENTS, kill_at, see_one_wait_for_another, small, start
from tests.test_example_data import ROOT, built, flight, in_order
from tests.test_example_schema import ACCEPTANCE, DEEP
from tests.test_example_server import start_two_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL

__all__ = ["small"]  # a fixture

ORDERED = [
    ACCEPTANCE,
    DEEP,
    "{ routeStatistics { routes(first: 1000) { originCode destinationCode flights cancelled delayed averageDelay } } }",
    '{ flights(origin: "JFK", carrier: "B6", day: 31, destination: "MCO", first: 100) { id departure arrival } }',
    '{ flights(after: "12345", first: 50) { id scheduledDeparture tailNumber plane { flights(first: 3) { id } } } }',
    '{ airport(code: "") { name } airline(code: "") { name } flight(id: 27005) { id } plane(tailNumber: "") { type } }',
    "{ flights(first: 1000) { weather { hour temperature windGust pressure } arrivalDelay cancelled date } }",
]
SEARCH = 'subscription { searchAirports(id: "mine") { text airports(first: 100) { code name } } }'


@pytest.fixture(scope="module")
def whole() -> Iterator[URL]:
    """A database with all data, which tests do not write to."""
    with database_on(SERVER) as url:
        yield prepared(url)


@pytest.fixture
def empty() -> Iterator[URL]:
    with database_on(SERVER) as url:
        yield url


def prepared(url: URL) -> URL:
    with mock.patch.dict(os.environ, {build.VARIABLE: url.render_as_string()}):
        return build.database_url()


def execute(url: URL, *statements: str) -> list[Any]:
    """The value that each statement brings."""

    async def run() -> list[Any]:
        connection = await asyncpg.connect(url.set(drivername="postgresql").render_as_string())
        try:
            return [await connection.fetchval(statement) for statement in statements]
        finally:
            await connection.close()

    return asyncio.run(run())


def counts(url: URL) -> list[int]:
    tables = ("airlines", "airports", "planes", "weather", "flights")
    return execute(url, *[f"SELECT count(*) FROM {SCHEMA}.{table}" for table in tables])  # noqa: S608  # our names


@pytest.mark.real_time
async def test_the_answers_are_those_of_sqlite(whole: URL) -> None:
    answers: list[list[Any]] = []
    for url in (built(), whole):
        database = Database(url)
        context = {"loaders": AppLoaders(database), "service": Service(database)}
        results = [await schema.execute(query, context_value=context) for query in ORDERED]
        assert [result.errors for result in results] == [None] * len(results)
        answers.append([result.data for result in results])
        searching: Any = await schema.subscribe(SEARCH, context_value=context)
        await anext(searching)
        context["service"].searches.type("mine", "a")  # type: ignore[attr-defined]
        answers[-1].append((await anext(searching)).data)
        await searching.aclose()
        await context["service"].aclose()  # type: ignore[attr-defined]
    assert answers[0] == answers[1]
    assert [item["number"] for item in answers[1][0]["flights"]] == [
        int(flight(id)["flight"]) for id in in_order()[:1000]
    ]


@pytest.mark.real_time
async def test_text_that_it_cannot_hold_gets_an_error_that_says_so(whole: URL) -> None:
    database = Database(whole)
    result = await schema.execute(
        r'{ airport(code: "\u0000") { name } }', context_value={"loaders": AppLoaders(database)}
    )
    await database.aclose()
    assert [error.message for error in result.errors or ()] == [
        "the database takes no such value: text must have no NUL characters"
    ]


def test_the_first_start_builds_says_so_and_the_next_takes_what_is_there(
    empty: URL, small: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared(empty) == empty
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Building {empty}: 16 airlines, 20 airports,")
    assert " done in " in line
    assert prepared(empty) == empty
    assert capsys.readouterr().err == ""
    assert counts(empty) == COMPLETE


@pytest.mark.parametrize(
    "spoil",
    [
        f"DELETE FROM {SCHEMA}.flights WHERE id > 10",  # noqa: S608
        f"DROP TABLE {SCHEMA}.weather",
        f"COMMENT ON SCHEMA {SCHEMA} IS 'The demo of strawberry-loader, which replaces this when its data change: 0'",
    ],
)  # fmt: skip
def test_what_is_ours_and_broken_or_outdated_is_rebuilt(empty: URL, small: None, spoil: str) -> None:
    prepared(empty)
    execute(empty, spoil)
    prepared(empty)
    assert counts(empty) == COMPLETE


def test_a_schema_of_somebody_else_is_left_alone(empty: URL) -> None:
    execute(empty, f"CREATE SCHEMA {SCHEMA}", f"CREATE TABLE {SCHEMA}.flights ()")
    with pytest.raises(build.UnusableDatabaseError, match="is not of this demo and is left alone"):
        prepared(empty)
    assert execute(empty, f"SELECT count(*) FROM {SCHEMA}.flights") == [0]  # noqa: S608


def test_two_starts_at_once_both_come_up_on_one_build(empty: URL) -> None:
    processes = [start(str(empty), most=30_000), start(str(empty), most=30_000)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "".join(said).count("done in") == 1
    assert counts(empty)[-1] == 27004


def test_a_start_that_waits_for_another_says_so(empty: URL) -> None:
    see_one_wait_for_another(str(empty), str(empty))


def test_a_server_that_is_no_postgresql_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = SERVER.set(port=silent.getsockname()[1])
        with pytest.raises(build.UnusableDatabaseError, match=r": no PostgreSQL answered there within [\d.]+ s$"):
            prepared(url)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_start_that_is_killed_leaves_nothing_that_the_next_one_trips_over(
    empty: URL, small: None, moment: str
) -> None:
    kill_at(str(empty), MOMENTS[moment])
    prepared(empty)
    assert counts(empty) == COMPLETE


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_while_it_inserts_ends_and_lets_others_build(
    empty: URL, small: None, how: signal.Signals
) -> None:
    inserting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'INSERT%flights%'"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "example_app", "query", "{ __typename }"],
        env=environment(**{build.VARIABLE: str(empty)}), cwd=ROOT, stderr=subprocess.PIPE, text=True,
    ) as interrupted:  # fmt: skip
        while execute(empty, inserting) == [0]:
            assert interrupted.poll() is None
        interrupted.send_signal(how)
        try:
            said = interrupted.communicate(timeout=10)[1]
        finally:
            interrupted.kill()
    assert said.endswith(" failed\n")
    assert said.count("\n") == 1
    assert interrupted.returncode == 128 + how
    prepared(empty)
    assert counts(empty) == COMPLETE


def test_a_start_undoes_the_delays_unless_another_server_is_at_work(empty: URL, small: None) -> None:
    prepared(empty)
    delay, delayed = (
        f"UPDATE {SCHEMA}.flights SET delayed_by = 30 WHERE id = 7",  # noqa: S608
        f"SELECT delayed_by FROM {SCHEMA}.flights WHERE id = 7",  # noqa: S608
    )
    with build.attached(empty):
        execute(empty, delay)
        with build.attached(empty):
            assert execute(empty, delayed) == [30]
        with build.attached(empty):
            assert execute(empty, delayed) == [30]
    with build.attached(empty):
        assert execute(empty, delayed) == [0]


def test_a_server_that_is_not_there_a_database_that_is_not_and_a_missing_module_get_one_line_each(empty: URL) -> None:
    def refused(url: URL, code: str = "pass") -> str:
        script = f"import sys; {code}; from example_app.__main__ import main; sys.exit(main([]))"
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env=environment(**{build.VARIABLE: url.render_as_string(hide_password=False)}),
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=50,
        )  # fmt: skip
        assert (ran.returncode, ran.stdout) == (1, "")
        (line,) = ran.stderr.splitlines()
        return line

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        line = refused(SERVER.set(port=nobody.getsockname()[1], password="secret"))  # noqa: S106
    assert "cannot use postgresql+asyncpg://postgres:***@127.0.0.1:" in line
    assert "start the server, create the database or permit its use, or name another in EXAMPLE_DATABASE_URL" in line
    assert 'database "nowhere" does not exist' in refused(SERVER.set(database="nowhere"))
    assert refused(empty, "sys.modules['asyncpg'] = None") == (
        "example_app: the module asyncpg is missing: install the demo with pip install -e '.[demo]'"
    )


def test_two_servers_that_start_at_once_both_come_up(empty: URL) -> None:
    start_two_at_once(empty)


def test_each_index_is_there(whole: URL) -> None:
    names = execute(whole, f"SELECT array_agg(indexname::text) FROM pg_indexes WHERE schemaname = '{SCHEMA}'")[0]  # noqa: S608
    assert {index.name for index in models.Flight.__table__.indexes} <= set(names)  # type: ignore[attr-defined]
