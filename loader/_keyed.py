"""Keyed: a debouncer or coalescer for each key, for as long as the key has work."""

from __future__ import annotations

import reprlib
from asyncio import get_running_loop
from collections.abc import Hashable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar, final

from loader._dispatch import string
from loader._doorbell import Doorbell
from loader._loops import home_loop
from loader._runs import Closing, Run, Tally, Trigger, TriggerStatistics
from loader._work import capture_context, check_function, checked_seconds, fallback_report, name_of, waiting_for
from loader.errors import LoaderClosedError, RunCancelledError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle
    from collections.abc import Awaitable, Callable, Mapping

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Every(Enum):
    """The default for `key`, since None may be a key."""

    KEY = "every key"

    def __repr__(self) -> str:
        return "<every key>"


EVERY: Final = Every.KEY


@final
class Keyed(Closing, Generic[K, T]):
    """A debouncer or coalescer for each key, made when the key is first triggered and forgotten once it is idle.

    Runs of one key never overlap; runs of different keys do. A key whose policy has a memory (`min_interval`,
    `leading`) is kept until that has no bearing on the next trigger any more.

    Args:
        fn: The function to run, with the key as its argument: `async def`, or anything that returns an awaitable.
        policy: Makes the trigger of a key from a function without arguments. It is called in the context in which
            the `Keyed` was made, and returns a new `Debouncer` or `Coalescer` each time; `on_error` is set there.
        name: What to call it in errors and in its `repr`; by default it is named after the function.

    Raises:
        TypeError: If `fn` is not callable or a generator function, if `policy` is not callable, or `name` no string.

    Examples:
        >>> import asyncio
        >>> from loader import Debouncer, Keyed
        >>> async def main() -> None:
        ...     async def reindex(airport: str) -> None:
        ...         print("reindexed", airport)
        ...
        ...     async with Keyed(reindex, lambda fn: Debouncer(fn, wait=0.05, max_wait=0.5)) as reindexing:
        ...         for airport in ["JFK", "EWR", "JFK", "JFK"]:
        ...             reindexing.trigger(airport)
        >>> asyncio.run(main())
        reindexed JFK
        reindexed EWR
    """

    def __init__(
        self,
        fn: Callable[[K], Awaitable[T]],
        policy: Callable[[Callable[[], Awaitable[T]]], Trigger[T]],
        *,
        name: str | None = None,
    ) -> None:
        super().__init__()
        check_function("Keyed", fn)
        if not callable(policy):
            raise TypeError(
                f"Keyed: the policy makes the trigger of a key, such as `lambda fn: Coalescer(fn)`; got {policy!r}"
            )
        self._fn = fn
        self._policy = policy
        self._name = None if name is None else string("Keyed: name", name)
        self._context = capture_context()
        self._tally = Tally()
        self._doorbell = Doorbell()
        self._loop: AbstractEventLoop | None = None
        # A key is in one of the two or in neither: `_busy` while it is pending or running, `_resting` while nothing
        # but the memory of its last run is left, with the timer that forgets that.
        self._busy: dict[K, Trigger[T]] = {}
        self._resting: dict[K, tuple[Trigger[T], TimerHandle]] = {}
        with suppress(RuntimeError):  # made outside any loop: the first one that it is used on will be its home
            get_running_loop()
            self._home()

    def trigger(self, key: K) -> None:
        """Have the function run for `key`; the policy says when.

        Raises:
            LoaderClosedError: If this was closed.
            LoaderLoopError: If the call comes from no event loop, or from another one than the calls before.
            TypeError: If the key is not hashable, or if the policy returned no trigger, or one that is in use.
        """
        trigger, loop = self._busy.get(key), self._loop
        # Not on the next loop after the one where the key was busy: there all that was busy has to be forgotten first.
        if trigger is not None and loop is not None and loop.is_running():
            trigger.trigger()
        else:
            self._add(key, self._trigger_of(key), 1)

    def trigger_threadsafe(self, key: K) -> bool:
        """Have the function run for `key`; callable from any thread.

        Triggers that come before the loop gets around to them wake it once, and cost no more than their keys.

        Returns:
            Whether the trigger was taken; False once this, or its loop, was closed.

        Raises:
            LoaderLoopError: If it does not know its loop yet: it was made where none ran, and never used on one.
        """
        return self._doorbell.ring(self, self._loop, self._answer, key)

    async def request(self, key: K) -> T:
        """Trigger `key`, and wait for the result of a run that starts after this call.

        Returns:
            What the function returned.

        Raises:
            Exception: Whatever the function raised.
            RunCancelledError: If the run was cancelled, or dropped by `cancel()`.
            LoaderClosedError: If this was closed before the call, or the run was dropped by closing.
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside a run of the key, or from something that it waits for.
            TypeError: If the key is not hashable, or if the policy returned no trigger, or one that is in use.

        Cancellation:
            Only this wait ends. The run takes place all the same.
        """
        trigger = self._trigger_of(key)
        with waiting_for(trigger):
            return await self._add(key, trigger, 1).result()

    async def flush(self, key: K | Literal[Every.KEY] = EVERY) -> None:
        """Run what is pending as soon as its key has no run in flight, and wait until it is over.

        Triggers that come later are not waited for. A failure is not raised here; it goes where failures go.

        Args:
            key: The key to flush; by default all of them.

        Raises:
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside a run that it would wait for.

        Cancellation:
            Only this wait ends; the runs are still hurried.
        """
        self._answer()
        triggers = self._of(key)
        with waiting_for(*triggers):
            for run in [run for trigger in triggers if (run := trigger._hurry()) is not None]:
                await run.until_over()

    async def wait_idle(self) -> None:
        """Wait until no key is pending and no run is in flight. It hurries nothing: `flush()` does.

        Raises:
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside a run.

        Cancellation:
            Only this wait ends.
        """
        self._answer()
        with waiting_for(*self._of(EVERY)):
            await self._until_idle()

    def cancel(self, key: K | Literal[Every.KEY] = EVERY) -> bool:
        """Drop what is pending. Runs in flight go on.

        Args:
            key: The key to cancel; by default all of them.

        Returns:
            Whether something was pending. Who waits for it in `request()` gets a RunCancelledError.

        Raises:
            LoaderLoopError: If the call comes from no event loop, or from another one than the calls before.
        """
        self._answer()
        failure = RunCancelledError(f"the pending run of {self!r} was dropped by cancel()")
        dropped = [trigger._drop(failure) for trigger in self._of(key)]
        return any(dropped)

    # An outer timeout would cancel the closing itself; this one is what to do about runs that take long.
    async def aclose(self, *, flush: bool = True, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Close: take no more triggers, finish or drop what is pending, and wait until no run is in flight.

        Nothing is left when it returns: no task, no timer. Closing twice is fine; both wait for the end.

        Args:
            flush: True runs what is pending at once, so that the last states are applied. False drops it, and
                `request()`s that wait for it get a LoaderClosedError.
            timeout: Seconds to give to the runs; then what is pending is dropped and the runs in flight are
                cancelled, and their RunCancelledErrors go where failures go, unless `flush` is False. 0 cancels at
                once, None gives all the time it takes.

        Raises:
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside a run.
            TypeError: If `timeout` is no number; nothing is closed then.
            ValueError: If `timeout` is negative or not finite; nothing is closed then.

        Cancellation:
            It is closed all the same: what is pending is dropped, and the runs in flight are cancelled, unless
            somebody else waits in `aclose()` too.
        """
        self._home()
        limit = None if timeout is None else checked_seconds("aclose()", "timeout", timeout)
        with waiting_for(*self._of(EVERY)):
            if not self._closed:
                self._take(self._doorbell.shut())  # they were promised to be heard
            self._closed = True
            for key in list(self._resting):
                self._resting.pop(key)[1].cancel()
            for trigger in self._of(EVERY):
                trigger._shut(flush=flush)
            await self._close(timeout=limit, report=flush)

    @property
    def pending(self) -> bool:
        """Whether a run will start that has not started."""
        return self._doorbell.rang or any(trigger.pending for trigger in self._busy.values())

    @property
    def running(self) -> bool:
        """Whether a run is in flight."""
        return any(trigger.running for trigger in self._busy.values())

    def keys(self) -> list[K]:
        """The keys that are pending or running."""
        return list(self._busy)

    def statistics(self) -> TriggerStatistics:
        """What happened so far, for all keys together."""
        return self._tally.statistics(self._waiting())

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._busy)} busy"
        return f"<Keyed {self._name or name_of(self._fn)}: {state}>"

    def _home(self) -> AbstractEventLoop:
        loop = home_loop(self._loop, self)
        if loop is not self._loop:
            # What was under way on a loop that is closed will never go on.
            self._tally.dropped += sum(self._doorbell.take().values()) + self._waiting()
            self._busy.clear()
            self._resting.clear()
            self._loop = loop
        return loop

    def _waiting(self) -> int:
        runs = (trigger._pending for trigger in self._busy.values())
        return sum(run.triggers for run in runs if run is not None)

    def _of(self, key: K | Literal[Every.KEY]) -> list[Trigger[T]]:
        if key is Every.KEY:
            return list(self._busy.values())
        trigger = self._busy.get(key)
        return [] if trigger is None else [trigger]

    def _answer(self) -> None:
        """Take notice of what other threads triggered."""
        self._home()
        self._take(self._doorbell.take())

    def _take(self, rings: Mapping[K, int]) -> None:
        for key, triggers in rings.items():
            try:
                self._add(key, self._trigger_of(key), triggers)
            except Exception as error:  # noqa: BLE001  # a policy that fails for one key must not lose the others
                self._tally.dropped += triggers
                fallback_report(self._home(), f"{self!r}: no trigger could be made for {reprlib.repr(key)}", error)

    def _trigger_of(self, key: K) -> Trigger[T]:
        """The trigger of the key; a new one is not kept before it has something to do."""
        if self._closed:
            raise LoaderClosedError(f"{self!r} takes no more triggers. Make a new one, or trigger before closing.")
        self._home()
        if (trigger := self._busy.get(key)) is not None:
            return trigger
        if (resting := self._resting.get(key)) is not None:
            return resting[0]
        trigger = self._context.copy().run(self._policy, partial(self._fn, key))
        if not isinstance(trigger, Trigger) or trigger._on_idle is not None:
            raise TypeError(
                f"{self!r}: the policy must return a new Debouncer or Coalescer for each key, not {trigger!r}"
            )
        trigger._tally = self._tally
        trigger._label = self._name or name_of(self._fn)
        trigger._on_idle = partial(self._forget, key)
        return trigger

    def _add(self, key: K, trigger: Trigger[T], triggers: int) -> Run[T]:
        run = trigger._add(triggers)
        self._busy[key] = trigger
        if (resting := self._resting.pop(key, None)) is not None:
            resting[1].cancel()
        return run

    def _forget(self, key: K, trigger: Trigger[T]) -> None:
        """The trigger says that it is idle. It may say so twice, and another may have taken its place."""
        if self._busy.get(key) is not trigger:
            return
        del self._busy[key]
        loop = self._home()
        if trigger._rests_until > loop.time() and not self._closed:
            timer = loop.call_at(trigger._rests_until, self._resting.pop, key, None, context=self._context)
            self._resting[key] = trigger, timer
        if not self._busy:
            self._idle.ring()

    def _is_idle(self) -> bool:
        return not self._busy

    def _cut(self, failure: Exception | None) -> None:
        for trigger in self._of(EVERY):
            trigger._cut(failure)
