"""What can be set from outside: an `EXAMPLE_...` variable for each field. docs/demo.md says what they are for."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from redis.asyncio.connection import parse_url
from strawberry.http.websocket_origin import normalize_allowed_origins

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "EXAMPLE_"


class StartError(Exception):
    """The start cannot go on; the text says in one line why, and what a person can do about it."""


class SettingsError(StartError):
    """A variable has no sensible value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one start of the service; their defaults suit a visitor on their own machine."""

    database_url: str = ""
    redis_url: str = ""
    graphiql: bool = True
    introspection: bool = True
    allowed_origins: frozenset[str] = frozenset()
    log: str = "text"
    max_depth: int = 12
    max_aliases: int = 100
    max_tokens: int = 2_000
    max_values: int = 50_000
    max_seconds: float = 10.0
    max_operations: int = 20
    max_connections: int = 1_000
    max_body: int = 100_000
    pool_size: int = 15
    pool_seconds: float = 5.0
    shutdown_seconds: int = 10

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> Settings:
        """The settings that these variables make, by default those of the process; an empty one is as good as none.

        Raises:
            SettingsError: If one has no sensible value.
        """
        variables = os.environ if variables is None else variables
        named = {field.name: variables.get(variable(field.name)) for field in fields(cls)}
        return cls(**{name: _read(name, text) for name, text in named.items() if text})


def variable(name: str) -> str:
    """The variable of a field."""
    return PREFIX + name.upper()


def _read(name: str, text: str) -> Any:
    try:
        return _READERS[name](text) if name in _READERS else _READERS[type(_DEFAULTS[name])](text)
    except ValueError as error:
        raise SettingsError(f"{variable(name)} must be {error}, not {without_password(text)!r:.100}") from None


def without_password(url: str) -> str:
    """A URL, or what was to be one, that can be shown."""
    return re.sub("(?<=:)[^:@/]*(?=@)", "***", url)


def _yes_or_no(text: str) -> bool:
    if text not in {"0", "1"}:
        raise ValueError("0 or 1")
    return text == "1"


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= len(text) <= 9 and int(text)):
        raise ValueError("a whole number from 1 to 999999999")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise ValueError("a number of seconds above 0, up to 3600")
    return seconds


def _origins(text: str) -> frozenset[str]:
    origins = [origin.strip() for origin in text.split(",")]
    try:
        return normalize_allowed_origins(origins)
    except ValueError:
        raise ValueError("origins such as https://example.com with commas between them, or *") from None


def _redis(text: str) -> str:
    try:
        parse_url(text)
        path = urlsplit(text).path
    except ValueError:
        path = None
    # Of a path that is no number, redis-py makes database 0; that of unix: is a file's.
    if path is None or not (text.startswith("unix:") or re.fullmatch("/?|/[0-9]{1,9}", path)):
        raise ValueError("redis://USER:PASSWORD@HOST:PORT/NUMBER, or the same with rediss:")
    return text


def _log(text: str) -> str:
    if text not in {"text", "json", "off"}:
        raise ValueError("text, json or off")
    return text


_DEFAULTS = {field.name: field.default for field in fields(Settings)}
_READERS: dict[object, Any] = {
    bool: _yes_or_no,
    int: _whole_number,
    float: _seconds,
    str: str,
    "allowed_origins": _origins,
    "log": _log,
    "redis_url": _redis,
}
