"""The departures board: it moves as the data says, at the client's speed, and skips what a slow client cannot take."""
# ruff: noqa: A001, A002  # `id` is GraphQL's word

from __future__ import annotations

import asyncio
import datetime as dt
from collections import defaultdict
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from example_app.board import AHEAD, BEGIN, TICK, Departure, Status, replay
from loader.streams import conflate
from tests.test_example_data import flight, ids_by, in_order
from tests.test_example_service import InThisThread, demo

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from loader.testing import Batches

SINCE = "since must be from 2013-01-01T10:00:00+00:00 to before 2013-02-01T05:00:00+00:00"
FIELDS = "time status flight { id departure departureDelay delayedBy }"


def scheduled(id: str) -> dt.datetime:
    row = flight(id)
    return dt.datetime.fromisoformat(row["time_hour"]) + dt.timedelta(minutes=int(row["minute"]))


def departure(id: str) -> dt.datetime | None:
    row = flight(id)
    return scheduled(id) + dt.timedelta(minutes=int(row["dep_delay"])) if row["dep_time"] else None


def states(id: str, since: dt.datetime, until: dt.datetime, step: dt.timedelta) -> list[str]:
    """What a board must say of a flight, one after the other, if it looks in steps."""
    told: list[str] = []
    now, left = since, departure(id)
    if (left or scheduled(id)) <= since:
        return []
    while now <= until:
        if left is not None and left <= now:
            state = "DEPARTED"
        elif scheduled(id) <= now:
            state = "DELAYED" if left is not None else "CANCELLED"
        else:
            state = "SCHEDULED"
        if scheduled(id) - AHEAD <= now and state not in told:
            told.append(state)
        now += step
    return told


def by_flight(events: Iterable[Any]) -> dict[str, list[str]]:
    groups = defaultdict(list)
    for event in events:
        groups[event["flight"]["id"]].append(event["status"])
    return dict(groups)


async def until(time: dt.datetime, events: AsyncGenerator[Any, None]) -> list[Any]:
    """The events up to a time of the board's clock."""
    seen = []
    async with aclosing(events):
        async for event in events:
            if dt.datetime.fromisoformat(event["time"]) > time:
                break
            seen.append(event)
    return seen


@pytest.mark.parametrize("origin", ["EWR", "JFK", "LGA"])
async def test_each_flight_is_listed_an_hour_ahead_and_then_leaves_when_it_left(origin: str) -> None:
    last = BEGIN + dt.timedelta(hours=4)
    async with demo() as it:
        events = await until(
            last, it.follow(f'subscription {{ departures(origin: "{origin}", speed: 240) {{ {FIELDS} }} }}')
        )
    step = dt.timedelta(seconds=240 * TICK)  # a minute, as the data has it
    expected = {id: states(id, BEGIN, last, step) for id in ids_by("origin")[origin][:400]}
    assert by_flight(events) == {id: told for id, told in expected.items() if told}
    for event in events:
        id = event["flight"]["id"]
        moment = {
            "SCHEDULED": max(scheduled(id) - AHEAD, BEGIN),
            "DELAYED": scheduled(id),
            "CANCELLED": scheduled(id),
            "DEPARTED": departure(id),
        }[event["status"]]
        assert event["time"] == moment.isoformat() if moment is not None else None


async def test_in_a_whole_month_every_flight_comes_and_goes_once_and_the_board_is_never_long() -> None:
    async with demo() as it:
        changes: list[Departure] = [change async for change in replay(it.database, "JFK", 86_400, BEGIN)]
        assert asyncio.get_running_loop().time() < 34
        assert max(statement.rows for statement in it.database.statements) < 300
    gone = [change for change in changes if change.status in (Status.DEPARTED, Status.CANCELLED)]
    assert sorted(change.flight_id for change in gone) == sorted(map(int, ids_by("origin")["JFK"]))
    assert {change.flight_id for change in gone if change.status is Status.CANCELLED} == {
        int(id) for id in ids_by("origin")["JFK"] if departure(id) is None
    }
    times = [change.time for change in changes]
    assert times == sorted(times)


