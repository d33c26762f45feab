"""@defer and @stream: late work finds its scope open, and the scope closes after the last frame.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

import pytest
import strawberry
from graphql import ExperimentalIncrementalExecutionResults

from loader import Loaders, Scope, dataloader
from loader.strawberry import LoaderExtension, _executor, install, relation
from loader.strawberry._executor import _Steps
from loader.strawberry.asgi import GraphQL
from tests.answers import QuietSchema
from tests.prices import INCREMENTAL, Market, Mutation, Prices
from tests.serving import PROTOCOLS, SSE, Server, call, stream

Info = strawberry.Info[Any, None]

INCREMENTAL_HTTP = "multipart/mixed"
POSTS, AUTHORS = 50, 20


class People(Loaders):
    """`batches` has the number of keys of each; with `hold` they wait until it is set."""

    def __init__(self, hold: asyncio.Event | None = None) -> None:
        self.batches: list[int] = []
        self.scopes: list[weakref.ref[Scope]] = []
        self.log: list[str] = []
        self.running = asyncio.Event()
        self.hold = hold

    @dataloader
    async def users(self, ids: list[int]) -> list[int]:
        self.batches.append(len(ids))
        scope = Scope.current()
        assert scope is not None
        self.scopes.append(weakref.ref(scope))
        self.running.set()
        try:
            await asyncio.sleep(0)
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            for _ in range(5):
                await asyncio.sleep(0)
            self.log.append("batch cancelled")
            raise
        return ids


@strawberry.type
class Post:
    n: int
    related: int = relation(People.users, "n")

    @strawberry.field
    async def author(self, info: Info) -> int:
        user: int = await info.context["loaders"].users.load(self.n % AUTHORS)
        return user

    @strawberry.field
    async def editor(self, info: Info) -> int:
        user: int = await info.context["loaders"].users.load(100 + self.n % AUTHORS)
        return user

    @strawberry.field
    async def broken(self) -> int | None:
        raise ValueError("broken")


@strawberry.type
class Query:
    @strawberry.field
    def posts(self, first: int = POSTS) -> list[Post]:
        return [Post(n=n) for n in range(first)]

    @strawberry.field
    async def later_posts(self) -> list[Post]:
        return [Post(n=n) for n in range(POSTS)]

    @strawberry.field
    async def generated_posts(self, first: int = POSTS) -> strawberry.Streamable[Post]:
        for n in range(first):
            yield Post(n=n)

    @strawberry.field
    async def loading_posts(self, info: Info) -> strawberry.Streamable[Post]:
        """Loads before each post."""
        for n in range(3):
            yield Post(n=await info.context["loaders"].users.load(n))

    @strawberry.field
    def awaited(self, info: Info) -> list[int]:
        def numbers() -> Iterator[Any]:
            for n in range(3):
                yield info.context["loaders"].users.load(n)

        return numbers()  # type: ignore[return-value]  # any iterable will do

    @strawberry.field
    def one(self) -> Post:
        return Post(n=1)

    @strawberry.field
    def other(self) -> Post:
        return Post(n=2)


def installed(schema: strawberry.Schema, **options: Any) -> strawberry.Schema:
    install(schema, **options)
    return schema


lazy = installed(strawberry.Schema(Query, config=INCREMENTAL))
early = installed(strawberry.Schema(Query, config=INCREMENTAL), early_execution=True)
extended = strawberry.Schema(Query, config=INCREMENTAL, extensions=[LoaderExtension])
SCHEMAS = {"install": lazy, "extension": extended, "early": early}
every_schema = pytest.mark.parametrize("way", SCHEMAS)

# The shapes of the measurements: the batches that they take without and with early execution.
SHAPES: dict[str, tuple[str, list[int], list[int]]] = {
    "defer on each item": ("{ posts { n ... @defer { author } } }", [20], [20]),
    "initial, and defer on each item": ("{ posts { author ... @defer { editor } } }", [20, 20], [40]),
    "two groups at the root": (
        "{ one { author } other { author } ... @defer { posts { author } } }",
        [2, 18],
        [20],
    ),
    "stream with a beginning": ("{ posts @stream(initialCount: 10) { author } }", [10] + [1] * 10, [20]),
    "stream of a list that comes later": ("{ laterPosts @stream(initialCount: 0) { author } }", [1] * 20, [20]),
    "stream of a generator": ("{ generatedPosts @stream(initialCount: 10) { author } }", [10] + [1] * 10, [20]),
}


async def frames(result: Any) -> list[Any]:
    """What a result brings after the initial one."""
    assert isinstance(result, ExperimentalIncrementalExecutionResults), result
    return [frame async for frame in result.subsequent_results]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.every_loop
async def test_batches(loop_kind: str, shape: str) -> None:
    query, without, with_early = SHAPES[shape]
    for schema, batches in ((lazy, without), (early, with_early)):
        async with People() as loaders:
            result: Any = await schema.execute(query, context_value={"loaders": loaders})
            await frames(result)
            assert loaders.batches == batches


QUERIES = (
    "{ posts(first: 3) { n ... @defer { author } } }",
    "{ posts(first: 3) { related ... @defer { editor ... @defer { author } } } }",
    "{ posts(first: 3) @stream(initialCount: 1) { author related } }",
    "{ generatedPosts(first: 3) @stream(initialCount: 0) { related } }",
    "{ loadingPosts @stream(initialCount: 0) { related } }",
    "{ awaited @stream(initialCount: 0) }",
    "{ awaited @stream(initialCount: 2) }",
)


@every_schema
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.every_loop
async def test_late_work_has_the_scope_of_its_operation(loop_kind: str, way: str, query: str) -> None:
    """And that is gone after the last frame."""
    async with People() as loaders:
        result: Any = await SCHEMAS[way].execute(query, context_value={"loaders": loaders})
        assert Scope.current() is None
        later = await frames(result)
        assert not later[-1].has_next
        assert [value.errors for frame in later for value in frame.incremental or () if value.errors] == []
        assert [done.errors for frame in later for done in frame.completed or () if done.errors] == []
        assert Scope.current() is None
        (scope,) = {reference() for reference in loaders.scopes}
        assert scope is not None
        assert scope is not loaders._own
        assert scope.closed
        del scope, result, later
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        assert {reference() for reference in loaders.scopes} == {None}


@every_schema
async def test_a_consumer_that_takes_each_frame_in_a_task_of_its_own(way: str) -> None:
    async with People() as loaders:
        result: Any = await SCHEMAS[way].execute(
            "{ posts { n ... @defer { author related } } }", context_value={"loaders": loaders}
        )
        while (await asyncio.create_task(anext(result.subsequent_results))).has_next:
            pass
        with pytest.raises(StopAsyncIteration):
            await anext(result.subsequent_results)
        (scope,) = {reference() for reference in loaders.scopes}
        assert scope is not None
        assert scope.closed


@every_schema
async def test_a_consumer_that_stops_early(way: str) -> None:
    hold = asyncio.Event()
    async with People(hold) as loaders:
        result: Any = await SCHEMAS[way].execute(
            "{ posts { n ... @defer { author } } one { n ... @defer { broken } } }", context_value={"loaders": loaders}
        )
        assert (await anext(result.subsequent_results)).has_next
        await loaders.running.wait()
        await result.subsequent_results.aclose()
        for _ in range(10):
            await asyncio.sleep(0)
        assert loaders.log == ["batch cancelled"]


STREAMS = (
    "{ posts(first: 3) @stream(initialCount: 1) { author } }",
    "{ generatedPosts(first: 3) @stream(initialCount: 1) { author } }",
    "{ posts(first: 3) @stream(initialCount: 0) { author } laterPosts { editor } }",
)


@pytest.mark.parametrize("query", STREAMS)
@pytest.mark.every_loop
async def test_asyncio_has_nothing_to_report_of_items_begun_early_in_an_operation_that_is_cancelled(
    loop_kind: str, query: str
) -> None:
    """The test's loop takes any report for a failure."""
    async with People(asyncio.Event()) as loaders:
        operation = asyncio.ensure_future(early.execute(query, context_value={"loaders": loaders}))
        await loaders.running.wait()
        operation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await operation
        for _ in range(10):
            await asyncio.sleep(0)
        assert loaders.log == ["batch cancelled"]


