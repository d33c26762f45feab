"""Hints name what to change and where, and what is done well gives none."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest

from loader import Batcher, DataLoader, Loaders, Scope, _watching, dataloader
from loader.hints import Hint, HintKind, LogHints, find_hints, in_development
from loader.observe import Place, observing
from loader.timeline import Timeline
from tests.fakes import Backend, together

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watching, "now", lambda: asyncio.get_running_loop().time())


def line_with(function: Callable[..., Any], text: str) -> int:
    """The number of the line of a function that has `text` in it."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines, first) if text in line]
    return number


class Limited(Loaders, max_concurrent_batches=1):
    @dataloader
    async def fast(self, ids: list[int]) -> list[int]:
        await asyncio.sleep(0.1)
        return ids

    @dataloader
    async def slow(self, ids: list[int]) -> list[int]:
        await asyncio.sleep(1)
        return ids


def only(timeline: Timeline) -> Hint:
    (hint,) = timeline.hints()
    return hint


async def awaits_in_a_loop(loader: DataLoader[int, str], keys: range) -> None:
    for key in keys:
        await loader.load(key)  # one after another


async def test_loads_awaited_in_a_loop_are_one_hint_with_the_line() -> None:
    loader = DataLoader(Backend(), name="names")
    with observing(Timeline()) as timeline:
        await awaits_in_a_loop(loader, range(5))
        await loader.load(100)
        await awaits_in_a_loop(loader, range(10, 13))
    hint = only(timeline)
    line = line_with(awaits_in_a_loop, "one after another")
    assert (hint.kind, hint.loader) == (HintKind.LOOP, "names")
    assert hint.place == Place(__file__, line, "awaits_in_a_loop")
    assert str(hint) == (
        f"{__file__}:{line} in awaits_in_a_loop: names sent 5 batches of one key each, as the loads are awaited one "
        "after another. Ask for all keys before awaiting: `await loader.load_many(keys)`, or asyncio.gather() of the "
        "loads"
    )


async def test_a_loop_of_two_is_no_habit_and_a_loop_that_gathers_is_none() -> None:
    loader = DataLoader(Backend())
    with observing(Timeline()) as timeline:
        await awaits_in_a_loop(loader, range(2))
        await together(*[loader.load(key) for key in range(10, 20)])
        await together(*[awaits_in_a_loop(loader, range(key, key + 5)) for key in range(20, 120, 5)])
    assert timeline.hints() == []


async def test_a_chain_of_calls_that_cannot_know_the_next_key_before_is_no_loop() -> None:
    async def boss(key: int) -> None:
        if await loader.load(key) != "v5":
            await asyncio.create_task(boss(key + 1))

    loader = DataLoader(Backend())
    with observing(Timeline()) as timeline:
        await boss(0)
    assert len(timeline.batches) == 6
    assert timeline.hints() == []


async def test_a_key_fetched_again_after_it_was_cleared_is_a_hint_where_it_was_cleared() -> None:
    async def save(key: int) -> None:
        loader.clear(key)  # and not primed

    loader = DataLoader(Backend(), name="names")
    with observing(Timeline()) as timeline:
        for _ in range(3):
            await loader.load_many([1, 2])
            await save(1)
    hint = only(timeline)
    assert hint.place is not None
    assert (hint.kind, hint.place.line) == (HintKind.CLEARED, line_with(save, "and not primed"))
    assert hint.evidence == "names fetched 2 keys again after clear()"


async def test_a_key_that_is_primed_after_it_was_cleared_is_no_hint() -> None:
    loader = DataLoader(Backend())
    with observing(Timeline()) as timeline:
        await loader.load(1)
        loader.clear(1)
        loader.prime(1, "new")
        assert await loader.load(1) == "new"
    assert timeline.hints() == []


async def test_a_window_in_which_nothing_comes_is_a_hint() -> None:
    loader = DataLoader(Backend(), name="names", window=0.002)
    async with Batcher(Backend(), name="rows", window=0.002) as batcher:
        with observing(Timeline()) as timeline:
            for key in range(3):
                await loader.load_many([10 * key, 10 * key + 1])
                await batcher.submit_many([1, 2])
    loads, items = timeline.hints()
    assert (loads.kind, loads.loader, items.loader) == (HintKind.WINDOW, "names", "rows")
    assert loads.evidence == "3 batches of names waited 2.0 ms each for company that never came"
    assert "nobody has a key to add" in loads.remedy
    assert "a slot is free" in items.remedy


async def test_a_window_that_gathers_or_that_a_loop_wastes_is_no_hint() -> None:
    loader = DataLoader(Backend(), window=0.002)
    with observing(Timeline()) as timeline:
        for key in range(3):
            first = loader.load(10 * key)
            await asyncio.sleep(0.001)
            await together(first, loader.load(10 * key + 1))
    assert timeline.hints() == []
    with observing(Timeline()) as timeline:
        await awaits_in_a_loop(loader, range(100, 104))
    assert only(timeline).kind is HintKind.LOOP


