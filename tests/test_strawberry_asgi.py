"""The context factory for ASGI apps: loaders made in every way, and closed after whatever happened.

The tests of one failing field run with FastAPI too.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import strawberry
from fastapi import FastAPI
from strawberry.asgi import GraphQL as StrawberryGraphQL
from strawberry.dataloader import DataLoader as StrawberryDataLoader
from strawberry.fastapi import GraphQLRouter

from loader import LoaderClosedError, Loaders, dataloader
from loader.strawberry import install
from loader.strawberry.asgi import GraphQL
from loader.strawberry.fastapi import context_getter
from tests.serving import LEGACY_WS, PROTOCOLS, SSE, TRANSPORT_WS, Server, call, connect, in_process, post, stream

Info = strawberry.Info[Any, None]


class Names(Loaders):
    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        await asyncio.sleep(0)
        return [f"name {n}" for n in ids]


# One failing field


@strawberry.type
class Person:
    @strawberry.field
    async def name(self, info: Info) -> str:
        name: str = await info.context["loaders"].names.load(1)
        return name

    @strawberry.field
    async def broken(self) -> str:
        raise ValueError("broken")


@strawberry.type
class Pair:
    @strawberry.field
    def a(self) -> Person | None:
        return Person()

    @strawberry.field
    def b(self) -> Person | None:
        return Person()


@strawberry.type
class Pairs:
    @strawberry.subscription
    async def pair(self) -> AsyncGenerator[Pair, None]:
        yield Pair()


class TheirNames:
    """The same with Strawberry's DataLoader."""

    def __init__(self) -> None:
        async def load_names(ids: list[int]) -> list[str]:
            await asyncio.sleep(0)
            return [f"name {n}" for n in ids]

        self.names = StrawberryDataLoader(load_names)


def ours_on_starlette() -> Any:
    return GraphQL(strawberry.Schema(Pair, subscription=Pairs), lambda request: Names())


def ours_on_fastapi() -> Any:
    schema = strawberry.Schema(Pair, subscription=Pairs)
    install(schema)
    app = FastAPI()
    app.include_router(GraphQLRouter(schema, context_getter=context_getter(lambda: Names())), prefix="/graphql")
    return app


def theirs_on_starlette() -> Any:
    class App(StrawberryGraphQL[Any, Any]):
        async def get_context(self, request: Any, response: Any) -> Any:
            return {"loaders": TheirNames()}

    return App(strawberry.Schema(Pair, subscription=Pairs))


def theirs_on_fastapi() -> Any:
    async def get_context() -> dict[str, Any]:
        return {"loaders": TheirNames()}

    app = FastAPI()
    router = GraphQLRouter[Any, Any](strawberry.Schema(Pair, subscription=Pairs), context_getter=get_context)
    app.include_router(router, prefix="/graphql")
    return app


FIELDS = "a { name broken } b { name }"
ours = pytest.mark.parametrize("make_app", [ours_on_starlette, ours_on_fastapi])
theirs = pytest.mark.parametrize("make_app", [theirs_on_starlette, theirs_on_fastapi])


def see_one_error(answer: Any, path: list[str]) -> None:
    (error,) = answer["errors"]
    assert (error["message"], error["path"]) == ("broken", path)


@ours
@pytest.mark.real_time
async def test_one_failing_field_leaves_the_data_of_the_others(make_app: Callable[[], Any]) -> None:
    async with Server(make_app()) as server:
        response = await post(server.address, f"{{ {FIELDS} }}")
        assert response.status_code == 200
        assert response.json()["data"] == {"a": None, "b": {"name": "name 1"}}
        see_one_error(response.json(), ["a", "broken"])


@theirs
@pytest.mark.real_time
async def test_with_the_dataloader_of_strawberry_the_request_fails(make_app: Callable[[], Any]) -> None:
    async with Server(make_app()) as server:
        response = await post(server.address, f"{{ {FIELDS} }}")
        assert (response.status_code, response.text) == (500, "Internal Server Error")


