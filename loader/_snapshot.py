"""Snapshot: one value for many readers, kept fresh by a Coalescer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, final
from weakref import WeakSet

from loader._coalescer import Coalescer
from loader._dispatch import string
from loader._work import Bell, check_function, checked_seconds, invoke, name_of, waiting_for
from loader.errors import LoaderClosedError, LoaderTimeoutError, RunCancelledError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from loader._histogram import Histogram
    from loader._runs import OnError, Run

T = TypeVar("T")

FOREVER = float("inf")


@final
@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value of a snapshot at the moment it was looked at.

    Attributes:
        value: The value.
        version: 1 for the first value that was loaded, and one more for each later one.
        age: Seconds since its load began: nothing that happened since is sure to be in it.
        fresh: Whether it was neither invalidated nor older than `fresh_for`.
    """

    value: T
    version: int
    age: float
    fresh: bool


@final
@dataclass(frozen=True, slots=True)
class SnapshotStatistics:
    """What a snapshot did so far.

    Attributes:
        hits: Reads that got a fresh value at once.
        stale_hits: Reads that got a stale value at once.
        misses: Reads that had to wait for a load, or got the error of the last one.
        loads: Loads started.
        failures: Loads that failed, timed out or were cancelled.
        load_time: Seconds from the start of a load to its end.
    """

    hits: int
    stale_hits: int
    misses: int
    loads: int
    failures: int
    load_time: Histogram


def _limit(name: str, value: object) -> float:
    return FOREVER if value is None else checked_seconds("Snapshot", name, value)


class _Held(Generic[T]):
    """The value that a load came to, and when it goes stale."""

    __slots__ = ("generation", "loaded_at", "stale_at", "value", "version")

    def __init__(self, value: T, version: int, generation: int, loaded_at: float, stale_at: float) -> None:
        self.value = value
        self.version = version
        self.generation = generation
        self.loaded_at = loaded_at
        self.stale_at = stale_at


