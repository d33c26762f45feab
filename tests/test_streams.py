"""`loader.streams`: what the operators let through and when, and that their source is closed, come what may."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import threading
import weakref
from collections import OrderedDict, deque
from contextlib import aclosing, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import LoaderClosedError, LoaderLoopError, RunCancelledError, SelfWaitError
from loader.streams import conflate, debounce, throttle
from tests import loops

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable

    Operator = Callable[[AsyncIterable[Any]], Any]


class Feed:
    """A source that the test feeds by hand, and that writes down how it ends."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.wake = asyncio.Event()
        self.log: list[str] = []
        self.tasks: set[asyncio.Task[Any] | None] = set()

    def put(self, *items: Any) -> None:
        self.items.extend(items)
        self.wake.set()

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> Any:
        self.tasks.add(asyncio.current_task())
        while not self.items:
            self.wake.clear()
            try:
                await self.wake.wait()
            except asyncio.CancelledError:
                self.log.append("cancelled")
                raise
        item = self.items.popleft()
        if isinstance(item, BaseException):
            raise item
        return item

    async def aclose(self) -> None:
        self.tasks.add(asyncio.current_task())
        self.log.append("closed")


END = StopAsyncIteration()


async def timed(*steps: tuple[float, Any]) -> AsyncIterator[Any]:
    """Values, each after its seconds; an exception is raised."""
    for seconds, value in steps:
        await asyncio.sleep(seconds)
        if isinstance(value, BaseException):
            raise value
        if value is not None:
            yield value


async def collect(values: AsyncIterable[Any]) -> list[Any]:
    """Each value with the time at which it came; the last entry is how it ended."""
    time = asyncio.get_running_loop().time
    log: list[tuple[float, Any]] = []
    try:
        async for value in values:
            log.append((round(time(), 6), value))
    except Exception as error:
        log.append((round(time(), 6), repr(error)))
    else:
        log.append((round(time(), 6), "end"))
    return log


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def debounced(source: AsyncIterable[Any]) -> debounce[Any]:
    return debounce(source, wait=0.05)


def throttled(source: AsyncIterable[Any]) -> throttle[Any]:
    return throttle(source, interval=0.05)


def conflated(source: AsyncIterable[Any]) -> conflate[Any]:
    return conflate(source)


each_operator = pytest.mark.parametrize("operator", [debounced, throttled, conflated])


# What debounce lets through


async def test_debounce_gives_the_newest_value_after_a_quiet_time() -> None:
    steps = timed((1, "a"), (0.04, "b"), (0.04, "c"), (1, "d"), (1, None))
    assert await collect(debounce(steps, wait=0.05)) == [(1.13, "c"), (2.13, "d"), (3.08, "end")]


async def test_debounce_without_max_wait_never_gives_a_value_of_a_stream_that_never_pauses() -> None:
    steps = timed(*[(0.04, n) for n in range(100)])
    assert await collect(debounce(steps, wait=0.05)) == [(4, 99), (4, "end")]


async def test_debounce_with_max_wait_gives_values_of_a_stream_that_never_pauses() -> None:
    steps = timed(*[(0.04, n) for n in range(1, 51)])
    log = await collect(debounce(steps, wait=0.05, max_wait=0.5))
    assert log == [(0.54, 13), (1.06, 26), (1.58, 39), (2, 50), (2, "end")]


async def test_max_wait_counts_from_the_first_value_of_the_burst_that_is_pending() -> None:
    burst = [(1.0, "a"), (0.04, "b")]
    log = await collect(debounce(timed(*burst, *burst, (1, None)), wait=0.05, max_wait=0.07))
    assert log == [(1.07, "b"), (2.11, "b"), (3.08, "end")]


async def test_debounce_gives_a_value_that_became_quiet_while_the_consumer_was_busy_at_once() -> None:
    values = debounce(timed((1, "a"), (1, "b"), (5, None)), wait=0.05)
    log: list[Any] = []
    async for value in values:
        log.append((asyncio.get_running_loop().time(), value))
        await asyncio.sleep(2)
    assert log == [(pytest.approx(1.05), "a"), (pytest.approx(3.05), "b")]


async def test_debounce_replaces_a_quiet_value_that_the_busy_consumer_did_not_take_and_waits_anew() -> None:
    values = debounce(timed((1, "a"), (1, "b"), (1.04, "c"), (5, None)), wait=0.05)
    log: list[Any] = []
    async for value in values:
        log.append((asyncio.get_running_loop().time(), value))
        await asyncio.sleep(2)
    assert log == [(pytest.approx(1.05), "a"), (pytest.approx(3.09), "c")]
    assert (values.received, values.emitted, values.conflated) == (3, 2, 1)


