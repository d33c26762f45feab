"""What loaders, batchers and triggers do, told to observers as it happens.

Nobody observes by default, and then nothing here runs: no time is taken, no record made. `observing(observer)` lets an
observer see the whole process, `observing(observer, scope=scope)` the loaders of one scope, and
`DataLoader(..., observer=observer)` one loader.

- `Observer`: what one overrides to be told.
- `BatchRecord`, `Holder`, `RunRecord`, `Place`: what one is told of.
- `Statistics`: counts and histograms by name; `SIZES` and `SECONDS` are the bounds of their buckets.
- `loader.timeline.Timeline`: the batches of one operation, to look at.
- `loader.hints`: what to change in one's code.
- `loader.otel`, `loader.prometheus`: the same for OpenTelemetry and Prometheus.

Observers are called on the event loop, synchronously, in the middle of the work: they must be quick. One that raises is
reported to the loop's exception handler, and the work goes on. An observer of the whole process is called from every
thread that runs a loop. All times are `time.perf_counter()`, in seconds.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

from loader._histogram import SECONDS, SIZES
from loader._hooks import everywhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from weakref import ref

    from loader._scope import Scope
    from loader._statistics import Figures, Statistics

__all__ = [
    "SECONDS",
    "SIZES",
    "Asks",
    "BatchRecord",
    "Figures",
    "Holder",
    "Observer",
    "Outcome",
    "Place",
    "Reason",
    "RunRecord",
    "Statistics",
    "asked_from",
    "label_of",
    "observing",
]

T = TypeVar("T")
AnObserver = TypeVar("AnObserver", bound="Observer")


class Reason(Enum):
    """Why a batch left."""

    SETTLED = "settled"
    PLANNED = "planned"  # settled too, opened by a list that loads ahead what the relations below it ask for
    FULL = "full"
    WINDOW = "window"
    FLUSHED = "flushed"
    IDLE = "idle"  # of a batcher without a window: a slot was free


class Outcome(Enum):
    """What became of a batch or a run."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"  # by closing, from outside, or because all callers had left
    TIMED_OUT = "timed out"
    EMPTY = "empty"  # nobody waited for any of its keys any more, so it was not sent


