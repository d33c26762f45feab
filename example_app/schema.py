"""The root of the graph: what can be asked, changed and followed. The objects are in `graph`."""
# ruff: noqa: D101, D102  # what types and fields are is said in the graph's own descriptions
# Strawberry types `field(...)` with arguments as Any:
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import strawberry
from graphql import GraphQLError
from sqlalchemy import select, tuple_
from strawberry.schema.exceptions import InvalidOperationTypeError
from strawberry.types import ExecutionContext, ExecutionResult
from strawberry.types.graphql import OperationType

from example_app import models
from example_app.board import BoardSubscription
from example_app.delays import DelayMutation
from example_app.graph import Airline, Airport, Flight, Info, Plane
from example_app.limits import is_unexpected, limits
from example_app.loaders import DEFAULT_FIRST, AppLoaders, First, checked, flight_by_id
from example_app.log import OperationLog
from example_app.search import SearchMutation, SearchSubscription
from example_app.settings import Settings
from example_app.statistics import StatisticsQuery, StatisticsSubscription
from loader.strawberry import LoaderExtension, install


@strawberry.type
class Query(StatisticsQuery):
    @strawberry.field(graphql_type=list[Flight], description="Flights in order of scheduled departure.")
    async def flights(
        self,
        info: Info,
        origin: Annotated[str | None, strawberry.argument(description="An airport's code.")] = None,
        destination: Annotated[str | None, strawberry.argument(description="An airport's code.")] = None,
        carrier: Annotated[str | None, strawberry.argument(description="An airline's code.")] = None,
        day: Annotated[int | None, strawberry.argument(description="Of January 2013, 1 to 31.")] = None,
        first: First = DEFAULT_FIRST,
        after: Annotated[
            strawberry.ID | None, strawberry.argument(description="A flight's id: the list begins after it.")
        ] = None,
    ) -> list[models.Flight]:
        in_order = (models.Flight.scheduled_departure, models.Flight.id)
        query = select(models.Flight).order_by(*in_order).limit(checked(first))
        if origin is not None:
            query = query.where(models.Flight.origin_code == origin)
        if destination is not None:
            query = query.where(models.Flight.destination_code == destination)
        if carrier is not None:
            query = query.where(models.Flight.carrier_code == carrier)
        if day is not None:
            if not 1 <= day <= 31:
                raise GraphQLError(f"day must be from 1 to 31, not {day}")
            query = query.where(models.Flight.date == dt.date(2013, 1, day))
        loaders = info.context["loaders"]
        if after is not None:
            last = await flight_by_id(loaders, after)
            if last is None:
                raise GraphQLError(f"after must be the id of a flight: there is none with {after!r:.50}")
            query = query.where(tuple_(*in_order) > (last.scheduled_departure, last.id))
        async with loaders.database.session("Query.flights") as session:
            return list(await session.scalars(query))

    @strawberry.field(graphql_type=Flight | None)
    async def flight(self, info: Info, id: strawberry.ID) -> models.Flight | None:  # noqa: A002  # GraphQL's word
        return await flight_by_id(info.context["loaders"], id)

    @strawberry.field(graphql_type=Airport | None)
    async def airport(self, info: Info, code: str) -> models.Airport | None:
        return await info.context["loaders"].airports.load(code)

    @strawberry.field(graphql_type=Airline | None)
    async def airline(self, info: Info, code: str) -> models.Airline | None:
        return await info.context["loaders"].airlines.load(code)

    @strawberry.field(graphql_type=Plane | None)
    async def plane(self, info: Info, tail_number: str) -> models.Plane | None:
        return await info.context["loaders"].planes.load(tail_number)


@strawberry.type
class Mutation(DelayMutation, SearchMutation):
    pass


@strawberry.type
class Subscription(BoardSubscription, StatisticsSubscription, SearchSubscription):
    pass


class Schema(strawberry.Schema):
    def process_errors(self, errors: list[GraphQLError], execution_context: ExecutionContext | None = None) -> None:
        """Log what went wrong here; what the client did wrong stands in its answer, and needs no traceback here."""
        ours = [error for error in errors if is_unexpected(error)]
        super().process_errors(ours, execution_context)

    async def execute(self, *arguments: Any, **options: Any) -> ExecutionResult:
        """Answer a query or a mutation; a subscription is told where to go, instead of that it must not be null."""
        allowed = options.get("allowed_operation_types") or OperationType
        options["allowed_operation_types"] = set(allowed) - {OperationType.SUBSCRIPTION}
        try:
            return await super().execute(*arguments, **options)
        except InvalidOperationTypeError as error:
            if error.operation_type is not OperationType.SUBSCRIPTION:
                raise
            reason = "subscriptions need a websocket: GraphiQL opens one, where python -m example_app serves it"
            return ExecutionResult(data=None, errors=[GraphQLError(reason)])


def make_schema(settings: Settings) -> Schema:
    """The schema, which holds operations to the settings and logs them."""
    extensions = [OperationLog, LoaderExtension, *limits(settings)]
    schema = Schema(Query, Mutation, Subscription, extensions=extensions)
    install(schema, loaders=AppLoaders)
    return schema


schema = make_schema(Settings())
