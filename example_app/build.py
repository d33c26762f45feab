"""Where the database is, and how it is built: at the first start, from the CSV files, whole or not at all."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import time
import zlib
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_cache_path
from sqlalchemy import URL, Connection, NullPool, create_engine, insert, make_url, update
from sqlalchemy.exc import ArgumentError, DBAPIError

from example_app import models, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "EXAMPLE_DATABASE_URL"

APPLICATION_ID = int.from_bytes(b"NYCF")
"""In the header of each database that we make: where the user says where it is, no other file is replaced."""

_MODELS = (models.Airline, models.Airport, models.Plane, models.Weather, models.Flight)
_SOURCES = (Path(__file__), Path(models.__file__), Path(rows.__file__), *sorted(rows.DATA.glob("*.gz")))


class UnusableDatabaseError(Exception):
    """There is no database to work with; the text says in one line why, and what to do."""


def database_url() -> URL:
    """The URL of the database, which is built first if there is none, or a broken or an outdated one.

    It is in the user's cache directory, or where `EXAMPLE_DATABASE_URL` says. Any number of processes may call
    this at once, and each may be killed at any time.

    Raises:
        UnusableDatabaseError: If the variable makes no sense or names a file that is not ours, or if the file
            cannot be read or written.
    """
    chosen = os.environ.get(VARIABLE)
    path = _path_of(chosen) if chosen else user_cache_path("strawberry-loader-demo", False) / "flights.sqlite3"
    try:
        if not chosen:
            path.parent.mkdir(parents=True, exist_ok=True)
        _refuse_all_but_files(path)
        if not _is_usable(path):
            if chosen and not _is_replaceable(path):
                raise UnusableDatabaseError(
                    f"{path} is not a database of this demo and is left alone: "
                    f"move it away, or name another file in {VARIABLE}"
                )
            with _one_process_at_a_time(path):
                if not _is_usable(path):  # another process may have built it while we waited
                    _build(path)
    except (OSError, sqlite3.Error, DBAPIError) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise UnusableDatabaseError(
            f"cannot use {path} ({reason}): it must be a writable file in a directory that exists; "
            f"{VARIABLE}=sqlite+aiosqlite:///PATH names another"
        ) from error
    return URL.create("sqlite+aiosqlite", database=str(path))


def undo_delays(url: URL) -> None:
    """Have all flights leave as they did: what `delayFlight` wrote lasts from one start of the service to the next.

    Raises:
        UnusableDatabaseError: If the database cannot be written to.
    """
    engine = create_engine(url.set(drivername="sqlite"), poolclass=NullPool)
    try:
        with engine.begin() as connection:
            connection.execute(update(models.Flight).where(models.Flight.delayed_by > 0).values(delayed_by=0))
    except DBAPIError as error:
        raise UnusableDatabaseError(f"cannot write to {url.database} ({error.orig})") from error


def fill(connection: Connection) -> Iterator[str]:
    """Create the tables and insert all rows; after each table, say what it got."""
    models.Base.metadata.create_all(connection)
    for model in _MODELS:
        values = rows.read(model)
        connection.execute(insert(model), values)
        yield f"{len(values):,} {model.__tablename__}"


def _path_of(text: str) -> Path:
    try:
        url = make_url(text)
        name = url.database or ":memory:"
        name.encode()  # what is no text in UTF-8, or has a NUL, names no file to SQLite
        if url != URL.create("sqlite+aiosqlite", database=name) or name == ":memory:" or "\0" in name:
            raise ArgumentError
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise UnusableDatabaseError(
            f"{VARIABLE} must be sqlite+aiosqlite:///PATH, with the path of a file, not {text!r}"
        ) from None
    return Path(name).absolute()


def _refuse_all_but_files(path: Path) -> None:
    """Open no device, and do not take its place; nor wait for whoever is to write into a pipe."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError("it is there and is not a regular file")


def _is_usable(path: Path) -> bool:
    """Whether it is a whole database that was made from today's sources."""
    try:
        # "rw" leaves a missing file missing, and plays back the journal that a killed process may have left.
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)) as connection:
            return (
                _pragma(connection, "application_id") == APPLICATION_ID
                and _pragma(connection, "user_version") == _stamp(connection)
                and _pragma(connection, "quick_check") == "ok"
            )
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise  # whoever writes to it would lose its work with the file
        return False


def _is_replaceable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return True
    return not header or header[68:72] == APPLICATION_ID.to_bytes(4)


def _stamp(connection: sqlite3.Connection) -> int:
    """A checksum of the sources and of the number of rows in each table. A build writes it last."""
    stamp = 0
    for source in _SOURCES:
        stamp = zlib.crc32(source.read_bytes(), stamp)
    for table in models.Base.metadata.sorted_tables:
        (count,) = connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()  # noqa: S608  # our names
        stamp = zlib.crc32(f"{table.name} {count}".encode(), stamp)
    return stamp >> 1  # `user_version` is a signed number of 32 bits


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


@contextmanager
def _one_process_at_a_time(path: Path) -> Iterator[None]:
    # SQLite's own lock, on a file that stays empty: it works wherever SQLite does, and ends with its process.
    lock = path.with_name(f"{path.name}.lock")
    with closing(sqlite3.connect(lock, timeout=120, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


def _build(path: Path) -> None:
    started = time.monotonic()
    _say(f"Building {path}:")
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)  # left by a build that was killed: nobody else writes it under our lock
        engine = create_engine(URL.create("sqlite", database=str(unfinished)), poolclass=NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = OFF")  # what is unfinished is thrown away whole
            for progress in fill(connection):
                _say(f" {progress},")
            connection.commit()
        with closing(sqlite3.connect(unfinished)) as stamped:
            stamped.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            stamped.execute(f"PRAGMA user_version = {_stamp(stamped)}")
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        # Of a file that was here before: SQLite would play them into the new one.
        for suffix in ("-journal", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        unfinished.replace(path)
    except BaseException:
        _say(" failed\n")
        unfinished.unlink(missing_ok=True)
        raise
    _say(f" done in {time.monotonic() - started:.1f} s\n")


def _say(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
