"""DataLoader: what every program gets, whatever its options."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import pickle
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from loader import (
    BatchCancelledError,
    BatchFailedError,
    BatchResultError,
    DataLoader,
    KeyNotFoundError,
    LoaderClosedError,
    LoaderLoopError,
)
from tests.fakes import Backend, awaits, outcome, together, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# -- the rows of the requirements ----------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_a1_load_asks_nothing_by_itself_and_one_burst_is_one_call() -> None:
    backend = Backend()
    loader = DataLoader(backend)
    waiting = [loader.load(key) for key in (1, 2, 3)]
    assert backend.batches == []
    assert not any(future.done() for future in waiting)
    assert await together(*waiting) == ["v1", "v2", "v3"]
    assert backend.batches == [[1, 2, 3]]


@pytest.mark.every_loop
async def test_a1_one_call_for_each_max_batch_size_of_distinct_keys() -> None:
    backend = Backend()
    loader = DataLoader(backend, max_batch_size=3)
    waiting = [loader.load(key) for key in "abaaabcdefg"]
    assert await together(*waiting) == [f"v{key}" for key in "abaaabcdefg"]
    assert backend.batches == [["a", "b", "c"], ["d", "e", "f"], ["g"]]


@pytest.mark.every_loop
async def test_a2_a_repeated_key_shares_one_lookup_waiting_in_flight_and_afterwards() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend)
    waiting = [loader.load(1), loader.load(1)]
    await turns()
    waiting.append(loader.load(1))
    gate.set()
    assert await together(*waiting) == ["v1"] * 3
    assert await loader.load(1) == "v1"
    assert backend.batches == [[1]]


@pytest.mark.every_loop
async def test_a2_a_key_in_flight_is_not_asked_for_again_when_another_batch_has_ended() -> None:
    gates = {1: asyncio.Event(), 2: asyncio.Event()}
    calls: list[list[int]] = []

    async def function(keys: list[int]) -> list[int]:
        calls.append(keys)
        await gates[keys[0]].wait()
        return keys

    loader = DataLoader(function, max_batch_size=1)
    one, two = loader.load(1), loader.load(2)
    await turns()
    gates[1].set()
    assert await one == 1
    again = loader.load(2)
    await turns()
    gates[2].set()
    assert await together(two, again) == [2, 2]
    assert calls == [[1], [2]]


@pytest.mark.every_loop
async def test_a2_without_a_cache_a_key_is_still_asked_for_once_while_waiting_and_in_flight() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend, cache=False)
    waiting = [loader.load(key) for key in (1, 2, 1, 1)]
    await turns()
    waiting += [loader.load(1), loader.load_many([1, 2])]
    gate.set()
    assert await together(*waiting) == ["v1", "v2", "v1", "v1", "v1", ["v1", "v2"]]
    assert backend.batches == [[1, 2]]
    assert await loader.load(1) == "v1"
    assert backend.batches == [[1, 2], [1]]


async def test_a3_a_full_batch_leaves_at_once_though_its_window_is_open() -> None:
    backend = Backend()
    loader = DataLoader(backend, window=3600, max_batch_size=2)
    assert await together(loader.load(1), loader.load(2)) == ["v1", "v2"]
    assert asyncio.get_running_loop().time() == 0


async def test_a4_a_window_gathers_calls_that_come_apart() -> None:
    backend = Backend()
    loader = DataLoader(backend, window=0.002)

    async def caller(key: int) -> Any:
        await asyncio.sleep(key * 0.0009)
        return await loader.load(key)

    await together(*(caller(key) for key in range(4)))
    assert backend.batches == [[0, 1, 2], [3]]


@pytest.mark.every_loop
async def test_a5_a_cancelled_caller_stops_only_its_own_wait() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend)
    left, stays = awaits(loader.load(1)), awaits(loader.load(1))
    await turns()
    left.cancel()
    await turns()
    gate.set()
    assert await stays == "v1"
    assert left.cancelled()
    assert (backend.batches, backend.cancelled) == ([[1]], 0)


async def test_a5_a_caller_that_times_out_stops_only_its_own_wait() -> None:
    loader = DataLoader(Backend(takes=10))

    async def impatient() -> Any:
        async with asyncio.timeout(1):
            return await loader.load(1)

    first, second = await together(impatient(), loader.load(1), return_exceptions=True)
    assert isinstance(first, TimeoutError)
    assert second == "v1"


@pytest.mark.every_loop
async def test_a6_the_lookup_completes_when_every_caller_has_gone() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend)
    waiting = loader.load(1)
    await turns()
    waiting.cancel()
    await turns()
    gate.set()
    await turns()
    assert loader.peek(1) == "v1"
    assert backend.batches == [[1]]


@pytest.mark.every_loop
async def test_a6_keys_that_nobody_waits_for_any_more_are_dropped_before_the_batch_leaves() -> None:
    backend = Backend()
    loader = DataLoader(backend, cache_key_fn=str)
    waiting = [loader.load(key) for key in (1, 2, 3, 1)]
    for left in (0, 1):
        waiting[left].cancel()
    assert await together(*waiting[2:]) == ["v3", "v1"]
    assert backend.batches == [[1, 3]]
    assert loader.statistics().abandoned == 1


@pytest.mark.every_loop
async def test_a6_a_batch_that_nobody_waits_for_is_not_sent() -> None:
    for late in range(6):
        backend = Backend()
        loader = DataLoader(backend)
        waiting = loader.load(1)
        await turns(late)
        waiting.cancel()
        await turns()
        assert backend.batches in ([], [[1]])
        assert await together(loader.load(2), loader.load(1)) == ["v2", "v1"]


@pytest.mark.every_loop
async def test_a7_a_failing_batch_fails_its_callers_and_no_others() -> None:
    def answer(key: int) -> str:
        if key == 2:
            raise ConnectionError("this batch only")
        return f"v{key}"

    loader = DataLoader(Backend(answer), max_batch_size=2)
    results = await together(*map(loader.load, range(6)), return_exceptions=True)
    assert [type(result) for result in results] == [str, str, ConnectionError, ConnectionError, str, str]


@pytest.mark.every_loop
async def test_a7_a_missing_key_and_an_exception_as_a_value_fail_only_their_keys() -> None:
    async def some(keys: list[int]) -> dict[int, object]:
        return {1: "v1", 2: PermissionError("not yours")}

    loader = DataLoader(some)
    value, refused, missing = await together(*map(loader.load, (1, 2, 3)), return_exceptions=True)
    assert value == "v1"
    assert isinstance(refused, PermissionError)
    assert isinstance(missing, KeyNotFoundError)
    assert isinstance(missing, KeyError)


@pytest.mark.every_loop
async def test_a8_nothing_is_set_on_a_future_that_is_done() -> None:
    gate = asyncio.Event()
    loader = DataLoader(Backend(gate=gate))
    ones = [loader.load(1), loader.load(1)]
    many = loader.load_many([1, 2])
    await turns()
    for future in (*ones, many):
        future.cancel()
    gate.set()
    await turns()  # InvalidStateError would be reported, and fail the test
    assert loader.peek(2) == "v2"


@pytest.mark.every_loop
async def test_a8_a_batch_task_is_held_until_it_ends() -> None:
    answers: list[weakref.ref[asyncio.Future[None]]] = []

    async def waits_for_what_only_it_refers_to(keys: list[int]) -> list[int]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers.append(weakref.ref(answer))
        await answer
        return keys

    waiting = DataLoader(waits_for_what_only_it_refers_to).load(1)  # nobody holds the loader either
    await turns()
    gc.collect()
    answer = answers[0]()
    assert answer is not None
    answer.set_result(None)
    assert await waiting == 1


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


@pytest.mark.every_loop
async def test_a9_a_batch_runs_in_the_context_of_its_loader_and_not_of_the_first_caller() -> None:
    seen: list[str] = []

    async def function(keys: list[int]) -> list[int]:
        seen.append(variable.get())
        variable.set("of the batch function")
        return keys

    async def caller(loader: DataLoader[int, int], name: str) -> None:
        variable.set(name)
        await loader.load(1)
        assert variable.get() == name

    async def request(name: str) -> None:
        variable.set(name)
        loader = DataLoader(function, cache=False)
        await together(caller(loader, f"a resolver of {name}"), caller(loader, f"another of {name}"))
        await caller(loader, f"a later one of {name}")

    await together(request("first"), request("second"))
    assert sorted(seen) == ["first", "first", "second", "second"]


@pytest.mark.every_loop
async def test_a10_the_sizes_of_all_batches_are_a_histogram() -> None:
    loader = DataLoader(Backend(), cache=False)
    for size in (1, 1, 1, 3, 8, 9):
        await loader.load_many(range(size))
    sizes = loader.statistics().batch_size
    counts = dict(zip(sizes.bounds, sizes.counts, strict=False))
    assert {bound: count for bound, count in counts.items() if count} == {1: 3, 4: 1, 8: 1, 16: 1}
    assert (sizes.count, sizes.total) == (6, 23)


async def test_a11_the_reference_burst_takes_6_calls_of_600_keys() -> None:
    loop = asyncio.get_running_loop()
    batches: list[int] = []

    async def backend(keys: list[int]) -> list[int]:
        batches.append(len(keys))
        await asyncio.sleep(0.010 + 0.0001 * len(keys))
        return keys

    loader = DataLoader(backend, max_batch_size=100)
    asked = [*range(600), *(key * 7 % 600 for key in range(400))]
    assert await together(*map(loader.load, asked)) == asked
    assert batches == [100] * 6
    assert loop.time() == pytest.approx(0.020)  # the batches run side by side


@pytest.mark.parametrize(
    ("window", "calls"),
    [(None, 1000), (0.002, 500), (0.005, 200)],
)
async def test_a12_the_trickle_takes_as_many_calls_as_windows_fit(window: float | None, calls: int) -> None:
    loop = asyncio.get_running_loop()
    loader = DataLoader(Backend(takes=0.01), window=window, cache=False)
    waits: list[float] = []

    async def caller(key: int) -> None:
        # A little more than half of a window's last millisecond, so that no key comes exactly when a window ends.
        await asyncio.sleep(0.00105 * key)
        begun = loop.time()
        await loader.load(key)
        waits.append(loop.time() - begun)

    await together(*map(caller, range(1000)))
    assert loader.statistics().batches == calls
    assert loader.statistics().keys == 1000
    assert max(waits) <= 0.01 + (window or 0) + 1e-6


# -- load_many -----------------------------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_load_many_gives_the_values_in_the_order_of_its_keys() -> None:
    backend = Backend()
    loader = DataLoader(backend)
    assert await loader.load_many(key for key in (3, 1, 3, 2)) == ["v3", "v1", "v3", "v2"]
    assert backend.batches == [[3, 1, 2]]


@pytest.mark.every_loop
async def test_load_many_of_nothing_and_of_cached_keys_is_finished_already() -> None:
    loader = DataLoader(Backend())
    assert loader.load_many([]).result() == []
    await loader.load_many([1, 2])
    assert loader.load_many([2, 1]).result() == ["v2", "v1"]


@pytest.mark.every_loop
async def test_load_many_puts_together_cached_waiting_flying_and_new_keys() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend, max_batch_size=2)
    loader.prime(0, "primed")
    flying = loader.load_many([1, 2])
    await turns()
    waiting = loader.load(3)
    many = loader.load_many([0, 1, 3, 4, 5, 6, 7, 1])
    gate.set()
    assert await many == ["primed", "v1", "v3", "v4", "v5", "v6", "v7", "v1"]
    assert await together(flying, waiting) == [["v1", "v2"], "v3"]
    assert backend.batches == [[1, 2], [3, 4], [5, 6], [7]]


@pytest.mark.every_loop
async def test_load_many_joins_a_batch_with_keys_that_others_asked_for_and_with_new_ones() -> None:
    loader = DataLoader(Backend())
    one = loader.load(1)
    assert await loader.load_many([1, 2]) == ["v1", "v2"]
    assert one.result() == "v1"


@pytest.mark.every_loop
async def test_load_many_fails_with_the_failure_of_a_key() -> None:
    def answer(key: int) -> object:
        return LookupError("no 2") if key == 2 else key

    loader = DataLoader(Backend(answer))
    assert isinstance(await outcome(loader.load_many([1, 2])), LookupError)
    assert isinstance(await outcome(loader.load_many([1, 2])), LookupError)  # from the cache
    assert await loader.load(1) == 1


@pytest.mark.every_loop
async def test_load_many_may_return_exceptions_those_of_a_failed_batch_too() -> None:
    def answer(key: int) -> object:
        if key == 4:
            raise ConnectionError("batch")
        return LookupError("no 2") if key == 2 else key

    loader = DataLoader(Backend(answer), max_batch_size=2)
    found = await loader.load_many([1, 2, 3, 4, 5, 6], return_exceptions=True)
    assert [type(value) for value in found] == [int, LookupError, ConnectionError, ConnectionError, int, int]


@pytest.mark.every_loop
async def test_load_many_takes_keys_that_load_themselves_meanwhile() -> None:
    loader = DataLoader(Backend())
    others = []

    def keys() -> Any:
        yield 1
        others.append(loader.load(1))
        yield 2

    assert await loader.load_many(keys()) == ["v1", "v2"]
    assert await together(*others) == ["v1"]


@pytest.mark.parametrize("keys", ["abc", b"abc", 7])
async def test_load_many_of_one_key_is_refused(keys: Any) -> None:
    with pytest.raises(TypeError, match="one key is for load"):
        DataLoader(Backend()).load_many(keys)


# -- prime, peek, clear --------------------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_a_primed_key_is_not_asked_for() -> None:
    backend = Backend()
    loader: DataLoader[int, str] = DataLoader(backend)
    loader.prime(1, "primed")
    loader.prime_many({2: "also", 1: "ignored"})
    assert loader.load(1).result() == "primed"
    assert await loader.load_many([1, 2, 3]) == ["primed", "also", "v3"]
    assert backend.batches == [[3]]


@pytest.mark.every_loop
async def test_prime_replaces_what_is_known_only_by_force() -> None:
    loader: DataLoader[int, str] = DataLoader(Backend())
    await loader.load(1)
    await loader.load(1)
    loader.prime(1, "ignored")
    assert await loader.load(1) == "v1"
    loader.prime(1, "forced", force=True)
    loader.prime_many({1: "ignored"})
    assert await loader.load(1) == "forced"


@pytest.mark.every_loop
async def test_prime_answers_who_waits_and_the_key_is_not_asked_for() -> None:
    backend = Backend()
    loader: DataLoader[int, str] = DataLoader(backend, cache_key_fn=str)
    one, two, many = loader.load(1), loader.load(2), loader.load_many([1, 2, 3])
    loader.prime(1, "primed")
    assert one.result() == "primed"
    assert await together(two, many) == ["v2", ["primed", "v2", "v3"]]
    assert backend.batches == [[2, 3]]


async def test_priming_many_takes_a_mapping() -> None:
    loader: DataLoader[Any, str] = DataLoader(Backend())
    with pytest.raises(TypeError, match=r"prime_many takes a mapping from keys to values, not \[1\]"):
        loader.prime_many([1])  # type: ignore[arg-type]


@pytest.mark.every_loop
async def test_priming_all_that_waits_leaves_nothing_to_ask() -> None:
    backend = Backend()
    loader: DataLoader[int, str] = DataLoader(backend, max_batch_size=2, max_concurrent_batches=1)
    many = loader.load_many([1, 2])  # full: it has closed and not left
    loader.prime_many({1: "one", 2: "two"})
    assert many.result() == ["one", "two"]
    assert loader.statistics().waiting == 0
    await turns()
    assert backend.batches == []


@pytest.mark.every_loop
async def test_prime_leaves_a_key_in_flight_to_its_batch_unless_forced() -> None:
    gate = asyncio.Event()
    loader: DataLoader[int, str] = DataLoader(Backend(gate=gate))
    before = loader.load_many([1, 2])
    await turns()
    loader.prime(1, "ignored")
    loader.prime(2, "forced", force=True)
    after = loader.load(2)
    gate.set()
    assert await before == ["v1", "v2"]
    assert after.result() == "forced"
    assert await loader.load_many([1, 2]) == ["v1", "forced"]


@pytest.mark.every_loop
async def test_a_primed_exception_is_raised() -> None:
    loader: DataLoader[int, str] = DataLoader(Backend())
    waiting = loader.load(1)
    loader.prime(1, LookupError("gone"))
    for future in (waiting, loader.load(1)):
        assert isinstance(await outcome(future), LookupError)


@pytest.mark.every_loop
async def test_prime_without_a_cache_serves_those_who_wait_and_is_not_kept() -> None:
    backend = Backend()
    loader: DataLoader[int, str] = DataLoader(backend, cache=False)
    loader.prime(1, "nobody waits")
    waiting = loader.load(1)
    loader.prime(1, "primed")
    assert await waiting == "primed"
    assert await loader.load(1) == "v1"


@pytest.mark.every_loop
async def test_prime_after_a_cancelled_load() -> None:
    loader: DataLoader[int, str] = DataLoader(Backend())
    loader.load(1).cancel()
    loader.prime(1, "primed")
    assert await loader.load(1) == "primed"


@pytest.mark.every_loop
async def test_peek_asks_nothing() -> None:
    backend = Backend()
    loader: DataLoader[int, str] = DataLoader(backend)
    assert loader.peek(1) is None
    assert loader.peek(1, "default") == "default"
    loader.prime(1, "known")
    loader.prime(2, LookupError("no value"))
    assert (loader.peek(1), loader.peek(2, "default")) == ("known", "default")
    assert DataLoader(backend, cache=False).peek(1, "default") == "default"
    assert backend.batches == []


@pytest.mark.every_loop
async def test_a_cleared_key_is_asked_for_again_and_an_unknown_one_is_no_error() -> None:
    backend = Backend()
    loader = DataLoader(backend)
    await loader.load_many([1, 2, 3, 4])
    loader.clear(1)
    loader.clear(99)
    loader.clear_many([2, 99])
    await loader.load_many([1, 2, 3, 4])
    loader.clear_all()
    await loader.load_many([3, 4])
    assert backend.batches == [[1, 2, 3, 4], [1, 2], [3, 4]]
    uncached = DataLoader(backend, cache=False)
    uncached.clear(1)
    uncached.clear_all()


@pytest.mark.every_loop
@pytest.mark.parametrize("everything", [False, True])
async def test_clearing_a_key_in_flight_makes_the_next_load_fetch_anew(everything: bool) -> None:
    state, gates = ["old"], [asyncio.Event(), asyncio.Event()]
    calls: list[list[int]] = []

    async def reads(keys: list[int]) -> list[str]:
        read, call = state[0], len(calls)
        calls.append(keys)
        await gates[call].wait()
        return [read for _ in keys]

    loader = DataLoader(reads)
    before = loader.load(1)
    await turns()
    state[0] = "new"
    if everything:
        loader.clear_all()
    else:
        loader.clear(1)
    after = loader.load(1)
    await turns()
    gates[1].set()
    assert await after == "new"
    gates[0].set()  # the old fetch ends last
    assert await before == "old"
    assert await loader.load(1) == "new"
    assert calls == [[1], [1]]


@pytest.mark.every_loop
async def test_a_key_that_is_fetched_anew_is_still_asked_for_once_after_the_old_fetch_has_ended() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    calls: list[list[int]] = []

    async def reads(keys: list[int]) -> list[int]:
        calls.append(keys)
        call = len(calls)
        await gates[call - 1].wait()
        return [call for _ in keys]

    loader = DataLoader(reads)
    before = loader.load(1)
    await turns()
    loader.clear(1)
    after = loader.load(1)
    await turns()
    gates[0].set()
    assert await before == 1
    again = loader.load(1)
    await turns()
    gates[1].set()
    assert await together(after, again) == [2, 2]
    assert calls == [[1], [1]]


@pytest.mark.every_loop
async def test_a_late_failure_leaves_the_newer_value_alone() -> None:
    gate, calls = asyncio.Event(), []

    async def fails_late(keys: list[int]) -> list[str]:
        calls.append(keys)
        if len(calls) == 1:
            await gate.wait()
            raise ConnectionError("late")
        return ["new" for _ in keys]

    loader = DataLoader(fails_late)
    before = loader.load(1)
    await turns()
    loader.clear(1)
    assert await loader.load(1) == "new"
    gate.set()
    assert isinstance(await outcome(before), ConnectionError)
    assert await loader.load(1) == "new"
    assert len(calls) == 2


@pytest.mark.every_loop
async def test_clearing_a_key_that_waits_changes_nothing_for_it() -> None:
    backend = Backend()
    loader = DataLoader(backend)
    waiting = loader.load(1)
    loader.clear(1)
    loader.clear_all()
    again = loader.load(1)
    assert await together(waiting, again) == ["v1", "v1"]
    assert backend.batches == [[1]]


@pytest.mark.every_loop
async def test_other_keys_of_a_batch_are_kept_when_one_is_cleared_in_flight() -> None:
    gate = asyncio.Event()
    loader = DataLoader(Backend(gate=gate))
    waiting = loader.load_many([1, 2])
    await turns()
    loader.clear(1)
    gate.set()
    await waiting
    assert (loader.peek(1), loader.peek(2)) == (None, "v2")


@pytest.mark.every_loop
async def test_what_a_batch_brings_for_a_cleared_key_is_not_kept_whatever_else_was_cleared_before_and_after() -> None:
    gate = asyncio.Event()
    loader = DataLoader(Backend(gate=gate))
    for _ in range(2):
        gate.clear()
        waiting = loader.load(1)
        await turns()
        loader.clear(99)
        loader.clear_all()
        gate.set()
        assert await waiting == "v1"
        assert loader.peek(1) is None


@pytest.mark.every_loop
async def test_what_a_batch_brings_for_a_key_primed_by_force_is_not_kept_whatever_was_primed_before() -> None:
    gate = asyncio.Event()
    loader: DataLoader[int, str] = DataLoader(Backend(gate=gate))
    for key in (1, 2):
        gate.clear()
        waiting = loader.load(key)
        await turns()
        loader.prime(key, "newer", force=True)
        gate.set()
        assert await waiting == f"v{key}"
        assert loader.peek(key) == "newer"


@pytest.mark.every_loop
async def test_extra_keys_prime_the_cache_unless_something_was_cleared_meanwhile() -> None:
    gate = asyncio.Event()

    async def generous(keys: list[int]) -> dict[int, str]:
        await gate.wait()
        return {key: f"v{key}" for key in range(4)}

    gate.set()
    loader = DataLoader(generous)
    loader.prime(3, "primed")
    await loader.load(0)
    assert [loader.peek(key) for key in range(4)] == ["v0", "v1", "v2", "primed"]
    gate.clear()
    loader.clear_all()
    waiting = loader.load(0)
    await turns()
    loader.clear(2)
    gate.set()
    await waiting
    assert [loader.peek(key) for key in range(4)] == ["v0", None, None, None]
    uncached = DataLoader(generous, cache=False)
    assert await uncached.load(0) == "v0"


@pytest.mark.every_loop
async def test_an_extra_key_that_another_batch_is_fetching_is_left_to_that_batch() -> None:
    gate = asyncio.Event()

    async def generous(keys: list[int]) -> dict[int, str]:
        if keys == [1]:
            await gate.wait()
        return {1: f"by {keys}", 2: f"by {keys}"}

    loader = DataLoader(generous, max_batch_size=1)
    one, two = loader.load(1), loader.load(2)
    assert await two == "by [2]"
    gate.set()
    assert await one == "by [1]"
    assert loader.peek(1) == "by [1]"


# -- async generators ----------------------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_a_generator_answers_each_caller_as_its_pair_comes() -> None:
    gate = asyncio.Event()

    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        yield 2, "early"
        await gate.wait()
        yield 1, "late"

    loader = DataLoader(rows)
    one, two, both = loader.load(1), loader.load(2), loader.load_many([1, 2])
    await turns()
    assert two.result() == "early"
    assert loader.load(2).result() == "early"
    assert not one.done()
    gate.set()
    assert await together(one, both) == ["late", ["late", "early"]]


@pytest.mark.every_loop
async def test_extra_pairs_of_a_generator_prime_the_cache_and_cleared_ones_are_not_kept() -> None:
    gate = asyncio.Event()

    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        yield 7, "extra"
        await gate.wait()
        for key in (*keys, 8):
            yield key, f"v{key}"

    loader = DataLoader(rows)
    waiting = loader.load_many([1, 2])
    await turns()
    loader.clear(1)
    gate.set()
    assert await waiting == ["v1", "v2"]
    assert [loader.peek(key) for key in (7, 1, 2, 8)] == ["extra", None, "v2", None]
    uncached = DataLoader(rows, cache=False)
    assert await uncached.load(1) == "v1"


@pytest.mark.every_loop
async def test_an_error_midway_fails_only_who_still_waits() -> None:
    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, Any]]:
        yield 1, "v1"
        yield 2, LookupError("no 2")
        raise ConnectionError("midway")

    loader: DataLoader[int, Any] = DataLoader(rows)
    found = await loader.load_many([1, 2, 3], return_exceptions=True)
    assert [type(value) for value in found] == [str, LookupError, ConnectionError]
    assert loader.peek(1) == "v1"
    assert loader.statistics().failures == 1


@pytest.mark.every_loop
async def test_a_generator_cancelled_midway_fails_who_still_waits_and_is_closed() -> None:
    log: list[str] = []

    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        try:
            yield 1, "v1"
            await asyncio.Event().wait()
        finally:
            log.append("closed")

    loader = DataLoader(rows)
    one, two = loader.load(1), loader.load(2)
    assert await one == "v1"
    await loader.aclose()
    assert isinstance(await outcome(two), LoaderClosedError)
    assert log == ["closed"]


@pytest.mark.every_loop
async def test_a_generator_that_takes_no_notice_of_its_cancellation_is_closed_at_its_next_pair() -> None:
    log: list[str] = []

    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            yield 1, "nobody waits"
            log.append("never")
        finally:
            log.append("closed")

    loader = DataLoader(rows)
    waiting = loader.load(1)
    await turns()
    await loader.aclose()
    assert isinstance(await outcome(waiting), LoaderClosedError)
    assert log == ["closed"]
    assert loader.peek(1) is None


@pytest.mark.every_loop
async def test_a_generator_that_closes_its_own_loader_is_closed_at_its_next_pair() -> None:
    log: list[str] = []

    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        await loader.aclose()
        try:
            yield 1, "nobody waits"
            log.append("never")
        finally:
            log.append("closed")

    loader: DataLoader[int, str] = DataLoader(rows)
    assert isinstance(await outcome(loader.load(1)), LoaderClosedError)
    await turns()
    assert log == ["closed"]
    assert loader.peek(1) is None


@pytest.mark.every_loop
async def test_a_generator_that_yields_what_is_wrong_is_closed_before_its_callers_hear_of_it() -> None:
    log: list[str] = []

    async def pairs() -> AsyncIterator[Any]:
        try:
            yield "no pair"
        finally:
            log.append("closed")

    generator = pairs()  # held here: it is not the collector that closes it

    async def rows(keys: list[int]) -> AsyncIterator[Any]:
        return generator

    loader: DataLoader[int, Any] = DataLoader(rows)  # type: ignore[arg-type]
    assert isinstance(await outcome(loader.load(1)), BatchResultError)
    assert log == ["closed"]


@pytest.mark.every_loop
async def test_an_iterator_without_aclose_will_do() -> None:
    class Rows:
        def __init__(self) -> None:
            self.left = [(2, "v2"), (1, "v1")]

        def __aiter__(self) -> Rows:
            return self

        async def __anext__(self) -> tuple[int, str]:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    async def rows(keys: list[int]) -> Rows:
        return Rows()

    loader: DataLoader[int, str] = DataLoader(rows)  # type: ignore[arg-type]
    assert await loader.load_many([1, 2]) == ["v1", "v2"]
    assert loader.statistics().failures == 0


# -- every exit settles every caller -------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_a_failure_of_a_batch_is_not_kept() -> None:
    failures = [ConnectionError("blip")]

    async def fails_once(keys: list[int]) -> list[int]:
        if failures:
            raise failures.pop()
        return keys

    loader = DataLoader(fails_once)
    assert isinstance(await outcome(loader.load(1)), ConnectionError)
    assert await loader.load(1) == 1


class Fatal(BaseException):
    pass


@pytest.mark.every_loop
@pytest.mark.parametrize(
    ("error", "becomes"), [(Fatal("died"), BatchFailedError), (asyncio.CancelledError(), BatchCancelledError)], ids=repr
)
async def test_a_base_exception_reaches_the_callers_as_one_that_they_can_catch(
    error: BaseException, becomes: type[Exception]
) -> None:
    async def dies(keys: list[int]) -> list[int]:
        raise error

    loader = DataLoader(dies)
    one, many = await together(loader.load(1), loader.load_many([1, 2]), return_exceptions=True)
    assert type(one) is type(many) is becomes
    assert one.__cause__ is error


@pytest.mark.every_loop
async def test_a_cancelled_sub_task_of_a_batch_function_does_not_look_like_the_callers_cancellation() -> None:
    async def pool_was_closed(keys: list[int]) -> list[int]:
        query = asyncio.ensure_future(asyncio.Event().wait())
        await asyncio.sleep(0)
        query.cancel()
        await query
        return keys

    loader = DataLoader(pool_was_closed)
    results = await together(loader.load(1), loader.load(2), return_exceptions=True)
    assert {type(result) for result in results} == {BatchCancelledError}


@pytest.mark.every_loop
async def test_a_wrong_number_of_results_fails_everybody() -> None:
    async def short(keys: list[int]) -> list[int]:
        return keys[1:]

    loader = DataLoader(short)
    results = await together(loader.load(1), loader.load(2), return_exceptions=True)
    assert {type(result) for result in results} == {BatchResultError}


def test_an_interrupt_leaves_through_the_loop_after_the_callers_have_their_answer() -> None:
    seen: list[BaseException] = []

    async def interrupted(keys: list[int]) -> list[int]:
        raise KeyboardInterrupt

    async def main() -> None:
        try:
            await DataLoader(interrupted).load(1)
        except BaseException as error:
            seen.append(error)
            raise

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert len(seen) == 1


@pytest.mark.every_loop
async def test_a_task_factory_that_fails_leaves_the_loader_usable() -> None:
    loop = asyncio.get_running_loop()
    usual = loop.get_task_factory()

    def broken(loop: Any, coroutine: Any, **_: Any) -> Any:
        coroutine.close()
        raise MemoryError

    loader = DataLoader(Backend())
    loop.set_task_factory(broken)
    with pytest.raises(MemoryError):
        loader.load(1)
    loop.set_task_factory(usual)
    assert await loader.load(1) == "v1"


# -- closing -------------------------------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_closing_answers_everybody_and_ends_the_functions() -> None:
    backend = Backend(gate=asyncio.Event())
    async with DataLoader(backend, name="things") as loader:
        flying = loader.load(1)
        await turns()
        waiting, many = loader.load(2), loader.load_many([1, 3])
    assert backend.cancelled == 1
    assert backend.running == 0
    for future in (flying, waiting, many):
        assert str(await outcome(future)) == "things: closed before this key was answered"
    calls: list[Callable[[], object]] = [lambda: loader.load(1), lambda: loader.load_many([1])]
    for call in calls:
        with pytest.raises(LoaderClosedError, match="<DataLoader things: closed> was closed: make a new one"):
            call()
    with pytest.raises(LoaderClosedError):
        loader.prime(1, "late")
    await loader.aclose()


@pytest.mark.every_loop
async def test_what_is_cached_can_be_looked_at_after_closing() -> None:
    loader = DataLoader(Backend())
    await loader.load(1)
    await loader.aclose()
    loader.flush()
    assert loader.peek(1) == "v1"
    assert loader.statistics().cached == 1
    with pytest.raises(LoaderClosedError):
        loader.load(1)
    loader.clear(1)
    loader.clear_all()


@pytest.mark.every_loop
async def test_callers_who_left_before_the_close_are_not_missed() -> None:
    loader = DataLoader(Backend())
    loader.load(1)
    await loader.aclose()  # nobody looks at the error, and asyncio does not complain


@pytest.mark.every_loop
async def test_a_batch_function_may_close_its_own_loader() -> None:
    async def closes(keys: list[int]) -> list[int]:
        await loader.aclose()
        return keys

    loader: DataLoader[int, int] = DataLoader(closes)
    assert isinstance(await outcome(loader.load(1)), LoaderClosedError)
    await turns()


def test_a_closed_loader_says_so_where_no_loop_runs() -> None:
    loader = DataLoader(Backend())
    asyncio.run(loader.aclose())
    for call in (lambda: loader.load(1), lambda: loader.load_many([1]), lambda: loader.load_many([])):
        with pytest.raises(LoaderClosedError):
            call()


@pytest.mark.every_loop
async def test_everybody_who_closes_waits_for_the_functions_to_end() -> None:
    gate, ended = asyncio.Event(), []

    async def cleans_up(keys: list[int]) -> list[int]:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
            ended.append(keys)
        return keys

    loader = DataLoader(cleans_up)
    waiting = loader.load(1)
    await turns()
    closing = [awaits(loader.aclose()), awaits(loader.aclose())]
    await turns()
    assert not any(task.done() for task in closing)
    gate.set()
    await together(*closing)
    assert ended == [[1]]
    assert isinstance(await outcome(waiting), LoaderClosedError)


@pytest.mark.every_loop
@pytest.mark.logs
async def test_an_error_after_the_close_is_asyncios_to_report(reports: list[str]) -> None:
    async def breaks_when_cancelled(keys: list[int]) -> list[int]:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise ConnectionError("while cleaning up")

    loader = DataLoader(breaks_when_cancelled)
    waiting = loader.load(1)
    await turns()
    await loader.aclose()
    assert isinstance(await outcome(waiting), LoaderClosedError)
    assert len(reports) == 1
    assert "error after callers were answered" in reports[0]
    assert "while cleaning up" in reports[0]


@pytest.mark.every_loop
async def test_a_batch_cancelled_with_its_task_is_not_reported_where_nobody_waits_any_more() -> None:
    loader = DataLoader(Backend(gate=asyncio.Event()))
    waiting = loader.load(1)
    await turns()
    task = loader._waiting[1].task
    assert task is not None
    task.cancel()  # as when the loop ends
    del waiting
    await turns()  # asyncio would report an error that nobody looked at, and that would fail the test
    assert loader.statistics().failures == 1


# -- memory --------------------------------------------------------------------------------------------------------


class Value:
    pass


@pytest.mark.every_loop
async def test_without_a_cache_an_idle_loader_holds_no_value() -> None:
    values: weakref.WeakSet[Value] = weakref.WeakSet()

    async def makes(keys: list[int]) -> list[Value]:
        made = [Value() for _ in keys]
        values.update(made)
        return made

    loader = DataLoader(makes, cache=False)
    await loader.load_many([1, 2, 3])
    await loader.load(4)
    await turns()
    gc.collect()
    assert len(values) == 0
    assert not loader._waiting
    assert not loader._batches


@pytest.mark.every_loop
async def test_an_error_that_somebody_keeps_keeps_no_caller_alive() -> None:
    async def fails(keys: list[int]) -> list[int]:
        raise ConnectionError("down")

    loader = DataLoader(fails)
    waiting = loader.load(1)
    alive = weakref.ref(waiting)
    error = await outcome(waiting)
    await turns()
    del waiting
    gc.collect()
    assert isinstance(error, ConnectionError)  # its traceback holds the frames of the batch
    assert alive() is None


# -- statistics and repr -------------------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_statistics_after_every_path() -> None:
    gate = asyncio.Event()

    async def function(keys: list[int]) -> list[int]:
        await gate.wait()
        if 13 in keys:
            raise ConnectionError("down")
        return keys

    def seen() -> tuple[int, ...]:
        now = loader.statistics()
        return now.batches, now.keys, now.failures, now.abandoned, now.waiting, now.running, now.cached

    loader = DataLoader(function, max_batch_size=2)
    assert seen() == (0, 0, 0, 0, 0, 0, 0)
    many = loader.load_many([1, 2, 3])
    assert seen() == (0, 0, 0, 0, 3, 0, 0)
    await turns()
    assert seen() == (2, 3, 0, 0, 0, 2, 0)
    gate.set()
    await many
    assert seen() == (2, 3, 0, 0, 0, 0, 3)
    await outcome(loader.load(13))
    assert seen() == (3, 4, 1, 0, 0, 0, 3)
    loader.load(4).cancel()
    await turns()
    assert seen() == (3, 4, 1, 1, 0, 0, 3)
    gate.clear()
    closing = loader.load(5)
    await turns()
    await loader.aclose()
    await outcome(closing)
    assert seen() == (4, 5, 1, 1, 0, 0, 3)


@pytest.mark.every_loop
async def test_every_failed_batch_is_counted_and_without_a_cache_nothing_is_cached() -> None:
    async def fails(keys: list[int]) -> list[int]:
        raise ConnectionError("down")

    loader = DataLoader(fails, cache=False)
    for failed in (1, 2):
        await outcome(loader.load(1))
        assert (loader.statistics().failures, loader.statistics().cached) == (failed, 0)


async def test_a_loader_says_who_it_is() -> None:
    loader = DataLoader(Backend(), name="things")
    assert repr(loader) == "<DataLoader things: 0 waiting>"
    waiting = loader.load(1)
    assert repr(loader) == "<DataLoader things: 1 waiting>"
    await waiting
    await loader.aclose()
    assert repr(loader) == "<DataLoader things: closed>"


# -- loops and threads ---------------------------------------------------------------------------------------------


def run_until_complete_and_close(main: Any, *, teardown: bool) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main())
        if teardown:
            loop.run_until_complete(turns())
    finally:
        loop.close()


@pytest.mark.parametrize("limit", [None, 1])
def test_a_loader_whose_loop_is_closed_serves_the_next_one(limit: int | None) -> None:
    hang = [True]

    async def function(keys: list[int]) -> list[int]:
        if hang:
            await asyncio.Event().wait()
        return keys

    loader = DataLoader(function, max_concurrent_batches=limit, max_pending=4)

    async def first() -> None:
        loader.load(1)
        await turns()
        loader.load(2)
        loader.prime(3, 30)
        loader.load(3)
        loader.load(3)

    async def second() -> None:
        hang.clear()
        assert await together(loader.load(1), loader.load_many([2, 3])) == [1, [2, 30]]
        await loader.aclose()

    run_until_complete_and_close(first, teardown=False)
    run_until_complete_and_close(second, teardown=True)


def test_closing_forgets_what_a_closed_loop_left_behind() -> None:
    loader = DataLoader(Backend(gate=asyncio.Event()))

    async def leaves() -> None:
        loader.load(1)
        await turns()

    run_until_complete_and_close(leaves, teardown=False)
    asyncio.run(loader.aclose())
    assert repr(loader).endswith("closed>")


def test_another_loop_while_the_first_is_open_is_an_error_at_the_call() -> None:
    loader = DataLoader(Backend(gate=asyncio.Event()), name="things")
    first = asyncio.new_event_loop()

    async def begin() -> None:
        loader.load(1)

    async def use() -> None:
        for call in (
            lambda: loader.load(1),
            lambda: loader.load_many([1]),
            lambda: loader.prime(1, "v1"),
            loader.flush,
            loader._close,
        ):
            with pytest.raises(LoaderLoopError, match=r"things.*belongs to another event loop"):
                call()

    first.run_until_complete(begin())
    asyncio.run(use())
    first.run_until_complete(loader.aclose())
    first.close()


@pytest.mark.real_time
async def test_a_call_from_a_thread_is_an_error_at_the_call() -> None:
    gate = asyncio.Event()
    loader = DataLoader(Backend(gate=gate), name="things")
    calls: list[Callable[[], object]] = [lambda: loader.load(1), lambda: loader.load_many([1])]
    for call in calls:
        with pytest.raises(LoaderLoopError, match=r"things.*where no event loop runs"):
            await asyncio.to_thread(call)
    waiting = loader.load(1)
    calls += [lambda: loader.prime(1, "v1"), lambda: loader.load(2)]
    for call in calls:
        with pytest.raises(LoaderLoopError, match=r"things.*where no event loop runs"):
            await asyncio.to_thread(call)
    gate.set()
    assert await waiting == "v1"


@pytest.mark.parametrize("first_is_closed", [True, False])
def test_a_finished_future_is_as_good_on_another_loop(first_is_closed: bool) -> None:
    loader = DataLoader(Backend())
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def begin() -> None:
        for _ in range(3):
            assert await loader.load_many([1, 2]) == ["v1", "v2"]
            assert await together(loader.load(1), loader.load(2)) == ["v1", "v2"]

    async def go_on() -> None:
        known = loader.load(1)
        assert known.get_loop() is second
        assert await known == "v1"
        assert await together(known, loader.load(2)) == ["v1", "v2"]
        assert await asyncio.wait_for(asyncio.shield(known), timeout=1) == "v1"
        assert (await asyncio.wait({known}))[0] == {known}
        called: list[object] = []
        variable.set("of the callback")
        context = contextvars.copy_context()
        variable.set("of the caller")
        known.add_done_callback(called.append)
        known.add_done_callback(lambda _: called.append(variable.get()))
        known.add_done_callback(lambda _: called.append(variable.get()), context=context)
        assert not called
        await turns()
        assert called == [known, "of the caller", "of the callback"]

    first.run_until_complete(begin())
    if first_is_closed:
        first.close()
    second.run_until_complete(go_on())
    assert loader.load(1).result() == "v1"  # where no loop runs
    assert loader.load(1).get_loop() is first
    second.close()
    first.close()


def test_a_loader_can_be_made_and_primed_where_no_loop_runs() -> None:
    loader: DataLoader[int, str] = DataLoader(Backend())
    loader.prime(1, "primed")

    async def main() -> None:
        assert await loader.load_many([1, 2]) == ["primed", "v2"]

    asyncio.run(main())


# -- what is nobody's answer


@pytest.mark.logs
async def test_an_async_generator_that_fails_after_its_last_pair_is_asyncios_to_report(reports: list[str]) -> None:
    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, int]]:
        for key in keys:
            yield key, key
        raise ConnectionError("the commit failed")

    loader = DataLoader(rows)
    assert await loader.load_many([1, 2]) == [1, 2]
    await turns()
    assert len(reports) == 1
    assert "an async generator failed after it had answered everybody" in reports[0]
    assert "the commit failed" in reports[0]
    assert loader.statistics().failures == 1


async def test_who_has_left_a_batch_does_not_care_whether_it_fails() -> None:
    goes_on = asyncio.Event()

    async def fails(keys: list[int]) -> list[int]:
        await goes_on.wait()
        raise ConnectionError("down")

    loader = DataLoader(fails)
    waiting: list[asyncio.Future[Any]] = [loader.load(1), loader.load_many([2, 3])]
    await turns()
    for future in waiting:
        future.cancel()
    goes_on.set()
    await turns()
    assert loader.statistics().failures == 1  # and nothing is reported


async def test_stop_async_iteration_ends_no_callers_iteration() -> None:
    async def fetch(keys: list[int]) -> list[Any]:
        return [StopAsyncIteration() for _ in keys]

    class Names:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            return await loader.load(1)

    loader = DataLoader(fetch)
    with pytest.raises(BatchFailedError, match="StopAsyncIteration"):
        [name async for name in Names()]


async def test_a_loader_is_neither_copied_nor_pickled() -> None:
    loader = DataLoader(Backend(), name="users")
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="<DataLoader users: 0 waiting> belongs to its event loop"):
            make(loader)


async def test_why_a_key_is_not_hashable_is_kept() -> None:
    class Key:
        def __hash__(self) -> int:
            raise TypeError("no tenant yet")

    loader = DataLoader[Any, Any](Backend())
    for ask in (loader.load, loader.clear, lambda key: loader.load_many([key])):
        with pytest.raises(TypeError, match="is not hashable") as caught:
            ask(Key())
        assert str(caught.value.__cause__) == "no tenant yet"
