"""Who asks for what, given some values and what a query asks of them."""

from __future__ import annotations

from inspect import iscoroutine
from types import NoneType
from typing import TYPE_CHECKING, Any

from strawberry.types.cast import get_strawberry_type_cast

from loader.strawberry._asked import Attribute
from loader.strawberry._relation import asks_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from loader.strawberry._asked import Asked, Node, Place, Required

    Names = tuple[str, ...]
    """Where in a list's items something is asked: the names that lead there."""

    Above = tuple["Sought", Sequence[Hashable]]

    Want = tuple[Asked, Names, Hashable]
    """A relation, the place that asks, and the cache key."""

NO_INFO: Any = None  # Strawberry's own `is_type_of`, which alone is called here, looks at the object only
NO_KEY: Any = object()
LISTS = (list, tuple, set, frozenset)  # some other iterable may be used up by looking at it


class Sought:
    """What is sought at one place of a query, by one relation.

    The key of an object is found once, as it may be another one each time; and two keys are one if the loader takes
    them for one.

    Attributes:
        asked: The relation.
        names: The place.
        objects: The objects that ask. They are kept as long as their identity stands for them.
        cache_keys: The cache key of each; where it asks for nothing, one that is not among `keys`.
        keys: The keys, each once, by cache key.
        all_ask: Whether each object asks for something.
        above: What brought the objects, and the cache keys that it brought them for; None if the list has them itself.
    """

    __slots__ = ("_askers", "_by_key", "_found", "above", "all_ask", "asked", "cache_keys", "keys", "names", "objects")

    def __init__(self, asked: Asked, names: Names) -> None:
        self.asked = asked
        self.names = names
        self.above: Above | None = None
        self.objects: list[Any] = []
        self.cache_keys: list[Any] = []
        self.keys: dict[Hashable, Any] = {}
        self.all_ask = True
        self._found: list[Any] = []
        self._askers: Collection[int] | None = None
        self._by_key: dict[Hashable, list[int]] = {}

    def add(self, objects: Sequence[Any]) -> None:
        """Find the keys of objects. One whose key cannot be found has null here, and says why when it is resolved."""
        find_key = self.asked.relation.find_key
        try:
            self._found += map(find_key, objects)
        except Exception:
            if self.asked.required[0]:
                raise  # then the object is null too, or what it is in: its other fields may not be asked for
            del self._found[len(self.objects) :]
            for each in objects:
                try:
                    self._found.append(find_key(each))
                except Exception:  # noqa: BLE001  # as above
                    self._found.append(None)
        self.objects += objects

    def settle(self, cache_key_fn: Callable[[Any], Hashable] | None) -> None:
        """Find the cache keys, when all objects are there and it is known which loader they ask."""
        if cache_key_fn is None:
            self.cache_keys = self._found
            self.keys = {key: key for key in dict.fromkeys(self._found)}
        else:
            self.cache_keys = [NO_KEY if asks_nothing(key) else cache_key_fn(key) for key in self._found]
            for cache_key, key in zip(self.cache_keys, self._found, strict=True):
                self.keys.setdefault(cache_key, key)
        for nothing in [cache_key for cache_key, key in self.keys.items() if asks_nothing(key)]:
            del self.keys[nothing]
            self.all_ask = False

    def came_to(self, outcomes: Mapping[Hashable, Any]) -> dict[int, Any]:
        """The outcomes, which are there by cache key, by the identity of the objects."""
        if len(outcomes) == len(self.keys) and self.all_ask:
            return dict(zip(map(id, self.objects), map(outcomes.__getitem__, self.cache_keys), strict=True))
        if not self._by_key:  # once, however many parts the outcomes come in
            for each, cache_key in zip(self.objects, self.cache_keys, strict=True):
                self._by_key.setdefault(cache_key, []).append(id(each))
        return {each: outcome for cache_key, outcome in outcomes.items() for each in self._by_key[cache_key]}

    def askers_above(self) -> Collection[int] | None:
        """The identities of the objects that these were brought for; None if the list has them itself."""
        if self._askers is None and self.above is not None:
            sought, cache_keys = self.above
            self._askers = sought.came_to(dict.fromkeys(cache_keys)).keys()
        return self._askers

    def by_object(self) -> dict[int, Hashable]:
        """The cache keys by the identity of the objects."""
        return dict(zip(map(id, self.objects), self.cache_keys, strict=True))


