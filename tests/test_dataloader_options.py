"""What the options of a DataLoader promise: limits on waiting, time and callers, keys of one's own making, names."""

from __future__ import annotations

import asyncio
import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from loader import (
    BatchCancelledError,
    Batcher,
    DataLoader,
    LoaderClosedError,
    LoaderOverloadedError,
    Loaders,
    LoaderTimeoutError,
    dataloader,
)
from tests.fakes import Backend, awaits, outcome, together, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

untyped: Any = DataLoader  # for arguments that no type checker would let pass

# -- max_pending ---------------------------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_past_max_pending_a_load_is_refused_and_what_waits_is_not_hurt() -> None:
    backend = Backend()
    loader = DataLoader(backend, max_pending=2, name="things")
    waiting = [loader.load(1), loader.load(2), loader.load(1)]
    with pytest.raises(LoaderOverloadedError, match="2 keys wait to be sent and 1 more would exceed max_pending=2"):
        loader.load(3)
    waiting.append(loader.load(2))  # which waits already
    assert await together(*waiting) == ["v1", "v2", "v1", "v2"]
    assert await loader.load(3) == "v3"
    assert backend.batches == [[1, 2], [3]]


@pytest.mark.every_loop
async def test_load_many_past_max_pending_asks_for_none_of_its_keys() -> None:
    backend = Backend()
    loader = DataLoader(backend, max_pending=3, max_batch_size=2)
    loader.prime(0, "primed")
    one = loader.load(1)
    with pytest.raises(LoaderOverloadedError, match="1 keys wait to be sent and 3 more"):
        loader.load_many([0, 1, 2, 3, 4])
    assert loader.statistics().waiting == 1
    many = loader.load_many([0, 1, 2, 3, 3, 2])
    assert loader.statistics().waiting == 3
    with pytest.raises(LoaderOverloadedError):
        loader.load_many([4])
    await together(one, many)
    assert backend.batches == [[1, 2], [3]]


@pytest.mark.every_loop
async def test_keys_of_batches_that_queue_for_a_slot_count_as_pending() -> None:
    gate = asyncio.Event()
    loader = DataLoader(Backend(gate=gate), max_pending=3, max_batch_size=2, max_concurrent_batches=1)
    flying = loader.load_many([1, 2])
    await turns()
    queued = loader.load_many([3, 4, 5])
    await turns()
    assert (loader.statistics().running, loader.statistics().waiting) == (1, 3)
    with pytest.raises(LoaderOverloadedError):
        loader.load(6)
    loader.prime(3, "primed")
    more = loader.load(6)
    with pytest.raises(LoaderOverloadedError):
        loader.load(7)
    more.cancel()
    gate.set()
    assert await together(flying, queued) == [["v1", "v2"], ["primed", "v4", "v5"]]
    assert loader.statistics().waiting == 0


@pytest.mark.every_loop
async def test_a_refused_first_load_leaves_nothing_behind() -> None:
    loader = DataLoader(Backend(), max_pending=1)
    with pytest.raises(LoaderOverloadedError):
        loader.load_many([1, 2])
    assert loader._open is None
    assert await loader.load(1) == "v1"


@pytest.mark.every_loop
async def test_closing_and_time_outs_give_pending_keys_back() -> None:
    loader = DataLoader(Backend(gate=asyncio.Event()), max_batch_size=1, max_pending=2, max_concurrent_batches=1)
    loader.load(1)
    await turns()
    loader.load_many([2, 3])
    await loader.aclose()
    assert loader.statistics().waiting == 0


# -- timeout -------------------------------------------------------------------------------------------------------


async def test_a_batch_that_takes_too_long_fails_its_callers_alone() -> None:
    backend = Backend()
    slow = asyncio.Event()

    async def function(keys: list[int]) -> list[Any]:
        if keys == [1]:
            await slow.wait()
        return await backend(keys)

    loader = DataLoader(function, timeout=2.5, max_batch_size=1, name="things")
    late, many, fine = loader.load(1), loader.load_many([1, 2], return_exceptions=True), loader.load(2)
    assert await fine == "v2"
    error = await outcome(late)
    assert isinstance(error, LoaderTimeoutError)
    assert isinstance(error, TimeoutError)
    assert str(error) == "things: a batch of 1 keys was not answered within 2.5 seconds"
    assert await many == [error, "v2"]
    slow.set()
    assert await loader.load(1) == "v1"
    assert loader.statistics().failures == 1


