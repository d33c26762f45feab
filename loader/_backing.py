"""What this process has to do with one second-level cache: who uses it, what is to be written, and the counts."""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary, WeakSet, ref

from loader._batcher import Batcher
from loader._entries import NOTHING, Entry
from loader.errors import LoaderError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Awaitable, Callable, Mapping

    from loader._dataloader import DataLoader
    from loader._entries import Namespace, SecondLevelCache

WRITES_WAITING = 1000
"""How many batches may have something to be written before what comes next is dropped."""


@final
@dataclass(frozen=True, slots=True)
class SecondLevelStatistics:
    """What the loaders of this process got from a second-level cache, and gave to it.

    Attributes:
        asks: How often it was asked: once for a batch, and once more where another worker was loading a key.
        hits: How many keys it had a value of.
        known_missing: How many keys it knew the backend to have nothing of.
        misses: How many keys it had nothing of.
        bypassed: How many keys it was not asked for, since they had been cleared.
        written: How many keys it was given, values and missing ones.
        dropped: How many batches had something to be written that was dropped, since too much was waiting.
        codec_errors: How many values could not be encoded or decoded.
        failures: How many calls raised an exception.
    """

    asks: int
    hits: int
    known_missing: int
    misses: int
    bypassed: int
    written: int
    dropped: int
    codec_errors: int
    failures: int


@final
class Backing:
    """The loaders of this process in front of one cache.

    What is to be written waits here, and not with the batch that brought it: the scope of that may be over.
    """

    # The counts, as in `SecondLevelStatistics`.
    asks: int = 0
    hits: int = 0
    known_missing: int = 0
    misses: int = 0
    bypassed: int = 0
    written: int = 0
    dropped: int = 0
    codec_errors: int = 0
    failures: int = 0

    def __init__(self, cache: SecondLevelCache) -> None:
        self._cache = ref(cache)
        self.declared: dict[tuple[str, str], frozenset[str]] = {}  # the tags, by name and version
        self.live: WeakSet[DataLoader[Any, Any]] = WeakSet()
        self._writes: dict[AbstractEventLoop, Batcher[list[Entry], None]] = {}  # each loop writes by itself

    def declare(self, name: str, version: str, tags: frozenset[str]) -> None:
        """Note that there are loaders of this name."""
        self.declared[name, version] = tags

    def write(self, entries: list[Entry]) -> None:
        """Have entries written soon."""
        try:
            self._writing().submit_nowait(entries).add_done_callback(_ignored)
        except LoaderError:  # too much is waiting: who holds the leases is forgotten soon
            self.dropped += 1
        else:
            self.written += sum(entry.fresh_for > 0 for entry in entries)

    def give_back(self, namespace: Namespace, leases: Mapping[str, Any]) -> None:
        """Have the leases of keys given back soon."""
        if leases:
            self.write([Entry(namespace, key, lease, NOTHING, 0) for key, lease in leases.items()])

    async def guarded(self, call: Callable[[], Awaitable[Any]], instead: Any = None) -> Any:
        """What a call of the cache returns, or `instead` if it fails: the backend knows all that it knows."""
        try:
            return await call()
        except Exception as error:  # noqa: BLE001  # whatever a cache of the user's own raises
            self.failures += 1
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the second-level cache {self._cache()!r} failed", "exception": error}
            )
            return instead

    async def drain(self) -> None:
        """Wait until everything that was to be written has been."""
        await self._writing().flush()

    def _writing(self) -> Batcher[list[Entry], None]:
        """What writes on the running loop."""
        loop = asyncio.get_running_loop()
        writes = self._writes.get(loop)
        if writes is None:
            # In a context of its own: the first loader may be made in a request, whose variables are none of ours.
            make = partial(Batcher, _writer(self._cache), max_pending=WRITES_WAITING, name="second level")
            writes = Context().run(make)
            writes._observed = False
            for closed in [each for each in list(self._writes) if each.is_closed()]:
                self._writes.pop(closed, None)  # another thread may have done so
            self._writes[loop] = writes
        return writes

    def statistics(self) -> SecondLevelStatistics:
        """What happened so far."""
        return SecondLevelStatistics(
            **{field.name: getattr(self, field.name) for field in fields(SecondLevelStatistics)}
        )


_backings: WeakKeyDictionary[Any, Backing] = WeakKeyDictionary()


def backing_of(cache: SecondLevelCache) -> Backing:
    """The backing of a cache.

    Raises:
        TypeError: If it is no second-level cache.
    """
    if isinstance(cache, type) or not all(
        callable(getattr(cache, name, None)) for name in ("get_many", "set_many", "delete_many")
    ):
        raise TypeError(f"second_level takes a SecondLevelCache (get_many, set_many, delete_many), not {cache!r}")
    backing = _backings.get(cache)
    if backing is None:
        backing = _backings[cache] = Backing(cache)
    return backing


def backings() -> list[tuple[SecondLevelCache, Backing]]:
    """All caches that loaders of this process were given."""
    return list(_backings.items())


def _ignored(written: Future[None]) -> None:
    """Nobody waits for a write: one that its loop did not live to see is no news."""
    written.exception()  # it is nobody's to cancel


def _writer(cache: Callable[[], SecondLevelCache | None]) -> Callable[[list[list[Entry]]], Awaitable[list[None]]]:
    """The function that writes; it must not keep the cache alive, whose backing lives as long as the cache."""

    async def write(batches: list[list[Entry]]) -> list[None]:
        there = cache()
        if there is not None:
            entries = [entry for batch in batches for entry in batch]
            await backing_of(there).guarded(partial(there.set_many, entries))
        return [None] * len(batches)

    return write


async def drain(cache: SecondLevelCache) -> None:
    """Wait until everything that loaders had to write to a cache, until now, has been written or given up.

    Cancellation: Only the wait ends.
    """
    await backing_of(cache).drain()


def give_back(cache: SecondLevelCache, namespace: Namespace, leases: Mapping[str, Any]) -> None:
    """Let others load what a cache has leased out to somebody who is gone, soon and in a task of nobody's.

    For a cache of one's own, whose `get_many` is cancelled while it waits for other keys.

    Args:
        cache: The cache.
        namespace: Whose keys.
        leases: The leases, by the texts of their keys.

    Raises:
        RuntimeError: If no event loop runs here.
    """
    backing_of(cache).give_back(namespace, leases)


def statistics(cache: SecondLevelCache) -> SecondLevelStatistics:
    """What the loaders of this process got from a cache, and gave to it."""
    return backing_of(cache).statistics()
