"""The plan calls once what is to be called, and holds back nothing that waits; a failed list is not completed again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import strawberry
from strawberry.permission import BasePermission
from strawberry.types.field import StrawberryField

from loader import Loaders, dataloader
from loader.strawberry import install, relation
from tests.answers import INCREMENTAL, Log, QuietSchema, answers, ask, schemas


class Names(Loaders):
    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        self.log.batches.append(("names", ids))
        return [f"name {number}" for number in ids]

    @dataloader
    async def slow(self, ids: list[int]) -> list[str]:
        self.log.batches.append(("slow", ids))
        await asyncio.sleep(1)
        return [f"name {number}" for number in ids]


class NotTheSecond(BasePermission):
    message = "not the second"

    def has_permission(self, source: Any, info: strawberry.Info, **_: Any) -> bool:
        info.context["loaders"].log.call("permission", info)
        return bool(source.number != 1)


@strawberry.type
class Node:
    number: int
    name: str | None = relation(Names.names, "number")
    guarded: str = relation(Names.names, "number", permission_classes=[NotTheSecond])

    @strawberry.field
    def nodes(self, info: strawberry.Info) -> list["Node"]:
        info.context["loaders"].log.call("nodes", info)
        return [Node(number=0), Node(number=1)]

    @strawberry.field
    def value(self, info: strawberry.Info) -> int:
        info.context["loaders"].log.call("value", info)
        raise ValueError("it has none")

    @strawberry.field
    async def slow(self, info: strawberry.Info) -> int:
        info.context["loaders"].log.call("slow", info)
        return 1


@strawberry.type
class Query:
    @strawberry.field
    def nodes(self) -> list[Node] | None:
        return [Node(number=0), Node(number=1)]


@strawberry.type
class Change:
    @strawberry.mutation
    def make(self) -> list[Node] | None:
        return [Node(number=0)]


@strawberry.type
class Events:
    @strawberry.subscription
    async def events(self) -> AsyncIterator[list[Node] | None]:
        yield [Node(number=0)]
        yield [Node(number=1)]


@pytest.mark.parametrize("depth", range(6))
@pytest.mark.parametrize("relation", ["", "name"])
async def test_a_list_that_fails_below_others_is_completed_once(depth: int, relation: str) -> None:
    query = "{ nodes { " + f"{relation} nodes {{ " * depth + f"{relation} value" + " }" * depth + " } }"
    planned, plain = await answers(schemas(Query), query, Names)
    assert planned.log.calls == plain.log.calls
    assert planned.log.calls.total() == depth + 1


async def test_a_permission_that_refuses_is_asked_once() -> None:
    planned, _ = await answers(schemas(Query), "{ nodes { slow guarded } }", Names)
    await asyncio.sleep(1)  # the fields that were cancelled end
    assert planned.data == {"nodes": None}
    asked = [path for what, path in planned.log.calls if what == "permission"]
    assert asked == ["['nodes', 0, 'guarded']", "['nodes', 1, 'guarded']"]


async def test_so_it_is_in_a_mutation() -> None:
    planned, _ = await answers(schemas(Query, mutation=Change), "mutation { make { slow value } }", Names)
    assert planned.log.calls == {("value", "['make', 0, 'value']"): 1}  # it fails before the other one begins


async def test_so_it_is_in_events() -> None:
    schema = QuietSchema(Query, subscription=Events)
    install(schema)
    loaders = Names()
    results: Any = await schema.subscribe("subscription { events { slow value } }", context_value={"loaders": loaders})
    assert [event.data async for event in results] == [{"events": None}] * 2
    assert loaders.log.calls == {("value", "['events', 0, 'value']"): 2}  # once for each event


async def test_so_it_is_in_what_is_deferred_or_streamed() -> None:
    for query in (
        "{ nodes { number ... @defer { nodes { value } } } }",
        "{ nodes @stream(initialCount: 0) { number nodes { value } } }",
    ):
        schema = QuietSchema(Query, config=INCREMENTAL)
        install(schema)
        loaders = Names()
        result: Any = await schema.execute(query, context_value={"loaders": loaders})
        async for _ in result.subsequent_results:
            pass
        assert set(loaders.log.calls.values()) == {1}


async def test_a_directive_that_lacks_its_argument_is_found_out_once() -> None:
    planned = await ask(schemas(Query)[0], "{ nodes { number value @skip } }", Names())
    assert planned.data is None


class Waiting(StrawberryField):
    """A field of a user's own class, which waits."""

    def get_result(self, source: Any, info: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        async def wait() -> str:
            await asyncio.sleep(1)
            return f"waited for {source.number}"

        return wait()


@strawberry.type
class Own:
    number: int
    waited: str = Waiting()  # type: ignore[assignment]  # as a user would have it typed
    name: str | None = relation(Names.slow, "number")


@strawberry.type
class Root:
    @strawberry.field
    def owns(self) -> list[Own]:
        return [Own(number=number, waited="") for number in range(2)]


async def test_a_field_whose_class_resolves_in_its_own_way_does_not_wait_for_the_plan() -> None:
    planned, _ = await answers(schemas(Root), "{ owns { waited name } }", Names)
    assert planned.data["owns"][1] == {"waited": "waited for 1", "name": "name 1"}
    assert planned.took == 1
    assert planned.log.batches == [("slow", [0, 1])]
