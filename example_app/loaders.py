"""What can be looked up by key: a method here is one statement, however many fields ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, tuple_

from example_app.models import Airline, Airport, Flight, Plane, Weather
from loader import Loaders, dataloader

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from sqlalchemy.orm import InstrumentedAttribute

    from example_app.database import Database

MAX_KEYS = 1000
"""The most keys that one statement asks for: databases limit the parameters of a statement."""


class AppLoaders(Loaders):
    """The loaders of one request. A key that the database does not know is None, or an empty list."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @dataloader(default=None, max_batch_size=MAX_KEYS)
    async def airlines(self, codes: list[str]) -> Mapping[str, Airline]:
        """Airlines by code."""
        query = select(Airline).where(Airline.code.in_(codes))
        rows = await self.database.fetch(query, source="airlines", keys=len(codes))
        return {airline.code: airline for airline in rows}

    @dataloader(default=None, max_batch_size=MAX_KEYS)
    async def airports(self, codes: list[str]) -> Mapping[str, Airport]:
        """Airports by code."""
        query = select(Airport).where(Airport.code.in_(codes))
        rows = await self.database.fetch(query, source="airports", keys=len(codes))
        return {airport.code: airport for airport in rows}

    @dataloader(default=None, max_batch_size=MAX_KEYS)
    async def planes(self, tail_numbers: list[str]) -> Mapping[str, Plane]:
        """Planes by tail number."""
        query = select(Plane).where(Plane.tail_number.in_(tail_numbers))
        rows = await self.database.fetch(query, source="planes", keys=len(tail_numbers))
        return {plane.tail_number: plane for plane in rows}

    @dataloader(default=None, max_batch_size=MAX_KEYS)
    async def weather(self, keys: list[tuple[str, dt.datetime]]) -> Mapping[tuple[str, dt.datetime], Weather]:
        """Weather by airport and hour."""
        query = select(Weather).where(tuple_(Weather.origin_code, Weather.hour).in_(keys))
        rows = await self.database.fetch(query, source="weather", keys=len(keys))
        return {(weather.origin_code, weather.hour): weather for weather in rows}

    @dataloader(default=None, max_batch_size=MAX_KEYS)
    async def flights(self, ids: list[int]) -> Mapping[int, Flight]:
        """Flights by id."""
        query = select(Flight).where(Flight.id.in_(ids))
        rows = await self.database.fetch(query, source="flights", keys=len(ids))
        return {flight.id: flight for flight in rows}

    @dataloader(max_batch_size=MAX_KEYS)
    async def departures(self, keys: list[tuple[str, int]]) -> Mapping[tuple[str, int], list[Flight]]:
        """The first so many flights from each airport."""
        return await self._first_flights(Flight.origin_code, keys, "departures")

    @dataloader(max_batch_size=MAX_KEYS)
    async def arrivals(self, keys: list[tuple[str, int]]) -> Mapping[tuple[str, int], list[Flight]]:
        """The first so many flights to each airport."""
        return await self._first_flights(Flight.destination_code, keys, "arrivals")

    @dataloader(max_batch_size=MAX_KEYS)
    async def flights_of_airline(self, keys: list[tuple[str, int]]) -> Mapping[tuple[str, int], list[Flight]]:
        """The first so many flights of each airline."""
        return await self._first_flights(Flight.carrier_code, keys, "flights_of_airline")

    @dataloader(max_batch_size=MAX_KEYS)
    async def flights_of_plane(self, keys: list[tuple[str, int]]) -> Mapping[tuple[str, int], list[Flight]]:
        """The first so many flights of each plane."""
        return await self._first_flights(Flight.tail_number, keys, "flights_of_plane")

    async def _first_flights(
        self, parent: InstrumentedAttribute[Any], keys: list[tuple[str, int]], source: str
    ) -> dict[tuple[str, int], list[Flight]]:
        """For each (parent's key, limit) that many flights, in order of scheduled departure.

        One statement for all: it gives each parent the highest limit that any of them asked for.
        """
        groups: dict[str, list[Flight]] = {key: [] for key, _ in keys}
        in_order = (Flight.scheduled_departure, Flight.id)
        place = func.row_number().over(partition_by=parent, order_by=in_order).label("place")
        ranked = select(Flight.id, place).where(parent.in_(groups)).subquery()
        query = (
            select(Flight)
            .join(ranked, ranked.c.id == Flight.id)
            .where(ranked.c.place <= max(limit for _, limit in keys))
            .order_by(*in_order)
        )
        for flight in await self.database.fetch(query, source=source, keys=len(keys)):
            groups[getattr(flight, parent.key)].append(flight)
        return {(key, limit): groups[key][:limit] for key, limit in keys}
