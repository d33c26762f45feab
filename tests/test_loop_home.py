"""Which loop an object belongs to, and tasks that are kept until they end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys

import pytest

from loader import DataLoader, LoaderLoopError, _dataloader
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


FORKS = """
import asyncio, os
from loader import DataLoader, LoaderLoopError

async def fetch(keys):
    return keys

async def main():
    loader = DataLoader(fetch)
    assert await loader.load(1) == 1
    child = os.fork()
    if not child:
        try:
            loader.load(2)
        except LoaderLoopError:
            os._exit(7)
        os._exit(8)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), await loader.load(3))

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_copy_of_a_running_loop_in_a_forked_process_is_no_home() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("7 3\n", "")


async def test_a_forked_process_asks_which_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(keys: list[int]) -> list[int]:
        return keys

    monkeypatch.setattr(_dataloader, "_asking_is_dear", True)
    loader = DataLoader(fetch)
    assert await loader.load(1) == 1
    _dataloader._forked()
    assert not _dataloader._asking_is_dear
    assert await loader.load(2) == 2


@pytest.mark.parametrize("dear", [True, False])
def test_a_loader_knows_its_loop_whichever_way_it_asks(dear: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dataloader, "_asking_is_dear", dear)

    async def fetch(keys: list[int]) -> list[int]:
        return keys

    loader = DataLoader(fetch)

    async def load(key: int) -> int:
        return await loader.load(key)

    first = loops.new_loop()
    assert first.run_until_complete(load(1)) == 1
    with pytest.raises(LoaderLoopError, match="where no event loop runs"):
        loader.load(2)
    with pytest.raises(LoaderLoopError, match="belongs to another event loop, which is still open"):
        loops.run(lambda: load(3))

    async def elsewhere() -> None:
        assert await loader.load(4) == 4
        with pytest.raises(LoaderLoopError, match="where no event loop runs"):
            await asyncio.to_thread(loader.load, 5)
        with pytest.raises(LoaderLoopError, match="belongs to another event loop, which is still open"):
            await asyncio.to_thread(loops.run, lambda: load(6))

    first.run_until_complete(elsewhere())
    first.close()
    assert loops.run(lambda: load(7)) == 7


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
