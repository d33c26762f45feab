"""Circles of waits, through all that waits for anything: each is an error at once, and what is none is served."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from loader import Batcher, Coalescer, DataLoader, Debouncer, Keyed, LoaderError, SelfWaitError, SingleFlight, Snapshot
from tests import loops
from tests.fakes import outcome, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Ask = Callable[[], Awaitable[Any]]
    Way = Callable[[Ask], Ask]


def through_a_snapshot(fn: Ask) -> Ask:
    return Snapshot(fn).get


def through_a_refreshed_snapshot(fn: Ask) -> Ask:
    return Snapshot(fn).refresh


def through_a_coalescer(fn: Ask) -> Ask:
    return Coalescer(fn).request


def through_a_debouncer(fn: Ask) -> Ask:
    return Debouncer(fn, wait=0.1).request


def through_keyed_coalescers(fn: Ask) -> Ask:
    keyed: Keyed[str, Any] = Keyed(lambda _: fn(), Coalescer)
    return partial(keyed.request, "key")


def through_a_flight(fn: Ask) -> Ask:
    return partial(SingleFlight().do, "key", fn)


def through_a_batcher(fn: Ask, slots: int = 1) -> Ask:
    async def handler(items: list[int]) -> list[Any]:
        return [await fn() for _ in items]

    return partial(Batcher(handler, max_concurrent_batches=slots).submit, 1)


def through_many_of_a_batcher(fn: Ask) -> Ask:
    async def handler(items: list[int]) -> list[Any]:
        return [await fn() for _ in items]

    return partial(Batcher(handler, max_batch_size=1, max_concurrent_batches=3).submit_many, [1, 2])


WAYS: list[Way] = [
    through_a_snapshot,
    through_a_refreshed_snapshot,
    through_a_coalescer,
    through_a_debouncer,
    through_keyed_coalescers,
    through_a_flight,
    through_a_batcher,
    partial(through_a_batcher, slots=3),
    through_many_of_a_batcher,
]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: getattr(way, "__name__", "through_a_wide_batcher"))


@every_way
@pytest.mark.every_loop
async def test_a_circle_through_a_loader_is_an_error_wherever_it_begins(way: Way) -> None:
    async def values(keys: list[int]) -> list[Any]:
        return [await ask() for _ in keys]

    loader = DataLoader(values, cache=False)
    ask = way(lambda: loader.load(1))
    assert isinstance(await outcome(ask()), SelfWaitError)
    assert isinstance(await outcome(loader.load(1)), SelfWaitError)
    assert isinstance(await outcome(ask()), SelfWaitError)


@every_way
async def test_a_circle_through_two_loaders_is_an_error(way: Way) -> None:
    async def here(keys: list[int]) -> list[Any]:
        return [await ask() for _ in keys]

    async def there(keys: list[int]) -> list[Any]:
        return await first.load_many(keys)

    first, second = DataLoader(here, cache=False), DataLoader(there, cache=False)
    ask = way(lambda: second.load(1))
    assert isinstance(await outcome(first.load(1)), SelfWaitError)
    assert isinstance(await outcome(ask()), SelfWaitError)


@every_way
@pytest.mark.every_loop
async def test_a_run_may_load_other_keys_of_the_loader_that_waits_for_it(way: Way) -> None:
    async def values(keys: list[int]) -> list[Any]:
        return [await ask() if key == 1 else key for key in keys]

    loader = DataLoader(values)
    ask = way(lambda: loader.load(2))
    assert await loader.load(1) in (2, [2, 2])


@every_way
@pytest.mark.every_loop
async def test_the_slot_of_a_batch_that_waits_for_a_run_is_lent_to_what_the_run_loads(way: Way) -> None:
    async def values(keys: list[int]) -> list[Any]:
        return [await ask() if key == 1 else key for key in keys]

    loader = DataLoader(values, max_concurrent_batches=1)
    ask = way(lambda: loader.load(2))
    assert await loader.load(1) in (2, [2, 2])
    (limit,) = loader._limits
    assert (limit._holders, limit._lenders, len(limit._queue), limit._asked) == (set(), {}, 0, {})


async def test_a_slot_is_lent_when_the_run_already_waits_for_what_queues() -> None:
    async def values(keys: list[int]) -> list[Any]:
        if 1 in keys:
            await turns(20)
            return [await snapshot.get()]
        return keys

    async def other(keys: list[int]) -> list[Any]:
        return await loader.load_many(keys)

    loader = DataLoader(values, max_concurrent_batches=1)
    through = DataLoader(other)
    snapshot = Snapshot(lambda: through.load(2))
    first = loader.load(1)
    await turns()
    reading = asyncio.ensure_future(snapshot.get())
    assert await first == 2
    assert await reading == 2


async def test_no_slot_is_lent_by_a_batch_that_may_go_on_before_the_loan_is_over() -> None:
    async def values(keys: list[int]) -> list[Any]:
        running.append(keys)
        if 1 in keys:
            return [await batcher.submit("quick")]
        together.append(len(running))
        return keys

    async def handler(items: list[str]) -> list[Any]:
        if items == ["slow"]:
            return [await loader.load(2)]
        await asyncio.sleep(1)
        running.pop(0)
        return [7 for _ in items]

    running: list[list[int]] = []
    together: list[int] = []
    loader = DataLoader(values, max_concurrent_batches=1, max_batch_size=1)
    batcher = Batcher(handler, max_batch_size=1, max_concurrent_batches=2)
    first = loader.load(1)
    await turns()
    slow = batcher.submit_nowait("slow")
    assert await first == 7
    assert await slow == 2
    assert together == [1]


async def test_a_load_that_was_given_up_is_waited_for_no_more_once_it_ended() -> None:
    async def values(keys: list[int]) -> list[Any]:
        await asyncio.sleep(2)
        return keys

    async def run() -> Any:
        with_time = asyncio.wait_for(loader.load(len(runs)), 1)
        runs.append(await outcome(with_time))
        await asyncio.sleep(3)
        return await loader.load(0)

    runs: list[Any] = []
    loader = DataLoader(values)
    async with Coalescer(run) as trigger:
        assert await trigger.request() == 0
    assert [type(error) for error in runs] == [TimeoutError]


@pytest.mark.parametrize("close", [False, True])
async def test_flushing_a_batcher_in_a_batch_that_it_waits_for_is_an_error(close: bool) -> None:
    async def values(keys: list[int]) -> list[Any]:
        return [await outcome(batcher.aclose() if close else batcher.flush()) for _ in keys]

    async def handler(items: list[int]) -> list[Any]:
        return await loader.load_many(items)

    loader, batcher = DataLoader(values), Batcher(handler, max_concurrent_batches=2)
    assert isinstance(await outcome(batcher.submit(1)), SelfWaitError)
    assert isinstance(await outcome(batcher.submit(2)), SelfWaitError), "it was not closed"


async def test_closing_a_batcher_at_once_ends_what_would_have_waited_for_the_one_who_closes() -> None:
    async def values(keys: list[int]) -> list[Any]:
        return [await outcome(batcher.aclose(flush=False)) for _ in keys]

    async def handler(items: list[int]) -> list[Any]:
        return await loader.load_many(items)

    loader = DataLoader(values)
    batcher = Batcher(handler)
    waiting = batcher.submit_nowait(1)
    assert await loader.load(1) is None
    assert isinstance(await outcome(waiting), LoaderError)


async def test_what_is_asked_for_inside_a_batch_function_waits_for_that_batch_only_while_it_goes_on() -> None:
    async def values(keys: list[int]) -> list[Any]:
        later.append(asyncio.create_task(asks_later(keys[0])))
        return keys

    async def asks_later(key: int) -> Any:
        await asyncio.sleep(1)
        return await ask() if key == 1 else None

    later: list[asyncio.Task[Any]] = []
    loader = DataLoader(values, cache=False)
    ask = through_a_snapshot(lambda: loader.load(2))
    assert await loader.load(1) == 1
    assert await later[0] == 2
    await later[1]


async def test_an_error_says_who_waits_for_whom() -> None:
    async def values(keys: list[int]) -> list[Any]:
        return [await flights() for _ in keys]

    loader = DataLoader(values, name="values", cache=False)
    flights = Coalescer(lambda: loader.load(1), name="flights").request
    assert "<DataLoader values: 1 waiting>: a run of <Coalescer flights: running> waits for a key" in str(
        await outcome(loader.load(1))
    )
    assert "a run of <Coalescer flights: running> waits for <Coalescer flights: running> itself" in str(
        await outcome(flights())
    )


# -- any shape -----------------------------------------------------------------------------------------------------

KINDS: list[Callable[[random.Random, Callable[[int], Awaitable[Any]]], Callable[[int], Awaitable[Any]]]]


def loader_of(shape: random.Random, fn: Callable[[int], Awaitable[Any]]) -> Callable[[int], Awaitable[Any]]:
    async def values(keys: list[int]) -> list[Any]:
        return await asyncio.gather(*map(fn, keys))

    return DataLoader(
        values,
        cache=False,
        max_batch_size=shape.choice([None, 1, 2]),
        max_concurrent_batches=shape.choice([None, 1, 1, 2]),
        timeout=shape.choice([None, None, None, 5]),
        abandoned=shape.choice(["finish", "finish", "cancel"]),
    ).load


def batcher_of(shape: random.Random, fn: Callable[[int], Awaitable[Any]]) -> Callable[[int], Awaitable[Any]]:
    async def handler(items: list[int]) -> list[Any]:
        return await asyncio.gather(*map(fn, items))

    return Batcher(
        handler,
        max_batch_size=shape.choice([1, 2, 100]),
        max_concurrent_batches=shape.choice([1, 1, 2, 3]),
        timeout=shape.choice([None, None, None, 5]),
    ).submit


def trigger_of(shape: random.Random, fn: Callable[[int], Awaitable[Any]]) -> Callable[[int], Awaitable[Any]]:
    wait = shape.choice([None, 0.2])
    keyed: Keyed[int, Any] = Keyed(fn, lambda run: Coalescer(run) if wait is None else Debouncer(run, wait=wait))
    return keyed.request


def snapshot_of(shape: random.Random, fn: Callable[[int], Awaitable[Any]]) -> Callable[[int], Awaitable[Any]]:
    key = shape.randrange(4)
    snapshot = Snapshot(lambda: fn(key), fresh_for=0.5, error_backoff=0.1, on_error=lambda _: None)
    return lambda _: snapshot.get()


def flight_of(_: random.Random, fn: Callable[[int], Awaitable[Any]]) -> Callable[[int], Awaitable[Any]]:
    flights = SingleFlight()
    return lambda key: flights.do(key, fn, key)


KINDS = [loader_of, loader_of, batcher_of, trigger_of, snapshot_of, flight_of]


def scenario(seed: int, *, downwards: bool) -> Callable[[], Coroutine[Any, Any, list[Any]]]:
    """Things whose functions ask one another, in whatever way or only those below; what the outermost callers got."""
    shape = random.Random(seed)
    size = shape.randint(2, 6)
    calls = [0]

    async def run() -> list[Any]:
        nodes: list[Callable[[int], Awaitable[Any]]] = []

        async def ask(number: int, key: int) -> Any:
            return await nodes[number](key)

        async def fn(number: int, key: int) -> int:
            calls[0] += 1
            chance = random.Random(seed * 1000 + calls[0])
            below = range(number + 1 if downwards else 0, size)
            for _ in range(chance.randint(0, 3) if calls[0] < 60 and below else 0):
                await asyncio.sleep(chance.choice([0, 0, 0.3, 1]))
                asked = [ask(chance.choice(below), chance.randrange(4)) for _ in range(chance.randint(1, 3))]
                for result in await asyncio.gather(*asked, return_exceptions=True):
                    if downwards and isinstance(result, SelfWaitError):
                        raise result
            return key

        nodes += [shape.choice(KINDS)(shape, partial(fn, number)) for number in range(size)]

        async def caller(number: int) -> Any:
            chance = random.Random(seed * 77 + number)
            await asyncio.sleep(chance.choice([0, 0.2, 0.5, 1]))
            return await outcome(ask(chance.randrange(size), chance.randrange(4)))

        callers = [asyncio.ensure_future(caller(number)) for number in range(shape.randint(1, 8))]
        for task in shape.sample(callers, k=len(callers) // 4):
            await asyncio.sleep(shape.random())
            task.cancel()
        await asyncio.wait(callers)
        await asyncio.sleep(1000)  # whatever was abandoned ends too, or the loop raises DeadlockError
        return [task.result() for task in callers if not task.cancelled()]

    return run


# In the last one a batch waits for two things, and when the first has come all that is left waits for its slot.
@pytest.mark.parametrize("seed", [*range(150), 987])
def test_no_nesting_of_anything_waits_forever(seed: int) -> None:
    for result in loops.run(scenario(seed, downwards=False), debug=False, expect_logged=[]):
        assert not isinstance(result, Exception) or isinstance(result, LoaderError)


@pytest.mark.parametrize("seed", range(150))
def test_what_only_asks_those_below_never_waits_for_itself(seed: int) -> None:
    for result in loops.run(scenario(seed, downwards=True), debug=False, expect_logged=[]):
        assert not isinstance(result, SelfWaitError)
