"""The price experiment: nothing stale is read, on any transport, over real sockets, however the stream is consumed.

Three events before each of which the price changes, a load in the source before the first, a later query on the same
socket, a mutation with two root fields.
"""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import strawberry
from strawberry.asgi import GraphQL as StrawberryGraphQL
from strawberry.dataloader import DataLoader as StrawberryDataLoader
from strawberry.schema.config import StrawberryConfig

from loader import LoaderClosedError, Loaders, Scope, dataloader
from loader.strawberry import install
from loader.strawberry._operation import current_operation
from loader.strawberry.asgi import GraphQL
from tests.prices import EVENTS, SCHEMAS, Market, Prices, Query, see_fresh_answers, see_fresh_events
from tests.serving import LEGACY_WS, MULTIPART, PROTOCOLS, SSE, TRANSPORT_WS, Server, connect, post, stream

MUTATION = "mutation { a: rise { price related } b: rise(by: 10) { price related } }"


@pytest.fixture(params=SCHEMAS)
def schema(request: pytest.FixtureRequest) -> strawberry.Schema:
    return SCHEMAS[request.param]()


@pytest.fixture
def market() -> Market:
    return Market()


def serve(schema: strawberry.Schema, market: Market) -> Server:
    return Server(GraphQL(schema, lambda request: Prices(market), subscription_protocols=PROTOCOLS))


@pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])
@pytest.mark.real_time
async def test_websocket(schema: strawberry.Schema, market: Market, protocol: str) -> None:
    async with serve(schema, market) as server, connect(server.address, protocol) as client:
        await client.start("1", EVENTS)
        await see_fresh_events(client.payloads("1"))
        market.price = 999
        if protocol == TRANSPORT_WS:  # the other one takes subscriptions only
            answer = await client.ask("{ quote { price related } }")
            assert answer["data"] == {"quote": {"price": 999, "related": 999}}
            assert (await client.ask(MUTATION))["data"] == {
                "a": {"price": 1000, "related": 1000},
                "b": {"price": 1010, "related": 1010},
            }
        await client.start("2", EVENTS)
        await see_fresh_events(client.payloads("2"), market.price + 1)


@pytest.mark.real_time
async def test_a_loader_of_strawberry_in_the_same_place_reads_stale_prices() -> None:
    """What a websocket does with a loader in its context, as it is often written."""
    market = Market()

    @strawberry.type
    class Old:
        @strawberry.field
        async def price(self, info: strawberry.Info[Any, None]) -> int:
            price: int = await info.context["prices"].load("apple")
            return price

    async def load_prices(names: list[str]) -> list[int]:
        return [market.price for _ in names]

    class App(StrawberryGraphQL[Any, Any]):
        async def get_context(self, request: Any, response: Any) -> Any:
            return {"prices": StrawberryDataLoader(load_prices)}

    async with Server(App(strawberry.Schema(Old))) as server, connect(server.address, TRANSPORT_WS) as client:
        assert (await client.ask("{ price }"))["data"] == {"price": 100}
        market.price = 999
        assert (await client.ask("{ price }"))["data"] == {"price": 100}


@pytest.mark.parametrize("accept", [SSE, MULTIPART])
@pytest.mark.real_time
async def test_streams_over_http(schema: strawberry.Schema, market: Market, accept: str) -> None:
    async with serve(schema, market) as server:
        async with stream(server.address, EVENTS, accept) as payloads:
            await see_fresh_events(payloads)
        await see_fresh_answers(market, server.address)


@pytest.mark.every_loop
async def test_execute(schema: strawberry.Schema, market: Market) -> None:
    async with Prices(market) as loaders:
        for price in (100, 999):
            market.price = price
            result = await schema.execute("{ quote { price related } }", context_value={"loaders": loaders})
            assert result.data == {"quote": {"price": price, "related": price}}
        result = await schema.execute(MUTATION, context_value={"loaders": loaders})
        assert result.data == {"a": {"price": 1000, "related": 1000}, "b": {"price": 1010, "related": 1010}}


async def as_payloads(results: Any) -> AsyncIterator[Any]:
    async for result in results:
        assert result.errors is None
        yield {"data": result.data}


