"""Batches per query shape, against the least number that is possible without waiting for a backend.

The shapes are those that `tests/test_query_shapes.py` holds ours to: each with resolvers written by hand, which every
loader can serve, and some with relations, beside the same with resolvers.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aiodataloader import DataLoader as AioDataLoader
from graphql import GraphQLError
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from benchmarks.table import Figure, Table
from loader.strawberry import install
from tests.answers import Log
from tests.shapes import (
    RELATIONS,
    SCHEMA,
    SHAPES,
    Shapes,
    answer,
    batches,
    find_companies,
    find_users,
    make_schema,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import strawberry

    Count = Callable[[str], Awaitable[int | None]]

PLAIN = make_schema()
UNPLANNED = make_schema()
install(UNPLANNED, plan=False)

# What a relation is called that is written as a resolver.
BY_HAND = {
    "byRelation": "author",
    "editorByRelation": "editor",
    "employer": "company",
    "ownerByRelation": "owner",
    "friendByRelation": "friend",
    "checkedRelation": "checked3",
}


async def ours(schema: strawberry.Schema, query: str) -> int:
    """How many batches ours takes."""
    return (await batches(query, Shapes(), schema)).count


async def peers(make: Callable[[Any], Any], query: str) -> int | None:
    """How many batches loaders of another kind take; None if they cannot serve the query."""
    log = Log()
    loaders = SimpleNamespace(users=make(partial(find_users, log)), companies=make(partial(find_companies, log)))
    try:
        await answer(query, loaders, PLAIN)
    except GraphQLError:
        return None
    return log.count


async def by_hand(count: Count, query: str) -> int | None:
    """How many batches the same query takes with resolvers in place of relations."""
    return await count(re.sub("|".join(BY_HAND), lambda match: BY_HAND[match[0]], query))


PEERS: dict[str, Count] = {
    "strawberry.dataloader": partial(peers, StrawberryDataLoader),
    "aiodataloader": partial(peers, AioDataLoader),
}
RESOLVERS: dict[str, Count] = {"loader": partial(ours, SCHEMA), **PEERS}
PLANNED: dict[str, Count] = {
    "planned relations": partial(ours, SCHEMA),
    "relations, plan=False": partial(ours, UNPLANNED),
    **{f"async def and {name}": partial(by_hand, count) for name, count in RESOLVERS.items()},
}


async def counted(shapes: list[tuple[str, str, int]], ways: dict[str, Count]) -> list[list[Any]]:
    """A row for each shape: its name, the query, the least number of batches, and that of each way."""
    return [
        [name, shortened(query), least, *[await count(query) for count in ways.values()]]
        for name, query, least in shapes
    ]


def shortened(query: str, length: int = 90) -> str:
    """As much of a query as a table has room for."""
    return query if len(query) <= length else query[:length] + " …"


def in_all(what: str, rows: list[list[Any]], ways: dict[str, Count]) -> list[list[object]]:
    """A row for each way: its batches in all shapes that it serves, beside the least, and how many shapes that are."""
    totals: list[list[object]] = []
    for column, way in enumerate(ways, start=3):
        served = [(row[column], row[2]) for row in rows if row[column] is not None]
        taken, least = (sum(column) for column in zip(*served, strict=True))
        reached = sum(taken == least for taken, least in served)
        totals.append([what, way, Figure(taken / least, "", 2), taken, least, reached, len(served), len(rows)])
    return totals


def tables(*, quick: bool = False) -> Iterator[Table]:
    """All shapes in sum, and one by one; a quick run counts every fourth."""
    written = [(name, shape.query, shape.least) for name, shape in SHAPES.items()]
    related = [(name, query, least) for name, (query, least) in RELATIONS.items()]
    step = 4 if quick else 1
    resolvers = asyncio.run(counted(written[::step], RESOLVERS))
    relations = asyncio.run(counted(related[::step], PLANNED))
    yield Table(
        "shapes-total",
        "Batches of queries of all shapes, against the least that is possible without waiting for a backend.",
        ["written with", "way", "of the least", "batches", "least", "least reached", "shapes served", "of"],
        [*in_all("resolvers", resolvers, RESOLVERS), *in_all("relations", relations, PLANNED)],
        chart="of the least",
        ours=["loader", "planned relations", "relations, plan=False", "async def and loader"],
    )
    head = ["shape", "query", "least"]
    yield Table(
        "shapes",
        "Batches with resolvers written by hand. What has none was refused: Strawberry by itself lets no permission or "
        "extension hand on what a `def` has not got yet. Fewer than the least (n) is stale: read from before a change.",
        [*head, *RESOLVERS],
        resolvers,
    )
    yield Table(
        "shapes-relations",
        "Batches with relations, and with resolvers in their place.",
        [*head, *PLANNED],
        relations,
    )
