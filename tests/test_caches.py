"""Where outcomes are kept: dicts, bounded caches, cache objects, and caches that fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from cachetools import LRUCache, TTLCache
from strawberry.dataloader import AbstractCache, DefaultCache

from loader import DataLoader, LoaderLoopError
from loader._caches import as_mapping
from tests import loops
from tests.fakes import Backend, outcome, together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def test_the_mapping_holds_values_and_exceptions() -> None:
    error = LookupError("no 2")
    kept: dict[Any, Any] = {}
    loader = DataLoader(Backend(lambda key: error if key == 2 else key), cache_map=kept)
    await loader.load_many([1, 2], return_exceptions=True)
    assert kept == {1: 1, 2: error}


async def test_what_is_in_the_mapping_is_not_asked_for() -> None:
    backend = Backend()
    loader: DataLoader[int, str] = DataLoader(backend, cache_map={1: "kept"})
    assert await loader.load_many([1, 2]) == ["kept", "v2"]
    assert await loader.load(1) == "kept"
    assert backend.batches == [[2]]


async def test_a_bounded_cache_forgets_and_the_loader_asks_again() -> None:
    backend = Backend()
    loader: DataLoader[int, str] = DataLoader(backend, cache_map=LRUCache(maxsize=1))
    for key in (1, 1, 2, 1):
        assert await loader.load(key) == f"v{key}"
    assert backend.batches == [[1], [2], [1]]
    assert loader.statistics().cached == 1


@pytest.mark.logs
async def test_a_cache_without_room_fails_nobody(reports: list[str]) -> None:
    backend = Backend()
    loader: DataLoader[int, str] = DataLoader(backend, cache_map=LRUCache(maxsize=0))
    assert await together(loader.load(1), loader.load(2)) == ["v1", "v2"]
    assert await loader.load(1) == "v1"
    assert backend.batches == [[1, 2], [1]]
    assert len(reports) == 2
    assert "value too large" in reports[0]


async def test_a_cache_with_a_time_to_live_expires() -> None:
    backend = Backend()
    loop = asyncio.get_running_loop()
    loader: DataLoader[int, str] = DataLoader(backend, cache_map=TTLCache(10, ttl=60, timer=loop.time))
    await loader.load(1)
    await asyncio.sleep(59)
    await loader.load(1)
    await asyncio.sleep(2)
    await loader.load(1)
    assert backend.batches == [[1], [1]]


class Broken(dict[Any, Any]):
    """A cache whose server is gone."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ConnectionError("no cache")

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no cache")


@pytest.mark.logs
async def test_a_cache_that_fails_to_keep_is_reported_and_fails_nobody(reports: list[str]) -> None:
    loader: DataLoader[int, str] = DataLoader(Backend(), cache_map=Broken(), name="things")
    assert await together(loader.load(1), loader.load(2)) == ["v1", "v2"]
    assert len(reports) == 1
    assert "things" in reports[0]
    assert "no cache" in reports[0]
    assert loader.statistics().failures == 0


@pytest.mark.logs
async def test_a_cache_that_fails_midway_through_a_generator_fails_nobody(reports: list[str]) -> None:
    async def pairs(keys: list[int]) -> AsyncIterator[tuple[int, int]]:
        for key in (*keys, 9):
            yield key, key

    loader: DataLoader[int, int] = DataLoader(pairs, cache_map=Broken())
    assert await together(loader.load(1), loader.load(2)) == [1, 2]
    assert all("no cache" in report for report in reports)


async def test_a_cache_that_fails_to_answer_fails_the_call() -> None:
    class Unreadable(dict[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            raise ConnectionError("no cache")

    loader: DataLoader[int, str] = DataLoader(Backend(), cache_map=Unreadable())
    with pytest.raises(ConnectionError):
        loader.load(1)
    with pytest.raises(ConnectionError):
        loader.load_many([1])
    assert loader.statistics().waiting == 0


async def test_prime_raises_what_the_cache_raises_after_it_has_answered() -> None:
    loader: DataLoader[int, str] = DataLoader(Backend(), cache_map=Broken())
    waiting = loader.load(1)
    with pytest.raises(ConnectionError):
        loader.prime(1, "primed")
    assert await waiting == "primed"


# -- objects with Strawberry's methods -----------------------------------------------------------------------------


async def test_a_cache_written_for_strawberry_works() -> None:
    backend = Backend(lambda key: LookupError(key) if key == 2 else f"v{key}")
    cache: DefaultCache[Any, Any] = DefaultCache()
    loader: DataLoader[int, str] = DataLoader(backend, cache_map=cache)
    assert await loader.load(1) == "v1"
    assert await loader.load(1) == "v1"
    assert isinstance(await outcome(loader.load(2)), LookupError)
    assert isinstance(await outcome(loader.load(2)), LookupError)
    assert backend.batches == [[1], [2]]
    kept = cache.get(1)
    assert kept is not None
    assert kept.result() == "v1"
    loader.clear(1)
    loader.clear(7)
    assert await loader.load(1) == "v1"
    loader.prime(1, "kept")
    loader.prime(3, "primed")
    assert await loader.load_many([1, 3]) == ["v1", "primed"]
    loader.clear_all()
    assert await loader.load(3) == "v3"
    assert backend.batches == [[1], [2], [1], [3]]
    assert loader.statistics().cached == 0  # such an object does not say


async def test_a_future_that_is_not_answered_is_no_value() -> None:
    cache: DefaultCache[Any, Any] = DefaultCache()
    pending: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    cancelled: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    cache.set(1, pending)
    cache.set(2, cancelled)
    assert await DataLoader(Backend(), cache_map=cache).load_many([1, 2]) == ["v1", "v2"]


async def test_a_cache_object_is_a_mapping_that_cannot_list_its_keys() -> None:
    mapping = as_mapping(DefaultCache())
    mapping["a"] = 1
    assert "a" in mapping
    del mapping["a"]
    assert "a" not in mapping
    with pytest.raises(KeyError, match="a"):
        del mapping["a"]
    with pytest.raises(TypeError, match="cannot list its keys"):
        list(mapping)


def test_a_cache_object_may_be_shared_by_one_loop_after_another() -> None:
    class Shared(AbstractCache[Any, Any]):
        def __init__(self) -> None:
            self.kept: dict[Any, asyncio.Future[Any]] = {}

        def get(self, key: Any) -> asyncio.Future[Any] | None:
            return self.kept.get(key)

        def set(self, key: Any, value: asyncio.Future[Any]) -> None:
            self.kept[key] = value

        def delete(self, key: Any) -> None:
            del self.kept[key]

        def clear(self) -> None:
            self.kept.clear()

    cache, backend = Shared(), Backend()

    async def request() -> Any:
        return await DataLoader(backend, cache_map=cache).load(1)

    assert [loops.run(request), loops.run(request)] == ["v1", "v1"]
    assert backend.batches == [[1]]


@pytest.mark.parametrize("cache", [[], object(), "cache"])
def test_what_is_no_cache_is_refused(cache: Any) -> None:
    with pytest.raises(TypeError, match="cache_map takes a mutable mapping"):
        DataLoader(Backend(), cache_map=cache)


def test_a_cache_that_would_never_be_used_is_refused() -> None:
    with pytest.raises(ValueError, match="cache=False keeps nothing"):
        DataLoader(Backend(), cache=False, cache_map={})


def test_a_cache_that_keeps_futures_is_primed_where_a_loop_runs() -> None:
    loader = DataLoader(Backend(), cache_map=DefaultCache())
    with pytest.raises(LoaderLoopError, match="was called where no event loop runs"):
        loader.prime(1, "one")