async def test_the_time_out_counts_waiting_for_a_slot_but_not_gathering() -> None:
    loop = asyncio.get_running_loop()
    backend = Backend(takes=3)
    loader = DataLoader(backend, timeout=4, window=10, max_concurrent_batches=1, max_batch_size=2)
    first, second, third = loader.load_many([1, 2]), loader.load_many([3, 4]), loader.load(5)
    assert await first == ["v1", "v2"]
    assert isinstance(await outcome(second), LoaderTimeoutError)
    assert loop.time() == pytest.approx(4)
    assert await third == "v5"
    assert loop.time() == pytest.approx(13)
    assert backend.batches == [[1, 2], [3, 4], [5]]


async def test_a_batch_that_times_out_in_the_queue_is_never_sent() -> None:
    backend = Backend(takes=3)
    loader = DataLoader(backend, timeout=4, max_batch_size=1, max_concurrent_batches=1, max_pending=3)
    first, second, third = (loader.load(key) for key in (1, 2, 3))
    assert await first == "v1"
    await turns()
    assert loader.statistics().waiting == 1
    for late in (second, third):
        assert isinstance(await outcome(late), LoaderTimeoutError)
    assert (loader.statistics().waiting, loader.statistics().failures) == (0, 2)
    assert await loader.load(4) == "v4"
    assert backend.batches == [[1], [2], [4]]


async def test_a_function_that_swallows_its_cancellation_keeps_its_slot_and_its_late_result_is_dropped() -> None:
    log: list[str] = []

    async def deaf(keys: list[int]) -> list[int]:
        log.append(f"begins {keys}")
        for _ in range(2):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                log.append("takes no notice")
        log.append(f"ends {keys}")
        return keys

    loader = DataLoader(deaf, timeout=25, max_concurrent_batches=1)
    impatient = DataLoader(deaf, timeout=3, max_concurrent_batches=1)
    assert isinstance(await outcome(impatient.load(1)), LoaderTimeoutError)
    assert impatient.peek(1) is None
    again = impatient.load(1)
    await asyncio.sleep(9.9)
    assert log == ["begins [1]", "takes no notice"]
    assert isinstance(await outcome(again), LoaderTimeoutError)  # it queued for the slot
    await impatient.aclose()
    assert log == ["begins [1]", "takes no notice", "ends [1]"]
    assert impatient.peek(1) is None
    assert await loader.load(2) == 2


@pytest.mark.logs
async def test_a_generator_that_times_out_midway_keeps_what_it_answered(reports: list[str]) -> None:
    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        yield 1, "v1"
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise ConnectionError("lost while cancelled") from None
        yield 2, "never"

    loader = DataLoader(rows, timeout=1)
    found = await loader.load_many([1, 2], return_exceptions=True)
    assert found[0] == "v1"
    assert isinstance(found[1], LoaderTimeoutError)
    assert str(found[1]).startswith(f"{rows.__qualname__}: a batch of 1 keys")
    assert loader.peek(1) == "v1"
    await loader.aclose()
    assert len(reports) == 1
    assert "lost while cancelled" in reports[0]


async def test_closing_waits_for_the_function_of_a_batch_that_timed_out() -> None:
    log: list[str] = []

    async def cleans_up(keys: list[int]) -> list[int]:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)
            log.append("cleaned up")
        return keys

    loader = DataLoader(cleans_up, timeout=1)
    assert isinstance(await outcome(loader.load(1)), LoaderTimeoutError)
    await loader.aclose()
    assert log == ["cleaned up"]
    assert asyncio.get_running_loop().time() == pytest.approx(6)


@pytest.mark.parametrize("kind", [DataLoader, Loaders, Batcher])
async def test_a_function_that_swallows_its_cancellation_keeps_who_closes_waiting_and_no_caller(kind: type) -> None:
    log: list[object] = []

    async def goes_on(keys: list[int]) -> list[int]:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        await asyncio.sleep(5)
        log.append("ended")
        return keys

    class Stubborn(Loaders):
        @dataloader
        async def rows(self, keys: list[int]) -> list[int]:
            return await goes_on(keys)

    closable: Any = Stubborn() if kind is Loaders else kind(goes_on)
    waiting = asyncio.ensure_future(
        closable.submit(1) if kind is Batcher else (closable.rows if kind is Loaders else closable).load(1)
    )
    waiting.add_done_callback(lambda future: log.append(type(future.exception())))
    await asyncio.sleep(1)
    impatient = asyncio.wait_for(closable.aclose(flush=False) if kind is Batcher else closable.aclose(), 2)
    assert isinstance(await outcome(impatient), TimeoutError)
    assert log == [BatchCancelledError if kind is Batcher else LoaderClosedError]
    await closable.aclose()
    assert log[1:] == ["ended"]
    assert asyncio.get_running_loop().time() == pytest.approx(6)


