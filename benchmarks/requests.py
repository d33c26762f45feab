"""Requests over Strawberry: what a planned relation costs beside an attribute and beside hand-written resolvers."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import strawberry
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from benchmarks.table import show
from loader import Loaders, dataloader
from loader.strawberry import install, relation

OBJECTS, KEYS = 1000, 100


@strawberry.type
class Leaf:
    """What stands at the end of a chain."""

    name: str


LEAVES = [Leaf(name=f"leaf {key}") for key in range(KEYS)]


class BenchmarkLoaders(Loaders):
    """Loaders that answer at once: only the cost of loading is measured."""

    @dataloader
    async def leaves(self, keys: list[int]) -> list[Leaf]:
        """Leaves by number."""
        return [LEAVES[key] for key in keys]

    @dataloader
    async def inner(self, keys: list[int]) -> list[RelationInner]:
        """The second level, by number."""
        return [RELATION_INNER[key] for key in keys]

    @dataloader
    async def outer(self, keys: list[int]) -> list[RelationOuter]:
        """The first level, by number."""
        return [RELATION_OUTER[key] for key in keys]


@strawberry.type
class AttributeInner:
    leaf: Leaf


@strawberry.type
class AttributeOuter:
    inner: AttributeInner


@strawberry.type
class AttributeItem:
    leaf: Leaf
    outer: AttributeOuter


@strawberry.type
class RelationInner:
    key: strawberry.Private[int]
    leaf: Leaf = relation(BenchmarkLoaders.leaves, "key")


@strawberry.type
class RelationOuter:
    key: strawberry.Private[int]
    inner: RelationInner = relation(BenchmarkLoaders.inner, "key")


@strawberry.type
class RelationItem:
    key: strawberry.Private[int]
    leaf: Leaf = relation(BenchmarkLoaders.leaves, "key")
    outer: RelationOuter = relation(BenchmarkLoaders.outer, "key")


@strawberry.type
class ResolverInner:
    key: strawberry.Private[int]

    @strawberry.field
    async def leaf(self, info: strawberry.Info) -> Leaf:
        return await info.context["leaves"].load(self.key)  # type: ignore[no-any-return]


@strawberry.type
class ResolverOuter:
    key: strawberry.Private[int]

    @strawberry.field
    async def inner(self, info: strawberry.Info) -> ResolverInner:
        return await info.context["inner"].load(self.key)  # type: ignore[no-any-return]


@strawberry.type
class ResolverItem:
    key: strawberry.Private[int]

    @strawberry.field
    async def leaf(self, info: strawberry.Info) -> Leaf:
        return await info.context["leaves"].load(self.key)  # type: ignore[no-any-return]

    @strawberry.field
    async def outer(self, info: strawberry.Info) -> ResolverOuter:
        return await info.context["outer"].load(self.key)  # type: ignore[no-any-return]


RELATION_INNER = [RelationInner(key=key) for key in range(KEYS)]
RELATION_OUTER = [RelationOuter(key=key) for key in range(KEYS)]
RESOLVER_INNER = [ResolverInner(key=key) for key in range(KEYS)]
RESOLVER_OUTER = [ResolverOuter(key=key) for key in range(KEYS)]
ATTRIBUTE_OUTER = [AttributeOuter(inner=AttributeInner(leaf=leaf)) for leaf in LEAVES]

ATTRIBUTE_ITEMS = [
    AttributeItem(leaf=LEAVES[number % KEYS], outer=ATTRIBUTE_OUTER[number % KEYS]) for number in range(OBJECTS)
]
RELATION_ITEMS = [RelationItem(key=number % KEYS) for number in range(OBJECTS)]
RESOLVER_ITEMS = [ResolverItem(key=number % KEYS) for number in range(OBJECTS)]


@strawberry.type
class Query:
    """The same list in each way; the resolver is asynchronous, as one with a database is."""

    @strawberry.field
    async def attributes(self) -> list[AttributeItem]:
        return ATTRIBUTE_ITEMS

    @strawberry.field
    async def relations(self) -> list[RelationItem]:
        return RELATION_ITEMS

    @strawberry.field
    async def resolvers(self) -> list[ResolverItem]:
        return RESOLVER_ITEMS


PLAIN = strawberry.Schema(Query)
PLANNED = strawberry.Schema(Query)
UNPLANNED = strawberry.Schema(Query)
install(PLANNED)
install(UNPLANNED, plan=False)


def strawberry_loaders() -> dict[str, Any]:
    """A context with Strawberry's own loaders."""

    async def leaves(keys: list[int]) -> list[Leaf]:
        return [LEAVES[key] for key in keys]

    async def inner(keys: list[int]) -> list[ResolverInner]:
        return [RESOLVER_INNER[key] for key in keys]

    async def outer(keys: list[int]) -> list[ResolverOuter]:
        return [RESOLVER_OUTER[key] for key in keys]

    return {
        "leaves": StrawberryDataLoader(leaves),
        "inner": StrawberryDataLoader(inner),
        "outer": StrawberryDataLoader(outer),
    }


WAYS: dict[str, tuple[strawberry.Schema, str, Any]] = {
    "plain attributes": (PLAIN, "attributes", dict),
    "planned relations": (PLANNED, "relations", lambda: {"loaders": BenchmarkLoaders()}),
    "relations, plan=False": (UNPLANNED, "relations", lambda: {"loaders": BenchmarkLoaders()}),
    "async def and strawberry.dataloader": (PLAIN, "resolvers", strawberry_loaders),
}

SHAPES = {
    "one relation": "leaf { name }",
    "three levels": "outer { inner { leaf { name } } }",
}


async def cpu_time(schema: strawberry.Schema, query: str, context: Any) -> float:
    """The CPU seconds of one request."""
    gc.collect()
    gc.disable()
    try:
        started = time.process_time()
        result = await schema.execute(query, context_value=context)
        took = time.process_time() - started
    finally:
        gc.enable()
    if result.errors:
        raise result.errors[0]
    return took


async def measure(rounds: int = 25) -> list[list[object]]:
    """The least CPU time of each way over interleaved rounds: everything that disturbs only adds to it."""
    rows: list[list[object]] = []
    for shape, fields in SHAPES.items():
        least = dict.fromkeys(WAYS, float("inf"))
        for _ in range(rounds):
            for way, (schema, field, context) in WAYS.items():
                took = await cpu_time(schema, f"{{ {field} {{ {fields} }} }}", context())
                least[way] = min(least[way], took)
        attributes, strawberrys = least["plain attributes"], least["async def and strawberry.dataloader"]
        rows += [
            [shape, way, f"{1000 * took:.1f} ms", f"{took / attributes:.2f}", f"{took / strawberrys:.2f}"]
            for way, took in least.items()
        ]
    return rows


def main() -> None:
    """Print the table."""
    print(f"{OBJECTS:,} objects, {KEYS} distinct keys, loaders that answer at once; CPU time of one request:\n")
    show(["query", "way", "CPU time", "of attributes", "of Strawberry's"], asyncio.run(measure()))
