"""Operators on async iterators, for the resolvers of subscriptions: `debounce`, `throttle`, `conflate`.

Each takes an async iterable, its *source*, and is an async iterator itself. A task of its own pulls the
source as fast as that gives values, in the context of the consumer; the consumer gets the values that the
operator lets through, when it asks for them. What it does not take is replaced by what is newer, so the
memory stays bounded however slow the consumer is.

**The end.** When the source ends, what is held back is delivered at once, then the iteration ends. When the
source raises, what is held back is delivered first, then the error is raised.

**Closing.** However the consumer leaves, the source is closed in the next turn of the loop: it is cancelled
where it waits, and its `aclose()` is awaited in the same task that iterated it.

- `aclose()`, which may be called while another task waits for a value, waits for that.
- Cancelling a task that waits for a value closes the source too, as it would if there were no operator.
- An operator that nobody holds any more is collected, and closes the source one turn later: one in the head
  of an `async for` that was left with `break`, say, or in a generator that was closed. One that has a name,
  which tracebacks may hold for a while, belongs into an `async with`, which closes it as well.

An error of the source's that no consumer is waiting for is raised by `aclose()`, else it goes to the loop's
exception handler.

Which one? `debounce` waits for quiet: one value after each burst. `throttle` gives the first value at once
and then one in each interval: a steady pace. `conflate` delays nothing: it drops only what a slow consumer
could not take.
"""

from __future__ import annotations

from asyncio import current_task
from collections.abc import AsyncIterator
from math import inf
from typing import TYPE_CHECKING, TypeVar, final
from weakref import finalize

from loader._loops import home_loop
from loader._work import checked_seconds
from loader.errors import LoaderClosedError, LoaderLoopError, SelfWaitError
from loader.streams._flow import Consumer, Flow, State, abandon

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import AsyncIterable, Callable, Hashable
    from types import TracebackType
    from typing import Self

__all__ = ["conflate", "debounce", "throttle"]

T = TypeVar("T")


class _Operator(AsyncIterator[T]):
    """What the operators have in common: everything but the time at which a value may leave."""

    __slots__ = ("__weakref__", "_flow")

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        # The finalizer keeps the flow, and thereby the pump's task, alive as long as the operator.
        finalize(self, abandon, flow).atexit = False

    def __repr__(self) -> str:
        return repr(self._flow)

    @property
    def received(self) -> int:
        """How many values came from the source."""
        return self._flow.received

    @property
    def emitted(self) -> int:
        """How many values the consumer got."""
        return self._flow.emitted

    @property
    def conflated(self) -> int:
        """How many values were replaced by newer ones before the consumer got them."""
        return self._flow.conflated

    async def __anext__(self) -> T:
        """The next value.

        Returns:
            The value, as soon as the operator lets it through.

        Raises:
            StopAsyncIteration: If the source has ended and every value is delivered, or the operator is
                closed.
            RuntimeError: If another task is waiting for the next value already.
            LoaderClosedError: If an earlier wait for a value was cancelled.
            LoaderLoopError: If the source is being iterated on another event loop.
            RunCancelledError: If the source was cancelled, but the consumer was not.
            Exception: What the source raised.

        Cancellation:
            Closes the source and ends the iteration, as with an async generator, and waits until
            the source is closed. So `asyncio.wait_for(anext(values), 1)` ends the iteration after a second
            without a value; to wait with a limit and go on, keep the task: `asyncio.wait({task}, timeout=1)`.
        """
        flow = self._flow
        if flow.consumer is Consumer.GONE:
            raise StopAsyncIteration
        if flow.consumer is Consumer.CANCELLED:
            raise LoaderClosedError(
                f"{self!r} was closed when a wait for its next value was cancelled, as wait_for() does. "
                "To wait with a time limit and go on, keep the task: asyncio.wait({task}, timeout=...)."
            )
        if flow.waiter is not None:
            raise RuntimeError(
                f"{self!r} has one consumer, and another task is waiting for its next value already. "
                "Give each consumer an operator and a source of its own."
            )
        return await flow.next(self._home())

    async def aclose(self) -> None:
        """Close the source, and end the iteration.

        Values that are held back are dropped. A task that waits for the next value gets `StopAsyncIteration`.
        May be called again, and after the end.

        Raises:
            LoaderLoopError: If the source is being iterated on another event loop.
            SelfWaitError: If the source itself calls it.
            Exception: What the source raised while it was being closed, or earlier if nobody has got it.

        Cancellation:
            Ends the wait; the source is closed all the same.
        """
        flow = self._flow
        loop = self._home()
        flow.leave(Consumer.GONE)
        await flow.closed(loop)
        error, flow.error = flow.error, None
        if error is not None:
            raise error

    async def __aenter__(self) -> Self:
        """The operator itself; it is closed at the end of the `async with` block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _home(self) -> AbstractEventLoop:
        """The running loop, which is the pump's while there is one."""
        flow = self._flow
        home = None if flow.state in {State.IDLE, State.ENDED} else flow.loop
        loop = home_loop(home, self)
        if home is not None and home is not loop:
            raise LoaderLoopError(
                f"{self!r} was left open on an event loop that has been closed since: its source can neither "
                "be iterated nor closed any more. Close it before its loop ends."
            )
        if flow.pump is not None and flow.pump is current_task():
            raise SelfWaitError(
                f"{self!r} is being closed or iterated by its own source, which would wait for itself. "
                "A source ends by returning."
            )
        return loop


