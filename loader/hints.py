"""What to change in one's code, found in what was observed: each hint with its place, its evidence and its remedy.

`find_hints(batches)` finds them in the batches of one operation, and a `Timeline` has them as `hints()`. `LogHints` is
an observer that logs them, each place once: `observing(LogHints())` for everything that runs, `install(schema,
hints=True)` for the operations of a schema. What is done well gives no hint: a hint is worth reading.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from threading import Lock
from typing import TYPE_CHECKING, final
from weakref import WeakKeyDictionary

from loader.observe import Observer, Place, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from loader._scope import Scope
    from loader.observe import BatchRecord, Holder

__all__ = ["Hint", "HintKind", "LogHints", "find_hints", "in_development"]

ENOUGH = 3  # batches that make a habit
ENOUGH_KEYS = 10  # that make a share of them mean something
NOTICEABLE = 0.005  # seconds of waiting
SLOW = 3  # times as long as another one


class HintKind(Enum):
    """What a hint is about."""

    LOOP = "loop"  # loads awaited one after another
    CLEARED = "cleared"  # a key fetched again after it was cleared
    WINDOW = "window"  # a window in which nothing comes
    LIMIT = "limit"  # batches that queue for a slot of their own loader
    MISSING = "missing"  # a mapping that lacks most keys
    BEHIND = "behind"  # batches that queue behind a slow one of another loader


@final
@dataclass(frozen=True, slots=True)
class Hint:
    """One thing to change.

    Attributes:
        kind: What it is about.
        loader: The loader or batcher.
        place: Where in the user's code, or in the query; None where nobody looked.
        evidence: What was seen.
        remedy: What to do, in one sentence.
    """

    kind: HintKind
    loader: str
    place: Place | None
    evidence: str
    remedy: str

    def __str__(self) -> str:
        where = "" if self.place is None else f"{self.place}: "
        return f"{where}{self.evidence}. {self.remedy}"


def find_hints(batches: Iterable[BatchRecord]) -> list[Hint]:
    """The hints in some batches that belong together: those of an operation, or the latest of a loader.

    Returns:
        At most one for each kind, loader and place, in the order in which the first batch concerned was opened.
    """
    over = sorted((each for each in batches if each.finished is not None), key=lambda batch: batch.opened)
    found = _loops(over)
    by_name: dict[str, list[BatchRecord]] = {}
    for batch in over:
        by_name.setdefault(batch.label, []).append(batch)
    for name, its_batches in by_name.items():
        for look in (_cleared, _window, _limit, _missing, _behind):
            found += look(name, its_batches)
    return [hint for _, hint in sorted(found, key=lambda item: item[0])]


_Found = list[tuple[float, Hint]]
"""Hints with the time of the first batch concerned."""


def _loops(batches: Sequence[BatchRecord]) -> _Found:
    most: dict[tuple[str, Place], BatchRecord] = {}
    for batch in batches:
        if batch.repeats + 1 >= ENOUGH:
            at = (batch.label, next(iter(batch.asked)))
            if at not in most or batch.repeats > most[at].repeats:
                most[at] = batch
    return [
        (
            batch.opened,
            Hint(
                HintKind.LOOP,
                name,
                place,
                f"{name} sent {batch.repeats + 1} batches of one key each, as the loads are awaited one after another",
                "Ask for all keys before awaiting: `await loader.load_many(keys)`, or asyncio.gather() of the loads",
            ),
        )
        for (name, place), batch in most.items()
    ]


def _cleared(name: str, batches: Sequence[BatchRecord]) -> _Found:
    counts: dict[Place, int] = {}
    first: dict[Place, float] = {}
    for batch in batches:
        for place, count in batch.refetched.items():
            counts[place] = counts.get(place, 0) + count
            first.setdefault(place, batch.opened)
    return [
        (
            first[place],
            Hint(
                HintKind.CLEARED,
                name,
                place,
                f"{name} fetched {_keys(count)} again after clear()",
                "If the new value is known where it is cleared, replace it: prime(key, value, force=True)",
            ),
        )
        for place, count in counts.items()
    ]


def _window(name: str, batches: Sequence[BatchRecord]) -> _Found:
    timed = [batch for batch in batches if batch.reason is Reason.WINDOW]
    waits = [batch.sent - batch.opened for batch in timed if batch.sent is not None]
    if len(timed) < ENOUGH or any(batch.repeats for batch in timed):
        return []
    for batch, wait in zip(timed, waits, strict=True):
        last = max((asks.last for asks in batch.asked.values()), default=float("inf"))  # infinity if nobody looked
        if last - batch.opened > wait / 10:
            return []
    remedy = "Leave the window out: a batch then leaves as soon as nobody has a key to add"
    if timed[0].kind == "batcher":
        remedy = "Leave the window out: a batch then leaves as soon as a slot is free"
    evidence = f"{len(timed)} batches of {name} waited {_ms(max(waits))} each for company that never came"
    return [(timed[0].opened, Hint(HintKind.WINDOW, name, _asker(timed), evidence, remedy))]


def _limit(name: str, batches: Sequence[BatchRecord]) -> _Found:
    queued = [batch for batch in batches if any(holder.label == name for holder in batch.waited_for)]
    queued = [batch for batch in queued if _queued(batch) >= max(NOTICEABLE, _took(batch))]
    if len(queued) < ENOUGH:
        return []
    longest = max(map(_queued, queued))
    evidence = f"{len(queued)} of {len(batches)} batches of {name} queued for a slot, {_ms(longest)} at worst"
    remedy = (
        "Raise max_concurrent_batches as far as the backend bears, or ask in fewer batches (max_batch_size, parameters)"
    )
    return [(queued[0].opened, Hint(HintKind.LIMIT, name, _asker(queued), evidence, remedy))]


def _behind(name: str, batches: Sequence[BatchRecord]) -> _Found:
    behind: dict[str, list[tuple[BatchRecord, Holder]]] = {}
    for batch in batches:
        others = [holder for holder in batch.waited_for if holder.label != name and holder.finished is not None]
        slowest = max(others, key=_took, default=None)
        if slowest is not None and _queued(batch) >= NOTICEABLE and _took(slowest) > SLOW * _took(batch):
            behind.setdefault(slowest.label, []).append((batch, slowest))
    return [
        (
            pairs[0][0].opened,
            Hint(
                HintKind.BEHIND,
                name,
                _asker([batch for batch, _ in pairs]),
                f"{_batches(len(pairs))} of {name} waited up to {_ms(max(_queued(batch) for batch, _ in pairs))} for "
                f"the slot of {slow}, which took {_ms(max(_took(holder) for _, holder in pairs))}",
                f"Make {slow} faster or its batches smaller, or raise the limit that both share",
            ),
        )
        for slow, pairs in behind.items()
    ]


def _missing(name: str, batches: Sequence[BatchRecord]) -> _Found:
    size = sum(batch.size for batch in batches)
    missing = sum(batch.missing for batch in batches)
    if size < ENOUGH_KEYS or missing * 2 <= size:
        return []
    lacking = [batch for batch in batches if batch.missing]
    evidence = f"what the batch function of {name} returned lacks {missing} of {_keys(size)}"
    remedy = (
        "See that its keys are those that were asked for, of the same type and case, or ask only for keys that exist"
    )
    return [(lacking[0].opened, Hint(HintKind.MISSING, name, _asker(lacking), evidence, remedy))]


def _asker(batches: Sequence[BatchRecord]) -> Place | None:
    """The place that asked for the most keys."""
    counts: dict[Place, int] = {}
    for batch in batches:
        for place, asks in batch.asked.items():
            counts[place] = counts.get(place, 0) + asks.count
    return max(counts, key=lambda place: counts[place], default=None)


def _queued(batch: BatchRecord) -> float:
    return 0.0 if batch.sent is None or batch.started is None else batch.started - batch.sent


def _took(batch: BatchRecord | Holder) -> float:
    return 0.0 if batch.started is None or batch.finished is None else batch.finished - batch.started


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"


@final
class LogHints(Observer):
    """Logs hints to the logger `loader` as warnings, each kind and place once.

    The hints of a scope are found when it closes; those of a loader without one in its latest batches.

    Examples:
        >>> import asyncio, logging
        >>> from loader import DataLoader
        >>> from loader.hints import LogHints
        >>> from loader.observe import observing
        >>> async def doubles(numbers: list[int]) -> list[int]:
        ...     return [2 * number for number in numbers]
        >>> async def main() -> None:
        ...     loader = DataLoader(doubles)
        ...     with observing(LogHints()):
        ...         for number in range(5):
        ...             await loader.load(number)  # is logged: "... doubles sent 3 batches of one key each ..."
        >>> asyncio.run(main())
    """

    latest = 100  # how many batches of a loader without a scope belong together

    def __init__(self) -> None:
        self._lock = Lock()  # loops of several threads may tell it of something at once
        self._logged: set[tuple[HintKind, str, Place | None]] = set()
        self._scopes: WeakKeyDictionary[Scope, list[BatchRecord]] = WeakKeyDictionary()
        self._others: dict[str, deque[BatchRecord]] = {}

    def batch_finished(self, batch: BatchRecord) -> None:
        """Keep it, or look at it together with the latest ones."""
        scope = batch.scope
        with self._lock:
            if scope is not None:
                self._scopes.setdefault(scope, []).append(batch)
            else:
                latest = self._others.setdefault(batch.label, deque(maxlen=self.latest))
                latest.append(batch)
                self._log(find_hints(latest))

    def scope_closed(self, scope: Scope) -> None:
        """Look at what happened in it."""
        with self._lock:
            self._log(find_hints(self._scopes.pop(scope, ())))

    def _log(self, hints: Iterable[Hint]) -> None:
        for hint in hints:
            once = (hint.kind, hint.loader, hint.place)
            if once not in self._logged:
                self._logged.add(once)
                logging.getLogger("loader").warning("%s", hint)


def in_development() -> bool:
    """Whether this process looks like one that a developer runs.

    That is: Python's development mode (`python -X dev`), or a server that was told to reload its code (`--reload`,
    `fastapi dev`, `strawberry dev`).
    """
    command, *arguments = sys.argv or [""]
    served = PurePath(command).stem in {"fastapi", "strawberry"} and arguments[:1] == ["dev"]
    return sys.flags.dev_mode or served or "--reload" in arguments
