"""The demo's subscriptions over real websockets: they move, they keep up, and they end in every way there is."""
# ruff: noqa: A001  # `id` is GraphQL's word

from __future__ import annotations

import asyncio
import datetime as dt
import json
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import websockets

from example_app import app as demo_app
from example_app.build import VARIABLE
from example_app.service import Service
from loader.streams import conflate
from tests.serving import TRANSPORT_WS, Server, Socket, connect, post
from tests.test_example_app import environment
from tests.test_example_board import departure, scheduled
from tests.test_example_data import ROOT, built, ids_by
from tests.test_example_service import STREAMS, others

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from sqlalchemy import URL

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.usefixtures("nothing_is_logged"),
    # Where a client leaves while a connection to SQLite is being opened, aiosqlite lets the garbage collector close it.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <sqlite3.Connection:pytest.PytestUnraisableExceptionWarning"
    ),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]

FAST = """subscription { departures(origin: "JFK", speed: 3600, since: "2013-01-15T15:00:00Z") {
    time status flight { id delayedBy destination { name } } } }"""


@pytest.fixture
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname in {"WARNING", "ERROR"}] == []


@pytest.fixture
def url(tmp_path: Path) -> URL:
    """A database of the test's own."""
    shutil.copy(built().database or "", tmp_path)
    return built().set(database=str(tmp_path / "flights.sqlite3"))


class Demo(Server):
    """The demo on a real socket, started and stopped as uvicorn does; `service` is what its requests share."""

    service: Service


@asynccontextmanager
async def serving(url: URL, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Demo]:
    services: list[Service] = []

    class Known(Service):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            services.append(self)

    monkeypatch.setattr(demo_app, "Service", Known)
    app = demo_app.create_app(url)
    async with app.router.lifespan_context(app):
        server = Demo(app)
        (server.service,) = services
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # and thereby that of each connection
        async with server:
            yield server


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # the test looks on from outside
            await asyncio.sleep(0.01)


async def nobody_follows(server: Demo) -> None:
    """Wait until the subscriptions are over, and see that nothing is left of them."""
    await eventually(lambda: not any("Flow.pull" in repr(task.get_coro()) for task in others()))
    await eventually(lambda: not server.service.searches._open)
    await eventually(lambda: not server.service.statistics.snapshot._followers)


async def event(client: Socket, key: str) -> Any:
    kind, payload = await client.get(key)
    assert (kind, payload.get("errors")) == ("next", None)
    return next(iter(payload["data"].values()))


