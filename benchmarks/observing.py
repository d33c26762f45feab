"""What observing costs a request: statistics, a timeline and hints of everything, the inspector, nobody at all."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack, closing
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
from loader.inspector import Inspector
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


def by(*observers: Observer) -> ExitStack:
    """A context in which these observe."""
    stack = ExitStack()
    for observer in observers:
        stack.enter_context(observing(observer))
    return stack


OBSERVERS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "nobody": by,
    "statistics": lambda: by(Statistics()),
    "statistics, timeline and hints": lambda: by(Statistics(), Timeline(), LogHints()),
    "the inspector": lambda: closing(Inspector()),
}


async def observed(
    observers: AbstractContextManager[object], schema: strawberry.Schema, query: str, context: Any
) -> float:
    """The CPU seconds of a request that is observed."""
    with observers:
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