async def test_debounce_with_an_endless_wait_gives_the_last_value_when_the_source_ends() -> None:
    assert await collect(debounce(timed((1, "a"), (1, "b"), (1, None)), wait=inf)) == [(3, "b"), (3, "end")]


async def test_debounce_counts_values_and_not_distinct_values() -> None:
    steps = timed(*[(0.04, "same")] * 10, (1, None))
    assert await collect(debounce(steps, wait=0.05)) == [(0.45, "same"), (1.4, "end")]


async def test_debounce_arms_one_timer_for_a_burst_and_none_for_each_value() -> None:
    feed = Feed()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(collect(debounce(feed, wait=0.05)))
    await turns(3)
    for n in range(1000):
        feed.put(n)
        await turns(3)
    assert len(loop._scheduled) == 1  # type: ignore[attr-defined]  # also counts timers that were cancelled
    feed.put(END)
    assert await task == [(0, 999), (0, "end")]


# What throttle lets through


async def test_throttle_gives_the_first_value_at_once_and_the_newest_of_each_interval() -> None:
    steps = timed((1, 1), *[(0.1, n) for n in range(2, 21)], (5, None))
    log = await collect(throttle(steps, interval=0.45))
    assert log == [(1, 1), (1.45, 5), (1.9, 9), (2.35, 14), (2.8, 18), (3.25, 20), (7.9, "end")]


async def test_throttle_gives_a_value_after_a_pause_at_once() -> None:
    steps = timed((1, "a"), (0.6, "b"), (0.6, "c"), (0.1, None))
    assert await collect(throttle(steps, interval=0.5)) == [(1, "a"), (1.6, "b"), (2.2, "c"), (2.3, "end")]


@pytest.mark.every_loop
async def test_throttle_gives_the_first_of_several_values_that_are_ready(loop_kind: str) -> None:
    feed = Feed()
    feed.put(1, 2, 3, END)
    values = throttle(feed, interval=3600)
    assert [value async for value in values] == [1, 3]
    assert (values.received, values.emitted, values.conflated) == (3, 2, 1)


async def test_throttle_counts_the_interval_from_when_a_slow_consumer_got_a_value() -> None:
    log = []
    async for value in throttle(timed(*[(0.1, n) for n in range(1, 21)], (5, None)), interval=0.5):
        log.append((round(asyncio.get_running_loop().time(), 6), value))
        if value == 1:
            await asyncio.sleep(0.83)
    assert log == [(0.1, 1), (0.93, 9), (1.43, 14), (1.93, 19), (2.43, 20)]


# What conflate lets through


@pytest.mark.every_loop
async def test_conflate_gives_every_value_to_a_consumer_that_keeps_up(loop_kind: str) -> None:
    feed = Feed()
    values = conflate(feed)
    got = []
    for n in range(5):
        feed.put(n)
        got.append(await anext(values))
    await values.aclose()
    assert got == [0, 1, 2, 3, 4]
    assert (values.received, values.emitted, values.conflated) == (5, 5, 0)


async def test_conflate_gives_a_slow_consumer_the_newest_value() -> None:
    values = conflate(timed(*[(1, n) for n in range(1, 11)]))
    log: list[Any] = []
    async for value in values:
        log.append((asyncio.get_running_loop().time(), value))
        await asyncio.sleep(3.5)
    assert log == [(1, 1), (4.5, 4), (8, 7), (11.5, 10)]
    assert (values.received, values.emitted, values.conflated) == (10, 4, 6)


async def test_conflate_by_key_gives_the_newest_of_each_key_in_the_order_of_their_first_arrival() -> None:
    feed = Feed()
    feed.put(("a", 1))
    values = conflate(feed, key=lambda item: item[0])
    assert await anext(values) == ("a", 1)
    feed.put(("b", 1), ("a", 2), ("c", 1), ("b", 2), ("a", 3), END)
    await turns(3)
    assert [value async for value in values] == [("b", 2), ("a", 3), ("c", 1)]
    assert (values.received, values.emitted, values.conflated) == (6, 4, 2)


async def test_conflate_holds_one_value_for_each_key_however_many_come() -> None:
    feed = Feed()
    values = conflate(feed, key=lambda n: n % 10)
    feed.put(0)
    await anext(values)
    feed.put(*range(1000))
    await turns(20)
    assert values._flow.held == {n % 10: n for n in range(990, 1000)}
    await values.aclose()
    assert not values._flow.held