async def test_one_socket_follows_the_board_the_statistics_and_a_search_and_sees_what_it_changes(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(url, monkeypatch) as server, connect(server.address, TRANSPORT_WS) as client:
        await client.start("board", FAST)
        await client.start("statistics", "subscription { routeStatistics { refreshes routes { delayed } } }")
        await client.start("search", 'subscription { searchAirports(id: "mine") { text airports { name } } }')
        assert (await event(client, "statistics"))["refreshes"] == 1
        while (line := await event(client, "board"))["status"] != "SCHEDULED":
            pass
        id = line["flight"]["id"]
        answer = await client.ask(f"mutation {{ delayFlight(id: {id}, minutes: 240) {{ delayedBy }} }}")
        assert answer["data"] == {"delayFlight": {"delayedBy": 240}}
        while (line := await event(client, "board"))["flight"]["id"] != id or not line["flight"]["delayedBy"]:
            pass
        assert (line["status"], line["flight"]["delayedBy"]) == ("DELAYED", 240)
        statistics = await event(client, "statistics")
        assert statistics["refreshes"] == 2

        assert (await event(client, "search"))["text"] == ""
        for text in ("k", "ke", "kenn"):
            assert (await client.ask(f'mutation {{ typeSearch(id: "mine", text: "{text}") }}')).get("errors") is None
        answer = await event(client, "search")
        assert answer["text"] == "kenn"
        assert {"name": "John F Kennedy Intl"} in answer["airports"]


async def test_several_clients_follow_boards_of_their_own_while_others_change_flights(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def follow(origin: str) -> list[Any]:
        async with connect(server.address, TRANSPORT_WS) as client:
            await client.start("1", FAST.replace("JFK", origin))
            return [await event(client, "1") for _ in range(40)]

    async with serving(url, monkeypatch) as server:
        origins = ["JFK", "LGA", "EWR"] * 2
        following = asyncio.gather(*[follow(origin) for origin in origins])
        for id in range(1, 20):
            answer = await post(server.address, f"mutation {{ delayFlight(id: {id * 30}, minutes: 5) {{ id }} }}")
            assert answer.status_code == 200
        for origin, lines in zip(origins, await following, strict=True):
            assert {line["flight"]["id"] for line in lines} <= set(ids_by("origin")[origin])
        await nobody_follows(server)


async def test_a_client_that_does_not_read_for_a_while_gets_the_newest_states_then(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hours of the board pass while the client does not read: far more text than the sockets' buffers hold.
    since = dt.datetime(2013, 1, 31, 12, tzinfo=dt.UTC)
    bulk = " ".join(f"again{n}: scheduledDeparture" for n in range(40))
    query = f"""subscription {{ departures(origin: "EWR", speed: 43200, since: "{since.isoformat()}") {{
        status flight {{ id {bulk} }} }} }}"""
    async with serving(url, monkeypatch) as server:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        host, port = server.address.split(":")
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        async with websockets.connect(
            f"ws://{server.address}/graphql",
            sock=raw, subprotocols=[websockets.Subprotocol(TRANSPORT_WS)], max_queue=1, compression=None, proxy=None,
        ) as connection:  # fmt: skip
            await connection.send(json.dumps({"type": "connection_init"}))
            await connection.recv()
            await connection.send(json.dumps({"type": "subscribe", "id": "1", "payload": {"query": query}}))
            seen = [json.loads(await connection.recv())]
            (stream,) = server.service._streams
            assert isinstance(stream, conflate)
            await eventually(lambda: "ended" in repr(stream))  # the month is over, and the client has not read
            ids = [id for id in ids_by("origin")["EWR"] if (departure(id) or scheduled(id)) > since]
            assert len(stream._flow.held) <= len(ids)
            async with asyncio.timeout(30):
                while seen[-1]["type"] == "next":
                    seen.append(json.loads(await connection.recv()))
        assert seen.pop()["type"] == "complete"
        assert stream.conflated > 0
        assert stream.received == stream.emitted + stream.conflated
        assert len(seen) == stream.emitted
        lines = [message["payload"]["data"]["departures"] for message in seen]
        assert {line["flight"]["id"]: line["status"] for line in lines} == {
            id: "DEPARTED" if departure(id) else "CANCELLED" for id in ids
        }
        await nobody_follows(server)


@pytest.mark.parametrize("how", ["completes", "disconnects", "vanishes", "server stops"])
async def test_however_a_client_leaves_nothing_of_its_subscriptions_stays(
    url: URL, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with serving(url, monkeypatch) as server:
        async with connect(server.address, TRANSPORT_WS) as client:
            for key, query in enumerate([*STREAMS, FAST]):
                await client.start(str(key), query)
            for key in range(4):
                await event(client, str(key))
            if how == "completes":
                for key in range(4):
                    await client.stop(str(key))
                await nobody_follows(server)
            elif how == "vanishes":
                client.connection.transport.abort()
            elif how == "server stops":
                server.uvicorn.should_exit = True
                await server.task
        await nobody_follows(server)


async def test_a_search_that_is_completed_can_be_subscribed_to_again_at_once(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(url, monkeypatch) as server, connect(server.address, TRANSPORT_WS) as client:
        for key in "abcdef":
            await client.start(key, STREAMS[2])
            assert await event(client, key) == {"text": ""}
            await client.stop(key)
        await client.start("last", STREAMS[2])
        assert await event(client, "last") == {"text": ""}
        assert (await client.ask('mutation { typeSearch(id: "mine", text: "newark") }')).get("errors") is None
        assert await event(client, "last") == {"text": "newark"}


def test_the_command_stops_at_once_with_subscriptions_open_and_starts_again_without_delays(url: URL) -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "example_app", "--port", "0"],
            env=environment(**{VARIABLE: url.render_as_string()}, EXAMPLE_LOG="off"), cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def address(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().split("//")[1].split("/")[0]

    def delayed_by(address: str) -> int:
        query = {"query": "{ flight(id: 7) { delayedBy } }"}
        answer = httpx.post(f"http://{address}/graphql", json=query, trust_env=False).json()
        delayed: int = answer["data"]["flight"]["delayedBy"]
        return delayed

    async def use(address: str) -> None:
        async with connect(address, TRANSPORT_WS) as client:
            for key, query in enumerate([*STREAMS, FAST]):
                await client.start(str(key), query)
            for key in range(4):
                await event(client, str(key))
            await client.ask("mutation { delayFlight(id: 7, minutes: 30) { id } }")
            first.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(first.wait, 20) == 0

    with start() as first:
        where = address(first)
        asyncio.run(use(where))
        assert first.stderr is not None
        assert first.stderr.read() == ""
    with start() as second:
        assert delayed_by(address(second)) == 0
        second.send_signal(signal.SIGINT)
        assert second.wait(20) == 0
