"""The core that Debouncer and Coalescer share: every behaviour here holds for both."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import sys
import traceback
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from loader._coalescer import Coalescer
from loader._debouncer import Debouncer
from loader.errors import (
    LoaderClosedError,
    LoaderLoopError,
    RunCancelledError,
    SelfWaitError,
)
from tests import loops
from tests.jobs import Job, JobError, fail, outcome, turns, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader._runs import Trigger

WAIT = 0.01


def debounced(fn: Any, **options: Any) -> Trigger[Any]:
    return Debouncer(fn, wait=WAIT, **options)


def coalesced(fn: Any, **options: Any) -> Trigger[Any]:
    return Coalescer(fn, **options)


@pytest.fixture(params=[debounced, coalesced])
def make(request: pytest.FixtureRequest) -> Callable[..., Trigger[Any]]:
    return request.param  # type: ignore[no-any-return]


class TestTrigger:
    @pytest.mark.every_loop
    async def test_triggers_of_one_turn_make_one_run(self, make: Any) -> None:
        job = Job()
        async with make(job) as trigger:
            for _ in range(10):
                trigger.trigger()
            await trigger.wait_idle()
            assert job.runs == 1

    @pytest.mark.every_loop
    async def test_nothing_runs_inside_the_call_itself(self, make: Any) -> None:
        job = Job()
        async with make(job) as trigger:
            trigger.trigger()
            assert job.runs == 0
            assert trigger.pending
            assert not trigger.running

    @pytest.mark.every_loop
    async def test_a_trigger_during_a_run_makes_one_more(self, make: Any) -> None:
        job = Job(0.01)
        async with make(job) as trigger:
            trigger.trigger()
            await until(lambda: trigger.running)
            for _ in range(5):
                trigger.trigger()
            assert trigger.pending
            await trigger.wait_idle()
            assert job.runs == 2

    @pytest.mark.every_loop
    async def test_a_trigger_in_the_first_step_of_a_run_means_again(self, make: Any) -> None:
        async def fn() -> None:
            log.append(trigger.pending)
            if len(log) == 1:
                trigger.trigger()

        log: list[bool] = []
        async with make(fn) as trigger:
            trigger.trigger()
            await trigger.wait_idle()
            assert log == [False, False]

    @pytest.mark.every_loop
    async def test_a_run_under_way_is_never_cancelled_by_a_trigger(self, make: Any) -> None:
        job = Job(0.03)
        async with make(job) as trigger:
            for _ in range(20):
                trigger.trigger()
                await asyncio.sleep(0.005)
            await trigger.wait_idle()
            assert job.cancelled == 0
            assert job.runs >= 2 or make is debounced

    async def test_a_run_lives_though_nobody_holds_on_to_the_object(self, make: Any) -> None:
        async def fn() -> None:
            future = asyncio.get_running_loop().create_future()
            futures.append(weakref.ref(future))
            await future
            done.append(True)

        futures: list[weakref.ref[asyncio.Future[None]]] = []
        done: list[bool] = []
        make(fn).trigger()
        await asyncio.sleep(WAIT * 2)
        gc.collect()
        future = futures[0]()
        assert future is not None
        future.set_result(None)
        await turns()
        assert done == [True]


class TestRequest:
    @pytest.mark.every_loop
    async def test_request_returns_what_the_function_returned(self, make: Any) -> None:
        async with make(Job()) as trigger:
            assert await trigger.request() == 1
            assert await trigger.request() == 2

    @pytest.mark.every_loop
    async def test_request_does_not_take_the_result_of_a_run_that_had_started(self, make: Any) -> None:
        job = Job(0.02)
        async with make(job) as trigger:
            trigger.trigger()
            await until(lambda: trigger.running)
            assert await trigger.request() == 2

    @pytest.mark.every_loop
    async def test_all_requests_before_a_run_share_it(self, make: Any) -> None:
        async with make(Job()) as trigger:
            assert await asyncio.gather(*(trigger.request() for _ in range(100))) == [1] * 100

    @pytest.mark.every_loop
    async def test_a_failure_reaches_all_who_wait_and_nobody_else(self, make: Any) -> None:
        async with make(Job(then=fail), on_error=lambda error: pytest.fail("reported twice")) as trigger:
            got = await asyncio.gather(*(trigger.request() for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in got] == [JobError] * 3

    async def test_a_failure_raised_to_many_keeps_the_traceback_of_the_job_only(self, make: Any) -> None:
        async with make(Job(then=fail)) as trigger:
            got = [*await asyncio.gather(*(trigger.request() for _ in range(50)), return_exceptions=True)]
            frames = [frame.name for frame in traceback.extract_tb(got[-1].__traceback__)]
            assert frames[-1] == "fail"
            assert len(frames) < 10

    @pytest.mark.every_loop
    async def test_cancelling_one_caller_leaves_the_others_waiting(self, make: Any) -> None:
        async with make(Job(0.01)) as trigger:
            first, second = (asyncio.create_task(trigger.request()) for _ in range(2))
            await turns()
            first.cancel()
            assert await second == 1
            assert first.cancelled()

    @pytest.mark.every_loop
    async def test_the_run_takes_place_though_every_caller_is_cancelled(self, make: Any) -> None:
        job = Job(0.01)
        async with make(job) as trigger:
            for delay in (0, 0.015):  # before the run, and in the middle of it
                caller = asyncio.create_task(trigger.request())
                await turns()
                await asyncio.sleep(delay)
                caller.cancel()
                await trigger.wait_idle()
            assert (job.runs, job.cancelled) == (2, 0)

    async def test_callers_that_left_leave_nothing_behind(self, make: Any) -> None:
        gate = asyncio.Event()
        async with make(Job(then=gate.wait)) as trigger:
            trigger.trigger()
            await asyncio.sleep(WAIT * 2)
            for _ in range(10):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(trigger.request(), 0.1)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(trigger.flush(), 0.1)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(trigger.wait_idle(), 0.1)
            assert trigger._pending is not None
            assert trigger._pending.callers == 0
            assert not trigger._pending._over._waiting
            assert not trigger._idle._waiting
            gate.set()


class TestErrors:
    @pytest.mark.every_loop
    async def test_an_error_that_nobody_waits_for_goes_to_on_error(self, make: Any) -> None:
        errors: list[Exception] = []
        async with make(Job(then=fail), on_error=errors.append) as trigger:
            trigger.trigger()
            await trigger.flush()
            assert [type(error) for error in errors] == [JobError]

    @pytest.mark.logs
    async def test_without_on_error_it_goes_to_the_loop_which_names_the_job(
        self, make: Any, reports: list[str]
    ) -> None:
        async with make(Job(then=fail), name="reindex") as trigger:
            trigger.trigger()
            await trigger.wait_idle()
            assert len(reports) == 1
            assert "reindex" in reports[0]
            assert "JobError" in reports[0]

    @pytest.mark.logs
    async def test_an_on_error_that_raises_is_reported_and_the_next_trigger_runs(
        self, make: Any, reports: list[str]
    ) -> None:
        def on_error(error: Exception) -> None:
            raise LookupError("in on_error")

        job = Job(then=fail)
        async with make(job, on_error=on_error) as trigger:
            for _ in range(2):
                trigger.trigger()
                await trigger.wait_idle()
        assert job.runs == 2
        assert [("on_error raised" in report, "LookupError" in report) for report in reports] == [(True, True)] * 2

    @pytest.mark.logs
    async def test_an_on_error_that_returns_a_coroutine_is_reported_together_with_the_error(
        self, make: Any, reports: list[str]
    ) -> None:
        async def on_error(error: Exception) -> None:
            pytest.fail("nobody awaits it")

        async with make(Job(then=fail), on_error=lambda error: on_error(error)) as trigger:
            trigger.trigger()
        assert len(reports) == 1
        assert "on_error raised for JobError" in reports[0]
        assert "on_error returned a coroutine" in reports[0]

    async def test_on_error_may_trigger_again_and_idle_comes_after_that(self, make: Any) -> None:
        async def fails_twice() -> None:
            if job.runs < 3:
                raise JobError

        job = Job(then=fails_twice)
        trigger: Trigger[Any] = make(job, on_error=lambda error: trigger.trigger())
        async with trigger:
            trigger.trigger()
            await trigger.wait_idle()
            assert job.runs == 3

    async def test_an_error_is_reported_when_its_only_caller_is_cancelled_in_the_same_turn(self, make: Any) -> None:
        async def fn() -> None:
            await gate.wait()
            raise JobError

        gate = asyncio.Event()
        errors: list[Exception] = []
        async with make(fn, on_error=errors.append) as trigger:
            callers = [asyncio.create_task(trigger.request()) for _ in range(2)]
            await asyncio.sleep(WAIT * 2)
            run = trigger._current
            gate.set()
            await until(lambda: run.ended)
            for caller in callers:
                caller.cancel()
            await asyncio.wait(callers)
            assert all(caller.cancelled() for caller in callers)
            assert [type(error) for error in errors] == [JobError]

    @pytest.mark.every_loop
    async def test_one_error_does_not_stop_the_pending_run(self, make: Any) -> None:
        async def fails_once() -> None:
            if job.runs == 1:
                trigger.trigger()
                raise JobError

        job = Job(then=fails_once)
        async with make(job, on_error=lambda error: None) as trigger:
            trigger.trigger()
            await trigger.wait_idle()
            assert job.runs == 2
            assert trigger.statistics().failures == 1

    @pytest.mark.every_loop
    async def test_a_cancelled_error_out_of_the_job_is_an_ordinary_exception_for_its_callers(self, make: Any) -> None:
        async def lets_a_cancellation_out() -> None:
            if job.runs == 1:
                sub = asyncio.ensure_future(asyncio.sleep(10))
                await asyncio.sleep(0)
                trigger.trigger()
                sub.cancel()
                await sub

        job = Job(then=lets_a_cancellation_out)
        async with make(job) as trigger:
            with pytest.raises(RunCancelledError, match="cancelled"):
                await trigger.request()
            await trigger.wait_idle()
            assert job.runs == 2
            assert trigger.statistics().cancelled == 1

    async def test_a_cancelled_error_out_of_the_job_is_reported_if_nobody_waits(self, make: Any) -> None:
        async def cancelled() -> None:
            raise asyncio.CancelledError

        errors: list[Exception] = []
        async with make(cancelled, on_error=errors.append) as trigger:
            trigger.trigger()
            await trigger.flush()
            assert [type(error) for error in errors] == [RunCancelledError]

    async def test_what_is_no_exception_reaches_the_callers_as_one(self, make: Any) -> None:
        class Odd(BaseException):
            pass

        async def fn() -> None:
            raise Odd

        async with make(fn) as trigger:
            with pytest.raises(RunCancelledError, match="Odd") as caught:
                await trigger.request()
            assert isinstance(caught.value.__cause__, Odd)

    async def test_a_plain_function_is_refused_with_words_when_it_runs(self, make: Any) -> None:
        async with make(lambda: 1, name="plain") as trigger:
            with pytest.raises(TypeError, match=r"plain.*async function.*returned 1"):
                await trigger.request()

    async def test_partials_methods_callables_and_functions_that_return_awaitables_run(self, make: Any) -> None:
        class Service:
            async def method(self) -> str:
                return "method"

            async def __call__(self) -> str:
                return "call"

        async def echo(text: str) -> str:
            return text

        for fn, result in [
            (Service().method, "method"),
            (Service(), "call"),
            (functools.partial(echo, "partial"), "partial"),
            (lambda: echo("lambda"), "lambda"),
        ]:
            async with make(fn) as trigger:
                assert await trigger.request() == result

    def test_what_certainly_is_no_async_function_is_refused_at_once(self, make: Any) -> None:
        async def agen() -> Any:
            yield

        def gen() -> Any:
            yield

        with pytest.raises(TypeError, match="not its result"):
            make("text")
        for fn in (agen, gen):
            with pytest.raises(TypeError, match="generator function"):
                make(fn)
        for on_error in (3, Job.__call__, Job(), functools.partial(Job())):
            with pytest.raises(TypeError, match="on_error"):
                make(Job(), on_error=on_error)


class TestFlush:
    @pytest.mark.every_loop
    async def test_flush_with_nothing_to_do_returns(self, make: Any) -> None:
        async with make(Job()) as trigger:
            await trigger.flush()
            await trigger.wait_idle()
        await trigger.flush()

    @pytest.mark.every_loop
    async def test_flush_waits_for_the_run_in_flight_and_the_pending_one(self, make: Any) -> None:
        job = Job(0.01)
        async with make(job) as trigger:
            trigger.trigger()
            await asyncio.sleep(0.015)
            trigger.trigger()
            await trigger.flush()
            assert len(job.ends) == 2
            trigger.trigger()
            await trigger.flush()
            assert len(job.ends) == 3

    async def test_flush_waits_for_the_run_in_flight_if_none_is_pending(self, make: Any) -> None:
        job = Job(1)
        async with make(job) as trigger:
            trigger.trigger()
            await asyncio.sleep(WAIT * 2)
            await trigger.flush()
            assert len(job.ends) == 1

    async def test_flush_returns_under_triggers_that_never_pause(self, make: Any) -> None:
        async def pester() -> None:
            while True:
                trigger.trigger()
                await asyncio.sleep(WAIT / 4)

        job = Job(0.03)
        async with make(job) as trigger:
            pest = asyncio.create_task(pester())
            await asyncio.sleep(0.1)
            before = len(job.ends)
            await trigger.flush()
            assert len(job.ends) > before
            pest.cancel()

    async def test_flush_does_not_raise_what_the_run_raised(self, make: Any) -> None:
        errors: list[Exception] = []
        async with make(Job(then=fail), on_error=errors.append) as trigger:
            trigger.trigger()
            await trigger.flush()
            assert len(errors) == 1

    @pytest.mark.every_loop
    async def test_cancelling_wait_idle_or_flush_hurts_nobody(self, make: Any) -> None:
        job = Job(0.01)
        async with make(job) as trigger:
            trigger.trigger()
            waiters = [asyncio.create_task(wait()) for wait in (trigger.flush, trigger.wait_idle) * 2]
            await turns(2)
            for waiter in waiters[:2]:
                waiter.cancel()
            await asyncio.wait(waiters)
            assert [waiter.cancelled() for waiter in waiters] == [True, True, False, False]
            assert (job.runs, job.cancelled) == (1, 0)


class TestCancel:
    @pytest.mark.every_loop
    async def test_cancel_drops_what_is_pending_and_says_so(self, make: Any) -> None:
        job = Job()
        async with make(job) as trigger:
            assert not trigger.cancel()
            trigger.trigger()
            assert trigger.cancel()
            assert not trigger.pending
            await turns()
        assert job.runs == 0
        assert trigger.statistics().dropped == 1

    @pytest.mark.every_loop
    async def test_cancel_leaves_the_run_in_flight_alone(self, make: Any) -> None:
        job = Job(0.02)
        async with make(job) as trigger:
            trigger.trigger()
            await until(lambda: trigger.running)
            trigger.trigger()
            assert trigger.cancel()
            await trigger.wait_idle()
        assert (job.runs, job.cancelled) == (1, 0)

    @pytest.mark.every_loop
    async def test_whoever_waits_for_what_cancel_drops_is_told(self, make: Any) -> None:
        async with make(Job()) as trigger:
            request = asyncio.create_task(outcome(trigger.request()))
            waiters = [asyncio.create_task(trigger.flush()), asyncio.create_task(trigger.wait_idle())]
            await asyncio.sleep(0)
            trigger.cancel()
            assert isinstance(await request, RunCancelledError)
            for waiter in waiters:
                await waiter


class TestClose:
    @pytest.mark.every_loop
    async def test_closing_runs_what_is_pending_at_once_and_exactly_once(self, make: Any) -> None:
        job = Job()
        trigger = make(job)
        trigger.trigger()
        await trigger.aclose()
        assert len(job.ends) == 1
        await asyncio.sleep(WAIT * 2)
        assert job.runs == 1

    @pytest.mark.every_loop
    async def test_closing_during_a_run_waits_for_it_and_for_the_pending_one(self, make: Any) -> None:
        job = Job(0.01)
        trigger = make(job)
        trigger.trigger()
        await until(lambda: trigger.running)
        trigger.trigger()
        await trigger.aclose()
        assert (job.runs, len(job.ends), job.cancelled) == (2, 2, 0)
        assert loops.timers(asyncio.get_running_loop()) == []

    @pytest.mark.every_loop
    async def test_closing_without_flush_drops_what_is_pending_and_lets_the_run_end(self, make: Any) -> None:
        job = Job(0.01)
        trigger = make(job)
        trigger.trigger()
        await until(lambda: trigger.running)
        request = asyncio.create_task(outcome(trigger.request()))
        idle = asyncio.create_task(trigger.wait_idle())
        await asyncio.sleep(0)
        await trigger.aclose(flush=False)
        assert isinstance(await request, LoaderClosedError)
        await idle
        assert (job.runs, len(job.ends), job.cancelled) == (1, 1, 0)

    @pytest.mark.every_loop
    async def test_after_closing_every_call_says_so_or_has_nothing_to_do(self, make: Any) -> None:
        trigger = make(Job())
        await trigger.aclose()
        await trigger.aclose()
        with pytest.raises(LoaderClosedError, match="Job"):
            trigger.trigger()
        with pytest.raises(LoaderClosedError):
            await trigger.request()
        assert not trigger.trigger_threadsafe()
        assert not trigger.cancel()
        await trigger.flush()
        await trigger.wait_idle()
        assert trigger.statistics().received == 0

    async def test_a_trigger_is_refused_from_the_start_of_closing(self, make: Any) -> None:
        job = Job(1)
        trigger = make(job)
        trigger.trigger()
        closing = asyncio.create_task(trigger.aclose())
        await turns()
        with pytest.raises(LoaderClosedError):
            trigger.trigger()
        await closing
        assert job.runs == 1

    async def test_past_its_timeout_closing_cancels_the_run_and_drops_the_rest(self, make: Any) -> None:
        errors: list[Exception] = []
        job = Job(10)
        trigger = make(job, on_error=errors.append)
        trigger.trigger()
        await asyncio.sleep(WAIT * 2)
        request = asyncio.create_task(outcome(trigger.request()))
        await asyncio.sleep(0)
        await trigger.aclose(timeout=1)
        assert asyncio.get_running_loop().time() == pytest.approx(1 + WAIT * 2)
        assert (job.runs, job.cancelled) == (1, 1)
        assert isinstance(await request, LoaderClosedError)
        assert [type(error) for error in errors] == [RunCancelledError]
        assert "1 s" in str(errors[0])

    async def test_a_caller_of_a_run_that_closing_cut_short_is_told(self, make: Any) -> None:
        trigger = make(Job(10))
        request = asyncio.create_task(outcome(trigger.request()))
        await asyncio.sleep(WAIT * 2)
        await trigger.aclose(timeout=1)
        assert isinstance(await request, RunCancelledError)

    async def test_closing_without_flush_and_time_cancels_at_once_and_silently(self, make: Any) -> None:
        job = Job(10)
        trigger = make(job)
        trigger.trigger()
        await asyncio.sleep(WAIT * 2)
        await trigger.aclose(flush=False, timeout=0)
        assert job.cancelled == 1

    async def test_a_timeout_costs_nothing_if_there_is_nothing_to_do(self, make: Any) -> None:
        await make(Job()).aclose(timeout=0)

    async def test_a_closing_that_is_cancelled_still_closes(self, make: Any) -> None:
        job = Job(10)
        trigger = make(job)
        trigger.trigger()
        await asyncio.sleep(WAIT * 2)
        trigger.trigger()
        closing = asyncio.create_task(trigger.aclose())
        await turns()
        closing.cancel()
        await turns()
        assert closing.cancelled()
        assert (job.runs, job.cancelled, trigger.pending, trigger.running) == (1, 1, False, False)

    async def test_a_closing_that_is_cancelled_does_not_hurt_another(self, make: Any) -> None:
        job = Job(1)
        trigger = make(job)
        trigger.trigger()
        closings = [asyncio.create_task(trigger.aclose()) for _ in range(2)]
        await turns()
        closings[0].cancel()
        await closings[1]
        assert (job.runs, job.cancelled) == (1, 0)

    async def test_closings_that_are_cancelled_one_after_the_other_close_with_the_last(self, make: Any) -> None:
        job = Job(1)
        trigger = make(job)
        trigger.trigger()
        closings = [asyncio.create_task(trigger.aclose()) for _ in range(3)]
        await turns()
        for closing in closings:
            assert job.cancelled == 0
            closing.cancel()
            await turns()
        assert (job.runs, job.cancelled, trigger.running) == (1, 1, False)

    async def test_cutting_short_what_has_not_started_drops_it(self, make: Any) -> None:
        trigger = make(Job())
        request = asyncio.create_task(outcome(trigger.request()))
        await asyncio.sleep(0)
        trigger._cut(None)
        assert isinstance(await request, LoaderClosedError)
        await trigger.aclose()

    async def test_a_second_closing_may_drop_what_the_first_would_flush(self, make: Any) -> None:
        job = Job(1)
        trigger = make(job)
        trigger.trigger()
        await asyncio.sleep(WAIT * 2)
        trigger.trigger()
        flushing = asyncio.create_task(trigger.aclose())
        await turns()
        await trigger.aclose(flush=False)
        await flushing
        assert job.runs == 1

    async def test_leaving_the_block_by_an_error_still_applies_the_last_state(self, make: Any) -> None:
        job = Job()
        with contextlib.suppress(LookupError):
            async with make(job) as trigger:
                trigger.trigger()
                raise LookupError
        assert job.runs == 1

    @pytest.mark.parametrize(
        ("seconds", "kind"), [("1", TypeError), (True, TypeError), (-1, ValueError), (10**400, ValueError)], ids=str
    )
    async def test_a_timeout_that_makes_no_sense_is_refused_before_anything_is_closed(
        self, make: Any, seconds: Any, kind: type[Exception]
    ) -> None:
        job = Job()
        async with make(job) as trigger:
            with pytest.raises(kind, match="timeout takes a number of seconds"):
                await trigger.aclose(timeout=seconds)
            assert await trigger.request() == 1


class TestSelfWait:
    @pytest.mark.every_loop
    @pytest.mark.parametrize("name", ["request", "flush", "wait_idle", "aclose"])
    async def test_waiting_for_oneself_from_inside_is_an_error(self, make: Any, name: str) -> None:
        async def waits_for_itself() -> None:
            got.append(await outcome(getattr(trigger, name)()))

        got: list[Any] = []
        async with make(Job(then=waits_for_itself), name="narcissus") as trigger:
            await trigger.request()
            assert isinstance(got[0], SelfWaitError)
            assert "narcissus" in str(got[0])
            assert await trigger.request() == 2, "it is as open as before"

    async def test_a_task_of_the_run_is_inside_and_one_that_outlives_it_is_not(self, make: Any) -> None:
        async def spawn() -> None:
            if job.runs == 1:
                with pytest.raises(SelfWaitError):
                    await asyncio.gather(trigger.request())
                later.append(asyncio.create_task(ask_later()))

        async def ask_later() -> Any:
            await asyncio.sleep(1)
            return await trigger.request()

        later: list[asyncio.Task[Any]] = []
        job = Job(then=spawn)
        async with make(job) as trigger:
            await trigger.request()
            assert await later[0] == 2

    @pytest.mark.every_loop
    async def test_a_circle_of_waits_is_an_error_for_the_one_that_closes_it(self, make: Any) -> None:
        one = make(Job(then=lambda: other.request()))
        other = make(Job(then=lambda: one.request()))
        async with one, other:
            assert isinstance(await outcome(one.request()), SelfWaitError)

    async def test_waiting_for_one_another_in_a_line_is_fine(self, make: Any) -> None:
        last = make(Job())
        middle = make(Job(then=last.request))
        first = make(Job(then=lambda: asyncio.gather(middle.request(), last.request())))
        async with last, middle, first:
            assert await first.request() == 1

    async def test_an_object_made_inside_a_run_is_not_inside_of_it(self, make: Any) -> None:
        async def makes_another() -> None:
            if job.runs == 1:
                made.append(make(Job(then=lambda: trigger.request())))
                made[0].trigger()

        made: list[Any] = []
        job = Job(then=makes_another)
        async with make(job) as trigger:
            await trigger.request()
            await made[0].aclose()
            assert job.runs == 2


class TestContext:
    async def test_runs_have_the_context_in_which_the_object_was_made(self, make: Any) -> None:
        async def fn() -> str:
            before = variable.get()
            variable.set("changed by a run")
            return before

        def on_error(error: Exception) -> None:
            seen.append(variable.get())

        seen: list[str] = []
        variable = contextvars.ContextVar("variable", default="")
        variable.set("made")
        async with make(fn) as trigger, make(Job(then=fail), on_error=on_error) as failing:
            variable.set("request")
            assert [await trigger.request(), await trigger.request()] == ["made", "made"]
            failing.trigger()
            await failing.flush()
            assert seen == ["made"]

    async def test_no_timer_keeps_the_context_of_the_caller_alive(self, make: Any) -> None:
        class Request:
            pass

        async def handle() -> weakref.ref[Request]:
            request = Request()
            variable.set(request)
            trigger.trigger()
            return weakref.ref(request)

        variable: contextvars.ContextVar[Request] = contextvars.ContextVar("variable")
        async with make(Job(1)) as trigger:
            ref = await asyncio.create_task(handle())
            await asyncio.sleep(WAIT / 2)
            gc.collect()
            assert ref() is None


class TestThreads:
    @pytest.mark.real_time
    @pytest.mark.every_loop
    async def test_triggers_from_many_threads_are_all_counted(self, make: Any) -> None:
        def ring() -> None:
            for _ in range(1000):
                assert trigger.trigger_threadsafe()

        job = Job()
        async with make(job) as trigger:
            await asyncio.gather(*(asyncio.to_thread(ring) for _ in range(4)))
            await trigger.wait_idle()
            assert trigger.statistics().received == 4000
            assert 1 <= job.runs <= 4000
            stats = trigger.statistics()
            assert stats.runs + stats.merged == 4000

    async def test_a_blocked_loop_is_woken_once_and_gathers_no_handles(self, make: Any) -> None:
        job = Job()
        async with make(job) as trigger:
            loop: Any = asyncio.get_running_loop()
            ready = len(loop._ready)
            tracemalloc.start()
            try:
                for _ in range(20_000):
                    trigger.trigger_threadsafe()
                assert tracemalloc.get_traced_memory()[1] < 20_000
            finally:
                tracemalloc.stop()
            assert len(loop._ready) == ready + 1
            assert trigger.pending
            await trigger.wait_idle()
            assert (job.runs, trigger.statistics().received) == (1, 20_000)

    async def test_what_was_accepted_before_closing_is_applied(self, make: Any) -> None:
        job = Job()
        trigger = make(job)
        assert trigger.trigger_threadsafe()
        await trigger.aclose()
        assert job.runs == 1
        assert not trigger.trigger_threadsafe()

    async def test_cancel_and_flush_see_what_other_threads_triggered(self, make: Any) -> None:
        job = Job()
        async with make(job) as trigger:
            trigger.trigger_threadsafe()
            assert trigger.cancel()
            trigger.trigger_threadsafe()
            await trigger.flush()
            assert job.runs == 1

    def test_before_it_knows_its_loop_it_cannot_be_triggered_from_a_thread(self, make: Any) -> None:
        trigger = make(Job())
        with pytest.raises(LoaderLoopError, match="does not know its event loop"):
            trigger.trigger_threadsafe()

        async def enter() -> None:
            async with trigger:
                assert trigger.trigger_threadsafe()

        loops.run(enter)

    def test_once_the_loop_is_closed_it_returns_false(self, make: Any) -> None:
        async def main() -> Any:
            return make(Job())

        trigger = loops.run(main)
        assert not trigger.trigger_threadsafe()

    @pytest.mark.real_time
    async def test_another_thread_must_not_call_the_other_methods(self, make: Any) -> None:
        async with make(Job()) as trigger:
            trigger.trigger()
            errors = [await asyncio.to_thread(self._error, call) for call in (trigger.trigger, trigger.cancel)]
            assert [type(error) for error in errors] == [LoaderLoopError] * 2

    @staticmethod
    def _error(call: Callable[[], object]) -> Exception | None:
        try:
            call()
        except Exception as error:
            return error
        return None


class TestLoops:
    def test_one_made_without_a_loop_is_at_home_on_the_first_and_on_the_next_once_that_is_closed(
        self, make: Any
    ) -> None:
        async def use() -> int:
            return await trigger.request()  # type: ignore[no-any-return]

        trigger = make(Job())
        assert [loops.run(use), loops.run(use)] == [1, 2]

    def test_what_was_pending_on_a_closed_loop_is_dropped_and_the_next_loop_starts_clean(self, make: Any) -> None:
        async def leave() -> None:
            trigger.trigger()
            trigger.trigger_threadsafe()

        async def leave_running() -> None:
            trigger.trigger()
            await asyncio.sleep(WAIT * 2)

        async def use() -> None:
            assert not trigger.pending
            assert not trigger.running
            await trigger.request()
            await trigger.aclose()

        trigger = make(Job(1))
        for main in (leave, leave_running):
            loop = loops.new_loop()
            loop.run_until_complete(main())
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        loops.run(use)
        assert trigger.statistics().dropped >= 1

    def test_a_closed_one_stays_closed_on_the_next_loop(self, make: Any) -> None:
        async def use() -> None:
            with pytest.raises(LoaderClosedError):
                trigger.trigger()
            await trigger.aclose()

        trigger = make(Job())
        loops.run(trigger.aclose)
        loops.run(use)

    def test_a_loop_of_its_own_that_is_open_is_not_left_for_another(self, make: Any) -> None:
        async def use() -> None:
            trigger.trigger()
            await trigger.flush()

        trigger = make(Job())
        home, other = loops.new_loop(), loops.new_loop()
        try:
            home.run_until_complete(use())
            with pytest.raises(LoaderLoopError, match="another event loop"):
                other.run_until_complete(use())
        finally:
            home.close()
            other.close()

    def test_without_a_loop_a_trigger_is_refused(self, make: Any) -> None:
        with pytest.raises(LoaderLoopError, match="no event loop"):
            make(Job()).trigger()


class TestShutdown:
    @pytest.mark.parametrize("kind", loops.KINDS)
    def test_a_loop_that_is_torn_down_settles_every_caller_and_starts_nothing(self, make: Any, kind: str) -> None:
        async def caller() -> None:
            outcomes.append(await outcome(made[0].request()))

        async def main() -> None:
            trigger = make(job)
            made.append(trigger)
            trigger.trigger()
            await until(lambda: trigger.running)
            waiters.extend(asyncio.create_task(wait()) for wait in (caller, trigger.wait_idle, trigger.flush))
            await turns()

        made: list[Any] = []
        waiters: list[asyncio.Task[Any]] = []
        outcomes: list[Any] = []
        job = Job(10)
        self._asyncio_run(main, kind)
        assert job.runs == 1
        assert job.cancelled == 1
        assert all(waiter.done() for waiter in waiters)
        assert (made[0].pending, made[0].running) == (False, False)

    @staticmethod
    def _asyncio_run(main: Any, kind: str) -> None:
        reports: list[Any] = []
        with asyncio.Runner(loop_factory=lambda: loops.new_loop(kind)) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: reports.append(context))
            runner.run(main())
        gc.collect()
        assert reports == []

    async def test_a_run_cancelled_from_outside_takes_the_pending_one_with_it_and_tells_both(self, make: Any) -> None:
        job = Job(10)
        trigger = make(job)
        first = asyncio.create_task(outcome(trigger.request()))
        await asyncio.sleep(WAIT * 2)
        second = asyncio.create_task(outcome(trigger.request()))
        await asyncio.sleep(0)
        trigger._current.task.cancel()
        assert isinstance(await first, RunCancelledError)
        assert isinstance(await second, RunCancelledError)
        assert job.runs == 1
        job.seconds = 0
        assert await trigger.request() == 2, "it still works"
        await trigger.aclose()

    async def test_a_run_that_survives_its_cancellation_keeps_the_pending_one(self, make: Any) -> None:
        async def survive() -> None:
            trigger.trigger()
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
            job.then = None

        job = Job(then=survive)
        async with make(job) as trigger:
            assert await trigger.request() == 1
            await trigger.wait_idle()
            assert job.runs == 2
            assert trigger.statistics().dropped == 0

    @pytest.mark.parametrize("kind", loops.KINDS)
    def test_a_run_that_survives_the_end_of_its_loop_starts_no_other(self, make: Any, kind: str) -> None:
        async def survive() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

        async def main() -> None:
            trigger = make(job)
            trigger.trigger()
            await until(lambda: trigger.running)
            await turns()
            trigger.trigger()

        job = Job(then=survive)
        self._asyncio_run(main, kind)
        assert job.runs == 1

    async def test_a_run_cancelled_before_its_first_step_settles_its_callers(self, make: Any) -> None:
        job = Job()
        trigger = make(job)
        request = asyncio.create_task(outcome(trigger.request()))
        await until(lambda: trigger.running)
        trigger._current.task.cancel()
        assert isinstance(await request, RunCancelledError) or job.runs == 1
        await trigger.aclose()

    @pytest.mark.parametrize("kind", loops.KINDS)
    def test_system_exit_in_a_run_ends_the_loop_and_settles_the_callers(self, make: Any, kind: str) -> None:
        async def exits() -> None:
            sys.exit(3)

        async def main() -> None:
            requests.append(asyncio.create_task(outcome(make(exits).request())))
            await asyncio.sleep(1)

        requests: list[asyncio.Task[Any]] = []
        loop = loops.new_loop(kind)
        task = loop.create_task(main())
        try:
            with pytest.raises(SystemExit):
                loop.run_until_complete(task)
            got = loop.run_until_complete(requests[0])
            assert isinstance(got, RunCancelledError)
            assert isinstance(got.__cause__, SystemExit)
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        finally:
            loop.close()

    @pytest.mark.logs
    async def test_a_task_factory_that_fails_settles_the_callers(self, make: Any, reports: list[str]) -> None:
        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> Any:
            if "_call" in coro.__qualname__:
                raise JobError
            return asyncio.Task(coro, loop=loop, **kwargs)

        loop, unheard = asyncio.get_running_loop(), list[Exception]()
        async with make(Job(), on_error=unheard.append) as trigger:
            loop.set_task_factory(factory)
            got = await outcome(trigger.request())
            assert isinstance(got, JobError)
            assert unheard == []
            trigger.trigger()
            await trigger.wait_idle()
            assert [type(error) for error in unheard] == [JobError]
            loop.set_task_factory(None)
            assert await trigger.request() == 1


class TestStatistics:
    async def test_every_trigger_is_accounted_for(self, make: Any) -> None:
        job = Job(0.02)
        async with make(job) as trigger:
            for _ in range(3):
                trigger.trigger()
            await asyncio.sleep(WAIT * 2)
            assert await trigger.request() == 2
            trigger.trigger()
            trigger.trigger()
            assert trigger.statistics().received == 6
            trigger.cancel()
        got = trigger.statistics()
        assert (got.received, got.runs, got.merged, got.dropped, got.failures, got.cancelled) == (6, 2, 2, 2, 0, 0)
        assert got.delay.count == got.run_time.count == 2
        assert got.run_time.mean == pytest.approx(0.02)

    def test_the_repr_says_which_and_in_what_state(self, make: Any) -> None:
        async def main() -> None:
            kind = "Debouncer" if make is debounced else "Coalescer"
            trigger = make(functools.partial(Job(1), "JFK"))
            assert repr(trigger) == f"<{kind} Job('JFK'): idle>"
            trigger.trigger()
            assert repr(trigger) == f"<{kind} Job('JFK'): pending>"
            await asyncio.sleep(WAIT * 2)
            trigger.trigger()
            assert repr(trigger) == f"<{kind} Job('JFK'): running, pending>"
            await trigger.aclose()
            assert repr(trigger) == f"<{kind} Job('JFK'): closed>"
            assert repr(make(Job(), name="x")) == f"<{kind} x: idle>"
            assert "f(b=1)" in repr(make(functools.partial(f, b=1)))

        async def f(b: int) -> None: ...

        f.__qualname__ = "f"
        loops.run(main)


def test_the_wake_up_of_a_thread_survives_a_loop_that_closes_meanwhile() -> None:
    class Closing:
        def is_closed(self) -> bool:
            return False

        def call_soon_threadsafe(self, *args: object) -> None:
            raise RuntimeError("Event loop is closed")

    trigger = Coalescer(Job())
    trigger._loop = Closing()  # type: ignore[assignment]
    assert not trigger.trigger_threadsafe()
    assert not trigger.pending
