"""What happened in one operation, to look at: as a chart for a terminal, as a trace for Perfetto, as plain data.

    with observing(Timeline()) as timeline:
        ...
    print(timeline)

An operation's own timeline is `scope.observe(timeline)`, or `observing(timeline, scope=scope)`.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Any, final

from loader._timeline_text import chart, shown_key
from loader._timeline_trace import trace
from loader.hints import find_hints
from loader.observe import BatchRecord, Observer, RunRecord

if TYPE_CHECKING:
    from loader._scope import Scope
    from loader.hints import Hint
    from loader.observe import Place

__all__ = ["Timeline"]


@final
class Timeline(Observer):
    """Collects batches and runs of triggers, in the order of their beginning, and shows them.

    Examples:
        >>> import asyncio
        >>> from loader import DataLoader
        >>> from loader.observe import observing
        >>> from loader.timeline import Timeline
        >>> async def doubles(numbers: list[int]) -> list[int]:
        ...     return [2 * number for number in numbers]
        >>> async def main() -> None:
        ...     with observing(Timeline()) as timeline:
        ...         await DataLoader(doubles).load_many([1, 2, 3])
        ...     print([(batch.name, batch.size) for batch in timeline.batches])
        >>> asyncio.run(main())
        [('doubles', 3)]

    Args:
        name: What it is the timeline of: the head of the chart.
        keys: Whether keys are recorded and shown. They may be personal data.
        limit: How many batches and runs it keeps; of later ones it only knows how many there were.

    Attributes:
        name: As given; the name of the scope if that was empty, once it is closed.
        batches: The batches so far.
        runs: The runs of triggers so far.
        cached: How many keys the cache answered, by loader.
        left_out: How many batches and runs there were beyond the limit.
        began: When the timeline was made, by `time.perf_counter()`.
        began_at: The same, by `time.time()`.
    """

    def __init__(self, name: str = "", *, keys: bool = False, limit: int = 10_000) -> None:
        self.wants_keys = keys
        self.name: str = name
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self.batches: list[BatchRecord] = []
        self.runs: list[RunRecord] = []
        self.cached: dict[str, int] = {}
        self.left_out: int = 0
        self.began: float = time.perf_counter()
        self.began_at: float = time.time()

    def batch_opened(self, batch: BatchRecord) -> None:
        """Keep it."""
        if self._has_room():
            self.batches.append(batch)

    def key_cached(self, name: str, scope: Scope | None, place: Place | None, count: int) -> None:  # noqa: ARG002
        """Count it."""
        self.cached[name] = self.cached.get(name, 0) + count

    def run_started(self, run: RunRecord) -> None:
        """Keep it."""
        if self._has_room():
            self.runs.append(run)

    def scope_closed(self, scope: Scope) -> None:
        """Take over its name."""
        self.name = self.name or scope.name

    def _has_room(self) -> bool:
        room = len(self.batches) + len(self.runs) < self.limit
        self.left_out += not room
        return room

    def hints(self) -> list[Hint]:
        """What to change, found in the batches."""
        return find_hints(self.batches)

    @property
    def start(self) -> float:
        """When the first batch or run began, by `time.perf_counter()`; where the timeline was made if there is none."""
        return min(
            chain((batch.opened for batch in self.batches), (run.triggered for run in self.runs)), default=self.began
        )

    @property
    def end(self) -> float:
        """When the last of what is known so far happened, by `time.perf_counter()`."""
        ends = [batch.finished or batch.started or batch.opened for batch in self.batches]
        return max([self.start, *ends, *(run.finished or run.started for run in self.runs)])

    def text(self, width: int = 100) -> str:
        """A chart for a terminal, with a line for each batch and run.

        Args:
            width: How many characters wide the lines of the chart are; at least 60. Places and hints may be longer.
        """
        return chart(self, max(width, 60))

    def __str__(self) -> str:
        return self.text()

    def perfetto(self) -> dict[str, Any]:
        """The trace-event format of Chrome and Perfetto: `json.dump` it, and open the file at ui.perfetto.dev.

        Each loader has a track of its batches, the places that asked have others, and arrows lead from them to the
        batches. Times are in microseconds since the start.
        """
        return trace(self)

    def data(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON. Times are in seconds since the start.

        Batches refer to one another by their `id`. Keys, if they were recorded, are there as their `repr`, cut short.
        """
        ids = {batch: number for number, batch in enumerate(self.batches)}
        holders = {batch.as_holder: number for batch, number in ids.items()}
        start = self.start

        def since(when: float | None) -> float | None:
            return None if when is None else round(when - start, 6)

        return {
            "name": self.name,
            "began": self.began_at + start - self.began,
            "seconds": since(self.end),
            "left_out": self.left_out,
            "cached": dict(self.cached),
            "batches": [
                {
                    "id": number,
                    "name": batch.name,
                    "kind": batch.kind,
                    "opened": since(batch.opened),
                    "sent": since(batch.sent),
                    "started": since(batch.started),
                    "finished": since(batch.finished),
                    "size": batch.size,
                    "capacity": batch.capacity,
                    "reason": None if batch.reason is None else batch.reason.value,
                    "outcome": None if batch.outcome is None else batch.outcome.value,
                    "error": None if batch.error is None else batch.error.__qualname__,
                    "missing": batch.missing,
                    "repeats": batch.repeats,
                    "refetched": sum(batch.refetched.values()),
                    "asked": [
                        {**place._asdict(), "count": asks.count, "first": since(asks.first), "last": since(asks.last)}
                        for place, asks in batch.asked.items()
                    ],
                    "parents": [ids[parent] for parent in batch.parents if parent in ids],
                    "waited_for": [holders[each] for each in batch.waited_for if each in holders],
                    **({} if batch.keys is None or not self.wants_keys else {"keys": list(map(shown_key, batch.keys))}),
                }
                for batch, number in ids.items()
            ],
            "runs": [
                {
                    "name": run.name,
                    "kind": run.kind,
                    "triggered": since(run.triggered),
                    "triggers": run.triggers,
                    "started": since(run.started),
                    "finished": since(run.finished),
                    "outcome": None if run.outcome is None else run.outcome.value,
                    "error": None if run.error is None else run.error.__qualname__,
                }
                for run in self.runs
            ],
            "hints": [
                {
                    "kind": hint.kind.value,
                    "loader": hint.loader,
                    "place": None if hint.place is None else hint.place._asdict(),
                    "evidence": hint.evidence,
                    "remedy": hint.remedy,
                }
                for hint in self.hints()
            ],
        }
