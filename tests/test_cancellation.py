"""Cancellation at every step: no caller is hurt by another's, none waits forever, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from loader import DataLoader, LoaderClosedError, LoaderError, Loaders, LoaderTimeoutError, dataloader
from tests import loops
from tests.fakes import Backend, awaits, outcome, together, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

STEPS = 14


async def pairs(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
    for key in keys:
        await turns(1)
        yield key, f"v{key}"


async def values(keys: list[int]) -> list[str]:
    await turns(3)
    return [f"v{key}" for key in keys]


class Nested(Loaders, max_concurrent_batches=1):
    @dataloader
    async def outer(self, keys: list[int]) -> list[str]:
        return await self.inner.load_many(keys)

    @dataloader
    async def inner(self, keys: list[int]) -> list[str]:
        return await values(keys)


LOADERS: dict[str, Callable[[], DataLoader[int, str]]] = {
    "coroutine": lambda: DataLoader(values),
    "generator": lambda: DataLoader(pairs),
    "one at a time": lambda: DataLoader(values, max_batch_size=1, max_concurrent_batches=1),
    "abandoned": lambda: DataLoader(values, abandoned="cancel", cache=False),
    "abandoned generator": lambda: DataLoader(pairs, abandoned="cancel", max_batch_size=2),
    "nested": lambda: Nested().outer,
}

every_loader = pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)


@pytest.mark.every_loop
@every_loader
async def test_cancelling_one_caller_at_any_step_leaves_the_others_their_values(
    make: Callable[[], DataLoader[int, str]],
) -> None:
    for step in range(STEPS):
        for victim in range(4):
            loader = make()
            callers = [
                awaits(loader.load(1)),
                awaits(loader.load(1)),
                awaits(loader.load(2)),
                awaits(loader.load_many([1, 2, 3])),
            ]
            await turns(step)
            callers[victim].cancel()
            results = await together(*callers, return_exceptions=True)
            expected: list[Any] = ["v1", "v1", "v2", ["v1", "v2", "v3"]]
            for number, result in enumerate(results):
                if number != victim or not isinstance(result, asyncio.CancelledError):
                    assert result == expected[number], f"step {step}, caller {number}, with {victim} cancelled"
            # And the loader is as good as new.
            assert await loader.load_many([1, 4]) == ["v1", "v4"]


@pytest.mark.every_loop
@every_loader
async def test_cancelling_every_caller_at_any_step_leaves_a_loader_that_serves_the_next(
    make: Callable[[], DataLoader[int, str]],
) -> None:
    for step in range(STEPS):
        loader = make()
        callers = [awaits(loader.load(1)), awaits(loader.load_many([1, 2, 3]))]
        await turns(step)
        for caller in callers:
            caller.cancel()
        again = awaits(loader.load_many([1, 2, 4]))
        await together(*callers, return_exceptions=True)
        assert await again == ["v1", "v2", "v4"]
        await turns(30)
        assert (loader._waiting, loader._batches, loader._unsent) == ({}, set(), 0)


@pytest.mark.every_loop
@every_loader
async def test_closing_at_any_step_answers_every_caller(make: Callable[[], DataLoader[int, str]]) -> None:
    for step in range(STEPS):
        loader = make()
        callers = [awaits(loader.load(1)), awaits(loader.load(2)), awaits(loader.load_many([2, 3]))]
        await turns(step)
        await loader.aclose()
        for result in await together(*callers, return_exceptions=True):
            assert result in ("v1", "v2", ["v2", "v3"]) or isinstance(result, LoaderClosedError)
        assert (loader._waiting, loader._unsent) == ({}, 0)
        await turns(30)  # what an outer batch was waiting for belongs to another loader
        assert loader._batches == set()


@pytest.mark.every_loop
@every_loader
async def test_cancelling_the_batch_itself_at_any_step_answers_every_caller(
    make: Callable[[], DataLoader[int, str]],
) -> None:
    for step in range(STEPS):
        loader = make()
        callers = [awaits(loader.load(1)), awaits(loader.load_many([1, 2]))]
        await turns(step)
        for batch in list(loader._batches):
            assert batch.task is not None
            batch.task.cancel()
        for result in await together(*callers, return_exceptions=True):
            assert result in ("v1", ["v1", "v2"]) or isinstance(result, LoaderError)
        assert await loader.load_many([1, 4]) == ["v1", "v4"]


@pytest.mark.every_loop
async def test_a_close_that_is_cancelled_has_closed_all_the_same() -> None:
    for step in range(1, 4):
        may_end = asyncio.Event()

        async def cleans_up(keys: list[int], may_end: asyncio.Event = may_end) -> list[str]:
            try:
                return await asyncio.Event().wait()  # type: ignore[return-value]
            finally:
                await may_end.wait()

        loader = DataLoader(cleans_up)
        caller = loader.load(1)
        await turns()
        closing = awaits(loader.aclose())
        await turns(step)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert isinstance(await outcome(caller), LoaderClosedError)
        may_end.set()
        await loader.aclose()


@pytest.mark.parametrize("kind", loops.KINDS)
@pytest.mark.parametrize("step", range(STEPS))
@every_loader
def test_a_loop_that_ends_at_any_step_leaves_nothing_and_reports_nothing(
    make: Callable[[], DataLoader[int, str]], step: int, kind: str
) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def main() -> None:
        loader = make()
        tasks.extend((awaits(loader.load(1)), awaits(loader.load_many([1, 2]))))
        await turns(step)

    loop = loops.new_loop(kind)
    reports: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reports.append(context))
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    gc.collect()
    assert all(task.done() for task in tasks)
    assert reports == []


def test_a_batch_that_never_started_when_its_loop_ends_answers_its_callers() -> None:
    answers: list[BaseException] = []

    async def main() -> None:
        loader = DataLoader(Backend())
        loader.load(1).add_done_callback(lambda future: answers.append(future.exception() or AssertionError()))

    loops.run(main)
    asyncio.run(main())
    assert [str(answer) for answer in answers[-1:]] == [
        "Backend: the batch was cancelled with its task, as when a loop ends"
    ]


@pytest.mark.every_loop
async def test_a_task_group_whose_child_fails_leaves_the_loader_usable() -> None:
    loader = DataLoader(Backend())

    async def fails() -> None:
        raise ZeroDivisionError

    async def loads() -> None:
        await loader.load(1)

    async def request() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(loads())
            group.create_task(fails())

    assert isinstance(await outcome(request()), ExceptionGroup)
    assert await loader.load(1) == "v1"


@pytest.mark.every_loop
async def test_a_caller_cancelled_in_the_turn_of_its_answer_is_cancelled_or_answered() -> None:
    gate = asyncio.Event()
    for before in (True, False):
        loader = DataLoader(Backend(gate=gate), cache=False)
        caller, other = awaits(loader.load(1)), awaits(loader.load(1))
        await turns()
        if before:
            caller.cancel()
        gate.set()
        await turns(1)
        caller.cancel()
        assert isinstance(await outcome(caller), asyncio.CancelledError)
        assert await other == "v1"
        gate.clear()


async def test_a_time_out_at_any_step_of_the_function_answers_every_caller() -> None:
    for limit in (0, 1, 2, 3, 4):

        async def slow(keys: list[int]) -> list[str]:
            for _ in range(3):
                await asyncio.sleep(1)
            return [f"v{key}" for key in keys]

        async def slow_pairs(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
            for key in keys:
                await asyncio.sleep(1.2)
                yield key, f"v{key}"

        for loader in (DataLoader(slow, timeout=limit), DataLoader(slow_pairs, timeout=limit)):
            results = await together(loader.load(1), loader.load(2), loader.load_many([1, 2]), return_exceptions=True)
            for result in results:
                assert result in ("v1", "v2", ["v1", "v2"]) or isinstance(result, LoaderTimeoutError)
            assert (loader._waiting, loader._unsent) == ({}, 0)
            await loader.aclose()


@pytest.mark.every_loop
async def test_an_awaitable_that_was_never_awaited_harms_nobody() -> None:
    loader = DataLoader(Backend())
    forgotten: Awaitable[str] = loader.load(1)
    assert await loader.load(2) == "v2"
    del forgotten
