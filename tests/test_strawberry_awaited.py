"""Resolvers that are `def` and return a loader's awaitable, behind async permissions and field extensions.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""
# The decorators of Strawberry are untyped when they get extensions or permissions:
# mypy: disable-error-code="untyped-decorator"

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
import strawberry
from strawberry.extensions import FieldExtension, SchemaExtension
from strawberry.permission import BasePermission

from loader import LoaderLoopError, Loaders, dataloader
from loader.strawberry import LoaderExtension, install, relation

Info = strawberry.Info[dict[str, Any], None]


class Names(Loaders):
    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    @dataloader
    async def names(self, ids: list[int]) -> dict[int, str]:
        self.batches.append(list(ids))
        return {id: f"name {id}" for id in ids}  # noqa: A001  # what a key is called


class Allowed(BasePermission):
    message = "not you"

    async def has_permission(self, source: Any, info: Any, **kwargs: Any) -> bool:
        await asyncio.sleep(0)
        allowed: bool = info.context.get("allowed", True)
        return allowed


class AllowedAtOnce(BasePermission):
    message = "not you"

    def has_permission(self, source: Any, info: Any, **kwargs: Any) -> bool:
        allowed: bool = info.context.get("allowed", True)
        return allowed


class Upper(FieldExtension):
    """Works on the value."""

    async def resolve_async(self, next_: Any, source: Any, info: Any, **kwargs: Any) -> Any:
        return (await next_(source, info, **kwargs)).upper()


class Exclaim(FieldExtension):
    """Works on the value, and changes its field when the schema is built."""

    def __init__(self) -> None:
        self.applied = 0

    def apply(self, field: Any) -> None:
        self.applied += 1

    async def resolve_async(self, next_: Any, source: Any, info: Any, **kwargs: Any) -> Any:
        return (await next_(source, info, **kwargs)) + "!"


class Passing(FieldExtension):
    """Passes on what it gets, one way or the other."""

    def resolve(self, next_: Any, source: Any, info: Any, **kwargs: Any) -> Any:
        return next_(source, info, **kwargs)

    async def resolve_async(self, next_: Any, source: Any, info: Any, **kwargs: Any) -> Any:
        return await next_(source, info, **kwargs)


class Next(FieldExtension):
    """Only synchronous, and gives the resolver another argument."""

    def resolve(self, next_: Any, source: Any, info: Any, **kwargs: Any) -> Any:
        return next_(source, info, id=kwargs["id"] + 1)


class OnlyApplied(FieldExtension):
    """Takes no part in resolving."""


class Renaming(FieldExtension):
    """Only maps arguments."""

    def map_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"id": kwargs["id"] * 2}


exclaim = Exclaim()


@strawberry.interface
class Named:
    id: int

    @strawberry.field(permission_classes=[Allowed])
    def name(self, info: Info) -> str:
        return info.context["loaders"].names.load(self.id)  # type: ignore[no-any-return]


@strawberry.type
class User(Named):
    related: str = relation(Names.names, "id", permission_classes=[Allowed])
    upper: str = relation(Names.names, "id", extensions=[Upper()])

    @strawberry.field(extensions=[Upper(), exclaim])
    def shout(self, info: Info) -> str:
        return info.context["loaders"].names.load(self.id)  # type: ignore[no-any-return]

    @strawberry.field(permission_classes=[Allowed], extensions=[Passing(), Upper()])
    def all_of_them(self, info: Info) -> str:
        return info.context["loaders"].names.load(self.id)  # type: ignore[no-any-return]

    @strawberry.field(permission_classes=[AllowedAtOnce])
    def at_once(self, info: Info) -> str:
        return info.context["loaders"].names.load(self.id)  # type: ignore[no-any-return]

    @strawberry.field(permission_classes=[Allowed], extensions=[Upper()])
    def value(self) -> str:
        return f"value {self.id}"

    @strawberry.field(permission_classes=[Allowed], extensions=[Upper()])
    async def as_ever(self, info: Info) -> str:
        name: str = await info.context["loaders"].names.load(self.id)
        return name


@strawberry.type
class Query:
    @strawberry.field
    def users(self) -> list[User]:
        return [User(id=1), User(id=2)]

    @strawberry.field
    def named(self) -> list[Named]:
        return [User(id=1), User(id=2)]

    @strawberry.field(extensions=[Next(), Passing(), Upper()])
    def other(self, info: Info, id: int) -> str:  # noqa: A002  # the argument's name in the schema
        return info.context["loaders"].names.load(id)  # type: ignore[no-any-return]

    @strawberry.field(extensions=[OnlyApplied(), Renaming(), Upper()])
    def mapped(self, info: Info, id: int) -> str:  # noqa: A002  # the argument's name in the schema
        return info.context["loaders"].names.load(id)  # type: ignore[no-any-return]

    @strawberry.field
    def plain(self) -> str:
        return "plain"


@strawberry.type
class Subscription:
    @strawberry.subscription(permission_classes=[Allowed])
    def returned(self, info: Info) -> AsyncIterator[str]:
        async def source() -> AsyncGenerator[str, None]:
            for id_ in (1, 2):
                yield await info.context["loaders"].names.load(id_)

        return source()

    @strawberry.subscription(permission_classes=[Allowed])
    async def generated(self, info: Info) -> AsyncGenerator[str, None]:
        for id_ in (1, 2):
            yield await info.context["loaders"].names.load(id_)


def schema_by(way: str) -> strawberry.Schema:
    if way == "extension":
        return strawberry.Schema(Query, subscription=Subscription, types=[User], extensions=[LoaderExtension])
    schema = strawberry.Schema(Query, subscription=Subscription, types=[User])
    install(schema)
    return schema


@pytest.fixture(params=["install", "extension"])
def schema(request: pytest.FixtureRequest) -> strawberry.Schema:
    return schema_by(request.param)


QUERIES = {
    "{ users { name } }": {"users": [{"name": "name 1"}, {"name": "name 2"}]},
    "{ named { name } }": {"named": [{"name": "name 1"}, {"name": "name 2"}]},
    "{ users { related } }": {"users": [{"related": "name 1"}, {"related": "name 2"}]},
    "{ users { upper } }": {"users": [{"upper": "NAME 1"}, {"upper": "NAME 2"}]},
    "{ users { shout } }": {"users": [{"shout": "NAME 1!"}, {"shout": "NAME 2!"}]},
    "{ users { allOfThem } }": {"users": [{"allOfThem": "NAME 1"}, {"allOfThem": "NAME 2"}]},
    "{ users { atOnce } }": {"users": [{"atOnce": "name 1"}, {"atOnce": "name 2"}]},
    "{ users { asEver } }": {"users": [{"asEver": "NAME 1"}, {"asEver": "NAME 2"}]},
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.every_loop
async def test_extensions_get_the_value(loop_kind: str, schema: strawberry.Schema, query: str) -> None:
    async with Names() as loaders:
        result = await schema.execute(query, context_value={"loaders": loaders})
    assert result.errors is None
    assert result.data == QUERIES[query]
    assert loaders.batches == [[1, 2]]


async def test_a_resolver_that_returns_a_value_stays_as_it_is(schema: strawberry.Schema) -> None:
    result = await schema.execute("{ users { value } }", context_value={})
    assert result.errors is None
    assert result.data == {"users": [{"value": "VALUE 1"}, {"value": "VALUE 2"}]}


async def test_extensions_around_it_may_change_the_arguments(schema: strawberry.Schema) -> None:
    async with Names() as loaders:
        result = await schema.execute("{ other(id: 1) mapped(id: 2) }", context_value={"loaders": loaders})
    assert result.errors is None
    assert result.data == {"other": "NAME 2", "mapped": "NAME 4"}
    assert loaders.batches == [[2, 4]]


@pytest.mark.parametrize("field", ["name", "related", "allOfThem", "atOnce"])
async def test_a_permission_that_is_refused_asks_nothing(schema: strawberry.Schema, field: str) -> None:
    async with Names() as loaders:
        result = await schema.execute(
            f"{{ users {{ {field} }} }}", context_value={"loaders": loaders, "allowed": False}
        )
    assert result.errors is not None
    assert {error.message for error in result.errors} == {"not you"}
    assert loaders.batches == []


def test_extensions_are_applied_once() -> None:
    exclaim.applied = 0
    schema = schema_by("install")
    install(schema)
    assert exclaim.applied == 1


@pytest.mark.parametrize("field", ["returned", "generated"])
async def test_a_subscription_behind_an_async_permission_goes_on_as_ever(schema: strawberry.Schema, field: str) -> None:
    async with Names() as loaders:
        results = await schema.subscribe(f"subscription {{ {field} }}", context_value={"loaders": loaders})
        assert [result.data async for result in results] == [{field: "name 1"}, {field: "name 2"}]


# Without an event loop


def test_execute_sync_works_where_nothing_is_loaded(schema: strawberry.Schema) -> None:
    assert schema.execute_sync("{ plain }", context_value={}).data == {"plain": "plain"}


def test_execute_sync_with_a_load_says_what_is_missing(schema: strawberry.Schema) -> None:
    result = schema.execute_sync("{ users { atOnce } }", context_value={"loaders": Names()})
    assert result.errors is not None
    assert {type(error.original_error) for error in result.errors} == {LoaderLoopError}
    assert "no event loop runs" in result.errors[0].message


# The schema's other parts


def test_installing_again_sets_the_options_anew() -> None:
    schema = schema_by("install")
    (before,) = schema.extensions
    executor: Any = schema.execution_context_class
    install(schema, plan=False, early_execution=True)
    again: Any = schema.execution_context_class
    assert list(schema.extensions) == [before] == [LoaderExtension]
    assert (executor.loader_early_execution, again.loader_early_execution) == (False, True)
    assert executor.loader_base is again.loader_base
    assert executor not in again.__mro__


async def test_the_executor_class_and_the_extensions_of_the_user_still_run() -> None:
    from strawberry.schema.schema import StrawberryGraphQLCoreExecutionContext

    seen: list[Any] = []

    class Executor(StrawberryGraphQLCoreExecutionContext):
        def build_response(self, data: Any) -> Any:
            seen.append("executor")
            return super().build_response(data)

    class Around(SchemaExtension):
        async def on_operation(self) -> AsyncIterator[None]:
            seen.append(await self.execution_context.context["loaders"].names.load(1))
            yield
            seen.append("after")

        async def resolve(self, _next: Any, root: Any, info: Any, *args: Any, **kwargs: Any) -> Any:
            value = _next(root, info, *args, **kwargs)
            value = await value if asyncio.isfuture(value) or asyncio.iscoroutine(value) else value
            seen.append(info.field_name)
            return value

    schema = strawberry.Schema(Query, types=[User], extensions=[Around], execution_context_class=Executor)
    install(schema)
    assert list(schema.extensions) == [LoaderExtension, Around]
    async with Names() as loaders:
        result = await schema.execute("{ users { related upper name } }", context_value={"loaders": loaders})
    assert result.errors is None
    assert result.data is not None
    assert result.data["users"][1] == {"related": "name 2", "upper": "NAME 2", "name": "name 2"}
    assert seen[0] == "name 1"
    assert seen[1] == "users"
    assert sorted(seen[2:-2]) == ["name", "name", "related", "related", "upper", "upper"]
    assert seen[-2:] == ["executor", "after"]
    assert loaders.batches == [[1], [2]]  # the extension's scope is that of the operation
