"""What happened when in an operation, as the page draws it: a row for each batch or, of many, for each loader."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loader.timeline import Timeline

MOST_ROWS = 24
PARTS = 96
PHASES = (("gathers", "opened", "started"), ("runs", "started", "finished"))


def waterfall(timeline: Timeline, statements: list[tuple[str, float]], began: float, seconds: float) -> dict[str, Any]:
    """The rows, with times in seconds since the operation began.

    Args:
        timeline: The operation's batches.
        statements: Its statements, and when each was sent; those before the first batch are the root field's own.
        began: When it began.
        seconds: How long it took.
    """
    late = timeline.start - began
    rows = [
        {
            "name": batch["name"].partition(".")[2],
            "keys": batch["size"],
            "bits": [
                {"phase": phase, "begin": late + batch[begin], "end": late + batch[end]}
                for phase, begin, end in PHASES
                if None not in (batch[begin], batch[end]) and batch[end] > batch[begin]
            ],
        }
        for batch in timeline.data()["batches"]
    ]
    if statements and statements[0][1] - began < late:
        bit = {"phase": "runs", "begin": statements[0][1] - began, "end": late}
        rows.insert(0, {"name": "the list", "keys": None, "bits": [bit]})
    many = len(rows) > MOST_ROWS
    return {"seconds": seconds, "many": many, "rows": _by_loader(rows, seconds) if many else rows}


def _by_loader(rows: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """How many batches of each loader run at a time, on average of each of the parts that the time is cut into."""
    busy: dict[str, list[float]] = defaultdict(lambda: [0.0] * PARTS)
    count: dict[str, int] = defaultdict(int)
    width = seconds / PARTS
    for row in rows:
        count[row["name"]] += 1
        for bit in row["bits"]:
            if bit["phase"] == "runs":
                for part in range(int(bit["begin"] / width), min(int(bit["end"] / width) + 1, PARTS)):
                    inside = min(bit["end"], (part + 1) * width) - max(bit["begin"], part * width)
                    busy[row["name"]][part] += inside / width
    return [{"name": name, "batches": count[name], "busy": [round(each, 2) for each in busy[name]]} for name in count]
