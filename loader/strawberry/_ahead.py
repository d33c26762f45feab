"""Loading ahead: what the relations below one list ask for, level by level, from the first keys to the last values.

It is made of callbacks, not of tasks: a level is asked for in the very turn of the loop in which a resolver would ask
for it, so that everything gathers in the same batches as without a plan.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from functools import partial
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any

from strawberry.types.cast import get_strawberry_type_cast

from loader.observe import asked_from
from loader.strawberry._asked import Attribute
from loader.strawberry._places import place_in_query
from loader.strawberry._relation import asks_nothing, seen
from loader.strawberry._several import Several, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from graphql.pyutils import Path

    from loader import DeclaredLoader
    from loader.strawberry._asked import Asked, Node, Place, Required
    from loader.strawberry._operation import Operation

    Names = tuple[str, ...]
    """Where in a list's items something is asked: the names that lead there."""

NO_INFO: Any = None  # Strawberry's own `is_type_of`, which alone is called here, looks at the object only


class UnfitError(Exception):
    """Something here may fail or wait for something of its own: the executor has to come upon it by itself."""


class Ahead:
    """What is loaded for one list before it is completed.

    Attributes:
        planned: For each relation, with its arguments, the outcome of each key.
        completed: The list, or a task that completes it. That begins in the very turn in which everything is loaded, or
            in which the list must not wait for more, so that what it still asks for is asked for when it would be
            without a plan.
    """

    __slots__ = ("_asked", "_complete", "_operation", "_path", "completed", "planned")

    def __init__(self, operation: Operation, path: Path, complete: Callable[[dict[Hashable, Any]], Any]) -> None:
        self._operation = operation
        self._path = path
        self._complete = complete
        self._asked: dict[asyncio.Future[list[Any]], tuple[Asked, Names, list[Any]]] = {}
        self.planned: dict[Hashable, dict[Any, Any]] = {}
        self.completed: asyncio.Future[Any]

    @property
    def waits(self) -> bool:
        """Whether not everything is loaded."""
        return bool(self._asked)

    def start(self, values: Sequence[Any], required: Required, place: Place) -> bool:
        """Ask for what is asked of `values`; whether there is anything to wait for, or loaded."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False  # each field says so
        self.completed = _Completed(self, loop=loop)
        try:
            self._look(values, required, place, ())
        except Exception:  # noqa: BLE001  # whatever it is, the field that it is about raises it, at its own path
            self.completed.cancel()
            return False
        return bool(self._asked or self.planned)

    def leave(self) -> None:
        """Wait for nothing any more."""
        for future in self._asked:
            future.cancel()

    def give_up(self) -> None:
        """Cancel the completing, if it has begun."""
        if self.completed.done() and not self.completed.cancelled() and self.completed.exception() is None:
            completed = self.completed.result()
            if asyncio.isfuture(completed):
                completed.cancel()

    def _end(self) -> None:
        """Complete the list, with what is there."""
        for future, (asked, names, keys) in self._asked.items():
            if future.done():
                with suppress(Exception):  # as above
                    self._put(asked, names, keys, future.result())
        try:
            self.completed.set_result(self._complete(self.planned))
        except Exception as error:  # noqa: BLE001  # it is the list's
            self.completed.set_exception(error)
            seen(self.completed)
        self.leave()

    # -- asking ------------------------------------------------------------------------------------------------

    def _look(self, values: Sequence[Any], required: Required, place: Place, names: Names) -> None:
        """Ask for what is asked of some values, down to where it has to be loaded first."""
        found: dict[tuple[Asked, Names], dict[Any, None]] = {}
        _collect(values, required, place, names, found)
        wanted: dict[DeclaredLoader[Any, Any, Any], dict[tuple[Asked, Names], list[Any]]] = {}
        for (asked, below), found_keys in found.items():
            keys = [key for key in found_keys if not asks_nothing(key)]
            if len(keys) < len(found_keys) and asked.required == (True,) and asked.relation.paging is None:
                raise UnfitError  # None where there has to be an object
            if keys:
                relation = asked.relation
                loader = self._operation.loader(relation.declaration, relation.parameters(asked.arguments))
                wanted.setdefault(loader, {})[asked, below] = keys
        for loader, by_asked in wanted.items():
            if len(by_asked) == 1 or sum(map(len, by_asked.values())) <= _room(loader, by_asked):
                for (asked, below), keys in by_asked.items():
                    self._ask(loader, asked, below, keys)
            else:
                self._ask_in_order(loader, by_asked, _in_order(values, required, place, names))

    def _ask_in_order(
        self,
        loader: DeclaredLoader[Any, Any, Any],
        wanted: Mapping[tuple[Asked, Names], list[Any]],
        order: Iterable[tuple[Asked, Names, Any]],
    ) -> None:
        """Ask for what several relations ask of one loader, so that each batch gets the keys that resolvers give it."""
        rest = iter(dict.fromkeys(each for each in order if each[:2] in wanted and not asks_nothing(each[2])))
        while part := list(islice(rest, _room(loader, wanted))):
            by_asked: dict[tuple[Asked, Names], list[Any]] = {}
            for asked, names, key in part:
                by_asked.setdefault((asked, names), []).append(key)
            for (asked, names), keys in by_asked.items():
                self._ask(loader, asked, names, keys)

    def _ask(self, loader: DeclaredLoader[Any, Any, Any], asked: Asked, names: Names, keys: list[Any]) -> None:
        ask = partial(_answered_together, loader, keys, alone=asked.one_by_one)
        if loader.observed:
            ask = partial(asked_from, place_in_query((*names_of(self._path), *names)), ask, planned=True)
        for future, its_keys in ask():
            if future.done():
                self._look(self._put(asked, names, its_keys, future.result()), asked.required, asked.place, names)
            else:
                self._asked[future] = asked, names, its_keys
                future.add_done_callback(self._arrived)

    def _arrived(self, future: asyncio.Future[list[Any]]) -> None:
        asked, names, keys = self._asked.pop(future)
        if self.completed.done() or future.cancelled():
            return
        try:
            outcomes = self._put(asked, names, keys, future.result())
            self._look(outcomes, asked.required, asked.place, names)
        except Exception:  # noqa: BLE001  # whatever it is, the executor comes upon it when it completes the list now
            self._end()
        else:
            if not self._asked:
                self._end()

    def _put(self, asked: Asked, names: Names, keys: list[Any], outcomes: list[Any]) -> list[Any]:
        """Put down what was loaded; the values of the fields."""
        known = self.planned.setdefault(asked.relation.planned_as(asked.arguments), {})
        if asked.relation.paging is not None:
            outcomes = asked.relation.paging.connections(outcomes, asked.arguments)
        for key, outcome in zip(keys, outcomes, strict=True):
            before = known.setdefault(key, outcome)
            if before is not outcome or isinstance(outcome, Exception):
                known[key] = Several.with_one_more(before, outcome, (*names_of(self._path), *names))
        return outcomes


class _Completed(asyncio.Future[Any]):
    """Cancelling it ends the waits for what was asked in the same turn of the loop, as it would those of the fields.

    A key that nobody waits for any more when its batch leaves is not asked for.
    """

    def __init__(self, ahead: Ahead, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._ahead = ahead

    def cancel(self, msg: Any = None) -> bool:
        self._ahead.leave()
        return super().cancel(msg)


def _answered_together(
    loader: DeclaredLoader[Any, Any, Any], keys: list[Any], *, alone: bool
) -> list[tuple[asyncio.Future[list[Any]], list[Any]]]:
    """Ask for keys: futures of those that will be answered at the same time, because they are in the same batch.

    What is below a key is followed as soon as that key is answered, and no later.
    """
    future = loader.load_many(keys, return_exceptions=True)
    waiting, cache_key = loader._waiting, loader._cache_key_fn or _itself
    groups: dict[Any, list[Any]] = {}
    for key in keys:
        groups.setdefault(key if alone else waiting.get(cache_key(key)), []).append(key)
    if len(groups) == 1:
        return [(future, keys)]
    apart = [(loader.load_many(group, return_exceptions=True), group) for group in groups.values()]
    future.cancel()
    return apart


def _itself(key: Any) -> Any:
    return key


def _room(loader: DeclaredLoader[Any, Any, Any], wanted: Iterable[tuple[Asked, Names]]) -> int:
    """How many keys one may ask for in any order: those that come into the same batch, and are answered together."""
    if any(asked.one_by_one for asked, _ in wanted):
        return 1
    if loader._max_batch_size is None:
        return sys.maxsize
    return loader._max_batch_size - (0 if loader._open is None else len(loader._open.callers.futures))


# -- looking at values -----------------------------------------------------------------------------------------


def _collect(
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
        if not all(issubclass(kind, list | tuple) for kind in kinds):
            raise UnfitError  # some other iterable: to look at it could use it up
        _collect([each for value in values for each in value], required[1:], place, names, found)
        return
    for node, objects in _sorted(place, values, kinds):
        for field in node.fields:
            if isinstance(field, Attribute):
                held = list(map(field.read, objects))
                if field.place.nodes:
                    _collect(held, field.required, field.place, (*names, field.name), found)
                else:
                    _check(set(map(type, held)), field.required)
            else:
                keys = found.setdefault((field, (*names, field.name)), {})
                keys.update(dict.fromkeys(_keys(field, objects)))


def _in_order(
    values: Iterable[Any], required: Required, place: Place, names: Names
) -> Iterator[tuple[Asked, Names, Any]]:
    """The keys as resolvers would ask for them, object by object: of values that `_collect` has looked at."""
    for value in values:
        if value is None or isinstance(value, BaseException):
            continue
        if len(required) > 1:
            yield from _in_order(value, required[1:], place, names)
            continue
        node = place.only or place.nodes[getattr(value, "__strawberry_definition__", NO_INFO).name]
        for field in node.fields:
            below = (*names, field.name)
            if isinstance(field, Attribute):
                if field.place.nodes:
                    yield from _in_order([field.read(value)], field.required, field.place, below)
            else:
                for key in _keys(field, [value]):
                    yield field, below, key


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
