"""What can be set from outside: each variable does what docs/demo.md says, and a bad value gets one line."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from example_app.settings import Settings, SettingsError, variable
from tests.test_example_app import environment
from tests.test_example_data import ROOT


def test_without_variables_or_with_empty_ones_the_defaults_hold() -> None:
    empty = {variable(field.name): "" for field in fields(Settings)}
    assert Settings.from_environment({}) == Settings.from_environment(empty) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("database_url", "postgresql+asyncpg://localhost/demo", "postgresql+asyncpg://localhost/demo"),
        ("redis_url", "redis://127.0.0.1:6379/5", "redis://127.0.0.1:6379/5"),
        ("redis_url", "rediss://user:password@redis", "rediss://user:password@redis"),
        ("redis_url", "unix:///run/redis.sock?db=5", "unix:///run/redis.sock?db=5"),
        ("graphiql", "0", False),
        ("introspection", "1", True),
        ("allowed_origins", "https://Example.com:443, http://localhost:3000", {"https://example.com", "http://localhost:3000"}),
        ("allowed_origins", "*", {"*"}),
        ("log", "json", "json"),
        ("max_depth", "5", 5),
        ("max_seconds", "0.25", 0.25),
        ("pool_size", "999999999", 999_999_999),
    ],
)  # fmt: skip
def test_a_variable_sets_its_field(name: str, text: str, value: Any) -> None:
    assert Settings.from_environment({variable(name): text}) == replace(Settings(), **{name: value})


@pytest.mark.parametrize(
    ("name", "text", "must_be"),
    [
        ("redis_url", "foo", "redis://"),
        ("redis_url", "http://x", "redis://"),
        ("redis_url", "redis://127.0.0.1:99999/5", "redis://"),
        ("redis_url", "redis://h:abc/5", "redis://"),
        ("redis_url", "redis://127.0.0.1:6379/notanumber", "redis://"),
        ("redis_url", "redis://127.0.0.1:6379/-1", "redis://"),
        ("redis_url", "redis://127.0.0.1:6379?db=x", "redis://"),
        ("graphiql", "yes", "0 or 1"),
        ("allowed_origins", "example.com", "origins such as https://example.com with commas between them, or *"),
        ("allowed_origins", "https://example.com/path", "origins such as https://example.com with commas"),
        ("log", "xml", "text, json or off"),
        ("max_depth", "0", "a whole number from 1"),
        ("max_depth", "-1", "a whole number from 1"),
        ("max_depth", "1e3", "a whole number from 1"),
        ("max_depth", "٣", "a whole number from 1"),
        ("max_depth", "9" * 5000, "a whole number from 1"),
        ("max_seconds", "soon", "a number of seconds above 0, up to 3600"),
        ("max_seconds", "nan", "a number of seconds above 0, up to 3600"),
        ("max_seconds", "inf", "a number of seconds above 0, up to 3600"),
    ],
)
def test_a_bad_value_gets_one_line_that_says_what_it_may_be(name: str, text: str, must_be: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings.from_environment({variable(name): text})
    assert str(raised.value).startswith(f"{variable(name)} must be {must_be}")
    assert repr(text)[:50] in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("arguments", [(), ("query", "{ __typename }")])
@pytest.mark.parametrize(
    ("name", "text", "must_be"),
    [
        ("EXAMPLE_MAX_DEPTH", "deep", "a whole number from 1 to 999999999"),
        ("EXAMPLE_REDIS_URL", "foo", "redis://USER:PASSWORD@HOST:PORT/NUMBER, or the same with rediss:"),
    ],
)
def test_the_command_says_so_and_stops(name: str, text: str, must_be: str, arguments: tuple[str, ...]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "example_app", *arguments], env=environment(**{name: text}), cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"example_app: {name} must be {must_be}, not {text!r}\n"


def test_a_password_is_not_shown() -> None:
    with pytest.raises(SettingsError, match=r"not 'redis://me:\*\*\*@host/x'"):
        Settings.from_environment({"EXAMPLE_REDIS_URL": "redis://me:secret@host/x"})


def test_a_worker_with_a_bad_url_of_redis_says_so() -> None:
    code = "from example_app.app import from_environment; from_environment()"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(EXAMPLE_REDIS_URL="foo"), cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    (line,) = ran.stderr.splitlines()
    assert line.startswith("example_app: EXAMPLE_REDIS_URL must be redis://")


def test_the_guide_has_each_variable_with_its_default() -> None:
    rows = re.findall(r"^\| `(EXAMPLE_\w+)` \| (.*?) \|", (ROOT / "docs" / "demo.md").read_text("utf-8"), re.MULTILINE)
    shown = {name: default.strip("`").replace(",", "") for name, default in rows}
    assert shown == {variable(field.name): _in_the_guide(field.default) for field in fields(Settings)}


def _in_the_guide(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value else "none"
