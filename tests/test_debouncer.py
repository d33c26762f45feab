"""Debouncer: when a run is due."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from loader._debouncer import Debouncer
from tests import loops
from tests.jobs import Job


def now() -> float:
    return asyncio.get_running_loop().time()


async def trigger_at(debouncer: Debouncer[Any], *times: float) -> None:
    for time in times:
        await asyncio.sleep(time - now())
        debouncer.trigger()


def every(interval: float, until: float) -> list[float]:
    return [interval * step for step in range(round(until / interval))]


async def test_a_run_comes_once_triggers_have_paused() -> None:
    job = Job()
    async with Debouncer(job, wait=1) as debouncer:
        await trigger_at(debouncer, 0, 0.5, 0.9, 1.8)
        await debouncer.wait_idle()
    assert job.starts == pytest.approx([2.8])


async def test_repeating_the_same_trigger_counts_as_activity() -> None:
    job = Job()
    async with Debouncer(job, wait=1) as debouncer:
        await trigger_at(debouncer, *every(0.5, 10))
        assert job.runs == 0
        await debouncer.wait_idle()
    assert job.starts == pytest.approx([10.5])


async def test_without_max_wait_triggers_that_never_pause_never_let_it_run() -> None:
    job = Job()
    async with Debouncer(job, wait=0.05) as debouncer:
        await trigger_at(debouncer, *every(0.02, 20))
        assert job.runs == 0


async def test_max_wait_runs_though_nobody_triggers_again_to_check_it() -> None:
    job = Job()
    async with Debouncer(job, wait=1, max_wait=1.5) as debouncer:
        await trigger_at(debouncer, 0, 0.9)
        await debouncer.wait_idle()
    assert job.starts == pytest.approx([1.5])


async def test_max_wait_counts_from_the_first_trigger_of_each_burst() -> None:
    job = Job()
    async with Debouncer(job, wait=1, max_wait=3) as debouncer:
        await trigger_at(debouncer, 0, 10, 10.9, 11.8, 12.7, 13.5)
        await debouncer.wait_idle()
    assert job.starts == pytest.approx([1, 13, 14.5])


async def test_a_max_wait_of_wait_runs_that_long_after_the_first_trigger() -> None:
    job = Job()
    async with Debouncer(job, wait=1, max_wait=1) as debouncer:
        await trigger_at(debouncer, 0, 0.5, 0.9)
        await debouncer.wait_idle()
    assert job.starts == [1]


async def test_a_stream_of_two_seconds_makes_four_runs() -> None:
    job = Job(0.03)
    async with Debouncer(job, wait=0.05, max_wait=0.5) as debouncer:
        await trigger_at(debouncer, *every(0.002, 2))
        await debouncer.wait_idle()
    assert job.runs == 4


async def test_a_run_that_falls_due_during_another_starts_right_after_it() -> None:
    job = Job(5)
    async with Debouncer(job, wait=1) as debouncer:
        await trigger_at(debouncer, 0, 2)
        await debouncer.wait_idle()
    assert job.starts == pytest.approx([1, 6])


async def test_a_run_that_is_not_due_at_the_end_of_another_waits_on() -> None:
    job = Job(5)
    async with Debouncer(job, wait=3) as debouncer:
        await trigger_at(debouncer, 0, 7)
        await debouncer.wait_idle()
    assert job.starts == pytest.approx([3, 10])


async def test_a_trigger_between_the_end_of_a_run_and_the_overdue_next_one_puts_that_off() -> None:
    async def again() -> None:
        if job.runs == 1:
            debouncer.trigger()
            await asyncio.sleep(5)
            asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(debouncer.trigger))

    job = Job(then=again)
    async with Debouncer(job, wait=1) as debouncer:
        debouncer.trigger()
        await debouncer.wait_idle()
    assert job.starts == pytest.approx([1, 7])


async def test_triggers_move_a_deadline_and_leave_one_timer() -> None:
    loop = asyncio.get_running_loop()
    async with Debouncer(Job(), wait=1) as debouncer:
        for _ in range(100):
            debouncer.trigger()
            await asyncio.sleep(0.001)
            assert len(loop._scheduled) == 1  # type: ignore[attr-defined]  # of cancelled ones, none either


async def test_a_clock_that_calls_early_is_believed() -> None:
    """Where the clock ticks in steps of 16 ms, timers fire up to one step before their time."""
    job = Job()
    async with Debouncer(job, wait=1) as debouncer:
        debouncer.trigger()
        run = debouncer._pending
        assert run is not None
        await asyncio.sleep(0.99)
        debouncer._disarm()
        debouncer._fire(run, asyncio.get_running_loop())
        assert debouncer.running


async def test_wait_zero_merges_the_triggers_of_one_turn() -> None:
    job = Job()
    async with Debouncer(job, wait=0) as debouncer:
        for _ in range(3):
            debouncer.trigger()
            debouncer.trigger()
            await debouncer.wait_idle()
    assert job.runs == 3


async def test_flush_and_closing_do_not_wait_for_the_pause() -> None:
    job = Job()
    async with Debouncer(job, wait=100) as debouncer:
        debouncer.trigger()
        await debouncer.flush()
        assert job.starts == [0]
        debouncer.trigger()
    assert job.starts == [0, 0]
    await asyncio.sleep(200)
    assert job.runs == 2


async def test_flush_during_a_run_makes_the_pending_one_start_right_after_it() -> None:
    job = Job(1)
    async with Debouncer(job, wait=10) as debouncer:
        await trigger_at(debouncer, 0, 10.5)
        await debouncer.flush()
    assert job.starts == pytest.approx([10, 11])


async def test_after_cancel_the_next_burst_has_a_max_wait_of_its_own() -> None:
    job = Job()
    async with Debouncer(job, wait=1, max_wait=2) as debouncer:
        debouncer.trigger()
        await asyncio.sleep(0.9)
        debouncer.cancel()
        await trigger_at(debouncer, 1, 1.9, 2.8)
        await debouncer.wait_idle()
    assert job.starts == pytest.approx([3])


async def test_the_delay_is_counted_from_the_first_trigger() -> None:
    async with Debouncer(Job(), wait=1) as debouncer:
        await trigger_at(debouncer, 0, 0.5)
        await debouncer.wait_idle()
    assert debouncer.statistics().delay.total == pytest.approx(1.5)


class TestLeading:
    async def test_the_first_trigger_runs_at_once_and_alone_makes_no_second_run(self) -> None:
        job = Job()
        async with Debouncer(job, wait=1, leading=True) as debouncer:
            debouncer.trigger()
            await asyncio.sleep(10)
        assert job.starts == [0]

    async def test_a_second_trigger_within_wait_makes_a_run_after_the_pause(self) -> None:
        job = Job()
        async with Debouncer(job, wait=1, leading=True) as debouncer:
            await trigger_at(debouncer, 0, 0.5, 0.9)
            await debouncer.wait_idle()
        assert job.starts == pytest.approx([0, 1.9])

    async def test_after_a_pause_and_after_a_trailing_run_the_next_trigger_leads_again(self) -> None:
        job = Job()
        async with Debouncer(job, wait=1, leading=True) as debouncer:
            await trigger_at(debouncer, 0, 2, 2.5, 4)
            await debouncer.wait_idle()
        assert job.starts == pytest.approx([0, 2, 3.5, 4])

    async def test_max_wait_bounds_the_trailing_run_and_gives_no_leading_one_in_the_middle(self) -> None:
        job = Job()
        async with Debouncer(job, wait=1, max_wait=2, leading=True) as debouncer:
            await trigger_at(debouncer, 0, 0.5, 1.2, 2, 2.4)
            await debouncer.wait_idle()
        assert job.starts == pytest.approx([0, 2.5])

    async def test_after_a_run_in_the_middle_of_a_burst_the_next_trigger_does_not_lead(self) -> None:
        job = Job()
        async with Debouncer(job, wait=1, max_wait=2, leading=True) as debouncer:
            await trigger_at(debouncer, *(0.4 * step for step in range(9)))
            await debouncer.wait_idle()
            await trigger_at(debouncer, 10, 10.5)
            await debouncer.flush()
            await trigger_at(debouncer, 11, 13.5)
        assert job.starts == pytest.approx([0, 2.4, 4.2, 10, 10.5, 12, 13.5])

    async def test_a_pause_of_exactly_wait_is_one(self) -> None:
        job = Job()
        async with Debouncer(job, wait=1, leading=True) as debouncer:
            await trigger_at(debouncer, 0, 1)
        assert job.starts == [0, 1]

    async def test_flush_does_not_repeat_a_leading_run(self) -> None:
        job = Job()
        async with Debouncer(job, wait=1, leading=True) as debouncer:
            debouncer.trigger()
            await asyncio.sleep(0.1)
            await debouncer.flush()
        assert job.starts == [0]

    async def test_triggers_during_a_leading_run_are_not_lost(self) -> None:
        job = Job(5)
        async with Debouncer(job, wait=1, leading=True) as debouncer:
            await trigger_at(debouncer, 0, 0.5, 3)
            await debouncer.wait_idle()
        assert job.starts == pytest.approx([0, 5])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"wait": -1}, "wait takes a number of seconds"),
        ({"wait": float("nan")}, "wait takes a number"),
        ({"wait": 1, "max_wait": -1}, "max_wait takes a number"),
        ({"wait": 1, "max_wait": 0.5}, "shorter than wait"),
    ],
)
def test_times_that_make_no_sense_are_refused(options: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Debouncer(Job(), **options)


@pytest.mark.parametrize(
    "options", [{"wait": None}, {"wait": "1"}, {"wait": True}, {"wait": 1, "max_wait": Decimal(2)}]
)
def test_times_that_are_no_numbers_are_refused_before_anybody_waits_for_them(options: Any) -> None:
    with pytest.raises(TypeError, match="wait takes a number of seconds"):
        Debouncer(Job(), **options)


def test_leading_is_true_or_false() -> None:
    with pytest.raises(TypeError, match="Debouncer: leading takes True or False, not 'no'"):
        Debouncer(Job(), wait=1, leading="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", loops.KINDS)
def test_it_works_on_a_loop_with_real_time(kind: str) -> None:
    async def main() -> None:
        async with Debouncer(job, wait=0.01, max_wait=0.02) as debouncer:
            for _ in range(30):
                debouncer.trigger()
                await asyncio.sleep(0.002)
            await debouncer.wait_idle()
        assert job.runs >= 2

    job = Job(0.005)
    loops.run(main, kind=kind, real_time=True)
