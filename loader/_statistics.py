"""Counts and histograms of what was observed, by name: for the process, and for each scope."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, final
from weakref import WeakKeyDictionary

from loader._histogram import SECONDS, SIZES, Histogram, Recorder
from loader.observe import Observer, Outcome, label_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from loader._scope import Scope
    from loader.observe import BatchRecord, Place, RunRecord


@final
@dataclass(frozen=True, slots=True)
class Figures:
    """What happened under one name.

    Attributes:
        kind: "loader", "batcher", "debouncer" or "coalescer".
        name: The name, without parameters.
        calls: How many batches were sent, or runs started.
        asked: How many keys, items or triggers were asked of it: those it was called for, and those from the cache,
            dropped and refused.
        cached: How many keys the cache answered.
        dropped: How many keys or items nobody waited for any more when their batch left.
        overloaded: How many keys or items were refused.
        missing: For how many keys a batch function had nothing.
        failures: How many batches or runs failed, timed out or were cancelled.
        reasons: How many batches left for which reason, by its value.
        outcomes: What became of how many batches or runs, by its value.
        size: Keys or items of a batch, triggers of a run.
        wait: Seconds from the first key, item or trigger to the call of the function.
        run_time: Seconds from the call of the function to the answers.
    """

    kind: str
    name: str
    calls: int
    asked: int
    cached: int
    dropped: int
    overloaded: int
    missing: int
    failures: int
    reasons: Mapping[str, int]
    outcomes: Mapping[str, int]
    size: Histogram
    wait: Histogram
    run_time: Histogram


class _Tally:
    """The counts of one name, as they grow."""

    __slots__ = (
        "cached",
        "calls",
        "dropped",
        "missing",
        "outcomes",
        "overloaded",
        "reasons",
        "run_time",
        "size",
        "wait",
    )

    def __init__(self) -> None:
        self.calls = self.cached = self.dropped = self.overloaded = self.missing = 0
        self.reasons: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.size = Recorder(SIZES)
        self.wait = Recorder(SECONDS)
        self.run_time = Recorder(SECONDS)

    def started(self, size: int, wait: float) -> None:
        self.calls += 1
        self.size.record(size)
        self.wait.record(wait)

    def figures(self, kind: str, name: str) -> Figures:
        size = self.size.snapshot()
        return Figures(
            kind=kind,
            name=name,
            calls=self.calls,
            asked=int(size.total) + self.cached + self.dropped + self.overloaded,
            cached=self.cached,
            dropped=self.dropped,
            overloaded=self.overloaded,
            missing=self.missing,
            failures=sum(self.outcomes[bad.value] for bad in (Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT)),
            reasons=dict(self.reasons),
            outcomes=dict(self.outcomes),
            size=size,
            wait=self.wait.snapshot(),
            run_time=self.run_time.snapshot(),
        )


_Tallies = dict[tuple[str, str], _Tally]


@final
class Statistics(Observer):
    """Counts and histograms for every loader, batcher and trigger that it observes, by name.

    Loaders of the same name add up, whatever their parameters. A scope's own figures are there as long as the scope
    is. It may be read from any thread.

    Examples:
        >>> import asyncio
        >>> from loader import DataLoader
        >>> from loader.observe import Statistics, observing
        >>> async def doubles(numbers: list[int]) -> list[int]:
        ...     return [2 * number for number in numbers]
        >>> async def main() -> None:
        ...     with observing(Statistics()) as statistics:
        ...         loader = DataLoader(doubles)
        ...         await loader.load_many([1, 2, 3])
        ...         await loader.load(2)
        ...     (figures,) = statistics.snapshot()
        ...     print(figures.name, figures.calls, figures.cached, figures.size.mean, figures.reasons)
        >>> asyncio.run(main())
        doubles 1 1 3.0 {'settled': 1}
    """

    wants_places = False

    def __init__(self) -> None:
        self._lock = Lock()  # loops of several threads may tell it of something at once
        self._process: _Tallies = {}
        self._scopes: WeakKeyDictionary[Scope, _Tallies] = WeakKeyDictionary()

    def snapshot(self) -> tuple[Figures, ...]:
        """Everything so far, in the order of kind and name; later events do not change it."""
        return self._figures(self._process)

    def for_scope(self, scope: Scope) -> tuple[Figures, ...]:
        """The same of one scope's loaders."""
        return self._figures(self._scopes.get(scope, {}))

    def _figures(self, tallies: _Tallies) -> tuple[Figures, ...]:
        with self._lock:
            return tuple(tally.figures(*key) for key, tally in sorted(tallies.items(), key=lambda item: item[0]))

    def _tallies(self, kind: str, name: str, scope: Scope | None) -> list[_Tally]:
        """The counts that something adds to; the lock is held."""
        rolls = [self._process] if scope is None else [self._process, self._scopes.setdefault(scope, {})]
        found = []
        for roll in rolls:
            tally = roll.get((kind, name))
            if tally is None:
                tally = roll[kind, name] = _Tally()
            found.append(tally)
        return found

    def batch_sent(self, batch: BatchRecord) -> None:
        """Count a batch."""
        assert batch.started is not None
        assert batch.reason is not None
        with self._lock:
            for tally in self._tallies(batch.kind, batch.label, batch.scope):
                tally.started(batch.size, batch.started - batch.opened)
                tally.reasons[batch.reason.value] += 1

    def batch_finished(self, batch: BatchRecord) -> None:
        """Count what became of a batch."""
        assert batch.finished is not None
        assert batch.outcome is not None
        with self._lock:
            for tally in self._tallies(batch.kind, batch.label, batch.scope):
                tally.outcomes[batch.outcome.value] += 1
                tally.missing += batch.missing
                if batch.started is not None:
                    tally.run_time.record(batch.finished - batch.started)

    def key_cached(self, name: str, scope: Scope | None, place: Place | None, count: int) -> None:  # noqa: ARG002
        """Count keys that the cache answered."""
        with self._lock:
            for tally in self._tallies("loader", label_of(name), scope):
                tally.cached += count

    def key_dropped(self, kind: str, name: str, scope: Scope | None, count: int) -> None:
        """Count keys that nobody waited for any more."""
        with self._lock:
            for tally in self._tallies(kind, label_of(name), scope):
                tally.dropped += count

    def overloaded(self, kind: str, name: str, scope: Scope | None, count: int) -> None:
        """Count keys or items that were refused."""
        with self._lock:
            for tally in self._tallies(kind, label_of(name), scope):
                tally.overloaded += count

    def run_started(self, run: RunRecord) -> None:
        """Count a run."""
        with self._lock:
            for tally in self._tallies(run.kind, run.label, None):
                tally.started(run.triggers, run.started - run.triggered)

    def run_finished(self, run: RunRecord) -> None:
        """Count what became of a run."""
        assert run.finished is not None
        assert run.outcome is not None
        with self._lock:
            for tally in self._tallies(run.kind, run.label, None):
                tally.outcomes[run.outcome.value] += 1
                tally.run_time.record(run.finished - run.started)
