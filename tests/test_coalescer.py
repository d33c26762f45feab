"""Coalescer: when a run is due."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from loader._coalescer import Coalescer
from tests.jobs import Job, turns


@pytest.mark.every_loop
async def test_a_trigger_runs_at_once() -> None:
    job = Job(0.01)
    async with Coalescer(job) as coalescer:
        coalescer.trigger()
        await turns(3)
        assert job.runs == 1


async def test_a_burst_during_a_run_makes_one_more_that_sees_the_last_state() -> None:
    async def body() -> None:
        value = state[0]
        await asyncio.sleep(1)
        seen.append(value)

    state, seen = [0], list[int]()
    async with Coalescer(Job(then=body)) as coalescer:
        coalescer.trigger()
        await asyncio.sleep(0.1)
        for state[0] in range(1, 6):
            coalescer.trigger()
            await asyncio.sleep(0.1)
        await coalescer.wait_idle()
    assert seen == [0, 5]


async def test_wait_idle_straight_after_a_trigger_waits_for_its_run_and_for_the_pending_one() -> None:
    job = Job(1)
    async with Coalescer(job) as coalescer:
        coalescer.trigger()
        await coalescer.wait_idle()
        assert len(job.ends) == 1
        coalescer.trigger()
        await asyncio.sleep(0.5)
        coalescer.trigger()
        await coalescer.wait_idle()
        assert len(job.ends) == 3


async def test_min_interval_holds_between_starts_and_loses_nothing() -> None:
    job = Job(1)
    async with Coalescer(job, min_interval=3) as coalescer:
        for _ in range(50):
            coalescer.trigger()
            await asyncio.sleep(0.1)
        await coalescer.wait_idle()
    assert job.starts == pytest.approx([0, 3, 6])


async def test_min_interval_is_over_for_a_trigger_that_comes_late() -> None:
    job = Job()
    async with Coalescer(job, min_interval=3) as coalescer:
        for _ in range(3):
            coalescer.trigger()
            await asyncio.sleep(5)
    assert job.starts == pytest.approx([0, 5, 10])


async def test_flush_and_closing_do_not_wait_for_min_interval() -> None:
    job = Job()
    async with Coalescer(job, min_interval=100) as coalescer:
        await coalescer.request()
        coalescer.trigger()
        await coalescer.flush()
        coalescer.trigger()
    assert job.starts == [0, 0, 0]


@pytest.mark.parametrize("interval", [-1, float("nan"), float("inf"), 10**400], ids=lambda value: str(value)[:5])
def test_an_interval_that_makes_no_sense_is_refused(interval: Any) -> None:
    with pytest.raises(ValueError, match="min_interval takes a number of seconds"):
        Coalescer(Job(), min_interval=interval)


@pytest.mark.parametrize("interval", [None, "1", True, Decimal("0.05")])
def test_an_interval_that_is_no_number_is_refused_before_anybody_waits_for_it(interval: Any) -> None:
    with pytest.raises(TypeError, match="min_interval takes a number of seconds"):
        Coalescer(Job(), min_interval=interval)
