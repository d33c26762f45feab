"""Keyed: one trigger for each key that has work."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import tracemalloc
import weakref
from typing import Any

import pytest

from loader._coalescer import Coalescer
from loader._debouncer import Debouncer
from loader._keyed import Keyed
from loader.errors import LoaderClosedError, LoaderLoopError, RunCancelledError, SelfWaitError
from tests import loops
from tests.jobs import Job, JobError, fail, outcome, turns


def debounced(fn: Any) -> Debouncer[Any]:
    return Debouncer(fn, wait=0.01, max_wait=0.1)


def coalesced(fn: Any) -> Coalescer[Any]:
    return Coalescer(fn)


policies = pytest.mark.parametrize("policy", [debounced, coalesced])


@policies
@pytest.mark.every_loop
async def test_each_key_runs_for_itself_and_knows_its_key(policy: Any) -> None:
    job = Job(0.01)
    async with Keyed(job, policy) as keyed:
        for key in ["a", "b", "a", None]:
            keyed.trigger(key)
        assert keyed.pending
        assert sorted(keyed.keys(), key=str) == [None, "a", "b"]
        await keyed.wait_idle()
        assert sorted(job.keys, key=str) == [None, "a", "b"]
        assert (keyed.pending, keyed.running, keyed.keys()) == (False, False, [])


@policies
@pytest.mark.every_loop
async def test_request_returns_the_result_of_the_key(policy: Any) -> None:
    async def double(number: int) -> int:
        return 2 * number

    async with Keyed(double, policy) as keyed:
        assert await asyncio.gather(*(keyed.request(number) for number in (1, 2, 1))) == [2, 4, 2]


@policies
async def test_a_key_is_forgotten_as_soon_as_it_is_idle(policy: Any) -> None:
    class Key:
        pass

    async def fn(key: object) -> None: ...

    async with Keyed(fn, policy) as keyed:
        key = Key()
        ref = weakref.ref(key)
        gc.disable()  # nothing may depend on the cycle collector
        try:
            await keyed.request(key)
            await turns()
            assert (keyed._busy, keyed._resting) == ({}, {})
            del key
            assert ref() is None
        finally:
            gc.enable()


@policies
@pytest.mark.parametrize("count", [5_000])
def test_many_keys_leave_no_entry_behind(policy: Any, count: int) -> None:
    async def fn(key: int) -> None: ...

    async def main() -> None:
        async with Keyed(fn, policy) as keyed:
            tracemalloc.start()
            try:
                for key in range(0, count, 1000):
                    for part in range(1000):
                        keyed.trigger(key + part)
                    await keyed.wait_idle()
                    if key == 0:
                        gc.collect()
                        tracemalloc.clear_traces()
                gc.collect()
                assert tracemalloc.get_traced_memory()[0] < 1_000_000
            finally:
                tracemalloc.stop()
            assert (keyed._busy, keyed._resting) == ({}, {})
            assert keyed.statistics().runs == count

    loops.run(main, debug=False)


@policies
async def test_failures_go_where_the_policy_says(policy: Any) -> None:
    errors: list[Exception] = []
    async with Keyed(Job(then=fail), lambda fn: Coalescer(fn, on_error=errors.append)) as keyed:
        keyed.trigger(1)
        await keyed.flush()
        assert isinstance(await outcome(keyed.request(2)), JobError)
        assert len(errors) == 1
        assert keyed.keys() == []


async def test_flush_and_cancel_take_one_key_or_all() -> None:
    job = Job()
    async with Keyed(job, lambda fn: Debouncer(fn, wait=10)) as keyed:
        for key in "abcd":
            keyed.trigger(key)
        await keyed.flush("a")
        assert job.keys == ["a"]
        assert keyed.cancel("b")
        assert not keyed.cancel("nobody")
        assert keyed.keys() == ["c", "d"]
        await keyed.flush("nobody")
        await keyed.flush()
        assert job.keys == ["a", "c", "d"]
        assert not keyed.cancel()
        request = asyncio.create_task(outcome(keyed.request("e")))
        await asyncio.sleep(0)
        assert keyed.cancel()
        assert isinstance(await request, RunCancelledError)
        assert keyed.keys() == []
    assert asyncio.get_running_loop().time() == 0


async def test_flush_waits_for_the_slowest_of_its_runs() -> None:
    async def fn(key: float) -> None:
        await asyncio.sleep(key)

    async with Keyed(fn, coalesced) as keyed:
        for key in (3, 1, 2):
            keyed.trigger(key)
        await keyed.flush()
        assert asyncio.get_running_loop().time() == 3


async def test_statistics_are_those_of_all_keys_forgotten_ones_included() -> None:
    async with Keyed(Job(), debounced) as keyed:
        for key in (1, 1, 2):
            keyed.trigger(key)
        await keyed.wait_idle()
        keyed.trigger(3)
        keyed.trigger(3)
        assert keyed.statistics().received == 5
        keyed.cancel(3)
        got = keyed.statistics()
        assert (got.received, got.runs, got.merged, got.dropped) == (5, 2, 1, 2)
        assert got.delay.count == got.run_time.count == 2


class TestMemoryOfTheLastRun:
    async def test_min_interval_holds_for_a_key_though_it_was_idle_in_between(self) -> None:
        job = Job()
        async with Keyed(job, lambda fn: Coalescer(fn, min_interval=3)) as keyed:
            for _ in range(3):
                keyed.trigger("a")
                await asyncio.sleep(1.1)
            assert keyed.keys() == []
            await asyncio.sleep(4.7)
            keyed.trigger("a")
            await keyed.wait_idle()
            assert job.starts == pytest.approx([0, 3, 8])
            assert len(keyed._resting) == 1
            await asyncio.sleep(4)
            assert keyed._resting == {}

    async def test_a_leading_run_is_remembered_for_its_window(self) -> None:
        job = Job()
        async with Keyed(job, lambda fn: Debouncer(fn, wait=1, leading=True)) as keyed:
            keyed.trigger("a")
            await asyncio.sleep(0.5)
            assert keyed.keys() == []
            keyed.trigger("a")
            await keyed.wait_idle()
        assert job.starts == pytest.approx([0, 1.5])

    async def test_closing_leaves_no_timer_of_a_memory(self) -> None:
        keyed = Keyed(Job(), lambda fn: Coalescer(fn, min_interval=3))
        await keyed.request("a")
        await keyed.wait_idle()
        keyed.trigger("b")
        await keyed.aclose()
        assert loops.timers(asyncio.get_running_loop()) == []


class TestClose:
    @policies
    @pytest.mark.every_loop
    async def test_closing_runs_what_is_pending_for_every_key(self, policy: Any) -> None:
        job = Job(0.01)
        keyed = Keyed(job, policy)
        keyed.trigger("a")
        await asyncio.sleep(0.005)
        for key in "ab":
            keyed.trigger(key)
        await keyed.aclose()
        await keyed.aclose()
        assert set(job.keys) == {"a", "b"}
        assert len(job.ends) == job.runs
        with pytest.raises(LoaderClosedError):
            keyed.trigger("a")
        with pytest.raises(LoaderClosedError):
            await keyed.request("c")
        assert not keyed.trigger_threadsafe("a")
        assert repr(keyed) == "<Keyed Job: closed>"

    async def test_closing_without_flush_drops(self) -> None:
        job = Job()
        keyed = Keyed(job, debounced)
        request = asyncio.create_task(outcome(keyed.request("a")))
        await asyncio.sleep(0)
        await keyed.aclose(flush=False)
        assert isinstance(await request, LoaderClosedError)
        assert job.runs == 0

    async def test_past_its_timeout_closing_cancels_the_runs_and_reports_them(self) -> None:
        errors: list[Exception] = []
        job = Job(10)
        keyed = Keyed(job, lambda fn: Coalescer(fn, on_error=errors.append))
        for key in "ab":
            keyed.trigger(key)
        await asyncio.sleep(1)
        keyed.trigger("a")
        await keyed.aclose(timeout=1)
        assert (job.runs, job.cancelled) == (2, 2)
        assert [type(error) for error in errors] == [RunCancelledError] * 2

    async def test_a_closing_that_is_cancelled_still_closes(self) -> None:
        job = Job(10)
        keyed = Keyed(job, coalesced)
        keyed.trigger("a")
        await asyncio.sleep(1)
        closing = asyncio.create_task(keyed.aclose())
        await turns()
        closing.cancel()
        await turns()
        assert job.cancelled == 1
        assert keyed.keys() == []


class TestSelfWait:
    async def test_a_run_may_wait_for_another_key_but_not_for_its_own_or_for_all(self) -> None:
        async def fn(key: str) -> str:
            if key == "a":
                assert await keyed.request("b") == "b"
                got.extend(
                    [
                        await outcome(wait)
                        for wait in (keyed.request("a"), keyed.flush(), keyed.wait_idle(), keyed.aclose())
                    ]
                )
                keyed.trigger("c")
            return key

        got: list[Any] = []
        async with Keyed(fn, coalesced) as keyed:
            assert await keyed.request("a") == "a"
            assert [type(error) for error in got] == [SelfWaitError] * 4

    async def test_two_keys_that_wait_for_one_another_are_a_circle(self) -> None:
        async def fn(key: str) -> Any:
            return await keyed.request("b" if key == "a" else "a")

        async with Keyed(fn, coalesced) as keyed:
            assert isinstance(await outcome(keyed.request("a")), SelfWaitError)


class TestThreads:
    @pytest.mark.real_time
    @policies
    async def test_keys_from_other_threads_are_counted_and_run(self, policy: Any) -> None:
        def ring(key: str) -> None:
            for _ in range(100):
                assert keyed.trigger_threadsafe(key)

        job = Job()
        async with Keyed(job, policy) as keyed:
            await keyed.request("start")
            await asyncio.gather(*(asyncio.to_thread(ring, key) for key in "abab"))
            await keyed.wait_idle()
            assert {"a", "b"} <= set(job.keys)
            assert keyed.statistics().received == 401

    async def test_what_was_accepted_before_closing_is_applied(self) -> None:
        job = Job()
        async with Keyed(job, debounced) as keyed:
            keyed.trigger_threadsafe("a")
            assert keyed.pending
        assert job.keys == ["a"]

    @pytest.mark.logs
    async def test_a_policy_that_fails_for_one_key_does_not_lose_the_others(self, reports: list[str]) -> None:
        def policy(fn: Any) -> Any:
            if fn.args != ("good",):
                raise LookupError("no policy for this")
            return Coalescer(fn)

        job = Job()
        async with Keyed(job, policy) as keyed:
            for key in ("bad", "good", "worse", "worse"):
                keyed.trigger_threadsafe(key)
            await keyed.wait_idle()
            assert job.keys == ["good"]
            assert "'bad'" in reports[0]
            assert "'worse'" in reports[1]
            assert keyed.statistics().dropped == 3
            with pytest.raises(LookupError):
                keyed.trigger("bad")
            assert keyed.keys() == []

    def test_before_it_knows_its_loop_it_cannot_be_triggered_from_a_thread(self) -> None:
        with pytest.raises(LoaderLoopError):
            Keyed(Job(), coalesced).trigger_threadsafe("a")


async def test_the_triggers_are_made_in_the_context_of_the_keyed_one() -> None:
    async def fn(key: str) -> str:
        return variable.get()

    variable = contextvars.ContextVar("variable", default="")
    variable.set("made")
    async with Keyed(fn, coalesced) as keyed:
        variable.set("request")
        assert await keyed.request("a") == "made"


def test_on_the_next_loop_it_starts_clean() -> None:
    async def leave() -> None:
        keyed.trigger("left")
        keyed.trigger_threadsafe("left, too")
        await asyncio.sleep(0)

    async def use() -> None:
        assert await keyed.request("a") == 1
        assert keyed.keys() == []

    job = Job()
    keyed = Keyed(job, lambda fn: Debouncer(fn, wait=5))
    for _ in range(2):
        loop = loops.new_loop()
        loop.run_until_complete(leave())
        loop.close()
    loops.run(use)
    assert keyed.statistics().dropped == 4


def test_a_key_that_was_pending_on_a_closed_loop_is_one_like_any_other_on_the_next() -> None:
    async def leave() -> None:
        keyed.trigger("left")

    async def use() -> None:
        for key in ("left", "new"):
            keyed.trigger(key)
        assert keyed.keys() == ["left", "new"]
        await keyed.aclose()

    job = Job()
    keyed = Keyed(job, lambda fn: Debouncer(fn, wait=5))
    loop = loops.new_loop()
    loop.run_until_complete(leave())
    loop.close()
    loops.run(use)
    assert job.keys == ["left", "new"]


def test_without_a_loop_nothing_is_made() -> None:
    keyed = Keyed(Job(), coalesced, name="by airport")
    with pytest.raises(LoaderLoopError, match="by airport"):
        keyed.trigger("a")
    assert keyed.keys() == []


async def test_a_policy_must_be_a_function_that_makes_a_new_trigger_each_time() -> None:
    with pytest.raises(TypeError, match="policy makes the trigger"):
        Keyed(Job(), Coalescer(Job()))  # type: ignore[arg-type]
    async with Keyed(Job(), lambda fn: 3) as keyed:  # type: ignore[arg-type,return-value]
        with pytest.raises(TypeError, match="new Debouncer or Coalescer"):
            keyed.trigger("a")
    one = Coalescer(Job())
    async with Keyed(Job(), lambda fn: one) as keyed:
        keyed.trigger("a")
        with pytest.raises(TypeError, match="new Debouncer or Coalescer"):
            keyed.trigger("b")


async def test_a_key_that_is_not_hashable_is_refused() -> None:
    async with Keyed(Job(), coalesced) as keyed:
        for call in (keyed.trigger, keyed.trigger_threadsafe):
            with pytest.raises(TypeError, match="unhashable"):
                call([])


async def test_an_on_error_that_triggers_its_key_again_finds_it() -> None:
    async def fails_once() -> None:
        if job.runs == 1:
            raise JobError

    job = Job(then=fails_once)
    async with Keyed(job, lambda fn: Coalescer(fn, on_error=lambda error: keyed.trigger("a"))) as keyed:
        keyed.trigger("a")
        await keyed.wait_idle()
    assert job.keys == ["a", "a"]


async def test_a_trigger_whose_place_was_taken_cannot_forget_its_successor() -> None:
    job = Job(5)

    def on_error(error: Exception) -> None:
        keyed.trigger("a")

    async with Keyed(job, lambda fn: Coalescer(fn, on_error=on_error)) as keyed:
        keyed.trigger("a")
        await asyncio.sleep(1)
        first = keyed._busy["a"]
        keyed.trigger("a")
        assert first._current is not None
        first._current.cut_short(JobError())
        await turns()
        assert keyed._busy["a"] is not first
        job.seconds = 0
    assert job.runs == 2


def test_the_repr_of_the_default_key() -> None:
    from loader._keyed import EVERY

    assert repr(EVERY) == "<every key>"


async def test_made_in_a_coroutine_it_takes_its_first_trigger_from_a_thread() -> None:
    job = Job()
    taken: list[bool] = []
    keyed = Keyed(job, coalesced)
    thread = threading.Thread(target=lambda: taken.append(keyed.trigger_threadsafe("a")))
    thread.start()
    thread.join()
    assert taken == [True]
    await keyed.aclose()
    assert job.keys == ["a"]


async def test_a_timeout_that_makes_no_sense_is_refused_before_anything_is_closed() -> None:
    job = Job()
    async with Keyed(job, coalesced) as keyed:
        with pytest.raises(TypeError, match="timeout takes a number of seconds"):
            await keyed.aclose(timeout="1")  # type: ignore[arg-type]
        assert await keyed.request("a") == 1