@pytest.mark.every_loop
async def test_subscribe(schema: strawberry.Schema, market: Market) -> None:
    async with Prices(market) as loaders:
        await see_fresh_events(as_payloads(await schema.subscribe(EVENTS, context_value={"loaders": loaders})))
        # The last event's relation, its resolver and its source have asked for one key; one batch for each.
        assert market.batches == [["apple"]] * 7


async def in_tasks_of_their_own(results: Any) -> AsyncIterator[Any]:
    while True:
        try:
            result = await asyncio.create_task(anext(results))
        except StopAsyncIteration:
            return
        yield {"data": result.data}


@pytest.mark.every_loop
async def test_a_consumer_that_takes_each_step_in_a_task_of_its_own(schema: strawberry.Schema, market: Market) -> None:
    async with Prices(market) as loaders:
        await see_fresh_events(
            in_tasks_of_their_own(await schema.subscribe(EVENTS, context_value={"loaders": loaders}))
        )
        assert market.batches == [["apple"]] * 7


@pytest.mark.every_loop
async def test_a_consumer_with_a_time_limit_for_each_step(schema: strawberry.Schema, market: Market) -> None:
    async def limited(results: Any) -> AsyncIterator[Any]:
        while True:
            try:
                result = await asyncio.wait_for(anext(results), 60)
            except StopAsyncIteration:
                return
            yield {"data": result.data}

    async with Prices(market) as loaders:
        await see_fresh_events(limited(await schema.subscribe(EVENTS, context_value={"loaders": loaders})))


@pytest.mark.every_loop
@pytest.mark.parametrize("field", ["changes", "polled"])
async def test_a_source_that_waits_for_a_change_sees_it(schema: strawberry.Schema, market: Market, field: str) -> None:
    async with Prices(market) as loaders, asyncio.timeout(60):
        results = await schema.subscribe(f"subscription {{ {field} }}", context_value={"loaders": loaders})
        payloads = [payload["data"] async for payload in as_payloads(results)]
    assert payloads == [{field: 101}, {field: 102}, {field: 103}]


# Context variables


async def test_the_consumer_of_a_subscription_is_never_inside_of_it(market: Market) -> None:
    schema = SCHEMAS["install"]()
    async with Prices(market) as loaders, Scope() as mine:
        context = {"loaders": loaders}
        async for _ in await schema.subscribe(EVENTS, context_value=context):
            assert Scope.current() is mine
            assert current_operation.get() is None
            break  # which leaves the generator to the garbage collector
        assert Scope.current() is mine
        gc.collect()
        await asyncio.sleep(0)
        assert await loaders.prices.load("apple") == market.price


async def test_subscriptions_that_take_turns_in_one_task_stay_apart(market: Market) -> None:
    schema = SCHEMAS["install"]()
    async with Prices(market) as loaders:
        context = {"loaders": loaders}
        one, other = [await schema.subscribe(EVENTS, context_value=context) for _ in range(2)]
        for n in range(3):
            for results in (one, other):
                data = (await anext(results)).data
                assert data == {"quotes": dict.fromkeys(("seen", "price", "related"), market.price)}, n
        await one.aclose()
        await other.aclose()
        assert Scope.current() is None
        assert await loaders.prices.load("apple") == market.price


async def test_a_subscription_may_be_closed_in_another_task(market: Market) -> None:
    schema = SCHEMAS["install"]()
    async with Prices(market) as loaders:
        results = await schema.subscribe(EVENTS, context_value={"loaders": loaders})
        await asyncio.create_task(anext(results))

        async def close() -> None:
            async with Scope() as mine:
                await results.aclose()
                assert Scope.current() is mine

        await asyncio.create_task(close())
        assert Scope.current() is None


