"""Subscriptions over real sockets, a hundred at a time, ended in every way there is: each source is closed.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
import strawberry
import websockets
from strawberry.asgi import GraphQL

from loader.streams import conflate, debounce, throttle
from tests.serving import LEGACY_WS, PROTOCOLS, TRANSPORT_WS, Server

SOCKETS, EACH = 10, 10
COUNT = SOCKETS * EACH
FIELDS = ["returned", "iterated", "held"]

pytestmark = pytest.mark.logs  # `nothing_is_logged` looks at what asyncio reported

OPERATORS: list[Callable[[AsyncIterable[int]], Any]] = [
    lambda source: debounce(source, wait=0.001),
    lambda source: throttle(source, interval=0.001),
    conflate,
]


class Sources:
    """Counts the sources that are open."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.all_closed = asyncio.Event()
        self.errors: list[str] = []

    async def values(self, then: str) -> AsyncIterator[int]:
        """Two values, and what comes `then`."""
        self.opened += 1
        try:
            for n in range(2):
                yield n
                await asyncio.sleep(0.01)
            while then == "flows":
                yield 2
                await asyncio.sleep(0.2)
            if then == "raises":
                raise OSError("the source is gone")
            if then == "waits":
                await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)  # as a source that says goodbye to somebody
            self.closed += 1
            if self.closed == COUNT:
                self.all_closed.set()


def subscription(n: int, then: str) -> str:
    """A subscription; the first nine use every operator in every kind of resolver."""
    return f'subscription {{ value: {FIELDS[n % 3]}(n: {n}, then: "{then}") }}'


Info = strawberry.Info[dict[str, Any], None]


@strawberry.type
class Query:
    ok: bool = True


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def returned(self, info: Info, n: int, then: str) -> AsyncIterator[int]:
        """A resolver that returns the operator."""
        operator: AsyncIterator[int] = OPERATORS[n // 3 % 3](info.context["sources"].values(then))
        return operator

    @strawberry.subscription
    async def iterated(self, info: Info, n: int, then: str) -> AsyncGenerator[int, None]:
        """A generator that iterates the operator and leaves the rest to it."""
        async for value in OPERATORS[n // 3 % 3](info.context["sources"].values(then)):
            yield value

    @strawberry.subscription
    async def held(self, info: Info, n: int, then: str) -> AsyncGenerator[int, None]:
        """A generator that closes the operator."""
        async with OPERATORS[n // 3 % 3](info.context["sources"].values(then)) as values:
            async for value in values:
                yield value


class Schema(strawberry.Schema):
    def process_errors(self, errors: Any, execution_context: Any = None) -> None:
        """Keep the errors, which Strawberry would log."""
        execution_context.context["sources"].errors.extend(str(error) for error in errors)


schema = Schema(Query, subscription=Subscription)


class App(GraphQL[Any, Any]):
    def __init__(self, sources: Sources) -> None:
        super().__init__(schema, subscription_protocols=PROTOCOLS)
        self.sources = sources

    async def get_context(self, request: Any, response: Any) -> Any:
        return {"sources": self.sources}


class Client:
    """A websocket with `EACH` subscriptions, which reads whatever comes."""

    def __init__(self, connection: websockets.ClientConnection, protocol: str) -> None:
        self.connection = connection
        self.legacy = protocol == LEGACY_WS
        self.messages: list[Any] = []
        self.missing: dict[str, set[Any]] = {"next": self.ids(), "complete": self.ids()}
        self.seen = {kind: asyncio.Event() for kind in self.missing}

    @staticmethod
    def ids() -> set[Any]:
        return {str(n) for n in range(EACH)}

    async def send(self, kind: str, **message: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, **message}))

    async def subscribe(self, first: int, then: str) -> None:
        """Start the subscriptions."""
        await self.send("connection_init")
        for n in range(EACH):
            payload = {"query": subscription(first + n, then)}
            await self.send("start" if self.legacy else "subscribe", id=str(n), payload=payload)

    async def read(self) -> None:
        """Read to the end of the connection, and note which subscriptions have a value, and which are over."""
        with suppress(websockets.ConnectionClosed):
            while True:
                self.messages.append(message := json.loads(await self.connection.recv()))
                kind = "next" if message["type"] == "data" else message["type"]
                if kind in self.missing:
                    self.missing[kind].discard(message["id"])
                    if not self.missing[kind]:
                        self.seen[kind].set()

    def values(self) -> list[Any]:
        """The payloads that came."""
        return [message["payload"] for message in self.messages if "id" in message and "payload" in message]

    async def complete(self) -> None:
        """End each subscription."""
        for n in range(EACH):
            await self.send("stop" if self.legacy else "complete", id=str(n))


@asynccontextmanager
async def clients(server: Server, protocol: str, then: str) -> AsyncIterator[list[Client]]:
    """`SOCKETS` websockets, whose subscriptions have had a value each."""
    async with asyncio.TaskGroup() as readers, asyncio.timeout(30):
        everyone = []
        for first in range(0, COUNT, EACH):
            connection = await websockets.connect(
                f"ws://{server.address}/", subprotocols=[websockets.Subprotocol(protocol)], proxy=None
            )
            client = Client(connection, protocol)
            everyone.append(client)
            await client.subscribe(first, then)
            readers.create_task(client.read())
        for client in everyone:
            await client.seen["next"].wait()
        yield everyone
        for client in everyone:
            await client.connection.close()


def pumps() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if "Flow.pull" in repr(task.get_coro())]