async def test_each_client_has_a_clock_of_its_own() -> None:
    loop = asyncio.get_running_loop()

    async def watch(speed: int) -> tuple[float, list[Any]]:
        query = f'subscription {{ departures(origin: "EWR", speed: {speed}) {{ {FIELDS} }} }}'
        events = await until(BEGIN + dt.timedelta(hours=2), it.follow(query))
        return loop.time(), by_flight(events)  # type: ignore[return-value]

    async with demo() as it:
        (slow_end, slow), (fast_end, fast), (_, same) = await asyncio.gather(watch(60), watch(600), watch(600))
    assert fast == same
    assert list(slow) == list(fast)
    assert slow_end / fast_end == pytest.approx(10, rel=0.02)


async def test_a_board_goes_on_from_where_another_was_at_another_speed() -> None:
    since, last = BEGIN + dt.timedelta(hours=15), BEGIN + dt.timedelta(hours=19)
    async with demo() as it:
        query = f'subscription {{ departures(origin: "LGA", speed: 240, since: "{since.isoformat()}") {{ {FIELDS} }} }}'
        events = await until(last, it.follow(query))
    ids = ids_by("origin")["LGA"][:600]
    expected = {id: states(id, since, last, dt.timedelta(minutes=1)) for id in ids}
    assert by_flight(events) == {id: told for id, told in expected.items() if told}
    assert "DELAYED" in {event["status"] for event in events if event["time"] == since.isoformat()}


async def test_a_time_without_a_zone_is_utc() -> None:
    async with (
        demo() as it,
        aclosing(
            it.follow('subscription { departures(origin: "JFK", since: "2013-01-05T17:00:00") { time } }')
        ) as events,
    ):
        assert (await anext(events))["time"] == "2013-01-05T17:00:00+00:00"


async def test_a_delayed_flight_shows_its_new_times_in_the_next_event_and_leaves_at_them() -> None:
    id = next(id for id in ids_by("origin")["JFK"] if departure(id) == scheduled(id))
    since = scheduled(id) - dt.timedelta(minutes=30)
    query = f'subscription {{ departures(origin: "JFK", speed: 240, since: "{since.isoformat()}") {{ {FIELDS} }} }}'

    async with demo() as it:
        seen = []
        async with aclosing(it.follow(query)) as events:
            async for event in events:
                if event["flight"]["id"] != id:
                    continue
                seen.append(event)
                if event["status"] == "DEPARTED":
                    break
                if len(seen) == 1:
                    await it.ask(f"mutation {{ delayFlight(id: {id}, minutes: 45) {{ id }} }}")
                if len(seen) == 2:
                    await it.ask(f"mutation {{ delayFlight(id: {id}, minutes: 20) {{ id }} }}")
    on_time, minute = scheduled(id), dt.timedelta(minutes=1)
    assert seen == [
        {
            "time": time.isoformat(),
            "status": status,
            "flight": {
                "id": id,
                "departure": (on_time + delay * minute).isoformat(),
                "departureDelay": delay,
                "delayedBy": delay,
            },
        }
        for time, status, delay in [
            (since, "SCHEDULED", 0),
            (since + minute, "DELAYED", 45),
            (since + 2 * minute, "DELAYED", 20),
            (on_time + 20 * minute, "DEPARTED", 20),
        ]
    ]


async def test_a_slow_client_skips_to_the_newest_state_of_each_flight_and_memory_stays_bounded() -> None:
    since = dt.datetime(2013, 1, 30, 5, tzinfo=dt.UTC)
    ids = [id for id in ids_by("origin")["EWR"] if (departure(id) or scheduled(id)) > since]
    async with demo() as it:
        query = (
            f'subscription {{ departures(origin: "EWR", speed: 3600, since: "{since.isoformat()}") {{ {FIELDS} }} }}'
        )
        events = it.follow(query)
        seen = [await anext(events)]
        (stream,) = it.service._streams
        assert isinstance(stream, conflate)
        most = 0
        while stream.received == 0 or len(seen) < 30:
            await asyncio.sleep(1.5)  # of the client's, for each event
            most = max(most, len(stream._flow.held))
            seen.append(await anext(events))
        assert stream.conflated > 100
        assert most < len(ids)
        seen += [event async for event in events]
        assert stream.received == stream.emitted + stream.conflated
    assert len(seen) < 1.2 * len(ids)
    final = {id: told[-1] for id, told in by_flight(seen).items()}
    assert final == {id: "DEPARTED" if departure(id) else "CANCELLED" for id in ids}


