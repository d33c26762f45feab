"""The plan: what the relations below a list will ask for, loaded before the list is completed.

When a list is about to be completed, its selection set says which relations its items will be asked for, and the
items know the keys. They are loaded, and what is asked below them as soon as their values are there. Then the list is
completed in one go, and the relations return plain values, without a future or a task for each item.

Nothing waits longer for it, and nothing is asked that would not be asked without it. So a list is completed as if
there were no plan where, at any depth, a field may wait for something of its own, or where something is out of the
ordinary: a key that cannot be found, an awaitable, None or a wrong value where there has to be one. Where that shows
only in what was loaded, the list is completed then, with what is there.
"""

from __future__ import annotations

import inspect
from asyncio import CancelledError, ensure_future, isfuture
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from graphql import (
    FieldNode,
    FragmentSpreadNode,
    GraphQLStreamDirective,
    get_named_type,
    is_abstract_type,
    is_leaf_type,
    is_list_type,
    is_non_null_type,
)
from graphql.execution.values import get_argument_values, get_directive_values
from strawberry.types.arguments import convert_arguments
from strawberry.types.field import StrawberryField

from loader.strawberry._ahead import Ahead
from loader.strawberry._asked import Asked, Attribute, Node, Place, decided_at_once
from loader.strawberry._global_id import global_id_reader
from loader.strawberry._leaves import Leaf
from loader.strawberry._relation import RelationField, as_parameters, seen

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from typing import TypeGuard

    from graphql import GraphQLField, GraphQLNamedType, GraphQLObjectType, GraphQLOutputType
    from graphql.execution.collect_fields import FieldDetailsList
    from graphql.execution.incremental import IncrementalExecutor
    from graphql.pyutils import Path

    from loader.strawberry._asked import Required
    from loader.strawberry._operation import Operation

MOST_LEVELS = 30
"""A deeper list is completed as if there were no plan: all in one go would be too many calls within each other."""

MOST_LOOKED_AT = 1_000
"""So many selections are looked at for one operation, each for all types that it may be of; lists that would take more
are completed as if there were no plan. Where interfaces overlap, their number may grow with the power of the depth, and
it is the client that writes the query; to look at one takes some 7 µs."""

GLOBAL_ID = Place([], [], abstract=False, quiet=True)
"""What a global ID is made of is no value of its type, but whatever the object has."""


class TooMuchError(Exception):
    """The query is too large to be looked through, with all the types that its objects may be of."""