@final
class Snapshot(Generic[T]):
    """One value, loaded once for all who read it, and reloaded when it goes stale. All times are in seconds.

    A fresh value is returned at once. A stale one is, too, while a single load runs behind it; only where there is
    no value to serve does a read wait. At most one load is in flight. It runs in a task of its own, in a copy of the
    context in which the snapshot was made, and ends with the snapshot and not with a reader.

    A failed load leaves the old value in place. Its error is raised to those who wait for the load; if nobody does,
    it goes to `on_error`, or else to the loop's exception handler. For `error_backoff` seconds no read starts another
    load; `last_error` holds the error until a load succeeds.

    A load that waits for itself gets a SelfWaitError, also through loaders, triggers and batchers.

    Args:
        load: Loads the value, without arguments: `async def`, or anything that returns an awaitable.
        fresh_for: How long a value is fresh, counted from the start of its load. None: until it is invalidated.
        stale_for: How long a value that is not fresh any more may be served. 0 never serves a stale value, None
            sets no limit.
        timeout: How long a load may take. None sets no limit.
        error_backoff: How long after a failed load reads start no other. Reads that would have to wait for one
            get the error of the failed one instead; `refresh()` does load.
        name: What to call it in errors and in its `repr`; by default it is named after `load`.
        on_error: Called with the exception of a load that nobody waited for, in the snapshot's context.

    Raises:
        TypeError: If `load` is not callable or a generator function, if `on_error` is no plain function, a time no
            number, or `name` no string.
        ValueError: If a time is negative or not finite, or if `fresh_for` or `error_backoff` is 0.

    Examples:
        >>> import asyncio
        >>> from loader import Snapshot
        >>> async def main() -> None:
        ...     async def count_flights() -> int:
        ...         print("counting")
        ...         return 27004
        ...
        ...     async with Snapshot(count_flights, fresh_for=60) as flights:
        ...         print(await flights.get(), await flights.get())
        >>> asyncio.run(main())
        counting
        27004 27004
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[T]],
        *,
        fresh_for: float | None = None,
        stale_for: float | None = None,
        timeout: float | None = None,
        error_backoff: float = 1.0,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> None:
        check_function("Snapshot", load)
        self._fresh_for = _limit("fresh_for", fresh_for)
        self._stale_for = _limit("stale_for", stale_for)
        self._timeout = None if timeout is None else checked_seconds("Snapshot", "timeout", timeout)
        self._error_backoff = checked_seconds("Snapshot", "error_backoff", error_backoff)
        if self._fresh_for == 0 or self._error_backoff == 0:
            raise ValueError(
                "Snapshot: with fresh_for=0 or error_backoff=0 it would load without a pause for those who follow "
                "its changes. For a read that must not be served from before it, call get(max_age=0)."
            )
        self._load = load
        self._name = ("" if name is None else string("Snapshot: name", name)) or name_of(load)
        self._loads = Coalescer(self._load_once, name=f"of the snapshot {self._name}", on_error=on_error)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._held: _Held[T] | None = None
        self._version = 0
        # Counts invalidations. A load carries the number it began with; a value below `_floor` is not served at all.
        self._generation = self._floor = 0
        self._invalidated_at = 0.0
        # The generation and the time in which the load of the run `_began` began; None once that load is over.
        self._began: Run[T] | None = None
        self._loading: tuple[int, float] | None = None
        self._last_error: Exception | None = None
        self._last_traceback: TracebackType | None = None
        self._retry_at = -FOREVER
        self._followers: WeakSet[Changes[T]] = WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        self._hits = self._stale_hits = self._misses = 0

    async def get(self, *, max_age: float | None = None) -> T:
        """The value: at once if there is one to serve, else as soon as it is loaded.

        Args:
            max_age: How long ago the load of the value may have begun, less than so many seconds. 0 waits for a
                load that starts after this call. None leaves it to `fresh_for` and `stale_for`.

        Returns:
            The value; the same object for all readers.

        Raises:
            Exception: Whatever the load raised that this call waited for, or, during `error_backoff`, the last one.
            LoaderTimeoutError: If the load took longer than `timeout`.
            RunCancelledError: If the load was cancelled.
            LoaderClosedError: If the snapshot is closed, and has no value to serve.
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside the load, and would wait for it.
            TypeError: If `max_age` is no number.
            ValueError: If `max_age` is negative or not finite.

        Cancellation:
            Only this wait ends. The load goes on.
        """
        oldest = _limit("get(): max_age", max_age)
        now = self._home().time()
        held = self._servable(now)
        if held is not None and now - held.loaded_at < oldest:
            if now < held.stale_at:
                self._hits += 1
            else:
                self._stale_hits += 1
                self._reload(now)
            return held.value
        self._misses += 1
        self._refuse_if_closed()
        run = self._under_way(self._floor, now - oldest)
        if run is None and self._last_error is not None and now < self._retry_at:
            raise self._last_error.with_traceback(self._last_traceback)
        return await self._outcome(run)

    def peek(self) -> Versioned[T] | None:
        """The value that `get()` would return at once, or None. It starts no load.

        Raises:
            LoaderLoopError: If the call comes from no event loop, or from another one than the calls before.
        """
        now = self._home().time()
        held = self._servable(now)
        if held is None:
            return None
        return Versioned(held.value, held.version, now - held.loaded_at, now < held.stale_at)

    def invalidate(self, *, serve_stale: bool = True) -> None:
        """Say that the value is out of date.

        A load that is under way does not make it fresh, since it may have begun too early. The next read
        starts a load; if somebody follows `changes()`, it starts now.

        Args:
            serve_stale: Whether reads may be served the old value until then, for as long as `stale_for` allows.
                False makes them wait for a load that starts after this call.

        Raises:
            LoaderLoopError: If the call comes from no event loop, or from another one than the calls before.
        """
        now = self._invalidated_at = self._home().time()
        self._generation += 1
        if not serve_stale:
            self._floor = self._generation
        if self._held is not None:
            self._held.stale_at = min(self._held.stale_at, now)
        self._plan()

    async def refresh(self) -> T:
        """Load now, whatever there is, and return what comes of it. The load starts after this call.

        Raises:
            Exception: Whatever the load raised.
            LoaderTimeoutError: If the load took longer than `timeout`.
            RunCancelledError: If the load was cancelled.
            LoaderClosedError: If the snapshot is closed.
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside the load.

        Cancellation:
            Only this wait ends. The load goes on.
        """
        self._home()
        self._refuse_if_closed()
        return await self._outcome(None)

    def changes(self) -> Changes[T]:
        """The value now, and then each new one, for as long as you like.

        As long as somebody follows, the value is reloaded as soon as it goes stale, and again after a failure.
        See `Changes` for what a slow follower misses.
        """
        return Changes(self)

    @property
    def last_error(self) -> Exception | None:
        """The exception of the last load; None if it succeeded, or if there was none."""
        return self._last_error

    def statistics(self) -> SnapshotStatistics:
        """What happened so far."""
        loads = self._loads.statistics()
        return SnapshotStatistics(
            hits=self._hits,
            stale_hits=self._stale_hits,
            misses=self._misses,
            loads=loads.runs,
            failures=loads.failures + loads.cancelled,
            load_time=loads.run_time,
        )

    async def aclose(self) -> None:
        """Close: cancel the load, if one is under way, and end all `changes()`.

        What waits for a load gets an error. The last value stays readable, as stale as it gets.

        Raises:
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside the load.

        Cancellation:
            It is closed all the same.
        """
        self._home()
        with waiting_for(self._loads):
            self._closed = True
            self._plan()
            self._tell_followers()
            await self._loads.aclose(flush=False, timeout=0)

    async def __aenter__(self) -> Self:
        self._home()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "empty" if self._held is None else f"version {self._version}"
        return f"<Snapshot {self._name}: {state}>"

    def _home(self) -> asyncio.AbstractEventLoop:
        loop = self._loads._home()
        if loop is not self._loop:
            if self._loop is not None:
                # The clock of a loop that is closed says nothing about the age of anything now.
                self._held = self._began = self._loading = self._last_error = self._timer = None
                self._retry_at = -FOREVER
            self._loop = loop
        return loop

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise LoaderClosedError(f"{self!r} loads nothing any more. Make a new one, or read before closing.")

    async def _outcome(self, run: Run[T] | None) -> T:
        """What comes of `run`, or else of a load that starts now."""
        with waiting_for(self._loads):
            try:
                return await (run or self._loads._add(1)).result()
            except (RunCancelledError, LoaderClosedError) as error:
                if not self._closed:
                    raise
                # The error of the coalescer tells what happened to a run; the reader knows of no runs.
                raise type(error)(f"{self!r} was closed before the load was over that was waited for") from error

    def _valid(self) -> _Held[T] | None:
        """The value, unless it must not be served since it was invalidated."""
        held = self._held
        return None if held is None or held.generation < self._floor else held

    def _servable(self, now: float) -> _Held[T] | None:
        held = self._valid()
        return None if held is None or now >= held.stale_at + self._stale_for else held

    def _under_way(self, generation: int, since: float) -> Run[T] | None:
        """The run in flight, if its load began in `generation` or later and after `since`, or is still to begin."""
        run = self._loads._current
        if run is None or self._began is not run:
            return run
        if self._loading is None or self._loading[0] < generation or self._loading[1] <= since:
            return None
        return run

    def _reload(self, now: float) -> None:
        """Start a load of the present generation, unless one is to come, or the last failure is too recent."""
        if (
            not self._closed
            and now >= self._retry_at
            and not self._loads.pending
            and self._under_way(self._generation, -FOREVER) is None
        ):
            self._loads.trigger()

    def _plan(self) -> None:
        """While somebody follows, see that a stale value is reloaded without anybody reading it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed or not self._followers:
            return
        loop = self._home()
        now = loop.time()
        due = max(now if self._held is None else self._held.stale_at, self._retry_at)
        if due <= now:
            self._reload(now)
        elif due < FOREVER:
            self._timer = loop.call_at(due, self._plan, context=self._loads._context)

    def _tell_followers(self) -> None:
        for follower in list(self._followers):
            follower._bell.ring()

    async def _load_once(self) -> T:
        loop = self._home()
        self._began = self._loads._current
        generation, began_at = self._loading = self._generation, loop.time()
        try:
            value = await self._call_load()
        except BaseException as error:
            self._failed(error)
            raise
        self._loading = None
        self._last_error = None
        self._retry_at = -FOREVER
        if generation >= self._floor:
            stale_at = began_at + self._fresh_for
            if generation < self._generation:
                stale_at = min(stale_at, self._invalidated_at)
            self._version += 1
            self._held = _Held(value, self._version, generation, began_at, stale_at)
            self._tell_followers()
        self._plan()
        return value

    async def _call_load(self) -> T:
        limit = asyncio.timeout(self._timeout)
        try:
            async with limit:
                return await invoke(self, self._load)
        except TimeoutError as error:
            if not limit.expired():
                raise  # not ours, but one that the load itself came to
            late = f"{self!r}: the load took longer than its timeout of {self._timeout:g} s"
            raise LoaderTimeoutError(late) from error

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            cause, error = error, RunCancelledError(f"{self!r}: the load ended with {type(error).__name__}")
            error.__cause__ = cause
        self._loading = None
        self._last_error = error
        self._last_traceback = error.__traceback__
        self._retry_at = self._home().time() + self._error_backoff
        self._plan()


