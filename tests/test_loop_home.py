"""Which loop an object belongs to, and tasks that are kept until they end."""

from __future__ import annotations

import asyncio
import contextvars
import gc

import pytest

from loader import LoaderLoopError
from loader._loops import _alive, home_loop, start_task
from tests import loops
from tests.fakes import turns


def test_no_loop_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(LoaderLoopError, match=r"'it' was called where no event loop runs.*call_soon_threadsafe"):
        home_loop(None, "it")


def test_a_loop_stays_home_until_it_is_closed() -> None:
    first = loops.new_loop()

    async def home(of: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
        return home_loop(of, "it")

    assert first.run_until_complete(home(None)) is first
    assert first.run_until_complete(home(first)) is first
    with pytest.raises(LoaderLoopError, match="'it' belongs to another event loop, which is still open"):
        loops.run(lambda: home(first))
    first.close()
    assert loops.run(lambda: home(first)) is not first


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


@pytest.mark.every_loop
async def test_a_task_runs_in_a_copy_of_its_context() -> None:
    async def look() -> str:
        seen = variable.get()
        variable.set("of the task")
        return seen

    variable.set("captured")
    context = contextvars.copy_context()
    variable.set("of the caller")
    loop = asyncio.get_running_loop()
    tasks = [start_task(loop, context, look()), start_task(loop, context, look())]
    assert await asyncio.gather(*tasks) == ["captured", "captured"]
    assert (variable.get(), context[variable]) == ("of the caller", "captured")


@pytest.mark.every_loop
async def test_a_task_is_kept_until_it_ends() -> None:
    ended = []

    async def waits() -> None:
        await turns()
        ended.append(True)

    before = set(_alive)
    start_task(asyncio.get_running_loop(), contextvars.copy_context(), waits())
    gc.collect()
    assert len(_alive - before) == 1
    await turns(20)
    assert ended == [True]
    assert not _alive - before


@pytest.mark.every_loop
async def test_a_task_factory_of_two_arguments_will_do() -> None:
    loop = asyncio.get_running_loop()
    usual = loop.get_task_factory()

    def old_style(loop: asyncio.AbstractEventLoop, coroutine: object) -> asyncio.Task[object]:
        return asyncio.Task(coroutine, loop=loop)  # type: ignore[arg-type]

    loop.set_task_factory(old_style)  # type: ignore[arg-type]
    task = start_task(loop, contextvars.copy_context(), turns())
    loop.set_task_factory(usual)
    await task