async def test_a_cancelled_function_is_not_cancelled_again_while_it_cleans_up() -> None:
    log: list[str] = []

    async def cleans_up(keys: list[int]) -> list[int]:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)
            log.append("cleaned up")
        return keys

    loader = DataLoader(cleans_up, timeout=3)
    waiting = loader.load(1)
    await asyncio.sleep(1)
    task = loader._waiting[1].task
    assert task is not None
    task.cancel()  # as when the loop ends
    assert isinstance(await outcome(waiting), LoaderTimeoutError)  # the time-out comes while it cleans up
    await loader.aclose()
    assert log == ["cleaned up"]


async def test_no_timer_is_left_behind_a_batch_that_was_answered_or_dropped() -> None:
    loader = DataLoader(Backend(), timeout=3600)
    assert await loader.load(1) == "v1"
    loader.load(2).cancel()
    await turns()  # a timer that was left would fail the test


# -- abandoned -----------------------------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_an_abandoned_batch_is_cancelled_when_its_last_caller_leaves() -> None:
    backend = Backend(gate=asyncio.Event())
    loader = DataLoader(backend, abandoned="cancel")
    one, same, many = loader.load(1), loader.load(1), loader.load_many([1, 2])
    await turns()
    joined = loader.load(2)
    for future in (one, same, joined):
        future.cancel()
        await turns()
    assert backend.cancelled == 0
    many.cancel()
    await turns()
    assert (backend.cancelled, backend.running) == (1, 0)
    assert loader.statistics().abandoned == 2
    assert loader.statistics().failures == 0


@pytest.mark.every_loop
async def test_a_load_right_after_the_last_caller_left_gets_its_value() -> None:
    for pause in range(4):
        gate = asyncio.Event()
        backend = Backend(gate=gate)
        loader = DataLoader(backend, abandoned="cancel", max_concurrent_batches=1)
        left = loader.load(1)
        await turns()
        left.cancel()
        await turns(pause)
        again, many = loader.load(1), loader.load_many([1, 2])
        gate.set()
        assert await together(again, many) == ["v1", ["v1", "v2"]]


@pytest.mark.every_loop
async def test_callers_that_were_answered_do_not_keep_an_abandoned_generator_alive() -> None:
    gate, log = asyncio.Event(), []

    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        try:
            await gate.wait()
            yield 1, "v1"
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    loader = DataLoader(rows, abandoned="cancel")
    stays, leaves = loader.load(1), loader.load(2)
    await turns()
    leaves.cancel()
    await turns()
    assert log == []
    gate.set()
    assert await stays == "v1"
    await turns()
    assert log == ["cancelled"]


@pytest.mark.every_loop
async def test_a_generator_that_has_answered_everybody_goes_on() -> None:
    async def rows(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        yield 1, "v1"
        await turns()
        yield 2, "extra"

    loader = DataLoader(rows, abandoned="cancel")
    assert await loader.load(1) == "v1"
    await turns(20)
    assert loader.peek(2) == "extra"


@pytest.mark.every_loop
async def test_an_answered_batch_is_not_cancelled() -> None:
    backend = Backend()
    loader = DataLoader(backend, abandoned="cancel")
    assert await loader.load(1) == "v1"
    loader.prime(2, "primed")
    waiting = loader.load(3)
    loader.prime(3, "primed")
    assert await waiting == "primed"
    await turns()
    assert backend.cancelled == 0


@pytest.mark.every_loop
async def test_an_abandoned_batch_abandons_those_that_it_waits_for() -> None:
    backend = Backend(gate=asyncio.Event())
    inner = DataLoader(backend, abandoned="cancel")

    async def through_inner(keys: list[int]) -> list[str]:
        return await inner.load_many(keys)

    waiting = DataLoader(through_inner, abandoned="cancel").load(1)
    await turns()
    waiting.cancel()
    await turns(20)
    assert backend.cancelled == 1


async def test_an_abandoned_batch_in_the_queue_is_not_sent() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend, abandoned="cancel", max_concurrent_batches=1, max_batch_size=1)
    first, second = loader.load(1), loader.load(2)
    await turns()
    second.cancel()
    await turns()
    gate.set()
    assert await first == "v1"
    await turns()
    assert backend.batches == [[1]]


# -- cache_key_fn --------------------------------------------------------------------------------------------------


def identity(key: dict[str, Any]) -> Any:
    return key["id"], key["size"]


@pytest.mark.every_loop
async def test_every_method_takes_the_keys_that_load_takes() -> None:
    backend = Backend(lambda key: f"v{key['id']}")
    loader: DataLoader[dict[str, Any], str] = DataLoader(backend, cache_key_fn=identity)
    one, same, two = {"id": 1, "size": "s"}, {"size": "s", "id": 1}, {"id": 2, "size": "s"}
    loader.prime(one, "primed")
    assert await loader.load(same) == "primed"
    assert loader.peek(same) == "primed"
    assert await loader.load_many([one, two, same]) == ["primed", "v2", "primed"]
    loader.clear(same)
    assert await together(loader.load(one), loader.load(same)) == ["v1", "v1"]
    loader.clear_many([one, two])
    await loader.load_many([two, one])
    assert backend.batches == [[two], [one], [two, one]]
    again = loader.load(same)
    assert loader.load(one) is again  # finished, for whoever asks
    assert again.result() == "v1"


