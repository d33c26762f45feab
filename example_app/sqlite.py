"""The database as a file of SQLite: built beside its place, and moved there when it is whole."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_cache_path
from sqlalchemy import URL, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from example_app import build
from example_app.build import VARIABLE, UnusableDatabaseError, bad_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

APPLICATION_ID = int.from_bytes(b"NYCF")
"""In the header of each database that we make: where the user says where it is, no other file is replaced."""

PATIENCE = 120
"""Seconds to wait for other processes that build or start."""


def prepare(chosen: str) -> URL:
    """The URL of the file, which is built first if there is none, or a broken or an outdated one.

    Args:
        chosen: The URL of the user's file; empty for the user's cache directory.

    Raises:
        UnusableDatabaseError: If there is none, and none can be made.
    """
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


@contextmanager
def attached(url: URL) -> Iterator[None]:
    """See `build.attached`. A shared lock of SQLite's says that a server is there, and ends with its process."""
    path = Path(url.database or "")
    place = path.with_name(f"{path.name}.serving")  # it stays empty
    try:
        with closing(sqlite3.connect(place, timeout=0, isolation_level=None)) as ours:
            if _is_locked_by(ours):
                with _connect(path) as connection:
                    build.undo_delays(connection)
                    connection.commit()
                ours.execute("ROLLBACK")
            ours.execute(f"PRAGMA busy_timeout = {1000 * PATIENCE}")
            ours.execute("BEGIN")
            ours.execute("SELECT count(*) FROM sqlite_schema")
            yield
    except (sqlite3.Error, DBAPIError) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise UnusableDatabaseError(f"cannot write to {path} ({reason})") from error


def _path_of(chosen: str) -> Path:
    url = build.parsed(chosen)
    try:
        name = url.database or ":memory:"
        name.encode()  # what is no text in UTF-8, or has a NUL, names no file to SQLite
    except ValueError:
        raise bad_url(chosen) from None
    if url != URL.create("sqlite+aiosqlite", database=name) or name == ":memory:" or "\0" in name:
        raise bad_url(chosen)
    return Path(name).absolute()


@contextmanager
def _connect(path: Path, mode: str = "rw") -> Iterator[Connection]:
    """A connection of SQLAlchemy's to a file; "rw" leaves a missing file missing."""
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True), poolclass=NullPool
    )
    with engine.connect() as connection:
        yield connection


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
        # This plays back the journal that a killed process may have left.
        with _connect(path) as connection:
            return (
                _pragma(connection, "application_id") == APPLICATION_ID
                and _pragma(connection, "user_version") == build.stamp(connection)
                and _pragma(connection, "quick_check") == "ok"
            )
    except DBAPIError as error:
        if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise  # whoever writes to it would lose its work with the file
        return False


def _is_replaceable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return True
    return not header or header[68:72] == APPLICATION_ID.to_bytes(4)


def _pragma(connection: Connection, name: str) -> object:
    return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


@contextmanager
def _one_process_at_a_time(path: Path) -> Iterator[None]:
    # SQLite's own lock, on a file that stays empty: it works wherever SQLite does, and ends with its process.
    lock = path.with_name(f"{path.name}.lock")
    with closing(sqlite3.connect(lock, timeout=0, isolation_level=None)) as connection:
        if not _is_locked_by(connection):
            build.say_that_we_wait(path)
            connection.execute(f"PRAGMA busy_timeout = {1000 * PATIENCE}")
            connection.execute("BEGIN EXCLUSIVE")
        yield


def _is_locked_by(connection: sqlite3.Connection) -> bool:
    """Whether this connection gets the file for itself, at once."""
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def _build(path: Path) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        with build.progress(path):
            unfinished.unlink(missing_ok=True)  # left by a build that was killed: nobody else writes under our lock
            with _connect(unfinished, "rwc") as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = OFF")  # what is unfinished is thrown away whole
                build.fill(connection)
                connection.commit()
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")  # so that no reader waits for a writer
                connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.exec_driver_sql(f"PRAGMA user_version = {build.stamp(connection)}")
            with unfinished.open("rb+") as file:
                os.fsync(file.fileno())
            # Of a file that was here before: SQLite would play them into the new one.
            for suffix in ("-journal", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
