"""The route statistics: as the data says, refreshed once for a burst of mutations, and served meanwhile."""
# ruff: noqa: A001  # `id` is GraphQL's word

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from example_app.statistics import AT_LATEST, BURST, FRESH_FOR
from tests.test_example_data import flight, in_order, table
from tests.test_example_service import InThisThread, demo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sized

    from sqlalchemy.ext.asyncio import AsyncSession

    from loader.testing import Batches

HOW_OLD = "{ routeStatistics { age refreshes dirty } }"
ROUTES = "routes(first: 1000) { originCode destinationCode flights cancelled delayed averageDelay }"


def now() -> float:
    return asyncio.get_running_loop().time()


def delay(*ids: str, minutes: int) -> str:
    fields = " ".join(f"f{id}: delayFlight(id: {id}, minutes: {minutes}) {{ delayedBy }}" for id in ids)
    return f"mutation {{ {fields} }}"


LEFT = [id for id in in_order()[:60] if flight(id)["dep_time"]][:50]


async def test_they_are_what_the_data_says() -> None:
    delays: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in table("flights"):
        delays[row["origin"], row["dest"]].append(row["dep_delay"])
    async with demo() as it:
        answer = (await it.ask(f"{{ routeStatistics {{ {ROUTES} }} }}"))["routeStatistics"]["routes"]
    assert [(route["originCode"], route["destinationCode"]) for route in answer] == sorted(
        delays, key=lambda ends: (-len(delays[ends]), ends)
    )
    for route in answer:
        of_route = delays[route["originCode"], route["destinationCode"]]
        left = [int(text) for text in of_route if text]
        assert (route["flights"], route["cancelled"], route["delayed"]) == (len(of_route), of_route.count(""), 0)
        assert route["averageDelay"] == (pytest.approx(sum(left) / len(left)) if left else None)


async def test_the_airports_of_all_routes_take_one_statement(batches: Batches) -> None:
    async with demo() as it:
        answer = await it.ask("{ routeStatistics { routes(first: 3) { origin { code } destination { name } } } }")
        batches.assert_batches(airports=1)
        assert [statement.source for statement in it.database.statements] == ["statistics", "airports"]
    assert [route["origin"]["code"] for route in answer["routeStatistics"]["routes"]] == [
        origin for (origin, _), _ in Counter((row["origin"], row["dest"]) for row in table("flights")).most_common(3)
    ]


async def test_all_who_read_share_one_load_and_see_its_age() -> None:
    async with demo() as it:
        answers = await asyncio.gather(*[it.ask(HOW_OLD) for _ in range(20)])
        assert answers == [{"routeStatistics": {"age": 0, "refreshes": 1, "dirty": False}}] * 20
        await asyncio.sleep(12.5)
        assert await it.ask(HOW_OLD) == {"routeStatistics": {"age": 12.5, "refreshes": 1, "dirty": False}}
        assert it.database.taken("statistics") == 1


async def test_many_mutations_in_a_burst_refresh_them_once() -> None:
    async with demo() as it:
        await it.ask(HOW_OLD)
        for id in LEFT:
            await it.ask(delay(id, minutes=90))
            await asyncio.sleep(BURST / 60)
            assert await it.ask(HOW_OLD) == {"routeStatistics": {"age": now(), "refreshes": 1, "dirty": True}}
        await asyncio.sleep(BURST)
        answer = (await it.ask(f"{{ routeStatistics {{ age refreshes dirty {ROUTES} }} }}"))["routeStatistics"]
        assert (answer["age"], answer["refreshes"], answer["dirty"]) == (pytest.approx(BURST / 60), 2, False)
        assert sum(route["delayed"] for route in answer["routes"]) == 50
        assert it.database.taken("statistics") == 2


async def test_mutations_that_never_pause_are_seen_all_the_same() -> None:
    async with demo() as it:
        await it.ask(HOW_OLD)
        for _ in range(int(AT_LATEST / BURST * 2) + 1):
            await it.ask(delay(LEFT[0], minutes=90))
            await asyncio.sleep(BURST / 2)
        assert (await it.ask(HOW_OLD))["routeStatistics"]["refreshes"] == 2


async def test_a_mutation_of_many_fields_is_a_burst_too() -> None:
    async with demo() as it:
        await it.ask(HOW_OLD)
        await it.ask(delay(*LEFT, minutes=10))
        await asyncio.sleep(1)
        assert (await it.ask(HOW_OLD))["routeStatistics"]["refreshes"] == 2


class Failing(InThisThread):
    """A database whose statistics fail when the test likes."""

    failing = False

    def session(self, source: str, keys: Any = None) -> Any:
        if source == "statistics" and self.failing:
            raise ConnectionError("no statistics today")
        return super().session(source, keys)


