"""The rows of each table, read from the CSV files and turned into what the models hold."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

from example_app.models import Airline, Airport, Base, Flight, Plane, Weather

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = Path(__file__).with_name("data")


def read(model: type[Base]) -> list[dict[str, Any]]:
    """All rows of a table, in the order of its file."""
    columns = _COLUMNS[model]
    return [columns(number, row) for number, row in enumerate(_csv(model.__tablename__), start=1)]


def _csv(table: str) -> Iterator[dict[str, str]]:
    with gzip.open(DATA / f"{table}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _int(text: str) -> int | None:
    return int(text) if text else None


def _float(text: str) -> float | None:
    return float(text) if text else None


def _time(text: str) -> dt.time | None:
    """The time of day in a number such as 1745. Midnight at the end of a day is 2400."""
    return dt.time(int(text) // 100 % 24, int(text) % 100) if text else None


def _airline(_: int, row: dict[str, str]) -> dict[str, Any]:
    return {"code": row["carrier"], "name": row["name"]}


def _airport(_: int, row: dict[str, str]) -> dict[str, Any]:
    return {
        "code": row["faa"],
        "name": row["name"],
        "latitude": _float(row["lat"]),
        "longitude": _float(row["lon"]),
        "altitude": _int(row["alt"]),
        "utc_offset": _int(row["tz"]),
        "dst": row["dst"],
        "time_zone": row["tzone"] or None,
    }


def _plane(_: int, row: dict[str, str]) -> dict[str, Any]:
    return {
        "tail_number": row["tailnum"],
        "year": _int(row["year"]),
        "type": row["type"],
        "manufacturer": row["manufacturer"],
        "model": row["model"],
        "engines": _int(row["engines"]),
        "seats": _int(row["seats"]),
        "speed": _int(row["speed"]),
        "engine": row["engine"],
    }


def _weather(_: int, row: dict[str, str]) -> dict[str, Any]:
    return {
        "origin_code": row["origin"],
        "hour": dt.datetime.fromisoformat(row["time_hour"]),
        "temperature": _float(row["temp"]),
        "dew_point": _float(row["dewp"]),
        "humidity": _float(row["humid"]),
        "wind_direction": _int(row["wind_dir"]),
        "wind_speed": _float(row["wind_speed"]),
        "wind_gust": _float(row["wind_gust"]),
        "precipitation": _float(row["precip"]),
        "pressure": _float(row["pressure"]),
        "visibility": _float(row["visib"]),
    }


def _flight(number: int, row: dict[str, str]) -> dict[str, Any]:
    hour = dt.datetime.fromisoformat(row["time_hour"])
    return {
        "id": number,
        "date": dt.date(int(row["year"]), int(row["month"]), int(row["day"])),
        "number": _int(row["flight"]),
        "carrier_code": row["carrier"],
        "tail_number": row["tailnum"] or None,
        "origin_code": row["origin"],
        "destination_code": row["dest"],
        "scheduled_departure": hour + dt.timedelta(minutes=int(row["minute"])),
        "recorded_departure_delay": _int(row["dep_delay"]),
        "scheduled_arrival": _time(row["sched_arr_time"]),
        "recorded_arrival": _time(row["arr_time"]),
        "recorded_arrival_delay": _int(row["arr_delay"]),
        "air_time": _int(row["air_time"]),
        "distance": _int(row["distance"]),
        "weather_hour": hour,
    }


_COLUMNS: dict[type[Base], Callable[[int, dict[str, str]], dict[str, Any]]] = {
    Airline: _airline,
    Airport: _airport,
    Plane: _plane,
    Weather: _weather,
    Flight: _flight,
}
