"""What runs between a source and its consumer: who pulls, who waits, who closes the source, and when.

The consumer holds the operator, and the operator holds a `Flow`. The task that pulls the source, the *pump*,
holds the flow alone: so an operator that nobody holds any more is collected, and its finalizer ends the pump.
"""

from __future__ import annotations

from asyncio import CancelledError, current_task, get_running_loop, sleep
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, final

from loader.errors import RunCancelledError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Task, TimerHandle
    from collections.abc import Callable, Hashable

T = TypeVar("T")

BREATH = 64
"""After how many values the pump lets the loop turn, for sources that are ready every time."""


class State(Enum):
    """How far the pump is; only the pump itself knows when the source may be cancelled."""

    IDLE = "not started"
    STARTING = "starting"  # a task that is cancelled before its first step could not close the source
    PULLING = "pulling"
    CLOSING = "closing"  # what the source does in order to close is not cancelled
    ENDED = "ended"


class Consumer(Enum):
    """Whether anybody still wants values."""

    HERE = "here"
    CANCELLED = "cancelled"  # while it waited for a value
    GONE = "gone"


class Outcome(Enum):
    """What a consumer is told that cannot have a value."""

    LATER = "later"
    END = "end"


class Timing(Protocol):
    """When the value that is held back may leave."""

    def arrived(self, now: float, *, first: bool) -> None:
        """A value came from the source; it is the `first` if none was held back."""

    def taken(self, now: float) -> None:
        """The consumer got a value."""

    def due(self) -> float:
        """The time from which on what is held back may leave. It never moves ahead while anything is held."""
        ...


