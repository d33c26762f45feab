"""The `id` of a Relay node does not keep the plan away, unless its type makes of it what it likes."""

from __future__ import annotations

from typing import Any

import pytest
import strawberry
from strawberry import relay

from loader import DataLoader, Loaders, dataloader
from loader.strawberry import relation
from tests.answers import Log, answers, ask, schemas


@strawberry.type
class Owner:
    name: str


class Owners(Loaders):
    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def owners(self, names: list[str]) -> dict[str, Owner]:
        self.log.batches.append(("owners", names))
        return {name: Owner(name=name) for name in names}


@strawberry.type
class Plain(relay.Node):
    code: relay.NodeID[str]
    owner: Owner = relation(Owners.owners, "code")


@strawberry.type
class Slow(relay.Node):
    code: str
    owner: Owner = relation(Owners.owners, "code")

    @classmethod
    async def resolve_id(cls, root: Any, *, info: Any) -> str:
        return f"slow {root.code}"


@strawberry.type
class Named(Plain):
    @classmethod
    def resolve_typename(cls, root: Any, info: Any) -> str:
        return "Other"


@strawberry.type
class Query:
    @strawberry.field
    def plain(self) -> list[Plain]:
        return [Plain(code="a"), Plain(code="b")]

    @strawberry.field
    def slow(self) -> list[Slow]:
        return [Slow(code="a"), Slow(code="b")]

    @strawberry.field
    def named(self) -> list[Named]:
        return [Named(code="a")]


BOTH = schemas(Query, Owners)


async def one_by_one(query: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that fields ask for themselves in spite of the plan."""
    keys: list[str] = []
    load = DataLoader.load

    def recorded(self: DataLoader[Any, Any], key: Any) -> Any:
        keys.append(key)
        return load(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(DataLoader, "load", recorded)
        await ask(BOTH[0], query, Owners())
    return keys


async def test_a_list_of_nodes_is_planned_though_their_ids_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    query = "{ plain { id owner { name } } }"
    planned, _ = await answers(BOTH, query, Owners)
    assert planned.log.batches == [("owners", ["a", "b"])]
    assert planned.data["plain"][0] == {"id": relay.to_base64("Plain", "a"), "owner": {"name": "a"}}
    assert await one_by_one(query, monkeypatch) == []


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("{ slow { id owner { name } } }", relay.to_base64("Slow", "slow a")),
        ("{ named { id owner { name } } }", relay.to_base64("Other", "a")),
    ],
)
async def test_an_id_that_a_type_makes_itself_may_wait(query: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _ = await answers(BOTH, query, Owners)
    (nodes,) = planned.data.values()
    assert nodes[0]["id"] == first
    assert await one_by_one(query, monkeypatch) == [node["owner"]["name"] for node in nodes]
