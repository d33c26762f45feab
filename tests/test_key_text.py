"""Keys as text: two keys have the same text only if they are equal, and a text gives an equal key."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader import SecondLevelError
from loader.second_level import key_text, text_key

if TYPE_CHECKING:
    from collections.abc import Hashable

# Python itself compares the moments of a zone with summer time differently from those of others.
zones: Any = st.integers(-12, 14).map(lambda hours: dt.timezone(dt.timedelta(hours=hours)))
atoms: Any = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=st.none() | zones)
    | st.times()
    | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False, places=2)
)
keys: Any = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


@settings(max_examples=200)
@given(keys)
def test_a_text_gives_an_equal_key(key: Hashable) -> None:
    again = text_key(key_text(key))
    assert again == key
    assert hash(again) == hash(key)


@given(keys, keys)
def test_keys_have_the_same_text_exactly_if_they_are_equal(one: Hashable, other: Hashable) -> None:
    assert (one == other) == (key_text(one) == key_text(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (("a", "b"), "a,b"),
        (("a", "b"), ("a,b",)),
        (("a", ("b",)), ("a", "b")),
        (None, "null"),
        (b"a", "a"),
        ("a", '"a"'),
        ((), ""),
        (dt.date(2013, 1, 1), dt.datetime(2013, 1, 1)),
        (dt.date(2013, 1, 1), "2013-01-01"),
        (b"", None),
        (1.0, "1.0"),
        (UUID(int=1), str(UUID(int=1))),
        (0.1, Decimal("0.1")),
        (2**53, Decimal(2**53) + Decimal("0.1")),
        (Decimal("1e26") + 0, Decimal("100000000000000000000000000.01")),
    ],
)
def test_what_looks_alike_is_told_apart(one: Hashable, other: Hashable) -> None:
    assert key_text(one) != key_text(other)


class Color(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Color.RED, "red"),
        (Number.ONE, 1),
        (Point(1, 2), (1, 2)),
        (Decimal("1.0"), Decimal("1.00")),
        (1, 1.0),
        (1, True),
        (0, -0.0),
        (1, Decimal("1.00")),
        (10**20, Decimal("1e20")),
        (10**20, 1e20),
        (0.5, Decimal("0.50")),
        (1 / 3, Decimal(1 / 3)),
        (float("inf"), Decimal("Infinity")),
        (("a", 2), ("a", Decimal(2))),
        (Decimal("1e9999"), Decimal("10e9998")),
        (
            dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC),
            dt.datetime(2013, 1, 1, 7, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
        ),
    ],
)
def test_equal_keys_that_are_written_differently_have_one_text(one: Hashable, other: Hashable) -> None:
    assert one == other
    assert key_text(one) == key_text(other)


class Plain(Enum):
    ONE = 1


@pytest.mark.parametrize("key", [object(), frozenset({1}), Plain.ONE, (1, (object(),))])
def test_a_key_without_a_text_is_refused_and_says_what_to_do(key: Hashable) -> None:
    with pytest.raises(SecondLevelError, match="cache_key_fn"):
        key_text(key)


@pytest.mark.parametrize("text", ["{}", '{"set":"1"}', '{"date":"2013-01-01","time":"12:00"}', "[", "", '{"uuid":"x"}'])
def test_what_is_no_text_of_a_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        text_key(text)
