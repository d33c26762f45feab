"""How statements reach the database: in turns, and with no more parameters than it takes."""

from __future__ import annotations

from asyncio import Lock
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import BindParameter, and_, true
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.sql import visitors

from loader.errors import BatchResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import ClauseElement, ColumnElement, ColumnExpressionArgument, Dialect, Result, Select
    from sqlalchemy.sql.base import ExecutableOption

    from loader.sqlalchemy._target import Target

K = TypeVar("K")

Source: TypeAlias = AsyncSession | AsyncConnection

# Parameters of a statement that do not show in it: of inheritance, and of loader options.
_OURS = 50

# PostgreSQL nests the comparisons of `(a, b) IN ((1, 2), ...)`: several thousand of them exceed its stack.
_MOST_TUPLES = 1_000

# The batches of several loaders leave in the same moment, but a session or connection does one thing at a time.
# Statements from here take turns; what else uses the session or connection is the affair of its owner.
_turns: WeakKeyDictionary[Source, Lock] = WeakKeyDictionary()


async def fetch(
    source: Source,
    target: Target,
    keys: Iterable[Any],
    where: ColumnExpressionArgument[bool] | None,
    options: Sequence[ExecutableOption],
    statement: Callable[[ColumnElement[bool]], Select[Any]],
) -> dict[Any, list[tuple[Any, Sequence[Any]]]]:
    """Collect, for each of `keys`, its rows and the extras beside them.

    Args:
        source: Where to run the statements.
        target: Whose rows they are.
        keys: As the caller gave them.
        where: A further criterion.
        options: Loader options.
        statement: Makes a statement, which `target.select` began, from the criterion for the rows.
    """
    if options and not target.instances:
        raise TypeError(f"{target.who} gives no instances that options= could apply to: take a session and a model")
    where_also = [] if where is None else [and_(where)]
    asked, askable = target.keys(keys)
    groups: dict[Any, list[tuple[Any, Sequence[Any]]]] = {key: [] for key in asked}
    besides = _parameters(statement(and_(true(), *where_also)))
    for chunk in _chunks(askable, len(target.key), target.dialect, besides):
        query = statement(and_(target.matches(chunk), *where_also)).options(*options)
        async with _turns.setdefault(source, Lock()):
            result: Result[Any] = await source.execute(query)
        for row, key, extras in target.records(result):
            if key not in groups:
                raise BatchResultError(
                    f"{target.who}: the database answered for the key {key!r}, which is none of those asked for "
                    f"(such as {chunk[0]!r}). It compares the values of this column in another way than Python "
                    "does: give the keys exactly as the column returns them."
                )
            groups[key].append((row, extras))
    return groups


def _chunks(keys: Sequence[K], width: int, dialect: Dialect, besides: int) -> Iterator[Sequence[K]]:
    """Cut `keys`, each of `width` parameters, into as many as fit into one statement with so many others."""
    # The limit that SQLAlchemy keeps for its bulk inserts: 32,700, and 999 on SQLite before 3.32.
    room = dialect.insertmanyvalues_max_parameters - _OURS - besides
    size = max(1, room // width)
    if width > 1 and not dialect.tuple_in_values:
        size = min(size, _MOST_TUPLES)
    for begin in range(0, len(keys), size):
        yield keys[begin : begin + size]


def _parameters(clause: ClauseElement) -> int:
    binds: list[Any] = [part for part in visitors.iterate(clause) if isinstance(part, BindParameter)]
    return sum(sum(map(_width, bind.value)) if bind.expanding else 1 for bind in binds)


def _width(value: Any) -> int:
    """How many parameters a member of an IN is."""
    return len(value) if isinstance(value, tuple | list) else 1
