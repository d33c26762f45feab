"""What changed, and what a process does about it; how it hears of it is tested with the bus."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from loader import DataLoader, Loaders, dataloader
from loader.second_level import (
    Change,
    LoaderChange,
    MemoryCache,
    change_of,
    drain,
    invalidate,
    invalidate_tags,
    receive,
)
from tests.fakes import Backend


async def test_an_invalidation_clears_open_loaders_and_the_cache_and_says_what_changed() -> None:
    cache, backend = MemoryCache(), Backend()
    loader, other = (
        DataLoader(backend, second_level=cache, fresh_for=60, name=name, cache_key_fn=lambda key: key.lower())
        for name in ("l", "other")
    )
    for each in (loader, other):
        await each.load_many(["A", "b"])
    await drain(cache)
    change = await invalidate(loader, ["a"])
    assert change == Change((LoaderChange("l", "", "", frozenset({"a"})),))
    for each in (loader, other):
        await each.load_many(["A", "b"])
    assert backend.batches == [["A", "b"], ["A", "b"], ["A"]]
    assert await invalidate(loader) == Change((LoaderChange("l"),))
    await loader.load("B")
    assert backend.batches[3:] == [["B"]]
    await drain(cache)


async def test_an_invalidation_does_not_keep_a_loader_from_its_cache_as_clear_does() -> None:
    cache, backend = MemoryCache(), Backend()
    one, two = (DataLoader(backend, second_level=cache, fresh_for=60, name="l") for _ in range(2))
    await invalidate(one, [1])
    await two.load(1)
    await drain(cache)
    await one.load(1)
    assert backend.batches == [[1]]


async def test_a_load_that_is_under_way_is_not_kept_and_the_next_one_asks_again() -> None:
    cache, gate = MemoryCache(), asyncio.Event()
    backend = Backend(lambda key: len(backend.batches), gate=gate)
    loader = DataLoader(backend, second_level=cache, fresh_for=60, name="l")
    before = loader.load(1)
    await asyncio.sleep(0.01)
    await invalidate(loader, [1])
    after = loader.load(1)
    await asyncio.sleep(0.01)
    gate.set()
    assert await after == 2
    assert await before == 2  # of which this worker has two at once, and the first may be older
    await drain(cache)
    assert await DataLoader(backend, second_level=cache, fresh_for=60, name="l").load(1) == 2
    assert backend.batches == [[1], [1]]


async def test_that_anything_may_have_changed_empties_open_loaders_and_a_memory_but_no_cache_that_all_share() -> None:
    for shared in (False, True):
        cache, backend = MemoryCache(), Backend()
        cache.shared = shared
        loader = DataLoader(backend, second_level=cache, fresh_for=60, name="l")
        await loader.load(1)
        await drain(cache)
        await receive(Change(anything=True))
        assert loader.peek(1) is None
        await loader.load(1)
        assert len(backend.batches) == (1 if shared else 2)
        await drain(cache)


async def test_a_declared_loader_is_one_loader_whatever_its_parameters() -> None:
    cache = MemoryCache()

    class AppLoaders(Loaders):
        @dataloader(second_level=cache, fresh_for=60, tags=["rows"])
        async def rows(self, keys: list[int], *, first: int = 10) -> list[str]:
            return [f"{first} of {key}" for key in keys]

    loaders = AppLoaders()
    for first in range(5):
        await loaders.rows(first=first).load(1)
    change = await invalidate_tags("rows")
    assert change.loaders == (change_of(loaders.rows),)


async def test_loaders_of_another_thread_are_left_to_it() -> None:
    cache, loop = MemoryCache(), asyncio.new_event_loop()
    loader = DataLoader(Backend(), second_level=cache, fresh_for=60, name="l")
    loader.prime(1, "one")
    loader._loop = loop
    await receive(Change((LoaderChange("l"),)))
    assert loader.peek(1) == "one"
    loop.close()


def test_a_change_is_of_a_tenant_and_keys_or_of_all() -> None:
    loader = DataLoader(Backend(), second_level=MemoryCache(), fresh_for=60, name="l", schema_version=2)
    assert change_of(loader) == LoaderChange("l", "2")
    assert change_of(loader, (1, 2)) == LoaderChange("l", "2", "", frozenset({1, 2}))


def test_what_has_no_second_level_cannot_be_invalidated() -> None:
    with pytest.raises(ValueError, match="has no second_level"):
        change_of(DataLoader(Backend()))


class App(Loaders):
    @dataloader(second_level=MemoryCache(), fresh_for=60)
    async def rows(self, keys: list[int]) -> list[int]:
        return keys


@pytest.mark.parametrize(
    ("given", "shown"), [(App.rows, "<@dataloader App.rows>"), (App(), "App object"), (len, "built-in"), (None, "None")]
)
async def test_a_change_is_of_a_loader_of_an_instance_and_of_nothing_else(given: Any, shown: str) -> None:
    with pytest.raises(TypeError, match=rf"as in AppLoaders\(...\).products, not of .*{shown}"):
        await invalidate(given, [1])


@pytest.mark.parametrize(("loaded", "said"), [(1.0, 1), (Decimal(2), 2), (True, 1), (3, Decimal("3.0"))])
async def test_a_key_is_known_by_whatever_equal_number(loaded: Any, said: Any) -> None:
    cache, backend = MemoryCache(), Backend()
    for _ in range(2):
        loader = DataLoader(backend, second_level=cache, fresh_for=60, name="l")
        await loader.load(loaded)
        await drain(cache)
        await invalidate(loader, [said])
    assert len(backend.batches) == 2


@pytest.mark.parametrize("keys", ["12", b"12", 12])
async def test_one_key_is_not_taken_for_several(keys: Any) -> None:
    with pytest.raises(TypeError, match="a change takes an iterable of keys"):
        await invalidate(App().rows, keys)


def test_changes_add_up() -> None:
    one = Change((LoaderChange("a"),), frozenset({"x"}))
    two = Change((LoaderChange("a"), LoaderChange("b")), frozenset({"y"}), anything=True)
    assert one | two == Change((LoaderChange("a"), LoaderChange("b")), frozenset({"x", "y"}), anything=True)


async def test_a_tag_is_a_string() -> None:
    with pytest.raises(TypeError, match="tags takes a string, not 3"):
        await invalidate_tags("flights", 3)  # type: ignore[arg-type]  # what is tested
