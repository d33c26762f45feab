"""Keys as text, and back: what workers call a key when they talk of it.

The text is JSON, in which `1` and `"1"` differ; a tuple is a list, and what JSON has no word for is an object of one
member. Two keys have the same text only if they are equal, and numbers that are equal, as `1`, `1.0`, `True` and
`Decimal("1.00")` are, have the same text: a dict, and so a loader, does not tell them apart either.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any
from uuid import UUID

from loader.errors import SecondLevelError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MANY_DIGITS = 4000
"""Larger integers than of so many digits have no text in Python, unless one asks for it."""

_dumps = json.JSONEncoder(separators=(",", ":")).encode


def key_text(key: Hashable) -> str:
    """The text of a key: a number, a string, bytes, a date, a time, a UUID, a Decimal, None, or a tuple of such.

    Raises:
        SecondLevelError: If the key is of another type.
    """
    # Most keys are one of these two, and a batch has many.
    if type(key) is int:
        return str(key)
    if type(key) is str:
        return encode_basestring_ascii(key)
    return _dumps(_tagged(key))


def text_key(text: str) -> Any:
    """The key of a text; it is equal to the one that the text was made of.

    Raises:
        ValueError: If it is the text of no key.
    """
    return _untagged(json.loads(text))


def _tagged(key: object) -> Any:
    if key is None or isinstance(key, str):
        return key  # members of a StrEnum or an IntEnum are equal to what JSON makes of them
    if isinstance(key, int | float | Decimal):
        return _number(key)
    if isinstance(key, tuple):
        return [_tagged(part) for part in key]
    for kind, (tag, write, _) in _KINDS.items():
        if isinstance(key, kind):
            return {tag: write(key)}
    raise SecondLevelError(
        f"the key {key!r} has no text that other workers could know it by: a {type(key).__name__} is none of str, int, "
        "float, bool, None, bytes, date, datetime, time, UUID, Decimal or a tuple of them. Give the loader a "
        "cache_key_fn that makes one of these of it"
    )


def _untagged(part: Any) -> Any:
    if isinstance(part, list):
        return tuple(map(_untagged, part))
    if isinstance(part, dict):
        for tag, _, read in _KINDS.values():
            if [*part] == [tag]:
                return read(part[tag])
        raise ValueError(f"no key has the text {part!r}")
    return part


def _moment(moment: dt.datetime) -> str:
    # Equal moments of different time zones are equal keys.
    return (moment if moment.utcoffset() is None else moment.astimezone(dt.UTC)).isoformat()


def _number(number: float | Decimal) -> Any:
    """A whole number as an int, another as the float that it equals, and only what equals neither as a Decimal."""
    if isinstance(number, int):
        return int(number)
    if isinstance(number, float):
        return int(number) if number.is_integer() else number
    if number.is_finite() and number.adjusted() < MANY_DIGITS and number == number.to_integral_value():
        return int(number)
    near = float(number)
    return near if near == number else {"decimal": _decimal(number)}


def _decimal(number: Decimal) -> str:
    # Without the zeros in which equal numbers differ, and without rounding as the current context would.
    exact = Context(prec=max(1, len(number.as_tuple().digits)), Emax=MAX_EMAX, Emin=MIN_EMIN)
    return str(number.normalize(exact))


# A datetime is a date: it has to come first.
_KINDS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    dt.datetime: ("datetime", _moment, dt.datetime.fromisoformat),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: ("time", dt.time.isoformat, dt.time.fromisoformat),
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    UUID: ("uuid", str, UUID),
    Decimal: ("decimal", _decimal, Decimal),
}
