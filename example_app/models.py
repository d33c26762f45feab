"""The tables. Names and units are the graph's: `schema` exposes most attributes as they are."""
# ruff: noqa: ARG002  # the signatures are SQLAlchemy's

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import DateTime, Index, String, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

if TYPE_CHECKING:
    from sqlalchemy import Dialect


class UtcDateTime(TypeDecorator[dt.datetime]):
    """A moment, always in UTC: SQLite keeps no time zone, so it is taken off on the way in and put back."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:
        """Store the UTC time of day."""
        return None if value is None else value.astimezone(dt.UTC).replace(tzinfo=None)

    def process_result_value(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:
        """Say that what was stored is UTC."""
        return None if value is None else value.replace(tzinfo=dt.UTC)


class Base(DeclarativeBase):
    """What the tables have in common."""

    # PostgreSQL would sort text as its server's language does; SQLite sorts by code points, as "C" does.
    type_annotation_map: ClassVar = {
        dt.datetime: UtcDateTime,
        str: String().with_variant(String(collation="C"), "postgresql"),
    }


class Airline(Base):
    """A carrier."""

    __tablename__ = "airlines"

    code: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]


class Airport(Base):
    """An airport in the United States."""

    __tablename__ = "airports"

    code: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    latitude: Mapped[float]
    longitude: Mapped[float]
    altitude: Mapped[int]
    utc_offset: Mapped[int]
    dst: Mapped[str]
    time_zone: Mapped[str | None]


class Plane(Base):
    """An aircraft."""

    __tablename__ = "planes"

    tail_number: Mapped[str] = mapped_column(primary_key=True)
    year: Mapped[int | None]
    type: Mapped[str]
    manufacturer: Mapped[str]
    model: Mapped[str]
    engines: Mapped[int]
    seats: Mapped[int]
    speed: Mapped[int | None]
    engine: Mapped[str]


class Weather(Base):
    """One hour's weather at one airport."""

    __tablename__ = "weather"

    origin_code: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[dt.datetime] = mapped_column(primary_key=True)
    temperature: Mapped[float]
    dew_point: Mapped[float]
    humidity: Mapped[float]
    wind_direction: Mapped[int | None]
    wind_speed: Mapped[float]
    wind_gust: Mapped[float | None]
    precipitation: Mapped[float]
    pressure: Mapped[float | None]
    visibility: Mapped[float]


class Flight(Base):
    """A scheduled flight. The plane, airports and weather that it names need not exist: the data has holes."""

    __tablename__ = "flights"

    id: Mapped[int] = mapped_column(primary_key=True)
    date: Mapped[dt.date]
    number: Mapped[int]
    carrier_code: Mapped[str]
    tail_number: Mapped[str | None]
    origin_code: Mapped[str]
    destination_code: Mapped[str]
    scheduled_departure: Mapped[dt.datetime]
    recorded_departure_delay: Mapped[int | None]
    scheduled_arrival: Mapped[dt.time]
    recorded_arrival: Mapped[dt.time | None]
    recorded_arrival_delay: Mapped[int | None]
    air_time: Mapped[int | None]
    distance: Mapped[int]
    weather_hour: Mapped[dt.datetime]
    # The one column that is not from the data: `delays` writes it. What is recorded stays, so that 0 takes it back.
    delayed_by: Mapped[int] = mapped_column(default=0)

    @property
    def departure_delay(self) -> int | None:
        """Minutes; None if it never left."""
        return None if self.recorded_departure_delay is None else self.recorded_departure_delay + self.delayed_by

    @property
    def arrival_delay(self) -> int | None:
        """Minutes; None if it is unknown."""
        return None if self.recorded_arrival_delay is None else self.recorded_arrival_delay + self.delayed_by

    @property
    def arrival(self) -> dt.time | None:
        """The time of day at the destination; None if it is unknown."""
        if self.recorded_arrival is None:
            return None
        on_some_day = dt.datetime.combine(self.date, self.recorded_arrival)
        return (on_some_day + dt.timedelta(minutes=self.delayed_by)).time()

    @property
    def departure(self) -> dt.datetime | None:
        """When it really left, None if it never did."""
        if self.departure_delay is None:
            return None
        return self.scheduled_departure + dt.timedelta(minutes=self.departure_delay)

    @property
    def cancelled(self) -> bool:
        """Whether it never left."""
        return self.departure_delay is None


# Every list of flights is in order of scheduled departure: each filter's index gives that order too.
Index("flights_in_order", Flight.scheduled_departure, Flight.id)
for _column in (
    Flight.date,
    Flight.origin_code,
    Flight.destination_code,
    Flight.carrier_code,
    Flight.tail_number,
):
    Index(f"flights_by_{_column.key}", _column, Flight.scheduled_departure, Flight.id)
