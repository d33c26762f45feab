"""The comparison: the same schema, the same answers, and statements counted where the engine sends them."""
# ruff: noqa: A001  # `id` is GraphQL's word

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from example_app import compare
from example_app.by_hand import ByHand
from example_app.compare import MOST_WAITING, Comparison, verdict
from example_app.questions import QUESTIONS, Question
from example_app.schema import make_schema
from example_app.settings import Settings
from tests.test_example_data import flight, ids_by
from tests.test_example_service import Demo, demo, others

SMALL = Question(
    "small", "A few", 5, 'query Small($first: Int!) { flights(origin: "JFK", first: $first) { airline { name } } }'
)


async def ask(comparison: Comparison, question: Question) -> tuple[dict[str, Any], Any]:
    """What each way took, by its id, and the last event."""
    async with aclosing(comparison.events(question)) as events:
        told = [event async for event in events]
    return {event["way"]: event for event in told if event.get("done")}, told[-1]


def test_resolvers_by_hand_make_the_same_schema() -> None:
    assert make_schema(Settings(), ByHand, plan=False).as_str() == make_schema(Settings()).as_str()


FEW = {"departures": 5, "onward": 8, "aircraft": 5, "deep": 7}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
async def test_each_question_has_equal_answers_from_many_statements_and_from_few(question: Question) -> None:
    async with demo() as it:
        took, last = await ask(Comparison(it.service, Settings()), replace(question, first=10))
    assert [each["errors"] for each in took.values()] == [[], [], []]
    assert took["planned"]["statements"] == took["hand"]["statements"] == FEW[question.id]
    assert took["one"]["statements"] > 10 * FEW[question.id] / 2
    assert last["equal"] is True
    assert last["values"] >= 50
    for each in took.values():
        assert sum(sql["times"] for sql in each["sql"]) == each["statements"]


async def test_without_loaders_every_field_that_has_a_key_is_a_statement() -> None:
    flights = [flight(id) for id in ids_by("origin")["JFK"] if flight(id)["day"] == "15"][:30]
    async with demo() as it:
        sent: list[str] = []
        event.listen(it.database.engine.sync_engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
        took, last = await ask(Comparison(it.service, Settings()), replace(QUESTIONS[0], first=30))
    assert len(flights) == 30
    assert took["one"]["statements"] == 1 + sum(3 + bool(row["tailnum"]) for row in flights)
    # Each way began with a question for one flight, which it is not charged for.
    assert len(sent) == sum(each["statements"] for each in took.values()) + 3 * 5
    assert last["equal"] is True


async def test_other_requests_meanwhile_are_not_counted() -> None:
    async with demo() as it:
        events = Comparison(it.service, Settings()).events(SMALL)
        told = []
        async with aclosing(events):
            async for each in events:
                told.append(each)
                await it.ask("{ flights(first: 3) { plane { model } } }")
    assert [each["statements"] for each in told if each.get("done")] == [6, 2, 2]


async def test_a_way_that_takes_too_many_statements_is_stopped_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MOST_STATEMENTS", 50)
    async with demo() as it:
        took, last = await ask(Comparison(it.service, Settings()), replace(QUESTIONS[0], first=20))
    assert took["one"]["errors"] == ["stopped after 50 statements"]
    assert took["one"]["statements"] == 50
    assert (took["planned"]["errors"], took["planned"]["statements"]) == ([], 5)
    assert last == {"equal": None, "values": 0}


async def test_the_limits_of_the_service_hold_for_the_comparison_too() -> None:
    async with demo() as it:
        took, last = await ask(Comparison(it.service, Settings(max_values=100)), QUESTIONS[0])
    for each in took.values():
        (error,) = each["errors"]
        assert error.startswith("the operation asks for up to 1,201 values, and 100 are allowed")
        assert each["statements"] == 0
        assert each["waterfall"]["rows"] == []
    assert last["equal"] is None


async def test_with_a_shared_cache_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "CACHE", object())
    async with demo() as it:
        took, last = await ask(Comparison(it.service, Settings()), SMALL)
    assert (took, list(last)) == ({}, ["error"])
    assert last["error"].endswith("start without EXAMPLE_REDIS_URL.")


