"""The graph. A field without a resolver is the attribute of the same name of its row in `models`."""
# ruff: noqa: D101, D102  # what types and fields are is said in the graph's own descriptions
# Strawberry types `field(...)` with arguments as Any:
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, TypeAlias, TypedDict

import strawberry
from graphql import GraphQLError
from sqlalchemy import select, tuple_

from example_app import models
from example_app.loaders import AppLoaders, First, checked
from loader.strawberry import install, relation


class Context(TypedDict):
    """What resolvers find in `info.context`."""

    loaders: AppLoaders


Info: TypeAlias = strawberry.Info[Context, None]


def field(description: str) -> Any:
    """A field that is an attribute of its row."""
    return strawberry.field(description=description)


async def flight_by_id(loaders: AppLoaders, text: str) -> models.Flight | None:
    """The flight with this id, None if there is none."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    return await loaders.flights.load(int(text)) if is_number else None


@strawberry.type(description="A carrier.")
class Airline:
    code: str = field("Two letters or digits, such as UA.")
    name: str

    flights: list[Flight] = relation(
        AppLoaders.flights_of_airline, "code", description="Its first flights, in order of scheduled departure."
    )


@strawberry.type(description="An airport in the United States.")
class Airport:
    code: str = field("The FAA's code, such as JFK.")
    name: str
    latitude: float = field("Degrees north.")
    longitude: float = field("Degrees east; negative is west.")
    altitude: int = field("Feet above the sea.")
    utc_offset: int = field("Hours between local standard time and UTC; negative is behind.")
    dst: str = field("Daylight saving time: A as in the United States, N none, U unknown.")
    time_zone: str | None = field("Its name in the time zone database, such as America/New_York.")

    departures: list[Flight] = relation(
        AppLoaders.departures, "code", description="The first flights from here, in order of scheduled departure."
    )
    arrivals: list[Flight] = relation(
        AppLoaders.arrivals, "code", description="The first flights to here, in order of scheduled departure."
    )


@strawberry.type(description="An aircraft in the FAA's registry.")
class Plane:
    tail_number: str
    year: int | None = field("When it was made.")
    type: str
    manufacturer: str
    model: str
    engines: int = field("How many engines it has.")
    seats: int = field("How many seats it has.")
    speed: int | None = field("Average cruising speed in miles per hour.")
    engine: str = field("The kind of its engines.")

    flights: list[Flight] = relation(
        AppLoaders.flights_of_plane, "tail_number", description="Its first flights, in order of scheduled departure."
    )


@strawberry.type(description="The weather in one hour at one of New York's airports.")
class Weather:
    origin_code: str = field("The airport's code.")
    hour: dt.datetime = field("The beginning of the hour, in UTC.")
    temperature: float = field("Degrees Fahrenheit.")
    dew_point: float = field("Degrees Fahrenheit.")
    humidity: float = field("Relative humidity in percent.")
    wind_direction: int | None = field("Where the wind comes from, in degrees; 0 in a calm.")
    wind_speed: float = field("Miles per hour.")
    wind_gust: float | None = field("Miles per hour.")
    precipitation: float = field("Inches in the hour.")
    pressure: float | None = field("Millibars at sea level.")
    visibility: float = field("Miles.")


@strawberry.type(description="A scheduled flight out of New York.")
class Flight:
    id: strawberry.ID = field("The flight's row in the data, from 1.")
    date: dt.date = field("The day of the scheduled departure, in New York.")
    number: int = field("The airline's number for it; others on the same day may share it.")
    carrier_code: str
    tail_number: str | None = field("The plane's. Null for some that were cancelled.")
    origin_code: str
    destination_code: str
    scheduled_departure: dt.datetime = field("In UTC.")
    departure: dt.datetime | None = field("When it left, in UTC; null if it was cancelled.")
    departure_delay: int | None = field("Minutes; negative is early.")
    scheduled_arrival: dt.time = field("Time of day at the destination.")
    arrival: dt.time | None = field("Time of day at the destination; null if unknown or cancelled.")
    arrival_delay: int | None = field("Minutes; negative is early.")
    cancelled: bool = field("Whether it never left.")
    air_time: int | None = field("Minutes in the air.")
    distance: int = field("Miles between the airports.")
    weather_hour: dt.datetime = field("The hour of the scheduled departure, in UTC.")

    airline: Airline | None = relation(AppLoaders.airlines, "carrier_code", description="Who flies it.")
    plane: Plane | None = relation(
        AppLoaders.planes, "tail_number", description="Null if the registry does not know it."
    )
    origin: Airport | None = relation(AppLoaders.airports, "origin_code", description="Where it leaves.")
    destination: Airport | None = relation(
        AppLoaders.airports, "destination_code", description="Where it goes. Null for four of the airports."
    )
    weather: Weather | None = relation(
        AppLoaders.weather,
        ("origin_code", "weather_hour"),
        description="The weather at the origin in the hour of the scheduled departure. Null for some hours.",
    )


@strawberry.type
class Query:
    @strawberry.field(graphql_type=list[Flight], description="Flights in order of scheduled departure.")
    async def flights(
        self,
        info: Info,
        origin: Annotated[str | None, strawberry.argument(description="An airport's code.")] = None,
        destination: Annotated[str | None, strawberry.argument(description="An airport's code.")] = None,
        carrier: Annotated[str | None, strawberry.argument(description="An airline's code.")] = None,
        day: Annotated[int | None, strawberry.argument(description="Of January 2013, 1 to 31.")] = None,
        first: First = 20,
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
                raise GraphQLError(f"after must be the id of a flight: there is none with {after!r}")
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


schema = strawberry.Schema(Query)
install(schema, loaders=AppLoaders)
