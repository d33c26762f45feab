"""Batcher: what leaves when, who gets what, and that everybody gets something."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader._batcher import Batcher, BatcherStatistics
from loader._coalescer import Coalescer
from loader._debouncer import Debouncer
from loader._single_flight import SingleFlight
from loader._snapshot import Snapshot
from loader.errors import (
    BatchCancelledError,
    BatchFailedError,
    BatchResultError,
    LoaderClosedError,
    LoaderLoopError,
    LoaderOverloadedError,
    LoaderTimeoutError,
    SelfWaitError,
)
from tests import loops

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


class Backend:
    """A handler that writes down its batches and when they came, and ends each after `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.batches: list[list[Any]] = []
        self.times: list[float] = []
        self.running = 0
        self.most_running = 0

    async def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(list(items))
        self.times.append(now())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.seconds)
            return [item if isinstance(item, BaseException) else item * 10 for item in items]
        finally:
            self.running -= 1


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def caller(batcher: Batcher[Any, Any], item: object) -> asyncio.Task[Any]:
    return asyncio.create_task(batcher.submit(item))


async def together(*awaitables: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*awaitables))


async def outcome(awaitable: Awaitable[Any]) -> object:
    """The result, or the exception as a value."""
    try:
        return await awaitable
    except Exception as error:
        return error


# B1: one item in, its own result out; a batch leaves when it is full or its window is over


@pytest.mark.every_loop
async def test_each_caller_gets_the_result_of_its_own_item() -> None:
    backend = Backend()
    async with Batcher(backend) as batcher:
        assert await together(*(batcher.submit(n) for n in (3, 1, 2))) == [30, 10, 20]
    assert backend.batches == [[3, 1, 2]]


async def test_a_full_batch_leaves_at_once() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_batch_size=2, window=60)
    assert await together(batcher.submit(1), batcher.submit(2)) == [10, 20]
    assert (backend.batches, backend.times) == ([[1, 2]], [0])


async def test_a_full_batch_disarms_its_timer() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_batch_size=2, window=1)
    await asyncio.gather(batcher.submit(1), batcher.submit(2))
    await asyncio.sleep(0.9)
    third = caller(batcher, 3)
    await asyncio.sleep(0.5)
    assert backend.batches == [[1, 2]], "the first batch's timer would have fired at 1"
    await third
    assert (backend.batches, backend.times) == ([[1, 2], [3]], [0, 1.9])


async def test_the_window_starts_with_the_first_item_and_never_restarts() -> None:
    backend = Backend()
    batcher = Batcher(backend, window=1)
    callers = []
    for item in range(4):
        callers.append(caller(batcher, item))
        await asyncio.sleep(0.4)
    assert (backend.batches, backend.times) == ([[0, 1, 2]], [1])
    await asyncio.gather(*callers)
    assert (backend.batches, backend.times) == ([[0, 1, 2], [3]], [1, 2.2])


async def test_the_window_goes_on_without_the_caller_that_opened_it() -> None:
    backend = Backend()
    batcher = Batcher(backend, window=1)
    first = caller(batcher, 1)
    await asyncio.sleep(0.5)
    second = caller(batcher, 2)
    await turns()
    first.cancel()
    assert await second == 20
    assert (backend.batches, backend.times) == ([[2]], [1])


async def test_no_timer_is_left_when_every_caller_has_gone() -> None:
    batcher = Batcher(Backend(), window=1)
    only = caller(batcher, 1)
    await turns()
    assert loops.timers(asyncio.get_running_loop())
    only.cancel()
    await turns()
    assert not loops.timers(asyncio.get_running_loop())
    assert await batcher.submit(2) == 20


async def test_without_a_window_nothing_waits_while_a_slot_is_free() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend)
    started = now()
    assert await batcher.submit(1) == 10
    assert now() - started == 1
    assert backend.times == [0]


@pytest.mark.every_loop
async def test_without_a_window_the_submissions_of_one_burst_share_a_batch() -> None:
    backend = Backend()
    batcher = Batcher(backend)
    await asyncio.gather(*(batcher.submit(n) for n in range(5)))
    assert backend.batches == [[0, 1, 2, 3, 4]]


async def test_without_a_window_items_gather_while_no_slot_is_free() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend)
    callers = []
    for item in range(5):
        callers.append(caller(batcher, item))
        await asyncio.sleep(0.3)
    await asyncio.gather(*callers)
    assert (backend.batches, backend.times) == ([[0], [1, 2, 3], [4]], [0, 1, 2])


async def test_callers_that_submit_again_on_their_answer_share_the_next_batch() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend)

    async def worker(number: int) -> None:
        for _ in range(3):
            await batcher.submit(number)

    await asyncio.gather(*map(worker, range(4)))
    assert backend.batches == [[0, 1, 2, 3]] * 3


async def test_a_window_of_zero_gathers_one_burst() -> None:
    backend = Backend()
    batcher = Batcher(backend, window=0)
    await asyncio.gather(batcher.submit(1), batcher.submit(2))
    assert (backend.batches, backend.times) == ([[1, 2]], [0])


async def test_submit_many_gives_the_results_in_order_over_several_batches() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_batch_size=2)
    assert await batcher.submit_many(iter(range(5))) == [0, 10, 20, 30, 40]
    assert backend.batches == [[0, 1], [2, 3], [4]]
    assert await batcher.submit_many([]) == []


async def test_submit_many_refuses_what_is_one_item_or_none() -> None:
    batches: list[list[Any]] = []

    async def handler(items: list[Any]) -> list[Any]:
        batches.append(items)
        return items

    async with Batcher(handler) as batcher:
        for wrong in ("ab", b"ab", 7):
            with pytest.raises(
                TypeError, match=r"submit_many takes an iterable of items, not .*; one item is for submit"
            ):
                await batcher.submit_many(wrong)  # type: ignore[arg-type]  # what is tested
    assert batches == []


def test_a_name_is_a_string() -> None:
    with pytest.raises(TypeError, match="name takes a string, not 3"):
        Batcher(list, name=3)  # type: ignore[arg-type]  # what is tested


async def test_submit_many_raises_the_first_failure_once_all_are_done() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_batch_size=1)
    with pytest.raises(LookupError, match="one"):
        await batcher.submit_many([1, LookupError("one"), ValueError("two"), 2])
    assert len(backend.batches) == 4
    error = LookupError("one")
    assert await batcher.submit_many([1, error], return_exceptions=True) == [10, error]


async def test_a_cancelled_submit_many_drops_its_items() -> None:
    backend = Backend()
    batcher = Batcher(backend, window=1)
    many = asyncio.create_task(batcher.submit_many([1, 2]))
    await turns()
    other = caller(batcher, 3)
    await turns()
    many.cancel()
    assert await other == 30
    assert many.cancelled()
    assert backend.batches == [[3]]


async def test_a_future_of_submit_nowait_is_the_callers_own() -> None:
    backend = Backend()
    batcher = Batcher(backend, window=1)
    dropped, kept = batcher.submit_nowait(1), batcher.submit_nowait(2)
    dropped.cancel()
    assert await kept == 20
    assert backend.batches == [[2]]


# B2, B3: the batch is nobody's but its own


async def test_a_batch_sent_by_its_timer_completes() -> None:
    backend = Backend(seconds=5)
    batcher = Batcher(backend, window=1, max_batch_size=2)
    first = caller(batcher, 1)
    await asyncio.sleep(2)
    later = [caller(batcher, item) for item in (2, 3)]  # fill a batch, which disarms whatever is armed
    assert await first == 10
    assert await together(*later) == [20, 30]


@pytest.mark.parametrize("canceller", [0, 1], ids=["the caller that opened it", "the caller that filled it"])
async def test_cancelling_a_caller_leaves_its_peers_their_results(canceller: int) -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=2, window=1)
    callers = [caller(batcher, 1), caller(batcher, 2)]
    await asyncio.sleep(0.5)
    callers[canceller].cancel()
    assert await callers[1 - canceller] == [20, 10][canceller]
    assert callers[canceller].cancelled()


async def test_a_caller_that_dies_in_a_task_group_leaves_its_peers_their_results() -> None:
    batcher = Batcher(Backend(seconds=1))
    outside = caller(batcher, 1)

    async def fails() -> None:
        await asyncio.sleep(0.5)
        raise LookupError

    async def group_that_fails() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(batcher.submit(2))
            group.create_task(fails())

    with pytest.raises(ExceptionGroup):
        await group_that_fails()
    assert await outside == 10


async def test_an_item_whose_caller_left_before_the_batch_is_not_sent() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend)
    callers = [caller(batcher, item) for item in (1,)]
    await turns()
    callers += [caller(batcher, item) for item in (2, 3, 4)]
    await turns()
    callers[2].cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert backend.batches == [[1], [2, 4]]
    assert batcher.statistics().cancelled == 1


async def test_a_caller_that_leaves_in_the_turn_of_departure_is_passed_over() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_batch_size=2, window=1)
    first = batcher.submit_nowait(1)
    first.cancel()
    second = batcher.submit_nowait(2)
    assert await second == 20
    alone = [batcher.submit_nowait(3), batcher.submit_nowait(4)]
    assert await together(*alone) == [30, 40]
    assert backend.batches == [[2], [3, 4]]
    assert batcher.statistics().cancelled == 1


async def test_a_batch_that_everybody_left_in_the_turn_of_departure_is_not_sent() -> None:
    backend = Backend()
    batcher = Batcher(backend, window=1)
    batcher.submit_nowait(1).cancel()
    await batcher.flush()
    assert backend.batches == []
    batcher.submit_nowait(2).cancel()
    await turns()
    assert batcher.statistics().cancelled == 2


@pytest.mark.every_loop
async def test_a_batch_runs_in_the_context_in_which_the_batcher_was_made() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

    async def handler(items: list[int]) -> list[str]:
        seen = [user.get() for _ in items]
        user.set("the first batch")
        return seen

    user.set("maker")
    batcher = Batcher(handler, max_batch_size=2)
    user.set("caller")
    assert await together(batcher.submit(1), batcher.submit(2)) == ["maker", "maker"]
    assert await batcher.submit(3) == "maker"


async def test_a_running_batch_is_kept_alive_by_its_batcher() -> None:
    parked: list[weakref.ref[asyncio.Future[None]]] = []

    async def handler(items: list[int]) -> list[int]:
        own: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        parked.append(weakref.ref(own))

        def wake() -> None:
            if (future := parked[0]()) is not None:
                future.set_result(None)

        asyncio.get_running_loop().call_later(1, wake)
        await own
        return items

    batcher = Batcher(handler)
    submitted = batcher.submit_nowait(1)
    await turns()
    gc.collect()
    assert await asyncio.wait_for(submitted, 2) == 1


# B4, B5: every exit settles every caller


@pytest.mark.every_loop
async def test_an_exception_of_the_handler_reaches_every_caller_as_the_same_object() -> None:
    error = LookupError("down")

    async def handler(items: list[int]) -> list[int]:
        raise error

    batcher = Batcher(handler)
    assert await together(*(outcome(batcher.submit(n)) for n in range(3))) == [error] * 3
    assert batcher.statistics().failures == 3


async def test_an_exception_in_place_of_a_result_fails_that_caller_only() -> None:
    batcher = Batcher(Backend())
    error = LookupError("only mine")
    assert await together(*(outcome(batcher.submit(n)) for n in (1, error, 2))) == [10, error, 20]
    assert batcher.statistics().failures == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (asyncio.CancelledError(), BatchCancelledError),
        (SystemExit(3), BatchFailedError),
        (StopIteration(7), BatchFailedError),
        (GeneratorExit(), BatchFailedError),
    ],
    ids=repr,
)
async def test_a_harmful_exception_in_place_of_a_result_is_wrapped(
    value: BaseException, expected: type[Exception]
) -> None:
    batcher = Batcher(Backend())
    mine, other = await asyncio.gather(outcome(batcher.submit(value)), batcher.submit(1))
    assert isinstance(mine, expected)
    assert mine.__cause__ is value
    assert other == 10


async def test_cancellation_from_within_the_handler_reaches_callers_as_an_error() -> None:
    batches = []

    async def handler(items: list[int]) -> list[int]:
        batches.append(items)
        if items == [1, 2]:
            lost = asyncio.ensure_future(asyncio.sleep(10))
            await asyncio.sleep(0)
            lost.cancel()
            await lost
        return items

    batcher = Batcher(handler, max_batch_size=2)
    callers = [outcome(batcher.submit(n)) for n in (1, 2, 3)]
    first, second, third = await asyncio.gather(*callers)
    assert isinstance(first, BatchCancelledError)
    assert first is second
    assert third == 3, "the next batch leaves all the same"


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", loops.KINDS)
@pytest.mark.parametrize("full", [False, True], ids=["idle", "full"])
def test_an_exception_that_ends_the_loop_settles_the_callers_and_still_ends_it(
    ending: type[BaseException], kind: str, full: bool
) -> None:
    outcomes: list[object] = []

    async def handler(items: list[int]) -> list[int]:
        raise ending

    async def main() -> None:
        batcher = Batcher(handler, max_batch_size=2)
        futures = [batcher.submit_nowait(1)]

        def note(future: asyncio.Future[int]) -> None:
            outcomes.append(future.exception())

        futures[0].add_done_callback(note)
        if full:
            batcher.submit_nowait(2).add_done_callback(note)
        batcher.submit_nowait(3).add_done_callback(note)
        await asyncio.sleep(3600)

    with pytest.raises(ending):
        loops.run(main, kind=kind)
    gc.collect()
    assert outcomes
    assert all(isinstance(error, BatchFailedError | BatchCancelledError) for error in outcomes)
    assert type(outcomes[0]) is BatchFailedError
    assert type(outcomes[0].__cause__) is ending


async def test_a_batch_whose_task_cannot_be_started_fails() -> None:
    def refuses(loop: object, coroutine: Any, **options: object) -> Any:
        coroutine.close()
        raise MemoryError

    loop = asyncio.get_running_loop()
    batcher = Batcher(Backend(), max_batch_size=2)
    first = batcher.submit_nowait(1)
    factory = loop.get_task_factory()
    loop.set_task_factory(refuses)
    with pytest.raises(MemoryError):
        batcher.submit_nowait(2)
    loop.set_task_factory(factory)
    assert isinstance(await outcome(first), MemoryError)
    assert await batcher.submit(3) == 30


@pytest.mark.logs
async def test_when_a_task_cannot_be_started_no_other_is_tried_and_those_behind_it_are_told(reports: list[str]) -> None:
    tried = []

    def refuses(loop: object, coroutine: Any, **options: object) -> Any:
        coroutine.close()
        tried.append(coroutine)
        raise MemoryError

    loop = asyncio.get_running_loop()
    gate = asyncio.Event()

    async def handler(items: list[int]) -> list[int]:
        await gate.wait()
        return items

    batcher = Batcher(handler, max_batch_size=1)
    flying, first, second = (batcher.submit_nowait(item) for item in (1, 2, 3))
    await turns()
    factory = loop.get_task_factory()
    loop.set_task_factory(refuses)
    gate.set()
    await turns()
    loop.set_task_factory(factory)
    assert await flying == 1
    assert len(tried) == len(reports) == 1
    assert "MemoryError" in reports[0]  # it leaves through a callback of the loop
    assert isinstance(first.exception(), MemoryError)
    assert isinstance(second.exception(), BatchCancelledError)
    assert await batcher.submit(4) == 4


async def test_a_base_exception_that_does_not_end_the_loop_reaches_callers_wrapped() -> None:
    class Odd(BaseException):
        pass

    async def handler(items: list[int]) -> list[int]:
        raise Odd

    batcher = Batcher(handler)
    with pytest.raises(BatchFailedError) as caught:
        await batcher.submit(1)
    assert isinstance(caught.value.__cause__, Odd)


@pytest.mark.parametrize(
    ("returned", "came"),
    [
        ([1], "returned 1: [1]"),
        ([1, 2, 3], "returned 3: [1, 2, 3]"),
        (None, "not None"),
        ("ab", "not 'ab'"),
        (b"ab", "not b'ab'"),
        ({1: 1, 2: 2}, "not {1: 1, 2: 2}"),
        ({1, 2}, "not {1, 2}"),
        (2, "not 2"),
    ],
    ids=repr,
)
async def test_a_wrong_result_names_the_batcher_what_was_expected_and_what_came(returned: Any, came: str) -> None:
    async def handler(items: list[int]) -> Sequence[int]:
        return returned  # type: ignore[no-any-return]

    batcher = Batcher(handler, name="orders")
    first, second = await asyncio.gather(outcome(batcher.submit(1)), outcome(batcher.submit(2)))
    assert isinstance(first, BatchResultError)
    assert first is second
    assert "'orders'" in str(first)
    assert "got 2 items" in str(first)
    assert came in str(first)
    assert batcher.statistics().running == 0


async def test_a_long_wrong_result_is_cut_short() -> None:
    async def handler(items: list[int]) -> list[int]:
        return list(range(10_000))

    with pytest.raises(BatchResultError) as caught:
        await Batcher(handler).submit(1)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("kind", [tuple, deque])
async def test_any_sequence_of_results_will_do(kind: Callable[[list[int]], Sequence[int]]) -> None:
    async def handler(items: list[int]) -> Sequence[int]:
        return kind(items)

    assert await Batcher(handler).submit_many([1, 2]) == [1, 2]


async def test_a_sequence_that_breaks_while_it_is_read_fails_the_batch() -> None:
    class Broken(list[int]):
        def __iter__(self) -> Any:
            raise LookupError("broken")

    async def handler(items: list[int]) -> list[int]:
        return Broken(items)

    with pytest.raises(LookupError, match="broken"):
        await Batcher(handler).submit(1)


async def test_a_handler_may_change_the_list_of_its_items() -> None:
    async def handler(items: list[int]) -> list[int]:
        results = []
        while items:
            results.append(items.pop(0))
        return results

    assert await Batcher(handler).submit_many([1, 2]) == [1, 2]


@pytest.mark.logs
async def test_a_failure_that_nobody_takes_is_reported(reports: list[str]) -> None:
    Batcher(Backend()).submit_nowait(LookupError("nobody looks"))
    await turns()
    gc.collect()
    assert len(reports) == 1
    assert "nobody looks" in reports[0]


@pytest.mark.every_loop
async def test_after_its_timeout_a_batch_fails_its_callers_only(loop_kind: str) -> None:
    ended = []

    async def handler(items: list[int]) -> list[int]:
        try:
            await asyncio.sleep(items[0])
        finally:
            ended.append(items)
        return items

    batcher = Batcher(handler, timeout=0.05, max_batch_size=2)
    first, second, third = await asyncio.gather(*(outcome(batcher.submit(n)) for n in (3600, 1, 0)))
    assert isinstance(first, LoaderTimeoutError)
    assert first is second
    assert isinstance(first, TimeoutError)
    assert "0.05 s" in str(first)
    assert third == 0
    assert ended == [[3600, 1], [0]]


async def test_a_handler_that_resists_its_timeout_keeps_its_slot_but_not_its_callers() -> None:
    released = asyncio.Event()
    batches = []

    async def handler(items: list[int]) -> list[int]:
        batches.append(items)
        if items == [1]:
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    continue
        return items

    batcher = Batcher(handler, timeout=1)
    assert isinstance(await outcome(batcher.submit(1)), LoaderTimeoutError)
    assert now() == 1
    second = caller(batcher, 2)
    await asyncio.sleep(10)
    assert batches == [[1]]
    released.set()
    assert await second == 2


async def test_results_that_come_in_the_turn_of_the_timeout_count() -> None:
    loop: Any = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    async def handler(items: list[int]) -> list[int]:
        await ready
        return items

    def be_ready_and_late() -> None:
        ready.set_result(None)
        loop._selector.now += 1

    batcher = Batcher(handler, timeout=1)
    loop.call_later(0.5, be_ready_and_late)
    assert await batcher.submit(1) == 1
    assert now() == 1.5


def ends(main: Callable[[], Awaitable[None]]) -> list[str]:
    """What asyncio reports when the loop of `main` ends with everything that `main` left behind."""
    reports: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["message"]))
        await main()

    asyncio.run(run(), debug=True)
    gc.collect()
    return reports


def test_a_loop_that_ends_settles_everybody() -> None:
    settled: list[object] = []

    async def handler(items: list[int]) -> list[int]:
        await asyncio.sleep(3600)
        return items

    async def main() -> None:
        batcher = Batcher(handler, max_batch_size=1)
        for item in (1, 2):
            batcher.submit_nowait(item).add_done_callback(lambda f: settled.append(f.exception()))
        await turns(2)

    assert ends(main) == []
    assert [type(error) for error in settled] == [BatchCancelledError] * 2


def test_a_loop_that_ends_before_the_batch_has_started_settles_everybody() -> None:
    settled: list[object] = []

    async def main() -> None:
        batcher = Batcher(Backend(), max_batch_size=1)
        for item in (1, 2):
            batcher.submit_nowait(item).add_done_callback(lambda f: settled.append(f.exception()))

    assert ends(main) == []
    assert [type(error) for error in settled] == [BatchCancelledError] * 2


async def test_a_batch_cancelled_from_outside_settles_everybody_and_starts_no_other() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=1)
    callers = [outcome(batcher.submit(n)) for n in (1, 2)]
    gathered = asyncio.gather(*callers)
    await turns(2)
    (running,) = batcher._running
    assert running.task is not None
    running.task.cancel()
    assert [type(error) for error in await gathered] == [BatchCancelledError] * 2
    assert backend.batches == [[1]]
    assert await batcher.submit(3) == 30


async def test_a_batch_that_survives_its_cancellation_leaves_the_others_alone() -> None:
    async def handler(items: list[int]) -> list[int]:
        if items == [1]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
        return items

    batcher = Batcher(handler, max_batch_size=1)
    assert await batcher.submit_many([1, 2]) == [1, 2]


def test_a_loop_that_ends_lets_no_batch_leave_any_more() -> None:
    backend = Backend(seconds=3600)

    async def main() -> None:
        batcher = Batcher(backend, max_batch_size=1, max_concurrent_batches=2)
        for item in range(5):
            asyncio.create_task(outcome(batcher.submit(item)))  # noqa: RUF006  # the loop's end is the test
        await turns()

    assert ends(main) == []
    assert backend.batches == [[0], [1]]


# B6: batches pipeline


async def test_submissions_during_a_batch_go_to_the_next_one_with_its_own_timer() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, window=0.4, max_concurrent_batches=2)
    first = caller(batcher, 1)
    await asyncio.sleep(0.5)
    second = caller(batcher, 2)
    await asyncio.gather(first, second)
    assert (backend.batches, backend.times) == ([[1], [2]], [0.4, 0.9])
    assert backend.most_running == 2


async def test_no_more_batches_run_at_once_than_allowed() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=1, max_concurrent_batches=3)
    await batcher.submit_many(range(10))
    assert backend.most_running == 3
    assert backend.times == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


async def test_a_window_that_ended_while_no_slot_was_free_is_over() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, window=0.3)
    callers = [caller(batcher, 1)]
    await asyncio.sleep(0.5)
    callers.append(caller(batcher, 2))
    await asyncio.gather(*callers)
    assert (backend.batches, backend.times) == ([[1], [2]], [0.3, 1.3])


async def test_a_window_that_is_open_when_a_slot_becomes_free_stays_open() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, window=0.5)
    callers = [caller(batcher, 1)]
    await asyncio.sleep(1.4)
    callers.append(caller(batcher, 2))
    await asyncio.gather(*callers)
    assert (backend.batches, backend.times) == ([[1], [2]], [0.5, 1.9])


# B7: back-pressure


async def test_submit_waits_for_room_in_order() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=2, max_pending=2)
    answered: list[int] = []

    async def submits(item: int) -> None:
        await batcher.submit(item)
        answered.append(item)

    tasks = [asyncio.create_task(submits(item)) for item in range(9)]
    await turns()
    assert batcher.statistics().pending == 2
    assert batcher.statistics().blocked == 5
    await asyncio.gather(*tasks)
    assert backend.batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert answered == list(range(9))


async def test_nobody_takes_the_room_of_one_who_waits_for_it() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=1, max_pending=1)
    callers = [caller(batcher, item) for item in range(3)]
    await turns()

    def steals(_: object) -> None:
        with pytest.raises(LoaderOverloadedError):
            batcher.submit_nowait(99)

    callers[0].add_done_callback(steals)
    assert await together(*callers) == [0, 10, 20]
    assert backend.batches == [[0], [1], [2]]


async def test_a_waiter_that_is_cancelled_passes_its_room_on() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=1, max_pending=1)
    callers = [caller(batcher, item) for item in range(4)]
    await turns()
    callers[2].cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert (backend.batches, backend.times) == ([[0], [1], [3]], [0, 1, 2])


async def test_a_cancelled_item_makes_room_at_once() -> None:
    batcher = Batcher(Backend(), max_pending=1, window=1)
    batcher.submit_nowait(1).cancel()
    await asyncio.sleep(0)
    assert await batcher.submit_nowait(2) == 20


async def test_a_submitter_that_waits_for_room_makes_the_batch_leave() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_batch_size=10, max_pending=2, window=60)
    callers = [caller(batcher, item) for item in (1, 2)]
    await asyncio.sleep(1)
    assert backend.batches == []
    callers.append(caller(batcher, 3))
    await turns()
    assert (backend.batches, backend.times) == ([[1, 2]], [1])
    await batcher.flush()
    assert await together(*callers) == [10, 20, 30]


async def test_submit_many_of_more_than_the_room_waits_for_it() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_pending=2)
    assert await batcher.submit_many(range(5)) == [0, 10, 20, 30, 40]
    assert backend.batches == [[0, 1], [2, 3], [4]]


async def test_with_overflow_reject_submit_raises_at_once() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=1, max_pending=2, overflow="reject", name="orders")
    callers = [caller(batcher, item) for item in range(3)]
    await turns()
    with pytest.raises(LoaderOverloadedError, match=r"'orders'.*max_pending is 2"):
        await batcher.submit(9)
    with pytest.raises(LoaderOverloadedError, match="room for 2 more"):
        await batcher.submit_many([8, 9])
    assert await together(*callers) == [0, 10, 20]
    assert batcher.statistics().rejected == 3
    assert await batcher.submit(4) == 40


async def test_submit_nowait_never_waits() -> None:
    batcher = Batcher(Backend(seconds=1), max_batch_size=1, max_pending=1)
    first, second = batcher.submit_nowait(1), batcher.submit_nowait(2)
    with pytest.raises(LoaderOverloadedError):
        batcher.submit_nowait(3)
    assert await together(first, second) == [10, 20]


async def test_a_refused_submission_makes_the_batch_leave() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_pending=2, window=60, overflow="reject")
    callers = [caller(batcher, item) for item in (1, 2)]
    await turns()
    with pytest.raises(LoaderOverloadedError):
        await batcher.submit(3)
    assert await together(*callers) == [10, 20]
    assert now() == 0


# flush and close


async def test_flush_sends_what_waits_and_returns_when_it_is_settled() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=2, window=60)
    callers = [caller(batcher, item) for item in range(3)]
    await turns()
    await batcher.flush()
    assert [task.done() for task in callers] == [True] * 3
    assert (backend.batches, backend.times) == ([[0, 1], [2]], [0, 1])


async def test_flush_does_not_wait_for_later_submissions() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, window=10)
    first = caller(batcher, 1)
    await turns()
    flushing = asyncio.create_task(batcher.flush())
    await asyncio.sleep(0.5)
    later = caller(batcher, 2)
    await flushing
    assert first.done()
    assert now() == 1
    await later
    assert backend.times == [0, 10.5]


async def test_flush_with_nothing_to_do_returns_at_once() -> None:
    batcher = Batcher(Backend(), window=3)
    await batcher.flush()
    assert batcher.statistics().submitted == 0
    await batcher.submit(1)
    assert asyncio.get_running_loop().time() == 3  # nothing came before it that was to be hurried
    await batcher.flush()


async def test_flush_ends_when_the_callers_it_waits_for_leave() -> None:
    batcher = Batcher(Backend(seconds=1), max_batch_size=1)
    callers = [caller(batcher, item) for item in range(3)]
    await turns()
    flushing = asyncio.create_task(batcher.flush())
    await turns()
    for task in callers[1:]:
        task.cancel()
    await flushing
    assert now() == 1


async def test_a_cancelled_flush_stops_nothing() -> None:
    batcher = Batcher(Backend(seconds=1), window=60)
    only = caller(batcher, 1)
    await turns()
    flushing = asyncio.create_task(batcher.flush())
    await turns()
    flushing.cancel()
    assert await only == 10
    assert now() == 1


async def test_a_flush_cancelled_in_the_turn_of_its_end_is_passed_over() -> None:
    async def handler(items: list[int]) -> list[int]:
        asyncio.get_running_loop().call_soon(flushing.cancel)
        return items

    batcher = Batcher(handler, window=60)
    submitted = batcher.submit_nowait(1)
    flushing = asyncio.create_task(batcher.flush())
    assert await submitted == 1
    await asyncio.wait([flushing])
    assert flushing.cancelled()


@pytest.mark.every_loop
async def test_closing_sends_what_waits_and_waits_for_it() -> None:
    backend = Backend()
    batcher = Batcher(backend, max_batch_size=2, max_pending=2, window=60)
    callers = [caller(batcher, item) for item in range(5)]
    await turns(2)
    await batcher.aclose()
    assert backend.batches == [[0, 1], [2, 3], [4]], "those who waited for room are served too"
    assert await together(*callers) == [0, 10, 20, 30, 40]


@pytest.mark.every_loop
async def test_closing_without_flush_drops_what_waits_and_cancels_what_runs() -> None:
    ended: list[list[int]] = []

    async def handler(items: list[int]) -> list[int]:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(items)
        return items

    batcher = Batcher(handler, max_batch_size=1, max_pending=1)
    waiting = asyncio.gather(*(outcome(batcher.submit(item)) for item in range(3)))
    await turns()
    await batcher.aclose(flush=False)
    assert ended == [[0]]
    assert [type(error) for error in await waiting] == [
        BatchCancelledError,
        LoaderClosedError,
        LoaderClosedError,
    ]


async def test_closing_without_flush_reports_nothing_about_what_it_drops() -> None:
    batcher = Batcher(Backend(seconds=1), max_batch_size=1)
    batcher.submit_nowait(1)
    batcher.submit_nowait(2)
    await turns()
    await batcher.aclose(flush=False)


async def test_results_that_come_in_the_turn_of_the_closing_count() -> None:
    async def handler(items: list[int]) -> list[int]:
        closing.append(asyncio.create_task(batcher.aclose(flush=False), context=outside))
        return items

    outside = contextvars.copy_context()
    closing: list[asyncio.Task[None]] = []
    batcher = Batcher(handler)
    assert await batcher.submit(1) == 1
    await closing[0]


async def test_closing_without_flush_tells_callers_at_once_and_waits_for_the_handler() -> None:
    async def handler(items: list[int]) -> list[int]:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(5)
        return items

    batcher = Batcher(handler)
    told: list[float] = []
    submitted = batcher.submit_nowait(1)
    submitted.add_done_callback(lambda _: told.append(now()))
    await turns()
    await batcher.aclose(flush=False)
    assert told == [0]
    assert now() == 5


async def test_a_flush_that_hangs_can_be_ended_by_closing_again() -> None:
    batcher = Batcher(Backend(seconds=3600))
    stuck = asyncio.create_task(outcome(batcher.submit(1)))
    await turns()
    closing = asyncio.create_task(batcher.aclose())
    await turns()
    await batcher.aclose(flush=False)
    await closing
    assert isinstance(await stuck, BatchCancelledError)
    assert now() == 0


async def test_a_cancelled_close_leaves_the_batcher_closed_and_its_flush_going_on() -> None:
    batcher = Batcher(Backend(seconds=1), window=60)
    only = caller(batcher, 1)
    await turns()
    closing = asyncio.create_task(batcher.aclose())
    await turns()
    closing.cancel()
    assert await only == 10
    with pytest.raises(LoaderClosedError):
        batcher.submit_nowait(2)


async def test_a_closed_batcher_takes_nothing() -> None:
    batcher = Batcher(Backend(), name="orders")
    await batcher.aclose()
    await batcher.aclose()
    for submission in (batcher.submit(1), batcher.submit_many([1]), batcher.submit_many([])):
        with pytest.raises(LoaderClosedError, match="'orders'"):
            await submission
    with pytest.raises(LoaderClosedError):
        batcher.submit_nowait(1)
    assert repr(batcher) == "<Batcher 'orders': closed, 0 waiting, 0 running>"


async def test_async_with_flushes_even_if_its_block_fails() -> None:
    backend = Backend()
    submitted: list[asyncio.Future[int]] = []

    async def block_that_fails() -> None:
        async with Batcher(backend, window=60) as batcher:
            submitted.append(batcher.submit_nowait(1))
            raise LookupError

    with pytest.raises(LookupError):
        await block_that_fails()
    assert submitted[0].result() == 10


# A handler that waits for its own batcher


async def test_a_handler_that_waits_for_itself_gets_an_error() -> None:
    async def handler(items: list[int]) -> list[int]:
        return [await batcher.submit(item + 1) for item in items]

    batcher = Batcher(handler, name="orders")
    with pytest.raises(SelfWaitError, match="'orders'"):
        await batcher.submit(1)


@pytest.mark.parametrize("call", ["submit_many", "flush", "aclose"])
async def test_every_wait_of_a_handler_for_itself_is_an_error(call: str) -> None:
    async def handler(items: list[int]) -> list[int]:
        await getattr(batcher, call)(*([[1]] if call == "submit_many" else []))
        return items

    batcher = Batcher(handler)
    with pytest.raises(SelfWaitError):
        await batcher.submit(1)


@pytest.mark.every_loop
async def test_a_handler_may_wait_for_its_batcher_while_a_slot_is_left() -> None:
    async def handler(items: list[int]) -> list[int]:
        return [await batcher.submit(item - 1) + 1 if item else 0 for item in items]

    batcher = Batcher(handler, max_batch_size=1, max_concurrent_batches=4)
    assert await batcher.submit(3) == 3
    with pytest.raises(SelfWaitError):
        await batcher.submit(4)
    assert await batcher.submit_many([1, 2], return_exceptions=True) == [1, 2]


async def test_a_handler_may_wait_for_another_batcher() -> None:
    backend = Backend()
    inner = Batcher(backend)

    async def handler(items: list[int]) -> list[int]:
        return await inner.submit_many(items)

    assert await Batcher(handler).submit(1) == 10


@pytest.mark.parametrize("make", [Coalescer, Snapshot, functools.partial(Debouncer, wait=0.1)])
async def test_a_circle_of_waits_through_a_trigger_is_an_error(make: Any) -> None:
    async def handler(items: list[int]) -> list[int]:
        return [await ask() for _ in items]

    batcher = Batcher(handler)
    trigger = make(lambda: batcher.submit(1))
    ask = trigger.get if make is Snapshot else trigger.request
    with pytest.raises(SelfWaitError):
        await batcher.submit(1)
    with pytest.raises(SelfWaitError):
        await ask()
    await trigger.aclose()


async def test_a_circle_of_waits_through_a_single_flight_is_an_error() -> None:
    async def handler(items: list[int]) -> list[int]:
        return [await flights.do("key", batcher.submit, 1) for _ in items]

    flights, batcher = SingleFlight(), Batcher(handler)
    with pytest.raises(SelfWaitError):
        await flights.do("key", batcher.submit, 1)
    with pytest.raises(SelfWaitError):
        await batcher.submit(1)


async def test_a_circle_through_a_trigger_is_none_while_a_slot_is_left() -> None:
    async def handler(items: list[int]) -> list[int]:
        return [await trigger.request() if item else 7 for item in items]

    batcher = Batcher(handler, max_concurrent_batches=2)
    async with Coalescer(lambda: batcher.submit(0)) as trigger:
        assert await batcher.submit(1) == 7


async def test_two_batchers_that_wait_for_each_other_get_an_error() -> None:
    async def there(items: list[int]) -> list[int]:
        return await back.submit_many(items)

    async def again(items: list[int]) -> list[int]:
        return await forth.submit_many(items)

    forth, back = Batcher(there, name="forth"), Batcher(again, name="back")
    with pytest.raises(SelfWaitError, match="'forth'"):
        await forth.submit(1)


async def test_a_handler_may_submit_to_its_batcher_without_waiting() -> None:
    batches = []
    again = []

    async def handler(items: list[int]) -> list[int]:
        batches.append(items)
        if items == [1]:
            again.append(batcher.submit_nowait(2))
        return items

    batcher = Batcher(handler)
    assert await batcher.submit(1) == 1
    assert await again[0] == 2
    assert batches == [[1], [2]]


async def test_what_a_handler_started_may_wait_for_the_batcher_once_the_handler_has_ended() -> None:
    left: list[asyncio.Task[int]] = []

    async def later() -> int:
        await asyncio.sleep(1)
        await batcher.flush()
        return await batcher.submit(2)

    async def handler(items: list[int]) -> list[int]:
        if items == [1]:
            left.append(asyncio.create_task(later()))
        return items

    batcher = Batcher(handler)
    assert await batcher.submit(1) == 1
    assert await left[0] == 2


# What a handler may be


class Doubles:
    async def __call__(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]

    async def method(self, items: list[int]) -> list[int]:
        return [2 * item for item in items]


async def multiply(factor: int, items: list[int]) -> list[int]:
    return [factor * item for item in items]


@pytest.mark.parametrize(
    ("handler", "name"),
    [
        (Doubles(), "Doubles"),
        (Doubles().method, "Doubles.method"),
        (functools.partial(multiply, 2), "multiply"),
        (functools.partial(functools.partial(multiply), 2), "multiply"),
    ],
    ids=["callable object", "bound method", "partial", "partial of a partial"],
)
async def test_a_handler_may_be_anything_that_is_called_like_an_async_function(
    handler: Callable[[list[int]], Awaitable[list[int]]], name: str
) -> None:
    batcher = Batcher(handler)
    assert await batcher.submit_many([1, 2]) == [2, 4]
    assert batcher.name == name


@pytest.mark.real_time
async def test_a_plain_function_runs_in_a_worker_thread_with_the_context_carried_over() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    user.set("maker")

    def handler(items: list[int]) -> list[str]:
        assert threading.current_thread() is not threading.main_thread()
        return [f"{user.get()} {item}" for item in items]

    assert await Batcher(handler).submit_many([1, 2]) == ["maker 1", "maker 2"]


@pytest.mark.real_time
async def test_a_plain_function_may_fail_in_every_way() -> None:
    def handler(items: list[BaseException]) -> list[int]:
        raise items[0]

    batcher = Batcher(handler)
    error = LookupError("down")
    assert await outcome(batcher.submit(error)) is error
    assert isinstance(await outcome(batcher.submit(StopIteration())), Exception)
    assert isinstance(await outcome(batcher.submit(asyncio.CancelledError())), BatchCancelledError)


@pytest.mark.real_time
async def test_a_plain_function_that_outlasts_its_timeout_keeps_its_slot_but_not_its_callers() -> None:
    release = threading.Event()
    running = []

    def handler(items: list[int]) -> list[int]:
        running.append(items)
        assert len(running) == 1
        if items == [1]:
            release.wait(30)
        running.pop()
        return items

    batcher = Batcher(handler, timeout=0.05)
    assert isinstance(await outcome(batcher.submit(1)), LoaderTimeoutError)
    asyncio.get_running_loop().call_later(0.05, release.set)
    assert await batcher.submit(2) == 2


# Loops, threads, arguments, statistics


def test_a_batcher_made_outside_a_loop_serves_one_loop_after_another() -> None:
    backend = Backend()
    batcher = Batcher(backend)
    for _ in range(2):
        assert asyncio.run(batcher.submit(1)) == 10
    assert backend.batches == [[1], [1]]


def test_what_a_closed_loop_left_behind_does_not_disturb_the_next_one() -> None:
    backend = Backend()
    batcher = Batcher(backend, window=1)

    async def leaves() -> None:
        batcher.submit_nowait(1)

    asyncio.run(leaves())
    loops.run(lambda: batcher.submit(4))
    assert backend.batches == [[4]]
    gc.collect()


async def test_a_call_from_another_loop_or_thread_is_an_error() -> None:
    batcher = Batcher(Backend(), name="orders")
    await batcher.submit(1)
    errors: list[object] = []

    def elsewhere() -> None:
        for call in (lambda: batcher.submit_nowait(1), lambda: asyncio.run(batcher.submit(1))):
            try:
                call()
            except LoaderLoopError as error:
                errors.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 2
    assert all("'orders'" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_batch_size": 0}, ValueError, "max_batch_size"),
        ({"max_batch_size": 1.5}, TypeError, "max_batch_size"),
        ({"max_batch_size": None}, TypeError, "max_batch_size"),
        ({"max_pending": 0}, ValueError, "max_pending"),
        ({"max_concurrent_batches": 0}, ValueError, "max_concurrent_batches"),
        ({"window": -1}, ValueError, "window"),
        ({"window": float("inf")}, ValueError, "window"),
        ({"window": float("nan")}, ValueError, "window"),
        ({"window": "1"}, TypeError, "window"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"overflow": "drop"}, ValueError, "overflow"),
        ({"handler": None}, TypeError, "handler"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Batcher(**{"handler": Backend(), **options})


async def test_statistics_tell_what_happened_and_stay_as_they_are() -> None:
    batcher = Batcher(Backend(seconds=1), max_batch_size=2, max_pending=2)
    callers = [caller(batcher, item) for item in (1, 2, 3, LookupError(), 4)]
    await turns()
    callers[4].cancel()
    await turns()
    during = batcher.statistics()
    await asyncio.gather(*callers, return_exceptions=True)
    after = batcher.statistics()
    assert (during.batches, during.running, during.pending, during.blocked) == (1, 1, 2, 0)
    assert after == BatcherStatistics(
        submitted=5,
        rejected=0,
        cancelled=1,
        failures=1,
        batches=2,
        pending=0,
        blocked=0,
        running=0,
        batch_size=after.batch_size,
        wait=after.wait,
    )
    assert (after.batch_size.count, after.batch_size.total) == (2, 4)
    assert (after.wait.count, round(after.wait.total, 6)) == (4, 2)


async def test_repr_tells_the_name_and_what_is_going_on() -> None:
    batcher = Batcher(multiply_by_two := functools.partial(multiply, 2), max_batch_size=1)
    futures = [batcher.submit_nowait(1), batcher.submit_nowait(2)]
    assert repr(batcher) == "<Batcher 'multiply': 1 waiting, 1 running>"
    assert await together(*futures) == await multiply_by_two([1, 2])


def test_a_dropped_batcher_is_collected() -> None:
    async def main() -> weakref.ref[object]:
        batcher = Batcher(Backend(), window=0.001)
        await batcher.submit_many(range(3))
        return weakref.ref(batcher)

    reference = loops.run(main)
    gc.collect()
    assert reference() is None


async def test_many_cancelled_waiters_cost_no_more_than_their_number() -> None:
    backend = Backend(seconds=1)
    batcher = Batcher(backend, max_batch_size=1, max_pending=1)
    callers = [caller(batcher, item) for item in range(500)]
    await turns()
    for task in callers[1:-1]:
        task.cancel()
    await asyncio.wait(callers)
    assert backend.batches == [[0], [499]]


# Anything in any order


ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(["value", "error", "own error", "wrong", "cancel", "hang"])),
    st.tuples(st.just("many"), st.integers(0, 4)),
    st.tuples(st.just("nowait"), st.sampled_from(["value", "error"])),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.3, 1.0, 2.5])),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("close"), st.booleans()),
)
OPTIONS = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(1, 4),
        "window": st.sampled_from([None, 0.0, 0.5, 2.0]),
        "max_pending": st.sampled_from([None, 1, 3]),
        "overflow": st.sampled_from(["wait", "reject"]),
        "max_concurrent_batches": st.integers(1, 3),
        "timeout": st.sampled_from([1.5, 10.0]),
    }
)


class OwnError(Exception):
    """An item's own failure."""


class WholeError(Exception):
    """A batch's failure."""


async def drive(options: dict[str, Any], actions: list[tuple[str, Any]]) -> None:
    """Do `actions` with a batcher, and compare what every caller got with what the handler saw."""
    fates: dict[int, str] = {}  # what each item asks the handler to do
    order: list[int] = []  # the items as they were submitted
    ended: dict[int, str] = {}  # how the batch of each item that was sent ended
    batches: list[list[int]] = []
    running = 0

    async def handler(items: list[int]) -> list[Any]:
        nonlocal running
        batches.append(items)
        running += 1
        assert len(items) <= options["max_batch_size"]
        assert running <= options["max_concurrent_batches"]
        wanted = {fates[item] for item in items}
        ended.update(dict.fromkeys(items, "cut"))
        try:
            await asyncio.sleep(3600 if "hang" in wanted else 1)
            for fate in ("error", "wrong", "cancel"):
                if fate in wanted:
                    ended.update(dict.fromkeys(items, fate))
                    if fate == "wrong":
                        return [*items, 0]
                    raise WholeError if fate == "error" else asyncio.CancelledError
            ended.update({item: fates[item] for item in items})
            return [OwnError() if fates[item] == "own error" else -item for item in items]
        finally:
            running -= 1

    batcher: Batcher[int, int] = Batcher(handler, **options)
    serial = iter(range(1, 1000))
    waiting: list[tuple[list[int], asyncio.Future[Any]]] = []
    rest: list[asyncio.Task[None]] = []

    def new(fate: str) -> int:
        item = next(serial)
        fates[item] = fate
        return item

    async def submit(item: int) -> int:
        order.append(item)
        return await batcher.submit(item)

    async def submit_many(items: list[int]) -> list[int | Exception]:
        order.extend(items)
        return await batcher.submit_many(items, return_exceptions=True)

    for action, argument in actions:
        match action:
            case "submit":
                item = new(argument)
                waiting.append(([item], asyncio.create_task(submit(item))))
            case "many":
                items = [new("value" if index % 2 else "own error") for index in range(argument)]
                waiting.append((items, asyncio.create_task(submit_many(items))))
            case "nowait":
                item = new(argument)
                order.append(item)
                with contextlib.suppress(LoaderOverloadedError, LoaderClosedError):
                    waiting.append(([item], batcher.submit_nowait(item)))
            case "cancel":
                if waiting:
                    waiting[argument % len(waiting)][1].cancel()
            case "sleep":
                await asyncio.sleep(argument)
            case "flush":
                rest.append(asyncio.create_task(batcher.flush()))
            case _:
                rest.append(asyncio.create_task(batcher.aclose(flush=argument)))

    await asyncio.gather(*rest, batcher.aclose())
    expected: dict[str, Any] = {
        "value": int,
        "own error": OwnError,
        "error": WholeError,
        "wrong": BatchResultError,
        "cancel": BatchCancelledError,
        "cut": LoaderTimeoutError | BatchCancelledError,
    }
    for items, future in waiting:
        await asyncio.wait([future])
        if future.cancelled():
            continue
        if (error := future.exception()) is not None:
            results: list[Any] = [error] * len(items)
        else:
            results = future.result() if isinstance(future.result(), list) else [future.result()]
        assert len(results) == len(items)
        for item, result in zip(items, results, strict=True):
            if item in ended:
                assert isinstance(result, expected[ended[item]])
                assert not isinstance(result, int) or result == -item
            else:
                # BatchCancelledError: the batch had left, but was cancelled before its first step.
                assert isinstance(result, LoaderClosedError | LoaderOverloadedError | BatchCancelledError)
    sent = [item for batch in batches for item in batch]
    assert sent == [item for item in order if item in ended], "items leave in the order of their submission"
    assert len(sent) == len(set(sent))
    statistics = batcher.statistics()
    assert (statistics.pending, statistics.blocked, statistics.running) == (0, 0, 0)
    assert statistics.batch_size.total >= len(sent)


@pytest.mark.thorough
@settings(max_examples=1000, deadline=None)
@given(options=OPTIONS, actions=st.lists(ACTIONS, max_size=25))
def test_whatever_happens_everybody_gets_what_the_model_says(
    options: dict[str, Any], actions: list[tuple[str, Any]]
) -> None:
    # As `loops.run`, but without its collections of garbage: they would take all of the time.
    loop = loops.new_loop()
    reports: list[str] = []
    loop.set_exception_handler(lambda _, context: reports.append(context["message"]))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(drive(options, actions))
        assert not asyncio.all_tasks(loop)
        assert not loops.timers(loop)
    assert not reports
