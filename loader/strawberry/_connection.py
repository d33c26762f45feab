"""Relations to Relay connections: from the arguments of a field to a page of each key, and from that to its edges.

A loader that takes `first` and `after` is asked for a page per key, as `loader.sqlalchemy.grouped_pages` gives it. One
that takes neither is asked for each key's whole list, which is cut here. Cursors are those of Strawberry's own
connections: a position in the list, in base64.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from graphql import get_named_type
from graphql.execution.collect_fields import FieldDetails, FragmentDetails, collect_subfields
from graphql.execution.values import VariableValues
from strawberry import relay
from strawberry.annotation import StrawberryAnnotation
from strawberry.relay.utils import from_base64
from strawberry.types.arguments import StrawberryArgument
from strawberry.types.base import StrawberryContainer, StrawberryList, StrawberryOptional, get_object_definition
from strawberry.types.lazy_type import LazyType

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Mapping, Sequence

    from graphql import GraphQLObjectType, GraphQLOutputType
    from graphql.execution.collect_fields import CollectedFields
    from strawberry.schema.config import StrawberryConfig
    from strawberry.types import Info

    from loader import Declaration

    Collect = Callable[[GraphQLObjectType], CollectedFields]
    """What a query selects of a field's value, given the type of that."""

BOUNDS: dict[str, tuple[Any, str]] = {
    "before": (str | None, "Returns the items in the list that come before the specified cursor."),
    "after": (str | None, "Returns the items in the list that come after the specified cursor."),
    "first": (int | None, "Returns the first n items from the list."),
    "last": (int | None, "Returns the last n items from the list."),
}
"""The arguments of a connection, with their types and descriptions."""

COUNT = "total_count"
"""The field of a connection's type that gets the length of the whole list."""

ANY_DIGITS = 19  # as many as the largest position that a database counts to


