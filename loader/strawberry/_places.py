"""Where in a query a relation asks, as observers are told: `flights.airline`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from loader.observe import Place
from loader.strawberry._several import names_of

if TYPE_CHECKING:
    from graphql import FieldNode, GraphQLResolveInfo

    from loader.strawberry._several import Names

_places: dict[int, tuple[ref[FieldNode], Place]] = {}
"""By the id of a node, as long as there is that node: it has the whole document, whose size the client decides."""


def place_in_query(names: Names) -> Place:
    """The place with this path, which has no positions in lists."""
    return Place("", 0, ".".join(names))


def place_of_field(info: Any) -> Place:
    """The place of a field that is being resolved.

    To walk up its path costs as much as to load a key. It is done once for each field of the query; but what is
    written in a fragment may be in several places.

    Args:
        info: What GraphQL, or Strawberry, says of the field.
    """
    raw: GraphQLResolveInfo[Any] = getattr(info, "_raw_info", info)
    node = raw.field_nodes[0]
    known = _places.get(id(node))
    if known is not None and known[0]() is node:
        return known[1]
    place = place_in_query(names_of(raw.path))
    whole, part = raw.operation.loc, node.loc
    if whole and part and whole.source is part.source and whole.start <= part.start < whole.end:
        _places[id(node)] = ref(node, partial(_forget, id(node))), place
    return place


def _forget(of_node: int, _: ref[FieldNode]) -> None:
    del _places[of_node]
