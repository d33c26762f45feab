"""The `id` of a Relay node, which is an attribute in all but name."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from strawberry import relay
from strawberry.types.base import get_object_definition

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphql import GraphQLObjectType


def global_id_reader(field: Any, object_type: GraphQLObjectType) -> Callable[[Any], Any] | None:
    """How to read what a node's global ID is made of, if `field` is that and the node's type leaves it as it is.

    Its resolver may wait, as far as one can tell from its type, but what Strawberry wrote reads an attribute.
    """
    if field is None or field.extensions or _function(getattr(field.base_resolver, "wrapped_func", None)) is not _ID:
        return None
    node = object_type.extensions["strawberry-definition"].origin
    for name in ("resolve_id", "resolve_typename"):
        if _function(getattr(node, name, None)) is not _function(getattr(relay.Node, name)):
            return None
    return attrgetter(node.resolve_id_attr())


def _function(method: Any) -> Any:
    return getattr(method, "__func__", None)


_definition: Any = get_object_definition(relay.Node, strict=True).get_field("_id")
_ID = _function(_definition.base_resolver.wrapped_func)
