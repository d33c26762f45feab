"""Which stretch of each key's list is asked for, in SQL and in Python, and the `Page` that it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from sqlalchemy import BigInteger, and_, func, or_, select, type_coerce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Select

    from loader.sqlalchemy._target import Target

R = TypeVar("R")

# A client may send any number as a cursor; databases count to this one.
_FARTHEST = 2**63 - 1


@final
@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """The rows of one key between two cursors, and what lies around them.

    A cursor is a row's position in its key's whole list, from 0: it is what `after=` and `before=` take.

        page = Page(rows=("LAX", "SFO"), offset=3, has_previous=True, has_next=False, total=5)
        assert list(page.positions) == [3, 4]
    """

    rows: tuple[R, ...]
    """The rows, in order."""

    offset: int
    """The position of the first row; without rows, where it would have been."""

    has_previous: bool
    """Whether the key's list has rows before this page."""

    has_next: bool
    """Whether the key's list has rows after this page."""

    total: int | None
    """The length of the key's whole list, or None if it was not counted."""

    @property
    def positions(self) -> range:
        """The cursors of the rows, in the same order."""
        return range(self.offset, self.offset + len(self.rows))


@final
@dataclass(frozen=True, slots=True)
class Stretch:
    """The positions from `start` up to `stop` (None: to the end of the list), of which only the `last` ones.

    `wanted` and `page` say the same thing twice: the database and Python must cut at the same rows.
    """

    start: int = 0
    stop: int | None = None
    last: int | None = None

    def wanted(
        self, rank: ColumnElement[int], total: ColumnElement[int] | None, *, look_around: bool
    ) -> ColumnElement[bool]:
        """The criterion for the rows of this stretch.

        Args:
            rank: The row's number in its key's list, from 1.
            total: The length of that list; a stretch with `last` needs it.
            look_around: Also the first row of each list, which proves that there is one and brings its total,
                and, where nobody counts, the row behind the stretch, which proves that there is more.
        """
        stop = None if self.stop is None else min(self.stop, _FARTHEST - 1)
        lower = rank > min(self.start, _FARTHEST)
        if self.last is not None and total is not None:
            # The stretch ends at `stop` or `total`, whichever comes first: its last rows are above either bound.
            tail = rank > total - min(self.last, _FARTHEST)
            lower = and_(lower, tail if stop is None else or_(tail, rank > max(stop - self.last, 0)))
        if look_around:
            lower = or_(rank == 1, lower)
        if stop is None:
            return lower
        # On its own and against a plain number, this bound lets PostgreSQL stop numbering a list when it is met.
        return and_(rank <= (max(stop + (total is None), 1) if look_around else stop), lower)

    def page(self, found: Sequence[tuple[R, Sequence[int]]], *, counted: bool) -> Page[R]:
        """The page of one key.

        Args:
            found: The key's rows that met the criterion with `look_around`, in order, each with its rank and, if
                counted, its list's length.
            counted: Whether that length is there. Otherwise the last rank stands in for it: nothing is known
                behind that row, and if it lies behind the page, it is all that has to be known.
        """
        size = found[-1][1][-1] if found else 0
        stop = size if self.stop is None else min(self.stop, size)
        start = self.start if self.last is None else max(self.start, stop - self.last)
        return Page(
            rows=tuple(row for row, (rank, *_) in found if start < rank <= stop),
            offset=start,
            has_previous=start > 0 and size > 0,
            has_next=max(start, stop) < size,
            total=size if counted else None,
        )


def ranked(
    target: Target,
    criterion: ColumnElement[bool],
    order: Sequence[ColumnElement[Any]],
    stretch: Stretch,
    *,
    counted: bool,
    look_around: bool,
) -> Select[Any]:
    """The statement for one stretch of each key's list, with each row's rank and, if counted, its list's length.

    A subquery of primary keys makes the ranks and is joined to the rows: whatever the model adds to a SELECT of
    its own (inheritance, eager loading) stays out of the window.
    """
    window: dict[str, ColumnElement[int]] = {"rank": func.row_number().over(partition_by=target.key, order_by=order)}
    if counted:
        window["total"] = func.count().over(partition_by=target.key)
    ranks = (
        select(
            *(column.label(f"key_{number}") for number, column in enumerate(target.primary_key)),
            *(type_coerce(value, BigInteger).label(name) for name, value in window.items()),
        )
        .select_from(target.entity)
        .where(criterion)
        .subquery("loader_ranks")
    )
    same_row = (column == ranks.c[f"key_{number}"] for number, column in enumerate(target.primary_key))
    return (
        target.select(*(ranks.c[name].label(f"loader_{name}") for name in window))
        .join(ranks, and_(*same_row))
        .where(stretch.wanted(ranks.c.rank, ranks.c.get("total"), look_around=look_around))
        .order_by(ranks.c.rank)
    )
