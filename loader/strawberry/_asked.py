"""What a query asks for: its places, and below each the relations and attributes of the objects there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphql import GraphQLNamedType, GraphQLObjectType
    from graphql.execution.collect_fields import FieldDetailsList

    from loader.strawberry._leaves import Leaf
    from loader.strawberry._relation import RelationField

    Required = tuple[bool, ...]
    """Whether a value of a type may be None; for a list, then the same of its items, and so on."""


class Asked:
    """A relation that a query asks for.

    Attributes:
        name: What the query calls it.
        relation: The relation.
        arguments: Its arguments, as its loader gets them.
        place: What is asked of its values.
        required: Whether its value may be None.
        one_by_one: Whether the batch function is an async generator: the keys of a batch are not answered together.
    """

    __slots__ = ("arguments", "name", "one_by_one", "place", "relation", "required")

    def __init__(
        self,
        name: str,
        relation: RelationField,
        arguments: dict[str, Any],
        place: Place,
        required: Required,
        *,
        one_by_one: bool,
    ) -> None:
        self.name = name
        self.relation = relation
        self.arguments = arguments
        self.place = place
        self.required = required
        self.one_by_one = one_by_one


class Attribute:
    """A plain attribute that a query asks for.

    Attributes:
        name: What the query calls it.
        read: Reads it.
        place: What is asked of its values.
        required: Whether its value may be None.
    """

    __slots__ = ("name", "place", "read", "required")

    def __init__(self, name: str, read: Callable[[Any], Any], place: Place, required: Required) -> None:
        self.name = name
        self.read = read
        self.place = place
        self.required = required


class Node:
    """What is asked of objects of one type at one place of a query.

    Attributes:
        type: The type.
        fields: What is asked for, in the order of the query.
        quiet: Whether no field here or below may wait for anything but relations.
    """

    __slots__ = ("fields", "quiet", "type")

    def __init__(self, object_type: GraphQLObjectType) -> None:
        self.type = object_type
        self.fields: list[Asked | Attribute] = []
        self.quiet = decided_at_once(object_type)


class Place:
    """A field of a query: what is asked of its values, which are of one type, or of several where it is abstract.

    Attributes:
        details: The field. It is kept since its identity stands for the place.
        nodes: What is asked of objects, by the identity of their type's definition; none for scalars.
        only: The node, if the type is not abstract.
        leaf: The scalar or enum, if its values are those as the object has them.
        quiet: Whether no field below may wait for anything but relations.
        useful: Whether there is a relation to load before any other.
        depth: How many levels there are.
    """

    __slots__ = ("depth", "details", "leaf", "nodes", "only", "quiet", "useful")

    def __init__(
        self, details: FieldDetailsList, nodes: list[Node], *, abstract: bool, quiet: bool, leaf: Leaf | None = None
    ) -> None:
        self.details = details
        self.leaf = leaf
        self.nodes = {id(node.type.extensions.get("strawberry-definition")): node for node in nodes}
        self.only = None if abstract or not nodes else nodes[0]
        self.quiet = quiet and all(node.quiet for node in nodes)
        self.depth: int = 1 + max((field.place.depth for node in nodes for field in node.fields), default=0)
        self.useful: bool = any(
            isinstance(field, Asked) or field.place.useful for node in nodes for field in node.fields
        )


def decided_at_once(graphql_type: GraphQLNamedType) -> bool:
    """Whether what type a value is of is decided by Strawberry, which does not wait for anything."""
    definition = graphql_type.extensions.get("strawberry-definition")
    return (
        definition is not None
        and getattr(definition, "is_type_of", None) is None
        and getattr(definition, "resolve_type", None) is None
    )