@final
class debounce(_Operator[T]):  # noqa: N801  # used like a function, as contextlib.aclosing is
    """The newest value of the source after each time that it has been quiet for `wait` seconds.

    While values keep coming at shorter distances nothing is delivered, unless `max_wait` sets a limit. The
    wait is counted from the last value, also while the consumer is busy: a value that it has not taken when
    the next one comes is replaced, and the wait begins anew. When the source ends, its last value is
    delivered at once.

    Args:
        source: The values. It is closed with the operator.
        wait: Seconds without a value before the newest is delivered. 0 delivers without
            delay, as `conflate` does; `math.inf` delivers when the source ends.
        max_wait: Seconds after the first value that is held back, after which the newest is delivered even if
            there was no quiet. None means no limit.

    Raises:
        TypeError: If the source is no async iterable, or a time no number.
        ValueError: If a time is negative or NaN, or `max_wait` is less than `wait`.

    Examples:
        A search runs when the user pauses:

        >>> import asyncio
        >>> from collections.abc import AsyncIterator
        >>> from loader.streams import debounce
        >>> async def keystrokes() -> AsyncIterator[str]:
        ...     for text in ("n", "ne", "new"):
        ...         yield text
        >>> async def main() -> None:
        ...     async with debounce(keystrokes(), wait=0.2, max_wait=1.0) as texts:
        ...         async for text in texts:
        ...             print("airports with", text)
        >>> asyncio.run(main())
        airports with new
    """

    __slots__ = ()

    def __init__(self, source: AsyncIterable[T], *, wait: float, max_wait: float | None = None) -> None:
        name = f"debounce(wait={wait!r}, max_wait={max_wait!r})"
        quiet = _seconds("debounce", "wait", wait)
        limit = inf if max_wait is None else _seconds("debounce", "max_wait", max_wait)
        if limit < quiet:
            raise ValueError(f"{name}: max_wait is less than wait, which would then never count.")
        super().__init__(Flow(name, source, _same, _AfterQuiet(quiet, limit)))