class Place(NamedTuple):
    """Where somebody asked.

    Attributes:
        file: The file of the user's code; the empty string for a relation.
        line: The line in it; 0 for a relation.
        function: The function; for a relation, where it is in the query, as in `flights.airline`.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.file else self.function


@final
class Asks:
    """How often, and when, a place asked for keys of one batch.

    Attributes:
        count: How many keys it asked for, repeated ones included.
        first: When it did first.
        last: When it did last.
    """

    __slots__ = ("count", "first", "last")

    def __init__(self, first: float) -> None:
        self.count: int = 0
        self.first: float = first
        self.last: float = first


@final
class Holder:
    """What a batch that waits for a slot knows of the one that holds it.

    It is not the record itself: each record of a loader whose batches always queue would keep the one before it, and so
    all of them, for as long as the loader is in use.

    Attributes:
        name: That of the batch.
        started: When its function was called.
        finished: When everybody had an answer.
    """

    __slots__ = ("finished", "name", "started")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.started: float | None = None
        self.finished: float | None = None

    @property
    def label(self) -> str:
        """The name without parameters."""
        return label_of(self.name)


@final
class BatchRecord:
    """A batch, as far as it has come. A time that has not come yet is None.

    One record is shared by all observers: it is only to be read, and read again when it is finished.

    Attributes:
        name: The loader or batcher, with its parameters: `AppLoaders.departures(first=10)`.
        label: The same without the parameters, for counting.
        kind: "loader" or "batcher".
        opened: When its first key or item came.
        sent: When it was ready to leave.
        size: How many keys or items it was sent with.
        capacity: How many it can hold, None without a limit.
        reason: Why it left, None if it has not.
        outcome: What became of it.
        error: The class of what it failed with.
        missing: For how many of its keys nothing came.
        asked: Where its keys were asked for, with `Observer.wants_places`.
        repeats: If it has one key: how many batches of one key its caller, the very same call of a function, had asked
            the same loader for in the same place right before, one after another. Loads awaited in a loop make it grow.
        refetched: For how many of its keys it was not the first batch because they were cleared, by the place that
            called `clear`.
        parents: The batches whose functions asked for some of its keys.
        waited_for: The batches that held the slots which it had to wait for, as their `as_holder`.
        as_holder: What it is to those that wait for its slot.
        keys: Its keys, if an observer wants them.
    """

    __slots__ = (
        "__weakref__",
        "_scope",
        "as_holder",
        "asked",
        "capacity",
        "error",
        "keys",
        "kind",
        "missing",
        "name",
        "opened",
        "outcome",
        "parents",
        "reason",
        "refetched",
        "repeats",
        "sent",
        "size",
        "waited_for",
    )

    def __init__(self, name: str, kind: str, opened: float, capacity: int | None, scope: ref[Scope] | None) -> None:
        self.name: str = name
        self.kind: str = kind
        self.opened: float = opened
        self.capacity: int | None = capacity
        self._scope: ref[Scope] | None = scope  # weak: whoever keeps records must not keep every value of an operation
        self.sent: float | None = None
        self.as_holder: Holder = Holder(name)
        self.size: int = 0
        self.reason: Reason | None = None
        self.outcome: Outcome | None = None
        self.error: type[BaseException] | None = None
        self.missing: int = 0
        self.asked: dict[Place, Asks] = {}
        self.repeats: int = 0
        self.refetched: dict[Place, int] = {}
        self.parents: list[BatchRecord] = []
        self.waited_for: list[Holder] = []
        self.keys: list[Any] | None = None

    def ask(self, place: Place, time: float, count: int = 1) -> None:
        """Note that keys were asked for."""
        asks = self.asked.get(place)
        if asks is None:
            asks = self.asked[place] = Asks(time)
        asks.count += count
        asks.last = time

    @property
    def started(self) -> float | None:
        """When its function was called, which is later than `sent` where a limit made it wait."""
        return self.as_holder.started

    @started.setter
    def started(self, time: float | None) -> None:
        self.as_holder.started = time

    @property
    def finished(self) -> float | None:
        """When everybody had an answer."""
        return self.as_holder.finished

    @finished.setter
    def finished(self, time: float | None) -> None:
        self.as_holder.finished = time

    @property
    def label(self) -> str:
        """The name without parameters."""
        return label_of(self.name)

    @property
    def scope(self) -> Scope | None:
        """The scope that it belongs to; None for a batcher, a loader without one, or if the scope is gone."""
        return None if self._scope is None else self._scope()

    def __repr__(self) -> str:
        state = "waiting" if self.started is None else "running"
        if self.outcome is not None:
            state = self.outcome.value
        return f"<batch of {self.name}: {self.size} {'keys' if self.kind == 'loader' else 'items'}, {state}>"


@final
class RunRecord:
    """A run of a debouncer, a coalescer or a snapshot, as far as it has come.

    Attributes:
        name: The trigger, without the key of a `Keyed`.
        kind: "debouncer" or "coalescer"; a snapshot loads with a coalescer.
        triggered: When the first trigger came that it answers.
        triggers: How many triggers it answers.
        started: When it started.
        finished: When it was over, None while it runs.
        outcome: What became of it.
        error: The class of what it failed with.
    """

    __slots__ = ("__weakref__", "error", "finished", "kind", "name", "outcome", "started", "triggered", "triggers")

    def __init__(self, name: str, kind: str, triggered: float, triggers: int, started: float) -> None:
        self.name: str = name
        self.kind: str = kind
        self.triggered: float = triggered
        self.triggers: int = triggers
        self.started: float = started
        self.finished: float | None = None
        self.outcome: Outcome | None = None
        self.error: type[BaseException] | None = None

    @property
    def label(self) -> str:
        """The name without the arguments of a partial, for counting."""
        return label_of(self.name)

    def __repr__(self) -> str:
        state = "running" if self.outcome is None else self.outcome.value
        return f"<run of {self.name}: {self.triggers} triggers, {state}>"


class Observer:
    """Something that is told what happens. Override what you want to hear of.

    Examples:
        >>> import asyncio
        >>> from loader import DataLoader
        >>> from loader.observe import BatchRecord, Observer, observing
        >>> class Printer(Observer):
        ...     def batch_finished(self, batch: BatchRecord) -> None:
        ...         print(batch.name, batch.size, batch.reason.value, batch.outcome.value)
        >>> async def doubles(numbers: list[int]) -> list[int]:
        ...     return [2 * number for number in numbers]
        >>> async def main() -> None:
        ...     with observing(Printer()):
        ...         await DataLoader(doubles).load_many([1, 2, 3])
        >>> asyncio.run(main())
        doubles 3 settled done

    Attributes:
        wants_places: Whether it is looked up where in the user's code each key was asked for.
        wants_keys: Whether keys are recorded. They may be personal data. What one observer wants, all of them see.
    """

    wants_places: bool = True
    wants_keys: bool = False

    def scope_opened(self, scope: Scope) -> None:
        """A scope was made: an operation, or an event of a subscription, begins. `Scope.observe` observes it alone."""

    def scope_closed(self, scope: Scope) -> None:
        """A scope was closed, and everybody who waited for its loaders has an answer."""

    def batch_opened(self, batch: BatchRecord) -> None:
        """A batch got its first key. A batcher says so only when the batch leaves."""

    def key_asked(self, batch: BatchRecord, place: Place | None, count: int) -> None:
        """So many keys were asked for; called in the context of who asks, and only if it is overridden.

        A batcher says so of each item, when its batch leaves.
        """

    def batch_sent(self, batch: BatchRecord) -> None:
        """A batch has left: its function is about to be called, in the context that this is called in.

        It is a context of the batch's own: a context variable that is set here is set for the function.
        """

    def batch_finished(self, batch: BatchRecord) -> None:
        """A batch is over, sent or not. Its callers get their answers right before or after this."""

    def failed(self, what: BatchRecord | RunRecord, error: BaseException) -> None:
        """A batch or a run has failed, was cancelled or timed out, and is about to be told to be over.

        Whoever keeps the error keeps what its traceback refers to: all that the operation worked with, perhaps.
        """

    def key_cached(self, name: str, scope: Scope | None, place: Place | None, count: int) -> None:
        """So many keys were answered from the cache.

        A loader that was in use before anybody observed does not tell of the keys that were asked for repeatedly then.
        """

    def key_dropped(self, kind: str, name: str, scope: Scope | None, count: int) -> None:
        """So many keys of a loader, or items of a batcher, were dropped before their batch left.

        Nobody waited for them any more.
        """

    def overloaded(self, kind: str, name: str, scope: Scope | None, count: int) -> None:
        """So many keys or items were refused: `max_pending` were waiting."""

    def run_asked(self, run: RunRecord) -> None:
        """A run is about to start; called in the context of who asked for it, and only if it is overridden.

        Told of the first trigger, and of those who wait for the run in `request()`. What only joins is counted.
        """

    def run_started(self, run: RunRecord) -> None:
        """A run of a trigger has started: its function is about to be called, in the context that this is called in.

        It is a context of the run's own, as that of `batch_sent` is.
        """

    def run_finished(self, run: RunRecord) -> None:
        """A run of a trigger is over."""


@contextmanager
def observing(observer: AnObserver, *, scope: Scope | None = None) -> Iterator[AnObserver]:
    """Let `observer` see what happens inside the block, in all threads and event loops.

    Of a loader that exists already it sees every batch that opens inside the block, but not who asks again for a key
    that was asked for again from the cache before. A batch that opened inside is told to its end.

    Args:
        observer: Who is told.
        scope: Tell it of this scope only: its loaders, and the batchers and triggers that are used in it.

    Raises:
        TypeError: If it is no `Observer`.
    """
    observers = everywhere if scope is None else scope._observers
    observers.append(check_observer(observer))
    try:
        yield observer
    finally:
        observers.remove(observer)


def asked_from(place: Place, ask: Callable[..., T], *arguments: Any, planned: bool = False) -> T:
    """Call `ask(*arguments)`, and say that what it asks loaders for was asked from `place`.

    For what asks in the name of somebody else, such as a field of a query, whose code is not on the stack.

    Args:
        place: Where it was asked.
        ask: A function that asks at once.
        arguments: What it is called with.
        planned: Whether it asks ahead of who needs the values.
    """
    token = asking.set((place, planned))
    try:
        return ask(*arguments)
    finally:
        asking.reset(token)


asking: ContextVar[tuple[Place, bool] | None] = ContextVar("loader.asking", default=None)
"""The place that `asked_from` was given, and whether it asks ahead."""


def label_of(name: str) -> str:
    """The name of a loader without its parameters: `AppLoaders.departures` of `AppLoaders.departures(first=10)`.

    It is what metrics and spans are told apart by, and always text that can be sent: half of a surrogate pair, as in
    the name of a file that is no UTF-8, is written as an escape.
    """
    label = name.partition("(")[0]
    return label if label.isascii() else label.encode("utf-8", "backslashreplace").decode()


def check_observer(observer: AnObserver) -> AnObserver:
    """The observer itself.

    Raises:
        TypeError: If it is no `Observer`.
    """
    if not isinstance(observer, Observer):
        raise TypeError(f"an observer is an instance of a subclass of loader.observe.Observer, not {observer!r}")
    return observer


def __getattr__(name: str) -> Any:
    # On demand, as in `loader` itself: who only records needs no counts.
    if name in ("Figures", "Statistics"):
        return getattr(import_module("loader._statistics"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
