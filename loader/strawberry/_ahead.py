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
from loader.strawberry._keys import UnfitError, collect, in_order
from loader.strawberry._places import place_in_query
from loader.strawberry._relation import asks_nothing, seen
from loader.strawberry._several import UNKNOWN, Several, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from graphql.pyutils import Path

    from loader import DeclaredLoader
    from loader.strawberry._asked import Asked, Place, Required
    from loader.strawberry._keys import Names
    from loader.strawberry._operation import Operation

    Wanted = dict[DeclaredLoader[Any, Any, Any], dict[tuple[Asked, Names], dict[Any, None]]]
    """The keys that have to be loaded: each once, for each loader and each place that asks."""


class Ahead:
    """What is loaded for one list before it is completed.

    Attributes:
        planned: For each relation, with its arguments, the outcome of each key.
        ended: Done in the very turn in which everything is loaded, or in which the list must not wait for more, so that
            what it still asks for is asked for when it would be without a plan.
        completed: The list then, or a task that completes it. It is not the result of `ended`, which the event loop
            holds until whoever waited has gone on: so long a response would stay in memory.
    """

    __slots__ = ("_asked", "_complete", "_operation", "_path", "completed", "ended", "planned")

    def __init__(self, operation: Operation, path: Path, complete: Callable[[dict[Hashable, Any]], Any]) -> None:
        self._operation = operation
        self._path = path
        self._complete = complete
        self._asked: dict[asyncio.Future[list[Any]], tuple[Asked, Names, list[Any]]] = {}
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
        except Exception:  # noqa: BLE001  # whatever it is, the field that it is about raises it, at its own path
            self.ended.cancel()
            return False
        return bool(self._asked or self.planned)

    def give_up(self) -> None:
        """Cancel the completing, if it has begun."""
        if asyncio.isfuture(self.completed):
            self.completed.cancel()

    def _end(self) -> None:
        """Complete the list, with what is there."""
        for future, (asked, names, keys) in self._asked.items():
            if future.done():
                with suppress(Exception):  # as above
                    self._put(asked, names, keys, future.result())
        try:
            self.completed = self._complete(self.planned)
            self.ended.set_result(None)
        except Exception as error:  # noqa: BLE001  # it is the list's
            self.ended.set_exception(error)
            seen(self.ended)
        _leave(self._asked)

    # -- asking ------------------------------------------------------------------------------------------------

    def _look(self, values: Sequence[Any], required: Required, place: Place, names: Names) -> None:
        """Ask for what is asked of some values, down to where it has to be loaded first."""
        wanted: Wanted = {}
        known: dict[tuple[Asked, Names, Any], Any] = {}
        self._want(values, required, place, names, wanted, known)
        for loader, by_asked in wanted.items():
            if len(by_asked) == 1 or sum(map(len, by_asked.values())) <= _room(loader, by_asked):
                for (asked, below), keys in by_asked.items():
                    self._go_on(asked, below, self._ask(loader, asked, below, [*keys]))
            else:
                self._ask_in_order(loader, by_asked, in_order(values, required, place, names, known))

    def _want(
        self,
        values: Sequence[Any],
        required: Required,
        place: Place,
        names: Names,
        wanted: Wanted,
        known: dict[tuple[Asked, Names, Any], Any],
    ) -> None:
        """Put the keys that have to be loaded into `wanted`, and what is there into `known`.

        What is asked below a value that is there is wanted together with what is asked beside it: a resolver asks for
        it before the next object's resolvers ask for anything.
        """
        found: dict[tuple[Asked, Names], dict[Any, None]] = {}
        collect(values, required, place, names, found)
        for (asked, below), found_keys in found.items():
            keys = [key for key in found_keys if not asks_nothing(key)]
            if len(keys) < len(found_keys) and asked.required == (True,) and asked.relation.paging is None:
                raise UnfitError  # None where there has to be an object
            if not keys:
                continue
            relation = asked.relation
            loader = self._operation.loader(relation.declaration, relation.parameters(asked.arguments))
            there: list[Any] = []
            missing: dict[Any, None] = {}
            for key in keys:
                if loader.peek(key, UNKNOWN) is UNKNOWN:
                    missing[key] = None
                else:
                    there.append(key)
            if missing:
                wanted.setdefault(loader, {}).setdefault((asked, below), {}).update(missing)
            if there:
                outcomes = self._ask(loader, asked, below, there)
                known.update({(asked, below, key): outcome for key, outcome in outcomes.items()})
                self._want([*outcomes.values()], asked.required, asked.place, below, wanted, known)

    def _ask_in_order(
        self,
        loader: DeclaredLoader[Any, Any, Any],
        wanted: Mapping[tuple[Asked, Names], Mapping[Any, None]],
        order: Iterable[tuple[Asked, Names, Any]],
    ) -> None:
        """Ask for what several relations ask of one loader, so that each batch gets the keys that resolvers give it."""
        rest = iter(dict.fromkeys(each for each in order if each[2] in wanted.get(each[:2], ())))
        while part := list(islice(rest, _room(loader, wanted))):
            by_asked: dict[tuple[Asked, Names], list[Any]] = {}
            for asked, names, key in part:
                by_asked.setdefault((asked, names), []).append(key)
            for (asked, names), keys in by_asked.items():
                self._go_on(asked, names, self._ask(loader, asked, names, keys))

    def _ask(
        self, loader: DeclaredLoader[Any, Any, Any], asked: Asked, names: Names, keys: list[Any]
    ) -> dict[Any, Any]:
        """Ask for keys; the values of the fields, by key, as far as they are there."""
        ask = partial(_answered_together, loader, keys, alone=asked.one_by_one)
        if loader.observed:
            ask = partial(asked_from, place_in_query((*names_of(self._path), *names)), ask, planned=True)
        there: dict[Any, Any] = {}
        for future, its_keys in ask():
            if future.done():
                there.update(zip(its_keys, self._put(asked, names, its_keys, future.result()), strict=True))
            else:
                self._asked[future] = asked, names, its_keys
                future.add_done_callback(self._arrived)
        return there

    def _go_on(self, asked: Asked, names: Names, there: dict[Any, Any]) -> None:
        """Ask for what is asked below values that turned out to be there: failures, and what was primed meanwhile."""
        if there:
            self._look([*there.values()], asked.required, asked.place, names)

    def _arrived(self, future: asyncio.Future[list[Any]]) -> None:
        asked, names, keys = self._asked.pop(future)
        if self.ended.done() or future.cancelled():
            return
        try:
            self._look(self._put(asked, names, keys, future.result()), asked.required, asked.place, names)
            ends = not self._asked
        except Exception:  # noqa: BLE001  # whatever it is, the executor comes upon it when it completes the list now
            ends = True
        del future  # an exception that it holds is raised below, and its traceback would hold it
        if ends:
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


def _leave(asked: Iterable[asyncio.Future[Any]]) -> None:
    """Wait for nothing any more."""
    for future in asked:
        future.cancel()


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