class Plan:
    """The looking ahead of one operation.

    Attributes:
        completing: Whether a list is being completed with everything loaded; what is inside it needs no plan.
    """

    __slots__ = ("_looked_at", "_operation", "_places", "_sizes", "completing")

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        # A query that spreads one fragment in many places has no more places than fields.
        self._places: dict[tuple[Any, ...], Place] = {}
        self._looked_at = 0
        self._sizes: dict[int, int] = {}
        self.completing = False

    def complete(
        self,
        executor: IncrementalExecutor,
        return_type: GraphQLOutputType,
        details: FieldDetailsList,
        path: Path,
        values: Sequence[Any],
        complete: Callable[[], Any],
    ) -> Any:
        """Complete a list with what its relations need already there, where that holds nothing back.

        Args:
            executor: Who completes it.
            return_type: The type of its items.
            details: The field that it is the value of.
            path: Where it is in the response.
            values: Its items.
            complete: Completes it.

        Returns:
            What `complete` returns, or an awaitable of it.
        """
        if not values:
            return complete()
        try:
            place = self._place(executor, return_type, details)
        except Exception:  # noqa: BLE001  # too much, or a directive without its argument, which each object finds out
            return complete()
        if not (place.quiet and place.useful) or place.depth > MOST_LEVELS:
            return complete()
        ahead = Ahead(self._operation, path, partial(self._begin, executor, complete))
        if not ahead.start(values, _required(return_type), place):
            return complete()
        return self._complete_later(ahead) if ahead.waits else self._complete_loaded(complete, ahead.planned)

    async def _complete_later(self, ahead: Ahead) -> Any:
        try:
            await ahead.ended
            return await ahead.completed if isfuture(ahead.completed) else ahead.completed
        except CancelledError:
            ahead.give_up()
            raise

    def _begin(
        self, executor: IncrementalExecutor, complete: Callable[[], Any], planned: dict[Hashable, dict[Any, Any]]
    ) -> Any:
        """Complete a list that was waited for: the list, or a task, which goes on whoever still waits for it."""
        completed = self._complete_loaded(complete, planned)
        if executor.is_awaitable(completed):
            completed = ensure_future(completed)
            completed.add_done_callback(seen)
        return completed

    def _complete_loaded(self, complete: Callable[[], Any], planned: dict[Hashable, dict[Any, Any]]) -> Any:
        # Nothing waits in here, so nobody else sees what is planned.
        self._operation.planned = planned
        self._operation.asked = []
        self.completing = True
        try:
            return self.complete_inside(complete)
        finally:
            self.completing = False
            self._operation.asked = None
            self._operation.planned = {}
            planned.clear()  # an exception among it, once raised, has a traceback, which has all that leads here

    def complete_inside(self, complete: Callable[[], Any]) -> Any:
        """Complete a list of a planned one. If that fails, nobody waits for what its items have asked for."""
        asked = self._operation.asked
        assert asked is not None, "a planned list is being completed"
        before = len(asked)
        try:
            return complete()
        except BaseException:
            for future in asked[before:]:
                future.cancel()
            raise

    # -- looking at the query ----------------------------------------------------------------------------------

    def _place(self, executor: IncrementalExecutor, return_type: GraphQLOutputType, details: FieldDetailsList) -> Place:
        named = get_named_type(return_type)
        asked = [] if is_leaf_type(named) else details  # nothing is asked of scalars, wherever they are
        key = (
            named.name,
            *((id(each.node), id(each.defer_usage), id(each.fragment_variable_values)) for each in asked),
        )
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._look(executor, named, asked)
        return place

    def _look(self, executor: IncrementalExecutor, named: GraphQLNamedType, details: FieldDetailsList) -> Place:
        if is_leaf_type(named):
            return Place([], [], abstract=False, quiet=True, leaf=Leaf(named, executor.complete_leaf_value))
        if _streamed(executor, details):
            return Place(details, [], abstract=False, quiet=False)
        types: list[Any] = executor.schema.get_possible_types(named) if is_abstract_type(named) else [named]
        nodes = [self._node(executor, each, details) for each in types]
        return Place(details, nodes, abstract=is_abstract_type(named), quiet=decided_at_once(named))

    def _node(self, executor: IncrementalExecutor, object_type: GraphQLObjectType, details: FieldDetailsList) -> Node:
        self._looked_at += sum(map(partial(self._size, executor.fragments), (each.node for each in details)))
        if self._looked_at > MOST_LOOKED_AT:
            raise TooMuchError
        node = Node(object_type)
        collected, _, _ = executor.collect_subfields(object_type, details)
        # What is deferred is executed later, on its own, unless it starts at once.
        fields, deferred = executor.build_sub_execution_plan(collected)
        node.quiet = node.quiet and not (deferred and executor.enable_early_execution)
        for response_name, group in fields.items():
            field_name = group[0].node.name.value
            definition = executor.schema.get_field(object_type, field_name)
            if definition is None or field_name.startswith("__"):
                continue
            place = self._place(executor, definition.type, group)
            node.quiet = node.quiet and place.quiet
            field = definition.extensions.get("strawberry-definition")
            required = _required(definition.type)
            if isinstance(field, RelationField) and field.may_be_planned:
                declaration = self._operation.declared(field.declaration)
                # A loader that refuses keys depends on who asks first.
                refuses = "max_pending" in declaration.options
                arguments = None if refuses else self._arguments(executor, field, definition, group)
                if arguments is not None:
                    one_by_one = inspect.isasyncgenfunction(declaration.method)
                    node.fields.append(Asked(response_name, field, arguments, place, required, one_by_one=one_by_one))
                    continue
            elif _is_attribute(field, definition):
                node.fields.append(Attribute(response_name, _reader(field), place, required))
                continue
            elif read := global_id_reader(field, object_type):
                node.fields.append(Attribute(response_name, read, GLOBAL_ID, required))
                continue
            node.quiet = False
        return node

    def _size(self, fragments: Mapping[str, Any], node: Any) -> int:
        """How many selections there are in something, with those of its fragments: each type looks at all of them."""
        if isinstance(node, FragmentSpreadNode):
            node = fragments[node.name.value].definition
        selections = node.selection_set
        size = self._sizes.get(id(selections), 0)
        if selections is not None and not size:
            for each in selections.selections:
                size += 1 if isinstance(each, FieldNode) else 1 + self._size(fragments, each)
            self._sizes[id(selections)] = size
        return size

    def _arguments(
        self, executor: IncrementalExecutor, field: RelationField, definition: GraphQLField, fields: FieldDetailsList
    ) -> dict[str, Any] | None:
        """The arguments of a field as its loader gets them, None if they make no sense, which the field will say."""
        if not definition.args and field.paging is None:
            return {}
        converter = executor.schema.extensions["strawberry-definition"].schema_converter
        try:
            arguments = get_argument_values(
                definition, fields[0].node, executor.variable_values, fields[0].fragment_variable_values
            )
            converted = convert_arguments(
                arguments,
                field.arguments,
                scalar_registry=converter.scalar_registry,
                config=converter.config,
            )
            converted = as_parameters(converted)
            if field.paging is None:
                return converted
            return field.paging.read(
                converted, converter.config, definition.type, lambda named: executor.collect_subfields(named, fields)
            )
        except Exception:  # noqa: BLE001  # the field itself raises it, at its own path
            return None


def _required(graphql_type: Any) -> Required:
    required = is_non_null_type(graphql_type)
    nullable = graphql_type.of_type if required else graphql_type
    return (required, *_required(nullable.of_type)) if is_list_type(nullable) else (required,)


def _is_attribute(field: Any, definition: GraphQLField) -> TypeGuard[StrawberryField]:
    """Whether a field is nothing but an attribute of its object."""
    return (
        isinstance(field, StrawberryField)
        and not isinstance(field, RelationField)
        and type(field).get_result is StrawberryField.get_result
        and field.is_basic_field
        and getattr(definition.resolve, "_is_default", False)
    )


def _reader(field: StrawberryField) -> Callable[[Any], Any]:
    name, resolver = field.python_name, field.default_resolver
    return attrgetter(name) if resolver is getattr else lambda source: resolver(source, name)


def _streamed(executor: IncrementalExecutor, details: FieldDetailsList) -> bool:
    stream = get_directive_values(GraphQLStreamDirective, details[0].node, executor.variable_values)
    return stream is not None and stream.get("if") is not False
