"""A server that fails costs a bounded time once, and is then left alone until one call in the background finds it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from loader.redis import BreakerState
from loader.redis._guard import Guard, end
from tests.fakes import turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Server:
    """A server that answers, fails or hangs, and counts what it was asked."""

    def __init__(self) -> None:
        self.state = "up"
        self.calls = 0
        self.probes = 0
        self.owes = False
        self.guard = Guard(timeout=0.25, retry_after=1.0, probe=self.probe, owes=lambda: self.owes, who="the cache")

    async def answer(self) -> str:
        self.calls += 1
        if self.state == "hangs":
            await asyncio.sleep(3600)
        if self.state == "down":
            raise ConnectionError("down")
        return "yes"

    async def probe(self) -> None:
        self.probes += 1
        self.calls -= 1
        await self.answer()
        self.owes = False

    def state_of(self) -> BreakerState:
        return self.guard.state

    async def ask(self) -> str | None:
        return await self.guard.call(self.answer)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_server_that_answers_is_called() -> None:
    server = Server()
    assert await server.ask() == "yes"
    assert (server.guard.state, server.guard.opened) == (BreakerState.CLOSED, 0)


@pytest.mark.parametrize(("state", "costs"), [("down", 0), ("hangs", 0.25)])
async def test_a_failure_costs_its_time_once_and_then_nothing(state: str, costs: float) -> None:
    server = Server()
    server.state = state
    assert [await server.ask() for _ in range(5)] == [None] * 5
    assert now() == costs
    assert server.calls == 1
    assert server.state_of() is BreakerState.OPEN
    assert isinstance(server.guard.last_error, ConnectionError if state == "down" else TimeoutError)


async def test_the_log_says_once_that_a_server_fails_and_again_when_it_does_so_after_it_was_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    for state in ("down", "up", "down"):
        server.state = state
        for _ in range(3):
            await server.ask()
            await asyncio.sleep(2)
    said = "'the cache': the server failed, and is not used until it is back: ConnectionError('down')"
    assert caplog.record_tuples == [("loader", logging.WARNING, said)] * 2


async def test_after_a_while_one_call_in_the_background_finds_out_and_nobody_waits_for_it() -> None:
    server = Server()
    server.state = "hangs"
    await server.ask()
    await asyncio.sleep(1)
    assert [await server.ask() for _ in range(3)] == [None] * 3
    assert now() == 1.25
    assert server.state_of() is BreakerState.HALF_OPEN
    await asyncio.sleep(0.3)
    assert server.state_of() is BreakerState.OPEN
    assert (server.calls, server.probes) == (1, 1)
    server.state = "up"
    await asyncio.sleep(1)
    assert await server.ask() is None
    await turns()
    assert server.state_of() is BreakerState.CLOSED
    assert await server.ask() == "yes"
    assert (server.guard.opened, server.guard.failures) == (1, 2)


async def test_calls_that_are_under_way_when_it_fails_fail_as_one() -> None:
    server = Server()
    server.state = "hangs"
    assert await asyncio.gather(*(server.ask() for _ in range(3))) == [None] * 3
    assert (server.guard.opened, server.guard.failures) == (1, 3)


async def test_who_owes_something_looks_again_although_nobody_asks() -> None:
    server = Server()
    server.state, server.owes = "down", True
    await server.ask()
    await asyncio.sleep(2.5)
    assert server.probes == 2
    server.state = "up"
    await asyncio.sleep(1)
    assert (server.probes, server.owes, server.guard.state) == (3, False, BreakerState.CLOSED)


async def test_a_suspected_server_is_looked_for_at_once() -> None:
    server = Server()
    server.guard.suspect()
    assert await server.ask() is None
    await turns()
    assert (server.probes, server.guard.state) == (1, BreakerState.CLOSED)


async def test_a_caller_that_is_cancelled_says_nothing_about_the_server() -> None:
    server = Server()
    server.state = "hangs"
    task = asyncio.ensure_future(server.ask())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert server.state_of() is BreakerState.CLOSED


async def test_closing_ends_the_look_that_is_under_way_and_the_one_to_come() -> None:
    for later in (0.0, 1.1):
        server = Server()
        server.state, server.owes = "hangs", True
        await server.ask()
        await asyncio.sleep(later)
        await server.guard.aclose()
        await server.guard.aclose()
        assert await server.ask() is None
        assert server.state_of() is BreakerState.OPEN
        server.guard.look_again()
    assert await server.guard.attempt(server.answer) is None


async def test_a_failure_during_the_look_counts_although_the_look_succeeds() -> None:
    server = Server()
    gate = asyncio.Event()

    async def slow_probe() -> None:
        await gate.wait()

    guard = server.guard = Guard(timeout=10, retry_after=1, probe=slow_probe, owes=lambda: False, who="the cache")

    async def fail(wait: float) -> None:
        await asyncio.sleep(wait)
        raise ConnectionError

    def failing(wait: float) -> Callable[[], Awaitable[None]]:
        return lambda: fail(wait)

    late = asyncio.ensure_future(guard.call(failing(2)))
    await asyncio.sleep(0)
    await guard.call(failing(0))
    await asyncio.sleep(1.5)
    await guard.call(server.answer)
    await turns()
    assert server.state_of() is BreakerState.HALF_OPEN
    await late
    assert server.state_of() is BreakerState.OPEN
    gate.set()
    await turns()
    assert server.state_of() is BreakerState.OPEN


async def test_a_task_that_takes_a_cancellation_for_something_else_is_ended_all_the_same() -> None:
    async def deaf() -> None:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    task = asyncio.ensure_future(deaf())
    await turns()
    await end(task)
    assert task.cancelled()
    assert now() < 1
