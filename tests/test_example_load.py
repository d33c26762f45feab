"""The demo under load from this process, with hostile clients beside honest ones: every honest answer is right."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from benchmarks.load import Outcome, Server, load, serving, truth
from tests.serving import TRANSPORT_WS, connect
from tests.test_example_limits import HOSTILE
from tests.test_example_view import MALFORMED, STATISTICS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

SECONDS, CONNECTIONS = 4, 5


async def ask_what_is_too_much(address: str) -> None:
    """Each hostile query, which gets an error that says what is wrong."""
    async with aiohttp.ClientSession() as session:
        for query, message in HOSTILE.values():
            async with session.post(
                f"http://{address}/graphql", data=json.dumps({"query": query}), headers=JSON
            ) as response:
                if response.status == 413:
                    assert await response.text() == "The request may have 100,000 bytes at most."
                else:
                    assert message in (await response.json())["errors"][0]["message"]


async def send_what_is_no_request(address: str) -> None:
    """Bodies that are none, which get status 400, and one that never ends."""
    async with aiohttp.ClientSession() as session:
        for body in (b"\xff", b"[" * 50_000, b'{"query": ["a"]}', b"null"):
            async with session.post(f"http://{address}/graphql", data=body, headers=JSON) as response:
                assert response.status == 400

        async def endless() -> Any:
            while True:
                yield b"x" * 10_000
                await asyncio.sleep(0)

        with suppress(aiohttp.ClientError):  # the server has answered, and reads no more
            async with session.post(f"http://{address}/graphql", data=endless(), headers=JSON) as response:
                assert response.status == 413


async def flood_a_socket(address: str) -> None:
    """Far more subscriptions than one socket may have, some of them stopped and started again."""
    async with connect(address, TRANSPORT_WS) as client:
        for number in range(300):
            await client.start(str(number), STATISTICS)
            if number % 3 == 0:
                await client.stop(str(number))
        refused = 0
        for number in range(1, 300, 3):
            kind, _ = await client.get(str(number), 60)
            refused += kind == "error"
        assert refused > 0


async def send_what_is_no_message(address: str) -> None:
    """Messages that are none, and sockets that are left without a goodbye."""
    for message in MALFORMED:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://{address}/graphql", protocols=[TRANSPORT_WS]) as socket,
        ):
            await socket.send_json({"type": "connection_init"})
            await socket.receive()
            await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_str(str(message)))
            while not (await socket.receive()).type.name.startswith("CLOS"):
                pass
            assert socket.close_code == 4400


JSON = {"content-type": "application/json"}
ATTACKS: list[Callable[[str], Awaitable[None]]] = [
    ask_what_is_too_much,
    send_what_is_no_request,
    flood_a_socket,
    send_what_is_no_message,
]


async def attack(how: Callable[[str], Awaitable[None]], address: str, done: asyncio.Event) -> None:
    await how(address)
    while not done.is_set():
        await how(address)


async def honest(server: Server, done: asyncio.Event) -> Outcome:
    try:
        return await load(server.address, seconds=SECONDS, connections=CONNECTIONS)
    finally:
        done.set()


async def test_honest_clients_get_right_answers_beside_hostile_ones_and_nothing_stays_of_either() -> None:
    truth()
    async with serving("example_app") as server:  # it stops cleanly, and has no error to report
        await load(server.address, seconds=1, connections=CONNECTIONS)
        tasks = await server.settled(5)
        before = await server.metrics()
        done = asyncio.Event()
        async with asyncio.TaskGroup() as everybody:
            for how in ATTACKS:
                everybody.create_task(attack(how, server.address, done))
            outcome = await honest(server, done)
        assert outcome.wrong == []
        assert len(outcome.times) > CONNECTIONS
        assert await server.settled(tasks) <= tasks
        after = await server.metrics()
        assert after["process_open_fds"] < before["process_open_fds"] + 20
        assert after["process_resident_memory_bytes"] < before["process_resident_memory_bytes"] + 100e6


async def test_the_graph_on_strawberrys_loaders_answers_the_load_too() -> None:
    async with serving("benchmarks.load_peer") as server:
        outcome = await load(server.address, seconds=1, connections=CONNECTIONS)
    assert outcome.wrong == []
    assert len(outcome.times) >= 4


async def test_a_wrong_answer_is_seen() -> None:
    outcome = Outcome()
    right = truth().asked("JFK", 1)
    outcome.check("query Departures(", {"data": right}, right)
    assert outcome.wrong == []
    outcome.check("query Departures(", {"data": None, "errors": []}, right)
    outcome.check("query Departures(", {"data": right, "errors": [1]}, right)
    assert len(outcome.wrong) == 2
