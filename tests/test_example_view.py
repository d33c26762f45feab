"""What answers at `/graphql`: bodies and messages of any kind, and no pages of other origins."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import websockets

from example_app.app import create_app
from example_app.settings import Settings
from tests.serving import TRANSPORT_WS, Server, connect, in_process
from tests.test_example_data import built

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

pytestmark = pytest.mark.real_time

HELLO = json.dumps({"query": "{ __typename }"})
STATISTICS = "subscription { routeStatistics { refreshes } }"


@asynccontextmanager
async def client(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Calls the demo without a socket; what it raises, the call raises."""
    app = create_app(built(), Settings(**settings))
    async with app.router.lifespan_context(app), in_process(app) as asking:
        yield asking


async def post(asking: httpx.AsyncClient, body: str | bytes, **headers: str) -> httpx.Response:
    return await asking.post("/graphql", content=body, headers={"content-type": "application/json", **headers})


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"5", b'"text"', b"true", b"[]", b"[1]", b"{}", b"\xff\xfe", b'{"query": 5}',
        b'{"query": ["a"]}', b'{"query": null}', b'{"query": ""}', b'{"query": "{ __typename }", "variables": []}',
        b'{"query": "{ __typename }", "variables": "x"}', b'{"query": "{ __typename }", "operationName": {}}',
        b'{"query": "{ __typename }", "operationName": ["a"]}', b'{"query": "{ __typename }", "operationName": "me"}',
        b'{"query": "{ __typename }", "extensions": 1}', b"[" * 50_000, b'{"query": ' + b"9" * 5_000 + b"}",
        b'{"query": "fragment f on Query { __typename }"}',
    ],
)  # fmt: skip
async def test_a_malformed_body_is_a_bad_request(body: bytes) -> None:
    async with client() as asking:
        answer = await post(asking, body)
    assert (answer.status_code, bool(answer.text)) == (400, True)


@pytest.mark.parametrize(
    "query", ["query=%7B__typename%7D&variables=5", "query=%7B__typename%7D&variables=%7B", "query="]
)
async def test_malformed_parameters_are_a_bad_request(query: str) -> None:
    async with client() as asking:
        assert (await asking.get(f"/graphql?{query}")).status_code == 400


@pytest.mark.parametrize("query", [r"{ \ud800 }", "\u0000", "{ flights(first: 0x1) { id } }", "ü" * 100, "{ a: }"])
async def test_a_query_that_is_none_gets_an_error_in_the_answer(query: str) -> None:
    async with client() as asking:
        answer = await post(asking, json.dumps({"query": query}))
    assert answer.status_code == 200
    assert "Syntax Error" in answer.json()["errors"][0]["message"]


async def test_half_a_surrogate_pair_is_no_text_wherever_it_is() -> None:
    async with client() as asking:
        answer = await post(asking, r'{"query": "{ airport(code: \"\ud800\") { name } }"}')
        assert "errors" in answer.json()
        answer = await post(
            asking, r'{"query": "query ($c: String!) { airport(code: $c) { name } }", "variables": {"c": "\ud800"}}'
        )
        assert "half a surrogate pair" in answer.json()["errors"][0]["message"]
        answer = await post(asking, r'{"query": "{ __typename }", "operationName": "\ud800"}')
        assert answer.status_code == 400


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with client(max_body=1000) as asking:
        assert (await post(asking, HELLO.ljust(1000))).status_code == 200
        answer = await post(asking, HELLO.ljust(1001))
    assert (answer.status_code, answer.text) == (413, "The request may have 1,000 bytes at most.")


async def test_pages_of_other_origins_are_refused_unless_they_are_allowed() -> None:
    async with client() as asking:
        assert (await post(asking, HELLO)).status_code == 200
        assert (await post(asking, HELLO, origin="http://test")).status_code == 200
        for origin in (
            "https://evil.example",
            "null",
            "http://test.evil.example",
            "http://test:81",
            "\xff",
            "http://[",
        ):
            answer = await post(asking, HELLO, origin=origin.encode("latin-1"))  # type: ignore[arg-type]
            assert (answer.status_code, answer.text) == (403, "This origin is not allowed.")
        asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        answer = await asking.options("/graphql", headers=asked)
        assert "access-control-allow-origin" not in answer.headers
    async with client(allowed_origins=frozenset({"https://good.example"})) as asking:
        answer = await post(asking, HELLO, origin="https://good.example")
        assert answer.json() == {"data": {"__typename": "Query"}}
        assert answer.headers["access-control-allow-origin"] == "https://good.example"
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        assert (
            await asking.options("/graphql", headers={"origin": "https://good.example", **asked})
        ).status_code == 200
        assert (
            await asking.options("/graphql", headers={"origin": "https://evil.example", **asked})
        ).status_code == 400
        assert (await post(asking, HELLO, origin="https://evil.example")).status_code == 403


