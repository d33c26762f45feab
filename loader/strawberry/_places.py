"""Where in a query a relation asks, as observers are told: `flights.airline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loader.observe import Place
from loader.strawberry._several import names_of

if TYPE_CHECKING:
    from graphql import FieldNode, GraphQLResolveInfo

    from loader.strawberry._several import Names

MOST_PLACES = 10_000

_places: dict[int, tuple[FieldNode, Place]] = {}  # by the id of a node, which is kept so that the id stays its own


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
    if known is not None:
        return known[1]
    place = place_in_query(names_of(raw.path))
    whole, part = raw.operation.loc, node.loc
    if whole and part and whole.source is part.source and whole.start <= part.start < whole.end:
        if len(_places) >= MOST_PLACES:
            _places.clear()
        _places[id(node)] = node, place
    return place
