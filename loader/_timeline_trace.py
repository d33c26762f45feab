"""A timeline in the trace-event format of Chrome and Perfetto.

A *slice* is a complete event (`ph` X). Slices of one track must not overlap unless one is inside the other, so that
batches under way at the same time are put on different lanes of their loader.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from loader._timeline_text import shown_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loader.observe import BatchRecord, RunRecord
    from loader.timeline import Timeline

Event = dict[str, Any]

PROCESS = 1
LEAST = 1.0  # microseconds that a slice takes at least: viewers do not draw one of none, nor bind an arrow to it


def trace(timeline: Timeline) -> dict[str, Any]:
    """The whole trace."""
    tracks = _Tracks(timeline.start, timeline.end)
    flows = count(1)
    events: list[Event] = []
    slices: dict[BatchRecord, Event] = {}
    for batch in sorted(timeline.batches, key=lambda each: each.opened):
        own, *phases = _batch_slices(tracks, batch, keys=timeline.wants_keys)
        slices[batch] = own
        events += [own, *phases]
    for batch, own in slices.items():
        for place, asks in batch.asked.items():
            asking = tracks.slice(
                f"asked by {place}", batch.name, asks.first, asks.last, category="ask", keys=asks.count
            )
            events += [asking, *_arrow(next(flows), "asks", asking, own)]
        for parent in batch.parents:
            if parent in slices:
                events += _arrow(next(flows), "loads", slices[parent], own)
    for run in timeline.runs:
        events += _run_slices(tracks, run)
    # Of those that begin at once the longest first: what is inside another one comes after it.
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    named = {
        "name": "process_name",
        "ph": "M",
        "ts": 0,
        "pid": PROCESS,
        "tid": 0,
        "args": {"name": timeline.name or "loader"},
    }
    return {"traceEvents": [named, *tracks.metadata(), *events], "displayTimeUnit": "ms"}


def _batch_slices(tracks: _Tracks, batch: BatchRecord, *, keys: bool) -> Iterable[Event]:
    facts = {
        "size": batch.size,
        "capacity": batch.capacity,
        "reason": None if batch.reason is None else batch.reason.value,
        "outcome": None if batch.outcome is None else batch.outcome.value,
        "error": None if batch.error is None else batch.error.__qualname__,
        "missing": batch.missing,
        "asked by": [str(place) for place in batch.asked],
        "waited for": [holder.name for holder in batch.waited_for],
    }
    if keys and batch.keys is not None:
        facts["keys"] = list(map(shown_key, batch.keys))
    own = tracks.slice(batch.name, f"{batch.name} ({batch.size})", batch.opened, batch.finished, batch.kind, **facts)
    yield own
    until = own["ts"] + own["dur"]
    begins = [("gathers", batch.opened), ("queues", batch.sent), ("runs", batch.started)]
    stamps = [(name, tracks.microseconds(when)) for name, when in begins if when is not None]
    for (name, begin), end in zip(stamps, [*(begin for _, begin in stamps[1:]), until], strict=True):
        if end > begin:
            yield {**own, "name": name, "ts": begin, "dur": min(end, until) - begin, "args": {}}


def _run_slices(tracks: _Tracks, run: RunRecord) -> Iterable[Event]:
    outcome = None if run.outcome is None else run.outcome.value
    yield tracks.slice(
        run.name,
        run.name,
        run.started,
        run.finished,
        run.kind,
        triggers=run.triggers,
        outcome=outcome,
        waited=round(1e6 * (run.started - run.triggered)),
    )


def _arrow(number: int, name: str, begin: Event, end: Event) -> tuple[Event, Event]:
    """An arrow from one slice to the other: each of its ends lies inside of its slice, and it never leads back."""
    leaves = begin["ts"]
    arrives = max(leaves, end["ts"])
    flow = {"name": name, "cat": "flow", "id": number, "pid": PROCESS}
    return (
        {**flow, "ph": "s", "ts": leaves, "tid": begin["tid"]},
        {**flow, "ph": "f", "bp": "e", "ts": arrives, "tid": end["tid"]},
    )


class _Tracks:
    """The tracks: as many lanes for each name as it takes."""

    def __init__(self, start: float, end: float) -> None:
        self._start = start
        self._end = end
        self._lanes: dict[str, list[tuple[int, float]]] = {}  # for each name: a thread id, and when it is free again
        self._ids = count(1)

    def microseconds(self, when: float) -> float:
        return round(1e6 * (when - self._start), 3)

    def slice(
        self, track: str, name: str, begin: float, end: float | None, category: str = "loader", **facts: Any
    ) -> Event:
        """A slice on the first lane of a track that is free; slices come in the order of their beginning."""
        ts = self.microseconds(begin)
        dur = max(self.microseconds(self._end if end is None else end) - ts, LEAST)
        lanes = self._lanes.setdefault(track, [])
        lane = next((lane for lane, (_, free) in enumerate(lanes) if free <= ts), len(lanes))
        if lane == len(lanes):
            lanes.append((next(self._ids), 0.0))
        tid = lanes[lane][0]
        lanes[lane] = tid, ts + dur
        return {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": ts,
            "dur": dur,
            "pid": PROCESS,
            "tid": tid,
            "args": facts,
        }

    def metadata(self) -> Iterable[Event]:
        """The names of the tracks, and their order."""
        for track, lanes in self._lanes.items():
            for lane, (tid, _) in enumerate(lanes):
                shown = track if lane == 0 else f"{track} ({lane + 1})"
                event = {"ph": "M", "ts": 0, "pid": PROCESS, "tid": tid}
                yield {**event, "name": "thread_name", "args": {"name": shown}}
                yield {**event, "name": "thread_sort_index", "args": {"sort_index": tid}}
