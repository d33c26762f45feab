"""The mutation of the demo: a flight leaves later, everybody sees it, and a start of the service undoes it."""
# ruff: noqa: A001, A002  # `id` is GraphQL's word

from __future__ import annotations

import datetime as dt
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from example_app import build, sqlite
from tests.test_example_data import flight, in_order
from tests.test_example_schema import clock, number, utc
from tests.test_example_service import demo

if TYPE_CHECKING:
    from loader.testing import Batches

TIMES = "departure departureDelay arrival arrivalDelay delayedBy cancelled"
CANCELLED = next(id for id in in_order() if not flight(id)["dep_time"])


def times(id: str, delay: int) -> dict[str, object]:
    """The times of a flight that left, in the data, as they are after a delay."""
    row = flight(id)
    at = clock(row["arr_time"])
    if at is not None:
        arrival = dt.datetime.combine(dt.date(2013, 1, 1), dt.time.fromisoformat(at)) + dt.timedelta(minutes=delay)
        at = arrival.time().isoformat()
    late = number("arr_delay")(row)
    return {
        "departure": utc(row, int(row["minute"]) + int(row["dep_delay"]) + delay),
        "departureDelay": int(row["dep_delay"]) + delay,
        "arrival": at,
        "arrivalDelay": None if late is None else late + delay,
        "delayedBy": delay,
        "cancelled": False,
    }


@pytest.mark.parametrize("id", ["1", "500", next(id for id in in_order() if flight(id)["arr_time"] == "2355")])
@pytest.mark.parametrize("minutes", [1, 90, 1440])
async def test_a_delay_moves_all_times_of_a_flight_and_0_takes_it_back(id: str, minutes: int) -> None:
    async with demo() as it:
        for delay in (minutes, 7, 0):
            answer = await it.ask(f"mutation {{ delayFlight(id: {id}, minutes: {delay}) {{ {TIMES} }} }}")
            assert answer["delayFlight"] == times(id, delay)
            assert (await it.ask(f"{{ flight(id: {id}) {{ {TIMES} }} }}"))["flight"] == times(id, delay)


async def test_a_flight_whose_arrival_is_unknown_can_be_delayed() -> None:
    id = next(id for id in in_order() if flight(id)["dep_time"] and not flight(id)["arr_time"])
    async with demo() as it:
        answer = await it.ask(f"mutation {{ delayFlight(id: {id}, minutes: 5) {{ {TIMES} }} }}")
    assert answer["delayFlight"] == times(id, 5)


async def test_no_other_flight_is_touched() -> None:
    async with demo() as it:
        await it.ask("mutation { delayFlight(id: 2, minutes: 5) { id } }")
        answer = await it.ask("{ flights(first: 1000) { id departureDelay delayedBy } }")
    assert answer["flights"] == [
        {
            "id": id,
            "departureDelay": int(flight(id)["dep_delay"]) + 5 * (id == "2") if flight(id)["dep_time"] else None,
            "delayedBy": 5 * (id == "2"),
        }
        for id in in_order()[:1000]
    ]


async def test_a_delay_takes_two_statements_and_its_answer_what_it_asks_for(batches: Batches) -> None:
    async with demo() as it:
        await it.ask("mutation { delayFlight(id: 2, minutes: 5) { airline { name } } }")
        sources = [statement.source for statement in it.database.statements]
    assert sources == ["flights", "Mutation.delayFlight", "airlines"]
    assert batches == {"flights": [[2]], "airlines": [[flight("2")["carrier"]]]}


async def test_fields_of_one_mutation_see_what_those_before_them_wrote() -> None:
    async with demo() as it:
        answer = await it.ask(
            """mutation { a: delayFlight(id: 3, minutes: 5) { delayedBy }
                          b: delayFlight(id: 3, minutes: 6) { delayedBy } }"""
        )
    assert answer == {"a": {"delayedBy": 5}, "b": {"delayedBy": 6}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("id: 1, minutes: -1", "minutes must be from 0 to 1440, not -1"),
        ("id: 1, minutes: 1441", "minutes must be from 0 to 1440, not 1441"),
        ("id: 0, minutes: 5", "id must be the id of a flight: there is none with '0'"),
        ("id: 27005, minutes: 5", "id must be the id of a flight: there is none with '27005'"),
        ('id: "soon", minutes: 5', "id must be the id of a flight: there is none with 'soon'"),
        (f"id: {CANCELLED}, minutes: 5", f"flight {CANCELLED} was cancelled: it cannot be delayed"),
    ],
)
async def test_a_bad_argument_gets_an_error_that_says_what_is_good(arguments: str, message: str) -> None:
    async with demo() as it:
        assert await it.error(f"mutation {{ delayFlight({arguments}) {{ id }} }}") == message
        assert it.service.statistics.dirty is False


async def test_a_start_of_the_service_undoes_all_delays_and_rebuilds_nothing() -> None:
    async with demo() as it:
        for id in (1, 2, 3):
            await it.ask(f"mutation {{ delayFlight(id: {id}, minutes: 60) {{ id }} }}")
        url = it.database.engine.url.set(drivername="sqlite+aiosqlite")
        with (
            mock.patch.dict(os.environ, {build.VARIABLE: url.render_as_string()}),
            mock.patch.object(sqlite, "_build") as rebuild,
        ):
            assert build.database_url() == url
        rebuild.assert_not_called()
        assert (await it.ask("{ flight(id: 1) { delayedBy } }"))["flight"]["delayedBy"] == 60
        with build.attached(url):
            pass
        assert (await it.ask(f"{{ flight(id: 1) {{ {TIMES} }} }}"))["flight"] == times("1", 0)
        with closing(sqlite3.connect(url.database or "")) as connection:
            assert connection.execute("SELECT count(*) FROM flights WHERE delayed_by != 0").fetchone() == (0,)


async def test_delays_that_cannot_be_undone_get_one_line() -> None:
    async with demo() as it:
        url = it.database.engine.url
        with closing(sqlite3.connect(url.database or "")) as connection:
            connection.execute("DROP TABLE flights")
        with (
            pytest.raises(build.UnusableDatabaseError, match=r"cannot write to .*flights.sqlite3 \(no such table"),
            build.attached(url),
        ):
            pass
