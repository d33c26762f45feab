"""What was loaded for one object at several places of a query, where that is not the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from types import TracebackType

    from graphql.pyutils import Path

    Names = tuple[str, ...]

UNKNOWN: Any = object()
"""No outcome is known here, where None would be one."""


@final
class Pending:
    """Stands for the outcome of a key that has been asked for and not been answered."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key


@final
class Several:
    """The outcomes of one relation of an object by the place that asked.

    A batch that fails is not cached, so a key that failed in one place is asked for again in a deeper one, and each
    place has its own answer. So it is without a cache.
    """

    __slots__ = ("_at", "_elsewhere")

    def __init__(self, elsewhere: Any) -> None:
        self._at: dict[Names, tuple[Any, TracebackType | None]] = {}
        self._elsewhere = elsewhere

    @classmethod
    def with_one_more(cls, before: Any, outcome: Any, names: Names) -> Several:
        """The outcomes so far, which may be `outcome` itself or another single one, and `outcome` at a place."""
        several = before if type(before) is cls else cls(UNKNOWN if before is outcome else before)
        several._at[names] = outcome, outcome.__traceback__ if isinstance(outcome, Exception) else None
        return several

    def at(self, path: Path) -> Any:
        """The outcome there, or `UNKNOWN`.

        Raises:
            Exception: If the outcome is one. It is raised in many fields, so its traceback is cut back to what it was:
                each of them would make it longer.
        """
        outcome, traceback = self._at.get(names_of(path), (self._elsewhere, None))
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(traceback)
        return outcome


def names_of(path: Path | None) -> Names:
    """A path without the positions in lists: it says where in the query a value was asked for."""
    names: list[str] = []
    while path is not None:
        if isinstance(path.key, str):
            names.append(path.key)
        path = path.prev
    return tuple(reversed(names))
