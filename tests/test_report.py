"""The report in the response, on every transport; hints in the log; and both silent where all is well.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import asyncio
import gc
import inspect
import json
import logging
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

import pytest
import strawberry
from strawberry.schema.config import StrawberryConfig
from strawberry.types import ExecutionContext

from loader import DataLoader, Loaders, Scope, _hooks, dataloader
from loader.hints import HintKind
from loader.observe import Observer, observing
from loader.strawberry import _places, _report, install, relation
from loader.strawberry.asgi import GraphQL
from loader.timeline import Timeline
from tests import shapes, test_example_schema
from tests.serving import LEGACY_WS, MULTIPART, PROTOCOLS, SSE, TRANSPORT_WS, Server, in_process, subscribed

Info = strawberry.Info[Any, None]


@strawberry.type
class Author:
    id: int
    name: str


class Shop(Loaders):
    @dataloader
    async def authors(self, ids: list[int]) -> list[Author]:
        await asyncio.sleep(0)
        return [Author(id=key, name=f"author {key}") for key in ids]

    @dataloader
    async def reviews(self, ids: list[int], *, by: str, viewer: str) -> list[str]:
        return [f"{viewer} read {by}" for _ in ids]

    @dataloader
    async def broken(self, ids: list[int]) -> list[int]:
        raise ConnectionError("down")


@strawberry.type
class Post:
    id: int
    author: Author = relation(Shop.authors, "id")

    @strawberry.field
    async def slow_author(self, info: Info) -> Author:
        author: Author = await info.context["loaders"].authors.load(self.id)
        return author


@strawberry.type
class Query:
    @strawberry.field
    def posts(self, first: int = 3) -> list[Post]:
        return [Post(id=key) for key in range(first)]

    @strawberry.field
    def post(self) -> Post:
        return Post(id=1)

    @strawberry.field
    async def in_a_loop(self, info: Info) -> list[str]:
        names = []
        for key in range(5):
            author = await info.context["loaders"].authors.load(key)  # one after another
            names.append(author.name)
        return names

    @strawberry.field
    async def reviews(self, info: Info, by: str) -> list[str]:
        loader = info.context["loaders"].reviews(by=by, viewer="ada@example.org")
        return [await loader.load(1), await loader.load(1)]

    @strawberry.field
    async def broken(self, info: Info) -> int | None:
        value: int = await info.context["loaders"].broken.load(1)
        return value


@strawberry.type
class Mutation:
    @strawberry.mutation
    def save(self) -> Post:
        return Post(id=1)


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def saved(self, info: Info) -> AsyncGenerator[Post, None]:
        for key in range(3):
            await info.context["loaders"].authors.load(key)
            yield Post(id=key)


class QuietSchema(strawberry.Schema):
    def process_errors(self, errors: Any, execution_context: Any = None) -> None:
        pass


def schema_with(**options: Any) -> strawberry.Schema:
    config = StrawberryConfig(enable_experimental_incremental_execution=True)
    schema = QuietSchema(Query, Mutation, Subscription, config=config)
    install(schema, loaders=Shop, **options)
    return schema


async def execute(schema: strawberry.Schema, query: str) -> Any:
    async with Shop() as loaders:
        return await schema.execute(query, context_value={"loaders": loaders})


def sizes(report: Any) -> dict[str, list[tuple[int, str]]]:
    return {name: [(each["size"], each["reason"]) for each in its] for name, its in report["batches"].items()}


def loop_place() -> str:
    lines, first = inspect.getsourcelines(Query)
    (number,) = [number for number, line in enumerate(lines, first) if "one after another" in line]
    return f"{__file__}:{number} in Query.in_a_loop"


# -- the report


async def test_a_report_has_the_batches_of_each_loader_and_the_hints() -> None:
    result = await execute(schema_with(report=True), "{ posts { author { name } } broken }")
    assert result.data == {"posts": [{"author": {"name": f"author {n}"}} for n in range(3)], "broken": None}
    report = result.extensions["loaders"]
    assert sizes(report) == {"Shop.authors": [(3, "planned")], "Shop.broken": [(1, "settled")]}
    assert report["batches"]["Shop.broken"][0]["outcome"] == "failed"
    assert report["ms"] >= report["batches"]["Shop.authors"][0]["ms"] > 0
    assert report["hints"] == []
    assert "cached" not in report
    json.dumps(report)


async def test_there_is_no_report_unless_it_is_asked_for() -> None:
    for options in ({}, {"report": False}, {"report": None}):
        result = await execute(schema_with(**options), "{ posts { author { name } } }")
        assert not result.extensions


async def test_what_came_from_the_cache_is_in_the_report() -> None:
    result = await execute(schema_with(report=True), "{ inALoop a: inALoop }")
    report = result.extensions["loaders"]
    assert set(report) == {"ms", "batches", "hints"}
    schema = schema_with(report=True, plan=False)
    result = await execute(schema, "{ post { author { name } } inALoop }")
    assert result.extensions["loaders"]["cached"] == {"Shop.authors": 1}


async def test_parameters_of_loaders_are_not_in_the_report() -> None:
    long = "x" * 10_000
    query = f'{{ a: reviews(by: "{long}") b: reviews(by: "b") c: reviews(by: "b") d: reviews(by: "{long}") }}'
    result = await execute(schema_with(report=True), query)
    assert result.data["a"] == [f"ada@example.org read {long}"] * 2
    report = result.extensions["loaders"]
    assert sizes(report) == {"Shop.reviews": [(1, "settled"), (1, "settled")]}
    assert report["cached"] == {"Shop.reviews": 4}  # of both
    assert "ada@example.org" not in str(report)
    assert len(str(report)) < 1000


async def test_a_function_decides_for_each_operation() -> None:
    def wanted(context: ExecutionContext) -> bool:
        return "authors" not in (context.query or "")

    schema = schema_with(report=wanted)
    assert "loaders" in (await execute(schema, "{ post { id } }")).extensions
    assert not (await execute(schema, "{ post { id } authors: posts { id } }")).extensions


async def test_a_function_that_fails_means_no_report(caplog: pytest.LogCaptureFixture) -> None:
    def broken(context: ExecutionContext) -> bool:
        raise ValueError("broken")

    result = await execute(schema_with(report=broken), "{ post { id } }")
    assert (result.data, result.errors) == ({"post": {"id": 1}}, None)
    assert not result.extensions
    assert "failed, so there is no report" in caplog.text


class Decides:
    async def __call__(self, context: ExecutionContext) -> bool:
        return False


async def decide(answer: bool, context: ExecutionContext) -> bool:
    return answer


@pytest.mark.parametrize("report", [decide, partial(decide, False), Decides(), partial(Decides())])
def test_a_function_that_would_have_to_be_awaited_is_refused(report: Any) -> None:
    schema = QuietSchema(Query)
    with pytest.raises(TypeError, match=r"install\(report=\) takes a function that decides at once, not"):
        install(schema, report=report)
    assert not schema.execute_sync("{ post { id } }").extensions


@pytest.mark.parametrize("answer", [lambda: decide(False, None), asyncio.Event, lambda: "no", lambda: None])  # type: ignore[arg-type]
async def test_a_function_that_says_neither_true_nor_false_means_no_report(
    answer: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    result = await execute(schema_with(report=lambda context: answer()), "{ post { id } }")
    assert (result.data, result.errors) == ({"post": {"id": 1}}, None)
    assert not result.extensions
    assert "failed, so there is no report" in caplog.text
    assert "it must return True or False" in caplog.text


async def test_a_report_that_fails_does_not_harm_the_response(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(batch: Any) -> Any:
        raise ValueError("broken")

    monkeypatch.setattr(_report, "_in_short", broken)
    result = await execute(schema_with(report=True), "{ posts { author { name } } }")
    assert result.errors is None
    assert not result.extensions
    assert "the report of the loaders failed" in caplog.text


def test_a_report_is_wanted_or_not_or_decided_by_a_function() -> None:
    with pytest.raises(TypeError, match=r"install\(report=\) takes True, False or a function .*, not 'yes'"):
        schema_with(report="yes")


@pytest.mark.parametrize("option", ["plan", "early_execution", "hints"])
def test_options_that_are_on_or_off_take_nothing_else(option: str) -> None:
    with pytest.raises(TypeError, match=rf"install\({option}=\) takes True(, False)? or \w+, not 'no'"):
        schema_with(**{option: "no"})


async def test_a_query_that_cannot_be_parsed_has_an_empty_report() -> None:
    result = await execute(schema_with(report=True), "{ nothing")
    assert result.errors
    assert result.extensions["loaders"]["batches"] == {}


def test_an_operation_without_a_loop_has_an_empty_report() -> None:
    result = schema_with(report=True).execute_sync("{ post { id } }")
    assert result.extensions is not None
    assert result.extensions["loaders"]["batches"] == {}


async def test_a_mutation_has_a_report() -> None:
    result = await execute(schema_with(report=True), "mutation { save { author { name } } }")
    assert sizes(result.extensions["loaders"]) == {"Shop.authors": [(1, "settled")]}


async def test_a_batch_under_way_and_one_that_was_not_sent_are_told_too() -> None:
    report = _report.Report()
    with observing(report.timeline):
        gate = asyncio.Event()

        async def wait(keys: list[int]) -> list[int]:
            await gate.wait()
            return keys

        future = DataLoader(wait, name="wait").load(1)
        made = report.results()["loaders"]
        assert made["batches"] == {"wait": [{"size": 0, "reason": None, "ms": None, "outcome": "under way"}]}
        gate.set()
        await future
    assert report.timeline.batches == []


# -- on every transport


def app_with(schema: strawberry.Schema) -> GraphQL[None]:
    return GraphQL(schema, lambda request: Shop(), subscription_protocols=PROTOCOLS)


async def test_over_http_the_report_is_in_the_response() -> None:
    async with in_process(app_with(schema_with(report=True))) as client:
        response = await client.post("/", json={"query": "{ posts { author { name } } }"})
    assert sizes(response.json()["extensions"]["loaders"]) == {"Shop.authors": [(3, "planned")]}


async def test_a_batch_of_operations_over_http_has_a_report_each() -> None:
    schema = QuietSchema(Query, config=StrawberryConfig(batching_config={"max_operations": 2}))
    install(schema, report=True)
    async with in_process(app_with(schema)) as client:
        body = [{"query": "{ posts(first: 2) { author { name } } }"}, {"query": "{ post { author { name } } }"}]
        one, two = (await client.post("/", json=body)).json()
    assert sizes(one["extensions"]["loaders"]) == {"Shop.authors": [(2, "planned")]}
    assert sizes(two["extensions"]["loaders"]) == {"Shop.authors": [(1, "settled")]}


@pytest.mark.real_time
@pytest.mark.parametrize("transport", [TRANSPORT_WS, LEGACY_WS, SSE, MULTIPART])
async def test_every_event_has_a_report_of_its_own(transport: str) -> None:
    query = "subscription { saved { id author { name } } }"
    async with (
        Server(app_with(schema_with(report=True))) as server,
        subscribed(server.address, query, transport, path="/") as payloads,
    ):
        seen = [payload async for payload in payloads if payload.get("data")]
    assert [payload["data"]["saved"]["id"] for payload in seen] == [0, 1, 2]
    for payload in seen:  # what the source loaded for the event, and the event itself
        assert sizes(payload["extensions"]["loaders"]) == {"Shop.authors": [(1, "settled"), (1, "settled")]}
        assert payload["extensions"]["loaders"]["hints"] == []


@pytest.mark.real_time
async def test_over_a_websocket_a_query_has_a_report() -> None:
    query = "{ post { author { name } } }"
    async with (
        Server(app_with(schema_with(report=True))) as server,
        subscribed(server.address, query, TRANSPORT_WS, path="/") as payloads,
    ):
        (payload,) = [payload async for payload in payloads]
    assert sizes(payload["extensions"]["loaders"]) == {"Shop.authors": [(1, "settled")]}


async def test_what_is_deferred_over_http_has_the_report_of_the_first_part() -> None:
    query = "{ post { author { name } } ... @defer { posts { author { name } } } }"
    async with in_process(app_with(schema_with(report=True))) as client:
        response = await client.post(
            "/", json={"query": query}, headers={"accept": "multipart/mixed;deferSpec=20220824,application/json"}
        )
    parts = [json.loads(line) for line in response.text.splitlines() if line.startswith("{")]
    assert sizes(parts[0]["extensions"]["loaders"]) == {"Shop.authors": [(1, "settled")]}
    assert len(parts) > 1


@pytest.mark.real_time
async def test_what_is_deferred_over_sse_has_a_report_with_every_part() -> None:
    query = "{ post { author { name } } ... @defer { posts { author { name } } } }"
    async with (
        Server(app_with(schema_with(report=True))) as server,
        subscribed(server.address, query, SSE, path="/") as payloads,
    ):
        first, *rest = [payload async for payload in payloads]
    assert sizes(first["extensions"]["loaders"]) == {"Shop.authors": [(1, "settled")]}
    assert [sizes(part["extensions"]["loaders"]) for part in rest] == [{"Shop.authors": [(2, "planned")]}]


# -- places and names


async def test_a_relation_asks_from_its_path_with_a_plan_and_without() -> None:
    for plan in (True, False):
        with observing(Timeline()) as timeline:
            await execute(schema_with(plan=plan), "query Named { list: posts { author { name } } }")
        (batch,) = timeline.batches
        assert [str(place) for place in batch.asked] == ["list.author"]
        assert timeline.name == "Named"


async def test_a_relation_in_a_fragment_asks_from_each_place_that_the_fragment_is_spread_in() -> None:
    query = """
        query { post { ...Written } first: posts { ...Written again: author { id } } }
        fragment Written on Post { author { name } }
    """
    with observing(Timeline()) as timeline:
        await execute(schema_with(plan=False), query)
    (batch,) = timeline.batches
    assert {str(place): asks.count for place, asks in batch.asked.items()} == {
        "post.author": 1,
        "first.author": 3,
        "first.again": 3,
    }


async def test_places_in_queries_are_kept_as_long_as_the_query_only() -> None:
    # A node of it has the whole text, whose length the client decides.
    with observing(Timeline()) as timeline:
        await execute(schema_with(plan=False), "{ posts { a: author { id } b: author { id } } }")
    (batch,) = timeline.batches
    assert {str(place) for place in batch.asked} == {"posts.a", "posts.b"}
    gc.collect()
    assert not _places._places


async def test_a_resolver_asks_from_its_line() -> None:
    with observing(Timeline()) as timeline:
        await execute(schema_with(), "{ posts { slowAuthor { name } } }")
    (batch,) = timeline.batches
    ((place, asks),) = batch.asked.items()
    assert (place.file, place.function, asks.count) == (__file__, "Post.slow_author", 3)


async def test_an_event_has_the_name_of_its_operation() -> None:
    class Names(Observer):
        def __init__(self) -> None:
            self.closed: list[str] = []

        def scope_closed(self, scope: Scope) -> None:
            self.closed.append(scope.name)

    names = Names()
    async with Shop() as loaders:
        with observing(names):
            results: Any = await schema_with().subscribe(
                "subscription Watch { saved { id } }", context_value={"loaders": loaders}
            )
            async for _ in results:
                pass
    assert names.closed == ["Watch"] * 4


# -- hints


async def test_loads_awaited_in_a_loop_give_one_hint_in_the_log_the_report_and_the_timeline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schema = schema_with(report=True, hints=True)
    with caplog.at_level(logging.WARNING, "loader"), observing(Timeline()) as timeline:
        result = await execute(schema, "{ inALoop }")
        await execute(schema, "{ inALoop }")
    (reported,) = result.extensions["loaders"]["hints"]
    assert reported.startswith(f"{loop_place()}: Shop.authors sent 5 batches of one key each")
    (record,) = caplog.records
    assert record.getMessage() == reported
    (hint,) = timeline.hints()
    assert (hint.kind, str(hint)) == (HintKind.LOOP, reported)
    assert str(timeline).count(f"hint: {loop_place()}") == 1


async def test_hints_are_logged_in_development_only_unless_one_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_report, "in_development", lambda: False)
    for options in ({}, {"hints": False}):
        await execute(schema_with(**options), "{ inALoop }")
    assert caplog.records == []
    monkeypatch.setattr(_report, "in_development", lambda: True)
    await execute(schema_with(hints=False), "{ inALoop }")
    assert caplog.records == []
    await execute(schema_with(), "{ inALoop }")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", shapes.SHAPES)
async def test_queries_of_every_shape_give_no_hint(name: str) -> None:
    with observing(Timeline()) as timeline:
        await shapes.batches(shapes.SHAPES[name].query, shapes.Shapes())
    assert timeline.batches
    assert timeline.hints() == []


@pytest.mark.real_time
@pytest.mark.parametrize(
    "query",
    [
        test_example_schema.ACCEPTANCE,
        "{ flights(first: 50) { origin { name departures(first: 3) { number weather { temperature } } } } }",
        '{ airline(code: "UA") { name flights(first: 20) { number plane { model } destination { name } } } }',
    ],
)
async def test_the_queries_of_the_demo_give_no_hint(query: str) -> None:
    async with test_example_schema.connected() as client:
        with observing(Timeline()) as timeline:
            await client.data(query)
    assert timeline.batches
    assert timeline.hints() == []


async def test_an_operation_that_nobody_observes_is_not_observed() -> None:
    async with Shop() as loaders:
        schema = schema_with()
        await schema.execute("{ posts { author { name } } }", context_value={"loaders": loaders})
    assert _hooks.everywhere == []
