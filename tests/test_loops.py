"""The test loops themselves: they must notice what they promise to notice."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests import loops


@pytest.mark.every_loop
async def test_a_test_runs_on_every_kind_of_loop(loop_kind: str) -> None:
    loop = asyncio.get_running_loop()
    assert ("uvloop" in {kind.__module__ for kind in type(loop).__mro__}) == (loop_kind == "uvloop")
    assert (loop.get_task_factory() is not None) == (loop_kind == "eager")


@pytest.mark.every_loop
async def test_the_loop_checks_as_in_debug_mode() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(RuntimeError, match="Non-thread-safe"):
        await asyncio.to_thread(lambda: loop.call_soon(str))
    assert sys.get_coroutine_origin_tracking_depth() > 0  # so that a coroutine nobody awaits says where it was made


def test_a_task_left_behind_is_an_error() -> None:
    async def leaves_a_task() -> None:
        task = asyncio.create_task(asyncio.sleep(1))
        asyncio.get_running_loop().call_later(2, task.done)

    with pytest.raises(loops.LeftBehindError, match="sleep"):
        loops.run(leaves_a_task)


def test_a_report_of_asyncio_is_an_error_unless_expected() -> None:
    async def forgets_a_failure() -> None:
        asyncio.get_running_loop().create_future().set_exception(LookupError("nobody looks"))

    with pytest.raises(loops.LeftBehindError, match="nobody looks"):
        loops.run(forgets_a_failure)
    reports: list[str] = []
    loops.run(forgets_a_failure, expect_logged=reports)
    assert len(reports) == 1
