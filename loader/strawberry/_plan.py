"""The plan: what the relations below a list will ask for, loaded before the list is completed.

When a list is about to be completed, its selection set says which relations its items will be asked
for, and their keys are known. They are loaded, level by level, with one question for each relation. Then the list is
completed in one go, and the relations return plain values, without a future or a task for each item.

Nothing waits longer for it. A list whose fields, at any depth, include one that may wait for something of its own is
not held back: its first level is asked for, so that it makes one batch, and everything goes on as without a plan.
Every relation is followed as soon as its values are there, not when the whole level is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from graphql import (
    GraphQLStreamDirective,
    get_named_type,
    is_abstract_type,
    is_composite_type,
)
from graphql.execution.values import get_argument_values
from strawberry.types.arguments import convert_arguments
from strawberry.types.field import StrawberryField

from loader.strawberry._relation import RelationField, asks_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphql import GraphQLNamedType, GraphQLObjectType, GraphQLOutputType
    from graphql.execution import Executor
    from graphql.execution.collect_fields import FieldDetailsList

    from loader.strawberry._operation import Operation


_NO_OBJECTS = (list, tuple, BaseException)

Question = tuple[RelationField, dict[str, Any], "Place", list[Any]]
"""A relation with its arguments, the place below it, and the keys to load."""


class Node:
    """What is asked of objects of one type at one place of a query.

    Attributes:
        relations: The relations asked for, each with its arguments and the place below it.
        attributes: The plain attributes that hold objects, each with the place below it.
        quiet: Whether no field here or below may wait for anything but relations.
    """

    __slots__ = ("attributes", "quiet", "relations")

    def __init__(self) -> None:
        self.relations: list[tuple[RelationField, dict[str, Any], Place]] = []
        self.attributes: list[tuple[StrawberryField, Place]] = []
        self.quiet = True


class Place:
    """A field of a query whose values are objects: of one type, or of several where it is abstract.

    Attributes:
        type: The type.
        details: The field.
        nodes: What is asked of the objects, by the name of their type.
        only: The node, if the type is not abstract.
    """

    __slots__ = ("details", "nodes", "only", "type")

    def __init__(self, named_type: GraphQLNamedType, details: FieldDetailsList) -> None:
        self.type: Any = named_type
        self.details = details
        self.nodes: dict[str, Node] = {}
        self.only: Node | None = None

    @property
    def useful(self) -> bool:
        """Whether there is a relation to load, here or below."""
        return any(node.relations or any(place.useful for _, place in node.attributes) for node in self.nodes.values())

    @property
    def quiet(self) -> bool:
        """Whether no field here or below may wait for anything but relations."""
        return all(node.quiet for node in self.nodes.values())

    def node_of(self, value: Any) -> Node | None:
        """The node of a value's type, None if the type is not known before it is resolved."""
        definition = getattr(type(value), "__strawberry_definition__", None)
        return None if definition is None else self.nodes.get(definition.name)