async def test_an_operation_inside_or_after_another_gives_back_the_scope_around_it(market: Market) -> None:
    seen = []
    schemas: list[strawberry.Schema] = []

    @strawberry.type
    class Nesting:
        @strawberry.field
        async def price(self, info: strawberry.Info[Any, None], deeper: bool) -> int:
            operation, scope = current_operation.get(), Scope.current()
            price: int = await info.context["loaders"].prices.load("apple")
            if deeper:
                async with Scope() as mine:
                    market.price += 1
                    inner = await schemas[0].execute("{ price(deeper: false) }", context_value=info.context)
                    assert inner.data == {"price": price + 1}
                    assert (current_operation.get(), Scope.current()) == (operation, mine)
                assert (current_operation.get(), Scope.current()) == (operation, scope)
                assert await info.context["loaders"].prices.load("apple") == price
            seen.append(scope)
            return price

    schema = strawberry.Schema(Nesting)
    schemas.append(schema)
    install(schema)
    async with Prices(market) as loaders, Scope() as around:
        for _ in range(2):
            result = await schema.execute("{ price(deeper: true) }", context_value={"loaders": loaders})
            assert result.errors is None
            assert (current_operation.get(), Scope.current()) == (None, around)
    assert len(set(seen)) == 4


async def test_a_batch_function_may_execute_an_operation(market: Market) -> None:
    schema = SCHEMAS["install"]()

    class Asking(Prices):
        @dataloader
        async def twice(self, names: list[str]) -> list[int]:
            scope = Scope.current()
            result = await schema.execute("{ quote { related } }", context_value={"loaders": self})
            assert result.data is not None
            assert Scope.current() is scope
            return [2 * result.data["quote"]["related"] for _ in names]

    @strawberry.type
    class Doubling:
        @strawberry.field
        async def twice(self, info: strawberry.Info[Any, None]) -> int:
            twice: int = await info.context["loaders"].twice.load("apple")
            return twice

    doubling = strawberry.Schema(Doubling)
    install(doubling)
    async with Asking(market) as loaders:
        result = await doubling.execute("{ twice }", context_value={"loaders": loaders})
    assert result.data == {"twice": 200}


# Two operations at once


@pytest.mark.parametrize("protocol", [TRANSPORT_WS, LEGACY_WS])
@pytest.mark.real_time
async def test_two_operations_of_a_socket_at_the_same_time(protocol: str) -> None:
    """They share the loaders of the connection, and no batch; the end of one leaves the other alone."""
    started: asyncio.Queue[str] = asyncio.Queue()
    go_on = asyncio.Event()
    ended: asyncio.Queue[str] = asyncio.Queue()
    batches: list[list[str]] = []

    class Slow(Loaders):
        @dataloader
        async def names(self, keys: list[str]) -> list[str]:
            batches.append(list(keys))
            started.put_nowait(keys[0])
            try:
                await go_on.wait()
            finally:
                ended.put_nowait(keys[0])
            return keys

    @strawberry.type
    class Events:
        @strawberry.subscription
        async def name(self, info: strawberry.Info[Any, None], key: str) -> AsyncIterator[str]:
            yield await info.context["loaders"].names.load(key)

    app: Any = GraphQL(strawberry.Schema(Query, subscription=Events), lambda request: Slow())
    async with Server(app) as server, connect(server.address, protocol) as client:
        for key in ("a", "b"):
            await client.start(key, f'subscription {{ name(key: "{key}") }}')
            assert await started.get() == key
        await client.start("c", 'subscription { name(key: "b") }')
        assert await started.get() == "b"
        assert batches == [["a"], ["b"], ["b"]]
        await client.stop("a")
        assert await ended.get() == "a"
        assert ended.empty()
        go_on.set()
        assert await client.get("b") == ("next", {"data": {"name": "b"}})
        assert await client.get("c") == ("next", {"data": {"name": "b"}})


@pytest.mark.real_time
async def test_the_operations_of_an_http_batch_have_scopes_of_their_own(market: Market) -> None:
    schema = SCHEMAS["install"](config=StrawberryConfig(batching_config={"max_operations": 3}))
    async with serve(schema, market) as server:
        queries = ["{ quote { price } }", '{ quote(name: "pear") { related } }', "{ quotes { price related } }"]
        response = await post(server.address, queries)
        assert [each["data"] for each in response.json()] == [
            {"quote": {"price": 100}},
            {"quote": {"related": 100}},
            {"quotes": [{"price": 100, "related": 100}] * 2},
        ]
        assert sorted(market.batches) == [["apple"], ["apple", "pear"], ["pear"]]


