"""The type of a loader's values, read from the annotation of its batch function."""

from __future__ import annotations

import collections.abc
import typing
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from functools import cache, partial, reduce
from operator import or_
from types import SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Any, Union

from loader.errors import SecondLevelError

if TYPE_CHECKING:
    from collections.abc import Callable


def value_type(function: Callable[..., Any], *, group_by: bool) -> Any:
    """The type of one value of a batch function that is annotated.

    Args:
        function: The function, or a partial of it.
        group_by: Whether it returns rows of which each key gets a list.

    Raises:
        SecondLevelError: If the annotation does not say.
    """
    inner = function.func if isinstance(function, partial) else function
    return _of_function(getattr(inner, "__func__", inner), group_by)


@cache
def _of_function(function: Callable[..., Any], group_by: bool) -> Any:
    called = function if hasattr(function, "__annotations__") else type(function).__call__
    name = getattr(called, "__qualname__", repr(called))
    try:
        # The other annotations are not ours: their names may be there for type checkers only. So may those of
        # collections.abc, but these are no secret.
        only = SimpleNamespace(__annotations__={"return": called.__annotations__["return"]})
        names = vars(collections.abc) | getattr(called, "__globals__", {})
        hint = typing.get_type_hints(only, names)["return"]
    except (KeyError, NameError) as error:
        problem = "has no return annotation" if isinstance(error, KeyError) else f"is annotated with what {error}"
        raise SecondLevelError(f"{name} {problem}: {_ASKED}") from None
    found = _of_result(hint)
    if found is None:
        raise SecondLevelError(f"{name} is annotated as returning {hint!r}: {_ASKED}")
    value = _without_errors(found)
    return list[value] if group_by else value  # type: ignore[valid-type]


_ASKED = (
    "a second-level cache that stores bytes has to know the type of a value. Annotate the function as returning a "
    "Sequence[T], a Mapping[K, T] or an AsyncIterator[tuple[K, T]], with types that are there when it runs"
)


def _of_result(hint: Any) -> Any:
    """The type of one value in a result of this type, None if that is not said."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if not isinstance(origin, type) or not arguments:
        return None
    if issubclass(origin, AsyncIterator):
        pair = typing.get_args(arguments[0])
        return pair[1] if len(pair) == 2 else None
    if issubclass(origin, Mapping):
        return arguments[1]
    if origin is tuple:
        return arguments[0] if arguments[1:] == (Ellipsis,) else None
    if issubclass(origin, Iterable):
        return arguments[0]
    return _of_result(arguments[-1]) if issubclass(origin, Awaitable) else None


def _without_errors(hint: Any) -> Any:
    """The type without the exceptions that may stand for a value: those are never kept."""
    if typing.get_origin(hint) not in (Union, UnionType):
        return hint
    return reduce(or_, (kind for kind in typing.get_args(hint) if not _is_error(kind)))


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
