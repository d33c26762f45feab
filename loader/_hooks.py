"""Who observes: all that the core looks at, so that what nobody observes costs one look.

What is then recorded, and how, is in `loader._watching`, which is imported when there is something to record.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from loader._scope import Scope
    from loader.observe import Observer

everywhere: list[Observer] = []
"""Who observes the whole process. It is changed in place, from any thread: read it, or a copy, at once."""

current_scope: ContextVar[Scope | None] = ContextVar("loader.scope", default=None)
"""The scope that loads made here belong to. It is here for what may not know of scopes."""


class Both:
    """Two lists of observers in one, neither of which is copied: they change."""

    __slots__ = ("_lists",)

    def __init__(self, *lists: Iterable[Observer]) -> None:
        self._lists = lists

    def __iter__(self) -> Iterator[Observer]:
        for observers in self._lists:
            yield from observers


def observers_here() -> list[Observer]:
    """Who observes the whole process, and who the current scope."""
    scope = current_scope.get()
    return everywhere if scope is None or not scope._observers else [*everywhere, *scope._observers]