@ours
@pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])
@pytest.mark.real_time
async def test_one_failing_field_over_a_websocket(make_app: Callable[[], Any], protocol: str) -> None:
    async with Server(make_app()) as server, connect(server.address, protocol) as client:
        answer = await client.ask(f"subscription {{ pair {{ {FIELDS} }} }}")
        assert answer["data"] == {"pair": {"a": None, "b": {"name": "name 1"}}}
        see_one_error(answer, ["pair", "a", "broken"])
        if protocol == TRANSPORT_WS:
            answer = await client.ask(f"{{ {FIELDS} }}")
            assert answer["data"] == {"a": None, "b": {"name": "name 1"}}
            see_one_error(answer, ["a", "broken"])


@theirs
@pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])
@pytest.mark.real_time
async def test_with_the_dataloader_of_strawberry_a_websocket_gets_no_answer(
    make_app: Callable[[], Any], protocol: str
) -> None:
    async with Server(make_app()) as server, connect(server.address, protocol) as client:
        await client.start("1", f"subscription {{ pair {{ {FIELDS} }} }}")
        # The answer to what was asked later has come, and to this there is none.
        assert (await client.ask("subscription { pair { b { broken } } }"))["data"] == {"pair": {"b": None}}
        if protocol == LEGACY_WS:
            assert await client.get("1") == ("complete", None)
        with pytest.raises(TimeoutError):
            await client.get("1", patience=0.2)


# Making the loaders


@strawberry.type
class Query:
    @strawberry.field
    async def name(self, info: Info) -> str:
        name: str = await info.context["loaders"].names.load(1)
        return name

    @strawberry.field
    def kind(self, info: Info) -> str:
        return type(info.context["loaders"]).__name__


schema = strawberry.Schema(Query)


async def coroutine_function(request: Any) -> Names:
    await asyncio.sleep(0)
    return Names()


async def generator_function(request: Any) -> AsyncIterator[Names]:
    yield Names()


class Callable_:  # noqa: N801  # beside typing's
    async def __call__(self, request: Any) -> Names:
        return Names()


MAKERS: dict[str, Any] = {
    "function": lambda request: Names(),
    "coroutine function": coroutine_function,
    "generator function": generator_function,
    "partial": partial(coroutine_function),
    "object": Callable_(),
    "class": Names,
}


@pytest.mark.parametrize("maker", MAKERS)
async def test_loaders_are_made_by(maker: str) -> None:
    async with in_process(GraphQL(schema, MAKERS[maker])) as client:
        response = await client.post("/", json={"query": "{ name kind }"})
    assert response.json() == {"data": {"name": "name 1", "kind": "Names"}}


@pytest.mark.real_time
async def test_they_are_made_from_the_request_or_the_websocket() -> None:
    seen: list[str] = []

    def make_loaders(connection: Any) -> Names:
        seen.append(f"{type(connection).__name__} {connection.url.path}")
        return Names()

    async with Server(GraphQL(schema, make_loaders)) as server:
        await post(server.address, "{ name }")
        async with connect(server.address, TRANSPORT_WS) as client:
            for _ in range(2):
                assert await client.ask("{ name }") == {"data": {"name": "name 1"}}
    assert seen == ["Request /graphql", "WebSocket /graphql"]


async def nothing(request: Any) -> Any:
    return None


def generator(request: Any) -> Any:
    yield Names()


async def wrong_yield(request: Any) -> AsyncIterator[Any]:
    yield {"names": Names()}


