"""The three functions: one row per key, a list per key, a page per key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from loader.errors import BatchResultError
from loader.sqlalchemy._execution import fetch
from loader.sqlalchemy._target import Target
from loader.sqlalchemy._window import Page, Stretch, ranked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import ColumnElement, ColumnExpressionArgument, Row, Select, Table
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.sql.base import ExecutableOption

    from loader.sqlalchemy._execution import Source
    from loader.sqlalchemy._target import Columns, OrderBy

K = TypeVar("K")
M = TypeVar("M")


@overload
async def rows_by_key(
    source: AsyncSession,
    entity: type[M],
    column: Columns,
    keys: Iterable[K],
    *,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, M]: ...
@overload
async def rows_by_key(
    source: AsyncSession,
    entity: Table,
    column: Columns,
    keys: Iterable[K],
    *,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, Row[*tuple[Any, ...]]]: ...
@overload
async def rows_by_key(
    source: AsyncConnection,
    entity: type[Any] | Table,
    column: Columns,
    keys: Iterable[K],
    *,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, Row[*tuple[Any, ...]]]: ...
async def rows_by_key(
    source: Source,
    entity: type[Any] | Table,
    column: Columns,
    keys: Iterable[Any],
    *,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[Any, Any]:
    """The row of each key; a key without a row is absent.

    A batch function returns it as it is: `return await rows_by_key(self.session, Airport, Airport.code, codes)`.
    All keys go into one statement, or as few as the database's limit of parameters allows; no keys, no statement.
    Calls that share a session or connection take turns.

    Args:
        source: With an `AsyncSession`, the rows of a model are its instances; all others are `Row` objects.
        entity: A mapped class or a `Table`.
        column: What the keys are compared with, unique among the rows: an attribute, a `Column` or a name. With a
            list or tuple of these each key is a tuple.
        keys: The keys, as the column returns them. One that is, or holds, None has no row.
        where: What a row must meet besides; join several with `and_()`.
        options: Loader options for instances, such as `selectinload()`.

    Returns:
        A mapping in the order of the keys.

    Raises:
        TypeError: If an argument or a key is of a kind that cannot be meant.
        ValueError: If a column belongs to something else, or a key has a wrong number of parts.
        BatchResultError: If a key has two rows; or if the database matched a key that differs from the row's in
            Python (`"1"` and 1, another case in a column that ignores it). Nothing is dropped in silence.

    Cancellation:
        A call that waits for its turn just leaves. One whose statement runs interrupts it, and SQLAlchemy gives
        the connection up. The callers of a loader cannot do that to its batches.
    """
    target = Target("rows_by_key", source, entity, column)
    groups = await fetch(source, target, keys, where, options, lambda criterion: target.select().where(criterion))
    for key, found in groups.items():
        if len(found) > 1:
            raise BatchResultError(
                f"{target.who} promises one row per key, but {key!r} has {len(found)}. "
                "Narrow them down with where=, or use grouped_rows()."
            )
    return {key: found[0][0] for key, found in groups.items() if found}


@overload
async def grouped_rows(
    source: AsyncSession,
    entity: type[M],
    column: Columns,
    keys: Iterable[K],
    *,
    limit: int | None = None,
    offset: int = 0,
    order_by: OrderBy | None = None,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, list[M]]: ...
@overload
async def grouped_rows(
    source: AsyncSession,
    entity: Table,
    column: Columns,
    keys: Iterable[K],
    *,
    limit: int | None = None,
    offset: int = 0,
    order_by: OrderBy | None = None,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, list[Row[*tuple[Any, ...]]]]: ...
@overload
async def grouped_rows(
    source: AsyncConnection,
    entity: type[Any] | Table,
    column: Columns,
    keys: Iterable[K],
    *,
    limit: int | None = None,
    offset: int = 0,
    order_by: OrderBy | None = None,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, list[Row[*tuple[Any, ...]]]]: ...
async def grouped_rows(
    source: Source,
    entity: type[Any] | Table,
    column: Columns,
    keys: Iterable[Any],
    *,
    limit: int | None = None,
    offset: int = 0,
    order_by: OrderBy | None = None,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[Any, list[Any]]:
    """The list of rows of each key; a key without rows has an empty one.

    `limit` and `offset` count per key: `limit=3` gives the first three rows of every key. The database numbers the
    rows of each key, and sends no others.

    Args:
        source: As for `rows_by_key`.
        entity: As for `rows_by_key`; it must have a primary key.
        column: As for `rows_by_key`, but it need not be unique: most often a foreign key.
        keys: As for `rows_by_key`.
        limit: The most rows of one key; None sets no limit.
        offset: How many of each key's first rows to leave out.
        order_by: A column (also by name), an expression such as `Flight.departure.desc()`, or several of them.
            The primary key always follows, so that the order is the same each time.
        where: As for `rows_by_key`; rows that do not meet it do not count.
        options: As for `rows_by_key`.

    Returns:
        A mapping in the order of the keys.

    Raises:
        TypeError: As for `rows_by_key`.
        ValueError: As for `rows_by_key`; or if there is no primary key, or `limit` or `offset` is negative.
        BatchResultError: If the database matched a key that differs from the row's in Python.

    Cancellation:
        As for `rows_by_key`.
    """
    _check_counts(limit=limit, offset=offset)
    target = Target("grouped_rows", source, entity, column)
    order = target.order(order_by)
    stretch = Stretch(offset, None if limit is None else offset + limit)

    def statement(criterion: ColumnElement[bool]) -> Select[Any]:
        if stretch == Stretch():
            return target.select().where(criterion).order_by(*order)
        return ranked(target, criterion, order, stretch, counted=False, look_around=False)

    groups = await fetch(source, target, keys, where, options, statement)
    return {key: [row for row, _ in found] for key, found in groups.items()}


@overload
async def grouped_pages(
    source: AsyncSession,
    entity: type[M],
    column: Columns,
    keys: Iterable[K],
    *,
    first: int | None = None,
    after: int | None = None,
    last: int | None = None,
    before: int | None = None,
    total: bool = False,
    order_by: OrderBy | None = None,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, Page[M]]: ...
@overload
async def grouped_pages(
    source: AsyncSession,
    entity: Table,
    column: Columns,
    keys: Iterable[K],
    *,
    first: int | None = None,
    after: int | None = None,
    last: int | None = None,
    before: int | None = None,
    total: bool = False,
    order_by: OrderBy | None = None,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, Page[Row[*tuple[Any, ...]]]]: ...
@overload
async def grouped_pages(
    source: AsyncConnection,
    entity: type[Any] | Table,
    column: Columns,
    keys: Iterable[K],
    *,
    first: int | None = None,
    after: int | None = None,
    last: int | None = None,
    before: int | None = None,
    total: bool = False,
    order_by: OrderBy | None = None,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[K, Page[Row[*tuple[Any, ...]]]]: ...
async def grouped_pages(
    source: Source,
    entity: type[Any] | Table,
    column: Columns,
    keys: Iterable[Any],
    *,
    first: int | None = None,
    after: int | None = None,
    last: int | None = None,
    before: int | None = None,
    total: bool = False,
    order_by: OrderBy | None = None,
    where: ColumnExpressionArgument[bool] | None = None,
    options: Sequence[ExecutableOption] = (),
) -> dict[Any, Page[Any]]:
    """The `Page` of each key that a Relay connection asks for; a key without rows has an empty one.

    The arguments mean what the Relay specification says, for each key on its own, and one statement answers all
    keys. Cursors are positions: what is inserted or deleted between two pages shifts the rows behind it.

    Args:
        source: As for `grouped_rows`.
        entity: As for `grouped_rows`.
        column: As for `grouped_rows`.
        keys: As for `grouped_rows`.
        first: The most rows, from the beginning of what `after` and `before` leave.
        after: The position after which the page begins.
        last: The most rows, from the end of what the others leave. It takes counting each key's list.
        before: The position before which the page ends.
        total: Count each key's list. Without this and `last`, the database may stop where the page does.
        order_by: As for `grouped_rows`.
        where: As for `grouped_rows`.
        options: As for `grouped_rows`.

    Returns:
        A mapping in the order of the keys.

    Raises:
        TypeError: As for `rows_by_key`.
        ValueError: As for `grouped_rows`; or if `first`, `after`, `last` or `before` is negative.
        BatchResultError: As for `grouped_rows`.

    Cancellation:
        As for `rows_by_key`.
    """
    _check_counts(first=first, after=after, last=last, before=before)
    target = Target("grouped_pages", source, entity, column)
    order = target.order(order_by)
    start = 0 if after is None else after + 1
    ends = [end for end in (before, None if first is None else start + first) if end is not None]
    stretch = Stretch(start, min(ends, default=None), last)
    counted = total or last is not None

    def statement(criterion: ColumnElement[bool]) -> Select[Any]:
        return ranked(target, criterion, order, stretch, counted=counted, look_around=True)

    groups = await fetch(source, target, keys, where, options, statement)
    return {key: stretch.page(found, counted=counted) for key, found in groups.items()}


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
            raise TypeError(f"{name}= takes a whole number or None, not {count!r}")
        if count is not None and count < 0:
            raise ValueError(f"{name}= must not be negative, got {count}")
