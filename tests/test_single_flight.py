"""SingleFlight: callers of the same key share a call, and nothing else."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from contextlib import suppress
from typing import Any

import pytest

from loader._coalescer import Coalescer
from loader._single_flight import SingleFlight
from loader.errors import LoaderLoopError, RunCancelledError, SelfWaitError
from tests import loops
from tests.jobs import Job, JobError, fail, outcome, turns, until


@pytest.mark.every_loop
async def test_calls_at_the_same_time_share_one_and_get_its_result() -> None:
    job = Job(0.01)
    flights = SingleFlight()
    assert await asyncio.gather(*(flights.do("key", job, "key") for _ in range(100))) == [1] * 100
    assert job.keys == ["key"]
    assert await flights.do("key", job, "key") == 2, "nothing is remembered"


@pytest.mark.every_loop
async def test_calls_of_different_keys_run_side_by_side() -> None:
    job = Job(0.01)
    flights = SingleFlight()
    await asyncio.gather(*(flights.do(key, job, key) for key in "abab"))
    assert sorted(job.keys, key=str) == ["a", "b"]


@pytest.mark.every_loop
async def test_a_failure_reaches_every_caller_and_the_next_call_starts_anew() -> None:
    job = Job(then=fail)
    flights = SingleFlight()
    got = await asyncio.gather(*(flights.do("key", job) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in got] == [JobError] * 3
    job.then = None
    assert await flights.do("key", job) == 2
    assert repr(flights) == "<SingleFlight: 0 under way>"


@pytest.mark.every_loop
async def test_a_caller_that_leaves_leaves_the_others_alone() -> None:
    job = Job(0.01)
    flights = SingleFlight()
    first, second = (asyncio.create_task(flights.do("key", job)) for _ in range(2))
    await turns()
    first.cancel()
    assert await second == 1
    assert job.cancelled == 0


@pytest.mark.every_loop
async def test_the_last_caller_to_leave_takes_the_call_with_it_and_nobody_joins_that() -> None:
    job = Job(0.01)
    flights = SingleFlight()
    callers = [asyncio.create_task(flights.do("key", job, number)) for number in range(2)]
    await turns()
    for caller in callers:
        caller.cancel()
    await turns(1)
    assert repr(flights) == "<SingleFlight: 0 under way>"
    assert await flights.do("key", job, 2) == 2
    assert job.cancelled == 1


async def test_a_call_given_up_before_its_first_step_never_runs() -> None:
    job = Job()
    flights = SingleFlight()
    call = flights.do("key", job)
    call.send(None)
    with pytest.raises(asyncio.CancelledError):
        call.throw(asyncio.CancelledError())
    await turns()
    assert job.runs == 0


async def test_a_call_that_swallows_its_cancellation_and_then_fails_is_reported_nowhere_else() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise JobError

    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    flights = SingleFlight()
    caller = asyncio.create_task(flights.do("key", stubborn))
    await turns()
    caller.cancel()
    await turns()
    assert [type(context["exception"]) for context in reports] == [JobError]
    assert "SingleFlight call of" in reports[0]["message"]
    assert "'key'" in reports[0]["message"]


@pytest.mark.every_loop
async def test_a_cancelled_error_out_of_the_call_is_an_ordinary_exception_for_its_callers() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RunCancelledError):
        await SingleFlight().do("key", cancelled)


@pytest.mark.every_loop
async def test_after_forget_the_next_call_starts_anew_and_the_old_callers_still_get_theirs() -> None:
    job = Job(0.01)
    flights = SingleFlight()
    old = asyncio.create_task(flights.do("key", job, "old"))
    await turns()
    assert flights.forget("key")
    new = asyncio.create_task(flights.do("key", job, "new"))
    await turns()
    assert [await old, await new] == [1, 2]
    assert not flights.forget("key")


async def test_the_end_of_a_forgotten_call_leaves_its_successor_in_place() -> None:
    flights = SingleFlight()
    old = asyncio.create_task(flights.do("key", Job(1)))
    await turns()
    flights.forget("key")
    new = [asyncio.create_task(flights.do("key", Job(2)))]
    await old
    await turns()
    new.append(asyncio.create_task(flights.do("key", pytest.fail, "joined")))
    assert await asyncio.gather(*new) == [1, 1]


async def test_nobody_joins_a_call_whose_task_has_ended() -> None:
    async def ask_at_once() -> None:
        # The task has ended, and the loop has not yet called back: the callers are still to be woken.
        flight = flights._flights["key"]
        await until(lambda: flight.landed)
        later.append(await flights.do("key", job))

    later: list[int] = []
    job = Job()
    flights = SingleFlight()
    first = asyncio.create_task(flights.do("key", job))
    await asyncio.sleep(0)
    second = asyncio.create_task(ask_at_once())
    assert await first == 1
    await second
    assert later == [2]


@pytest.mark.every_loop
async def test_waiting_for_ones_own_call_is_an_error() -> None:
    async def fn() -> Any:
        return await flights.do("key", fn)

    flights = SingleFlight()
    with pytest.raises(SelfWaitError, match="'key'"):
        await flights.do("key", fn)


@pytest.mark.every_loop
async def test_a_circle_through_a_coalescer_is_an_error() -> None:
    flights = SingleFlight()
    async with Coalescer(lambda: flights.do("key", ask)) as coalescer:

        async def ask() -> Any:
            return await coalescer.request()

        with pytest.raises(SelfWaitError):
            await coalescer.request()


@pytest.mark.every_loop
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("in_turns", range(12))
async def test_a_circle_whose_caller_is_cancelled_does_not_go_on_by_itself(size: int, in_turns: int) -> None:
    flights, calls = SingleFlight(), 0

    async def call(key: int) -> None:
        nonlocal calls
        calls += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(ask((key + 1) % size))

    async def ask(key: int) -> None:
        with suppress(SelfWaitError):
            await flights.do(key, call, key)

    caller = asyncio.create_task(ask(0))
    await turns(in_turns)
    caller.cancel()
    await turns(10 * size)
    assert caller.done()
    assert calls <= 2 * size
    assert repr(flights) == "<SingleFlight: 0 under way>"


@pytest.mark.every_loop
async def test_a_call_that_is_cancelled_may_start_others_and_be_started_by_others() -> None:
    flights, log = SingleFlight(), list[object]()

    async def call() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            log.append(await outcome(flights.do("other", said, "clean")))
            log.append(type(await outcome(flights.do("key", said, "again"))))

    async def said(what: str) -> str:
        return what

    caller = asyncio.create_task(flights.do("key", call))
    await turns()
    caller.cancel()
    await asyncio.sleep(0)
    assert await flights.do("key", said, "anew") == "anew"
    await turns()
    assert log == ["clean", SelfWaitError]


@pytest.mark.every_loop
async def test_what_a_call_left_behind_may_start_it_anew() -> None:
    flights, left = SingleFlight(), list[asyncio.Task[str]]()

    async def call() -> None:
        left.append(asyncio.create_task(later()))
        await asyncio.sleep(10)

    async def later() -> str:
        await asyncio.sleep(1)
        return await flights.do("key", anew)

    async def anew() -> str:
        return "anew"

    caller = asyncio.create_task(flights.do("key", call))
    await turns(5)
    caller.cancel()
    assert await left[0] == "anew"


async def test_calls_run_in_the_context_in_which_the_object_was_made() -> None:
    async def fn() -> str:
        return variable.get()

    variable = contextvars.ContextVar("variable", default="")
    variable.set("made")
    flights = SingleFlight()
    variable.set("request")
    assert await flights.do("key", fn) == "made"


async def test_what_is_no_async_function_is_refused_and_leaves_no_entry() -> None:
    flights = SingleFlight()
    with pytest.raises(TypeError, match="not its result"):
        await flights.do("key", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="async function"):
        await flights.do("key", lambda: 3)  # type: ignore[arg-type,return-value]
    assert repr(flights) == "<SingleFlight: 0 under way>"


def test_it_is_at_home_on_one_loop_and_on_the_next_once_that_is_closed() -> None:
    async def use() -> Any:
        return await flights.do("key", job)

    flights, job = SingleFlight(), Job()
    assert [loops.run(use), loops.run(use)] == [1, 2]
    first, second = loops.new_loop(), loops.new_loop()
    try:
        first.run_until_complete(use())
        with pytest.raises(LoaderLoopError):
            second.run_until_complete(use())
    finally:
        first.close()
        second.close()


def test_a_caller_of_a_loop_that_was_closed_under_it_may_be_collected_in_peace() -> None:
    flights = SingleFlight()
    loop = loops.new_loop()
    call = flights.do("key", Job(10))
    loop.run_until_complete(step(call))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    call.close()


async def step(coroutine: Any) -> None:
    """Run a coroutine to its first wait, and leave it there."""
    coroutine.send(None)


@pytest.mark.parametrize("kind", loops.KINDS)
def test_system_exit_in_a_call_leaves_no_entry(kind: str) -> None:
    async def exits() -> None:
        sys.exit(3)

    loop = loops.new_loop(kind)
    flights = SingleFlight()
    task = loop.create_task(outcome(flights.do("key", exits)))
    try:
        with pytest.raises(SystemExit):
            loop.run_until_complete(task)
        if not task.done():
            assert isinstance(loop.run_until_complete(task), RunCancelledError)
        else:
            assert isinstance(task.exception(), SystemExit)
    finally:
        loop.close()
    assert repr(flights) == "<SingleFlight: 0 under way>"


def test_a_loop_that_is_torn_down_takes_the_calls_with_it() -> None:
    async def main() -> None:
        for number in range(3):
            callers.append(asyncio.create_task(outcome(flights.do("key", job, number))))
        await turns()

    flights, job = SingleFlight(), Job(10)
    callers: list[Any] = []
    loops_seen: list[Any] = []
    with asyncio.Runner(loop_factory=loops.new_loop) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: loops_seen.append(context))
        runner.run(main())
    assert loops_seen == []
    assert job.cancelled == 1
    assert all(caller.done() for caller in callers)