async def test_batches_that_queue_for_a_slot_of_their_own_are_a_hint() -> None:
    loader = DataLoader(Backend(takes=1), name="names", max_batch_size=1, max_concurrent_batches=1)
    with observing(Timeline()) as timeline:
        await loader.load_many(range(5))
    hint = only(timeline)
    assert (hint.kind, hint.loader) == (HintKind.LIMIT, "names")
    assert hint.evidence == "4 of 5 batches of names queued for a slot, 4000.0 ms at worst"
    assert hint.place is not None
    assert hint.place.function == "test_batches_that_queue_for_a_slot_of_their_own_are_a_hint"


async def test_a_short_queue_is_no_hint() -> None:
    loader = DataLoader(Backend(takes=1), max_batch_size=2, max_concurrent_batches=1)
    quick = DataLoader(Backend(takes=0.001), max_batch_size=1, max_concurrent_batches=1)
    with observing(Timeline()) as timeline:
        await together(loader.load_many(range(6)), quick.load_many(range(4)))
    assert timeline.hints() == []


async def test_a_batch_that_waits_for_the_slot_of_a_slow_one_of_another_loader_is_a_hint() -> None:
    async with Scope():
        loaders = Limited()
        with observing(Timeline()) as timeline:
            await together(loaders.slow.load(1), loaders.fast.load(1))
            await together(loaders.fast.load(2), loaders.slow.load(2))
    hint = only(timeline)
    assert (hint.kind, hint.loader) == (HintKind.BEHIND, "Limited.fast")
    assert hint.evidence == (
        "1 batch of Limited.fast waited up to 1000.0 ms for the slot of Limited.slow, which took 1000.0 ms"
    )


async def test_several_batches_behind_a_slow_one_are_one_hint() -> None:
    async with Scope():
        loaders = Limited()
        with observing(Timeline(), scope=Scope.current()) as timeline:
            for key in range(2):
                await together(loaders.slow.load(key), loaders.fast.load(key))
    assert only(timeline).evidence.startswith("2 batches of Limited.fast waited")


async def test_a_mapping_that_lacks_most_keys_is_a_hint() -> None:
    async def by_text(keys: list[int]) -> dict[Any, int]:
        return {str(key): key for key in keys}

    loader = DataLoader(by_text, default=None, name="by_text")
    with observing(Timeline()) as timeline:
        await loader.load_many(range(10))
    hint = only(timeline)
    assert (hint.kind, hint.evidence) == (
        HintKind.MISSING,
        "what the batch function of by_text returned lacks 10 of 10 keys",
    )


async def test_a_mapping_that_lacks_some_keys_or_few_is_no_hint() -> None:
    async def half(keys: list[int]) -> dict[int, int]:
        return {key: key for key in keys if key % 2}

    async def none(keys: list[int]) -> dict[int, int]:
        return {}

    with observing(Timeline()) as timeline:
        await DataLoader(half, default=None).load_many(range(20))
        await DataLoader(none, default=None).load_many(range(9))
    assert timeline.hints() == []


async def test_without_places_hints_have_none() -> None:
    async def none(keys: list[int]) -> dict[int, int]:
        return {}

    timeline = Timeline()
    timeline.wants_places = False
    with observing(timeline):
        await DataLoader(none, default=None, name="none").load_many(range(10))
    hint = only(timeline)
    assert hint.place is None
    assert str(hint).startswith("what the batch function of none")


async def test_one_key_is_told_in_the_singular() -> None:
    loader = DataLoader(Backend(), name="names")
    with observing(Timeline()) as timeline:
        await loader.load(1)
        loader.clear(1)
        await loader.load(1)
    assert only(timeline).evidence == "names fetched 1 key again after clear()"


async def test_a_batch_under_way_is_not_looked_at() -> None:
    loader = DataLoader(Backend(takes=1))
    with observing(Timeline()) as timeline:
        future = loader.load(1)
        assert timeline.hints() == []
        await future


# -- the log


async def test_hints_of_a_scope_are_logged_once_when_it_closes(caplog: pytest.LogCaptureFixture) -> None:
    class Names(Loaders):
        @dataloader
        async def names(self, ids: list[int]) -> list[int]:
            return ids

    loaders = Names()
    with caplog.at_level(logging.WARNING, "loader"), observing(LogHints()):
        for _ in range(3):
            async with Scope():
                await awaits_in_a_loop(loaders.names, range(5))  # type: ignore[arg-type]
                assert len(caplog.records) == (0 if _ == 0 else 1)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("loader", "WARNING")
    assert f"{__file__}:{line_with(awaits_in_a_loop, 'one after another')}" in record.getMessage()


async def test_hints_of_a_loader_without_a_scope_are_logged_as_they_are_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = DataLoader(Backend(), name="names")
    with caplog.at_level(logging.WARNING, "loader"), observing(LogHints()):
        await awaits_in_a_loop(loader, range(10))
        await awaits_in_a_loop(loader, range(10, 20))
    (record,) = caplog.records
    assert "names sent 3 batches of one key each" in record.getMessage()


def test_no_batches_give_no_hints() -> None:
    assert find_hints([]) == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["uvicorn", "app:app", "--reload"], True),
        (["/usr/bin/fastapi", "dev", "app.py"], True),
        (["strawberry", "dev", "app.schema"], True),
        (["strawberry", "export-schema", "app"], False),
        (["uvicorn", "app:app"], False),
        ([], False),
    ],
)
def test_development_is_recognised_by_the_command(
    command: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", command)
    assert in_development() is (expected or sys.flags.dev_mode)