# Nothing outlives an operation


class Endless(Loaders):
    """A loader whose batches end only when they are cancelled."""

    def __init__(self) -> None:
        self.running = 0
        self.started = asyncio.Event()

    @dataloader
    async def forever(self, keys: list[int]) -> list[int]:
        self.running += 1
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            self.running -= 1
        return keys


async def start_load(info: Any) -> "tuple[weakref.ref[Scope], asyncio.Future[int]]":
    """A batch that is under way; nobody waits for it."""
    loaders = info.context["loaders"]
    future = loaders.forever.load(1)
    await loaders.started.wait()
    scope = Scope.current()
    assert scope is not None
    return weakref.ref(scope), future


@strawberry.type
class Leaving:
    @strawberry.field
    async def something(self, info: strawberry.Info[Any, None]) -> int:
        info.context["left"].append(await start_load(info))
        return 1

    @strawberry.field
    async def failing(self, info: strawberry.Info[Any, None]) -> int:
        info.context["left"].append(await start_load(info))
        raise ValueError("no")


@strawberry.type
class LeavingEvents:
    @strawberry.subscription
    async def something(self, info: strawberry.Info[Any, None], source: bool) -> AsyncIterator[Leaving]:
        if source:
            info.context["left"].append(await start_load(info))
        for _ in range(2):
            yield Leaving()


class Schema(strawberry.Schema):
    def process_errors(self, errors: Any, execution_context: Any = None) -> None:
        """Log nothing: a record of pytest's would hold the traceback of an error, and with it the scope."""


leaving = Schema(Leaving, subscription=LeavingEvents)
install(leaving)


async def see_nothing_left(loaders: Endless, left: list[Any], count: int) -> None:
    """The batches are cancelled, who waits knows it, and the scopes are gone."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert loaders.running == 0
    assert len(left) == count
    for _, future in left:
        assert isinstance(future.exception(), LoaderClosedError)
    scopes = [scope for scope, _ in left]
    left.clear()
    gc.collect()
    assert [scope() for scope in scopes] == [None] * count


@pytest.mark.parametrize("field", ["something", "failing"])
@pytest.mark.every_loop
async def test_the_end_of_a_query_is_the_end_of_its_batches(loop_kind: str, field: str) -> None:
    async with Endless() as loaders:
        left: list[Any] = []
        await leaving.execute(f"{{ {field} }}", context_value={"loaders": loaders, "left": left})
        await see_nothing_left(loaders, left, 1)


@pytest.mark.every_loop
async def test_the_end_of_an_event_is_the_end_of_its_batches() -> None:
    async with Endless() as loaders:
        left: list[Any] = []
        results = await leaving.subscribe(
            "subscription { something(source: false) { something } }", context_value={"loaders": loaders, "left": left}
        )
        for _ in range(2):
            await anext(results)
            await see_nothing_left(loaders, left, 1)
        await results.aclose()


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.every_loop
async def test_the_end_of_a_subscription_is_the_end_of_its_batches(loop_kind: str, close: bool) -> None:
    async with Endless() as loaders:
        left: list[Any] = []
        results = await leaving.subscribe(
            "subscription { something(source: true) { something } }", context_value={"loaders": loaders, "left": left}
        )
        await anext(results)
        if close:
            await results.aclose()
            await see_nothing_left(loaders, left, 2)
        else:
            await anext(results)
            assert [payload async for payload in results] == []
            await see_nothing_left(loaders, left, 3)


@pytest.mark.every_loop
async def test_cancelling_an_operation_ends_its_batches() -> None:
    async with Endless() as loaders:
        left: list[Any] = []
        waiting = asyncio.Event()

        @strawberry.type
        class Waiting:
            @strawberry.field
            async def something(self, info: strawberry.Info[Any, None]) -> int:
                info.context["left"].append(await start_load(info))
                waiting.set()
                await asyncio.get_running_loop().create_future()
                return 1

        schema = strawberry.Schema(Waiting)
        install(schema)
        task = asyncio.create_task(schema.execute("{ something }", context_value={"loaders": loaders, "left": left}))
        await waiting.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        await see_nothing_left(loaders, left, 1)
