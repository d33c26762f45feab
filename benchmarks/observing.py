"""What observing costs a request: statistics, a timeline and hints of everything, beside nobody observing."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import strawberry

from benchmarks.requests import (
    KEYS,
    OBJECTS,
    PLANNED,
    SHAPES,
    UNPLANNED,
    BenchmarkLoaders,
    Leaf,
    RelationInner,
    RelationOuter,
    cpu_time,
)
from benchmarks.table import show
from loader.hints import LogHints
from loader.observe import Statistics, observing
from loader.strawberry import install
from loader.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader.observe import Observer


@strawberry.type
class LoadedInner:
    key: strawberry.Private[int]

    @strawberry.field
    async def leaf(self, info: strawberry.Info) -> Leaf:
        return await info.context["loaders"].leaves.load(self.key)  # type: ignore[no-any-return]


@strawberry.type
class LoadedOuter:
    key: strawberry.Private[int]

    @strawberry.field
    async def inner(self, info: strawberry.Info) -> LoadedInner:
        inner: RelationInner = await info.context["loaders"].inner.load(self.key)
        return LoadedInner(key=inner.key)


@strawberry.type
class LoadedItem:
    key: strawberry.Private[int]

    @strawberry.field
    async def leaf(self, info: strawberry.Info) -> Leaf:
        return await info.context["loaders"].leaves.load(self.key)  # type: ignore[no-any-return]

    @strawberry.field
    async def outer(self, info: strawberry.Info) -> LoadedOuter:
        outer: RelationOuter = await info.context["loaders"].outer.load(self.key)
        return LoadedOuter(key=outer.key)


LOADED_ITEMS = [LoadedItem(key=number % KEYS) for number in range(OBJECTS)]


@strawberry.type
class LoadedQuery:
    @strawberry.field
    async def loaded(self) -> list[LoadedItem]:
        return LOADED_ITEMS


LOADED = strawberry.Schema(LoadedQuery)
install(LOADED)

WAYS: dict[str, tuple[strawberry.Schema, str]] = {
    "planned relations": (PLANNED, "relations"),
    "relations, plan=False": (UNPLANNED, "relations"),
    "async def resolvers": (LOADED, "loaded"),
}

OBSERVERS: dict[str, Callable[[], list[Observer]]] = {
    "nobody": list,
    "statistics": lambda: [Statistics()],
    "statistics, timeline and hints": lambda: [Statistics(), Timeline(), LogHints()],
}


async def observed(observers: list[Observer], schema: strawberry.Schema, query: str, context: Any) -> float:
    """The CPU seconds of a request that is observed."""
    with ExitStack() as stack:
        for observer in observers:
            stack.enter_context(observing(observer))
        return await cpu_time(schema, query, context)


async def measure(rounds: int = 25) -> list[list[object]]:
    """The least CPU time of each way over interleaved rounds: everything that disturbs only adds to it."""
    rows: list[list[object]] = []
    for shape, fields in SHAPES.items():
        for way, (schema, field) in WAYS.items():
            least = dict.fromkeys(OBSERVERS, float("inf"))
            for _ in range(rounds):
                for who, make in OBSERVERS.items():
                    query = f"{{ {field} {{ {fields} }} }}"
                    took = await observed(make(), schema, query, {"loaders": BenchmarkLoaders()})
                    least[who] = min(least[who], took)
            rows += [
                [shape, way, who, f"{1000 * took:.1f} ms", f"{took / least['nobody']:.3f}"]
                for who, took in least.items()
            ]
    return rows


def main() -> None:
    """Print the table."""
    print(f"{OBJECTS:,} objects, {KEYS} distinct keys, loaders that answer at once; CPU time of one request:\n")
    show(["query", "way", "who observes", "CPU time", "of nobody"], asyncio.run(measure()))
