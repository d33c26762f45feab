"""Where finished outcomes are kept: any mutable mapping, or an object with Strawberry's cache methods."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Protocol

from loader._loops import home_loop
from loader._waiters import answer, failed

if TYPE_CHECKING:
    import asyncio


class CacheObject(Protocol):
    """The methods of `strawberry.dataloader.AbstractCache`, which keeps futures."""

    def get(self, key: Any) -> asyncio.Future[Any] | None:
        """The future of a key, if there is one."""
        ...

    def set(self, key: Any, value: asyncio.Future[Any]) -> None:
        """Keep a future."""
        ...

    def delete(self, key: Any) -> None:
        """Forget a key."""
        ...

    def clear(self) -> None:
        """Forget every key."""
        ...


def as_mapping(cache: MutableMapping[Any, Any] | CacheObject) -> MutableMapping[Hashable, Any]:
    """The mapping to keep outcomes in.

    Raises:
        TypeError: If `cache` is neither a mutable mapping nor a cache object.
    """
    if isinstance(cache, MutableMapping):
        return cache
    if all(callable(getattr(cache, name, None)) for name in ("get", "set", "delete", "clear")):
        return _ObjectMapping(cache)
    raise TypeError(
        "cache_map takes a mutable mapping (a dict, an LRU or TTL cache) or an object with get, set, delete and "
        f"clear methods, not {cache!r}"
    )


class _ObjectMapping(MutableMapping[Hashable, Any]):
    """A cache object as a mapping. It keeps finished futures, since that is what it was written for."""

    def __init__(self, cache: CacheObject) -> None:
        self._cache = cache

    def __getitem__(self, key: Hashable) -> Any:
        future = self._cache.get(key)
        if future is None or not future.done() or future.cancelled():
            raise KeyError(key)
        error = future.exception()
        return future.result() if error is None else error

    def __setitem__(self, key: Hashable, outcome: Any) -> None:
        future = home_loop(None, self._cache).create_future()
        answer(future, outcome)
        if failed(outcome):
            future.exception()  # it is kept to be looked up, not to be awaited: asyncio need not miss that
        self._cache.set(key, future)

    def __delitem__(self, key: Hashable) -> None:
        self[key]
        self._cache.delete(key)

    def clear(self) -> None:
        self._cache.clear()

    def __iter__(self) -> Iterator[Hashable]:
        raise TypeError("this cache_map cannot list its keys")

    def __len__(self) -> int:
        return 0  # a cache object does not say how much it holds
