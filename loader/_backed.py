"""A batch function with a second-level cache in front of it.

A `Backed` stands where a loader has its batch function and where it has its shape, so that the loader itself knows
nothing of it: called with keys it asks the cache for all of them at once, then the function for the rest, and then it
reads, in place of the function's result, what came of each key.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from inspect import isfunction
from math import inf
from typing import TYPE_CHECKING, Any, final

from loader._backing import backing_of
from loader._dispatch import seconds, string
from loader._entries import NOTHING, Entry, Found, Namespace
from loader._key_text import key_text
from loader._results import BatchFunction, Shape
from loader._value_type import value_type
from loader._waiters import failed
from loader.errors import SecondLevelError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterator, Mapping

    from loader._backing import Backing
    from loader._dataloader import DataLoader
    from loader._entries import SecondLevelCache


CLEARED_KEPT = 1000
"""How many cleared keys are remembered before those are looked for that may be forgotten."""


class _Ask:
    """What has come of the keys of one batch so far.

    Attributes:
        keys: The keys, by cache key.
        outcomes: What they came to; `NOTHING` where the backend, or the cache for it, had nothing.
        extra: What the backend had for keys that nobody asked for.
        leases: The keys that this batch shall load: their text and the right to write them.
        busy: The keys that somebody else is loading.
    """

    __slots__ = ("busy", "extra", "keys", "leases", "outcomes")

    def __init__(self, keys: dict[Hashable, Any]) -> None:
        self.keys: dict[Hashable, Any] = keys
        self.outcomes: dict[Hashable, Any] = {}
        self.extra: dict[Hashable, Any] = {}
        self.leases: dict[Hashable, tuple[str, Any]] = {}
        self.busy: set[Hashable] = set()

    def open(self) -> dict[Hashable, Any]:
        """The keys that the backend has to be asked for, as far as is known."""
        return {key: own for key, own in self.keys.items() if key not in self.outcomes and key not in self.busy}


@final
class Backed:
    """The batch function and the shape of a loader that has a second-level cache.

    Attributes:
        cache: The cache.
        backing: What this process has to do with it.
        namespace: Whose keys the loader's are; set by whoever makes the loader, before its first load.
    """

    __slots__ = (
        "_cache_key",
        "_cleared",
        "_cleared_at",
        "_fresh_for",
        "_function",
        "_grouped",
        "_inner",
        "_missing_fresh_for",
        "_name",
        "_reader",
        "_shape",
        "_tags",
        "backing",
        "cache",
        "namespace",
    )

    def __init__(
        self,
        cache: SecondLevelCache,
        load_fn: Callable[[list[Any]], Any],
        *,
        name: str,
        fresh_for: float | None,
        missing_fresh_for: float,
        schema_version: str | int,
        tags: Collection[str],
        default: Any,
        index_by: Any,
        group_by: Any,
        cache_key_fn: Callable[[Any], Hashable] | None,
    ) -> None:
        self.backing: Backing = backing_of(cache)
        if fresh_for is None:
            raise ValueError("second_level needs fresh_for: how many seconds a value may be served after it was loaded")
        if isinstance(tags, str):
            raise TypeError(f"tags takes a collection of names, not the string {tags!r}")
        if not isinstance(schema_version, str | int):
            raise TypeError(f"schema_version takes a string or a whole number, not {schema_version!r}")
        self.cache: SecondLevelCache = cache
        self.namespace: Namespace = Namespace(name, str(schema_version))
        self._tags = frozenset(string("each of the tags", tag) for tag in tags)
        self._inner = load_fn
        self._function = BatchFunction(load_fn)
        self._name = name
        self._fresh_for = seconds("fresh_for", fresh_for)
        self._missing_fresh_for = seconds("missing_fresh_for", missing_fresh_for)
        if not self._fresh_for:
            raise ValueError("with fresh_for=0 nothing would ever be served: leave second_level out")
        self._grouped = group_by is not None
        self._cache_key = cache_key_fn
        by = {"index_by": index_by, "group_by": group_by, "cache_key_fn": cache_key_fn}
        self._shape = Shape(default=default, **by)
        self._reader = self._shape if self._grouped else Shape(default=NOTHING, **by)
        # What was cleared, and when: whoever clears a key wants it from the backend.
        self._cleared: dict[Hashable, float] = {}
        self._cleared_at = -inf

    def join(self, loader: DataLoader[Any, Any], name: str | None) -> None:
        """Belong to `loader`; its name across processes is `name`, or else where its function is written down.

        Raises:
            ValueError: If neither says which loader it is.
        """
        if name is None:
            if not isfunction(self._inner) or "<" in self._inner.__qualname__:  # as in <locals> and <lambda>
                raise ValueError(
                    f"{loader!r} with a second_level: give the loader a name=, which says whose the entries are. Only "
                    "a function that a module defines by itself says so, and no closure, lambda, partial, method or "
                    "callable object: what differs between two of those would share entries"
                )
            self.namespace = replace(self.namespace, loader=f"{self._inner.__module__}.{self._name}")
        if not loader._is_declared:  # else its name has its parameters in it, and `enter` knows the one that stays
            self.backing.declare(self.namespace.loader, self.namespace.version, self._tags)
        self.backing.live.add(loader)

    def enter(self, owner: type, attribute: str, tenant: Hashable, parameters: dict[str, Any]) -> None:
        """Serve a declared loader: its namespace tells classes, tenants and parameters apart."""
        self.namespace = replace(
            self.namespace,
            loader=declared_name(owner, attribute),
            tenant="" if tenant is None else key_text(tenant),
            # With their types: 1, 1.0 and True are one key, and different values of a parameter all the same.
            parameters=key_text(tuple((name, *_typed(value)) for name, value in parameters.items()))
            if parameters
            else "",
        )
        self.backing.declare(self.namespace.loader, self.namespace.version, self._tags)

    # -- what a loader asks of its batch function and of its shape -----------------------------------------------

    async def __call__(self, keys: list[Any]) -> Any:
        """An `_Ask` with an outcome for each key, or an async iterator of pairs."""
        ask = _Ask(self._by_cache_key(keys))
        try:
            await self._look(ask)
            while due := await self._due(ask):
                result = await self._function(list(due.values()))
                if isinstance(result, AsyncIterator):
                    return self._pairs(ask, due, result)
                outcomes, extra = self._reader.read(self._name, list(due.values()), list(due), result)
                self._settle(ask, outcomes)
                ask.extra.update(extra)
        except BaseException:
            self._give_back(ask)
            raise
        return ask

    @property
    def missed(self) -> int:
        """For how many keys nothing came."""
        return self._shape.missed

    def read(
        self, who: str, keys: list[Any], cache_keys: list[Hashable], result: _Ask
    ) -> tuple[dict[Hashable, Any], dict[Hashable, Any]]:
        """The outcomes in an `_Ask`, as `Shape.read` gives those in a result."""
        outcomes = {}
        for key, cache_key in zip(keys, cache_keys, strict=True):
            outcome = result.outcomes[cache_key]
            outcomes[cache_key] = self._shape.missing(who, key) if outcome is NOTHING else outcome
        return outcomes, result.extra

    def pair(self, who: str, item: Any) -> tuple[Hashable, Any]:
        """As of a `Shape`."""
        return self._shape.pair(who, item)

    def missing(self, who: str, key: Any) -> Any:
        """As of a `Shape`."""
        return self._shape.missing(who, key)

    # -- what is cleared -----------------------------------------------------------------------------------------

    def clear(self, cache_key: Hashable) -> None:
        """Ask the backend for this key from now on, until what the cache may hold has gone stale."""
        now = _now()
        if len(self._cleared) >= CLEARED_KEPT:
            self._cleared = {key: at for key, at in self._cleared.items() if now - at < self._fresh_for}
        self._cleared[cache_key] = now

    def clear_all(self) -> None:
        """The same for all keys."""
        self._cleared.clear()
        self._cleared_at = _now()

    def _is_cleared(self, cache_key: Hashable) -> bool:
        return _now() - self._cleared.get(cache_key, self._cleared_at) < self._fresh_for

    # -- a batch -------------------------------------------------------------------------------------------------

    def identity(self, key: Any) -> Hashable:
        """The cache key of a key."""
        return key if self._cache_key is None else self._cache_key(key)

    def _by_cache_key(self, keys: list[Any]) -> dict[Hashable, Any]:
        return {self.identity(key): key for key in keys}

    async def _look(self, ask: _Ask, *, wait: bool = False) -> None:
        """Ask the cache for what has no outcome yet, or only for what was busy."""
        texts = {}
        for cache_key in ask.busy if wait else ask.keys:
            if self._is_cleared(cache_key):
                self.backing.bypassed += 1
            else:
                try:
                    texts[key_text(cache_key)] = cache_key
                except SecondLevelError as error:
                    ask.outcomes[cache_key] = error
        ask.busy = set()
        if not texts:
            return
        self.backing.asks += 1
        call = partial(self.cache.get_many, self.namespace, list(texts), wait=wait)
        found: Found = await self.backing.guarded(call, Found())
        for text, cache_key in texts.items():
            stored = found.stored.get(text)
            if stored is not None:
                self._take(ask, text, cache_key, stored.data, stored.lease)
            elif text in found.leases:
                ask.leases[cache_key] = text, found.leases[text]
        if not wait:
            ask.busy = {texts[text] for text in found.busy}
        self.backing.misses += len(texts) - len(found.stored) - len(ask.busy)

    def _take(self, ask: _Ask, text: str, cache_key: Hashable, data: Any, lease: Any) -> None:
        """Make an outcome of what the cache has, or have it replaced if nothing can be made of it."""
        if data is NOTHING:
            self.backing.known_missing += 1
            ask.outcomes[cache_key] = NOTHING
            return
        codec = self.cache.codec
        try:
            ask.outcomes[cache_key] = data if codec is None else codec.decode(data, self._value_type())
        except SecondLevelError:
            raise
        except Exception:  # noqa: BLE001  # whatever a codec raises for what somebody else wrote
            self.backing.codec_errors += 1
            self.backing.misses += 1
            ask.leases[cache_key] = text, lease
        else:
            self.backing.hits += 1

    async def _due(self, ask: _Ask) -> dict[Hashable, Any]:
        """The keys to ask the backend for now; those that somebody else is loading come last."""
        due = ask.open()
        if not due and ask.busy:
            await self._look(ask, wait=True)
            due = ask.open()
        return due

    def _settle(self, ask: _Ask, outcomes: Mapping[Hashable, Any]) -> None:
        """Take what the backend had, and have it written."""
        ask.outcomes.update(outcomes)
        entries = []
        for cache_key, outcome in outcomes.items():
            text, lease = ask.leases.pop(cache_key, (None, None))
            if text is not None:
                fresh_for, data = self._kept(cache_key, outcome)
                entries.append(Entry(self.namespace, text, lease, data, fresh_for))
        if entries:
            self.backing.write(entries)

    def _kept(self, cache_key: Hashable, outcome: Any) -> tuple[float, Any]:
        """For how long an outcome is kept, and as what: it is encoded before anybody can change it."""
        if failed(outcome) or self._is_cleared(cache_key):
            return 0, NOTHING
        if outcome is NOTHING:
            return self._missing_fresh_for, NOTHING
        codec = self.cache.codec
        if codec is None:
            return self._fresh_for, outcome
        try:
            return self._fresh_for, codec.encode(outcome, self._value_type())
        except SecondLevelError:
            raise
        except Exception:  # noqa: BLE001  # whatever a codec raises for a value that it cannot encode
            self.backing.codec_errors += 1
            return 0, NOTHING

    def _give_back(self, ask: _Ask) -> None:
        """Let others load what this batch will not."""
        self.backing.give_back(self.namespace, dict(ask.leases.values()))
        ask.leases = {}

    def _value_type(self) -> Any:
        return value_type(self._inner, group_by=self._grouped)

    async def _pairs(self, ask: _Ask, due: dict[Hashable, Any], pairs: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """What the cache has, then what the batch function yields, as it comes."""
        try:
            for pair in self._found(ask, {}):
                yield pair
            while True:
                missing: dict[Hashable, Any] = dict.fromkeys(due, NOTHING)
                try:
                    async for item in pairs:
                        cache_key, outcome = self._shape.pair(self._name, item)
                        if missing.pop(cache_key, None) is NOTHING:
                            self._settle(ask, {cache_key: outcome})
                        yield item
                finally:
                    if (close := getattr(pairs, "aclose", None)) is not None:
                        await close()
                self._settle(ask, missing)
                before = dict(ask.outcomes)
                due = await self._due(ask)
                for pair in self._found(ask, before):
                    yield pair
                if not due:
                    return
                pairs = await self._function(list(due.values()))
        finally:
            self._give_back(ask)

    @staticmethod
    def _found(ask: _Ask, before: Mapping[Hashable, Any]) -> Iterator[tuple[Any, Any]]:
        """The pairs of what the cache had, without what was there before."""
        for cache_key, outcome in ask.outcomes.items():
            if cache_key not in before and outcome is not NOTHING:
                yield ask.keys[cache_key], outcome


def declared_name(owner: type, attribute: str) -> str:
    """What all processes call a declared loader."""
    return f"{owner.__module__}.{owner.__qualname__}.{attribute}"


def _now() -> float:
    """The time of the loop; where none runs, a time that never passes."""
    loop = _get_running_loop()
    return inf if loop is None else loop.time()


def _typed(value: Any) -> tuple[str, Any]:
    return type(value).__name__, tuple(map(_typed, value)) if isinstance(value, tuple) else value