WRONG: dict[str, Any] = {
    "a function of None": (lambda request: None, "not None"),
    "a coroutine function of None": (nothing, "not None"),
    "a function of a generator": (lambda request: generator(request), "not <generator object"),
    "an async generator function of a dict": (wrong_yield, "not {'names': <"),
    "a class": (lambda request: Names, "not <class"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_makes_no_loaders_is_told_so(wrong: str) -> None:
    make_loaders, message = WRONG[wrong]
    async with in_process(GraphQL(schema, make_loaders)) as client:
        with pytest.raises(TypeError, match="make_loaders must return, or yield once .* of Loaders, " + message):
            await client.post("/", json={"query": "{ name }"})


async def test_a_generator_function_that_yields_nothing() -> None:
    async def make_loaders(request: Any) -> AsyncIterator[Names]:
        nobody: list[Names] = []
        for loaders in nobody:
            yield loaders

    async with in_process(GraphQL(schema, make_loaders)) as client:
        with pytest.raises(TypeError, match="make_loaders ended without a yield; it must yield the loaders, once"):
            await client.post("/", json={"query": "{ name }"})


async def test_a_generator_function_that_yields_twice() -> None:
    ended: list[str] = []

    async def make_loaders(request: Any) -> AsyncIterator[Names]:
        try:
            yield Names()
            yield Names()
        finally:
            ended.append("ended")

    async with in_process(GraphQL(schema, make_loaders)) as client:
        with pytest.raises(TypeError, match=r"make_loaders yielded a second time, <.*Names.*>; it must yield"):
            await client.post("/", json={"query": "{ name }"})
    assert ended == ["ended"]


async def test_a_context_that_is_an_object() -> None:
    class Context:
        def __init__(self, loaders: Names) -> None:
            self.loaders = loaders

    @strawberry.type
    class Attributes:
        @strawberry.field
        async def name(self, info: strawberry.Info[Context, None]) -> str:
            return await info.context.loaders.names.load(1)

    class App(GraphQL[None]):
        async def get_context(self, request: Any, response: Any) -> Any:
            context = await super().get_context(request, response)
            assert set(context) == {"request", "response", "loaders"}
            return Context(context["loaders"])

    async with in_process(App(strawberry.Schema(Attributes), lambda request: Names())) as client:
        response = await client.post("/", json={"query": "{ name }"})
    assert response.json() == {"data": {"name": "name 1"}}


def test_options_that_were_installed_before_stay() -> None:
    options = strawberry.Schema(Query)
    install(options, early_execution=True)
    executor = options.execution_context_class
    GraphQL(options, lambda request: Names())
    assert options.execution_context_class is executor


async def test_the_options_of_the_app_are_those_of_strawberry() -> None:
    async with in_process(GraphQL(schema, lambda request: Names(), graphql_ide=None)) as client:
        assert (await client.get("/", headers={"accept": "text/html"})).status_code == 404


# Closing


class Connection:
    """What loaders hold; the log says when it was closed, and what went wrong before."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.is_open = True
        self.closed = asyncio.Event()
        self.running = asyncio.Event()
        self.go_on = asyncio.Event()

    def close(self, cause: BaseException | None) -> None:
        assert self.is_open
        self.is_open = False
        self.log.append("closed" if cause is None else f"closed after {type(cause).__name__}")
        self.closed.set()


class Slow(Loaders):
    """Its batches wait for `go_on`, and take some turns of the loop to end when they are cancelled."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        connection = self.connection
        connection.running.set()
        try:
            await connection.go_on.wait()
            connection.log.append("batch")
        except asyncio.CancelledError:
            for _ in range(5):
                await asyncio.sleep(0)
            assert connection.is_open
            connection.log.append("batch cancelled")
            raise
        return [f"name {n}" for n in ids]


def made_of(connection: Connection) -> Any:
    async def make_loaders(request: Any) -> AsyncIterator[Slow]:
        try:
            yield Slow(connection)
        except BaseException as error:
            connection.close(error)
            raise
        else:
            connection.close(None)

    return make_loaders


@strawberry.type
class SlowQuery:
    @strawberry.field
    async def name(self, info: Info) -> str | None:
        name: str = await info.context["loaders"].names.load(1)
        return name

    @strawberry.field
    async def failing(self, info: Info) -> str | None:
        raise ValueError("failing")

    @strawberry.field
    def careless(self, info: Info) -> str:
        info.context["loaders"].names.load(1).add_done_callback(lambda future: future.exception())
        return "did not wait"

    @strawberry.field
    async def hasty(self, info: Info) -> str:
        """Does not wait for what it has started."""
        info.context["loaders"].names.load(1).add_done_callback(lambda future: future.exception())
        await info.context["loaders"].connection.running.wait()
        return "did not wait"


@strawberry.type
class SlowEvents:
    @strawberry.subscription
    async def names(self, info: Info) -> AsyncGenerator[str, None]:
        yield "first"
        yield await info.context["loaders"].names.load(1)

    @strawberry.subscription
    async def queries(self, info: Info) -> AsyncGenerator[SlowQuery, None]:
        yield SlowQuery()
        yield SlowQuery()


slow_schema = strawberry.Schema(SlowQuery, subscription=SlowEvents)


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def app(connection: Connection) -> Any:
    return GraphQL(slow_schema, made_of(connection), subscription_protocols=PROTOCOLS)


@pytest.mark.parametrize("query", ["{ name }", "{ failing }", "{ nothing }", "{"])
async def test_loaders_are_closed_after_the_response_was_sent(app: Any, connection: Connection, query: str) -> None:
    connection.go_on.set()
    await call(app, query, connection.log)
    assert connection.log[-3] == 200
    assert connection.log[-1] == "closed"


async def test_they_are_closed_after_a_request_that_makes_no_sense(app: Any, connection: Connection) -> None:
    async with in_process(app) as client:
        assert (await client.post("/", content="{", headers={"content-type": "application/json"})).status_code == 400
    assert connection.log == ["closed"]


async def test_the_batches_that_a_query_left_have_ended_before(app: Any, connection: Connection) -> None:
    await call(app, "{ hasty }", connection.log)
    status, body, *then = connection.log
    assert (status, json.loads(body)) == (200, {"data": {"hasty": "did not wait"}})
    assert then == ["batch cancelled", "closed"]


async def test_a_batch_that_has_not_left_never_leaves(app: Any, connection: Connection) -> None:
    await call(app, "{ careless }", connection.log)
    status, body, *then = connection.log
    assert (status, json.loads(body)) == (200, {"data": {"careless": "did not wait"}})
    assert then == ["closed"]


async def test_an_error_before_the_loaders_are_there() -> None:
    async def make_loaders(request: Any) -> AsyncIterator[Names]:
        if request is not None:
            raise OSError("no connection")
        yield Names()

    async with in_process(GraphQL(schema, make_loaders)) as client:
        with pytest.raises(OSError, match="no connection"):
            await client.post("/", json={"query": "{ name }"})


async def test_an_error_while_closing_comes_after_the_response() -> None:
    sent: list[Any] = []

    async def make_loaders(request: Any) -> AsyncIterator[Names]:
        yield Names()
        raise OSError("already gone")

    with pytest.raises(OSError, match="already gone"):
        await call(GraphQL(schema, make_loaders), "{ name }", sent)
    status, body = sent
    assert (status, json.loads(body)) == (200, {"data": {"name": "name 1"}})


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.every_loop
async def test_a_request_that_is_cancelled(loop_kind: str, times: int) -> None:
    """However often: what the batches work with is closed when they have ended."""
    connection = Connection()
    task = asyncio.create_task(call(GraphQL(slow_schema, made_of(connection)), "{ name }", connection.log))
    await connection.running.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled()
    assert connection.log == ["batch cancelled", "closed after CancelledError"]


async def test_a_request_in_a_cancel_scope_which_cancels_again_and_again(app: Any, connection: Connection) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(call, app, "{ name }", connection.log)
        await connection.running.wait()
        group.cancel_scope.cancel()
    assert connection.log == ["batch cancelled", "closed after CancelledError"]


@pytest.mark.real_time
async def test_a_client_that_does_not_wait_for_the_response(app: Any, connection: Connection) -> None:
    """The request goes on, as Starlette has it, and then everything is closed."""
    async with Server(app) as server:
        request = asyncio.create_task(post(server.address, "{ name }"))
        await connection.running.wait()
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        connection.go_on.set()
        await connection.closed.wait()
    assert connection.log == ["batch", "closed"]


@pytest.mark.parametrize("query", ["subscription { names }", "subscription { queries { name } }"])
@pytest.mark.real_time
async def test_a_client_that_leaves_a_stream(app: Any, connection: Connection, query: str) -> None:
    async with Server(app) as server:
        async with stream(server.address, query, SSE):
            await connection.running.wait()
        await connection.closed.wait()
    assert connection.log == ["batch cancelled", "closed"]


async def leave(client: Any) -> None:
    await client.connection.close()


async def break_off(client: Any) -> None:
    client.connection.transport.abort()


async def stop(client: Any) -> None:
    await client.stop("1")


@pytest.mark.parametrize("end", [leave, break_off, stop])
@pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])
@pytest.mark.parametrize("query", ["subscription { names }", "subscription { queries { name } }"])
@pytest.mark.real_time
async def test_a_websocket_that_ends(
    app: Any, connection: Connection, protocol: str, query: str, end: Callable[[Any], Any]
) -> None:
    async with Server(app) as server:
        async with connect(server.address, protocol) as client:
            await client.start("1", query)
            await connection.running.wait()
            if query == "subscription { names }":
                assert await client.get("1") == ("next", {"data": {"names": "first"}})
            await end(client)
        await connection.closed.wait()
    assert connection.log == ["batch cancelled", "closed"]


@pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])
@pytest.mark.real_time
async def test_a_connection_keeps_its_loaders_until_it_is_over(app: Any, connection: Connection, protocol: str) -> None:
    connection.go_on.set()
    async with Server(app) as server:
        async with connect(server.address, protocol) as client:
            for key in ("1", "2"):
                await client.start(key, "subscription { names }")
                assert [payload["data"]["names"] async for payload in client.payloads(key)] == ["first", "name 1"]
            assert connection.log == ["batch", "batch"]
        await connection.closed.wait()
    assert connection.log == ["batch", "batch", "closed"]


@pytest.mark.real_time
async def test_a_server_that_shuts_down(app: Any, connection: Connection) -> None:
    async with Server(app) as server, connect(server.address, TRANSPORT_WS) as client:
        await client.start("1", "subscription { names }")
        await connection.running.wait()
        server.uvicorn.should_exit = True
        await connection.closed.wait()
    assert connection.log == ["batch cancelled", "closed"]


async def test_loaders_that_are_closed_say_so(connection: Connection) -> None:
    kept: list[Any] = []

    def make_loaders(request: Any) -> Names:
        kept.append(Names())
        return kept[0]  # type: ignore[no-any-return]

    async with in_process(GraphQL(schema, make_loaders)) as client:
        response = await client.post("/", json={"query": "{ name }"})
    assert isinstance(response, httpx.Response)
    with pytest.raises(LoaderClosedError):
        kept[0].names.load(1)


@pytest.mark.parametrize("nothing", [None, 3, "make_loaders"])
def test_what_cannot_make_loaders_is_refused_when_the_app_is_made(nothing: Any) -> None:
    @strawberry.type
    class Query:
        one: int = 1

    with pytest.raises(TypeError, match="make_loaders is a function"):
        GraphQL(strawberry.Schema(Query), nothing)


def test_a_generator_that_is_not_async_is_refused_when_the_app_is_made() -> None:
    @strawberry.type
    class Query:
        one: int = 1

    def make_loaders(request: Any) -> Iterator[Loaders]:
        yield Loaders()

    with pytest.raises(TypeError, match="make_loaders yields, so it has to be async"):
        GraphQL(strawberry.Schema(Query), make_loaders)  # type: ignore[arg-type]  # what is tested
