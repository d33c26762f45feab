"""Where the database is, and how it is built: at the first start, from the CSV files, whole or not at all.

What SQLite and PostgreSQL have in common is here; `sqlite` and `postgres` say what whole-or-not-at-all takes there.
"""

from __future__ import annotations

import sys
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection, func, insert, make_url, select, update
from sqlalchemy.exc import ArgumentError

from example_app import models, rows
from example_app.settings import Settings, StartError, variable, without_password

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

VARIABLE = variable("database_url")

_MODELS = (models.Airline, models.Airport, models.Plane, models.Weather, models.Flight)
_SOURCES = (Path(__file__), Path(models.__file__), Path(rows.__file__), *sorted(rows.DATA.glob("*.gz")))


class UnusableDatabaseError(StartError):
    """There is no database to work with."""


def database_url(settings: Settings | None = None) -> URL:
    """The URL of the database, which is built first if there is none, or a broken or an outdated one.

    It is in the user's cache directory, or where `EXAMPLE_DATABASE_URL` says. Any number of processes may call
    this at once, and each may be killed at any time.

    Raises:
        UnusableDatabaseError: If the variable makes no sense or names what is not ours, or if the database cannot be
            reached, read or written.
    """
    chosen = (settings or Settings.from_environment()).database_url
    if chosen.startswith("postgresql"):
        from example_app import postgres

        return postgres.prepare(chosen)
    from example_app import sqlite

    return sqlite.prepare(chosen)


def attached(url: URL) -> AbstractContextManager[None]:
    """Be a server of this database while the block lasts; whoever comes while there is no other undoes all delays.

    What `delayFlight` wrote lasts from one start of the service to the next, and no start takes it from a service
    that is running.

    Raises:
        UnusableDatabaseError: If the database cannot be written to.
    """
    if url.drivername.startswith("postgresql"):
        from example_app import postgres

        return postgres.attached(url)
    from example_app import sqlite

    return sqlite.attached(url)


def undo_delays(connection: Connection) -> None:
    """Have all flights leave as they did."""
    connection.execute(update(models.Flight).where(models.Flight.delayed_by > 0).values(delayed_by=0))


def fill(connection: Connection) -> None:
    """Create the tables and insert all rows; after each table, say what it got."""
    models.Base.metadata.create_all(connection)
    for model in _MODELS:
        values = rows.read(model)
        connection.execute(insert(model), values)
        say(f" {len(values):,} {model.__tablename__},")


def stamp(connection: Connection) -> int:
    """A checksum of the sources and of the number of rows in each table, 31 bits. A build writes it last."""
    checksum = 0
    for source in _SOURCES:
        checksum = zlib.crc32(source.read_bytes(), checksum)
    for table in models.Base.metadata.sorted_tables:
        count = connection.scalar(select(func.count()).select_from(table))
        checksum = zlib.crc32(f"{table.name} {count}".encode(), checksum)
    return checksum >> 1


@contextmanager
def progress(where: object) -> Iterator[None]:
    """Say on standard error that a build begins, and how it ends; `fill` says the rest of the line."""
    started = time.monotonic()
    try:
        say(f"Building {where}:")
        yield
    except BaseException:
        say(" failed\n")
        raise
    say(f" done in {time.monotonic() - started:.1f} s\n")


def say_that_we_wait(where: object) -> None:
    """Say on standard error that another process has the lock of the builds."""
    say(f"Waiting for another process that builds {where}\n")


def say(text: str) -> None:
    """Show progress at once."""
    print(text, end="", file=sys.stderr, flush=True)


def parsed(chosen: str) -> URL:
    """The URL that the variable has.

    Raises:
        UnusableDatabaseError: If it is none.
    """
    try:
        return make_url(chosen)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise bad_url(chosen) from None


def bad_url(chosen: str) -> UnusableDatabaseError:
    """What to say of a URL that leads nowhere; without its password."""
    return UnusableDatabaseError(
        f"{VARIABLE} must be sqlite+aiosqlite:///PATH, with the path of a file, "
        f"or postgresql+asyncpg://USER:PASSWORD@HOST/DATABASE, not {without_password(chosen)!r}"
    )
