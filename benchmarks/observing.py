"""What observing costs a request: statistics, a timeline and hints of everything, the inspector, nobody at all."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.requests import QUICK, cpu_time
from benchmarks.rounds import in_turns
from benchmarks.schema import KEYS, OBJECTS, OURS
from benchmarks.table import Table, compared
from loader.hints import LogHints
from loader.inspector import Inspector
from loader.observe import Statistics, observing
from loader.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.schema import Way
    from loader.observe import Observer

ROUNDS = 25
SHAPES = ("one relation", "three levels")


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


async def observed(make: Callable[[], AbstractContextManager[object]], way: Way, shape: str, objects: int) -> float:
    """The CPU seconds of a request that is observed."""
    with make():
        return await cpu_time(way, shape, objects)


async def measure(rounds: int, objects: int) -> list[list[object]]:
    """A row for each shape, way and observer."""
    rows: list[list[object]] = []
    for shape in SHAPES:
        for name, way in OURS.items():
            ways = {who: partial(observed, make, way, shape, objects) for who, make in OBSERVERS.items()}
            took = await in_turns(rounds, ways)
            rows += [[shape, name, who, *cells] for who, cells in compared(took, ["nobody"], "ms").items()]
    return rows


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The one table."""
    rounds, objects = (1, QUICK) if quick else (ROUNDS, OBJECTS)
    yield Table(
        "observing",
        f"{objects:,} objects, {KEYS} distinct keys, loaders that answer at once; CPU time of one request.",
        ["query", "way", "who observes", "of nobody", "median", "nine in ten"],
        asyncio.run(measure(rounds, objects)),
        chart="median",
        ours=OBSERVERS.keys() - {"nobody"},
    )
