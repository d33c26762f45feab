"""Real servers on the test's own loop, and the clients that talk to them: HTTP, websockets, streams over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
import websockets
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from typing import Self

TRANSPORT_WS, LEGACY_WS = "graphql-transport-ws", "graphql-ws"  # of which the second takes subscriptions only
PROTOCOLS = (TRANSPORT_WS, LEGACY_WS, "graphql-sse", "multipart-subscription")
"""What a view must be told to serve for all of the streams here to work."""

SSE = "text/event-stream"
MULTIPART = "multipart/mixed;subscriptionSpec=1.0,application/json"

PATIENCE = 10  # seconds until something that should come is taken not to come


class Http(H11Protocol):
    """uvicorn's own, which forgets the timer of a connection that was reset, as a browser does that is closed."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()


class Server:
    """A uvicorn server on the running loop and a free port; `address` is `host:port`."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app, http=Http, ws="websockets-sansio", lifespan="off", log_config=None, access_log=False
        )
        self.uvicorn = uvicorn.Server(config)
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.uvicorn.serve(sockets=[self.socket]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.uvicorn.should_exit = True
        await self.task


async def post(address: str, query: Any, *, path: str = "/graphql", **headers: str) -> httpx.Response:
    """The response to one request; a list of queries is a batch."""
    body = [{"query": each} for each in query] if isinstance(query, list) else {"query": query}
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
        return await client.post(f"http://{address}{path}", json=body, headers=headers)


@asynccontextmanager
async def stream(address: str, query: str, accept: str, *, path: str = "/graphql") -> AsyncIterator[Any]:
    """An iterator of the payloads that a streaming response brings, read as they come; leaving it disconnects."""
    async with (
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client,
        client.stream("POST", f"http://{address}{path}", json={"query": query}, headers={"accept": accept}) as response,
    ):
        assert response.status_code == 200, await response.aread()
        lines: Any = response.aiter_lines()  # a generator, though httpx does not say so
        async with aclosing(lines), aclosing(_payloads(lines)) as payloads:
            yield payloads


async def _payloads(lines: AsyncIterator[str]) -> AsyncGenerator[Any, None]:
    async for line in lines:
        text = line.removeprefix("data:").strip()
        if text.startswith("{"):
            payload = json.loads(text)
            if payload:
                yield payload.get("payload", payload)


class Socket:
    """A websocket of one of the two GraphQL protocols, whose operations each have a queue of what came for them."""

    def __init__(self, connection: websockets.ClientConnection, protocol: str) -> None:
        self.connection = connection
        self.legacy = protocol == LEGACY_WS
        self.messages: dict[str, asyncio.Queue[tuple[str, Any]]] = {}

    async def send(self, kind: str, **message: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, **message}))

    async def start(self, key: str, query: str) -> None:
        self.messages[key] = asyncio.Queue()
        await self.send("start" if self.legacy else "subscribe", id=key, payload={"query": query})

    async def stop(self, key: str) -> None:
        await self.send("stop" if self.legacy else "complete", id=key)

    async def read(self) -> None:
        with suppress(websockets.ConnectionClosed):
            while True:
                message = json.loads(await self.connection.recv())
                if message.get("id") in self.messages:
                    kind = "next" if message["type"] == "data" else message["type"]
                    self.messages[message["id"]].put_nowait((kind, message.get("payload")))

    async def get(self, key: str, patience: float = PATIENCE) -> tuple[str, Any]:
        """The next message of an operation: `next`, `error` or `complete`, and its payload.

        Raises:
            TimeoutError: If none comes.
        """
        async with asyncio.timeout(patience):
            return await self.messages[key].get()

    async def payloads(self, key: str) -> AsyncIterator[Any]:
        """The payloads of an operation, to its end."""
        while True:
            kind, payload = await self.get(key)
            if kind == "complete":
                return
            yield payload
            if kind == "error":
                return

    async def ask(self, query: str) -> Any:
        """The payload of a query."""
        key = f"ask {len(self.messages)}"
        await self.start(key, query)
        (payload,) = [payload async for payload in self.payloads(key)]
        return payload


@asynccontextmanager
async def connect(address: str, protocol: str, *, path: str = "/graphql") -> AsyncIterator[Socket]:
    """A websocket that has shaken hands."""
    connection = await websockets.connect(
        f"ws://{address}{path}", subprotocols=[websockets.Subprotocol(protocol)], proxy=None
    )
    client = Socket(connection, protocol)
    await client.send("connection_init")
    reader = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        await connection.close()
        await reader


@asynccontextmanager
async def subscribed(
    address: str, query: str, transport: str, *, path: str = "/graphql"
) -> AsyncIterator[AsyncIterator[Any]]:
    """The payloads of an operation over any transport that streams."""
    if transport in (TRANSPORT_WS, LEGACY_WS):
        async with connect(address, transport, path=path) as client:
            await client.start("1", query)
            yield client.payloads("1")
    else:
        async with stream(address, query, transport, path=path) as payloads:
            yield payloads


def in_process(app: Any) -> httpx.AsyncClient:
    """A client that calls an ASGI app on this very loop, without a socket; what the app raises, the call raises."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def call(app: Any, query: str, sent: list[Any], *, accept: str = "application/json") -> None:
    """Call an ASGI app as a server does, with a client that stays; what the app sends goes to `sent`."""
    body: asyncio.Queue[Any] = asyncio.Queue()
    body.put_nowait({"type": "http.request", "body": json.dumps({"query": query}).encode()})
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/graphql",
        "raw_path": b"/graphql",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"accept", accept.encode())],
    }

    async def send(message: Any) -> None:
        sent.append(message.get("body") or message.get("status"))

    await app(scope, body.get, send)
