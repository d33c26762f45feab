"""A failure that many fields share is logged once; the response has it for each of them.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import logging
from typing import Any

import pytest
import strawberry
from graphql import GraphQLError

from loader import Loaders, dataloader
from loader.strawberry import LoaderExtension, install, relation

COUNT = 1000
FEW = 20


class Failing(Loaders):
    @dataloader
    async def together(self, keys: list[int]) -> list[int]:
        raise OSError("the database is gone")

    @dataloader
    async def apart(self, keys: list[int]) -> list[int | BaseException]:
        return [ValueError(f"no {key}") for key in keys]


@strawberry.type
class Item:
    id: int
    related: int | None = relation(Failing.together, "id")

    @strawberry.field
    async def together(self, info: strawberry.Info[Any, None]) -> int | None:
        value: int = await info.context["loaders"].together.load(self.id)
        return value

    @strawberry.field
    async def apart(self, info: strawberry.Info[Any, None]) -> int | None:
        value: int = await info.context["loaders"].apart.load(self.id)
        return value


@strawberry.type
class Query:
    @strawberry.field
    def items(self, first: int) -> list[Item]:
        return [Item(id=n) for n in range(first)]


def installed(schema: strawberry.Schema) -> strawberry.Schema:
    install(schema)
    return schema


SCHEMAS = {
    "install": installed(strawberry.Schema(Query)),
    "extension": strawberry.Schema(Query, extensions=[LoaderExtension]),
}


async def execute(schema: strawberry.Schema, query: str) -> Any:
    async with Failing() as loaders:
        return await schema.execute(query, context_value={"loaders": loaders})


@pytest.mark.parametrize(
    ("way", "field", "count"),
    [("install", "related", COUNT), ("install", "together", FEW), ("extension", "together", FEW)],
)
async def test_a_batch_that_fails_many_fields_is_logged_once(
    way: str, field: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    result = await execute(SCHEMAS[way], f"{{ items(first: {count}) {{ {field} }} }}")
    assert result.data == {"items": [{field: None}] * count}
    assert sorted(error.path for error in result.errors) == [["items", n, field] for n in range(count)]
    assert {error.message for error in result.errors} == {"the database is gone"}
    (record,) = [record for record in caplog.records if record.name == "strawberry.execution"]
    first, *_ = record.getMessage().splitlines()
    assert first == f"the database is gone (in {count} fields, the first of which is named here)"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OSError)
    assert "raise OSError" in caplog.text


async def test_failures_of_their_own_are_logged_each(caplog: pytest.LogCaptureFixture) -> None:
    result = await execute(SCHEMAS["install"], "{ items(first: 3) { apart } }")
    assert [error.message for error in result.errors] == ["no 0", "no 1", "no 2"]
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == ["no 0", "no 1", "no 2"]


async def test_each_batch_is_logged_with_its_own_number(caplog: pytest.LogCaptureFixture) -> None:
    result = await execute(SCHEMAS["install"], "{ a: items(first: 3) { together apart } }")
    assert len(result.errors) == 6
    assert sorted(record.getMessage().splitlines()[0] for record in caplog.records) == [
        "no 0",
        "no 1",
        "no 2",
        "the database is gone (in 3 fields, the first of which is named here)",
    ]


async def test_errors_that_no_resolver_raised_are_logged_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    result = await execute(SCHEMAS["install"], "{ nothing never }")
    assert len(result.errors) == 2
    assert [record.getMessage().splitlines()[0] for record in caplog.records] == [
        error.message for error in result.errors
    ]


class Schema(strawberry.Schema):
    """A schema that processes errors in its own way."""

    def process_errors(self, errors: list[GraphQLError], execution_context: Any = None) -> None:
        execution_context.context["errors"].extend(errors)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_process_errors_of_the_users_own_gets_each_failure_once(
    times: int, caplog: pytest.LogCaptureFixture
) -> None:
    schema = Schema(Query)
    for _ in range(times):
        install(schema)
    processed: list[GraphQLError] = []
    async with Failing() as loaders:
        result = await schema.execute(
            f"{{ items(first: {FEW}) {{ together }} }}", context_value={"loaders": loaders, "errors": processed}
        )
    assert result.errors is not None
    (error,) = processed
    assert error.message == f"the database is gone (in {FEW} fields, the first of which is named here)"
    assert error.original_error is result.errors[0].original_error
    assert (error.path, error.nodes) == (result.errors[0].path, result.errors[0].nodes)
    assert error.__traceback__ is result.errors[0].__traceback__
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


class Masking(strawberry.Schema):
    """A schema that hides what happened, in place."""

    def process_errors(self, errors: list[GraphQLError], execution_context: Any = None) -> None:
        for error in errors:
            if isinstance(error.original_error, ValueError):
                error.message = f"sorry: {error.message}"
                continue
            error.message = "sorry"
            error.extensions = {"code": 500}
            error.original_error = None


async def test_what_process_errors_hides_is_hidden_in_all_fields() -> None:
    schema = installed(Masking(Query))
    result = await execute(schema, "{ items(first: 3) { apart together } }")
    assert sorted(error.message for error in result.errors) == [
        *("sorry", "sorry", "sorry"),
        *("sorry: no 0", "sorry: no 1", "sorry: no 2"),
    ]
    hidden = [error for error in result.errors if error.message == "sorry"]
    assert {error.path[1] for error in hidden} == {0, 1, 2}
    assert all((error.extensions, error.original_error) == ({"code": 500}, None) for error in hidden)


async def test_what_process_errors_adds_to_a_message_is_added_in_all_fields() -> None:
    class Numbering(strawberry.Schema):
        def process_errors(self, errors: list[GraphQLError], execution_context: Any = None) -> None:
            for number, error in enumerate(errors):
                error.message = f"[{number}] {error.message}"
                error.extensions = {**(error.extensions or {}), "number": number}

    result = await execute(installed(Numbering(Query)), "{ items(first: 3) { together } }")
    assert [error.message for error in result.errors] == ["[0] the database is gone"] * 3
    assert [error.extensions for error in result.errors] == [{"number": 0}] * 3


async def test_an_error_that_is_one_object_in_all_fields_is_changed_once() -> None:
    inner = GraphQLError("inner", path=["boom"])  # as of another operation: it is not wrapped again

    class Inner(Loaders):
        @dataloader
        async def together(self, keys: list[int]) -> list[int]:
            raise inner

        @dataloader
        async def apart(self, keys: list[int]) -> list[int]:
            return keys

    class Prefixing(strawberry.Schema):
        def process_errors(self, errors: list[GraphQLError], execution_context: Any = None) -> None:
            for error in errors:
                error.message = f"[7] {error.message}"

    schema = installed(Prefixing(Query))
    async with Inner() as loaders:
        result: Any = await schema.execute("{ items(first: 3) { together } }", context_value={"loaders": loaders})
    assert [error.message for error in result.errors] == ["[7] inner"] * 3
