"""Work: the rules of waiting that triggers and flights share; most are tested where they show."""

from __future__ import annotations

import asyncio
import functools
import math
from decimal import Decimal
from typing import Any

import pytest

from loader import Coalescer, Debouncer, Keyed, Snapshot
from loader._work import Bell, Call, checked_seconds, name_of, waiting_for
from tests.jobs import Job, turns


async def test_a_bell_wakes_all_who_wait_and_passes_over_those_who_left_in_the_same_turn() -> None:
    bell = Bell()
    loop = asyncio.get_running_loop()
    waiters = [asyncio.create_task(bell.wait(loop)) for _ in range(3)]
    await turns()
    waiters[0].cancel()
    bell.ring()
    await asyncio.wait(waiters)
    assert [waiter.cancelled() for waiter in waiters] == [True, False, False]
    assert not bell._waiting


async def test_a_bell_that_nobody_waits_for_rings_for_nobody() -> None:
    bell = Bell()
    bell.ring()
    waiter = asyncio.create_task(bell.wait(asyncio.get_running_loop()))
    await turns()
    assert not waiter.done()
    bell.ring()
    await waiter


async def test_work_that_never_started_cannot_be_cut_short() -> None:
    async with Coalescer(Job()) as owner:
        work: Call[int] = Call(owner, asyncio.get_running_loop())
        work.cut_short()
        assert not work.ended


async def test_waiting_for_several_looks_behind_each_of_them_once() -> None:
    async with Coalescer(Job(1)) as last, Coalescer(Job()) as idle:
        middle = [Coalescer(last.request) for _ in range(2)]

        async def fn() -> None:
            for trigger in middle:
                trigger.trigger()
            await asyncio.sleep(0.5)
            with waiting_for(*middle, idle, last):
                pass

        async with Coalescer(fn) as first:
            await first.request()
        for trigger in middle:
            await trigger.aclose()


async def test_outside_of_all_work_one_may_wait_for_anything() -> None:
    with waiting_for():
        pass


def test_a_function_is_called_by_its_name_and_a_partial_with_its_arguments() -> None:
    assert name_of(Job.__call__) == "Job.__call__"
    assert name_of(Job()) == "Job"
    assert name_of(functools.partial(dict, 1, key="a" * 100)).startswith("dict(1, key='aaa")
    assert len(name_of(functools.partial(dict, 1, key="a" * 100))) < 60


def test_durations_are_checked_by_name() -> None:
    assert [checked_seconds("X", "a", value) for value in (0, 1.5)] == [0.0, 1.5]
    for wrong in (None, "1", True, Decimal("0.05")):
        with pytest.raises(TypeError, match="X: b takes a number of seconds"):
            checked_seconds("X", "b", wrong)
    for senseless in (-1, math.nan, math.inf, 10**400):
        with pytest.raises(ValueError, match="X: b takes a number of seconds"):
            checked_seconds("X", "b", senseless)


@pytest.mark.parametrize(
    "make", [Coalescer, functools.partial(Debouncer, wait=1), functools.partial(Keyed, policy=Coalescer), Snapshot]
)
def test_a_name_is_a_string(make: Any) -> None:
    kind = getattr(make, "func", make).__name__
    with pytest.raises(TypeError, match=f"{kind}: name takes a string, not 3"):
        make(Job(), name=3)
