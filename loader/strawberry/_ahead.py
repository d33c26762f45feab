"""Loading ahead: what the relations below one list ask for, level by level, from the first keys to the last values.

It is made of callbacks, not of tasks: a level is asked for in the very turn of the loop in which a resolver would ask
for it, so that everything gathers in the same batches as without a plan. Only where an answer comes before a resolver's
task would have begun to wait for it, it is a turn or two off, which may meet a batch or miss one.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from loader.observe import asked_from
from loader.strawberry._keys import Sought, UnfitError, collect, in_order
from loader.strawberry._places import place_in_query
from loader.strawberry._relation import seen, unless_awaitable
from loader.strawberry._several import UNKNOWN, Pending, Several, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from graphql.pyutils import Path

    from loader import DeclaredLoader
    from loader.strawberry._asked import Asked, Place, Required
    from loader.strawberry._keys import Above, Names, Want
    from loader.strawberry._operation import Operation

    Wanted = dict[DeclaredLoader[Any, Any, Any], list[tuple[Sought, list[Hashable]]]]
    """What has to be loaded, for each loader: the cache keys, each once, for each place that asks."""


class Ahead:
    """What is loaded for one list before it is completed.

    Attributes:
        planned: For each relation, with its arguments, the outcome for each object, by its identity.
        ended: Done in the very turn in which everything is loaded, or in which the list must not wait for more, so that
            what it still asks for is asked for when it would be without a plan.
        completed: The list then, or a task that completes it. It is not the result of `ended`, which the event loop
            holds until whoever waited has gone on: so long a response would stay in memory.
    """

    __slots__ = ("_asked", "_complete", "_operation", "_path", "_sought", "completed", "ended", "planned")

    def __init__(self, operation: Operation, path: Path, complete: Callable[[dict[Hashable, Any]], Any]) -> None:
        self._operation = operation
        self._path = path
        self._complete = complete
        self._asked: dict[asyncio.Future[list[Any]], tuple[Sought, list[Hashable]]] = {}
        self._sought: list[Sought] = []
        self.planned: dict[Hashable, dict[Any, Any]] = {}
        self.ended: asyncio.Future[None]
        self.completed: Any = None

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
        self.ended = _Ended(self._asked, loop=loop)
        try:
            self._look(values, required, place, ())
        except BaseException as error:
            self.ended.cancel()
            if isinstance(error, Exception):
                return False  # whatever it is, the field that it is about raises it, at its own path
            raise
        return bool(self._asked or self.planned)

    def give_up(self) -> None:
        """Cancel the completing, if it has begun."""
        if asyncio.isfuture(self.completed):
            self.completed.cancel()

    def _end(self) -> None:
        """Complete the list, with what is there."""
        try:
            for future, (sought, cache_keys) in self._asked.items():
                if future.done():
                    with suppress(Exception):  # as above
                        self._put(sought, cache_keys, future.result())
                else:
                    self._put_down(sought, {cache_key: Pending(sought.keys[cache_key]) for cache_key in cache_keys})
            self.completed = self._complete(self.planned)
            self.ended.set_result(None)
        except BaseException as error:
            self.ended.set_exception(error)  # it is the list's
            seen(self.ended)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise  # as above
        finally:
            self._sought.clear()
            _leave(self._asked)

    # -- asking ------------------------------------------------------------------------------------------------

    def _look(
        self, values: Sequence[Any], required: Required, place: Place, names: Names, above: Above | None = None
    ) -> None:
        """Ask for what is asked of some values, down to where it has to be loaded first; `above` brought them."""
        wanted: Wanted = {}
        known: dict[Want, Any] = {}
        before = len(self._sought)
        self._want(values, required, place, names, wanted, known, above)
        just_sought = self._sought[before:]
        for loader, each_sought in wanted.items():
            missing = sum(len(cache_keys) for _, cache_keys in each_sought)
            if len(each_sought) == 1 or missing <= _room(loader, each_sought):
                for sought, cache_keys in each_sought:
                    self._go_on(sought, self._ask(loader, sought, cache_keys))
            else:
                keys = {(sought.asked, sought.names): sought.by_object() for sought in just_sought}
                self._ask_in_order(loader, each_sought, in_order(values, required, place, names, keys, known))

    def _want(
        self,
        values: Sequence[Any],
        required: Required,
        place: Place,
        names: Names,
        wanted: Wanted,
        known: dict[Want, Any],
        above: Above | None,
    ) -> None:
        """Put what has to be loaded into `wanted`, and what is there into `known`.

        What is asked below a value that is there is wanted together with what is asked beside it: a resolver asks for
        it before the next object's resolvers ask for anything.
        """
        found: dict[tuple[Asked, Names], Sought] = {}
        collect(values, required, place, names, found)
        for (asked, below), sought in found.items():
            relation = asked.relation
            loader = self._operation.loader(relation.declaration, relation.parameters(asked.arguments))
            sought.above = above
            sought.settle(loader._cache_key_fn)
            if asked.required == (True,) and relation.paging is None and not sought.all_ask:
                raise UnfitError  # None where there has to be an object
            if not sought.keys:
                continue
            self._sought.append(sought)
            there: list[Hashable] = []
            missing: list[Hashable] = []
            for cache_key, key in sought.keys.items():
                (missing if loader.peek(key, UNKNOWN) is UNKNOWN else there).append(cache_key)
            if missing:
                wanted.setdefault(loader, []).append((sought, missing))
            if there:
                outcomes = self._ask(loader, sought, there)
                known.update({(asked, below, cache_key): outcome for cache_key, outcome in outcomes.items()})
                values = [*outcomes.values()]
                self._want(values, asked.required, asked.place, below, wanted, known, (sought, [*outcomes]))

    def _ask_in_order(
        self,
        loader: DeclaredLoader[Any, Any, Any],
        each_sought: list[tuple[Sought, list[Hashable]]],
        order: Iterable[Want],
    ) -> None:
        """Ask for what several relations ask of one loader, so that each batch gets the keys that resolvers give it."""
        by_place = {(sought.asked, sought.names): sought for sought, _ in each_sought}
        wants = [
            (sought.asked, sought.names, cache_key) for sought, cache_keys in each_sought for cache_key in cache_keys
        ]
        rest = iter(dict.fromkeys([*filter(set(wants).__contains__, order), *wants]))
        while part := list(islice(rest, _room(loader, each_sought))):
            parts: dict[Sought, list[Hashable]] = {}
            for asked, names, cache_key in part:
                parts.setdefault(by_place[asked, names], []).append(cache_key)
            for sought, cache_keys in parts.items():
                self._go_on(sought, self._ask(loader, sought, cache_keys))

    def _ask(
        self, loader: DeclaredLoader[Any, Any, Any], sought: Sought, cache_keys: list[Hashable]
    ) -> dict[Hashable, Any]:
        """Ask for keys; the values of the fields, by cache key, as far as they are there."""
        ask = partial(_answered_together, loader, sought, cache_keys)
        if loader.observed:
            ask = partial(asked_from, place_in_query((*names_of(self._path), *sought.names)), ask, planned=True)
        there: dict[Hashable, Any] = {}
        for future, its_keys in ask():
            if future.done():
                there.update(zip(its_keys, self._put(sought, its_keys, future.result()), strict=True))
            else:
                self._asked[future] = sought, its_keys
                future.add_done_callback(self._arrived)
        return there

    def _go_on(self, sought: Sought, there: dict[Hashable, Any]) -> None:
        """Ask for what is asked below values that turned out to be there: failures, and what was primed meanwhile."""
        if there:
            asked = sought.asked
            self._look([*there.values()], asked.required, asked.place, sought.names, (sought, [*there]))

    def _arrived(self, future: asyncio.Future[list[Any]]) -> None:
        sought, cache_keys = self._asked.pop(future)
        if self.ended.done() or future.cancelled():
            return
        try:
            asked, above = sought.asked, (sought, cache_keys)
            self._look(self._put(*above, future.result()), asked.required, asked.place, sought.names, above)
            ends = not self._asked
        except (KeyboardInterrupt, SystemExit):
            raise  # through the loop, as from a task
        except BaseException:  # noqa: BLE001  # whatever it is, the executor comes upon it when it completes the list now
            ends = True
        del future  # an exception that it holds is raised below, and its traceback would hold it
        if ends:
            self._end()

    def _put(self, sought: Sought, cache_keys: list[Hashable], outcomes: list[Any]) -> list[Any]:
        """Put down what was loaded; the values of the fields."""
        asked = sought.asked
        if asked.relation.paging is not None:
            outcomes = asked.relation.paging.connections(outcomes, asked.arguments)
        if any(hasattr(kind, "__await__") for kind in set(map(type, outcomes))):
            outcomes = [unless_awaitable(outcome, self._done(outcome)) for outcome in outcomes]
        self._put_down(sought, dict(zip(cache_keys, outcomes, strict=True)))
        return outcomes

    def _done(self, outcome: Any) -> asyncio.Future[Any]:
        future = self.ended.get_loop().create_future()
        future.set_result(outcome)
        return future

    def _put_down(self, sought: Sought, outcomes: dict[Hashable, Any]) -> None:
        came_to = sought.came_to(outcomes)
        known = self.planned.setdefault(sought.asked.relation.planned_as(sought.asked.arguments), {})
        if known.keys().isdisjoint(came_to) and not any(map(_is_special, outcomes.values())):
            known.update(came_to)
            return
        if self._operation.trail is None:
            self._operation.trail = {}
        above = names_of(self._path)
        place = (*above, *sought.names)
        if sought.above is not None:
            above = (*above, *sought.above[0].names)
        askers = sought.askers_above()
        for each, outcome in came_to.items():
            before = known.setdefault(each, outcome)
            if before is not outcome or _is_special(outcome):
                known[each] = Several.with_one_more(before, outcome, place, above, askers)


class _Ended(asyncio.Future[None]):
    """Cancelling it ends the waits for what was asked in the same turn of the loop, as it would those of the fields.

    A key that nobody waits for any more when its batch leaves is not asked for. It does not know who loads ahead: in a
    circle of references the whole list would stay in memory until the garbage is collected.
    """

    def __init__(self, asked: Iterable[asyncio.Future[Any]], *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._asked = asked

    def cancel(self, msg: Any = None) -> bool:
        _leave(self._asked)
        return super().cancel(msg)


def _is_special(outcome: Any) -> bool:
    """Whether an outcome is none that a field simply returns."""
    return isinstance(outcome, Exception | Pending)


def _leave(asked: Iterable[asyncio.Future[Any]]) -> None:
    """Wait for nothing any more."""
    for future in asked:
        future.cancel()


def _answered_together(
    loader: DeclaredLoader[Any, Any, Any], sought: Sought, cache_keys: list[Hashable]
) -> list[tuple[asyncio.Future[list[Any]], list[Hashable]]]:
    """Ask for keys: futures of those that will be answered at the same time, because they are in the same batch.

    What is below a key is followed as soon as that key is answered, and no later.
    """

    def load(cache_keys: list[Hashable]) -> asyncio.Future[list[Any]]:
        return loader.load_many([sought.keys[cache_key] for cache_key in cache_keys], return_exceptions=True)

    future, alone = load(cache_keys), sought.asked.one_by_one
    groups: dict[Any, list[Hashable]] = {}
    for cache_key in cache_keys:
        groups.setdefault(cache_key if alone else loader._waiting.get(cache_key), []).append(cache_key)
    if len(groups) == 1:
        return [(future, cache_keys)]
    apart = [(load(group), group) for group in groups.values()]
    future.cancel()
    return apart


def _room(loader: DeclaredLoader[Any, Any, Any], each_sought: list[tuple[Sought, list[Hashable]]]) -> int:
    """How many keys one may ask for in any order: those that come into the same batch, and are answered together."""
    if any(sought.asked.one_by_one for sought, _ in each_sought):
        return 1
    if loader._max_batch_size is None:
        return sys.maxsize
    return loader._max_batch_size - (0 if loader._open is None else len(loader._open.callers.futures))
