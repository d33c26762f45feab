"""The search for airports: it answers when the user pauses, with what the newest text finds."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.test_example_data import table
from tests.test_example_service import Demo, demo

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from loader.testing import Batches

SEARCH = 'subscription { searchAirports(id: "%s") { text airports { code } } }'


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


async def type_text(it: Demo, text: str, search: str = "mine") -> None:
    answer = await it.ask(f'mutation {{ typeSearch(id: "{search}", text: "{text}") }}')
    assert answer == {"typeSearch": True}


@asynccontextmanager
async def searching(it: Demo, search: str = "mine") -> AsyncIterator[AsyncGenerator[Any, None]]:
    async with aclosing(it.follow(SEARCH % search)) as answers:
        assert await anext(answers) == {"text": "", "airports": []}
        yield answers


def found(text: str, first: int = 10) -> list[dict[str, str]]:
    rows = [row for row in table("airports") if row["faa"] == text.upper() or text.lower() in row["name"].lower()]
    rows.sort(key=lambda row: (row["faa"] != text.upper(), row["name"], row["faa"]))
    return [{"code": row["faa"]} for row in rows[:first]]


async def test_only_a_pause_is_answered_with_the_newest_text() -> None:
    async with demo() as it, searching(it) as answers:
        answer = asyncio.ensure_future(anext(answers))
        for length in range(1, 8):
            await asyncio.sleep(0.1)
            await type_text(it, "kennedy"[:length])
        assert it.database.taken("AirportSearch.airports") == 0
        assert await answer == {"text": "kennedy", "airports": found("kennedy")}
        assert now() == pytest.approx(0.7 + 0.3)
        assert it.database.taken("AirportSearch.airports") == 1
        answer = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(5)
        await type_text(it, "boston")
        assert (await answer)["text"] == "boston"
        assert now() == pytest.approx(6.0 + 0.3)


async def test_typing_without_a_pause_is_answered_now_and_then() -> None:
    async with demo() as it, searching(it) as answers:

        async def hammer() -> None:
            for count in range(40):
                await type_text(it, f"a{count}")
                await asyncio.sleep(0.1)

        typing = asyncio.create_task(hammer())
        texts = [(await anext(answers))["text"] for _ in range(3)]
        await typing
    assert texts[-1] == "a39"
    assert len(texts) == 3


@pytest.mark.parametrize("text", ["kennedy", "jfk", "JFK", "o'hare", "intl", "  boston ", "nowhere at all", "%", "_"])
async def test_airports_are_found_by_code_and_by_name(text: str) -> None:
    async with demo() as it, searching(it) as answers:
        await type_text(it, text)
        assert await anext(answers) == {"text": text, "airports": found(text.strip())}


async def test_what_is_found_can_be_asked_further_and_fewer(batches: Batches) -> None:
    async with (
        demo() as it,
        aclosing(
            it.follow(
                'subscription { searchAirports(id: "mine") { airports(first: 2) { name arrivals(first: 1) { id } } } }'
            )
        ) as answers,
    ):
        await anext(answers)
        await type_text(it, "intl")
        airports = (await anext(answers))["airports"]
        assert len(airports) == 2
        assert len(batches["arrivals"]) == 1


async def test_each_search_hears_its_own_keystrokes() -> None:
    async with demo() as it, searching(it, "one") as one, searching(it, "two") as two:
        await type_text(it, "newark", "one")
        await type_text(it, "guardia", "two")
        assert [(await anext(one))["text"], (await anext(two))["text"]] == ["newark", "guardia"]


async def test_a_text_without_anything_finds_nothing_and_asks_nobody() -> None:
    async with demo() as it, searching(it) as answers:
        await type_text(it, "  ")
        assert await anext(answers) == {"text": "  ", "airports": []}
        assert it.database.statements == []


async def test_a_search_is_over_when_its_subscription_is() -> None:
    async with demo() as it:
        async with searching(it):
            pass
        message = "id must be that of an open search, not 'mine': subscribe to searchAirports first"
        assert await it.error('mutation { typeSearch(id: "mine", text: "x") }') == message
        async with searching(it) as answers:
            await type_text(it, "newark")
            assert (await anext(answers))["text"] == "newark"


async def test_a_new_subscription_takes_over_its_id_and_the_one_that_had_it_ends() -> None:
    async with demo() as it, searching(it) as old:
        await type_text(it, "guardia")
        async with searching(it) as new:
            assert [event async for event in old] == []
            await type_text(it, "newark")  # the end of the old one has not closed the new one
            assert (await anext(new))["text"] == "newark"
        message = "id must be that of an open search, not 'mine': subscribe to searchAirports first"
        assert await it.error('mutation { typeSearch(id: "mine", text: "x") }') == message


async def test_the_last_of_many_subscriptions_to_an_id_has_it() -> None:
    async with demo() as it, searching(it) as first, searching(it) as second, searching(it) as third:
        assert [event async for event in second] == []
        await type_text(it, "newark")
        assert (await anext(third))["text"] == "newark"
        assert [event async for event in first] == []


async def test_a_text_that_nobody_types_is_refused() -> None:
    async with demo() as it, searching(it):
        message = await it.error(f'mutation {{ typeSearch(id: "mine", text: "{"x" * 101}") }}')
        assert message == "text must have 100 characters at most, not 101"
        assert await it.error(SEARCH % ("x" * 5000)) == "id must have 100 characters at most, not 5000"


async def test_a_slow_client_gets_the_newest_answer() -> None:
    async with demo() as it, searching(it) as answers:
        for count in range(30):
            await type_text(it, f"a{count}")
            await asyncio.sleep(1)
        assert (await anext(answers))["text"] == "a29"