class Plan:
    """The looking ahead of one operation.

    Attributes:
        completing: Whether a list is being completed with everything loaded; what is inside it needs no plan.
    """

    __slots__ = ("_executor", "_operation", "_places", "completing")

    def __init__(self, executor: Executor[Any], operation: Operation) -> None:
        self._executor = executor
        self._operation = operation
        # Keyed by type and by the identity of the field details, which the executor keeps alive as well.
        self._places: dict[tuple[str, int], Place | None] = {}
        self.completing = False

    def complete(
        self,
        return_type: GraphQLOutputType,
        details: FieldDetailsList,
        values: Sequence[Any],
        complete: Callable[[], Any],
    ) -> Any:
        """Complete a list with what its relations need already there, where that holds nothing back.

        Args:
            return_type: Its type.
            details: The field that it is the value of.
            values: Its items.
            complete: Completes it.

        Returns:
            What `complete` returns, or an awaitable of it.
        """
        place = self._place(return_type, details)
        if place is None:
            return complete()
        questions = self._questions(place, values)
        if not questions:
            return complete()
        if place.quiet:
            return self._complete_loaded(questions, complete)
        for relation, arguments, _, keys in questions:
            self._ask(relation, arguments, keys)
        return complete()

    async def _complete_loaded(self, questions: list[Question], complete: Callable[[], Any]) -> Any:
        planned: dict[Any, dict[Any, Any]] = {}
        await self._load(questions, planned)
        # From here on nothing waits, so nobody else sees what is planned.
        self._operation.planned = planned
        self.completing = True
        try:
            completed = complete()
        finally:
            self.completing = False
            self._operation.planned = {}
        return await completed if self._executor.is_awaitable(completed) else completed

    async def _load(self, questions: list[Question], planned: dict[Any, dict[Any, Any]]) -> None:
        """Load what the questions ask for, and what is asked below, each as soon as it can be."""
        waits = [
            self._follow(asked, relation, arguments, place, keys, planned)
            for relation, arguments, place, keys in questions
            if (asked := self._ask(relation, arguments, keys)) is not None
        ]
        if len(waits) == 1:
            await waits[0]
        elif waits:
            await asyncio.gather(*waits)

    async def _follow(
        self,
        asked: asyncio.Future[list[Any]],
        relation: RelationField,
        arguments: dict[str, Any],
        place: Place,
        keys: list[Any],
        planned: dict[Any, dict[Any, Any]],
    ) -> None:
        outcomes = await asked
        planned.setdefault(relation.planned_as(arguments), {}).update(zip(keys, outcomes, strict=True))
        if place.useful:
            await self._load(self._questions(place, outcomes), planned)

    def _ask(
        self, relation: RelationField, arguments: dict[str, Any], keys: list[Any]
    ) -> asyncio.Future[list[Any]] | None:
        """A future of the outcomes of keys, None if they cannot be asked for: then each field finds out why."""
        try:
            loader = self._operation.loader(relation.declaration, relation.parameters(arguments))
            return loader.load_many(keys, return_exceptions=True)
        except Exception:  # noqa: BLE001  # whatever it is, the field that asks without a plan raises it
            return None

    # -- looking ahead -----------------------------------------------------------------------------------------

    def _questions(self, place: Place, values: Sequence[Any]) -> list[Question]:
        """What the relations of some values ask for, down through plain attributes: the keys, each once."""
        found: dict[tuple[int, int], tuple[RelationField, dict[str, Any], Place, dict[Any, None]]] = {}
        self._collect(place, values, found)
        questions = []
        for relation, arguments, below, found_keys in found.values():
            keys = [key for key in found_keys if not asks_nothing(key)]
            if keys:
                questions.append((relation, arguments, below, keys))
        return questions

    def _collect(self, place: Place, values: Sequence[Any], found: dict[Any, Any]) -> None:
        by_node: dict[Node, list[Any]] = {}
        objects = [value for value in values if value is not None and not isinstance(value, _NO_OBJECTS)]
        if len(objects) != len(values):
            for value in values:
                if isinstance(value, list | tuple):
                    self._collect(place, value, found)
        if place.only is not None:
            by_node[place.only] = objects
        else:
            for value in objects:
                node = place.node_of(value)
                if node is not None:
                    by_node.setdefault(node, []).append(value)
        for node, objects in by_node.items():
            for relation, arguments, below in node.relations:
                keys = found.setdefault((relation, below), (relation, arguments, below, {}))[3]
                find_key = relation.find_key
                for source in objects:
                    try:
                        keys[find_key(source)] = None
                    except Exception:  # noqa: BLE001, S112  # the field itself raises it, at its own path
                        continue
            for attribute, below in node.attributes:
                self._collect(below, self._attribute_values(attribute, objects), found)

    def _attribute_values(self, attribute: StrawberryField, objects: list[Any]) -> list[Any]:
        values = []
        for source in objects:
            try:
                values.append(attribute.default_resolver(source, attribute.python_name))
            except Exception:  # noqa: BLE001, S112  # the field itself raises it, at its own path
                continue
        return values

    def _place(self, return_type: GraphQLOutputType, details: FieldDetailsList) -> Place | None:
        """What is asked for below a field, None if there is no relation in it or it is streamed."""
        named = get_named_type(return_type)
        key = (named.name, id(details))
        if key not in self._places:
            place = None
            if is_composite_type(named) and not _streamed(details):
                place = self._looked_at(Place(named, details))
            self._places[key] = place if place is not None and place.useful else None
        return self._places[key]

    def _looked_at(self, place: Place) -> Place:
        schema = self._executor.schema
        types = schema.get_possible_types(place.type) if is_abstract_type(place.type) else [place.type]
        for object_type in types:
            place.nodes[object_type.name] = self._node(object_type, place.details)
        if not is_abstract_type(place.type):
            place.only = place.nodes[place.type.name]
        return place

    def _node(self, object_type: GraphQLObjectType, details: FieldDetailsList) -> Node:
        node = Node()
        grouped, _, _ = self._executor.collect_subfields(object_type, details)
        for fields in grouped.values():
            if all(each.defer_usage is not None for each in fields):
                continue  # executed later, on its own
            definition = self._executor.schema.get_field(object_type, fields[0].node.name.value)
            if definition is None or fields[0].node.name.value.startswith("__"):
                continue
            field = definition.extensions.get("strawberry-definition")
            named = get_named_type(definition.type)
            below = Place(named, fields)
            if is_composite_type(named):
                if _streamed(fields):
                    node.quiet = False
                    continue
                self._looked_at(below)
                node.quiet = node.quiet and below.quiet
            if isinstance(field, RelationField) and field.may_be_planned:
                arguments = self._arguments(field, definition, fields)
                if arguments is not None:
                    node.relations.append((field, arguments, below))
            elif not isinstance(field, StrawberryField) or not field.is_basic_field:
                node.quiet = False
            elif below.nodes:
                node.attributes.append((field, below))
        return node

    def _arguments(self, field: RelationField, definition: Any, fields: FieldDetailsList) -> dict[str, Any] | None:
        """The arguments of a field as its loader gets them, None if they make no sense, which the field will say."""
        if not definition.args:
            return {}
        converter = self._executor.schema.extensions["strawberry-definition"].schema_converter
        try:
            arguments = get_argument_values(
                definition, fields[0].node, self._executor.variable_values, fields[0].fragment_variable_values
            )
            return convert_arguments(
                arguments,
                field.arguments,
                scalar_registry=converter.scalar_registry,
                config=converter.config,
                info=None,
            )
        except Exception:  # noqa: BLE001  # the field itself raises it, at its own path
            return None


def _streamed(details: FieldDetailsList) -> bool:
    return any(
        directive.name.value == GraphQLStreamDirective.name
        for each in details
        for directive in each.node.directives or ()
    )
