"""What a batch function may be and return, and how that becomes one outcome for each key.

Nothing is guessed: a result of another shape than the one that was promised is an error that says so.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import reprlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from operator import attrgetter
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeAlias

from loader.errors import BatchResultError, KeyNotFoundError, LoaderLoopError

if TYPE_CHECKING:
    from collections.abc import Hashable

RAISE: Any = type("RAISE", (), {"__repr__": lambda _: "RAISE"})()
"""The value of `default` that stands for no default: a missing key raises `KeyNotFoundError`."""

NO_LOOP = ("no running event loop", "no current event loop")
"""What asyncio says where it needs a loop and none runs."""

By: TypeAlias = str | tuple[str, ...] | Callable[[Any], Any]
"""How to find a row's key: an attribute or item name, several of them, or a function of the row."""


class BatchFunction:
    """A batch function of any kind, called with a list of keys.

    `await call(keys)` gives what the function returns. An `async def` runs on the loop. A plain `def` runs in a
    worker thread, with the context variables of the call, since it may block. What it returns may still be a coroutine
    or an async iterator, as that of a lambda around an `async def` is: from then on the function is called on the
    loop, as it evidently does not block.
    """

    __slots__ = ("_function", "_on_loop")

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        if not callable(function):
            raise TypeError(f"load_fn must be a function of a list of keys, not {_short(function)}")
        self._function = function
        called = function.func if isinstance(function, partial) else function
        if not inspect.isroutine(called):
            called = type(called).__call__
        self._on_loop = inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)

    async def __call__(self, keys: list[Any]) -> Any:
        """Call the function; an async iterator is returned as it is."""
        if self._on_loop:
            result = self._function(keys)
        else:
            result = await self._in_thread(keys)
            self._on_loop = isinstance(result, Awaitable | AsyncIterator)
        return await result if isinstance(result, Awaitable) else result

    async def _in_thread(self, keys: list[Any]) -> Any:
        """Call the function in a worker thread.

        Cancellation: A thread cannot be cancelled, so the call ends with its thread: what the function works with, and
        the slot that it holds, are in use until then. A second cancellation does not wait.
        """
        context = contextvars.copy_context()
        thread = asyncio.get_running_loop().run_in_executor(None, lambda: context.run(self._blocking, keys))
        try:
            # Shielded, since a future that was cancelled no longer tells when its thread ends.
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            await asyncio.wait([thread])
            thread.exception()  # seen, so that asyncio does not report what is nobody's answer
            raise

    def _blocking(self, keys: list[Any]) -> Any:
        try:
            result = self._function(keys)
            # A generator or a lazy query does its work, which may block, while it is read.
            lazy = isinstance(result, Iterable) and not isinstance(result, Collection | Awaitable)
            return list(result) if lazy else result
        except StopIteration as error:
            # No future can hold a StopIteration: the thread's would never be done.
            raise RuntimeError("the batch function raised StopIteration") from error
        except RuntimeError as error:
            if not any(text in str(error) for text in NO_LOOP):
                raise
            raise LoaderLoopError(
                "the batch function asks for the event loop, as asyncio.gather and create_task do, but is no `async "
                "def`, and so was called in a worker thread, as it may block: make it an `async def`"
            ) from error