@final
class throttle(_Operator[T]):  # noqa: N801  # used like a function, as contextlib.aclosing is
    """The first value of the source at once, then the newest one in every `interval` seconds.

    What comes within an interval is replaced by what comes later; the last of it is delivered when the
    interval is over, so the consumer always ends up with the newest value. Intervals are counted from when
    the consumer got a value. When the source ends, its last value is delivered at once.

    Args:
        source: The values. It is closed with the operator.
        interval: Seconds between two values, at least.

    Raises:
        TypeError: If the source is no async iterable, or the interval no number.
        ValueError: If the interval is negative or NaN.

    Examples:
        A position on a map moves twice a second, whatever the sensor sends:

        >>> import asyncio
        >>> from collections.abc import AsyncIterator
        >>> from loader.streams import throttle
        >>> async def positions() -> AsyncIterator[int]:
        ...     for mile in range(10):
        ...         yield mile
        ...         await asyncio.sleep(0)
        >>> async def main() -> None:
        ...     async with throttle(positions(), interval=0.5) as shown:
        ...         print([mile async for mile in shown])
        >>> asyncio.run(main())
        [0, 9]
    """

    __slots__ = ()

    def __init__(self, source: AsyncIterable[T], *, interval: float) -> None:
        name = f"throttle(interval={interval!r})"
        super().__init__(Flow(name, source, _same, _Paced(_seconds("throttle", "interval", interval))))


@final
class conflate(_Operator[T]):  # noqa: N801  # used like a function, as contextlib.aclosing is
    """Every value of the source without delay, save those that are outdated before the consumer takes them.

    A consumer that keeps up gets every value. One that does not gets the newest, and with `key` the newest of
    each key, in the order in which the keys came first.

    Args:
        source: The values. It is closed with the operator.
        key: Tells which values replace one another, from a value; the result must be hashable. None means
            that every value replaces the one before it. As many values are held at most as there are
            different keys.

    Raises:
        TypeError: If the source is no async iterable, or `key` no function.

    Examples:
        A departures board on a slow line skips the states of a flight that are no longer true:

        >>> import asyncio
        >>> from collections.abc import AsyncIterator
        >>> from loader.streams import conflate
        >>> async def flights() -> AsyncIterator[tuple[str, str]]:
        ...     for state in ("boarding", "closed", "departed"):
        ...         yield "UA 1", state
        ...         yield "AA 2", state
        >>> async def main() -> None:
        ...     async with conflate(flights(), key=lambda flight: flight[0]) as board:
        ...         print([flight async for flight in board])
        >>> asyncio.run(main())
        [('UA 1', 'boarding'), ('AA 2', 'departed'), ('UA 1', 'departed')]
    """

    __slots__ = ()

    def __init__(self, source: AsyncIterable[T], *, key: Callable[[T], Hashable] | None = None) -> None:
        if key is not None and not callable(key):
            raise TypeError(f"conflate(): key is a function of a value, not {key!r}")
        super().__init__(Flow("conflate()", source, _same if key is None else key, _AtOnce()))


class _AtOnce:
    __slots__ = ()

    def arrived(self, now: float, *, first: bool) -> None:
        pass

    def taken(self, now: float) -> None:
        pass

    def due(self) -> float:
        return -inf


class _AfterQuiet:
    __slots__ = ("first", "last", "max_wait", "wait")

    def __init__(self, wait: float, max_wait: float) -> None:
        self.wait = wait
        self.max_wait = max_wait
        self.first = self.last = -inf  # when the values of the burst came

    def arrived(self, now: float, *, first: bool) -> None:
        self.last = now
        if first:
            self.first = now

    def taken(self, now: float) -> None:
        pass

    def due(self) -> float:
        return min(self.last + self.wait, self.first + self.max_wait)


class _Paced:
    __slots__ = ("interval", "last")

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.last = -inf  # when the consumer got a value

    def arrived(self, now: float, *, first: bool) -> None:
        pass

    def taken(self, now: float) -> None:
        self.last = now

    def due(self) -> float:
        return self.last + self.interval


def _same(_: object) -> None:
    """The key of a value that replaces any other."""


def _seconds(name: str, argument: str, value: float) -> float:
    """A time, which may be endless here: then only the end of the source lets a value through."""
    return value if value == inf else checked_seconds(name, argument, value)
