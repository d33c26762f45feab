"""MemoryCache: a second-level cache in the memory of one process."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from loader._dispatch import seconds, whole_number
from loader._entries import Entry, Found, Namespace, Stored

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Sequence

    from loader._entries import Codec

_Row = tuple[str, str, str, str]  # loader, version, tenant, key


@dataclass(slots=True, eq=False)
class _Slot:
    """A value, or the lease that somebody has of it; a lease is the slot itself."""

    since: float
    until: float
    stored: Stored | None = None


@final
class MemoryCache:
    """Keeps values from one request to the next, in the memory of this process.

    What it keeps is shared by all requests: with a `codec` each gets a value of its own, without one all get the same
    object, which nobody must change. It forgets what was not used for longest. Event loops of several threads may share
    it. All times are in seconds.

    Args:
        max_entries: How many values it holds.
        codec: What values go through, as `loader.redis.MsgspecCodec`.
        lease_for: How long a load may take; a slower one is not kept.
        max_wait: How long a load waits for another one of the same key.

    Raises:
        TypeError: If a number is none.
        ValueError: If `max_entries` is below 1, or a time negative or not finite.

    Examples:
        >>> import asyncio
        >>> from loader import Loaders, dataloader
        >>> from loader.second_level import MemoryCache, drain, invalidate
        >>> cache = MemoryCache()
        >>> class AppLoaders(Loaders):
        ...     @dataloader(second_level=cache, fresh_for=60)
        ...     async def squares(self, numbers: list[int]) -> list[int]:
        ...         print("asked for", numbers)
        ...         return [number * number for number in numbers]
        >>> async def request(*numbers: int) -> list[int]:
        ...     async with AppLoaders() as loaders:
        ...         return await loaders.squares.load_many(numbers)
        >>> async def main() -> None:
        ...     print(await request(1, 2))
        ...     await drain(cache)
        ...     print(await request(2, 3))
        ...     await invalidate(AppLoaders().squares, [2])
        ...     print(await request(2, 1))
        >>> asyncio.run(main())
        asked for [1, 2]
        [1, 4]
        asked for [3]
        [4, 9]
        asked for [2]
        [4, 1]
    """

    shared: bool = False

    def __init__(
        self,
        *,
        max_entries: int = 10_000,
        codec: Codec | None = None,
        lease_for: float = 5.0,
        max_wait: float = 0.2,
    ) -> None:
        self.codec: Codec | None = codec
        whole_number("max_entries", max_entries, least=1)
        self._max_entries = max_entries
        self._lease_for = seconds("lease_for", lease_for)
        self._max_wait = seconds("max_wait", max_wait)
        # By row and parameters, those that were used longest ago first; and which parameters a row has slots of.
        self._slots: OrderedDict[tuple[_Row, str], _Slot] = OrderedDict()
        self._rows: dict[_Row, set[str]] = {}
        self._lock = Lock()  # of all that is above and below: other threads have loops of their own
        self._waiting: set[Future[None]] = set()

    def __len__(self) -> int:
        return len(self._slots)

    async def get_many(self, namespace: Namespace, keys: Sequence[str], *, wait: bool = False) -> Found:
        """As `SecondLevelCache` says."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_wait
        stored: dict[str, Stored] = {}
        leases: dict[str, Any] = {}
        busy = keys
        while True:
            with self._lock:
                busy = self._get(namespace, busy, loop.time(), stored, leases)
                if not (wait and busy):
                    return Found(stored, leases, busy)
                changed: Future[None] = loop.create_future()
                self._waiting.add(changed)
            try:
                if not (await asyncio.wait([changed], timeout=deadline - loop.time()))[0]:
                    return Found(stored, leases)
            except BaseException:
                with self._lock:
                    for key, lease in leases.items():  # nobody will hear of them
                        where = _row(namespace, key), namespace.parameters
                        if self._slots.get(where) is lease:
                            self._drop(where)
                    self._wake()
                raise
            finally:
                with self._lock:
                    self._waiting.discard(changed)

    async def set_many(self, entries: Sequence[Entry]) -> None:
        """As `SecondLevelCache` says."""
        now = asyncio.get_running_loop().time()
        with self._lock:
            for entry in entries:
                where = _row(entry.namespace, entry.key), entry.namespace.parameters
                held = self._slots.get(where)
                if held is None or held is not entry.lease or held.until <= now:
                    continue
                self._drop(where)
                if held.since + entry.fresh_for > now:
                    slot = _Slot(held.since, held.since + entry.fresh_for)
                    slot.stored = Stored(entry.data, slot)
                    self._put(where, slot)
            self._wake()

    async def delete_many(self, namespace: Namespace, keys: Sequence[str] | None) -> None:
        """As `SecondLevelCache` says."""
        with self._lock:
            if keys is None:
                whose = namespace.loader, namespace.version
                rows = [row for row in self._rows if row[:2] == whose]
            else:
                rows = [_row(namespace, key) for key in keys]
            for row in rows:
                for parameters in list(self._rows.get(row, ())):
                    self._drop((row, parameters))
            self._wake()

    def _get(
        self,
        namespace: Namespace,
        keys: Sequence[str],
        now: float,
        stored: dict[str, Stored],
        leases: dict[str, Any],
    ) -> list[str]:
        """Put down what there is of keys, or leases of those that there is nothing of; those that are busy."""
        busy: list[str] = []
        for key in keys:
            where = _row(namespace, key), namespace.parameters
            slot = self._slots.get(where)
            if slot is None or slot.until <= now:
                leases[key] = slot = _Slot(now, now + self._lease_for)
                self._put(where, slot)
            elif slot.stored is None:
                busy.append(key)
            else:
                stored[key] = slot.stored
                self._slots.move_to_end(where)
        return busy

    def _wake(self) -> None:
        """Have all who wait look again."""
        waiting, self._waiting = self._waiting, set()
        for changed in waiting:
            with suppress(RuntimeError):  # its loop is closed
                changed.get_loop().call_soon_threadsafe(changed.set_result, None)

    def _put(self, where: tuple[_Row, str], slot: _Slot) -> None:
        self._slots[where] = slot
        self._slots.move_to_end(where)
        self._rows.setdefault(where[0], set()).add(where[1])
        if len(self._slots) > self._max_entries:
            self._drop(next(iter(self._slots)))

    def _drop(self, where: tuple[_Row, str]) -> None:
        row, parameters = where
        del self._slots[where]
        variants = self._rows[row]
        variants.discard(parameters)
        if not variants:
            del self._rows[row]


def _row(namespace: Namespace, key: str) -> _Row:
    return namespace.loader, namespace.version, namespace.tenant, key
