"""The keys that are asked for, given some values and what a query asks of them."""

from __future__ import annotations

from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any

from strawberry.types.cast import get_strawberry_type_cast

from loader.strawberry._asked import Attribute

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from loader.strawberry._asked import Asked, Node, Place, Required

    Names = tuple[str, ...]
    """Where in a list's items something is asked: the names that lead there."""

NO_INFO: Any = None  # Strawberry's own `is_type_of`, which alone is called here, looks at the object only
LISTS = (list, tuple, set, frozenset)  # some other iterable may be used up by looking at it


class UnfitError(Exception):
    """Something here may fail or wait for something of its own: the executor has to come upon it by itself."""


def collect(
    values: Sequence[Any],
    required: Required,
    place: Place,
    names: Names,
    found: dict[tuple[Asked, Names], dict[Any, None]],
) -> None:
    """Put the keys that are asked for, each once, into `found`."""
    kinds = set(map(type, values))
    if _check(kinds, required):
        values = [value for value in values if value is not None and not isinstance(value, BaseException)]
        kinds = set(map(type, values))
    if len(required) > 1:
        if not all(issubclass(kind, LISTS) for kind in kinds):
            raise UnfitError
        collect([each for value in values for each in value], required[1:], place, names, found)
        return
    if place.leaf is not None and required[0]:
        place.leaf.check(values, kinds)
    for node, objects in _sorted(place, values, kinds):
        for field in node.fields:
            if isinstance(field, Attribute):
                held = list(map(field.read, objects))
                collect(held, field.required, field.place, (*names, field.name), found)
            else:
                keys = found.setdefault((field, (*names, field.name)), {})
                keys.update(dict.fromkeys(_keys(field, objects)))


def in_order(
    values: Iterable[Any],
    required: Required,
    place: Place,
    names: Names,
    known: Mapping[tuple[Asked, Names, Any], Any],
) -> Iterator[tuple[Asked, Names, Any]]:
    """The keys as resolvers would ask for them, object by object: of values that `collect` has looked at."""
    for value in values:
        if value is None or isinstance(value, BaseException):
            continue
        if len(required) > 1:
            yield from in_order(value, required[1:], place, names, known)
            continue
        node = place.only or place.nodes[getattr(value, "__strawberry_definition__", NO_INFO).name]
        for field in node.fields:
            below = (*names, field.name)
            if isinstance(field, Attribute):
                if field.place.nodes:
                    yield from in_order([field.read(value)], field.required, field.place, below, known)
            else:
                for key in _keys(field, [value]):
                    yield field, below, key
                    if field.place.nodes and (field, below, key) in known:
                        there = [known[field, below, key]]
                        yield from in_order(there, field.required, field.place, below, known)


def _keys(asked: Asked, objects: Sequence[Any]) -> list[Any]:
    """The keys of objects. One whose key cannot be found has null in this field, and says why when it is resolved."""
    find_key = asked.relation.find_key
    try:
        return list(map(find_key, objects))
    except Exception:
        if asked.required[0]:
            raise  # then the object is null too, or what it is in: its other fields may not be asked for
    keys = []
    for each in objects:
        with suppress(Exception):
            keys.append(find_key(each))
    return keys


def _check(kinds: set[type], required: Required) -> bool:
    """Whether values of these types include None or exceptions; refuse them if there has to be a value."""
    missing = False
    for kind in kinds:
        if kind is NoneType or issubclass(kind, BaseException):
            if required[0]:
                raise UnfitError
            missing = True
        elif hasattr(kind, "__await__"):
            raise UnfitError
    return missing


def _sorted(place: Place, values: Sequence[Any], kinds: set[type]) -> list[tuple[Node, Sequence[Any]]]:
    """Objects by the node that says what is asked of them."""
    if not place.nodes:
        return []
    if place.only is not None:
        is_type_of = place.only.type.is_type_of
        if is_type_of is not None:
            samples = {type(value): value for value in values}
            if not all(is_type_of(sample, NO_INFO) for sample in samples.values()):
                raise UnfitError
        return [(place.only, values)]
    nodes: dict[type, Node] = {}
    for kind in kinds:
        definition = getattr(kind, "__strawberry_definition__", None)
        node = None if definition is None or definition.is_graphql_generic else place.nodes.get(definition.name)
        if node is None:
            raise UnfitError  # its type is known when Strawberry has resolved it
        nodes[kind] = node
    by_node: dict[Node, list[Any]] = {}
    for value in values:
        if get_strawberry_type_cast(value) is not None:
            raise UnfitError  # it goes for another type than its own
        by_node.setdefault(nodes[type(value)], []).append(value)
    return list(by_node.items())
