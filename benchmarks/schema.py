"""The GraphQL schema that requests are measured on, written in each way: attributes, relations, resolvers.

A list of records, each related to others: one relation, many side by side (wide), or one of one of one (deep). Where
the records come from is a `Source`, so that the same ways are measured on memory and on services.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import strawberry
from aiodataloader import DataLoader as AioDataLoader
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from loader import Loaders, dataloader
from loader.strawberry import install, relation

if TYPE_CHECKING:
    from collections.abc import Callable

OBJECTS, KEYS, LEVELS = 1000, 100, 5
RELATIONS = ("parent", "author", "editor", "owner", "reviewer", "translator", "publisher")

SHAPES = {
    "one relation": "author { name }",
    "three levels": "parent { parent { parent { name } } }",
    "wide: six relations": " ".join(f"{name} {{ name }}" for name in RELATIONS[1:]),
    "deep: five levels": "parent { parent { parent { parent { parent { name } } } } }",
}


class Source(Protocol):
    """Where records come from. A record with the number n has the key n + KEYS for those that it is related to."""

    async def items(self) -> list[Any]:
        """The list that a request begins with."""

    async def fetch(self, relation: str, keys: list[int]) -> list[Any]:
        """The records of these numbers, in their order."""


class RecordLoaders(Loaders):
    """A loader for each relation."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @dataloader
    async def parent(self, keys: list[int]) -> list[RelationRecord]:
        return await self.source.fetch("parent", keys)

    @dataloader
    async def author(self, keys: list[int]) -> list[RelationRecord]:
        return await self.source.fetch("author", keys)

    @dataloader
    async def editor(self, keys: list[int]) -> list[RelationRecord]:
        return await self.source.fetch("editor", keys)

    @dataloader
    async def owner(self, keys: list[int]) -> list[RelationRecord]:
        return await self.source.fetch("owner", keys)

    @dataloader
    async def reviewer(self, keys: list[int]) -> list[RelationRecord]:
        return await self.source.fetch("reviewer", keys)

    @dataloader
    async def translator(self, keys: list[int]) -> list[RelationRecord]:
        return await self.source.fetch("translator", keys)

    @dataloader
    async def publisher(self, keys: list[int]) -> list[RelationRecord]:
        return await self.source.fetch("publisher", keys)


@strawberry.type
class RelationRecord:
    key: strawberry.Private[int]
    name: str
    parent: RelationRecord = relation(RecordLoaders.parent, "key")
    author: RelationRecord = relation(RecordLoaders.author, "key")
    editor: RelationRecord = relation(RecordLoaders.editor, "key")
    owner: RelationRecord = relation(RecordLoaders.owner, "key")
    reviewer: RelationRecord = relation(RecordLoaders.reviewer, "key")
    translator: RelationRecord = relation(RecordLoaders.translator, "key")
    publisher: RelationRecord = relation(RecordLoaders.publisher, "key")


def set_later() -> Any:
    """An attribute that is set when the other record is there."""
    return strawberry.field(default=None)


@strawberry.type
class AttributeRecord:
    key: strawberry.Private[int]
    name: str
    parent: AttributeRecord = set_later()
    author: AttributeRecord = set_later()
    editor: AttributeRecord = set_later()
    owner: AttributeRecord = set_later()
    reviewer: AttributeRecord = set_later()
    translator: AttributeRecord = set_later()
    publisher: AttributeRecord = set_later()


def resolver(name: str) -> Any:
    """A field with a resolver as one writes it by hand, for whichever loader."""

    async def resolve(self: Any, info: strawberry.Info) -> ResolverRecord:
        return await getattr(info.context["loaders"], name).load(self.key)  # type: ignore[no-any-return]

    return strawberry.field(resolver=resolve)


@strawberry.type
class ResolverRecord:
    key: strawberry.Private[int]
    name: str
    parent: ResolverRecord = resolver("parent")
    author: ResolverRecord = resolver("author")
    editor: ResolverRecord = resolver("editor")
    owner: ResolverRecord = resolver("owner")
    reviewer: ResolverRecord = resolver("reviewer")
    translator: ResolverRecord = resolver("translator")
    publisher: ResolverRecord = resolver("publisher")


async def items(info: strawberry.Info) -> Any:
    """The list in whichever way; the resolver is asynchronous, as one with a database is."""
    return await info.context["source"].items()


@strawberry.type
class Query:
    attributes: list[AttributeRecord] = strawberry.field(resolver=items)
    relations: list[RelationRecord] = strawberry.field(resolver=items)
    resolvers: list[ResolverRecord] = strawberry.field(resolver=items)


PLAIN = strawberry.Schema(Query)
PLANNED = strawberry.Schema(Query)
UNPLANNED = strawberry.Schema(Query)
install(PLANNED)
install(UNPLANNED, plan=False)


@dataclass(frozen=True)
class Way:
    """How a field is answered: the schema, the list to ask for, the type of its records, and the loaders."""

    schema: strawberry.Schema
    field: str
    record: type[Any]
    loaders: Callable[[Source], Any]

    def query(self, shape: str) -> str:
        """The query of a shape."""
        return f"{{ {self.field} {{ {SHAPES[shape]} }} }}"

    def context(self, source: Source) -> dict[str, Any]:
        """The context of one request."""
        return {"source": source, "loaders": self.loaders(source)}


def each(make: Callable[[Any], Any], source: Source) -> SimpleNamespace:
    """A loader of some kind for each relation."""
    return SimpleNamespace(**{name: make(partial(source.fetch, name)) for name in RELATIONS})


class NoLoader:
    """Looks like a loader, and makes a call for each key."""

    def __init__(self, fetch: Callable[[list[int]], Any]) -> None:
        self.fetch = fetch

    async def load(self, key: int) -> Any:
        """The record of a key."""
        return (await self.fetch([key]))[0]


ATTRIBUTES = Way(PLAIN, "attributes", AttributeRecord, lambda _: None)
A_CALL_FOR_EACH = Way(PLAIN, "resolvers", ResolverRecord, partial(each, NoLoader))
STRAWBERRY = "async def and strawberry.dataloader"
OURS = {
    "planned relations": Way(PLANNED, "relations", RelationRecord, RecordLoaders),
    "relations, plan=False": Way(UNPLANNED, "relations", RelationRecord, RecordLoaders),
    "async def and loader": Way(PLANNED, "resolvers", ResolverRecord, RecordLoaders),
}
PEERS = {
    STRAWBERRY: Way(PLAIN, "resolvers", ResolverRecord, partial(each, StrawberryDataLoader)),
    "async def and aiodataloader": Way(PLAIN, "resolvers", ResolverRecord, partial(each, AioDataLoader)),
}
