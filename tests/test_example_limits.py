"""What one operation may ask for: hostile ones get an error that says what is wrong, before they cost anything."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from example_app.schema import make_schema
from example_app.settings import Settings
from tests.test_example_schema import ACCEPTANCE, DEEP
from tests.test_example_service import Demo, InThisThread, demo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sized

    from sqlalchemy.ext.asyncio import AsyncSession

INTROSPECTION = "{ __schema { types { name fields { name type { name ofType { name ofType { name } } } } } } }"


async def errors(it: Demo, query: str, settings: Settings | None = None, **variables: Any) -> list[str]:
    """The errors of an operation, which took no statement."""
    schema = make_schema(settings or Settings())
    result = await schema.execute(query, variable_values=variables, context_value=it.context())
    assert it.database.statements == []
    return [error.message for error in result.errors or ()]


def nested(depth: int) -> str:
    return (
        '{ airport(code: "JFK") ' + "{ departures(first: 1) { destination " * depth + "{ code }" + " } }" * depth + " }"
    )


def bomb(levels: int) -> str:
    """Fragments that double what they select with each level."""
    fragments = [f"fragment f{level} on Query {{ ...f{level + 1} ...f{level + 1} }}" for level in range(levels)]
    return "{ ...f0 } " + " ".join(fragments) + f" fragment f{levels} on Query {{ a: __typename }}"


def tangle(fragments: int) -> str:
    """Fragments that each spread all others: there are more ways through them than anybody can go."""
    spreads = " ".join(f"...f{number}" for number in range(fragments))
    return "{ ...f0 } " + " ".join(f"fragment f{number} on Query {{ {spreads} }}" for number in range(fragments))


HOSTILE = {
    "ten thousand aliases": (
        "{ " + " ".join(f'a{n}: airport(code: "JFK") {{ name }}' for n in range(10_000)) + " }",
        "Syntax Error: Document contains more than 2000 tokens. Parsing aborted.",
    ),
    "a hundred and one aliases": (
        "{ " + " ".join(f"a{n}: __typename" for n in range(101)) + " }",
        "101 aliases found. Allowed: 100",
    ),
    "fifty levels": (nested(25), "'anonymous' exceeds maximum operation depth of 12"),
    "a thousand brackets": ("{ flights " * 900, "Syntax Error"),
    "huge pages": ("{ flights(first: 1000000000) { id } }", "first must be from 1 to 1000, not 1000000000"),
    "pages that no number holds": (f"{{ flights(first: {'9' * 5000}) {{ id }} }}", "a number in the operation has too"),
    "pages in pages": (
        "{ flights(first: 1000) { airline { flights(first: 1000) { id } } } }",
        "the operation asks for up to 1,002,001 values, and 50,000 are allowed: lower `first` or select fewer fields",
    ),
    "pages in fragments": (
        "{ flights(first: 1000) { ...f } } fragment f on Flight { airline { flights(first: 1000) { id } } }",
        "the operation asks for up to 1,002,001 values",
    ),
    "default pages in pages": (
        "{ flights { airline { flights { airline { flights { airline { flights { airline { code } } } } } } } } }",
        "the operation asks for up to ",
    ),
    "fragments that double": (bomb(60), "the operation asks for up to 1,152,921,504,606,846,976 values"),
    "fragments that double in a field that is not": (
        bomb(60).replace("{ ...f0 }", "{ nothing { ...f0 } }", 1), "the operation asks for up to ",
    ),
    "fragments that double in an introspection": (
        bomb(60).replace("{ ...f0 }", "{ __schema { ...f0 } }", 1), "the operation asks for up to ",
    ),
    "fragments in a tangle": (tangle(25), "Cannot spread fragment 'f0' within itself."),
    "a fragment of itself": ("{ ...f } fragment f on Query { ...f }", "Cannot spread fragment 'f' within itself."),
    "an unknown fragment": ("{ ...nothing }", "Unknown fragment 'nothing'."),
    "an invalid cursor": ('{ flights(after: "ten") { id } }', "after must be the id of a flight: there is none"),
    "a cursor that no column holds": (f'{{ flights(after: "{"9" * 99}") {{ id }} }}', "after must be the id of a"),
    "wrong types": ("{ airport(code: {a: [1]}) { name } }", "String cannot represent a non string value"),
    "a field that is not": ("{ flights { secret } }", "Cannot query field 'secret' on type 'Flight'."),
    "introspection in circles": (
        "{ __schema { types " + "{ fields { type " * 20 + "{ name }" + " } }" * 20 + " } }",
        "Maximum introspection depth exceeded",
    ),
    "no text": ("{ airport(code: \"\\uD800\") { name } }", "Syntax Error: Invalid Unicode escape sequence"),
    "nothing at all": ("{ }", "a selection of fields is empty"),
    "nothing of a list": ("{ flights { } }", "a selection of fields is empty"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_hostile_operation_gets_an_error_that_says_what_is_wrong(what: str) -> None:
    query, message = HOSTILE[what]
    async with demo() as it:
        assert message in (await errors(it, query))[0]


async def test_first_counts_in_a_variable_too() -> None:
    query = "query ($n: Int = 1) { flights(first: $n) { airline { flights(first: $n) { id } } } }"
    async with demo() as it:
        (error,) = await errors(it, query, n=1000)
        assert "1,002,001 values" in error
        (error,) = await errors(it, query.replace("= 1", "= 1000"))
        assert "1,002,001 values" in error
        (error,) = await errors(it, query.replace(" = 1", "!"), n="many")
        assert "Int cannot represent non-integer value: 'many'" in error


async def test_honest_operations_are_within_the_limits() -> None:
    async with demo() as it:
        in_a_variable = "query ($n: Int = 2) { flights(first: $n) { airline { flights(first: $n) { id } } } }"
        for query in (ACCEPTANCE, DEEP, INTROSPECTION, in_a_variable):
            await it.ask(query)


async def test_introspection_can_be_switched_off() -> None:
    async with demo() as it:
        (error, *_) = await errors(it, INTROSPECTION, Settings(introspection=False))
        assert "introspection has been disabled" in error.lower()


class Endless(InThisThread):
    """A database that does not answer."""

    @asynccontextmanager
    async def session(self, source: str, keys: Sized | None = None) -> AsyncIterator[AsyncSession]:
        await asyncio.sleep(3600)
        async with super().session(source, keys) as session:
            yield session


@pytest.mark.parametrize("query", ["{ flights { id } }", '{ airport(code: "JFK") { name } flight(id: 1) { id } }'])
async def test_an_operation_that_takes_too_long_is_ended_with_an_error(query: str) -> None:
    async with demo(Endless) as it:
        assert await errors(it, query) == ["the operation took longer than 10 s: ask for less at a time"]
        assert asyncio.get_running_loop().time() == 10
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_query_over_a_stream_is_ended_as_well() -> None:
    async with demo(Endless) as it:
        stream: Any = await make_schema(Settings(max_seconds=2)).stream(
            "{ flights { id } }", context_value=it.context()
        )
        results = [result async for result in stream]
    assert [[error.message for error in result.errors] for result in results] == [
        ["the operation took longer than 2 s: ask for less at a time"]
    ]


async def test_a_subscription_may_take_longer() -> None:
    async with demo() as it:
        events = it.follow('subscription { departures(origin: "JFK", speed: 60) { time } }')
        count = 0
        async for _ in events:
            count += 1
            if asyncio.get_running_loop().time() > 60:
                break
        await events.aclose()
    assert count > 10


class Broken(InThisThread):
    """A database that fails with what is nobody's business."""

    def session(self, source: str, keys: Any = None) -> Any:
        raise RuntimeError("the password is secret")


async def test_an_error_that_is_not_for_clients_is_logged_and_masked(caplog: pytest.LogCaptureFixture) -> None:
    async with demo(Broken) as it:
        assert await errors(it, "{ flights { id } }") == [
            "the service failed to answer this: what happened is in its log"
        ]
    assert "the password is secret" in caplog.text
