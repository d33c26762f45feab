"""The loop with a virtual clock: time jumps where only a timer is waited for, is real where a thread or socket is."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from loader import DataLoader, LoaderError
from loader.testing import DeadlockError, VirtualClockLoop
from tests.fakes import turns

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)


def test_a_day_of_sleep_takes_no_time_and_ends_when_it_should() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for seconds in (0, 0.25, 86_400):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    assert run(main()) == [0, 0, 0.25, 86_400.25]


def test_after_years_timers_still_fire_even_those_that_are_due_at_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for seconds in (1e7, 1e8, 0.1, 1e-9, 0.3):
            await asyncio.sleep(seconds)
            due = asyncio.Event()
            loop.call_later(0, due.set)
            await due.wait()
        assert loop.time() == pytest.approx(1.1e8 + 0.4)

    run(main())


def test_a_sleep_of_any_length_is_one_jump() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = []
        for seconds in (86_400 * 3.5, 1e12, 1e300):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    assert run(main()) == pytest.approx([302_400, 1e12, 1e300])


def test_who_sleeps_for_ever_is_found_where_nothing_else_is_waited_for() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(math.inf), name="the sleeper")
            await asyncio.sleep(1e6)

    with pytest.raises(DeadlockError, match="the sleeper at "):
        run(main())


def test_timers_fire_in_order_and_the_clock_stands_still_while_anything_can_run() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            await turns(100)
            seen.append((name, round(loop.time(), 6)))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("c", 3), ("a", 1), ("b", 2)):
                group.create_task(sleeper(name, seconds))
        return seen

    assert run(main()) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_timeout_is_over_at_once() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()

    run(main())


def test_a_deadlock_is_an_error_that_names_who_waits_and_where() -> None:
    async def waits_forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits_forever(), name="the other")

    line = waits_forever.__code__.co_firstlineno + 1
    with pytest.raises(DeadlockError) as caught:
        run(main())
    text = str(caught.value)
    assert text.startswith(
        "nothing can run and no timer will ever be due, so who waits now would wait forever. Waiting: Task-"
    )
    assert f"the other at {__file__}:{line}" in text
    assert "an ordinary loop" in text
    assert isinstance(caught.value, LoaderError)


def test_a_deadlock_without_a_task_is_an_error_too() -> None:
    loop = VirtualClockLoop()
    with pytest.raises(DeadlockError, match="Waiting: no task"):
        loop.run_forever()
    loop.close()


def test_a_loop_goes_on_after_a_deadlock() -> None:
    async def waits_forever() -> None:
        await asyncio.Event().wait()

    async def answer() -> int:
        await asyncio.sleep(1)
        return 42

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        with pytest.raises(DeadlockError):
            runner.run(waits_forever())
        assert runner.run(answer()) == 42


def test_a_worker_thread_is_waited_for_in_real_time_and_then_the_clock_is_virtual_again() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate = threading.Event()
        loop.call_later(0.01, gate.set)  # nothing but this timer lets the thread end
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(gate.wait, 30)
        assert 0.01 <= loop.time() < 60
        await asyncio.sleep(86_400)
        assert loop.time() > 86_400

    run(main())  # and the threads are waited for where the loop is closed


def test_a_thread_that_nobody_waits_for_any_more_holds_up_no_clock() -> None:
    async def main() -> None:
        gate = threading.Event()
        waiting = asyncio.ensure_future(asyncio.to_thread(gate.wait, 30))
        await turns()
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(86_400)
        with pytest.raises(DeadlockError):
            asyncio.get_running_loop()._selector.select()  # type: ignore[attr-defined]
        gate.set()

    run(main())


def test_a_batch_function_that_is_a_plain_function_works() -> None:
    def doubles(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    async def main() -> list[int]:
        loader = DataLoader(doubles, window=3600, timeout=60)
        return await loader.load_many([1, 2])

    assert run(main()) == [2, 4]


def test_a_socket_is_waited_for_in_real_time() -> None:
    async def main() -> None:
        ours, other = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        answer = threading.Timer(0.05, partial(other.send, b"answer\n"))
        answer.start()
        async with asyncio.timeout(60):
            assert await reader.readline() == b"answer\n"
        assert asyncio.get_running_loop().time() < 60
        writer.close()
        await writer.wait_closed()
        answer.join()
        other.close()
        await asyncio.sleep(86_400)

    run(main())


def test_what_another_thread_has_called_before_the_loop_looks_is_heard() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=[answer.set_result, 42])
        thread.start()
        thread.join()
        return await answer

    assert run(main()) == 42


def test_a_thread_that_the_loop_did_not_start_is_not_seen_and_the_error_says_so() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()  # for a driver's thread to answer, say

    with pytest.raises(
        DeadlockError, match=re.escape("a thread that the loop did not start (a database driver's, say)")
    ):
        run(main())
