"""What is selected: the columns that a model or a table gives, and how a result becomes its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, final

from sqlalchemy import Column, Table, inspect, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, Mapper
from sqlalchemy.orm.exc import UnmappedColumnError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import ColumnElement, ColumnExpressionArgument, Dialect, Result, Select

    from loader.sqlalchemy._execution import Source

OneColumn: TypeAlias = str | Column[Any] | InstrumentedAttribute[Any]
Columns: TypeAlias = "OneColumn | Sequence[OneColumn]"
OrderBy: TypeAlias = "str | ColumnExpressionArgument[Any] | Sequence[str | ColumnExpressionArgument[Any]]"


@final
class Target:
    """A model or table, as a session or connection gives its rows, and the key that they are wanted by.

    A session gives the instances of a model. All else gives `Row` objects, with the columns that SQLAlchemy would
    select for the table or model, under their names in the database.
    """

    def __init__(self, function: str, source: Source, entity: Any, column: Columns) -> None:
        if not isinstance(source, AsyncSession | AsyncConnection):
            raise TypeError(f"{function}() needs an open AsyncSession or AsyncConnection, not {source!r}")
        inspected = inspect(entity, raiseerr=False) if isinstance(entity, type) else entity
        if not isinstance(inspected, Mapper | Table):
            raise TypeError(f"{function}() needs a mapped class or a Table, not {entity!r}")
        self.entity = entity
        self._inspected = inspected
        self.instances = False
        if isinstance(inspected, Table):
            self.name = inspected.name
            self._columns: dict[str, Any] = dict(inspected.columns.items())
        else:
            self.name = entity.__name__
            # What decides on the class of a row may be a column that the class has no attribute for.
            its_own = (part.key for part in inspected.column_attrs if hasattr(entity, part.key))
            self._columns = {name: getattr(entity, name) for name in its_own}
            self.instances = isinstance(source, AsyncSession)
        self._composite = isinstance(column, list | tuple)
        parts: Any = column if self._composite else [column]
        names = [self._name(part) for part in parts]
        if not names:
            raise ValueError(f"{function}() needs at least one column of {self.name} as the key")
        self.who = f"{function}({self.name}.{'+'.join(names)})"
        self.key = tuple(self._columns[name] for name in names)
        self.primary_key = tuple(self._columns[self._name(part)] for part in inspected.primary_key)
        self.dialect = _dialect(source, inspected)

    def _name(self, wanted: Any) -> str:
        """The name of the column that a name, a `Column` or an attribute means here."""
        if not isinstance(wanted, str | Column | InstrumentedAttribute):
            raise TypeError(f"a column of {self.name} is an attribute, a Column or a name, not {wanted!r}")
        name: str | None = None
        if isinstance(wanted, str):
            name = wanted
        elif isinstance(self._inspected, Table):
            name = wanted.key if getattr(wanted, "table", None) is self._inspected else None
        elif isinstance(wanted, Column):
            name = _attribute(self._inspected, wanted)
        elif isinstance(wanted.parent, Mapper) and self._inspected.isa(wanted.parent):
            name = wanted.key
        if name is None or name not in self._columns:
            raise ValueError(f"{self.name} has no column {str(wanted)!r}, only {', '.join(self._columns)}")
        return name

    def order(self, order_by: OrderBy | None) -> list[ColumnElement[Any]]:
        """`order_by` with its names resolved and the primary key behind it: no two rows are equal.

        Raises:
            ValueError: If there is no primary key, and so no order that could be relied on.
        """
        if not self.primary_key:
            raise ValueError(f"{self.who} puts rows in order, which takes a primary key: {self.name} has none")
        given: Any = () if order_by is None else order_by
        parts = given if isinstance(given, list | tuple) else [given]
        ordered = [self._columns[self._name(part)] if isinstance(part, str) else part for part in parts]
        return [*ordered, *self.primary_key]

    def keys(self, keys: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """Each of `keys` once, in order; and those of them without a NULL, which nothing equals."""
        if isinstance(keys, str | bytes):
            raise TypeError(f"{self.who} takes a collection of keys, not the string {keys!r}")
        given = list(keys)
        if not self._composite:
            asked = list(dict.fromkeys(given))
            return asked, [key for key in asked if key is not None]
        width = len(self.key)
        for key in given:
            if not isinstance(key, tuple):
                raise TypeError(f"{self.who} takes tuples of {width} as keys, not {key!r}")
            if len(key) != width:
                raise ValueError(f"{self.who} takes tuples of {width} as keys, not of {len(key)}: {key!r}")
        asked = list(dict.fromkeys(given))
        return asked, [key for key in asked if not any(part is None for part in key)]

    def matches(self, keys: Sequence[Any]) -> ColumnElement[bool]:
        """The criterion for the rows of `keys`."""
        return tuple_(*self.key).in_(keys) if self._composite else self.key[0].in_(keys)

    def select(self, *extras: ColumnElement[Any]) -> Select[Any]:
        """The beginning of a statement whose result `records` takes apart."""
        rows = [self.entity] if self.instances else self._columns.values()
        key = (column.label(f"loader_key_{number}") for number, column in enumerate(self.key))
        statement: Any = select(*rows, *key, *extras)
        return statement.select_from(self.entity)  # type: ignore[no-any-return]  # how many columns, nobody can type

    def records(self, result: Result[Any]) -> list[tuple[Any, Any, Sequence[Any]]]:
        """The row, the key and the extras of each row of a result."""
        if self.instances:
            # Collections that are joined to their owner repeat it; SQLAlchemy insists on being told to unite it.
            found: Iterable[Any] = [(row[0], row[1:]) for row in result.unique()]
        else:
            width, size = len(self._columns), len(result.keys())
            frozen = result.freeze()
            rows: Iterable[Any] = frozen().columns(*range(width))
            besides: Iterable[Any] = frozen().columns(*range(width, size))
            found = zip(rows, besides, strict=True)
        width = len(self.key)
        if self._composite:
            return [(row, tuple(beside[:width]), beside[width:]) for row, beside in found]
        return [(row, beside[0], beside[1:]) for row, beside in found]


def _attribute(mapper: Mapper[Any], column: Column[Any]) -> str | None:
    try:
        return mapper.get_property_by_column(column).key
    except UnmappedColumnError:
        return None


def _dialect(source: Source, inspected: Mapper[Any] | Table) -> Dialect:
    if isinstance(source, AsyncConnection):
        return source.dialect
    if isinstance(inspected, Table):
        return source.get_bind(clause=inspected).dialect
    return source.get_bind(inspected).dialect
