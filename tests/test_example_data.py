"""The CSV files, read without the demo's code: what all other tests of the demo compare with."""
# ruff: noqa: A001, A002, A006  # `id` is GraphQL's word

from __future__ import annotations

import csv
import functools
import gzip
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from example_app import build

if TYPE_CHECKING:
    from sqlalchemy import URL

ROOT = Path(__file__).parents[1]
_directories: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """The rows of a file, in its order."""
    with gzip.open(ROOT / "example_app" / "data" / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def by(name: str, *columns: str) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of a file by what they have in these columns."""
    return {tuple(row[column] for column in columns): row for row in table(name)}


def minutes(row: dict[str, str]) -> tuple[str, int]:
    """When a flight was to leave; sorts as time does."""
    return row["time_hour"], int(row["minute"])


@functools.cache
def in_order() -> list[str]:
    """The ids of all flights in order of scheduled departure."""
    numbered = sorted(range(1, len(table("flights")) + 1), key=lambda id: (minutes(flight(str(id))), id))
    return [str(id) for id in numbered]


def flight(id: str) -> dict[str, str]:
    """A flight's row."""
    return table("flights")[int(id) - 1]


@functools.cache
def ids_by(column: str) -> dict[str, list[str]]:
    """The flights' ids in order of scheduled departure, for each value of a column."""
    groups = defaultdict(list)
    for id in in_order():
        groups[flight(id)[column]].append(id)
    return dict(groups)


@functools.cache
def built() -> URL:
    """A database built once for all tests, and deleted with the process."""
    directory = tempfile.TemporaryDirectory(prefix="flights")
    _directories.append(directory)
    url = f"sqlite+aiosqlite:///{directory.name}/flights.sqlite3"
    with mock.patch.dict(os.environ, {build.VARIABLE: url}):
        return build.database_url()


def test_the_files_have_as_many_rows_as_their_readme_says() -> None:
    readme = (ROOT / "example_app" / "data" / "README.md").read_text(encoding="utf-8")
    for name in ("flights", "airlines", "airports", "planes", "weather"):
        assert f"| `{name}.csv.gz` | {len(table(name)):,} |" in readme


def test_the_files_have_the_holes_that_their_readme_tells_of() -> None:
    tails = [row["tailnum"] for row in table("flights")]
    assert tails.count("") == 155
    assert sum(bool(tail) and (tail,) not in by("planes", "tailnum") for tail in tails) == 4324
    destinations = {row["dest"] for row in table("flights")}
    assert {code for code in destinations if (code,) not in by("airports", "faa")} == {"BQN", "PSE", "STT", "SJU"}
    hours = by("weather", "origin", "time_hour")
    assert any((row["origin"], row["time_hour"]) not in hours for row in table("flights"))