class UnfitError(Exception):
    """Something here may fail or wait for something of its own: the executor has to come upon it by itself."""


def collect(
    values: Sequence[Any],
    required: Required,
    place: Place,
    names: Names,
    found: dict[tuple[Asked, Names], Sought],
) -> None:
    """Put what is sought, and by whom, into `found`."""
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
            below = (*names, field.name)
            if isinstance(field, Attribute):
                _collect_held(field, objects, below, found)
            else:
                found.setdefault((field, below), Sought(field, below)).add(objects)


def _collect_held(
    field: Attribute, objects: Sequence[Any], names: Names, found: dict[tuple[Asked, Names], Sought]
) -> None:
    held = list(map(field.read, objects))
    again = list(map(field.read, objects)) if field.place.nodes else []
    try:
        if again and not all(map(_same, held, again)):
            raise UnfitError  # what a property makes anew each time is not what the executor is going to resolve
        collect(held, field.required, field.place, names, found)
    except UnfitError:
        once = {id(each): each for each in _coroutines(held)}
        twice = {id(each): each for each in _coroutines(again or list(map(field.read, objects)))}
        for one in once.keys() ^ twice.keys():  # nobody else has what came once: Python would miss its `await`
            (once | twice)[one].close()
        raise


def _coroutines(value: Any) -> Iterator[Any]:
    if iscoroutine(value):
        yield value
    elif isinstance(value, LISTS):
        for each in value:
            yield from _coroutines(each)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one object, or lists of such."""
    if isinstance(one, LISTS) and type(one) is type(other) and len(one) == len(other):
        return all(map(_same, one, other))
    return one is other


def in_order(
    values: Iterable[Any],
    required: Required,
    place: Place,
    names: Names,
    keys: Mapping[tuple[Asked, Names], Mapping[int, Hashable]],
    known: Mapping[Want, Any],
) -> Iterator[Want]:
    """The cache keys as resolvers would ask for them, object by object: of values that `collect` has looked at.

    `keys` has them by the identity of the objects, for each place that asks.
    """
    for value in values:
        if value is None or isinstance(value, BaseException):
            continue
        if len(required) > 1:
            yield from in_order(value, required[1:], place, names, keys, known)
            continue
        node = place.only or place.nodes[id(getattr(value, "__strawberry_definition__", None))]
        for field in node.fields:
            below = (*names, field.name)
            if isinstance(field, Attribute):
                if field.place.nodes:
                    yield from in_order([field.read(value)], field.required, field.place, below, keys, known)
                continue
            want = field, below, keys[field, below].get(id(value), NO_KEY)
            yield want
            if field.place.nodes and want in known:
                yield from in_order([known[want]], field.required, field.place, below, keys, known)


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
            _refuse_casts(values)
            samples = {type(value): value for value in values}
            if not all(is_type_of(sample, NO_INFO) for sample in samples.values()):
                raise UnfitError
        return [(place.only, values)]
    _refuse_casts(values)
    nodes: dict[type, Node] = {}
    for kind in kinds:
        definition = getattr(kind, "__strawberry_definition__", None)
        node = None if definition is None or definition.is_graphql_generic else place.nodes.get(id(definition))
        if node is None:
            raise UnfitError  # its type is known when Strawberry has resolved it
        nodes[kind] = node
    by_node: dict[Node, list[Any]] = {}
    for value in values:
        by_node.setdefault(nodes[type(value)], []).append(value)
    return list(by_node.items())


def _refuse_casts(values: Sequence[Any]) -> None:
    if any(get_strawberry_type_cast(value) is not None for value in values):
        raise UnfitError  # it goes for another type than its own
