"""JSON in, values of the annotated type out."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from loader.redis import MsgspecCodec


@dataclass
class Flight:
    id: int
    hour: dt.datetime
    price: Decimal | None = None


class Plane(msgspec.Struct):
    tail: str


class Point:
    """What msgspec does not know."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Flight(1, dt.datetime(2013, 1, 1, tzinfo=dt.UTC), Decimal("1.50")), Flight),
        ([Flight(1, dt.datetime(2013, 1, 1))], list[Flight]),
        (None, Flight | None),
        (Plane("N1"), Plane),
        ({1: UUID(int=1)}, dict[int, UUID]),
        (("a", 1), tuple[str, int]),
        ({"free": [1, "x", None]}, Any),
    ],
)
def test_a_value_comes_back_as_what_it_was(value: Any, kind: Any) -> None:
    codec = MsgspecCodec()
    for _ in range(2):
        assert codec.decode(codec.encode(value, kind), kind) == value


@pytest.mark.parametrize("data", [b"", b"rubbish", b'{"id":"one"}', b"[]", b"\x80\x04K\x01."])
def test_what_is_no_such_value_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        MsgspecCodec().decode(data, Flight)


def test_hooks_say_what_is_made_of_what_json_does_not_know() -> None:
    with pytest.raises(TypeError, match="Point"):
        MsgspecCodec().encode(Point(1), Point)
    codec = MsgspecCodec(enc_hook=lambda point: point.x, dec_hook=lambda kind, data: kind(data))
    assert codec.decode(codec.encode([Point(1), None], list[Point | None]), list[Point | None]) == [Point(1), None]