@final
class Changes(Generic[T]):
    """The values of a snapshot, each as soon as it is there: what a subscription returns.

    It begins with the value that the snapshot has, even a stale one, or with the first that is loaded. A follower
    that is slower than the changes gets the newest value next and misses those in between; nothing piles up. A
    failed load is not raised here; it is tried again after `error_backoff`. It ends when it is closed, or, after the
    last value, when the snapshot is.
    """

    __slots__ = ("__weakref__", "_bell", "_closed", "_seen", "_snapshot")

    def __init__(self, snapshot: Snapshot[T]) -> None:
        self._snapshot = snapshot
        self._seen = 0
        self._closed = False
        self._bell = Bell()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """The next value.

        Raises:
            StopAsyncIteration: If this or the snapshot was closed.
            LoaderLoopError: If the call comes from another event loop than the snapshot belongs to.
            SelfWaitError: If the call comes from inside the load, and would wait for it.

        Cancellation:
            Nothing is lost: the next call returns what this one would have returned.
        """
        snapshot = self._snapshot
        loop = snapshot._home()
        came: _Held[T] | None = None
        while not self._closed:
            if self not in snapshot._followers:
                snapshot._followers.add(self)
                snapshot._plan()
            held = came or snapshot._servable(loop.time())
            if held is not None and held.version > self._seen:
                self._seen = held.version
                return held.value
            if snapshot._closed:
                break
            known = snapshot._version
            with waiting_for(snapshot._loads):
                await self._bell.wait(loop)
            # However long it took to load: there is none that is newer.
            came = snapshot._valid() if snapshot._version > known else None
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop following. A call of `__anext__` that is waiting ends with StopAsyncIteration."""
        self._closed = True
        followers = self._snapshot._followers
        followers.discard(self)
        if not followers:
            self._snapshot._plan()
        self._bell.ring()
