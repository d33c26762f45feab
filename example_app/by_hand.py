"""The same graph, its relations resolved as one does by hand: what the page at `/` compares the demo's own with."""
# ruff: noqa: D101, D102, TC001  # the descriptions are those of `graph`; Strawberry reads annotations
# Strawberry types `field(...)` with arguments as Any:
# mypy: disallow-untyped-decorators=False
# and makes attributes of what mypy takes for methods in their place:
# mypy: disable-error-code=misc

from __future__ import annotations

from typing import TYPE_CHECKING

import strawberry
from strawberry.types import get_object_definition

from example_app import graph, models
from example_app.graph import Info
from example_app.loaders import DEFAULT_FIRST, First
from example_app.schema import Schema

if TYPE_CHECKING:
    from strawberry.types.base import StrawberryObjectDefinition
    from strawberry.types.field import StrawberryField


@strawberry.type
class Airline(graph.Airline):
    @strawberry.field(graphql_type=list[graph.Flight])
    async def flights(self, info: Info, first: First = DEFAULT_FIRST) -> list[models.Flight]:
        return await info.context["loaders"].flights_of_airline(first=first).load(self.code)


@strawberry.type
class Airport(graph.Airport):
    @strawberry.field(graphql_type=list[graph.Flight])
    async def departures(self, info: Info, first: First = DEFAULT_FIRST) -> list[models.Flight]:
        return await info.context["loaders"].departures(first=first).load(self.code)

    @strawberry.field(graphql_type=list[graph.Flight])
    async def arrivals(self, info: Info, first: First = DEFAULT_FIRST) -> list[models.Flight]:
        return await info.context["loaders"].arrivals(first=first).load(self.code)


@strawberry.type
class Plane(graph.Plane):
    @strawberry.field(graphql_type=list[graph.Flight])
    async def flights(self, info: Info, first: First = DEFAULT_FIRST) -> list[models.Flight]:
        return await info.context["loaders"].flights_of_plane(first=first).load(self.tail_number)


@strawberry.type
class Flight(graph.Flight):
    @strawberry.field(graphql_type=graph.Airline | None)
    async def airline(self, info: Info) -> models.Airline | None:
        return await info.context["loaders"].airlines.load(self.carrier_code)

    @strawberry.field(graphql_type=graph.Plane | None)
    async def plane(self, info: Info) -> models.Plane | None:
        if self.tail_number is None:
            return None
        return await info.context["loaders"].planes.load(self.tail_number)

    @strawberry.field(graphql_type=graph.Airport | None)
    async def origin(self, info: Info) -> models.Airport | None:
        return await info.context["loaders"].airports.load(self.origin_code)

    @strawberry.field(graphql_type=graph.Airport | None)
    async def destination(self, info: Info) -> models.Airport | None:
        return await info.context["loaders"].airports.load(self.destination_code)

    @strawberry.field(graphql_type=graph.Weather | None)
    async def weather(self, info: Info) -> models.Weather | None:
        return await info.context["loaders"].weather.load((self.origin_code, self.weather_hour))


BY_HAND: dict[type, type] = {
    graph.Airline: Airline,
    graph.Airport: Airport,
    graph.Plane: Plane,
    graph.Flight: Flight,
}


class ByHand(Schema):
    """The demo's schema with the fields from here in place of those of `graph`; clients see no difference."""

    def get_fields(self, type_definition: StrawberryObjectDefinition) -> list[StrawberryField]:
        """The fields of a type, as Strawberry asks for them."""
        fields = super().get_fields(type_definition)
        by_hand = BY_HAND.get(type_definition.origin)
        if by_hand is None:
            return fields
        described = {field.python_name: field.description for field in fields}
        own = get_object_definition(by_hand, strict=True).fields
        for field in own:
            field.description = described[field.python_name]
        return own