class Shape:
    """The shape of result that a loader was promised; `read` turns a result into one outcome for each key."""

    __slots__ = ("_cache_key", "_default", "_group_by", "_index_by", "_key_of", "missed")

    def __init__(
        self,
        *,
        index_by: Any = None,
        group_by: Any = None,
        default: Any = RAISE,
        cache_key_fn: Callable[[Any], Hashable] | None = None,
    ) -> None:
        if index_by is not None and group_by is not None:
            raise ValueError("index_by promises one row for each key, group_by many: give one of them")
        if group_by is not None and default is not RAISE:
            raise ValueError("group_by gives a key without rows an empty list: default= would never be used")
        self.missed: int = 0  # for how many keys nothing came, all results together
        self._index_by = index_by
        self._group_by = group_by
        self._default = default
        self._cache_key = cache_key_fn
        by = group_by if index_by is None else index_by
        self._key_of = None if by is None else _getter(by)

    def read(
        self, who: str, keys: list[Any], cache_keys: list[Hashable], result: Any
    ) -> tuple[dict[Hashable, Any], dict[Hashable, Any]]:
        """One outcome for each cache key, and the outcomes that came for keys nobody asked for.

        Args:
            who: The loader's name, for errors.
            keys: The keys that the batch function was given.
            cache_keys: The same keys as the loader stores them.
            result: What the batch function returned.

        Raises:
            BatchResultError: If the result has not the promised shape.
        """
        if self._key_of is not None:
            rows = self._rows(who, result)
            if self._group_by is not None:
                return self._grouped(who, cache_keys, rows), {}
            return self._looked_up(who, keys, cache_keys, self._indexed(who, rows))
        if isinstance(result, Mapping):
            _refuse_coroutines(who, result.values())
            found = dict(result) if self._cache_key is None else {self._cache_key(k): v for k, v in result.items()}
            return self._looked_up(who, keys, cache_keys, found)
        values = result if type(result) is list else self._listed(who, result, "a list of values or a mapping")
        _refuse_coroutines(who, values)
        if len(values) != len(keys):
            raise BatchResultError(
                f"{who}: the batch function was given {len(keys)} keys and promised a value for each, in their order, "
                f"but returned {len(values)}. Return None, an exception or a default for a key that has no value, "
                f"or a mapping from keys to values. Keys: {_short(keys)}; values: {_short(values)}"
            )
        return dict(zip(cache_keys, values, strict=True)), {}

    def pair(self, who: str, item: Any) -> tuple[Hashable, Any]:
        """The cache key and the outcome in what an async generator yielded.

        Raises:
            BatchResultError: If it is no pair, or its key is not hashable.
        """
        if not isinstance(item, tuple) or len(item) != 2:
            raise BatchResultError(
                f"{who}: the batch function is an async generator, which yields (key, value) pairs; "
                f"it yielded {_short(item)}"
            )
        key, value = item
        cache_key: Hashable = key if self._cache_key is None else self._cache_key(key)
        try:
            hash(cache_key)
        except TypeError:
            raise BatchResultError(
                f"{who}: the batch function yielded the key {_short(cache_key)}, which is not hashable"
            ) from None
        return cache_key, value

    def missing(self, who: str, key: Any) -> Any:
        """The outcome of a key for which the batch function had nothing."""
        self.missed += 1
        if self._default is not RAISE:
            return self._default
        return KeyNotFoundError(f"{who}: no value came for key {_short(key)}; pass default= if that is no error")

    def _looked_up(
        self, who: str, keys: list[Any], cache_keys: list[Hashable], found: dict[Hashable, Any]
    ) -> tuple[dict[Hashable, Any], dict[Hashable, Any]]:
        outcomes = {}
        for key, cache_key in zip(keys, cache_keys, strict=True):
            outcomes[cache_key] = found.pop(cache_key) if cache_key in found else self.missing(who, key)
        return outcomes, found

    def _indexed(self, who: str, rows: list[Any]) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for row in rows:
            key = self._row_key(who, row)
            if key in found:
                raise BatchResultError(
                    f"{who}: index_by={self._index_by!r} promises one row for each key, but two rows have the key "
                    f"{_short(key)}; use group_by= if a key may have several"
                )
            found[key] = row
        return found

    def _grouped(self, who: str, cache_keys: list[Hashable], rows: list[Any]) -> dict[Hashable, Any]:
        groups: dict[Hashable, Any] = {key: [] for key in cache_keys}
        for row in rows:
            group = groups.get(self._row_key(who, row))
            if group is not None:
                group.append(row)
        return groups

    def _row_key(self, who: str, row: Any) -> Hashable:
        assert self._key_of is not None
        try:
            key = self._key_of(row)
            cache_key: Hashable = key if self._cache_key is None else self._cache_key(key)
            hash(cache_key)
        except Exception as error:
            by = f"index_by={self._index_by!r}" if self._group_by is None else f"group_by={self._group_by!r}"
            raise BatchResultError(f"{who}: {by} finds no usable key in the row {_short(row)}: {error!r}") from error
        return cache_key

    def _rows(self, who: str, result: Any) -> list[Any]:
        if isinstance(result, Mapping):
            by = "index_by" if self._group_by is None else "group_by"
            raise BatchResultError(
                f"{who}: {by} promises rows, whose keys are found in them, but a mapping came: {_short(result)}. "
                f"Return its rows, or leave {by} out and return the mapping from keys to values"
            )
        return self._listed(who, result, "rows")

    @staticmethod
    def _listed(who: str, result: Any, promised: str) -> list[Any]:
        if isinstance(result, str | bytes | AbstractSet) or not isinstance(result, Iterable):
            hint = "; a set has no order" if isinstance(result, AbstractSet) else ""
            raise BatchResultError(
                f"{who}: the batch function promised {promised}, but returned {_short(result)}{hint}"
            )
        return list(result)


def _refuse_coroutines(who: str, values: Collection[Any]) -> None:
    """Refuse what lacks an `await`: a caller would get the coroutine as its value. The first value stands for all."""
    if values and type(next(iter(values))) is CoroutineType:
        for value in values:
            if type(value) is CoroutineType:
                value.close()  # or Python says of each that it was never awaited
        raise BatchResultError(
            f"{who}: the batch function returned coroutines instead of values. "
            "Await them in it, as in `return await asyncio.gather(*coroutines)`"
        )


def _getter(by: Any) -> Callable[[Any], Any]:
    """A function that finds a row's key: by attribute or item name, by several of them, or as the user says."""
    if callable(by):
        return by  # type: ignore[no-any-return]
    if isinstance(by, str) and by:
        attribute = attrgetter(by)
        return lambda row: row[by] if isinstance(row, Mapping) else attribute(row)
    if isinstance(by, tuple) and by and all(isinstance(name, str) and name for name in by):
        parts = [_getter(name) for name in by]
        return lambda row: tuple(part(row) for part in parts)
    raise TypeError(
        "index_by and group_by take the name of an attribute or item, a tuple of names, or a function, "
        f"not {_short(by)}"
    )


def _short(value: Any) -> str:
    """A repr for an error message: cut short, and never a second error."""
    return f"{reprlib.repr(value)} ({type(value).__name__})"