@final
class Flow(Generic[T]):
    """The values on their way: at most one for each key, the newest, in the order in which the keys came."""

    def __init__(self, name: str, source: AsyncIterable[T], key: Callable[[T], Hashable], timing: Timing) -> None:
        if not isinstance(source, AsyncIterable):
            raise TypeError(
                f"{name} takes an async iterable as its source, for example an async generator; "
                f"got {type(source).__name__}: {source!r:.80}."
            )
        self.name = name
        self.source = source
        self.key = key
        self.timing = timing
        self.loop = _running_loop()  # until the pump starts: where the source is closed if it never does
        self.state: State = State.IDLE
        self.consumer: Consumer = Consumer.HERE
        self.pump: Task[None] | None = None
        self.held: OrderedDict[Hashable, T] = OrderedDict()
        self.waiter: Future[T | Outcome] | None = None  # of the one call of `next`
        self.timer: TimerHandle | None = None  # armed only while the consumer waits
        self.error: Exception | None = None  # of the source, until somebody gets it
        self.leavers: list[Future[None]] = []  # who waits for the source to be closed
        self.received: int = 0
        self.emitted: int = 0
        self.conflated: int = 0

    def __repr__(self) -> str:
        return (
            f"<{self.name} {self.state.value}: {self.received} received, {self.emitted} emitted, "
            f"{self.conflated} conflated>"
        )

    def has_left(self) -> bool:
        """Whether nobody wants values any more."""
        return self.consumer is not Consumer.HERE

    # The pump

    def start(self, loop: AbstractEventLoop) -> None:
        """Start the pump, in the context of whoever waits; if nobody does it only closes the source."""
        self.loop = loop
        self.state = State.STARTING
        loop.create_task(self.pull()).add_done_callback(self.ended)

    async def pull(self) -> None:
        """Pull the source until it ends or the consumer leaves, and close it: all of it in this one task."""
        self.pump = current_task()  # here, for an eager task runs before `create_task` returns it
        source = self.source if isinstance(self.source, AsyncIterator) else None
        try:
            if not self.has_left():
                self.state = State.PULLING
                source = aiter(self.source)
                async for value in source:
                    self.receive(value)
                    if self.received % BREATH == 0:
                        await sleep(0)
        finally:
            self.state = State.CLOSING
            aclose = getattr(source, "aclose", None)
            if aclose is not None:
                await aclose()

    def receive(self, value: T) -> None:
        """Keep a value until it is due, instead of an older one with the same key."""
        if self.has_left():
            raise CancelledError  # as the pump was, but the source went on
        self.received += 1
        key = self.key(value)
        now = get_running_loop().time()
        self.timing.arrived(now, first=not self.held)
        self.conflated += key in self.held
        self.held[key] = value
        self.settle(now)

    def ended(self, pump: Task[None]) -> None:
        """The pump's task is done: tell whoever waits for a value, or for the end."""
        self.state = State.IDLE if self.state is State.STARTING else State.ENDED
        self.pump = None  # its error's traceback gets to the consumer's frames, which hold the operator
        if not pump.cancelled():
            self.error = self.presentable(pump.exception())
        elif not self.has_left():
            self.error = RunCancelledError(
                f"The source of {self.name} was cancelled, though its consumer was not: by itself, "
                "or by whoever cancels every task of the loop."
            )
        leavers, self.leavers = self.leavers, []
        waiting = [leaver for leaver in leavers if not leaver.done()]
        for leaver in waiting:
            leaver.set_result(None)
        if self.has_left() and not waiting:
            self.report()
        self.settle(get_running_loop().time())

    def presentable(self, error: BaseException | None) -> Exception | None:
        """The exception for the consumer, which a GeneratorExit or a SystemExit of the source's would end as well.

        A `StopAsyncIteration` is one of the key function's, and the consumer would take it for the end.
        """
        if error is None or (isinstance(error, Exception) and not isinstance(error, StopAsyncIteration)):
            return error
        kind = type(error).__name__
        failure = RunCancelledError(f"The source of {self.name} ended with {kind}, its consumer did not.")
        failure.__cause__ = error
        return failure

    # The consumer

    async def next(self, loop: AbstractEventLoop) -> T:
        """The next value, as soon as it is due."""
        self.waiter = loop.create_future()
        try:
            if self.state is State.IDLE:
                self.start(loop)
            else:
                self.settle(loop.time())
            outcome = await self.waiter
        except CancelledError:
            if not self.has_left():
                self.leave(Consumer.CANCELLED)
                await self.closed(loop)
                self.report()
            raise
        except GeneratorExit:  # the caller's coroutine was thrown away, and may not wait for anything
            abandon(self)
            raise
        finally:
            self.waiter = None
            self.disarm()
        if outcome is not Outcome.END and outcome is not Outcome.LATER:
            return outcome
        if not self.has_left():
            error, self.error = self.error, None
            if self.state is not State.ENDED:  # the pump was cancelled before it began
                self.leave(Consumer.CANCELLED)  # which this call may be, too, before it can say why nothing comes
                await self.closed(loop)
                self.consumer = Consumer.GONE
            if error is not None:
                raise error
        raise StopAsyncIteration

    def offer(self, now: float) -> T | Outcome:
        """What the consumer gets if it asks now."""
        over = self.state is State.ENDED or self.error is not None
        if self.held and (over or self.timing.due() <= now):
            self.emitted += 1
            self.timing.taken(now)
            return self.held.popitem(last=False)[1]
        return Outcome.END if over or self.has_left() else Outcome.LATER

    def settle(self, now: float) -> None:
        """Give the waiting consumer what it may have, or see to it that a timer will."""
        if self.waiter is None or self.waiter.done():
            return
        outcome = self.offer(now)
        if outcome is not Outcome.LATER:
            self.waiter.set_result(outcome)
        elif self.held and self.timer is None and (due := self.timing.due()) < inf:
            # The armed timer stays when values move the deadline: it fires early, and is armed again.
            self.timer = get_running_loop().call_at(due, self.on_timer, due)

    def on_timer(self, due: float) -> None:
        """Settle at `due`, for a loop may count a timer as due a little before its clock says so."""
        self.timer = None
        self.settle(max(due, get_running_loop().time()))

    def disarm(self) -> None:
        """Let go of the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # The end

    def leave(self, consumer: Consumer) -> None:
        """Nobody wants values any more: drop what is held, end the call that waits, close the source."""
        left, self.consumer = self.has_left(), consumer
        if isinstance(self.error, RunCancelledError):
            self.error = None  # it told a consumer that waits why nothing more comes
        self.held.clear()
        self.disarm()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(Outcome.END)
        if not left and self.state is State.PULLING and self.pump is not None:
            self.pump.cancel()  # once: a second time would hit what the source does on being cancelled

    async def closed(self, loop: AbstractEventLoop) -> None:
        """Wait until the source is closed, after `leave`."""
        while self.state is not State.ENDED:
            if self.state is State.IDLE:
                self.start(loop)
            leaver: Future[None] = loop.create_future()
            self.leavers.append(leaver)
            await leaver

    def dropped(self) -> None:
        """The operator was collected."""
        self.leave(Consumer.GONE)
        if self.state is State.IDLE and self.loop is not None:
            self.start(self.loop)
        elif self.state is State.ENDED:
            self.report()

    def report(self) -> None:
        """Tell the loop of an error of the source that nobody is there to get."""
        error, self.error = self.error, None
        if error is not None:
            get_running_loop().call_exception_handler(
                {
                    "message": f"The source of {self.name} failed after its consumer had left",
                    "exception": error,
                }
            )


def abandon(flow: Flow[Any]) -> None:
    """Close the flow of an operator that was collected, perhaps by another thread or after the loop's end."""
    if flow.loop is None or (flow.state is State.ENDED and flow.error is None):
        return
    with suppress(RuntimeError):  # the loop is closed
        flow.loop.call_soon_threadsafe(flow.dropped)


def _running_loop() -> AbstractEventLoop | None:
    try:
        return get_running_loop()
    except RuntimeError:
        return None