async def test_asyncio_has_nothing_to_report_of_items_begun_early_that_nobody_comes_for() -> None:
    async with People(asyncio.Event()) as loaders:
        result: Any = await early.execute(
            "{ posts(first: 3) @stream(initialCount: 0) { author } }", context_value={"loaders": loaders}
        )
        await loaders.running.wait()
        del result
    for _ in range(10):
        await asyncio.sleep(0)


class Names(Loaders):
    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        await asyncio.sleep(0)
        return [f"name {key}" for key in ids]


def found(row: "Row") -> int:
    if row.n == row.bad:
        raise LookupError(f"no key in {row.n}")
    return row.n


@strawberry.type
class Row:
    n: int
    bad: strawberry.Private[int]
    name: str = relation(Names.names, found)


@strawberry.type
class Rows:
    @strawberry.field
    def listed(self, bad: int) -> list[Row] | None:
        return [Row(n=n, bad=bad) for n in range(5)]

    @strawberry.field
    async def generated(self, bad: int) -> strawberry.Streamable[Row]:
        for n in range(5):
            if n == bad:
                raise LookupError(f"no key in {n}")
            yield Row(n=n, bad=-1)

    @strawberry.field
    def iterated(self, bad: int) -> list[Row] | None:
        def rows() -> Iterator[Row]:
            for n in range(5):
                if n == bad:
                    raise LookupError(f"no key in {n}")
                yield Row(n=n, bad=-1)

        return rows()  # type: ignore[return-value]  # any iterable will do


