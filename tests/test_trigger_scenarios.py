"""Debouncer, Coalescer and their keyed forms under load: the reference scenario, and every distance of two triggers."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from loader._coalescer import Coalescer
from loader._debouncer import Debouncer
from loader._keyed import Keyed
from loader.errors import RunCancelledError
from tests import loops
from tests.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Callable

TRIGGERS, PAUSE, WORK = 200, 0.002, 0.03


async def burst(trigger: Callable[[], object]) -> None:
    for _ in range(TRIGGERS):
        trigger()
        await asyncio.sleep(PAUSE)


class TestReference:
    """200 triggers 2 ms apart, for work of 30 ms."""

    async def test_a_task_for_each_trigger_makes_200_runs(self) -> None:
        job = Job(WORK)
        tasks: list[asyncio.Task[int]] = []
        await burst(lambda: tasks.append(asyncio.create_task(job(len(tasks)))))
        await asyncio.gather(*tasks)
        assert job.runs == 200

    async def test_a_debouncer_makes_one_50_ms_after_the_last_trigger(self) -> None:
        job = Job(WORK)
        async with Debouncer(job, wait=0.05) as debouncer:
            await burst(debouncer.trigger)
            await debouncer.wait_idle()
        assert job.starts == pytest.approx([TRIGGERS * PAUSE - PAUSE + 0.05])
        got = debouncer.statistics()
        assert (got.received, got.runs, got.merged) == (200, 1, 199)

    async def test_a_coalescer_makes_14_or_15_the_last_one_after_the_last_trigger(self) -> None:
        job = Job(WORK)
        async with Coalescer(job) as coalescer:
            await burst(coalescer.trigger)
            await coalescer.wait_idle()
        assert job.runs in {14, 15}
        last = TRIGGERS * PAUSE - PAUSE
        assert last <= job.starts[-1] <= last + WORK
        assert job.ends[-1] <= last + 2 * WORK
        got = coalescer.statistics()
        assert (got.received, got.runs + got.merged) == (200, 200)

    async def test_a_debouncer_whose_max_wait_is_shorter_than_the_work_does_not_overlap(self) -> None:
        job = Job(WORK)
        async with Debouncer(job, wait=0.01, max_wait=0.02) as debouncer:
            await burst(debouncer.trigger)
            await debouncer.wait_idle()
        assert 8 <= job.runs <= 15
        assert job.starts[-1] >= TRIGGERS * PAUSE - PAUSE


def debouncer(fn: Any) -> Debouncer[Any]:
    return Debouncer(fn, wait=0.02)


def capped(fn: Any) -> Debouncer[Any]:
    return Debouncer(fn, wait=0.02, max_wait=0.025)


def leading(fn: Any) -> Debouncer[Any]:
    return Debouncer(fn, wait=0.02, leading=True)


def coalescer(fn: Any) -> Coalescer[Any]:
    return Coalescer(fn)


def spaced(fn: Any) -> Coalescer[Any]:
    return Coalescer(fn, min_interval=0.015)


class Single:
    """A trigger without keys, for tests of both forms."""

    def __init__(self, fn: Callable[[], Any], policy: Callable[[Any], Any]) -> None:
        self._trigger = policy(fn)
        self.aclose = self._trigger.aclose
        self.statistics = self._trigger.statistics

    def trigger(self, key: object) -> None:
        self._trigger.trigger()


every_policy = pytest.mark.parametrize("policy", [debouncer, capped, leading, coalescer, spaced])
every_form = pytest.mark.parametrize("form", [Single, Keyed])

GRID = [step / 2000 for step in range(81)]  # 0 to 40 ms, every half a millisecond
SECONDS = 0.01


@every_policy
@every_form
@pytest.mark.parametrize("seed", range(2))
async def test_two_triggers_at_any_distance_lose_nothing_and_do_not_overlap(form: Any, policy: Any, seed: int) -> None:
    """The second one comes around the start of the run, in it, around its end, and after it."""
    rng = random.Random(seed)
    seen: dict[int, tuple[int, float]] = {}
    state: dict[int, int] = {}

    async def fn(number: int) -> None:
        assert number not in inside, "two runs at once"
        inside.add(number)
        began, value = asyncio.get_running_loop().time(), state[number]
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        await asyncio.sleep(SECONDS)
        inside.remove(number)
        seen[number] = value, began

    async def case(number: int, distance: float) -> None:
        keyed = Keyed(fn, policy) if form is Keyed else Single(lambda: fn(number), policy)
        for state[number] in (1, 2):
            keyed.trigger(number)
            if state[number] == 1:
                await asyncio.sleep(distance)
                for _ in range(rng.randrange(4)):  # now and then a few turns later, at the same time
                    await asyncio.sleep(0)
        last = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        assert seen[number][0] == 2, f"the second trigger was lost at a distance of {distance} s"
        assert seen[number][1] >= last
        statistics = keyed.statistics()
        assert (statistics.received, statistics.runs + statistics.merged) == (2, 2)
        await keyed.aclose()

    inside: set[int] = set()
    await asyncio.gather(*(case(number, distance) for number, distance in enumerate(GRID)))


@every_policy
@pytest.mark.parametrize("seed", range(3))
async def test_random_triggers_cancels_and_flushes_leave_the_last_state_applied(policy: Any, seed: int) -> None:
    async def fn(key: int) -> None:
        assert key not in inside, "two runs at once"
        inside.add(key)
        value = state.get(key)
        try:
            await asyncio.sleep(rng.choice([0, 0.005, 0.03]))
            if rng.random() < 0.2:
                raise LookupError
        finally:
            inside.remove(key)
            applied[key] = value

    def quiet(fn: Any) -> Any:
        trigger = policy(fn)
        trigger._on_error = errors.append
        return trigger

    rng = random.Random(seed)
    errors: list[BaseException] = []
    inside: set[int] = set()
    state: dict[int, int] = {}
    applied: dict[int, int | None] = {}
    callers: list[asyncio.Task[Any]] = []
    async with Keyed(fn, quiet) as keyed:
        for step in range(400):
            key = rng.randrange(4)
            state[key] = step
            match rng.randrange(8):
                case 0:
                    callers.append(asyncio.create_task(keyed.flush(key)))
                    keyed.trigger(key)
                case 1:
                    callers.append(asyncio.create_task(keyed.request(key)))
                    keyed.trigger(key)
                case 2 if callers:
                    rng.choice(callers).cancel()
                    keyed.trigger(key)
                case 3:
                    keyed.cancel(key)
                    keyed.trigger(key)
                case _:
                    keyed.trigger(key)
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01, 0.05]))
    await asyncio.wait(callers)
    assert applied == state
    got = keyed.statistics()
    assert got.received == got.runs + got.merged + got.dropped
    errors += [error for caller in callers if not caller.cancelled() and (error := caller.exception()) is not None]
    assert {type(error) for error in errors} <= {LookupError, RunCancelledError}


@every_policy
@pytest.mark.parametrize("count", [20_000])
def test_triggers_without_a_turn_of_the_loop_keep_memory_flat(policy: Any, count: int) -> None:
    async def main() -> None:
        job = Job(0.01)
        async with policy(job) as trigger:
            trigger.trigger()
            tracemalloc.start()
            try:
                for _ in range(count):
                    trigger.trigger()
                assert tracemalloc.get_traced_memory()[1] < 10_000
            finally:
                tracemalloc.stop()
            await trigger.wait_idle()
            assert job.runs == 1

    loops.run(main)
