"""What was loaded for one object, where that is not the same at all places of a query, or at all times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
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
    place has its own answer. So it is without a cache, and where one object comes to one place at several times: then
    what it came for tells them apart.
    """

    __slots__ = ("_at", "_elsewhere")

    def __init__(self, elsewhere: Any) -> None:
        self._at: dict[Names, list[tuple[Names, Collection[int] | None, Any, TracebackType | None]]] = {}
        self._elsewhere = elsewhere

    @classmethod
    def with_one_more(
        cls, before: Any, outcome: Any, names: Names, above: Names, askers: Collection[int] | None
    ) -> Several:
        """The outcomes so far, which may be `outcome` itself or another single one, and `outcome` at a place.

        Args:
            before: The outcomes so far.
            outcome: One more.
            names: The place.
            above: The place of what brought the object there.
            askers: The identities of the objects that it was brought for; None if the list has it itself.
        """
        several = before if type(before) is cls else cls(UNKNOWN if before is outcome else before)
        traceback = outcome.__traceback__ if isinstance(outcome, Exception) else None
        several._at.setdefault(names, []).append((above, askers, outcome, traceback))
        return several

    def at(self, path: Path, trail: Mapping[Names, int]) -> Any:
        """The outcome there, or `UNKNOWN`.

        Args:
            path: The place.
            trail: For the places above, the identity of the object that was asked there last.

        Raises:
            Exception: If the outcome is one. It is raised in many fields, so its traceback is cut back to what it was:
                each of them would make it longer.
        """
        for above, askers, outcome, traceback in self._at.get(names_of(path), ()):
            if askers is None or trail.get(above) in askers:
                if isinstance(outcome, Exception):
                    raise outcome.with_traceback(traceback)
                return outcome
        return self._elsewhere


def names_of(path: Path | None) -> Names:
    """A path without the positions in lists: it says where in the query a value was asked for."""
    names: list[str] = []
    while path is not None:
        if isinstance(path.key, str):
            names.append(path.key)
        path = path.prev
    return tuple(reversed(names))