async def test_one_comparison_is_made_at_a_time_and_no_more_than_some_wait() -> None:
    async with demo() as it:
        comparison = Comparison(it.service, Settings())
        order: list[int] = []

        async def visitor(number: int) -> Any:
            told = []
            async with aclosing(comparison.events(SMALL)) as events:
                async for event in events:
                    order.append(number)
                    told.append(event)
            return told[-1]

        last = await asyncio.gather(*map(visitor, range(MOST_WAITING + 2)))
        assert [each.get("equal") for each in last] == [True] * (MOST_WAITING + 1) + [None]
        assert last[-1] == {"error": "too many others compare at this moment, try again soon."}
        del order[order.index(MOST_WAITING + 1)]
        assert order == sorted(order)
        assert (await ask(comparison, SMALL))[1]["equal"] is True


async def test_a_visitor_who_leaves_ends_the_run_and_the_next_one_has_the_turn() -> None:
    async with demo() as it:
        comparison = Comparison(it.service, Settings())
        events = comparison.events(QUESTIONS[0])
        assert await anext(events) == {"way": "one", "statements": 0, "done": False}
        waiting = asyncio.create_task(ask(comparison, SMALL))
        await asyncio.sleep(0)
        await events.aclose()
        assert (await waiting)[1]["equal"] is True
        assert not others()


async def test_a_visitor_who_leaves_while_waiting_leaves_the_line() -> None:
    async with demo() as it:
        comparison = Comparison(it.service, Settings())
        events = comparison.events(SMALL)
        await anext(events)
        waiting = [asyncio.create_task(ask(comparison, SMALL)) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        last = asyncio.create_task(ask(comparison, SMALL))
        await asyncio.sleep(0)
        await events.aclose()
        assert (await last)[1]["equal"] is True


@pytest.mark.parametrize(
    ("answers", "equal", "values"),
    [
        ([{"a": [1, {"b": None}], "c": "x"}, {"c": "x", "a": [1, {"b": None}]}], True, 3),
        ([{"a": 1}, {"a": 1}, {"a": 2}], False, 1),
        ([{"a": 1}, {"a": "1"}], False, 1),
        ([{"a": [1, 2]}, {"a": [2, 1]}], False, 2),
        ([{"a": []}, {"a": []}], True, 0),
        ([{"a": 1}, None], None, 0),
    ],
)
def test_answers_are_equal_if_they_are_the_same_json_in_whatever_order_of_fields(
    answers: list[Any], equal: bool | None, values: int
) -> None:
    assert verdict(answers) == {"equal": equal, "values": values}


async def waterfalls(it: Demo) -> dict[str, Any]:
    took, _ = await ask(Comparison(it.service, Settings()), replace(QUESTIONS[1], first=20))
    return {way: each["waterfall"] for way, each in took.items()}


@pytest.mark.real_time
async def test_the_waterfall_of_few_batches_has_a_row_for_each_in_order_after_the_list_itself() -> None:
    async with demo() as it:
        drawn = await waterfalls(it)
    for way in "hand", "planned":
        assert drawn[way]["many"] is False
        names = [row["name"] for row in drawn[way]["rows"]]
        assert names[0] == "the list"
        assert sorted(names[1:5]) == ["airlines", "airports", "planes", "weather"]
        assert (names[5], sorted(names[6:])) == ("arrivals(first=3)", ["airlines", "planes"])
        assert [row["keys"] for row in drawn[way]["rows"] if row["name"] == "arrivals(first=3)"] == [16]
        before = 0.0
        for row in drawn[way]["rows"]:
            ends = [time for bit in row["bits"] for time in (bit["begin"], bit["end"])]
            assert ends == sorted(ends)
            assert before <= ends[0]
            assert ends[-1] <= drawn[way]["seconds"]
            before = ends[0]


@pytest.mark.real_time
async def test_the_waterfall_of_many_batches_has_a_row_for_each_loader() -> None:
    async with demo() as it:
        drawn = (await waterfalls(it))["one"]
    assert drawn["many"] is True
    batches = {row["name"]: row["batches"] for row in drawn["rows"]}
    assert batches == {
        "the list": 1, "airlines": 71, "planes": 71, "weather": 20, "airports": 20, "arrivals(first=3)": 17,
    }  # fmt: skip
    for row in drawn["rows"]:
        assert len(row["busy"]) == 96
        assert max(row["busy"]) > 0
