"""The type of a loader's values, as its batch function is annotated."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, Union

import pytest

from loader import SecondLevelError
from loader._value_type import value_type

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
    from decimal import Decimal


class Row:
    pass


async def rows(keys: list[int]) -> list[Row]: ...  # type: ignore[empty-body]
async def maybe(keys: list[int]) -> Sequence[Row | None]: ...  # type: ignore[empty-body]
async def failing(keys: list[int]) -> Sequence[Row | ValueError | None]: ...  # type: ignore[empty-body]
async def older(keys: list[int]) -> Sequence[Optional[Union[Row, Exception]]]: ...  # type: ignore[empty-body]  # noqa: UP007, UP045
async def mapped(keys: list[Decimal]) -> Mapping[int, Row | BaseException]: ...  # type: ignore[empty-body]
async def several(keys: list[int]) -> dict[int, list[Row]]: ...  # type: ignore[empty-body]
async def pairs(keys: list[int]) -> AsyncIterator[tuple[int, Row]]:
    yield 1, Row()


def plain(keys: list[int]) -> tuple[Row, ...]: ...  # type: ignore[empty-body]
def handed_on(keys: list[int]) -> Awaitable[list[Row]]: ...  # type: ignore[empty-body]
def coroutine(keys: list[int]) -> Coroutine[Any, Any, dict[int, Row]]: ...  # type: ignore[empty-body]


class Called:
    async def __call__(self, keys: list[int]) -> list[Row]: ...  # type: ignore[empty-body]

    async def method(self, keys: list[int], *, first: int) -> list[Row]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (rows, Row),
        (maybe, Row | None),
        (failing, Row | None),
        (older, Row | None),
        (mapped, Row),
        (several, list[Row]),
        (pairs, Row),
        (plain, Row),
        (handed_on, Row),
        (coroutine, Row),
        (Called(), Row),
        (Called().method, Row),
        (partial(Called.method, Called(), first=1), Row),
    ],
)
def test_the_type_of_a_value_is_read_from_the_annotation(function: Any, expected: Any) -> None:
    assert value_type(function, group_by=False) == expected


def test_with_group_by_a_value_is_a_list_of_rows() -> None:
    assert value_type(rows, group_by=True) == list[Row]


async def silent(keys: list[int]): ...  # type: ignore[no-untyped-def]
async def bare(keys: list[int]) -> list: ...  # type: ignore[type-arg, empty-body]
async def scalar(keys: list[int]) -> int: ...  # type: ignore[empty-body]
async def mixed(keys: list[int]) -> tuple[int, str]: ...  # type: ignore[empty-body]
async def either(keys: list[int]) -> list[int] | None: ...
async def unpaired(keys: list[int]) -> AsyncIterator[int]:
    yield 1


async def unknown(keys: list[int]) -> list[Decimal]: ...  # type: ignore[empty-body]
def other(keys: list[int]) -> type[int]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("function", [silent, bare, scalar, mixed, either, unpaired, unknown, other])
def test_an_annotation_that_does_not_say_is_an_error_that_says_what_would(function: Any) -> None:
    with pytest.raises(SecondLevelError, match=rf"{function.__name__} .*Annotate the function"):
        value_type(function, group_by=False)


def test_what_only_type_checkers_know_is_named() -> None:
    with pytest.raises(SecondLevelError, match="name 'Decimal' is not defined"):
        value_type(unknown, group_by=False)


def test_a_loader_needs_no_annotation_of_its_keys() -> None:
    assert "Decimal" not in vars(sys.modules[__name__])
    assert value_type(mapped, group_by=False) is Row
