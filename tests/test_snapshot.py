"""Snapshot: fresh at once, stale at once while one load runs, and no old value called fresh."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator  # noqa: TC003  # Strawberry reads the annotation at run time
from decimal import Decimal
from typing import Any

import pytest
import strawberry

from loader._snapshot import Snapshot
from loader.errors import LoaderClosedError, LoaderLoopError, LoaderTimeoutError, RunCancelledError, SelfWaitError
from tests import loops
from tests.jobs import Job, JobError, fail, outcome, turns, until


class Source:
    """What is loaded: a value that changes, and loads that read it at their start and take `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.value = 0
        self.seconds = seconds
        self.failing = False
        self.starts: list[float] = []

    async def load(self) -> int:
        value, failing = self.value, self.failing
        self.starts.append(now())
        await asyncio.sleep(self.seconds)
        if failing:
            raise JobError(f"load {len(self.starts)}")
        return value


def now() -> float:
    return asyncio.get_running_loop().time()


class TestGet:
    @pytest.mark.every_loop
    async def test_the_first_readers_wait_for_one_load_and_later_ones_for_none(self) -> None:
        source = Source(0.01)
        async with Snapshot(source.load) as snapshot:
            assert snapshot.peek() is None
            assert await asyncio.gather(*(snapshot.get() for _ in range(100))) == [0] * 100
            source.value = 1
            assert await snapshot.get() == 0
            assert len(source.starts) == 1

    async def test_a_reader_that_comes_during_the_first_load_shares_it(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            first = asyncio.create_task(snapshot.get())
            await asyncio.sleep(0.5)
            await snapshot.get()
            assert (await first, now()) == (0, 1)

    async def test_a_stale_value_is_served_at_once_while_a_single_load_runs(self) -> None:
        source = Source(1)
        async with Snapshot(source.load, fresh_for=10) as snapshot:
            await snapshot.get()
            await asyncio.sleep(10)
            source.value = 1
            before = now()
            assert [await snapshot.get() for _ in range(50)] == [0] * 50
            assert now() == before
            await asyncio.sleep(2)
            assert await snapshot.get() == 1
            assert len(source.starts) == 2
            await snapshot.get(max_age=0)
        got = snapshot.statistics()
        assert (got.hits, got.stale_hits, got.misses, got.loads, got.failures) == (1, 50, 2, 3, 0)
        assert got.load_time.count == 3

    async def test_age_counts_from_the_start_of_the_load(self) -> None:
        source = Source(3)
        async with Snapshot(source.load, fresh_for=10) as snapshot:
            await snapshot.get()
            peeked = snapshot.peek()
            assert peeked is not None
            assert (peeked.value, peeked.version, peeked.fresh) == (0, 1, True)
            assert peeked.age == pytest.approx(3)
            await asyncio.sleep(7)
            peeked = snapshot.peek()
            assert peeked is not None
            assert not peeked.fresh

    async def test_a_load_slower_than_its_freshness_is_still_published(self) -> None:
        source = Source(5)
        async with Snapshot(source.load, fresh_for=1) as snapshot:
            assert await snapshot.get() == 0
            source.value = 1
            assert await snapshot.get() == 0
            await asyncio.sleep(6)
            assert await snapshot.get() == 1

    async def test_past_stale_for_a_reader_waits_though_a_load_has_been_stuck_since_before(self) -> None:
        source = Source()
        async with Snapshot(source.load, fresh_for=10, stale_for=5) as snapshot:
            await snapshot.get()
            source.seconds = 100
            await asyncio.sleep(12)
            assert await snapshot.get() == 0
            await asyncio.sleep(3)
            assert snapshot.peek() is None
            source.value = 1
            await snapshot.get()
            assert now() == pytest.approx(112)

    async def test_without_staleness_a_reader_waits_for_the_new_value(self) -> None:
        source = Source(1)
        async with Snapshot(source.load, fresh_for=10, stale_for=0) as snapshot:
            await snapshot.get()
            source.value = 1
            await asyncio.sleep(20)
            assert await snapshot.get() == 1

    async def test_max_age_asks_for_a_younger_value_than_the_snapshot_would_serve(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            await snapshot.get()
            source.value = 1
            await asyncio.sleep(9)
            assert await snapshot.get(max_age=11) == 0
            assert await snapshot.get(max_age=10) == 1

    async def test_max_age_zero_waits_for_a_load_that_starts_after_the_call(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            first = asyncio.create_task(snapshot.get())
            await asyncio.sleep(0.5)
            source.value = 1
            assert await snapshot.get(max_age=0) == 1
            assert await first == 0

    async def test_max_age_joins_a_load_under_way_that_is_young_enough(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            first = asyncio.create_task(snapshot.get())
            await asyncio.sleep(0.5)
            assert await snapshot.get(max_age=2) == 0
            await first
            assert len(source.starts) == 1

    @pytest.mark.every_loop
    async def test_cancelling_a_reader_hurts_neither_the_load_nor_the_others(self) -> None:
        source = Source(0.01)
        async with Snapshot(source.load) as snapshot:
            readers = [asyncio.create_task(snapshot.get()) for _ in range(2)]
            await turns()
            readers[0].cancel()
            assert await readers[1] == 0
            assert len(source.starts) == 1

    async def test_reading_inside_the_load_is_an_error(self) -> None:
        async def load() -> Any:
            return [await outcome(call) for call in (snapshot.get(), snapshot.refresh(), snapshot.aclose())]

        async with Snapshot(load) as snapshot:
            assert [type(error) for error in await snapshot.get()] == [SelfWaitError] * 3
            snapshot.peek()

    async def test_following_inside_the_load_is_an_error(self) -> None:
        async def load() -> Any:
            return await outcome(anext(snapshot.changes()))

        async with Snapshot(load) as snapshot:
            assert isinstance(await snapshot.get(), SelfWaitError)


class TestInvalidate:
    async def test_a_value_that_was_invalidated_is_stale(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            await snapshot.get()
            source.value = 1
            snapshot.invalidate()
            assert await snapshot.get() == 0
            await asyncio.sleep(2)
            assert await snapshot.get() == 1

    async def test_what_was_invalidated_during_its_load_serves_who_waited_and_is_not_fresh(self) -> None:
        source = Source(1)
        async with Snapshot(source.load, fresh_for=100) as snapshot:
            early = asyncio.create_task(snapshot.get())
            await asyncio.sleep(0.5)
            source.value = 1
            snapshot.invalidate()
            assert await early == 0
            peeked = snapshot.peek()
            assert peeked is not None
            assert not peeked.fresh
            assert await snapshot.get() == 0, "stale, and reloaded"
            await asyncio.sleep(2)
            assert await snapshot.get() == 1

    async def test_a_read_during_an_outdated_refresh_asks_for_another(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            await snapshot.get()
            snapshot.invalidate()
            await snapshot.get()
            await asyncio.sleep(0.5)
            source.value = 1
            snapshot.invalidate()
            for _ in range(5):
                assert await snapshot.get() == 0
            await asyncio.sleep(5)
            assert await snapshot.get() == 1
            assert len(source.starts) == 3

    async def test_without_serving_stale_readers_wait_for_a_load_that_starts_afterwards(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            early = asyncio.create_task(snapshot.get())
            await asyncio.sleep(0.5)
            source.value = 1
            snapshot.invalidate(serve_stale=False)
            assert snapshot.peek() is None
            late = asyncio.create_task(snapshot.get())
            assert await early == 0
            assert snapshot.peek() is None
            assert await late == 1
            snapshot.invalidate(serve_stale=False)
            assert await snapshot.get() == 1
            assert len(source.starts) == 3

    async def test_an_invalidation_between_the_start_of_the_run_and_of_its_load_costs_nothing(self) -> None:
        source = Source()
        async with Snapshot(source.load) as snapshot:
            reader = asyncio.create_task(snapshot.get())
            await until(lambda: snapshot._loads.running)
            if not source.starts:
                snapshot.invalidate(serve_stale=False)
                assert await snapshot.get() == 0
            await reader
            assert len(source.starts) == 1


class TestFailure:
    async def test_a_failed_refresh_keeps_the_old_value_backs_off_and_is_visible(self) -> None:
        errors: list[Exception] = []
        source = Source()
        async with Snapshot(source.load, fresh_for=10, error_backoff=5, on_error=errors.append) as snapshot:
            await snapshot.get()
            source.failing = True
            await asyncio.sleep(10)
            for _ in range(9):
                assert await snapshot.get() == 0
                await asyncio.sleep(1)
            assert source.starts == pytest.approx([0, 10, 15])
            assert isinstance(snapshot.last_error, JobError)
            assert errors[-1] is snapshot.last_error
            assert snapshot.statistics().failures == 2
            source.failing, source.value = False, 1
            await asyncio.sleep(5)
            await snapshot.get()
            await asyncio.sleep(1)
            assert await snapshot.get() == 1
            assert snapshot.last_error is None

    async def test_with_nothing_to_serve_the_error_goes_to_all_readers_and_to_those_during_the_backoff(self) -> None:
        source = Source(1)
        source.failing = True
        async with Snapshot(source.load, error_backoff=5) as snapshot:
            got = await asyncio.gather(*(snapshot.get() for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in got] == [JobError] * 3
            assert await outcome(snapshot.get()) is snapshot.last_error
            assert now() == 1
            source.failing = False
            assert await snapshot.refresh() == 0, "whoever asks for it gets a load"
            assert len(source.starts) == 2

    async def test_after_the_backoff_a_reader_tries_again(self) -> None:
        source = Source()
        source.failing = True
        async with Snapshot(source.load, error_backoff=5) as snapshot:
            await outcome(snapshot.get())
            source.failing = False
            await asyncio.sleep(5)
            assert await snapshot.get() == 0

    async def test_a_load_that_takes_too_long_is_a_timeout_that_says_so(self) -> None:
        source = Source(100)
        async with Snapshot(source.load, timeout=2, name="prices") as snapshot:
            with pytest.raises(LoaderTimeoutError, match=r"prices.*2 s"):
                await snapshot.get()
            assert now() == 2
            assert isinstance(snapshot.last_error, LoaderTimeoutError)

    async def test_a_timeout_of_the_load_itself_stays_what_it_is(self) -> None:
        async def load() -> None:
            raise TimeoutError("the driver's")

        async with Snapshot(load, timeout=2) as snapshot:
            with pytest.raises(TimeoutError, match="the driver's"):
                await snapshot.get()

    async def test_a_load_that_lets_a_cancellation_out_is_backed_off_too(self) -> None:
        async def load() -> None:
            loads.append(1)
            raise asyncio.CancelledError

        loads: list[int] = []
        async with Snapshot(load) as snapshot:
            for _ in range(3):
                assert isinstance(await outcome(snapshot.get()), RunCancelledError)
            assert loads == [1]
            assert isinstance(snapshot.last_error, RunCancelledError)
            assert snapshot.statistics().failures == 1

    @pytest.mark.logs
    async def test_without_on_error_a_background_failure_is_reported_to_the_loop(self, reports: list[str]) -> None:
        source = Source()
        async with Snapshot(source.load, name="prices") as snapshot:
            await snapshot.get()
            source.failing = True
            snapshot.invalidate()
            await snapshot.get()
            await asyncio.sleep(1)
            assert len(reports) == 1
            assert "prices" in reports[0]

    async def test_reading_an_error_again_and_again_does_not_make_it_grow(self) -> None:
        async with Snapshot(Job(then=fail), error_backoff=100) as snapshot:
            for _ in range(100):
                await outcome(snapshot.get())
            depth, trace = 0, snapshot.last_error and snapshot.last_error.__traceback__
            while trace:
                depth, trace = depth + 1, trace.tb_next
            assert depth < 12


class TestChanges:
    @staticmethod
    async def follow(changes: AsyncIterator[int], log: list[tuple[float, int]], delay: float = 0) -> None:
        async for value in changes:
            log.append((round(now(), 6), value))
            await asyncio.sleep(delay)

    async def test_a_follower_gets_the_value_and_then_each_new_one(self) -> None:
        source = Source()
        log: list[tuple[float, int]] = []
        async with Snapshot(source.load) as snapshot:
            following = asyncio.create_task(self.follow(snapshot.changes(), log))
            for value in range(1, 4):
                await asyncio.sleep(1)
                source.value = value
                snapshot.invalidate()
            await asyncio.sleep(1)
        await following
        assert log == [(0, 0), (1, 1), (2, 2), (3, 3)]

    @pytest.mark.parametrize("stale_for", [0, 0.01, None])
    async def test_values_that_take_longer_to_load_than_they_may_be_served_come_all_the_same(
        self, stale_for: float | None
    ) -> None:
        source = Source(2)
        log: list[tuple[float, int]] = []
        async with Snapshot(source.load, fresh_for=1, stale_for=stale_for) as snapshot:
            following = asyncio.create_task(self.follow(snapshot.changes(), log))
            for value in range(1, 4):
                await asyncio.sleep(2)
                source.value = value
        await following
        assert [value for _, value in log] == [0, 1, 2]
        assert [when for when, _ in log] == [2, 4, 6]

    async def test_a_value_that_may_not_be_served_does_not_come_because_the_snapshot_is_closed(self) -> None:
        source = Source()
        log: list[tuple[float, int]] = []
        async with Snapshot(source.load, fresh_for=1, stale_for=0) as snapshot:
            assert await snapshot.get() == 0
            await asyncio.sleep(5)
            source.seconds = 10
            following = asyncio.create_task(self.follow(snapshot.changes(), log))
            await asyncio.sleep(1)
        await following
        assert log == []

    async def test_it_is_reloaded_without_any_reader_while_somebody_follows(self) -> None:
        source = Source(1)
        log: list[tuple[float, int]] = []
        async with Snapshot(source.load, fresh_for=10) as snapshot:
            following = asyncio.create_task(self.follow(snapshot.changes(), log))
            await asyncio.sleep(25)
            following.cancel()
            await turns()
        assert source.starts == pytest.approx([0, 10, 20])
        assert [time for time, _ in log] == pytest.approx([1, 11, 21])

    async def test_a_load_slower_than_its_freshness_is_repeated_without_end_while_somebody_follows(self) -> None:
        source = Source(3)
        log: list[tuple[float, int]] = []
        async with Snapshot(source.load, fresh_for=1) as snapshot:
            following = asyncio.create_task(self.follow(snapshot.changes(), log))
            await asyncio.sleep(10)
        await following
        assert [time for time, _ in log] == pytest.approx([3, 6, 9])

    async def test_a_failure_is_retried_for_followers_after_the_backoff(self) -> None:
        errors: list[Exception] = []
        source = Source()
        source.failing = True
        log: list[tuple[float, int]] = []
        async with Snapshot(source.load, error_backoff=2, on_error=errors.append) as snapshot:
            following = asyncio.create_task(self.follow(snapshot.changes(), log))
            await asyncio.sleep(3)
            source.failing = False
            await asyncio.sleep(3)
        await following
        assert source.starts == pytest.approx([0, 2, 4])
        assert len(errors) == 2
        assert log == [(4, 0)]

    async def test_a_slow_follower_gets_the_newest_value_and_misses_those_between(self) -> None:
        source = Source()
        log: list[tuple[float, int]] = []
        async with Snapshot(source.load) as snapshot:
            following = asyncio.create_task(self.follow(snapshot.changes(), log, delay=10))
            for source.value in range(1, 8):
                await asyncio.sleep(1)
                await snapshot.refresh()
            await asyncio.sleep(20)
        await following
        assert [value for _, value in log] == [1, 7]

    @pytest.mark.every_loop
    async def test_a_follower_that_is_closed_while_it_waits_ends(self) -> None:
        async with Snapshot(Source().load) as snapshot:
            changes, other = snapshot.changes(), snapshot.changes()
            assert [await anext(changes), await anext(other)] == [0, 0]
            waiting = asyncio.create_task(outcome(anext(changes)))
            await turns()
            await changes.aclose()
            assert isinstance(await waiting, RuntimeError | StopAsyncIteration)
            with pytest.raises(StopAsyncIteration):
                await anext(changes)
            await snapshot.refresh()
            assert await anext(other) == 0

    async def test_after_the_last_follower_is_closed_nothing_is_reloaded(self) -> None:
        source = Source()
        async with Snapshot(source.load, fresh_for=1) as snapshot:
            followers = [snapshot.changes() for _ in range(2)]
            for follower in followers:
                await anext(follower)
            for follower in followers:
                await follower.aclose()
            assert loops.timers(asyncio.get_running_loop()) == []
            await asyncio.sleep(10)
            assert len(source.starts) == 1

    async def test_a_follower_that_was_forgotten_is_forgotten(self) -> None:
        source = Source()
        async with Snapshot(source.load, fresh_for=1) as snapshot:
            await anext(snapshot.changes())
            gc.collect()
            await asyncio.sleep(10)
            assert len(source.starts) == 1

    async def test_cancelling_a_wait_loses_nothing(self) -> None:
        source = Source()
        async with Snapshot(source.load) as snapshot:
            changes = snapshot.changes()
            await anext(changes)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(changes), 1)
            source.value = 1
            await snapshot.refresh()
            assert await anext(changes) == 1
            await changes.aclose()

    async def test_when_the_snapshot_is_closed_the_last_value_comes_and_then_the_end(self) -> None:
        source = Source()
        snapshot = Snapshot(source.load)
        changes = snapshot.changes()
        assert aiter(changes) is changes
        await anext(changes)
        source.value = 1
        await snapshot.refresh()
        await snapshot.aclose()
        assert [value async for value in changes] == [1]
        assert [value async for value in snapshot.changes()] == [1]

    async def test_it_starts_with_a_stale_value_and_reloads_it(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            await snapshot.get()
            snapshot.invalidate()
            source.value = 1
            changes = snapshot.changes()
            assert [await anext(changes), await anext(changes)] == [0, 1]
            assert now() == 2
            await changes.aclose()

    async def test_a_value_that_must_not_be_served_is_not_shown_to_followers(self) -> None:
        source = Source(1)
        async with Snapshot(source.load) as snapshot:
            await snapshot.get()
            snapshot.invalidate(serve_stale=False)
            source.value = 1
            changes = snapshot.changes()
            assert await anext(changes) == 1
            await changes.aclose()

    async def test_an_outdated_load_is_followed_by_another_for_followers(self) -> None:
        source = Source(1)
        log: list[tuple[float, int]] = []
        async with Snapshot(source.load) as snapshot:
            following = asyncio.create_task(self.follow(snapshot.changes(), log))
            await asyncio.sleep(0.5)
            source.value = 1
            snapshot.invalidate()
            await asyncio.sleep(5)
        await following
        assert log == [(1, 0), (2, 1)]

    async def test_it_is_what_a_graphql_subscription_returns(self) -> None:
        @strawberry.type
        class Query:
            unused: int = 0

        @strawberry.type
        class Subscription:
            @strawberry.subscription
            async def flights(self) -> AsyncIterator[int]:
                return snapshot.changes()

        source = Source()
        schema = strawberry.Schema(Query, subscription=Subscription)
        async with Snapshot(source.load) as snapshot:
            results = await schema.subscribe("subscription { flights }")
            got = [(await anext(results)).data]
            source.value = 1
            snapshot.invalidate()
            got.append((await anext(results)).data)
            assert got == [{"flights": 0}, {"flights": 1}]
            await results.aclose()
            assert not snapshot._followers


class TestClose:
    async def test_closing_cancels_the_load_and_tells_who_waits(self) -> None:
        job = Job(10)
        snapshot = Snapshot(job)
        waiting = [asyncio.create_task(outcome(snapshot.get()))]
        await asyncio.sleep(1)
        waiting.append(asyncio.create_task(outcome(snapshot.get(max_age=0))))
        await asyncio.sleep(1)
        await snapshot.aclose()
        await snapshot.aclose()
        errors = [await reader for reader in waiting]
        assert [type(error) for error in errors] == [RunCancelledError, LoaderClosedError]
        for error in errors:
            assert str(error).startswith("<Snapshot Job: closed> was closed before the load was over"), "not of runs"
        assert job.cancelled == 1
        assert now() == 2

    async def test_after_closing_the_last_value_stays_readable_and_nothing_is_loaded(self) -> None:
        source = Source()
        snapshot = Snapshot(source.load, name="prices")
        await snapshot.get()
        await snapshot.aclose()
        snapshot.invalidate()
        assert await snapshot.get() == 0
        assert snapshot.peek() is not None
        for call in (snapshot.refresh(), snapshot.get(max_age=0)):
            with pytest.raises(LoaderClosedError, match="prices"):
                await call
        assert len(source.starts) == 1
        assert repr(snapshot) == "<Snapshot prices: closed>"

    async def test_closing_ends_those_who_wait_for_changes(self) -> None:
        snapshot = Snapshot(Source().load, fresh_for=10)
        changes = snapshot.changes()
        await anext(changes)
        waiting = asyncio.create_task(outcome(anext(changes)))
        await turns()
        await snapshot.aclose()
        await waiting
        assert loops.timers(asyncio.get_running_loop()) == []


async def test_loads_run_in_the_context_in_which_the_snapshot_was_made() -> None:
    async def load() -> str:
        return variable.get()

    variable = contextvars.ContextVar("variable", default="")
    variable.set("made")
    async with Snapshot(load) as snapshot:
        variable.set("request")
        assert await snapshot.get() == "made"


def test_on_the_next_loop_it_starts_without_a_value() -> None:
    async def use() -> Any:
        assert snapshot.peek() is None
        return await snapshot.get()

    job = Job()
    snapshot = Snapshot(job)
    assert [loops.run(use), loops.run(use)] == [1, 2]


def test_on_the_next_loop_a_follower_need_not_wait_for_what_the_last_one_backed_off_from() -> None:
    async def breaks_down() -> None:
        assert isinstance(await outcome(snapshot.get()), JobError)

    async def follow() -> Any:
        source.failing = False
        changes = snapshot.changes()
        first = await anext(changes)
        await changes.aclose()
        return first, now()

    source = Source()
    source.failing = True
    snapshot = Snapshot(source.load, error_backoff=100)
    loops.run(breaks_down)
    assert loops.run(follow) == (0, 0)


def test_without_a_loop_it_refuses() -> None:
    snapshot = Snapshot(Job())
    for call in (snapshot.peek, snapshot.invalidate):
        with pytest.raises(LoaderLoopError):
            call()
    assert snapshot.last_error is None
    assert repr(snapshot) == "<Snapshot Job: empty>"


async def test_the_repr_tells_the_version() -> None:
    async with Snapshot(Job(), name="prices") as snapshot:
        await snapshot.get()
        await snapshot.refresh()
        assert repr(snapshot) == "<Snapshot prices: version 2>"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fresh_for": -1}, "fresh_for takes a number"),
        ({"stale_for": float("nan")}, "stale_for takes a number"),
        ({"timeout": -1}, "timeout takes a number"),
        ({"error_backoff": -1}, "error_backoff takes a number"),
        ({"fresh_for": 0}, "without a pause"),
        ({"error_backoff": 0}, "without a pause"),
    ],
)
def test_times_that_make_no_sense_are_refused(options: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Snapshot(Job(), **options)


@pytest.mark.parametrize(
    "options",
    [{"fresh_for": "60"}, {"stale_for": Decimal(1)}, {"timeout": True}, {"error_backoff": None}],
    ids=lambda options: next(iter(options)),
)
def test_times_that_are_no_numbers_are_refused(options: Any) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(options))} takes a number of seconds"):
        Snapshot(Job(), **options)


async def test_an_age_that_is_no_number_is_refused_before_anything_is_loaded() -> None:
    source = Source()
    async with Snapshot(source.load) as snapshot:
        with pytest.raises(TypeError, match="max_age takes a number of seconds"):
            await snapshot.get(max_age="1")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_age takes a number of seconds"):
            await snapshot.get(max_age=-1)
    assert source.starts == []


def test_what_is_no_async_function_is_refused() -> None:
    with pytest.raises(TypeError, match="Snapshot needs an async function"):
        Snapshot(3)  # type: ignore[arg-type]
