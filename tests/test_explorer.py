"""Faults at every point of every script: every caller is answered, nothing is left or logged, values are right.

And the explorer itself: it sees what it looks for, and hits every place of the library that waits.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import pytest
from strawberry.dataloader import DataLoader as StrawberryDataLoader

from tests.explorer.awaits import NEVER_WAIT, all_awaits, not_among
from tests.explorer.explore import Explorer, every_fault
from tests.explorer.scripts import SCRIPTS
from tests.explorer.world import run

if TYPE_CHECKING:
    from tests.explorer.explore import Report
    from tests.explorer.world import Script, World

pytestmark = pytest.mark.timeout(600)


@functools.cache
def explored(script: Script) -> Report:
    return Explorer(script).once()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_no_fault_at_any_point_does_harm(script: Script) -> None:
    report = explored(script)
    assert report.wrong == {}
    assert report.points >= 10


def test_a_fault_hits_every_await_of_the_library() -> None:
    hit = set().union(*(explored(script).hit for script in SCRIPTS))
    assert sorted(each.name for each in not_among(hit)) == sorted(NEVER_WAIT)


def test_all_awaits_are_found() -> None:
    names = {each.name for each in all_awaits()}
    assert "_dispatch.py: _turn: yield" in names
    assert "_batching.py: Batching._take_pairs: async for pair in pairs:" in names
    assert "_waiters.py" not in {each.file for each in all_awaits()}


def test_pairs_of_faults_are_the_same_for_the_same_seed() -> None:
    counts = {Explorer(SCRIPTS[0], seed).pairs(10).runs for seed in (1, 1)}
    assert len(counts) == 1
    assert Explorer(SCRIPTS[0], 2).pairs(10).wrong == {}


# What the explorer has to see: services that do one thing wrong each.


async def with_strawberrys_loader(world: World) -> None:
    async def load(keys: list[int]) -> list[int]:
        await world.io()
        return keys

    loader = StrawberryDataLoader(load)
    for _ in range(2):
        world.ask(loader.load(1), 1)
    await world.answered()
    world.ask(loader.load(2), 2)
    await world.answered()


async def that_forgets_its_caller(world: World) -> None:
    answer: asyncio.Future[int] = world.loop.create_future()
    world.ask(answer, 1)
    await world.io()
    answer.set_result(1)
    await world.answered()


async def that_leaves_a_task(world: World) -> None:
    gate = asyncio.Event()
    world.loop.create_task(gate.wait())
    await world.io()
    gate.set()


async def that_leaves_a_timer(world: World) -> None:
    timer = world.loop.call_later(1000, str)
    await world.io()
    timer.cancel()


async def that_forgets_an_error(world: World) -> None:
    failed: asyncio.Future[int] = world.loop.create_future()
    failed.set_exception(ValueError("nobody hears of this"))
    await world.io()
    failed.exception()


async def that_keeps_an_entry(world: World) -> None:
    entries = [1]
    world.expect("entries", lambda: entries, [])
    await world.io()
    entries.clear()


async def that_gives_what_is_old(world: World) -> None:
    value = 1

    async def ask() -> int:
        return value

    def change() -> None:
        nonlocal value
        value = 0

    world.offer("change", change)
    await world.io()
    world.ask(ask(), 1)
    await world.answered()


async def that_never_ends(world: World) -> None:
    done = False

    async def look_again_and_again() -> None:
        while not done:
            await world.io(0.0001)

    world.ask(look_again_and_again())
    await world.io()
    done = True
    await world.answered()


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (with_strawberrys_loader, "was cancelled"),
        (that_forgets_its_caller, "waits for ever"),
        (that_leaves_a_task, "tasks are left"),
        (that_leaves_a_timer, "timers are left"),
        (that_forgets_an_error, "logged: Future exception was never retrieved"),
        (that_keeps_an_entry, "entries: [1] and not []"),
        (that_gives_what_is_old, "got 0"),
        (that_never_ends, "goes on for ever"),
    ],
)
def test_it_sees_what_is_wrong_with_a_service(script: Script, complaint: str) -> None:
    seen = run(script)
    assert seen.wrong == []
    assert any(complaint in str(run(script, fault).wrong) for fault in every_fault(seen))
