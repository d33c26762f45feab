"""The demo's database: complete, built once, never half, and never in place of somebody else's file."""

from __future__ import annotations

import datetime as dt
import functools
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from contextlib import chdir, closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import URL, create_engine, select
from sqlalchemy.orm import Session

from example_app import build, models, rows, sqlite
from tests.test_example_data import ROOT, built, by, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMPLETE = [16, 20, 20, 20, 20]
"""The rows of each table in a build of some rows."""

KILLED_WRITER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 1")  # so that what is not committed is in the file already
connection.execute("DELETE FROM airports")
connection.execute("DELETE FROM flights")
os.kill(os.getpid(), signal.SIGKILL)
"""


@functools.cache
def some_rows(
    model: type[models.Base], real: Callable[[Any], list[dict[str, Any]]] = rows.read
) -> list[dict[str, Any]]:
    return real(model)[:20]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds take a few rows of each table, which is enough to see whether they are whole."""
    monkeypatch.setattr(rows, "read", some_rows)


@pytest.fixture
def cached(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the database is by default."""
    monkeypatch.delenv(build.VARIABLE, raising=False)
    monkeypatch.setattr(sqlite, "user_cache_path", lambda *_: tmp_path / "cache" / "demo")
    return tmp_path / "cache" / "demo" / "flights.sqlite3"


@pytest.fixture
def chosen(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the database is because the user said so."""
    path = tmp_path / "of the user?#.db"
    monkeypatch.setenv(build.VARIABLE, URL.create("sqlite+aiosqlite", database=str(path)).render_as_string())
    return path


def counts(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [
            connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608  # our names
            for name in ("airlines", "airports", "planes", "weather", "flights")
        ]


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def all_rows(model: type[models.Base]) -> list[Any]:
    engine = create_engine(built().set(drivername="sqlite"))
    with Session(engine) as session:
        result = list(session.scalars(select(model)))
    engine.dispose()
    return result


def number(text: str) -> float | None:
    return float(text) if text else None


def test_every_airport_is_as_in_its_file() -> None:
    assert {
        row.code: (row.name, row.latitude, row.longitude, row.altitude, row.utc_offset, row.dst, row.time_zone)
        for row in all_rows(models.Airport)
    } == {
        row["faa"]: (
            row["name"],
            float(row["lat"]),
            float(row["lon"]),
            int(row["alt"]),
            int(row["tz"]),
            row["dst"],
            row["tzone"] or None,
        )
        for row in table("airports")
    }


def test_every_airline_is_as_in_its_file() -> None:
    assert {row.code: row.name for row in all_rows(models.Airline)} == {
        row["carrier"]: row["name"] for row in table("airlines")
    }


def test_every_plane_is_as_in_its_file() -> None:
    assert {
        row.tail_number: (
            row.year,
            row.type,
            row.manufacturer,
            row.model,
            row.engines,
            row.seats,
            row.speed,
            row.engine,
        )
        for row in all_rows(models.Plane)
    } == {
        row["tailnum"]: (
            number(row["year"]),
            row["type"],
            row["manufacturer"],
            row["model"],
            int(row["engines"]),
            int(row["seats"]),
            number(row["speed"]),
            row["engine"],
        )
        for row in table("planes")
    }


def test_every_hour_of_weather_is_as_in_its_file() -> None:
    columns = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
    assert {
        (row.origin_code, row.hour): [
            row.temperature,
            row.dew_point,
            row.humidity,
            row.wind_direction,
            row.wind_speed,
            row.wind_gust,
            row.precipitation,
            row.pressure,
            row.visibility,
        ]
        for row in all_rows(models.Weather)
    } == {
        (origin, dt.datetime.fromisoformat(hour)): [number(row[column]) for column in columns]
        for (origin, hour), row in by("weather", "origin", "time_hour").items()
    }


def test_the_first_start_builds_in_the_cache_directory_and_says_so(
    cached: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.database_url() == URL.create("sqlite+aiosqlite", database=str(cached))
    assert counts(cached) == COMPLETE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Building {cached}: 16 airlines, 20 airports,")
    assert " done in " in line


def test_the_next_start_takes_what_is_there(cached: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build.database_url()
    capsys.readouterr()
    before = cached.stat().st_ino, cached.stat().st_mtime_ns
    assert build.database_url().database == str(cached)
    assert (cached.stat().st_ino, cached.stat().st_mtime_ns) == before
    assert capsys.readouterr().err == ""


def test_the_variable_says_where_it_is(chosen: Path) -> None:
    assert build.database_url().database == str(chosen)
    assert counts(chosen) == COMPLETE


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def overwrite_a_page(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        ((size,),) = connection.execute("PRAGMA page_size")
        # Counting the rows reads an index instead, and sees nothing.
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'flights'")
    content = bytearray(path.read_bytes())
    content[size * (page - 1) : size * page] = b"\xff" * size
    path.write_bytes(content)


def remove_rows(path: Path) -> None:
    execute(path, "DELETE FROM flights WHERE id > 10")


def remove_a_table(path: Path) -> None:
    execute(path, "DROP TABLE weather")


def unstamp(path: Path) -> None:
    execute(path, "PRAGMA user_version = 0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


OURS = [truncate, overwrite_a_page, remove_rows, remove_a_table, unstamp, empty]


@pytest.mark.parametrize("spoil", OURS)
def test_a_broken_or_half_built_file_of_ours_is_rebuilt_where_the_variable_says(
    chosen: Path, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    build.database_url()
    spoil(chosen)
    build.database_url()
    assert capsys.readouterr().err.count("done in") == 2
    assert counts(chosen) == COMPLETE


def write_text(path: Path) -> None:
    path.write_text("not a database\n" * 100, encoding="utf-8")


def make_another_database(path: Path) -> None:
    path.unlink(missing_ok=True)
    execute(path, "CREATE TABLE flights (id)", "INSERT INTO flights VALUES (1)")


@pytest.mark.parametrize("spoil", [*OURS, write_text, make_another_database])
def test_in_the_cache_directory_whatever_is_no_good_is_rebuilt(cached: Path, spoil: Callable[[Path], None]) -> None:
    build.database_url()
    spoil(cached)
    build.database_url()
    assert counts(cached) == COMPLETE


@pytest.mark.parametrize("write", [write_text, make_another_database])
def test_a_file_of_somebody_else_is_left_alone(chosen: Path, write: Callable[[Path], None]) -> None:
    write(chosen)
    before = chosen.read_bytes()
    with pytest.raises(build.UnusableDatabaseError, match="is not a database of this demo"):
        build.database_url()
    assert chosen.read_bytes() == before
    assert list(chosen.parent.iterdir()) == [chosen]


def test_a_change_of_the_sources_makes_a_new_database(
    chosen: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build.database_url()
    monkeypatch.setattr(build, "_SOURCES", build._SOURCES[1:])
    capsys.readouterr()
    build.database_url()
    assert "done" in capsys.readouterr().err


def kill_a_writer(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False).returncode == -signal.SIGKILL
    assert path.with_name(f"{path.name}-wal").exists()


def test_a_journal_without_its_file_is_not_played_into_the_new_one(cached: Path) -> None:
    build.database_url()
    journal = cached.with_name(f"{cached.name}-wal")
    kill_a_writer(cached)
    cached.unlink()
    build.database_url()
    assert not journal.exists()
    assert counts(cached) == COMPLETE


def test_what_a_killed_writer_left_undone_is_undone(cached: Path) -> None:
    build.database_url()
    kill_a_writer(cached)
    inode = cached.stat().st_ino
    build.database_url()
    assert (cached.stat().st_ino, counts(cached)) == (inode, COMPLETE)


def test_a_file_that_is_being_written_to_is_not_taken_for_broken(chosen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.database_url()
    with closing(sqlite3.connect(chosen, isolation_level=None)) as writer:
        writer.execute("PRAGMA locking_mode = EXCLUSIVE")  # else they may read
        writer.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0))
        with pytest.raises(build.UnusableDatabaseError, match="locked"):
            build.database_url()
    assert counts(chosen) == COMPLETE


def test_a_build_that_fails_leaves_nothing(
    cached: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_late(model: type[models.Base]) -> list[dict[str, Any]]:
        if model is models.Flight:
            raise OSError("no space left on device")
        return some_rows(model)

    monkeypatch.setattr(rows, "read", fails_late)
    with pytest.raises(build.UnusableDatabaseError, match="no space left on device"):
        build.database_url()
    assert [path.name for path in cached.parent.iterdir()] == ["flights.sqlite3.lock"]
    assert capsys.readouterr().err.endswith("20 weather, failed\n")


@pytest.mark.parametrize(
    "url",
    [
        "flights.db",
        "sqlite:///flights.db",
        "sqlite+aiosqlite://",
        "sqlite+aiosqlite:///:memory:",
        "sqlite+aiosqlite://host/flights.db",
        "sqlite+aiosqlite:///flights.db?mode=ro",
        "sqlite+aiosqlite://user:password@/flights.db",
        "sqlite+aiosqlite://user@/flights.db",
        "sqlite+aiosqlite://:5432/flights.db",
        "sqlite+aiosqlite:///flights%00.db",
        "sqlite+aiosqlite:///flights\udcff.db",
        "postgresql://localhost/flights",
        "postgresql+psycopg://localhost/flights",
        "postgresql+asyncpg://localhost",
        "postgresql+asyncpg://localhost/flights?ssl=require",
        "http://[::1:99999/",
        "://",
    ],
)
def test_a_bad_url_is_answered_with_a_good_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.VARIABLE, url)
    with pytest.raises(build.UnusableDatabaseError, match=r"sqlite\+aiosqlite:///PATH") as raised:
        build.database_url()
    assert repr(url.replace("password", "***")) in str(raised.value)


def test_an_empty_variable_is_as_good_as_none(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.VARIABLE, "")
    assert build.database_url().database == str(cached)


def test_a_directory_that_does_not_exist_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.VARIABLE, f"sqlite+aiosqlite:///{tmp_path}/no/flights.db")
    with pytest.raises(build.UnusableDatabaseError, match="in a directory that exists"):
        build.database_url()
    assert list(tmp_path.iterdir()) == []


def make_a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, chdir(path.parent):  # a socket's address has about 100 characters
        listener.bind(path.name)


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, make_a_socket, link_to_a_pipe])
def test_what_is_no_file_is_left_alone_and_not_even_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "it"
    monkeypatch.setenv(build.VARIABLE, f"sqlite+aiosqlite:///{path}")
    make(path)
    before = {each: each.lstat().st_ino for each in tmp_path.iterdir()}
    monkeypatch.setattr(sqlite3, "connect", None)
    with pytest.raises(build.UnusableDatabaseError, match="not a regular file"):
        build.database_url()
    assert {each: each.lstat().st_ino for each in tmp_path.iterdir()} == before


def test_a_device_that_reads_empty_is_not_taken_for_an_empty_file(
    chosen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen.touch()
    device = os.stat_result([stat.S_IFCHR | 0o666, *[0] * 9])
    with monkeypatch.context() as patched:
        patched.setattr(type(chosen), "stat", lambda _: device)
        with pytest.raises(build.UnusableDatabaseError, match="not a regular file"):
            build.database_url()
    assert chosen.read_bytes() == b""
    assert list(chosen.parent.iterdir()) == [chosen]


MOMENTS = {
    "before the first table": "rows.read = stop",
    "before the last table": "rows.read = lambda model: (stop() if model is models.Flight else read(model))",
    "before the stamp": "build.stamp = stop",
}
"""Code that makes a build stop at a moment, for a test to kill it there."""

OF_A_FILE = {"when all is written": "sqlite.os.fsync = stop", "before the file is moved": "sqlite.Path.replace = stop"}


def start(url: str, code: str = "", *, most: int = 20) -> subprocess.Popen[str]:
    """A process that builds the database of `most` rows; `stop` says that it is reached, and waits to be killed."""
    stop = "def stop(*_): print('stopped', file=sys.stderr, flush=True); sys.stdin.read()"
    script = "import sys\nfrom example_app import build, models, rows, sqlite\n"
    script += f"read = lambda model, all=rows.read: all(model)[:{most}]\nrows.read = read\n{stop}\n{code}\n"
    return subprocess.Popen(
        [sys.executable, "-c", f"{script}build.database_url()"],
        env={**os.environ, build.VARIABLE: url}, cwd=ROOT,
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def kill_at(url: str, moment: str) -> None:
    with start(url, moment) as killed:
        assert killed.stderr is not None
        said = ""
        while not said.endswith("stopped\n"):
            said += killed.stderr.readline()
            assert killed.poll() is None, said
        killed.kill()


def see_one_wait_for_another(url: str, where: str) -> None:
    with start(url, MOMENTS["before the stamp"]) as builder:
        assert builder.stderr is not None
        assert builder.stderr.readline().endswith("stopped\n")
        with start(url) as waiter:
            assert waiter.stderr is not None
            assert waiter.stderr.readline() == f"Waiting for another process that builds {where}\n"
            builder.kill()
            assert waiter.stderr.readline().startswith(f"Building {where}:")
            assert waiter.wait() == 0


def test_two_starts_at_once_both_come_up_on_one_build(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/flights.db"
    processes = [start(url, most=30_000), start(url, most=30_000)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "".join(said).count("done in") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"flights.db", "flights.db.lock"}
    assert counts(tmp_path / "flights.db")[-1] == 27004


@pytest.mark.parametrize(
    ("how", "shell"),
    [
        (signal.SIGINT, ()),
        (signal.SIGTERM, ()),
        (signal.SIGTERM, ("sh", "-c", 'trap "" INT; exec "$0" "$@"')),  # as a script does that starts it with `&`
    ],
)
def test_a_signal_in_a_build_ends_it_and_its_line(tmp_path: Path, how: signal.Signals, shell: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [*shell, sys.executable, "-m", "example_app", "query", "{ __typename }"],
        env={**os.environ, build.VARIABLE: f"sqlite+aiosqlite:///{tmp_path}/flights.db"}, cwd=ROOT,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        said = process.stderr.read(8)
        process.send_signal(how)
        said += process.stderr.read()
    assert (process.returncode, said.count("\n")) == (128 + how, 1)
    assert said.endswith(" failed\n")
    assert {path.name for path in tmp_path.iterdir()} == {"flights.db.lock"}


def test_a_start_that_waits_for_another_says_so(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/flights.db"
    see_one_wait_for_another(url, str(tmp_path / "flights.db"))


@pytest.mark.parametrize("moment", [*MOMENTS, *OF_A_FILE])
def test_a_start_that_is_killed_leaves_nothing_that_the_next_one_trips_over(tmp_path: Path, moment: str) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/flights.db"
    kill_at(url, (MOMENTS | OF_A_FILE)[moment])
    assert not (tmp_path / "flights.db").exists()
    with start(url) as next_one:
        assert next_one.wait() == 0
    assert {path.name for path in tmp_path.iterdir()} == {"flights.db", "flights.db.lock"}
    assert counts(tmp_path / "flights.db") == COMPLETE
