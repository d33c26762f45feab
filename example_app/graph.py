"""The graph's objects. A field without a resolver is the attribute of the same name of its row in `models`."""
# ruff: noqa: D101, TC003  # the graph's descriptions say what types and fields are; Strawberry reads annotations

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import strawberry

from example_app.loaders import AppLoaders
from loader.strawberry import relation

if TYPE_CHECKING:
    from example_app.service import Service


class Context(TypedDict):
    """What resolvers find in `info.context`."""

    loaders: AppLoaders
    service: Service


Info: TypeAlias = strawberry.Info[Context, None]


def field(description: str) -> Any:
    """A field that is an attribute of its row."""
    return strawberry.field(description=description)


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
    delayed_by: int = field("Minutes of the delays that are not in the data: they come from `delayFlight`.")
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