async def test_a_failing_key_function_is_an_error_after_the_values_before_it() -> None:
    feed = Feed()
    feed.put(4, 2, 0, 1)
    log = await collect(conflate(feed, key=lambda n: 8 // n))
    assert log == [(0, 4), (0, 2), (0, "ZeroDivisionError('integer division or modulo by zero')")]
    assert feed.log == ["closed"]


# Against a model: the operators do what a few lines say about the times at which the values came


def numbers(fraction: float) -> st.SearchStrategy[float]:
    """Seconds whose sums never meet those with another fraction: no two things happen at the same time."""
    return st.integers(0, 6).map(lambda whole: whole + fraction)


@dataclass
class Run:
    """When values come, when and how the source ends, how long the consumer is busy after each value."""

    arrivals: list[float]
    end: float
    fails: bool
    busy: list[float]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    gaps = draw(st.lists(st.integers(1, 6), min_size=1, max_size=15))
    arrivals = [float(sum(gaps[: n + 1])) for n in range(len(gaps))]
    busy = draw(st.lists(numbers(1 / 1024), min_size=len(gaps), max_size=len(gaps)))
    return Run(arrivals, arrivals[-1] + draw(numbers(0.5)), draw(st.booleans()), busy)


def model(
    run: Run,
    due: Callable[[float, float, float], float],
    key: Callable[[int], int] = lambda n: 0,
) -> list[tuple[float, int]]:
    """The times and values that a consumer gets, if `due(first, last, delivered)` says when it may."""
    log: list[tuple[float, int]] = []
    held: OrderedDict[int, int] = OrderedDict()
    coming = deque(enumerate(run.arrivals))
    now, delivered, first, last = 0.0, -inf, 0.0, 0.0
    while coming or held:
        when = max(now, last, min(due(first, last, delivered), run.end)) if held else inf
        if coming and coming[0][1] <= when:
            n, last = coming.popleft()
            first = first if held else last
            held[key(n)] = n
        else:
            log.append((when, held.popitem(last=False)[1]))
            delivered, now = when, when + run.busy[len(log) - 1]
    return log


def observe(operator: Operator, run: Run) -> Any:
    closed = []

    async def source() -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        try:
            for n, when in enumerate([*run.arrivals, run.end]):
                await asyncio.sleep(when - loop.time())
                if n < len(run.arrivals):
                    yield n
            if run.fails:
                raise OSError
        finally:
            closed.append(loop.time())

    async def main() -> list[tuple[float, int]]:
        log: list[tuple[float, int]] = []
        values = operator(source())
        try:
            async for value in values:
                log.append((asyncio.get_running_loop().time(), value))
                await asyncio.sleep(run.busy[len(log) - 1])
            assert not run.fails
        except OSError:
            assert run.fails
        assert closed == [run.end]
        assert (values.received, values.emitted) == (len(run.arrivals), len(log))
        assert values.conflated == len(run.arrivals) - len(log)
        return log

    with asyncio.Runner(loop_factory=loops.new_loop) as runner:
        return runner.run(main())


def close_to(log: list[tuple[float, int]]) -> list[tuple[Any, int]]:
    return [(pytest.approx(when, abs=1e-6), value) for when, value in log]


@settings(max_examples=150, deadline=None)
@given(runs(), numbers(1 / 32), st.none() | numbers(1 / 16 + 1 / 256))
def test_debounce_does_what_its_model_says(run: Run, wait: float, more: float | None) -> None:
    max_wait = inf if more is None else wait + more
    expected = model(run, lambda first, last, _: min(last + wait, first + max_wait))
    limit = None if more is None else max_wait
    seen = observe(lambda source: debounce(source, wait=wait, max_wait=limit), run)
    assert seen == close_to(expected)


@settings(max_examples=150, deadline=None)
@given(runs(), numbers(1 / 32))
def test_throttle_does_what_its_model_says(run: Run, interval: float) -> None:
    expected = model(run, lambda first, last, delivered: delivered + interval)
    assert observe(lambda source: throttle(source, interval=interval), run) == close_to(expected)


@settings(max_examples=150, deadline=None)
@given(runs(), st.integers(1, 4))
def test_conflate_does_what_its_model_says(run: Run, keys: int) -> None:

    def key(n: int) -> int:
        return n * n % keys

    expected = model(run, lambda first, last, _: -inf, key)
    assert observe(lambda source: conflate(source, key=key), run) == close_to(expected)


# The end of the source


@each_operator
@pytest.mark.every_loop
async def test_the_value_held_back_comes_before_the_end(operator: Operator, loop_kind: str) -> None:
    feed = Feed()
    values = operator(feed)
    feed.put("a", "b", END)
    assert [value async for value in values][-1] == "b"
    assert feed.log == ["closed"]
    assert [value async for value in values] == []


@each_operator
@pytest.mark.every_loop
async def test_the_value_held_back_comes_before_the_error(operator: Operator, loop_kind: str) -> None:
    feed = Feed()
    values = operator(feed)
    feed.put("a", "b", OSError("gone"))
    assert [entry for _, entry in await collect(values)][-2:] == ["b", "OSError('gone')"]
    assert feed.log == ["closed"]
    assert [value async for value in values] == []


@each_operator
@pytest.mark.every_loop
async def test_an_empty_source_ends_the_iteration(operator: Operator, loop_kind: str) -> None:
    assert [value async for value in operator(timed())] == []


async def test_the_end_does_not_wait_for_the_quiet_time_nor_for_the_interval() -> None:
    assert await collect(debounce(timed((1, "a"), (0.01, None)), wait=9)) == [(1.01, "a"), (1.01, "end")]
    steps = timed((1, "a"), (0.01, "b"), (0.01, OSError()))
    assert await collect(throttle(steps, interval=9)) == [(2.01, "a"), (2.03, "b"), (2.03, "OSError()")]


async def test_an_error_on_closing_a_source_that_has_ended_reaches_the_consumer() -> None:
    class Source(Feed):
        async def aclose(self) -> None:
            raise OSError("cannot close")

    feed = Source()
    feed.put("a", END)
    assert await collect(conflate(feed)) == [(0, "a"), (0, "OSError('cannot close')")]


async def test_a_source_that_is_cancelled_by_itself_raises_an_error_and_no_cancellation() -> None:
    async def source() -> AsyncIterator[str]:
        yield "a"
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    values = debounce(source(), wait=1)
    assert await anext(values) == "a"
    with pytest.raises(RunCancelledError, match=r"The source of debounce\(wait=1, max_wait=None\)"):
        await anext(values)
    with pytest.raises(StopAsyncIteration):
        await anext(values)


async def test_a_source_need_not_have_aclose() -> None:
    class Source:
        def __aiter__(self) -> Source:
            return self

        async def __anext__(self) -> Any:
            return await asyncio.get_running_loop().create_future()

    values = conflate(Source())
    task = asyncio.create_task(anext(values))
    await turns(3)
    await values.aclose()
    with pytest.raises(StopAsyncIteration):
        await task


async def test_what_is_closed_is_the_iterator_and_not_an_iterable_that_others_may_iterate_too() -> None:
    log = []

    class Hub:
        async def __aiter__(self) -> AsyncIterator[int]:
            try:
                for n in range(3):
                    yield n
                    await asyncio.sleep(1)
            finally:
                log.append("iterator closed")

        async def aclose(self) -> None:
            raise AssertionError("closes the hub for everybody")

    async with conflate(Hub()) as values:
        assert await anext(values) == 0
    assert log == ["iterator closed"]
    await conflate(Hub()).aclose()


async def test_a_source_that_is_ready_every_time_lets_the_loop_turn() -> None:
    async def source() -> AsyncIterator[int]:
        n = 0
        while True:
            n += 1
            yield n

    values = conflate(source())
    assert await anext(values) == 1
    await asyncio.sleep(0)
    await values.aclose()


# How the consumer leaves


@each_operator
@pytest.mark.every_loop
async def test_aclose_ends_a_call_that_waits_and_closes_the_source(operator: Operator, loop_kind: str) -> None:
    feed = Feed()
    values = operator(feed)
    task = asyncio.create_task(anext(values))
    await turns(3)
    await values.aclose()
    assert feed.log == ["cancelled", "closed"]
    with pytest.raises(StopAsyncIteration):
        await task
    await values.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(values)
    assert feed.log == ["cancelled", "closed"]


@each_operator
@pytest.mark.every_loop
async def test_the_source_is_iterated_and_closed_in_one_task(operator: Operator, loop_kind: str) -> None:
    feed = Feed()
    feed.put("a", "b")
    async with operator(feed) as values:
        await anext(values)
    assert len(feed.tasks) == 1
    assert asyncio.current_task() not in feed.tasks


@each_operator
@pytest.mark.every_loop
async def test_cancelling_a_call_that_waits_closes_the_source_in_the_next_turn(
    operator: Operator, loop_kind: str
) -> None:
    feed = Feed()
    task = asyncio.create_task(anext(operator(feed)))
    await turns(3)
    task.cancel()
    await turns(2)  # the first one cancels the call, which the test could not do by itself
    assert feed.log == ["cancelled", "closed"]
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_call_returns_when_the_source_is_closed() -> None:
    log = []

    async def source() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(3600)
            yield 1
        finally:
            await asyncio.sleep(5)
            log.append("source closed")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(conflate(source())), 1)
    assert log == ["source closed"]
    assert asyncio.get_running_loop().time() == pytest.approx(6)


async def test_cancelling_twice_or_closing_meanwhile_does_not_disturb_what_the_source_does_to_close() -> None:
    log = []

    async def source() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(3600)
            yield 1
        finally:
            await asyncio.sleep(5)
            log.append("source closed")

    values = conflate(source())
    task = asyncio.create_task(anext(values))
    await turns(3)
    task.cancel()
    await turns(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == []
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await values.aclose()
    assert log == []
    await values.aclose()
    assert log == ["source closed"]


async def test_after_a_cancelled_call_the_operator_says_why_it_is_closed() -> None:
    feed = Feed()
    values = debounced(feed)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(values), 1)
    with pytest.raises(LoaderClosedError, match="keep the task"):
        await anext(values)
    await values.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(values)


async def test_a_wait_with_a_limit_that_keeps_the_task_loses_nothing() -> None:
    values = debounce(timed((1, "a"), (5, "b")), wait=0.5)
    log: list[Any] = []
    task: asyncio.Task[Any] | None = None
    while "b" not in log:
        task = task or asyncio.ensure_future(anext(values))
        done, _ = await asyncio.wait({task}, timeout=1)
        if done:
            log.append(task.result())
            task = None
        else:
            log.append("heartbeat")
    assert log == ["heartbeat", "a", "heartbeat", "heartbeat", "heartbeat", "heartbeat", "b"]
    await values.aclose()


async def test_a_call_that_is_cancelled_as_its_value_comes_closes_the_source_too() -> None:
    feed = Feed()
    values = conflate(feed)
    task = asyncio.ensure_future(anext(values))
    await turns(3)
    feed.put("a")
    await asyncio.sleep(0)
    assert (values.emitted, task.done()) == (1, False)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert feed.log == ["cancelled", "closed"]


async def test_a_call_that_is_closed_and_cancelled_at_once_leaves_the_error_to_aclose() -> None:
    class Source(Feed):
        async def aclose(self) -> None:
            raise OSError("cannot close")

    values = conflate(Source())
    task = asyncio.ensure_future(anext(values))
    await turns(3)
    closing = asyncio.ensure_future(values.aclose())
    task.cancel()
    for _ in range(2):
        await asyncio.sleep(0)
    with pytest.raises(OSError, match="cannot close"):
        await closing
    with pytest.raises(asyncio.CancelledError):
        await task


@each_operator
@pytest.mark.every_loop
async def test_an_operator_that_nobody_holds_closes_its_source(operator: Operator, loop_kind: str) -> None:
    feed = Feed()
    feed.put("a", "b", "c")
    async for _ in operator(feed):
        break
    gc.collect()
    await turns(3)
    assert feed.log == ["cancelled", "closed"]


async def test_an_operator_that_is_collected_in_a_cycle_by_another_thread_closes_its_source() -> None:
    feed = Feed()
    feed.put("a", "b")
    values: Any = conflate(feed)
    await anext(values)
    await turns(3)
    cycle = [values]
    cycle.append(cycle)
    del values, cycle
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    await turns(3)
    assert feed.log == ["cancelled", "closed"]


@pytest.mark.every_loop
async def test_an_operator_that_was_never_iterated_closes_a_source_that_may_be_open(loop_kind: str) -> None:
    feed, other = Feed(), Feed()
    conflate(feed)
    gc.collect()
    await conflate(other).aclose()
    await turns(3)
    assert feed.log == other.log == ["closed"]


async def test_an_operator_that_has_ended_is_collected_without_further_work() -> None:
    feed = Feed()
    feed.put(END)
    assert [value async for value in conflate(feed)] == []
    gc.collect()
    await turns(3)
    assert feed.log == ["closed"]


async def test_an_operator_whose_source_failed_is_forgotten_with_its_consumers_frames() -> None:
    async def consume() -> weakref.ref[Any]:
        operator = conflate(timed((0, "a"), (0, ValueError("broken"))))
        assert await anext(operator) == "a"
        with pytest.raises(ValueError, match="broken"):
            await anext(operator)
        return weakref.ref(operator)

    reference = await consume()
    gc.collect()
    assert reference() is None


async def test_an_operator_that_is_collected_while_its_source_closes_lets_it() -> None:
    class Slow(Feed):
        async def aclose(self) -> None:
            await asyncio.sleep(5)
            await super().aclose()

    feed = Slow()
    feed.put("a", "b", END)
    async for _ in conflate(feed):
        break
    gc.collect()
    await asyncio.sleep(6)
    assert feed.log == ["closed"]


def test_an_operator_that_is_collected_after_its_loop_is_closed_does_no_harm() -> None:
    kept: list[Any] = []

    async def main() -> None:
        feed = Feed()
        feed.put("a", "b", OSError("nobody waits for it"))
        kept.append(throttled(feed))
        await anext(kept[0])
        await turns(3)

    loops.run(main)
    kept.clear()
    gc.collect()


@each_operator
@pytest.mark.every_loop
async def test_a_generator_that_is_cancelled_while_it_waits_closes_the_source(
    operator: Operator, loop_kind: str
) -> None:
    feed = Feed()

    async def resolver() -> AsyncGenerator[Any, None]:
        async for value in operator(feed):
            yield value

    task = asyncio.create_task(collect(resolver()))
    await turns(5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert feed.log == ["cancelled", "closed"]


@each_operator
@pytest.mark.every_loop
async def test_a_generator_that_is_closed_between_two_values_closes_the_source(
    operator: Operator, loop_kind: str
) -> None:
    feed = Feed()

    async def resolver() -> AsyncGenerator[Any, None]:
        async for value in operator(feed):
            yield value

    feed.put("a")
    async with aclosing(resolver()) as values:
        assert await anext(values) == "a"
    await turns(3)
    assert feed.log == ["cancelled", "closed"]


async def test_operators_close_one_another() -> None:
    feed = Feed()
    values = debounce(throttle(conflate(feed), interval=0.1), wait=0.2)
    feed.put("a", "b")
    assert await anext(values) == "b"
    await values.aclose()
    assert feed.log == ["cancelled", "closed"]


async def test_a_source_that_goes_on_when_it_is_cancelled_is_closed_at_its_next_value() -> None:
    log = []

    async def source() -> AsyncIterator[int]:
        try:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)
                yield 1
        finally:
            log.append("closed")

    values = conflate(source())
    task = asyncio.ensure_future(anext(values))
    await turns(3)
    await values.aclose()
    assert log == ["closed"]
    assert values.received == 0
    with pytest.raises(StopAsyncIteration):
        await task


@pytest.mark.every_loop
async def test_a_call_that_is_closed_before_the_source_was_asked_never_asks_it(loop_kind: str) -> None:
    feed = Feed()
    values = conflate(feed)
    task = asyncio.create_task(anext(values))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await values.aclose()
    assert feed.log[-1] == "closed"
    assert values.received == 0


async def test_a_pump_that_is_cancelled_before_its_first_step_still_closes_the_source() -> None:
    feed = Feed()
    values = conflate(feed)
    task = asyncio.create_task(anext(values))
    await asyncio.sleep(0)
    (pump,) = asyncio.all_tasks() - {task, asyncio.current_task()}
    pump.cancel()
    with pytest.raises(RunCancelledError, match="or by whoever cancels every task"):
        await task
    assert feed.log == ["closed"]
    with pytest.raises(StopAsyncIteration):
        await anext(values)


async def test_a_wait_that_is_cancelled_before_it_can_say_that_its_pump_was_does_not_look_like_the_end() -> None:
    closing = asyncio.Event()

    class Slow(Feed):
        async def aclose(self) -> None:
            await closing.wait()
            await super().aclose()

    values = conflate(feed := Slow())
    task = asyncio.create_task(anext(values))
    await asyncio.sleep(0)
    (pump,) = asyncio.all_tasks() - {task, asyncio.current_task()}
    pump.cancel()
    await turns(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(LoaderClosedError, match="closed when a wait for its next value was cancelled"):
        await anext(values)
    closing.set()
    await values.aclose()
    assert feed.log == ["closed"]


async def test_a_pump_that_is_cancelled_while_the_consumer_is_busy_is_no_error_for_who_wants_no_more() -> None:
    feed = Feed()
    feed.put("a")
    async with conflate(feed) as values:
        assert await anext(values) == "a"
        (pump,) = asyncio.all_tasks() - {asyncio.current_task()}
        pump.cancel()
        await turns(3)
        assert feed.log == ["cancelled", "closed"]


@pytest.mark.parametrize("kind", loops.KINDS)
@pytest.mark.parametrize("turn", range(5))
def test_a_loop_that_is_torn_down_closes_the_source(turn: int, kind: str) -> None:
    logs = []

    async def main() -> None:
        waiting, busy = Feed(), Feed()
        logs.extend([waiting.log, busy.log])

        async def consume() -> None:
            busy.put("a")
            async with conflate(busy) as values:
                async for _ in values:
                    await asyncio.sleep(3600)

        tasks.extend(asyncio.create_task(coroutine) for coroutine in [collect(conflate(waiting)), consume()])
        await turns(turn)

    tasks: list[asyncio.Task[Any]] = []
    loop = loops.new_loop(kind)
    reports: list[str] = []
    loop.set_exception_handler(lambda _, context: reports.append(context["message"]))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    assert reports == []
    assert all(task.cancelled() for task in tasks)
    for log in logs:
        assert log[-1:] in (["closed"], [] if turn == 0 else ["closed"])


def test_a_coroutine_that_is_thrown_away_while_it_waits_closes_the_source() -> None:
    async def main() -> None:
        feed = Feed()
        values = conflate(feed)
        coroutine = values.__anext__()
        coroutine.send(None)
        await turns(3)
        coroutine.close()
        await turns(3)
        assert feed.log == ["cancelled", "closed"]
        with pytest.raises(StopAsyncIteration):
            await anext(values)

    loops.run(main)


# Errors that the consumer does not wait for


class FailsToClose(Feed):
    async def aclose(self) -> None:
        raise OSError("cannot close")


@pytest.mark.every_loop
async def test_aclose_raises_what_the_source_raised_while_it_was_closed_and_only_once(loop_kind: str) -> None:
    values = conflate(FailsToClose())
    task = asyncio.ensure_future(anext(values))
    await turns(3)
    with pytest.raises(OSError, match="cannot close"):
        await values.aclose()
    await values.aclose()
    with pytest.raises(StopAsyncIteration):
        await task


async def test_aclose_raises_what_the_source_raised_before() -> None:
    feed = Feed()
    feed.put("a", "b", OSError("gone"))
    values = throttled(feed)
    assert await anext(values) == "a"
    await turns(3)
    with pytest.raises(OSError, match="gone"):
        await values.aclose()


@pytest.mark.every_loop
@pytest.mark.logs
async def test_an_error_on_closing_after_a_cancelled_call_goes_to_the_loop(loop_kind: str, reports: list[str]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(conflate(FailsToClose())), 0.001)
    assert reports == [
        "The source of conflate() failed after its consumer had left: OSError('cannot close')",
    ]


@pytest.mark.logs
async def test_an_error_on_closing_that_the_caller_of_aclose_did_not_wait_for_goes_to_the_loop(
    reports: list[str],
) -> None:
    class Slow(Feed):
        async def aclose(self) -> None:
            await asyncio.sleep(5)
            raise OSError("cannot close")

    values = conflate(Slow())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(values.aclose(), 1)
    await asyncio.sleep(5)
    assert len(reports) == 1


@pytest.mark.logs
async def test_an_error_that_an_operator_nobody_holds_would_have_raised_goes_to_the_loop(
    reports: list[str],
) -> None:
    feed = Feed()
    feed.put("a", OSError("gone"))
    async for _ in conflate(feed):
        await turns(3)
        break
    gc.collect()
    await turns(3)
    assert reports == ["The source of conflate() failed after its consumer had left: OSError('gone')"]


# Misuse


@each_operator
async def test_a_second_task_that_waits_for_the_next_value_is_an_error(operator: Operator) -> None:
    feed = Feed()
    values = operator(feed)
    task = asyncio.ensure_future(anext(values))
    await turns(3)
    with pytest.raises(RuntimeError, match="another task is waiting"):
        await anext(values)
    feed.put("a", END)
    assert await task == "a"


@each_operator
@pytest.mark.parametrize("source", [[1, 2], None, "abc", iter([])])
def test_a_source_that_is_no_async_iterable_is_an_error(operator: Operator, source: Any) -> None:
    with pytest.raises(TypeError, match=r"takes an async iterable.*got " + type(source).__name__):
        operator(source)


@pytest.mark.parametrize("seconds", [-1, -0.001, nan])
def test_a_time_that_is_negative_or_none_at_all_is_an_error(seconds: float) -> None:
    with pytest.raises(ValueError, match="wait takes a number of seconds"):
        debounce(timed(), wait=seconds)
    with pytest.raises(ValueError, match="max_wait takes a number of seconds"):
        debounce(timed(), wait=1, max_wait=seconds)
    with pytest.raises(ValueError, match="interval takes a number of seconds"):
        throttle(timed(), interval=seconds)


def test_a_max_wait_that_is_less_than_wait_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_wait is less than wait"):
        debounce(timed(), wait=2, max_wait=1)


@pytest.mark.every_loop
async def test_a_source_that_closes_or_iterates_its_own_operator_gets_an_error(loop_kind: str) -> None:
    errors = []

    async def source() -> AsyncIterator[str]:
        for call in (values.aclose, values.__anext__):
            try:
                await call()
            except RuntimeError as error:
                errors.append(type(error))
        yield "a"

    values: conflate[str] = conflate(source())
    assert [value async for value in values] == ["a"]
    assert errors[0] is SelfWaitError


def test_an_operator_can_be_made_before_any_loop_runs_and_used_on_one() -> None:
    values = conflate(timed((1, "a"), (1, "b")))

    async def main() -> list[tuple[float, Any]]:
        return await collect(values)

    assert loops.run(main) == [(1, "a"), (2, "b"), (2, "end")]


def test_an_operator_that_nobody_used_and_that_knows_no_loop_is_collected() -> None:
    conflate(timed())
    gc.collect()


def test_an_operator_that_has_ended_says_so_on_another_loop_too() -> None:
    values = conflate(timed((1, "a")))

    async def main() -> list[tuple[float, Any]]:
        return await collect(values)

    assert loops.run(main) == [(1, "a"), (1, "end")]
    assert loops.run(main) == [(0, "end")]


def test_an_operator_that_is_in_use_on_one_loop_refuses_another() -> None:
    feed_loop = loops.new_loop()

    async def begin() -> Any:
        feed = Feed()
        feed.put("a")
        values = conflate(feed)
        await anext(values)
        return values

    values = feed_loop.run_until_complete(begin())

    async def main() -> None:
        with pytest.raises(LoaderLoopError, match="belongs to another event loop"):
            await anext(values)
        with pytest.raises(LoaderLoopError, match="belongs to another event loop"):
            await values.aclose()

    loops.run(main)
    feed_loop.run_until_complete(values.aclose())
    feed_loop.close()


@pytest.mark.filterwarnings("ignore:coroutine.*was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_operator_whose_loop_was_closed_under_it_says_that_it_was_left_open() -> None:
    loop = loops.new_loop()
    reports: list[str] = []
    loop.set_exception_handler(lambda _, context: reports.append(context["message"]))

    async def begin() -> Any:
        feed = Feed()
        feed.put("a")
        values = conflate(feed)
        await anext(values)
        await turns(3)
        return values

    kept = [loop.run_until_complete(begin())]
    loop.close()

    async def main() -> None:
        with pytest.raises(LoaderLoopError, match="was left open on an event loop that has been closed"):
            await anext(kept[0])
        with pytest.raises(LoaderLoopError, match="was left open on an event loop that has been closed"):
            await kept[0].aclose()

    loops.run(main)
    kept.clear()
    gc.collect()
    assert reports == ["Task was destroyed but it is pending!"]  # asyncio's word for what was left open


# The rest


variable: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.mark.every_loop
async def test_the_source_runs_in_the_context_of_the_consumer(loop_kind: str) -> None:
    async def source() -> AsyncIterator[str]:
        yield variable.get()
        variable.set("set by the source")

    variable.set("of whoever made it")
    values = conflate(source())
    variable.set("of the consumer")
    assert [value async for value in values] == ["of the consumer"]
    assert variable.get() == "of the consumer"


async def test_the_repr_says_what_it_does_and_how_far_it_is() -> None:
    feed = Feed()
    values = debounce(feed, wait=0.5, max_wait=3)
    texts = [repr(values)]
    task = asyncio.ensure_future(anext(values))
    await asyncio.sleep(0)
    texts.append(repr(values))
    await turns(3)
    feed.put("a", "b", "c")
    await task
    texts.append(repr(values))
    await values.aclose()
    texts.append(repr(values))
    states = [re.fullmatch(r"<debounce\(wait=0.5, max_wait=3\) (.*)>", text)[1] for text in texts]  # type: ignore[index]
    assert states == [
        "not started: 0 received, 0 emitted, 0 conflated",
        "starting: 0 received, 0 emitted, 0 conflated",
        "pulling: 3 received, 1 emitted, 2 conflated",
        "ended: 3 received, 1 emitted, 2 conflated",
    ]
    assert repr(throttled(feed)).startswith("<throttle(interval=0.05) ")


async def test_twenty_thousand_large_values_in_one_turn_leave_one() -> None:
    async def source() -> AsyncIterator[bytes]:
        for _ in range(20_000):
            yield bytes(10_000)
        await asyncio.sleep(1)

    values = debounce(source(), wait=0.5)
    assert len(await anext(values)) == 10_000
    assert len(values._flow.held) == 0
    assert sys.getrefcount(values) <= 3
    await values.aclose()


@pytest.mark.parametrize("wrong", [None, "1", True, Decimal(1)], ids=repr)
def test_a_time_that_is_no_number_is_an_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="debounce: wait takes a number of seconds"):
        debounce(timed(), wait=wrong)
    with pytest.raises(TypeError, match="throttle: interval takes a number of seconds"):
        throttle(timed(), interval=wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match="debounce: max_wait takes a number of seconds"):
            debounce(timed(), wait=1, max_wait=wrong)


def test_a_key_that_is_no_function_is_an_error() -> None:
    with pytest.raises(TypeError, match="key is a function of a value, not 5"):
        conflate(timed(), key=5)  # type: ignore[arg-type]


async def test_a_source_that_ends_with_what_would_end_its_consumer_arrives_wrapped() -> None:
    class Source:
        def __aiter__(self) -> Source:
            return self

        async def __anext__(self) -> str:
            raise GeneratorExit

    with pytest.raises(RunCancelledError, match="ended with GeneratorExit, its consumer did not") as caught:
        await anext(conflate(Source()))
    assert isinstance(caught.value.__cause__, GeneratorExit)


async def test_a_key_function_that_raises_stop_async_iteration_does_not_look_like_the_end() -> None:
    async def source() -> AsyncIterator[int]:
        yield 1

    def key(_: int) -> int:
        raise StopAsyncIteration

    values = conflate(source(), key=key)
    with pytest.raises(RunCancelledError, match="ended with StopAsyncIteration, its consumer did not"):
        [value async for value in values]