async def see_everything_closed(sources: Sources) -> None:
    async with asyncio.timeout(20):
        await sources.all_closed.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (sources.opened, sources.closed) == (COUNT, COUNT)
    assert pumps() == []


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture, reports: list[str]) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    # Strawberry's older protocol does not look at how its tasks end: one that sends as the client goes is reported.
    # Older versions of Strawberry give such an error on as Starlette raised it.
    theirs = re.compile(r"""retrieved: (WebSocketDisconnected\(|RuntimeError\('Cannot call "send" once a close)""")
    assert [report for report in reports if not theirs.search(report)] == []


then_it = pytest.mark.parametrize("then", ["waits", "flows"])
both_protocols = pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])


@both_protocols
@then_it
@pytest.mark.real_time
async def test_the_client_completes_its_subscriptions(protocol: str, then: str) -> None:
    sources = Sources()
    async with Server(App(sources)) as server, clients(server, protocol, then) as everyone:
        assert len(pumps()) == COUNT
        for client in everyone:
            await client.complete()
        await see_everything_closed(sources)


@both_protocols
@then_it
@pytest.mark.real_time
async def test_the_client_disconnects(protocol: str, then: str) -> None:
    sources = Sources()
    async with Server(App(sources)) as server:
        async with clients(server, protocol, then):
            pass
        await see_everything_closed(sources)


@both_protocols
@then_it
@pytest.mark.real_time
async def test_the_connection_breaks(protocol: str, then: str) -> None:
    sources = Sources()
    async with Server(App(sources)) as server, clients(server, protocol, then) as everyone:
        for client in everyone:
            client.connection.transport.abort()
        await see_everything_closed(sources)


@both_protocols
@then_it
@pytest.mark.real_time
async def test_the_server_shuts_down(protocol: str, then: str) -> None:
    sources = Sources()
    async with Server(App(sources)) as server, clients(server, protocol, then):
        server.uvicorn.should_exit = True
        await see_everything_closed(sources)


@both_protocols
@pytest.mark.real_time
async def test_the_source_ends(protocol: str) -> None:
    sources = Sources()
    async with Server(App(sources)) as server, clients(server, protocol, "ends") as everyone:
        for client in everyone:
            await client.seen["complete"].wait()
            assert client.values().count({"data": {"value": 1}}) == EACH
        await see_everything_closed(sources)


@both_protocols
@pytest.mark.real_time
async def test_the_source_raises(protocol: str) -> None:
    sources = Sources()
    async with Server(App(sources)) as server, clients(server, protocol, "raises") as everyone:
        for client in everyone:
            await client.seen["complete"].wait()
            assert client.values().count({"data": {"value": 1}}) == EACH
            assert len([payload for payload in client.values() if "errors" in payload]) == EACH
        await see_everything_closed(sources)
    assert sources.errors == ["the source is gone"] * COUNT


@then_it
@pytest.mark.real_time
async def test_the_client_of_server_sent_events_disconnects(then: str) -> None:
    sources = Sources()
    async with Server(App(sources)) as server, httpx.AsyncClient(trust_env=False, limits=httpx.Limits()) as client:
        async with AsyncExitStack() as stack:
            for n in range(COUNT):
                response = await stack.enter_async_context(
                    client.stream(
                        "POST",
                        f"http://{server.address}/",
                        json={"query": subscription(n, then)},
                        headers={"accept": "text/event-stream"},
                    )
                )
                assert "next" in await anext(response.aiter_lines())
        await see_everything_closed(sources)


@pytest.mark.parametrize("busy", [False, True])
@then_it
@pytest.mark.every_loop
async def test_the_consumer_is_cancelled(loop_kind: str, then: str, busy: bool) -> None:
    sources = Sources()
    started = asyncio.Semaphore(0)

    async def consume(n: int) -> None:
        events = await schema.subscribe(subscription(n, then), context_value={"sources": sources})
        async with aclosing(events):
            async for _ in events:
                started.release()
                if busy:  # as one whose client reads slowly
                    await asyncio.get_running_loop().create_future()

    tasks = [asyncio.create_task(consume(n)) for n in range(COUNT)]
    for _ in range(COUNT):
        await started.acquire()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    await see_everything_closed(sources)