class Slow(InThisThread):
    """A database whose statistics take three seconds after they were read."""

    @asynccontextmanager
    async def session(self, source: str, keys: Sized | None = None) -> AsyncIterator[AsyncSession]:
        async with super().session(source, keys) as session:
            yield session
            if source == "statistics":
                await asyncio.sleep(3)


async def test_the_old_ones_are_served_at_once_while_they_are_refreshed() -> None:
    async with demo(Slow) as it:
        await it.ask(HOW_OLD)
        assert now() == 3
        await it.ask(delay(LEFT[0], minutes=5))
        await asyncio.sleep(BURST + 1)
        assert await it.ask(HOW_OLD) == {"routeStatistics": {"age": now(), "refreshes": 1, "dirty": True}}
        assert now() == 3 + BURST + 1
        await asyncio.sleep(2.5)
        assert await it.ask(HOW_OLD) == {"routeStatistics": {"age": 3.5, "refreshes": 2, "dirty": False}}


async def test_mutations_during_a_refresh_lead_to_one_more_that_has_them_all() -> None:
    async with demo(Slow) as it:
        await it.ask(HOW_OLD)
        await it.ask(delay(LEFT[0], minutes=5))
        await asyncio.sleep(BURST + 1)
        for id in LEFT[1:11]:
            await it.ask(delay(id, minutes=5))
        await asyncio.sleep(2.25)
        first = (await it.ask(f"{{ routeStatistics {{ refreshes dirty {ROUTES} }} }}"))["routeStatistics"]
        await asyncio.sleep(BURST + 3)
        second = (await it.ask(f"{{ routeStatistics {{ refreshes dirty {ROUTES} }} }}"))["routeStatistics"]
    assert [(answer["refreshes"], answer["dirty"]) for answer in (first, second)] == [(2, True), (3, False)]
    assert [sum(route["delayed"] for route in answer["routes"]) for answer in (first, second)] == [1, 11]


async def test_what_another_process_writes_is_seen_after_a_while() -> None:
    async with demo() as it, demo() as other:
        other.database.engine = it.database.engine
        await it.ask(HOW_OLD)
        await other.ask(delay(LEFT[0], minutes=5))
        await asyncio.sleep(FRESH_FOR)
        assert (await it.ask(HOW_OLD))["routeStatistics"]["refreshes"] == 1  # at once, and refreshed behind that
        await asyncio.sleep(1)
        answer = (await it.ask(f"{{ routeStatistics {{ refreshes {ROUTES} }} }}"))["routeStatistics"]
        assert answer["refreshes"] == 2
        assert sum(route["delayed"] for route in answer["routes"]) == 1


@pytest.mark.logs
async def test_a_refresh_that_fails_leaves_the_old_ones_and_is_tried_again(reports: list[str]) -> None:
    async with demo(Failing) as it:
        await it.ask(HOW_OLD)
        it.database.failing = True  # type: ignore[attr-defined]
        await it.ask(delay(LEFT[0], minutes=5))
        await asyncio.sleep(BURST + 0.5)
        assert (await it.ask(HOW_OLD))["routeStatistics"] == {"age": now(), "refreshes": 1, "dirty": True}
        it.database.failing = False  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        assert (await it.ask(HOW_OLD))["routeStatistics"]["refreshes"] == 1
        await asyncio.sleep(0.25)
        assert (await it.ask(HOW_OLD))["routeStatistics"] == {"age": 0.25, "refreshes": 2, "dirty": False}
    (report,) = reports
    assert "no statistics today" in report


async def test_followers_get_each_refresh_and_slow_ones_the_newest() -> None:
    async with demo() as it:
        query = f"subscription {{ routeStatistics {{ refreshes {ROUTES} }} }}"
        async with aclosing(it.follow(query)) as one, aclosing(it.follow(query)) as two:
            assert [(await anext(one))["refreshes"], (await anext(two))["refreshes"]] == [1, 1]
            for refreshes, id in enumerate(LEFT[:4], start=2):
                await it.ask(delay(id, minutes=5))
                event = await anext(one)
                assert event["refreshes"] == refreshes
                assert sum(route["delayed"] for route in event["routes"]) == refreshes - 1
            assert (await anext(two))["refreshes"] == 5
        assert it.database.taken("statistics") == 5


async def test_the_limit_is_checked() -> None:
    async with demo() as it:
        message = await it.error("{ routeStatistics { routes(first: 0) { flights } } }")
    assert message == "first must be from 1 to 1000, not 0"
