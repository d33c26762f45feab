"""Our DataLoader beside Strawberry's: what both do, and what is different.

Programs move from one to the other, so what both promise runs on both. Where they differ, the test shows both sides: it
fails when either changes.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any, TypeAlias

import pytest
from strawberry.dataloader import AbstractCache
from strawberry.dataloader import DataLoader as StrawberryDataLoader
from strawberry.exceptions import WrongNumberOfResultsReturned

from loader import BatchCancelledError, BatchResultError, DataLoader
from tests.fakes import Backend, awaits, outcome, together, turns

Either: TypeAlias = Any  # the class of a DataLoader

both = pytest.mark.parametrize("cls", [DataLoader, StrawberryDataLoader], ids=["ours", "strawberry"])

# -- what both do --------------------------------------------------------------------------------------------------


@both
async def test_a_burst_of_loads_is_one_batch_in_the_order_of_the_loads(cls: Either) -> None:
    backend = Backend()
    loader = cls(backend)
    assert await together(loader.load(2), loader.load(1), loader.load(2)) == ["v2", "v1", "v2"]
    assert await loader.load(1) == "v1"
    assert backend.batches == [[2, 1]]


@both
async def test_load_is_a_plain_function_that_returns_a_future(cls: Either) -> None:
    future = cls(Backend()).load(1)
    assert asyncio.isfuture(future)
    assert await future == "v1"


@both
async def test_load_many_gives_a_list_in_the_order_of_the_keys(cls: Either) -> None:
    backend = Backend()
    loader = cls(backend)
    assert await loader.load_many([3, 1, 3]) == ["v3", "v1", "v3"]
    assert await loader.load_many([]) == []
    assert backend.batches == [[3, 1]]


@both
async def test_a_batch_holds_max_batch_size_keys(cls: Either) -> None:
    backend = Backend()
    loader = cls(backend, max_batch_size=2)
    assert await loader.load_many(range(5)) == [f"v{key}" for key in range(5)]
    assert backend.batches == [[0, 1], [2, 3], [4]]


@both
async def test_without_a_cache_an_answered_key_is_fetched_again(cls: Either) -> None:
    backend = Backend()
    loader = cls(backend, cache=False)
    assert [await loader.load(1), await loader.load(1)] == ["v1", "v1"]
    assert backend.batches == [[1], [1]]


@both
async def test_an_exception_in_place_of_a_value_fails_its_key_and_is_cached(cls: Either) -> None:
    backend = Backend(lambda key: LookupError(f"no {key}") if key == 2 else key)
    loader = cls(backend)
    one, two = await together(loader.load(1), loader.load(2), return_exceptions=True)
    assert one == 1
    assert isinstance(two, LookupError)
    assert isinstance(await outcome(loader.load(2)), LookupError)
    assert backend.batches == [[1, 2]]


@both
async def test_an_exception_of_the_batch_function_fails_every_caller(cls: Either) -> None:
    async def fails(keys: list[int]) -> list[int]:
        raise ConnectionError("down")

    loader = cls(fails)
    results = await together(loader.load(1), loader.load(2), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionError] * 2


@both
async def test_primed_values_are_not_fetched_and_known_ones_stay_unless_forced(cls: Either) -> None:
    backend = Backend()
    loader = cls(backend)
    loader.prime(1, "primed")
    loader.prime_many({2: "also"})
    assert await loader.load_many([1, 2]) == ["primed", "also"]
    loader.prime(1, "ignored")
    assert await loader.load(1) == "primed"
    loader.prime(1, "forced", force=True)
    loader.prime_many({2: "forced too"}, force=True)
    assert await loader.load_many([1, 2]) == ["forced", "forced too"]
    assert backend.batches == []


@both
async def test_prime_answers_what_waits(cls: Either) -> None:
    backend = Backend()
    loader = cls(backend)
    one, two = loader.load(1), loader.load(2)
    loader.prime(1, "primed", force=True)
    assert await together(one, two) == ["primed", "v2"]
    assert backend.batches == [[2]]


@both
async def test_cleared_keys_are_fetched_again(cls: Either) -> None:
    backend = Backend()
    loader = cls(backend)
    await loader.load_many([1, 2, 3])
    loader.clear(1)
    await loader.load_many([1, 2, 3])
    loader.clear_many([1, 2])
    await loader.load_many([1, 2, 3])
    loader.clear_all()
    await loader.load_many([1, 2, 3])
    assert backend.batches == [[1, 2, 3], [1], [1, 2], [1, 2, 3]]


@both
async def test_a_key_cleared_in_flight_is_fetched_anew_and_the_newer_value_is_kept(cls: Either) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    calls: list[int] = []

    async def numbered(keys: list[int]) -> list[int]:
        calls.append(len(calls))
        number = calls[-1]
        await gates[number].wait()
        return [number for _ in keys]

    loader = cls(numbered)
    before = loader.load(1)
    await turns()
    loader.clear(1)
    after = loader.load(1)
    await turns()
    gates[1].set()
    assert await after == 1
    gates[0].set()
    assert await before == 0
    assert await loader.load(1) == 1


@both
async def test_a_cache_key_function_makes_keys_of_what_is_not_hashable(cls: Either) -> None:
    backend = Backend(lambda key: key["id"])
    loader = cls(backend, cache_key_fn=lambda key: key["id"])
    assert await together(loader.load({"id": 1}), loader.load({"id": 1})) == [1, 1]
    assert backend.batches == [[{"id": 1}]]
    with pytest.raises(TypeError):
        cls(backend).load({"id": 1})


class Cache(AbstractCache[Any, Any]):
    def __init__(self) -> None:
        self.kept: dict[str, asyncio.Future[Any]] = {}

    def get(self, key: Any) -> asyncio.Future[Any] | None:
        return self.kept.get(f"key {key}")

    def set(self, key: Any, value: asyncio.Future[Any]) -> None:
        self.kept[f"key {key}"] = value

    def delete(self, key: Any) -> None:
        del self.kept[f"key {key}"]

    def clear(self) -> None:
        self.kept.clear()


@both
async def test_a_cache_of_ones_own_keeps_finished_futures(cls: Either) -> None:
    cache, backend = Cache(), Backend()
    loader = cls(backend, cache_map=cache)
    await loader.load_many([1, 2])
    assert {key: future.result() for key, future in cache.kept.items()} == {"key 1": "v1", "key 2": "v2"}
    assert await cls(backend, cache_map=cache).load(1) == "v1"
    loader.clear(1)
    await loader.load_many([1, 2])
    assert backend.batches == [[1, 2], [1]]


@both
async def test_chained_loads_are_one_batch_a_level(cls: Either) -> None:
    authors, countries = Backend(lambda key: key + 100), Backend()
    author, country = cls(authors), cls(countries)

    async def resolver(number: int) -> Any:
        return await country.load(await author.load(number))

    assert await together(*map(resolver, range(20))) == [f"v{number + 100}" for number in range(20)]
    assert (len(authors.batches), len(countries.batches)) == (1, 1)


# -- what is different ---------------------------------------------------------------------------------------------


async def test_cancelling_one_of_two_callers_cancels_both_of_strawberrys() -> None:
    async def second_caller(loader: Either) -> Any:
        first, second = awaits(loader.load(1)), awaits(loader.load(1))
        await asyncio.sleep(0)
        first.cancel()
        return await outcome(second)

    assert await second_caller(DataLoader(Backend())) == "v1"
    assert isinstance(await second_caller(StrawberryDataLoader(Backend())), asyncio.CancelledError)


async def test_a_failed_batch_is_kept_by_strawberrys() -> None:
    async def second_load(cls: Either) -> Any:
        failures = [ConnectionError("blip")]

        async def fails_once(keys: list[int]) -> list[int]:
            if failures:
                raise failures.pop()
            return keys

        loader = cls(fails_once)
        await outcome(loader.load(1))
        return await outcome(loader.load(1))

    assert await second_load(DataLoader) == 1
    assert isinstance(await second_load(StrawberryDataLoader), ConnectionError)


async def test_without_a_cache_strawberrys_asks_for_a_repeated_key_repeatedly() -> None:
    async def batches(cls: Either) -> list[list[int]]:
        backend = Backend()
        loader = cls(backend, cache=False)
        await together(loader.load(1), loader.load(1))
        return backend.batches

    assert await batches(DataLoader) == [[1]]
    assert await batches(StrawberryDataLoader) == [[1, 1]]


async def test_strawberrys_hands_out_the_keys_of_a_mapping_as_its_values() -> None:
    async def value(cls: Either) -> Any:
        async def mapping(keys: list[int]) -> dict[int, str]:
            return {key: f"v{key}" for key in keys}

        return await cls(mapping).load(1)

    assert await value(DataLoader) == "v1"
    assert await value(StrawberryDataLoader) == 1


async def test_clearing_an_unknown_key_is_an_error_of_strawberrys() -> None:
    DataLoader(Backend()).clear(1)
    with pytest.raises(KeyError):
        StrawberryDataLoader(Backend()).clear(1)


async def test_a_primed_exception_is_a_value_to_strawberrys() -> None:
    async def primed(cls: Either) -> Any:
        loader = cls(Backend())
        loader.prime(1, LookupError("gone"))
        (finished,) = await together(loader.load(1), return_exceptions=True)
        return finished, loader.load(1).exception()

    value, error = await primed(DataLoader)
    assert value is error
    value, error = await primed(StrawberryDataLoader)
    assert (type(value), error) == (LookupError, None)


async def test_prime_after_a_cancelled_load_breaks_strawberrys() -> None:
    async def primed(cls: Either) -> Any:
        loader = cls(Backend())
        loader.load(1).cancel()
        loader.prime(1, "primed", force=True)
        return await loader.load(1)

    assert await primed(DataLoader) == "primed"
    with pytest.raises(asyncio.InvalidStateError):
        await primed(StrawberryDataLoader)


async def test_a_cancelled_batch_function_leaves_strawberrys_callers_waiting() -> None:
    async def one(cls: Either) -> Any:
        async def cancelled(keys: list[int]) -> list[int]:
            raise asyncio.CancelledError

        future = cls(cancelled).load(1)
        done, _ = await asyncio.wait([future], timeout=3600)
        return [future.exception() for future in done]

    assert [type(error) for error in await one(DataLoader)] == [BatchCancelledError]
    assert await one(StrawberryDataLoader) == []


async def test_resolvers_some_turns_apart_are_several_batches_of_strawberrys() -> None:
    async def batches(cls: Either) -> int:
        backend = Backend()
        loader = cls(backend)

        async def resolver(late: int) -> Any:
            await turns(late)
            return await loader.load(late)

        await together(*map(resolver, range(6)))
        return len(backend.batches)

    assert await batches(DataLoader) == 1
    assert await batches(StrawberryDataLoader) > 1


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


async def test_strawberrys_runs_a_batch_in_the_context_of_its_first_caller() -> None:
    async def context(cls: Either) -> Any:
        async def whose(keys: list[int]) -> list[str]:
            return [variable.get() for _ in keys]

        variable.set("of the loader")
        loader = cls(whose)

        async def caller(name: str) -> Any:
            variable.set(name)
            return await loader.load(name)

        return await together(caller("first"), caller("second"))

    assert await context(DataLoader) == ["of the loader"] * 2
    assert await context(StrawberryDataLoader) == ["first"] * 2


async def test_the_error_for_a_wrong_number_of_results_is_each_ones_own() -> None:
    async def none(keys: list[int]) -> list[int]:
        return []

    assert isinstance(await outcome(DataLoader(none).load(1)), BatchResultError)
    assert isinstance(await outcome(StrawberryDataLoader(none).load(1)), WrongNumberOfResultsReturned)


async def test_options_are_named_and_there_is_no_loop() -> None:
    ours: Either = DataLoader
    with pytest.raises(TypeError):
        ours(Backend(), 10)
    with pytest.raises(TypeError):
        ours(Backend(), loop=asyncio.get_running_loop())
    strawberrys: Either = StrawberryDataLoader
    strawberrys(Backend(), 10, loop=asyncio.get_running_loop())
    with pytest.raises(TypeError):
        ours(Backend()).prime(1, "value", True)  # force is named too