async def test_graphiql_can_be_switched_off() -> None:
    async with client() as asking:
        assert "graphiql" in (await asking.get("/graphql", headers={"accept": "text/html"})).text.lower()
    async with client(graphiql=False) as asking:
        assert (await asking.get("/graphql", headers={"accept": "text/html"})).status_code == 404
        assert (await post(asking, HELLO)).status_code == 200


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    """The address of the demo on a real socket."""
    app = create_app(built(), Settings(**settings))
    async with app.router.lifespan_context(app), Server(app) as server:
        yield server.address


def opened(address: str, **options: Any) -> Any:
    return websockets.connect(
        f"ws://{address}/graphql", subprotocols=[websockets.Subprotocol(TRANSPORT_WS)], proxy=None, **options
    )


async def test_websockets_of_other_origins_are_refused_unless_they_are_allowed() -> None:
    async with serving() as address:
        async with opened(address, origin=f"http://{address}"), opened(address):
            pass
        with pytest.raises(websockets.InvalidStatus) as raised:
            async with opened(address, origin="https://evil.example"):
                pass
        assert raised.value.response.status_code == 403
    good = "https://good.example"
    async with serving(allowed_origins=frozenset({good})) as address, opened(address, origin=good):
        pass


LONG = "x" * 500
MALFORMED = [
    "", "{", "null", "5", "[]", '"text"', "{}", '{"type": 5}', '{"type": ["subscribe"]}', '{"type": "nothing"}',
    f'{{"type": "{LONG}"}}', '{"type": "subscribe"}', '{"type": "subscribe", "id": 1, "payload": {"query": "{a}"}}',
    '{"type": "subscribe", "id": ["1"], "payload": {"query": "{a}"}}',
    '{"type": "subscribe", "id": "1", "payload": null}',
    '{"type": "subscribe", "id": "1", "payload": {"query": 5}}', '{"type": "subscribe", "id": "1", "payload": []}',
    '{"type": "subscribe", "id": "1", "payload": {"query": "{a}", "variables": [1]}}',
    '{"type": "subscribe", "id": "1", "payload": {"query": "{a}", "operationName": 1}}',
    '{"type": "complete"}', '{"type": "complete", "id": {}}', "[" * 50_000, "9" * 5_000, b"\x00\xff",
    json.dumps({"type": "subscribe", "id": "1", "payload": {"query": "ü" + LONG}}),
]  # fmt: skip


async def test_a_malformed_message_closes_its_connection_with_a_code_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as address, connect(address, TRANSPORT_WS) as other:
        await other.start("mine", STATISTICS)
        assert (await other.get("mine"))[0] == "next"
        for message in MALFORMED:
            async with opened(address) as connection:
                await connection.send(json.dumps({"type": "connection_init"}))
                await connection.recv()
                await connection.send(message)
                with pytest.raises(websockets.ConnectionClosedError) as raised:
                    await asyncio.wait_for(connection.recv(), 10)
                assert raised.value.rcvd is not None
                assert raised.value.rcvd.code == 4400, message
        assert (await other.ask("{ __typename }"))["data"] == {"__typename": "Query"}
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_flood_of_operations_on_one_socket_is_refused_and_others_are_served() -> None:
    async with serving(max_operations=5) as address, connect(address, TRANSPORT_WS) as flood:
        for number in range(500):
            await flood.start(str(number), STATISTICS)
        refused = 0
        for number in range(500):
            kind, payload = await flood.get(str(number))
            if kind == "error":
                assert [error["message"] for error in payload] == ["Subscription limit reached"]
                refused += 1
        assert refused == 495
        async with connect(address, TRANSPORT_WS) as other:
            assert (await other.ask("{ __typename }"))["data"] == {"__typename": "Query"}
        await flood.stop("0")
        assert (await flood.ask("{ __typename }"))["data"] == {"__typename": "Query"}
