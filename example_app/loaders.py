"""What can be looked up by key: a method here is one statement, however many fields ask."""

from __future__ import annotations

import datetime as dt  # noqa: TC003  # the shared cache reads what loaders return
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import strawberry
from graphql import GraphQLError

from example_app.models import Airline, Airport, Flight, Plane, Weather
from example_app.shared_cache import CACHE, FRESH_FOR
from loader import Loaders, dataloader
from loader.sqlalchemy import grouped_rows, rows_by_key

if TYPE_CHECKING:
    from sqlalchemy.orm import InstrumentedAttribute

    from example_app.database import Database

DEFAULT_FIRST, MAX_FIRST = 20, 1000
STATEMENTS_AT_ONCE = 5  # of one request or websocket, which so leaves connections to others

First: TypeAlias = Annotated[int, strawberry.argument(description=f"How many at most, 1 to {MAX_FIRST}.")]
"""A limit, as an argument of a field: a parameter of a loader becomes one where a relation asks it."""


def checked(first: int) -> int:
    """`first`, if it is a sensible number of flights."""
    if not 1 <= first <= MAX_FIRST:
        raise GraphQLError(f"first must be from 1 to {MAX_FIRST}, not {first}")
    return first


class AppLoaders(Loaders):
    """The loaders of one request. A key that the database does not know is None, or an empty list."""

    def __init__(self, database: Database) -> None:
        self.database = database.share(STATEMENTS_AT_ONCE)

    @dataloader(default=None, second_level=CACHE, fresh_for=FRESH_FOR)
    async def airlines(self, codes: list[str]) -> dict[str, Airline]:
        """Airlines by code."""
        async with self.database.session("airlines", codes) as session:
            return await rows_by_key(session, Airline, Airline.code, codes)

    @dataloader(default=None, second_level=CACHE, fresh_for=FRESH_FOR)
    async def airports(self, codes: list[str]) -> dict[str, Airport]:
        """Airports by code."""
        async with self.database.session("airports", codes) as session:
            return await rows_by_key(session, Airport, Airport.code, codes)

    @dataloader(default=None, second_level=CACHE, fresh_for=FRESH_FOR)
    async def planes(self, tail_numbers: list[str]) -> dict[str, Plane]:
        """Planes by tail number."""
        async with self.database.session("planes", tail_numbers) as session:
            return await rows_by_key(session, Plane, Plane.tail_number, tail_numbers)

    # PostgreSQL takes no more pairs in one statement; as batches of their own, they run side by side.
    @dataloader(default=None, max_batch_size=1000, second_level=CACHE, fresh_for=FRESH_FOR)
    async def weather(self, keys: list[tuple[str, dt.datetime]]) -> dict[tuple[str, dt.datetime], Weather]:
        """Weather by airport and hour."""
        async with self.database.session("weather", keys) as session:
            return await rows_by_key(session, Weather, (Weather.origin_code, Weather.hour), keys)

    @dataloader(default=None, second_level=CACHE, fresh_for=FRESH_FOR)
    async def flights(self, ids: list[int]) -> dict[int, Flight]:
        """Flights by id."""
        async with self.database.session("flights", ids) as session:
            return await rows_by_key(session, Flight, Flight.id, ids)

    @dataloader(second_level=CACHE, fresh_for=FRESH_FOR)
    async def departures(self, codes: list[str], *, first: First = DEFAULT_FIRST) -> dict[str, list[Flight]]:
        """The first flights from each airport."""
        return await self._first_flights("departures", Flight.origin_code, codes, first)

    @dataloader(second_level=CACHE, fresh_for=FRESH_FOR)
    async def arrivals(self, codes: list[str], *, first: First = DEFAULT_FIRST) -> dict[str, list[Flight]]:
        """The first flights to each airport."""
        return await self._first_flights("arrivals", Flight.destination_code, codes, first)

    @dataloader(second_level=CACHE, fresh_for=FRESH_FOR)
    async def flights_of_airline(self, codes: list[str], *, first: First = DEFAULT_FIRST) -> dict[str, list[Flight]]:
        """The first flights of each airline."""
        return await self._first_flights("flights_of_airline", Flight.carrier_code, codes, first)

    @dataloader(second_level=CACHE, fresh_for=FRESH_FOR)
    async def flights_of_plane(
        self, tail_numbers: list[str], *, first: First = DEFAULT_FIRST
    ) -> dict[str, list[Flight]]:
        """The first flights of each plane."""
        return await self._first_flights("flights_of_plane", Flight.tail_number, tail_numbers, first)

    async def _first_flights(
        self, source: str, parent: InstrumentedAttribute[Any], keys: list[str], first: int
    ) -> dict[str, list[Flight]]:
        limit = checked(first)
        async with self.database.session(source, keys) as session:
            return await grouped_rows(session, Flight, parent, keys, limit=limit, order_by=Flight.scheduled_departure)


async def flight_by_id(loaders: AppLoaders, text: str) -> Flight | None:
    """The flight with this id, None if there is none."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    return await loaders.flights.load(int(text)) if is_number else None
