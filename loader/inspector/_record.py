"""What the inspector hears of: every scope, each with a collector of its own, and figures for every name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from loader import Scope
from loader.inspector._store import Ended
from loader.observe import Observer, Statistics, label_of
from loader.timeline import Timeline

if TYPE_CHECKING:
    from loader.inspector._store import Store
    from loader.observe import BatchRecord, Figures, Place, RunRecord

MOST_NAMES = 300


class Recorder(Observer):
    """Observes the process: has every scope collected, and counts by name.

    A `DataLoader` that was not declared belongs to no scope; what it does for an operation is put down to the scope
    that asks.

    Attributes:
        left_out: Whether there were more names than are counted: somebody makes them as it goes.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._collectors: WeakKeyDictionary[Scope, Collector] = WeakKeyDictionary()
        self._statistics = Statistics()
        self._names: set[tuple[str, str]] = set()
        self.left_out = False

    def figures(self) -> tuple[Figures, ...]:
        """The figures so far."""
        return self._statistics.snapshot()

    def _counts(self, kind: str, label: str) -> bool:
        name = kind, label
        if name in self._names:
            return True
        if len(self._names) >= MOST_NAMES:
            self.left_out = True
            return False
        self._names.add(name)
        return True

    def scope_opened(self, scope: Scope) -> None:
        collector = self._collectors[scope] = Collector(self._store)
        scope.observe(collector)

    def _asking(self) -> Collector | None:
        """The collector of the scope that asks."""
        scope = Scope.current()
        return None if scope is None else self._collectors.get(scope)

    def batch_opened(self, batch: BatchRecord) -> None:
        if batch.scope is None and batch.kind == "loader" and (collector := self._asking()) is not None:
            collector.batch_opened(batch)

    def batch_sent(self, batch: BatchRecord) -> None:
        if self._counts(batch.kind, batch.label):
            self._statistics.batch_sent(batch)

    def batch_finished(self, batch: BatchRecord) -> None:
        if self._counts(batch.kind, batch.label):
            self._statistics.batch_finished(batch)

    def key_cached(self, name: str, scope: Scope | None, place: Place | None, count: int) -> None:
        if scope is None and (collector := self._asking()) is not None:
            collector.key_cached(name, scope, place, count)
        if self._counts("loader", label_of(name)):
            self._statistics.key_cached(name, scope, place, count)

    def key_dropped(self, kind: str, name: str, scope: Scope | None, count: int) -> None:
        if self._counts(kind, label_of(name)):
            self._statistics.key_dropped(kind, name, scope, count)

    def overloaded(self, kind: str, name: str, scope: Scope | None, count: int) -> None:
        if self._counts(kind, label_of(name)):
            self._statistics.overloaded(kind, name, scope, count)

    def run_started(self, run: RunRecord) -> None:
        if self._counts(run.kind, run.label):
            self._statistics.run_started(run)

    def run_finished(self, run: RunRecord) -> None:
        if self._counts(run.kind, run.label):
            self._statistics.run_finished(run)


class Collector(Observer):
    """Collects what happens in one scope, and leaves it to the store when the scope is over.

    A scope that nobody closes is over when it is gone.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._claimed = 0
        self._timeline: Timeline | None = Timeline()

    def _claim(self, timeline: Timeline) -> bool:
        """Whether there is room for one more record."""
        room = self._store.claim()
        self._claimed += room
        timeline.left_out += not room
        return room

    def batch_opened(self, batch: BatchRecord) -> None:
        timeline = self._timeline
        if timeline is not None and self._claim(timeline):
            timeline.batch_opened(batch)

    def key_cached(self, name: str, scope: Scope | None, place: Place | None, count: int) -> None:
        if self._timeline is not None:
            self._timeline.key_cached(name, scope, place, count)

    def run_started(self, run: RunRecord) -> None:
        timeline = self._timeline
        if timeline is not None and self._claim(timeline):
            timeline.run_started(run)

    def scope_closed(self, scope: Scope) -> None:
        if self._timeline is not None:
            self._timeline.scope_closed(scope)
        self._end()
        self._store.take()

    def _end(self) -> None:
        timeline, self._timeline = self._timeline, None
        if timeline is not None:
            self._store.ended.append(Ended(timeline, time.perf_counter() - timeline.began, self._claimed))

    def __del__(self) -> None:
        self._end()
