"""A timeline as a chart for a terminal."""

from __future__ import annotations

from reprlib import Repr
from typing import TYPE_CHECKING, Any

from loader.observe import BatchRecord, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loader.observe import RunRecord
    from loader.timeline import Timeline

GATHERS, QUEUES, RUNS = "·░█"
"""Its keys come, it waits for a slot, its function runs."""

MOST_KEYS = 20  # of one batch; `Timeline.data()` has them all
NAME_MOST = 32  # characters; a longer name loses its beginning, which is usually that of all the others too

_brief = Repr()
_brief.maxstring = _brief.maxlong = _brief.maxother = 100  # characters


def shown_key(key: Any) -> str:
    """The `repr` of a key, cut short; one that cannot be made is no reason to show nothing."""
    try:
        return _brief.repr(key)
    except Exception:  # noqa: BLE001  # such as that of a number with very many digits
        return f"<{type(key).__name__} without a repr>"


def chart(timeline: Timeline, width: int) -> str:
    """The chart, the places below each line, and the hints at the end."""
    entries: list[BatchRecord | RunRecord] = [*timeline.batches, *timeline.runs]
    entries.sort(key=_begin)
    names = [_shortened(each.name) for each in entries]
    facts = [_facts(each) for each in entries]
    name_width = max(map(len, names), default=0)
    facts_width = max((len(" ".join(each)) for each in _aligned(facts)), default=0)
    bar_width = max(width - name_width - facts_width - 4, 10)
    start, span = timeline.start, max(timeline.end - timeline.start, 1e-9)
    lines = [_head(timeline)]
    for each, name, its_facts in zip(entries, names, _aligned(facts), strict=True):
        bar = _bar(each, start, bar_width / span, bar_width, timeline.end)
        lines.append(f"{name:<{name_width}} ▕{bar}▏ {' '.join(its_facts)}".rstrip())
        lines += [f"{'':<{name_width}}  {note}" for note in _notes(each, keys=timeline.wants_keys)]
    lines += [f"{name}: {count} from the cache" for name, count in timeline.cached.items()]
    if timeline.left_out:
        lines.append(f"and {timeline.left_out} more, beyond the limit of {timeline.limit}")
    lines += [f"hint: {hint}" for hint in timeline.hints()]
    return "\n".join(lines)


def _head(timeline: Timeline) -> str:
    batches, runs = len(timeline.batches), len(timeline.runs)
    parts = [
        f"{batches} batch" + "es" * (batches != 1),
        *([f"{runs} run" + "s" * (runs != 1)] if runs else []),
        f"{1000 * (timeline.end - timeline.start):.1f} ms",
    ]
    return f"{timeline.name or 'timeline'}: {', '.join(parts)}   {GATHERS} gathers {QUEUES} queues {RUNS} runs"


def _begin(each: BatchRecord | RunRecord) -> float:
    return each.opened if isinstance(each, BatchRecord) else each.triggered


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_MOST else f"…{name[1 - NAME_MOST :]}"


def _facts(each: BatchRecord | RunRecord) -> list[str]:
    """Size, reason, time of running, and what became of it if that is worth saying."""
    if isinstance(each, BatchRecord):
        count, what = each.size, "key" if each.kind == "loader" else "item"
        size = f"{count}" if each.capacity is None else f"{count}/{each.capacity}"
        reason = "" if each.reason is None else each.reason.value
    else:
        count, what = each.triggers, "trigger"
        size, reason = f"{count}", each.kind
    took = ""
    if each.started is not None and each.finished is not None:
        took = f"{1000 * (each.finished - each.started):.1f} ms"
    became = "under way" if each.outcome is None else "" if each.outcome is Outcome.DONE else each.outcome.value
    if each.error is not None:
        became += f": {each.error.__name__}"
    return [size, what if count == 1 else f"{what}s", reason, took, became]


def _aligned(rows: list[list[str]]) -> list[list[str]]:
    """The rows with every column as wide as its widest cell: numbers to the right, words to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        [
            cell.rjust(width) if column in (0, 3) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def _bar(each: BatchRecord | RunRecord, start: float, scale: float, width: int, end: float) -> str:
    if isinstance(each, BatchRecord):
        times = [each.opened, each.sent, each.started, each.finished]
    else:
        times = [each.triggered, each.started, each.started, each.finished]
    known = [time for time in times if time is not None]
    # What did not come to it yet, or never will, ends here.
    last = end if each.finished is None else known[-1]
    begin, sent, started, finished = (round(((last if time is None else time) - start) * scale) for time in times)
    begin = min(begin, width - 1)
    finished = max(finished, begin + 1)  # everything can be seen, however short
    ran = each.started is not None
    started = min(started, finished - ran)
    sent = min(sent, started)
    bar = " " * begin + GATHERS * (sent - begin) + QUEUES * (started - sent) + RUNS * (finished - started)
    return bar.ljust(width)


def _notes(each: BatchRecord | RunRecord, *, keys: bool) -> Iterator[str]:
    if not isinstance(each, BatchRecord):
        return
    for place, asks in each.asked.items():
        yield f"asked by {place}" + (f" ({asks.count} times)" if asks.count > 1 else "")
    for parent in each.parents:
        yield f"inside a batch of {parent.name}"
    for name in dict.fromkeys(holder.name for holder in each.waited_for):
        yield f"waited for a slot that {name} held"
    if each.missing:
        yield f"nothing came for {each.missing} of them"
    if keys and each.keys:
        more = len(each.keys) - MOST_KEYS
        yield f"keys {', '.join(map(shown_key, each.keys[:MOST_KEYS]))}" + (f" and {more} more" if more > 0 else "")