async def test_what_a_slow_client_reads_is_fresh_however_long_the_event_waited() -> None:
    async with (
        demo() as it,
        aclosing(
            it.follow(
                f'subscription {{ departures(origin: "JFK", speed: 60, since: "2013-01-03T20:00:00Z") {{ {FIELDS} }} }}'
            )
        ) as events,
    ):
        await anext(events)
        await asyncio.sleep(0.01)
        (stream,) = it.service._streams
        (waiting,) = list(stream._flow.held)[:1]
        await it.ask(f"mutation {{ delayFlight(id: {waiting}, minutes: 77) {{ id }} }}")
        event = await anext(events)
        assert (event["flight"]["id"], event["flight"]["delayedBy"]) == (str(waiting), 77)


async def test_an_event_takes_one_statement_a_loader_and_a_look_takes_one(batches: Batches) -> None:
    async with (
        demo() as it,
        aclosing(
            it.follow(
                'subscription { departures(origin: "JFK", since: "2013-01-03T20:00:00Z") '
                "{ flight { airline { name } destination { name } } } }"
            )
        ) as events,
    ):
        for _ in range(5):
            await anext(events)
        batches.assert_batches(departures=1, flights=5, airlines=5, airports=5)
        assert it.database.taken("Subscription.departures") == 1


class Unreadable(InThisThread):
    """A database that fails the board at its third look."""

    looks = 0

    def session(self, source: str, keys: Any = None) -> Any:
        if source == "Subscription.departures":
            self.looks += 1
            if self.looks == 3:
                raise ConnectionError("no flights today")
        return super().session(source, keys)


async def test_a_look_that_fails_is_an_error_of_the_subscription_after_what_came_before() -> None:
    async with demo(Unreadable) as it:
        query = 'subscription { departures(origin: "JFK", since: "2013-01-03T20:00:00Z") { status } }'
        *before, last = [result async for result in await it.results(query)]
    assert len(before) > 5
    assert [result.errors for result in before] == [None] * len(before)
    assert [error.message for error in last.errors] == [
        "the service failed to answer this: what happened is in its log"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('origin: "LAX"', "origin must be an airport that flights leave from, EWR, JFK or LGA, not 'LAX'"),
        ('origin: "jfk"', "origin must be an airport that flights leave from, EWR, JFK or LGA, not 'jfk'"),
        ('origin: "JFK", speed: 0', "speed must be above 0 and at most 86,400, not 0"),
        ('origin: "JFK", speed: -1.5', "speed must be above 0 and at most 86,400, not -1.5"),
        ('origin: "JFK", speed: 1e300', "speed must be above 0 and at most 86,400, not 1e+300"),
        ('origin: "JFK", speed: 86400.1', "speed must be above 0 and at most 86,400, not 86400.1"),
        (
            'origin: "JFK", since: "2013-01-01T09:59:59Z"',
            f"{SINCE}, not 2013-01-01T09:59:59+00:00",
        ),
        (
            'origin: "JFK", since: "2013-02-01T00:00:00-05:00"',
            f"{SINCE}, not 2013-02-01T00:00:00-05:00",
        ),
    ],
)
async def test_a_bad_argument_gets_an_error_that_says_what_is_good(arguments: str, message: str) -> None:
    async with demo() as it:
        assert await it.error(f"subscription {{ departures({arguments}) {{ time }} }}") == message


def test_every_flight_is_within_the_month_that_is_replayed() -> None:
    assert BEGIN < scheduled(in_order()[0]) < BEGIN + AHEAD
    assert scheduled(in_order()[-1]) < dt.datetime(2013, 2, 1, 5, tzinfo=dt.UTC)