@runtime_checkable
class Page(Protocol):
    """What a loader that takes `first` and `after` gives for each key, such as a `loader.sqlalchemy.Page`."""

    @property
    def rows(self) -> Sequence[Any]:
        """The nodes, in order."""
        ...

    @property
    def offset(self) -> int:
        """The position of the first one in the key's list, from 0."""
        ...

    @property
    def has_previous(self) -> bool:
        """Whether there is anything before them."""
        ...

    @property
    def has_next(self) -> bool:
        """Whether there is anything after them."""
        ...

    @property
    def total(self) -> int | None:
        """The length of the list, if it was counted."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """A page of a list that is there as a whole."""

    rows: Sequence[Any]
    offset: int
    has_previous: bool
    has_next: bool
    total: int

    @classmethod
    def of(
        cls, rows: Sequence[Any], *, before: int | None, after: int | None, first: int | None, last: int | None
    ) -> Cut:
        """What the Relay specification says that these arguments leave."""
        size = len(rows)
        start = 0 if after is None else after + 1
        stop = min(end for end in (size, before, None if first is None else start + first) if end is not None)
        if last is not None:
            start = max(start, stop - last)
        return cls(
            rows[start:stop],
            offset=start,
            has_previous=start > 0 and size > 0,
            has_next=max(start, stop) < size,
            total=size,
        )


class Paging:
    """How the values of a relation become connections.

    Attributes:
        needs_info: Whether the type of the connection says what each node is, for which it wants an `Info`.
    """

    def __init__(
        self,
        connection: type[Any],
        declaration: Declaration[Any, Any, Any],
        fixed: Mapping[str, Any],
        *,
        nullable: bool,
        max_results: int | None,
    ) -> None:
        self._connection = connection
        self._edge = _edge_of(connection)
        self._loader_name = f"{declaration.owner.__name__}.{declaration.name}"
        self._nullable = nullable
        self._max_results = max_results
        its_own: Any = connection.resolve_node
        plain: Any = relay.Connection.resolve_node
        self.needs_info = its_own.__func__ is not plain.__func__
        self._has_count = self._look_at_fields()
        parameters = {parameter.name: parameter for parameter in declaration.parameters}
        taken = parameters.keys() & BOUNDS.keys()
        if taken and not {"first", "after"} <= taken:
            raise TypeError(
                f"a relation to {connection.__name__}: the loader {self._loader_name} takes {sorted(taken)}; it must "
                "take first and after, or none of the four arguments of a connection and give whole lists"
            )
        self._gives_pages = bool(taken)
        self._bounds = [name for name in BOUNDS if name in (taken or BOUNDS) and name not in fixed]
        total = parameters.get("total")
        self._can_count = total is not None and total.annotation in (bool, "bool") and "total" not in fixed
        size = parameters["first"].default if taken else None
        self._page_size = size if type(size) is int else None
        self._limited = any(fixed.get(name) is not None for name in ("first", "last"))

    def _look_at_fields(self) -> bool:
        """Whether there is a field for the total count; that the others need no value."""
        has_count = False
        for field in dataclasses.fields(self._connection):
            if field.name == COUNT:
                has_count = field.init
            elif (
                field.init
                and field.name not in {"edges", "page_info"}
                and field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            ):
                raise TypeError(
                    f"a relation to {self._connection.__name__} cannot know its field {field.name!r}: "
                    "give it a default or a resolver"
                )
        return has_count

    # -- from the field's arguments to the loader's ------------------------------------------------------------

    def arguments(self, arguments: list[StrawberryArgument]) -> list[StrawberryArgument]:
        """The arguments of the field, given those that the loader's parameters would make."""
        hidden = {*BOUNDS, "total"} if self._can_count else BOUNDS.keys()
        others = [argument for argument in arguments if argument.python_name not in hidden]
        return others + [
            StrawberryArgument(
                python_name=name,
                graphql_name=None,
                type_annotation=StrawberryAnnotation(BOUNDS[name][0]),
                description=BOUNDS[name][1],
                default=None,
            )
            for name in self._bounds
        ]

    def read(
        self, arguments: dict[str, Any], config: StrawberryConfig, graphql_type: GraphQLOutputType, collect: Collect
    ) -> dict[str, Any]:
        """The arguments with cursors as positions, never without a limit, and with whether to count the list.

        Raises:
            ValueError: If a cursor is none, or a number is negative or too large.
        """
        most = config.relay_max_results if self._max_results is None else self._max_results
        read = {name: value for name, value in arguments.items() if name not in BOUNDS}
        for name in self._bounds:
            value = arguments.get(name)
            read[name] = self._position(name, value) if BOUNDS[name][0] == (str | None) else _count(name, value, most)
        if not self._limited and "first" in self._bounds and read["first"] is None and read.get("last") is None:
            read["first"] = most if self._page_size is None else min(self._page_size, most)
        if self._can_count:
            read["total"] = self._has_count and _selects_count(get_named_type(graphql_type), collect)
        return read

    def read_at(self, info: Info[Any, Any], arguments: dict[str, Any]) -> dict[str, Any]:
        """The same for a field that is being resolved."""
        raw = info._raw_info

        def collect(object_type: GraphQLObjectType) -> CollectedFields:
            fragments = {name: FragmentDetails(fragment) for name, fragment in raw.fragments.items()}
            details = [FieldDetails(node, None) for node in raw.field_nodes]
            variables = VariableValues({}, info.variable_values)
            return collect_subfields(raw.schema, fragments, variables, raw.operation, object_type, details)

        return self.read(arguments, info.schema.config, raw.return_type, collect)

    def parameters(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The parameters that the loader gets of `arguments`, which have been read."""
        if self._gives_pages:
            return arguments
        return {name: value for name, value in arguments.items() if name not in BOUNDS}

    def _position(self, name: str, cursor: str | None) -> int | None:
        if not cursor:
            return None  # as Strawberry's own connections take an empty one
        try:
            prefix, position = from_base64(cursor)
        except ValueError:
            prefix = position = ""
        if (
            prefix != self._edge.CURSOR_PREFIX
            or not (position.isascii() and position.isdecimal())
            or len(position) > ANY_DIGITS
        ):
            raise ValueError(f"Argument '{name}' contains a non-existing value.")
        return int(position)

    # -- from what the loader gives to a connection ------------------------------------------------------------

    async def later(self, value: Future[Any], arguments: dict[str, Any], info: Any) -> Any:
        """The connection that a value will be."""
        return self.connection(await value, arguments, info)

    def connections(self, values: Sequence[Any], arguments: dict[str, Any]) -> list[Any]:
        """The connections that values are, without an `Info`, or the exceptions that come in their place."""
        return [value if isinstance(value, Exception) else self._or_error(value, arguments) for value in values]

    def _or_error(self, value: Any, arguments: dict[str, Any]) -> Any:
        try:
            return self.connection(value, arguments)
        except Exception as error:  # noqa: BLE001  # the field that asked for it raises it
            return error

    def connection(self, value: Any, arguments: dict[str, Any], info: Any = None) -> Any:
        """The connection that a value of the loader is; for None, an empty one unless the field may be null.

        Raises:
            TypeError: If the value is no page, or no list.
        """
        if value is None:
            return None if self._nullable else self._make(Cut((), 0, has_previous=False, has_next=False, total=0), info)
        if self._gives_pages:
            if not isinstance(value, Page):
                raise TypeError(
                    f"the loader {self._loader_name} takes first and after, so it must give a page for each key, as "
                    f"loader.sqlalchemy.grouped_pages does, not {_short(value)}"
                )
            return self._make(value, info)
        if not isinstance(value, list | tuple):
            raise TypeError(
                f"the loader {self._loader_name} must give a list for each key, or take first and after and give a "
                f"page, since a relation makes a connection of it; it gave {_short(value)}"
            )
        return self._make(Cut.of(value, **{name: arguments[name] for name in BOUNDS}), info)

    def _make(self, page: Page, info: Any) -> Any:
        nodes = page.rows
        if self.needs_info:
            nodes = [self._connection.resolve_node(node, info=info) for node in nodes]
        resolve_edge = self._edge.resolve_edge
        edges = [resolve_edge(node, cursor=position) for position, node in enumerate(nodes, page.offset)]
        return self._connection(
            edges=edges,
            page_info=relay.PageInfo(
                has_next_page=page.has_next,
                has_previous_page=page.has_previous,
                start_cursor=edges[0].cursor if edges else None,
                end_cursor=edges[-1].cursor if edges else None,
            ),
            **({COUNT: page.total} if self._has_count else {}),
        )


def paging_of(
    field_type: Any, declaration: Declaration[Any, Any, Any], fixed: Mapping[str, Any], max_results: int | None
) -> Paging | None:
    """How a relation of this type becomes connections, None if it does not.

    Raises:
        TypeError: If the loader takes some of a connection's arguments only, or the type has a field that nobody
            gives a value, or there is a `max_results` without a connection.
    """
    nullable = False
    while isinstance(field_type, LazyType | StrawberryOptional):
        if isinstance(field_type, LazyType):
            field_type = field_type.resolve_type()
        else:
            nullable, field_type = True, field_type.of_type
    if isinstance(field_type, type) and issubclass(field_type, relay.Connection):
        return Paging(field_type, declaration, fixed, nullable=nullable, max_results=max_results)
    if isinstance(field_type, StrawberryList):
        item = field_type.of_type
        if isinstance(item, type) and issubclass(item, relay.Connection):
            raise TypeError(f"a relation is to one connection, not to a list of them: {declaration.name}")
    if max_results is not None:
        raise TypeError(f"relation(max_results=) is for connections; {declaration.name} is asked for something else")
    return None


def _edge_of(connection: type[Any]) -> Any:
    definition = get_object_definition(connection, strict=True)
    field = definition.get_field("edges")
    assert field is not None, "every subclass of Connection has it"
    edge: Any = field.resolve_type(type_definition=definition)
    while isinstance(edge, StrawberryContainer):
        edge = edge.of_type
    return edge


def _count(name: str, value: int | None, most: int) -> int | None:
    if value is not None and value < 0:
        raise ValueError(f"Argument '{name}' must be a non-negative integer.")
    if value is not None and value > most:
        raise ValueError(f"Argument '{name}' cannot be higher than {most}.")
    return value


def _selects_count(connection: Any, collect: Collect) -> bool:
    for group in collect(connection).grouped_field_set.values():
        definition = connection.fields.get(group[0].node.name.value)
        field = definition and definition.extensions.get("strawberry-definition")
        if field and field.python_name == COUNT:
            return True
    return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
