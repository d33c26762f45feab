"""Requests over Strawberry: what a planned relation costs beside an attribute and beside hand-written resolvers."""

from __future__ import annotations

import asyncio
import gc
import time
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from benchmarks.rounds import in_turns
from benchmarks.schema import ATTRIBUTES, KEYS, LEVELS, OBJECTS, OURS, PEERS, RELATIONS, SHAPES, STRAWBERRY
from benchmarks.table import Table, compared_each, ratio_in_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.schema import Way

ROUNDS = 31
QUICK = 100  # objects
BOUND = "plain attributes"
WAYS = {BOUND: ATTRIBUTES, **OURS, **PEERS}


class Memory:
    """A source that has every record before it is asked: only the cost of loading is measured."""

    def __init__(self, record: type[Any], objects: int) -> None:
        self.records = {
            relation: [record(key=number + KEYS, name=f"{relation} {number}") for number in range(KEYS * LEVELS)]
            for relation in RELATIONS
        }
        self.listed = [record(key=number % KEYS, name=f"item {number}") for number in range(objects)]
        if record is ATTRIBUTES.record:
            for each in (*self.listed, *(record for records in self.records.values() for record in records)):
                for relation, records in self.records.items():
                    setattr(each, relation, records[each.key] if each.key < len(records) else None)

    async def items(self) -> list[Any]:
        """The list."""
        return self.listed

    async def fetch(self, relation: str, keys: list[int]) -> list[Any]:
        """The records of these numbers."""
        records = self.records[relation]
        return [records[key] for key in keys]


@cache
def memory(way: Way, objects: int) -> Memory:
    """The source of a way, the same in each round."""
    return Memory(way.record, objects)


async def cpu_time(way: Way, shape: str, objects: int) -> float:
    """The CPU seconds of one request, right after another one of the same kind.

    A service answers one after the other in one way. Here a way follows upon all others, and what it paid for having
    its code and data fetched anew would depend on their number.
    """
    query, context = way.query(shape), way.context(memory(way, objects))
    await way.schema.execute(query, context_value=way.context(memory(way, objects)))
    gc.disable()
    try:
        started = time.process_time()
        result = await way.schema.execute(query, context_value=context)
        took = time.process_time() - started
    finally:
        gc.enable()
    if result.errors:
        raise result.errors[0]
    return took


async def measure(rounds: int, objects: int) -> dict[str, dict[str, list[float]]]:
    """The CPU times of each way, for each shape."""
    return {
        shape: await in_turns(rounds, {name: partial(cpu_time, way, shape, objects) for name, way in WAYS.items()})
        for shape in SHAPES
    }


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The ratios to attributes, and the times."""
    rounds, objects = (1, QUICK) if quick else (ROUNDS, OBJECTS)
    took = asyncio.run(measure(rounds, objects))
    setting = f"{objects:,} objects, {KEYS} distinct keys for each relation, loaders that answer at once"
    yield Table(
        "requests-ratios",
        f"{setting}; CPU time of one request, as a multiple of that with {BOUND} in the same "
        "round: the median, and between what nine rounds in ten lie.",
        ["query", *(way for way in WAYS if way != BOUND)],
        [
            [shape, *(ratio_in_rounds(times, ways[BOUND]) for way, times in ways.items() if way != BOUND)]
            for shape, ways in took.items()
        ],
    )
    yield Table(
        "requests",
        f"{setting}; CPU time of one request.",
        ["query", "way", "of attributes", "of Strawberry's", "median", "nine in ten"],
        compared_each(took, [BOUND, STRAWBERRY], "ms"),
        chart="median",
        ours=OURS,
    )