@strawberry.type
class Cancelled:
    @strawberry.field
    async def rows(self, begins: int) -> strawberry.Streamable[Row]:
        for n in range(begins):
            yield Row(n=n, bad=-1)
        raise asyncio.CancelledError  # as of something else that was cancelled, and that it waited for


@pytest.mark.parametrize("begins", [1, 3])
async def test_a_stream_whose_source_is_cancelled_says_so(begins: int) -> None:
    schema = installed(QuietSchema(Cancelled, config=INCREMENTAL), early_execution=True)
    async with Names() as loaders:
        result: Any = await schema.execute(
            f"{{ rows(begins: {begins}) @stream(initialCount: 1) {{ name }} }}", context_value={"loaders": loaders}
        )
        later = [frame.formatted for frame in await asyncio.wait_for(frames(result), 5)]
    completed: list[Any] = [part for frame in later for part in frame.get("completed", ())]
    assert [error["message"] for part in completed for error in part["errors"]] == [
        "the source of a stream was cancelled"
    ]


@strawberry.type
class Endless:
    @strawberry.field
    async def rows(self) -> strawberry.Streamable[Row]:
        yield Row(n=0, bad=-1)
        await asyncio.Event().wait()


async def test_a_source_that_is_waited_for_ends_with_whoever_takes_the_items() -> None:
    schema = installed(QuietSchema(Endless, config=INCREMENTAL), early_execution=True)
    async with Names() as loaders:
        result: Any = await schema.execute(
            "{ rows @stream(initialCount: 0) { name } }", context_value={"loaders": loaders}
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(frames(result), 1)


class Slow(Names):
    def __init__(self) -> None:
        self.asked, self.let_go = asyncio.Event(), asyncio.Event()

    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        self.asked.set()
        await self.let_go.wait()
        return [f"name {key}" for key in ids]


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_stream_whose_source_has_failed_waits_for_the_items_before_as_long_as_somebody_does(
    leaves: bool,
) -> None:
    schema = installed(QuietSchema(Rows, config=INCREMENTAL), early_execution=True)
    async with Slow() as loaders:
        result: Any = await schema.execute(
            "{ generated(bad: 3) @stream(initialCount: 0) { name } }", context_value={"loaders": loaders}
        )
        receiving = asyncio.ensure_future(frames(result))
        await loaders.asked.wait()
        if leaves:
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            return
        (producing,) = [task for task in asyncio.all_tasks() if "StreamItemQueue._run" in repr(task)]
        producing.cancel()
        await asyncio.sleep(0)
        loaders.let_go.set()
        later = [frame.formatted for frame in await asyncio.wait_for(receiving, 5)]
    completed: list[Any] = [part for frame in later for part in frame.get("completed", ())]
    assert [error["message"] for part in completed for error in part["errors"]] == ["no key in 3"]


@pytest.mark.parametrize("root", ["listed", "generated", "iterated"])
async def test_an_eager_task_factory_is_back_when_a_stream_has_begun(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coroutine, loop=loop, **named)

    monkeypatch.setattr(_executor, "EAGER", factory.__code__)  # which before CPython 3.12 there is none of
    schema = installed(QuietSchema(Rows, config=INCREMENTAL), early_execution=True)
    loop = asyncio.get_running_loop()
    usual = loop.get_task_factory()
    loop.set_task_factory(factory)
    try:
        async with Names() as loaders:
            result: Any = await schema.execute(
                f"{{ {root}(bad: 3) @stream(initialCount: 1) {{ name }} }}", context_value={"loaders": loaders}
            )
            assert loop.get_task_factory() is factory
            assert await asyncio.wait_for(frames(result), 5)
    finally:
        loop.set_task_factory(usual)


@strawberry.type
class Numbers:
    @strawberry.field
    def numbers(self) -> list[int]:
        return [1, 2, 3]


@pytest.mark.parametrize("early_execution", [True, False])
@pytest.mark.parametrize("root", ["listed", "generated", "iterated"])
@pytest.mark.parametrize("bad", [1, 2, 3, 4])
@pytest.mark.every_loop
async def test_a_stream_that_fails_ends_after_the_items_before(
    loop_kind: str, bad: int, root: str, early_execution: bool
) -> None:
    schema = installed(QuietSchema(Rows, config=INCREMENTAL), early_execution=early_execution)
    async with Names() as loaders:
        result: Any = await schema.execute(
            f"{{ {root}(bad: {bad}) @stream(initialCount: 1) {{ name }} }}", context_value={"loaders": loaders}
        )
        later = [frame.formatted for frame in await asyncio.wait_for(frames(result), 5)]
    items = [item for frame in later for part in frame.get("incremental", ()) for item in part["items"]]
    assert items == [{"name": f"name {n}"} for n in range(1, bad)]
    completed: list[Any] = [part for frame in later for part in frame.get("completed", ())]
    assert [error["message"] for part in completed for error in part["errors"]] == [f"no key in {bad}"]


def test_without_a_loop_strawberry_says_what_to_do() -> None:
    schema = installed(QuietSchema(Numbers, config=INCREMENTAL), early_execution=True)
    result: Any = schema.execute_sync("{ numbers @stream(initialCount: 1) }")
    assert "use `Schema.execute` instead" in result.errors[0].message


async def test_what_was_left_for_later_in_a_mutation_has_its_own_errors() -> None:
    market = Market()

    @strawberry.type
    class Mutating(Mutation):
        @strawberry.mutation
        def post(self) -> Post:
            return Post(n=1)

    schema = installed(strawberry.Schema(Query, Mutating, config=INCREMENTAL))
    async with Prices(market) as loaders:
        result: Any = await schema.execute(
            "mutation { a: rise { price } b: rise { price ... @defer { related } } post { n ... @defer { broken } } }",
            context_value={"loaders": loaders},
        )
        assert result.initial_result.errors is None
        assert result.initial_result.data == {"a": {"price": 101}, "b": {"price": 102}, "post": {"n": 1}}
        values = [value for frame in await frames(result) for value in frame.incremental or ()]
        data = [value.data for value in values]
        assert sorted(map(str, data)) == ["{'broken': None}", "{'related': 102}"]
        assert [error.message for value in values for error in value.errors or ()] == ["broken"]


async def test_the_hooks_of_the_users_executor_are_called_too() -> None:
    from graphql.execution.executor import ExecutionHooks
    from strawberry.schema.schema import StrawberryGraphQLCoreExecutionContext

    finished: list[Any] = []

    class Executor(StrawberryGraphQLCoreExecutionContext):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.hooks = ExecutionHooks(async_work_finished=finished.append)

    schema = installed(strawberry.Schema(Query, config=INCREMENTAL, execution_context_class=Executor))
    async with People() as loaders:
        result: Any = await schema.execute(QUERIES[0], context_value={"loaders": loaders})
        assert finished == []
        await frames(result)
        assert len(finished) == 1


async def test_an_extension_that_fails_at_the_end_leaves_nothing_open() -> None:
    from strawberry.extensions import SchemaExtension

    class Failing(SchemaExtension):
        def on_operation(self) -> Iterator[None]:
            yield
            raise ValueError("at the end")

    schema = installed(strawberry.Schema(Query, config=INCREMENTAL, extensions=[Failing]), early_execution=True)
    async with People() as loaders:
        result = await schema.execute(
            "{ one { author } ... @defer { other { author } } }", context_value={"loaders": loaders}
        )
        assert [error.message for error in result.errors or ()] == ["at the end"]
        (scope,) = {reference() for reference in loaders.scopes}
        assert scope is not None
        assert scope.closed


async def test_an_executor_without_an_operation_works_as_ever() -> None:
    """One that somebody runs without the schema's extensions."""
    from graphql import parse
    from graphql.execution import experimental_execute_incrementally, subscribe

    @strawberry.type
    class Plain:
        @strawberry.field
        def numbers(self) -> list[int]:
            return [1, 2]

        @strawberry.field
        def n(self) -> int:
            return 1

    @strawberry.type
    class Counting:
        @strawberry.subscription
        async def n(self) -> AsyncGenerator[int, None]:
            for n in range(2):
                yield n

    @strawberry.type
    class Changing:
        @strawberry.mutation
        def n(self) -> int:
            return 1

    schema = installed(strawberry.Schema(Plain, Changing, Counting, config=INCREMENTAL))
    executor: Any = schema.execution_context_class
    graphql_schema = schema._schema
    result: Any = experimental_execute_incrementally(graphql_schema, parse("mutation { n }"), executor_class=executor)
    assert result.data == {"n": 1}
    result = experimental_execute_incrementally(
        graphql_schema, parse("{ n ... @defer { numbers @stream } }"), executor_class=executor
    )
    later = await frames(result)
    assert [value.items for frame in later for value in frame.incremental or () if hasattr(value, "items")] == [[1, 2]]
    events: Any = await subscribe(graphql_schema, parse("subscription { n }"), executor_class=executor)  # type: ignore[misc]
    assert [event.data async for event in events] == [{"n": 0}, {"n": 1}]


# Over HTTP


def made_of(loaders: People, closed: asyncio.Event) -> Any:
    async def make_loaders(request: Any) -> AsyncIterator[People]:
        try:
            yield loaders
        finally:
            loaders.log.append("closed")
            closed.set()

    return make_loaders


def collect(payloads: list[Any]) -> dict[str, Any]:
    """What all the frames together say."""
    data: dict[str, Any] = payloads[0]["data"]
    for payload in payloads[1:]:
        for part in payload.get("incremental", ()):
            at: Any = data
            for step in part["path"]:
                at = at[step]
            if "items" in part:
                at.extend(part["items"])
            else:
                target = at
                for step in part.get("subPath", ()):
                    target = target[step]
                target.update(part["data"])
    return data


transports = pytest.mark.parametrize("accept", [INCREMENTAL_HTTP, SSE])


@every_schema
@transports
@pytest.mark.real_time
async def test_over_http(way: str, accept: str) -> None:
    loaders, closed = People(), asyncio.Event()
    app: Any = GraphQL(SCHEMAS[way], made_of(loaders, closed), subscription_protocols=PROTOCOLS)
    query = "{ posts @stream(initialCount: 45) { n related } one { n ... @defer { author } } }"
    async with Server(app) as server:
        async with stream(server.address, query, accept) as payloads:
            data = collect([payload async for payload in payloads])
        await closed.wait()
    assert data["one"] == {"n": 1, "author": 1}
    assert data["posts"] == [{"n": n, "related": n} for n in range(POSTS)]
    assert loaders.log == ["closed"]


@every_schema
@transports
@pytest.mark.real_time
async def test_a_client_that_leaves_in_the_middle(way: str, accept: str) -> None:
    loaders, closed = People(asyncio.Event()), asyncio.Event()
    app: Any = GraphQL(SCHEMAS[way], made_of(loaders, closed), subscription_protocols=PROTOCOLS)
    async with Server(app) as server:
        async with stream(server.address, "{ posts { n ... @defer { author } } }", accept) as payloads:
            assert len((await anext(payloads))["data"]["posts"]) == POSTS
            await loaders.running.wait()
        await closed.wait()
    assert loaders.log == ["batch cancelled", "closed"]


@every_schema
@transports
async def test_a_client_that_takes_nothing_more_and_leaves(way: str, accept: str) -> None:
    """The server waits for the client when it leaves, and not for the work; that ends before anything is closed."""
    loaders, closed = People(asyncio.Event()), asyncio.Event()
    app: Any = GraphQL(SCHEMAS[way], made_of(loaders, closed), subscription_protocols=PROTOCOLS)

    async def with_a_client_that_leaves(scope: Any, receive: Any, send: Any) -> None:
        async def leave(message: Any) -> None:
            if b"incremental" in message.get("body", b""):
                await loaders.running.wait()
                raise asyncio.CancelledError  # as a `send` that is cancelled while it waits
            await send(message)

        await app(scope, receive, leave)

    query = "{ posts { n ... @defer { author } } one { n ... @defer { broken } } }"
    sent: list[Any] = []
    task = asyncio.create_task(call(with_a_client_that_leaves, query, sent, accept=accept))
    await asyncio.wait([task])
    assert sent[0] == 200
    assert loaders.log == ["batch cancelled", "closed"]
    for _ in range(10):  # what the view leaves to the garbage collector: its generators
        gc.collect()
        await asyncio.sleep(0)


async def test_a_source_that_cannot_be_closed_is_left_alone() -> None:
    # A list that is streamed has a plain iterator.
    operation: Any = None  # closing has nothing to do with it
    assert await _Steps(iter([1]), operation).aclose() is None  # type: ignore[func-returns-value]