@pytest.mark.every_loop
async def test_a_key_that_is_not_hashable_is_an_error_that_says_what_to_do() -> None:
    plain: DataLoader[Any, Any] = DataLoader(Backend(), name="plain")
    bad = untyped(Backend(), name="bad", cache_key_fn=lambda key: [key])
    for call in (
        lambda: plain.load([1]),
        lambda: plain.load_many([2, [1]]),
        lambda: plain.prime([1], 1),
        lambda: plain.peek([1]),
        lambda: plain.clear([1]),
    ):
        with pytest.raises(TypeError, match=r"plain.*\[1\] is not hashable; give the loader a cache_key_fn"):
            call()
    with pytest.raises(TypeError, match=r"bad.*\[1\] is not hashable; let cache_key_fn return something hashable"):
        bad.load(1)
    assert plain.statistics().waiting == 0


@pytest.mark.every_loop
async def test_a_cache_key_function_that_fails_fails_the_call_and_leaves_nothing_behind() -> None:
    loader: DataLoader[Any, Any] = DataLoader(Backend(), cache_key_fn=lambda key: key["id"])
    with pytest.raises(KeyError):
        loader.load({})
    with pytest.raises(KeyError):
        loader.load_many([{"id": 1}, {}])
    assert loader.statistics().waiting == 0


# -- names and arguments -------------------------------------------------------------------------------------------


async def function_of_keys(keys: list[int]) -> list[int]:
    return keys


def test_a_loader_is_named_after_its_function() -> None:
    assert DataLoader(function_of_keys).name == "function_of_keys"
    assert DataLoader(functools.partial(function_of_keys)).name == "function_of_keys"
    assert DataLoader(Backend()).name == "Backend"
    assert DataLoader(Backend().__call__).name == "Backend.__call__"
    assert DataLoader(function_of_keys, name="mine").name == "mine"


@pytest.mark.parametrize("option", ["max_batch_size", "max_concurrent_batches", "max_pending"])
def test_a_count_is_a_whole_number_of_at_least_one(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, not 0"):
        untyped(function_of_keys, **{option: 0})
    with pytest.raises(TypeError, match=f"{option} takes a whole number, not 1.5"):
        untyped(function_of_keys, **{option: 1.5})


@pytest.mark.parametrize("option", ["window", "timeout"])
def test_a_time_is_a_number_of_seconds(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} takes a number of seconds that is finite and not negative"):
        untyped(function_of_keys, **{option: -1})
    with pytest.raises(TypeError, match=f"{option} takes a number of seconds, not '1'"):
        untyped(function_of_keys, **{option: "1"})


@pytest.mark.parametrize("cache", ["no", 0, None])
def test_cache_is_true_or_false(cache: object) -> None:
    with pytest.raises(TypeError, match=f"cache takes True or False, not {cache!r}"):
        untyped(function_of_keys, cache=cache)


def test_a_name_is_a_string() -> None:
    with pytest.raises(TypeError, match="name takes a string, not 3"):
        untyped(function_of_keys, name=3)


def test_abandoned_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="abandoned is 'finish' or 'cancel', not 'keep'"):
        untyped(function_of_keys, abandoned="keep")


# -- all of them together ------------------------------------------------------------------------------------------


async def test_the_options_work_with_one_another() -> None:
    backend = Backend(lambda key: key * 10, takes=1)

    async def rows(keys: list[int]) -> AsyncIterator[tuple[str, int]]:
        for key, value in zip(keys, await backend(keys), strict=True):
            if key != 4:
                yield str(key), value

    loader: DataLoader[int, int] = untyped(
        rows,
        max_batch_size=2,
        window=0.5,
        cache_key_fn=str,
        default=-1,
        max_concurrent_batches=1,
        max_pending=6,
        timeout=2.5,
        abandoned="cancel",
    )
    left = awaits(loader.load(9))
    one, many = loader.load(1), loader.load_many([2, 3, 4, 1], return_exceptions=True)
    loader.prime(3, 33)
    await turns()
    left.cancel()
    late = loader.load_many([5, 6])
    assert await one == 10
    found = await many
    assert (found[0], found[1], found[3]) == (20, 33, 10)
    assert found[2] == -1 or isinstance(found[2], LoaderTimeoutError)
    await outcome(late)
    assert backend.most_running == 1
    await loader.aclose()
