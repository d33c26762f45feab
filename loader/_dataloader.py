"""DataLoader: keys in, values out, each key asked for once."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import Future, _get_running_loop
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, final, overload

from loader._batch import BatchState
from loader._batching import Batching, _watching
from loader._caches import as_mapping
from loader._dispatch import Settle, boolean, seconds, string, whole_number
from loader._results import RAISE, BatchFunction, Shape
from loader._waiters import Group, failed
from loader._waits import current_work, under_way

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, MutableMapping
    from types import TracebackType
    from typing import Self, Unpack

    from loader._batch import Batch
    from loader._caches import CacheObject
    from loader._entries import SecondLevelCache
    from loader._histogram import Histogram
    from loader._options import CachedOptions
    from loader._results import By
    from loader.observe import Observer

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
D = TypeVar("D")

_MISSING: Any = object()  # "no value here", where None is a value


@final
@dataclass(frozen=True, slots=True)
class DataLoaderStatistics:
    """What a loader has done so far.

    Attributes:
        batches: How many times the batch function was called.
        keys: How many keys it was given, all batches together.
        failures: How many batches failed as a whole.
        abandoned: How many keys were given up since nobody waited for them any more: dropped before their batch left,
            or in a batch that was cancelled (`abandoned="cancel"`).
        waiting: How many keys wait for their batch to leave.
        running: How many batches are under way.
        cached: How many finished outcomes the cache holds.
        batch_size: The sizes of the batches.
    """

    batches: int
    keys: int
    failures: int
    abandoned: int
    waiting: int
    running: int
    cached: int
    batch_size: Histogram


class DataLoader(Batching, Generic[K, V]):
    """Values by key, each key asked for once, many keys in one call of a batch function.

    `load` takes one key and gives a future of its value; all keys asked for in the same burst reach `load_fn` in
    one call. A caller owns its future: cancelling it, or the task that awaits it, changes nothing for others. A key
    is asked for once while it waits and once while its batch is under way, cached or not. An exception that
    `load_fn` raises reaches every caller of that batch and is not cached; one that it returns in place of a value
    reaches the callers of that key. All times are in seconds.

    Examples:
        >>> import asyncio
        >>> from loader import DataLoader
        >>> async def load_squares(numbers: list[int]) -> list[int]:
        ...     print("asked for", numbers)
        ...     return [number * number for number in numbers]
        >>> async def main() -> list[int]:
        ...     squares = DataLoader(load_squares)
        ...     return await asyncio.gather(squares.load(2), squares.load(3), squares.load(2))
        >>> asyncio.run(main())
        asked for [2, 3]
        [4, 9, 4]

    Args:
        load_fn: The batch function: called with a list of distinct keys, it returns a value for each in their order,
            or a mapping from keys to values. It may be an `async def`, an async generator function of (key, value)
            pairs that answers each caller as its pair comes, or a `def`, which runs in a worker thread.
        max_batch_size: How many keys a batch holds at most; a full one leaves at once. None is no limit.
        window: When a batch leaves. None and `Settle()`: as soon as no resolver that can run adds a key (see
            `Settle`). A number: so many seconds after its first key.
        cache: Whether finished outcomes are kept. Without it a key that is asked for again after it was answered is
            fetched again.
        cache_key_fn: Makes the hashable identity of a key, for keys that have none or that mean the same. The keys
            of a mapping and of rows go through it too.
        cache_map: Where finished outcomes are kept, a dict of the loader's own by default: any mutable mapping (it
            holds values, and exceptions for failed keys), or an object with the methods of Strawberry's
            `AbstractCache`.
        default: What a key gets that a mapping, `index_by` or an async generator has no value for. By default its
            callers get a `KeyNotFoundError`. One object serves all keys: do not give a list that somebody changes.
        index_by: Declares that `load_fn` returns rows in any order, one for each key, and how to find a row's key:
            the name of an attribute or item, a tuple of names for a composite key, or a function of the row.
        group_by: The same where a key may have any number of rows; each key gets the list of its rows.
        max_concurrent_batches: How many batches of this loader run at once; more wait, still taking keys. A batch
            that another one waits for never waits for that one's slot.
        max_pending: How many keys may wait to be sent.
        timeout: How long a batch may take from leaving to its last answer, waiting for a slot included.
        abandoned: What becomes of a running batch when all its callers have left: "finish" lets it fill the cache,
            "cancel" ends it.
        name: What errors and statistics call this loader; the name of `load_fn` by default.
        observer: Who is told what this loader does, besides those who observe its scope or the process: an
            `Observer` of `loader.observe`.
        second_level: Where values stay that outlive this loader (see `loader.second_level`): asked before `load_fn`,
            once for a batch. A batch that it answers counts in the statistics as any other.
        fresh_for: How long after it was asked for a value may be served from there.
        missing_fresh_for: The same for keys that have no value; 0 remembers none. Exceptions are never kept.
        schema_version: What changes with the meaning or the type of the values: those of other versions are not seen.
        tags: What else the values are made of: a change of one of these concerns all keys of the loader.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument has no sensible meaning, or two contradict each other.
    """

    _is_declared = False
    """Whether a class has it as an attribute, by whose name other processes know it."""

    @overload
    def __init__(
        self: DataLoader[K, list[T]],
        load_fn: Callable[[list[K]], Awaitable[Iterable[T]] | Iterable[T]],
        *,
        group_by: By,
        **options: Unpack[CachedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[K, T | D],
        load_fn: Callable[[list[K]], Awaitable[Iterable[T]] | Iterable[T]],
        *,
        index_by: By,
        default: D,
        **options: Unpack[CachedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[K, T],
        load_fn: Callable[[list[K]], Awaitable[Iterable[T]] | Iterable[T]],
        *,
        index_by: By,
        **options: Unpack[CachedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[K, T | D],
        load_fn: Callable[[list[K]], AsyncIterator[tuple[K, T | BaseException]]],
        *,
        default: D,
        **options: Unpack[CachedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[K, T],
        load_fn: Callable[[list[K]], AsyncIterator[tuple[K, T | BaseException]]],
        **options: Unpack[CachedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[K, T | D],
        load_fn: Callable[[list[K]], Awaitable[Mapping[K, T | BaseException]] | Mapping[K, T | BaseException]],
        *,
        default: D,
        **options: Unpack[CachedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[K, T],
        load_fn: Callable[[list[K]], Awaitable[Mapping[K, T | BaseException]] | Mapping[K, T | BaseException]],
        **options: Unpack[CachedOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: DataLoader[K, T],
        load_fn: Callable[[list[K]], Awaitable[Iterable[T | BaseException]] | Iterable[T | BaseException]],
        **options: Unpack[CachedOptions],
    ) -> None: ...

    def __init__(
        self,
        load_fn: Callable[[list[Any]], Any],
        *,
        max_batch_size: int | None = None,
        window: float | Settle | None = None,
        cache: bool = True,
        cache_key_fn: Callable[[Any], Hashable] | None = None,
        cache_map: MutableMapping[Any, Any] | CacheObject | None = None,
        default: Any = RAISE,
        index_by: By | None = None,
        group_by: By | None = None,
        max_concurrent_batches: int | None = None,
        max_pending: int | None = None,
        timeout: float | None = None,
        abandoned: Literal["finish", "cancel"] = "finish",
        name: str | None = None,
        observer: Observer | None = None,
        second_level: SecondLevelCache | None = None,
        fresh_for: float | None = None,
        missing_fresh_for: float = 0.0,
        schema_version: str | int = "",
        tags: Collection[str] = (),
    ) -> None:
        for option, value in (
            ("max_batch_size", max_batch_size),
            ("max_concurrent_batches", max_concurrent_batches),
            ("max_pending", max_pending),
        ):
            if value is not None:
                whole_number(option, value, least=1)
        boolean("cache", cache)
        if cache_key_fn is not None and not callable(cache_key_fn):
            raise TypeError(f"cache_key_fn takes a function of a key, not {cache_key_fn!r}")
        if abandoned not in ("finish", "cancel"):
            raise ValueError(f"abandoned is 'finish' or 'cancel', not {abandoned!r}")
        if observer is not None:
            from loader.observe import check_observer

            check_observer(observer)
        if cache_map is not None and not cache:
            raise ValueError("cache=False keeps nothing: cache_map would never be used")
        own_name = _name_of(load_fn) if name is None else string("name", name)
        shape: dict[str, Any] = {
            "index_by": index_by,
            "group_by": group_by,
            "default": default,
            "cache_key_fn": cache_key_fn,
        }
        if second_level is not None:
            from loader._backed import Backed

            self._backed = Backed(
                second_level,
                load_fn,
                name=own_name,
                fresh_for=fresh_for,
                missing_fresh_for=missing_fresh_for,
                schema_version=schema_version,
                tags=tags,
                **shape,
            )
        elif fresh_for is not None or missing_fresh_for or schema_version != "" or tags:
            raise ValueError("fresh_for, missing_fresh_for, schema_version and tags are for a second_level: give one")
        super().__init__(
            own_name,
            self._backed or BatchFunction(load_fn),
            self._backed or Shape(**shape),
            max_batch_size=max_batch_size,
            window=Settle() if window is None else window if isinstance(window, Settle) else seconds("window", window),
            values=None if not cache else {} if cache_map is None else as_mapping(cache_map),
            own_values=cache_map is None,
            cache_key_fn=cache_key_fn,
            max_concurrent_batches=max_concurrent_batches,
            max_pending=max_pending,
            timeout=None if timeout is None else seconds("timeout", timeout),
            cancel_abandoned=abandoned == "cancel",
            observer=observer,
        )
        if self._backed is not None:
            self._backed.join(self, name)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._waiting)} waiting"
        return f"<DataLoader {self.name}: {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} belongs to its event loop, and can be neither copied nor pickled: make another one")

    # -- asking ------------------------------------------------------------------------------------------------

    def load(self, key: K) -> Future[V]:
        """A future of the value of `key`, which joins the batch that is being gathered.

        The key is put down at the call, not when the future is awaited. The future is the caller's own, or is
        finished already.

        Raises:
            LoaderClosedError: If the loader was closed.
            LoaderLoopError: If no event loop runs here, or another one than the loader's, and the key is not known yet.
            LoaderOverloadedError: If `max_pending` keys wait already.
            SelfWaitError: If a batch function, or a run, asks for a key whose batch waits for it.
            TypeError: If the key is not hashable and there is no `cache_key_fn`.

        Cancellation:
            Cancelling the future, or a task that awaits it, ends this caller's wait only. A key whose
            callers have all left before its batch leaves is not asked for.
        """
        try:
            answered = self._known.get(key)
        except TypeError as error:
            raise self._unhashable(key) from error
        if answered is not None:
            return answered  # on whichever loop: to ask which one runs costs a third more, on CPython 3.11 much more
        cache_key: Any = key
        if self._cache_key_fn is not None:
            cache_key = self._hashable(key)
            if cache_key in self._answered:
                return self._answered[cache_key]
        if get_ident() != self._runs._thread_id if _asking_is_dear else _get_running_loop() is not self._loop:
            self._come_home()
        batch: Batch | None
        if cache_key in self._waiting:
            batch = self._waiting[cache_key]
            if under_way and current_work.get() is not None:
                self._note_asking(batch)
            future: Future[V] = Future(loop=self._loop)
            batch.callers.join(cache_key, future)
        else:
            if self._own is None or cache_key in self._own:
                outcome = self._values.get(cache_key, _MISSING)  # type: ignore[union-attr]  # `_own` would be empty
                if outcome is not _MISSING:
                    return self._recall(cache_key, outcome)
            batch = self._open
            if batch is None or self._max_pending is not None:
                batch = self._open_batch(adding=1)
            if under_way and current_work.get() is not None:
                self._note_asking(batch)
            future = Future(loop=self._loop)
            futures = batch.callers.futures
            futures[cache_key] = future
            self._waiting[cache_key] = batch
            self._activity.moved = True
            if batch.plain:
                return future
            if batch.keys is not None:
                batch.keys[cache_key] = key
            if self._max_batch_size is not None and len(futures) == self._max_batch_size:
                self._close_batch(batch)
        if batch.attended:
            self._attend(batch, future, 1)
        return future

    @overload
    def load_many(self, keys: Iterable[K], *, return_exceptions: Literal[False] = False) -> Future[list[V]]: ...
    @overload
    def load_many(self, keys: Iterable[K], *, return_exceptions: bool) -> Future[list[V | Exception]]: ...

    def load_many(
        self, keys: Iterable[K], *, return_exceptions: bool = False
    ) -> Future[list[V]] | Future[list[V | Exception]]:
        """A future of the values of `keys`, in their order; finished already if all are cached.

        Args:
            keys: The keys. One that is repeated is asked for once.
            return_exceptions: Put the exception of a key in its place instead of failing.

        Raises:
            LoaderClosedError: If the loader was closed.
            LoaderLoopError: If no event loop runs here, or another one than the loader's.
            LoaderOverloadedError: If the new ones among the keys would exceed `max_pending`; then none is asked for.
            SelfWaitError: If a batch function, or a run, asks for a key whose batch waits for it.
            TypeError: If `keys` is a string or not iterable, or a key is not hashable.

        Cancellation:
            As for `load`, for all the keys together.
        """
        if _get_running_loop() is not self._loop:
            self._come_home()
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise TypeError(f"{self!r}: load_many takes an iterable of keys, not {keys!r}; one key is for load")
        future: Future[Any] = Future(loop=self._loop)
        found: dict[Hashable, Any] = {}
        new: dict[Hashable, K] = {}
        joined: dict[Batch, dict[Hashable, None]] = {}
        cache_keys: list[Hashable] = []
        for key in tuple(keys):  # all are known before any is put down
            cache_key: Any = key if self._cache_key_fn is None else self._cache_key_fn(key)
            cache_keys.append(cache_key)
            try:
                batch = self._waiting.get(cache_key)
            except TypeError as error:
                raise self._unhashable(cache_key) from error
            if batch is not None:
                joined.setdefault(batch, {})[cache_key] = None
            elif self._values is None or (outcome := self._values.get(cache_key, _MISSING)) is _MISSING:
                new.setdefault(cache_key, key)
            else:
                found[cache_key] = outcome
        # Whatever may be refused comes before anything is put down.
        for batch in joined:
            self._note_asking(batch)
        if new:
            self._open_batch(adding=len(new))
        missing = len(new) + sum(map(len, joined.values()))
        group = Group(future, cache_keys, found, missing, return_exceptions=return_exceptions)
        if found and self.observed:
            _watching().cached(self, len(found))
        for batch, its_keys in joined.items():
            batch.callers.join_group(group, its_keys)
            if batch.attended:
                self._attend(batch, future, len(its_keys))
        if new:
            self._add_group(group, new)
        return future

    def prime(self, key: K, value: V | BaseException, *, force: bool = False) -> None:
        """Put down the value of a key that became known otherwise; callers that wait for it get it at once.

        A key that is cached or under way keeps what it has, or will have, unless `force` is given. Without a cache
        only those that wait for the key are served.

        Args:
            key: The key.
            value: Its value, or an exception instance that its callers get raised.
            force: Replace what is known. The callers of a batch that is under way still get what that batch brings.

        Raises:
            LoaderClosedError: If the loader was closed.
            LoaderLoopError: If callers wait for the key and the call comes from elsewhere than their event loop, or no
                loop runs and `cache_map` is an object that keeps futures.
            TypeError: If the key is not hashable and there is no `cache_key_fn`.
        """
        if self._closed or (self._waiting and _get_running_loop() is not self._loop):
            self._come_home()
        cache_key = self._hashable(key)
        batch = self._waiting.get(cache_key)
        if batch is None:
            if not force and self._values is not None and cache_key in self._values:
                return
        elif batch.state is not BatchState.RUNNING:
            self._drop(batch, cache_key)
            batch.callers.answer_key(cache_key, value)
        elif force:
            del self._waiting[cache_key]  # what the batch brings for this key is older than `value`
            self._clears += 1
        else:
            return
        self._answered.pop(cache_key, None)
        if self._values is not None:
            self._values[cache_key] = value

    def prime_many(self, data: Mapping[K, V | BaseException], *, force: bool = False) -> None:
        """`prime` each key of a mapping with its value.

        Raises:
            TypeError: If `data` is no mapping.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"{self!r}: prime_many takes a mapping from keys to values, not {data!r}")
        for key, value in data.items():
            self.prime(key, value, force=force)

    @overload
    def peek(self, key: K) -> V | None: ...
    @overload
    def peek(self, key: K, default: D) -> V | D: ...

    def peek(self, key: K, default: Any = None) -> Any:
        """The value of `key` if it is cached, else `default`. Asks nothing and waits for nothing.

        A key whose outcome is an exception has no value.
        """
        if self._values is None:
            return default
        outcome = self._values.get(self._hashable(key), default)
        return default if failed(outcome) else outcome

    def clear(self, key: K) -> None:
        """Forget what is known of `key`; a key that is not known is no error.

        A load after it asks again, even while a batch with the key is under way: callers before it get what that
        batch brings, which is not cached any more. A second-level cache keeps what it has, for others; loads of this
        loader ask the backend for the key from now on.
        """
        cache_key = self._hashable(key)
        if self._backed is not None:
            self._backed.clear(cache_key)
        self._clear(cache_key)

    def clear_many(self, keys: Iterable[K]) -> None:
        """`clear` each of the keys."""
        for key in keys:
            self.clear(key)

    def clear_all(self) -> None:
        """Forget every key, as `clear` does for one."""
        if self._backed is not None:
            self._backed.clear_all()
        self._clear_all()

    def _clear_all(self) -> None:
        self._clears += 1
        self._waiting = {key: batch for key, batch in self._waiting.items() if batch.state is not BatchState.RUNNING}
        self._answered.clear()
        self._notes = None
        if self._values is not None:
            self._values.clear()

    def flush(self) -> None:
        """Send the batch that is being gathered now, without waiting until it settles or its window is over.

        Raises:
            LoaderLoopError: If a batch is being gathered and the call comes from elsewhere than its event loop.
        """
        if self._open is not None and _get_running_loop() is not self._loop:
            self._come_home()
        if self._open is not None:
            self._open.departure.now()

    def statistics(self) -> DataLoaderStatistics:
        """What the loader has done so far."""
        running = sum(batch.state is BatchState.RUNNING for batch in self._batches)
        sizes = self._sizes.snapshot()
        return DataLoaderStatistics(
            batches=sizes.count,
            keys=int(sizes.total),
            failures=self._failures,
            abandoned=self._abandoned,
            waiting=self._pending(),
            running=running,
            cached=0 if self._values is None else len(self._values),
            batch_size=sizes,
        )

    async def aclose(self) -> None:
        """Cancel every batch and refuse further loads. Callers that wait get a `LoaderClosedError`.

        Returns when the batch functions have ended, each of which is cancelled once: one that takes no notice is waited
        for, after its callers have been answered. Closing twice is no error.

        Cancellation:
            The loader is closed and its callers have their answers whatever happens to this call.
        """
        tasks = self._close()
        me = asyncio.current_task()
        others = [task for task in tasks if task is not me]
        if others:
            await asyncio.wait(others)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()


def _forked() -> None:
    global _asking_is_dear
    _asking_is_dear = False  # the copy of a loop that runs looks as if it ran, too


_asking_is_dear = sys.version_info < (3, 12)
"""Whether to ask which loop runs makes a call of the system, to tell a fork: a fifth of a load. It is then enough that
the loader's loop runs, and in this thread; and loops are not asked for that by a method, which is 5 % of a load."""
getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_forked)  # which Windows lacks


def _name_of(load_fn: Any) -> str:
    """What to call a loader of this function."""
    inner = getattr(load_fn, "func", load_fn)  # a partial has no name of its own
    return getattr(inner, "__qualname__", None) or type(inner).__qualname__
