"""Spans beside those of Strawberry's own extension: batches belong to the operation, and know the fields that asked."""

from __future__ import annotations

from collections.abc import AsyncIterator  # noqa: TC003  # Strawberry reads the annotations
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import strawberry
from opentelemetry import trace
from strawberry.extensions.tracing import OpenTelemetryExtension

from loader import Loaders, dataloader
from loader.observe import observing
from loader.strawberry import install, relation
from tests.test_otel_spans import Traces, ids

if TYPE_CHECKING:
    from collections.abc import Iterator


class AppLoaders(Loaders):
    def __init__(self, traces: Traces) -> None:
        self.traces = traces

    @dataloader
    async def airlines(self, codes: list[str]) -> dict[str, Airline]:
        with self.traces.tracer.start_as_current_span("SELECT airlines"):
            return {code: Airline(code=code) for code in codes}

    @dataloader
    async def countries(self, codes: list[str]) -> dict[str, str]:
        if "" in codes:
            raise ConnectionError("away")
        return {code: f"the country of {code}" for code in codes}


@strawberry.type
class Airline:
    code: str

    @strawberry.field
    async def country(self, info: strawberry.Info[Any]) -> str:
        country: str = await info.context["loaders"].countries.load(self.code)
        return country


@strawberry.type
class Flight:
    carrier: strawberry.Private[str]
    airline: Airline = relation(AppLoaders.airlines, "carrier")


@strawberry.type
class Query:
    @strawberry.field
    def flights(self) -> list[Flight]:
        return [Flight(carrier=code) for code in ("UA", "AA", "UA")]

    @strawberry.field
    async def airline(self, info: strawberry.Info[Any], code: str) -> Airline:
        airline: Airline = await info.context["loaders"].airlines.load(code)
        return airline

    @strawberry.field
    def nowhere(self) -> Airline:
        return Airline(code="")


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def departures(self) -> AsyncIterator[Flight]:
        for code in ("UA", "AA"):
            yield Flight(carrier=code)


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    with observing(made.spans):
        yield made


def make_schema(traces: Traces, *, extension: bool) -> strawberry.Schema:
    extensions: Any = [partial(OpenTelemetryExtension, tracer_provider=traces.provider)] if extension else []
    schema = strawberry.Schema(Query, subscription=Subscription, extensions=extensions)
    install(schema, loaders=AppLoaders)
    return schema


async def execute(traces: Traces, query: str, *, extension: bool = True) -> Any:
    async with AppLoaders(traces) as loaders:
        return await make_schema(traces, extension=extension).execute(query, context_value={"loaders": loaders})


async def test_batches_are_children_of_the_operation_and_linked_to_the_fields_that_ask(traces: Traces) -> None:
    result = await execute(traces, "query Board { flights { airline { code country } } }")
    assert result.errors is None
    assert traces.parent("batch AppLoaders.airlines") == "GraphQL Query: Board"
    assert traces.links("batch AppLoaders.airlines") == ["GraphQL Resolving: airline"] * 3
    assert traces.parent("SELECT airlines") == "batch AppLoaders.airlines"
    assert traces.parent("batch AppLoaders.countries") == "GraphQL Query: Board"
    assert traces.links("batch AppLoaders.countries") == ["GraphQL Resolving: country"] * 3
    assert len({ids(span)[0] for span in traces.all()}) == 1


async def test_inside_of_a_servers_span_they_are_children_of_the_operation_too(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("POST /graphql"):
        await execute(traces, '{ a: airline(code: "UA") { code } b: airline(code: "AA") { code } }')
    assert traces.parent("GraphQL Query") == "POST /graphql"
    assert traces.parent("batch AppLoaders.airlines") == "GraphQL Query"
    assert traces.links("batch AppLoaders.airlines") == ["GraphQL Resolving: airline"] * 2


async def test_planned_relations_are_children_of_the_span_around_the_operation(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("POST /graphql"):
        await execute(traces, "{ flights { airline { code } } }", extension=False)
    span = traces.one("batch AppLoaders.airlines")
    assert traces.parent("batch AppLoaders.airlines") == "POST /graphql"
    assert span.attributes is not None
    assert span.attributes["loader.reason"] == "planned"
    assert traces.parent("SELECT airlines") == "batch AppLoaders.airlines"


async def test_without_any_other_span_the_batch_is_the_root_of_a_trace(traces: Traces) -> None:
    await execute(traces, "{ flights { airline { code } } }", extension=False)
    assert traces.parent("batch AppLoaders.airlines") is None


async def test_a_batch_that_fails_is_an_error_beside_that_of_its_field(traces: Traces) -> None:
    result = await execute(traces, "{ nowhere { country } }")
    assert [error.message for error in result.errors] == ["away"]
    failed = [span.name for span in traces.all() if span.status.status_code is trace.StatusCode.ERROR]
    assert sorted(failed) == ["GraphQL Resolving: country", "batch AppLoaders.countries"]


async def test_the_batches_of_each_event_of_a_subscription_are_children_of_its_operation(traces: Traces) -> None:
    schema = make_schema(traces, extension=True)
    async with AppLoaders(traces) as loaders:
        events = await schema.subscribe(
            "subscription Board { departures { airline { code } } }", context_value={"loaders": loaders}
        )
        assert not isinstance(events, strawberry.types.ExecutionResult)
        async for event in events:
            assert event.errors is None
    operation = traces.one("GraphQL Query: Board")
    batches = traces.all("batch")
    assert [span.parent and span.parent.span_id for span in batches] == [ids(operation)[1]] * 2
