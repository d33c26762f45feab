"""Which faults to try: every point of a script once, or pairs of them at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.explorer.world import Fault, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.explorer.moments import Line
    from tests.explorer.world import Script, Seen


CALLS = ("fail", "break off", "late")
"""What may go wrong with a backend call."""


@dataclass
class Report:
    """What an exploration covered.

    Attributes:
        points: The distinct places where one task waited between two of its steps, each hit by a cancellation.
        runs: How often a script ran.
        hit: The lines of the library where a task waited that was cancelled.
        wrong: What was wrong, by the faults that led to it.
    """

    points: int = 0
    runs: int = 0
    hit: set[Line] = field(default_factory=set)
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        """Put another one's figures to these."""
        self.points += other.points
        self.runs += other.runs
        self.hit |= other.hit
        self.wrong |= other.wrong


class Explorer:
    """Runs one script over and over."""

    def __init__(self, script: Script, seed: int = 0) -> None:
        self.script = script
        self.name = script.__name__
        self.report = Report()
        self._random = Random(f"{self.name} {seed}")
        self._chased: set[Line] = set()

    def run(self, *faults: Fault) -> Seen:
        """Run the script with these faults."""
        seen = run(self.script, *faults)
        self.report.runs += 1
        self.report.hit |= seen.hit
        if seen.wrong:
            self.report.wrong[f"{self.name}: {', '.join(map(str, faults)) or 'no fault'}"] = seen.wrong
        return seen

    def once(self) -> Report:
        """A cancellation at every point, and at every moment one of the other faults."""
        seen = self.run()
        if seen.wrong:
            return self.report
        self.report.points += sum(last > seen.begins for _, last in seen.points.values())
        turn = self._random.randrange(1000)
        for fault in cancellations(seen):
            self._try(fault)
        for moment in range(seen.begins + 1, seen.moments + 1):
            if others := list(others_at(seen, moment)):
                self._try(others[(turn + moment) % len(others)])
        return self.report

    def all(self) -> Report:
        """Every single fault at every moment."""
        seen = self.run()
        self.report.points += sum(last > seen.begins for _, last in seen.points.values())
        for fault in every_fault(seen):
            self._try(fault)
        return self.report

    def pairs(self, count: int) -> Report:
        """So many faults at random, each with another one at random that is possible after it.

        Not where there are threads: a driver that is cancelled while it cleans up is left with threads of its own.
        """
        if getattr(self.script, "threads", False):
            return self.report
        seen = self.run()
        for _ in range(count):
            first = self._any(seen, after=seen.begins)
            after = self.run(first)
            if not after.wrong and after.moments > first.moment:
                self.run(first, self._any(after, after=first.moment))
        return self.report

    def _try(self, fault: Fault) -> None:
        """Run with a fault, and where it leads to awaits that there are none of without, with one more there."""
        seen = self.run(fault)
        for line, there in seen.waited.items():
            if line not in self.report.hit | self._chased and there.moment > fault.moment:
                self._chased.add(line)
                self.run(fault, there)

    def _any(self, seen: Seen, after: int) -> Fault:
        moment = self._random.randint(after + 1, seen.moments)
        tasks = [number for (number, _), (first, last) in seen.points.items() if first <= moment <= last]
        faults = [*(Fault(moment, "cancel", number) for number in tasks), *others_at(seen, moment)]
        return self._random.choice(faults or [Fault(moment, "stall")])


def cancellations(seen: Seen) -> Iterable[Fault]:
    """Each task cancelled at each of its steps: when it begins to wait, meanwhile, and when what it waits for came."""
    return {
        Fault(moment, "cancel", number): None
        for (number, _), (first, last) in seen.points.items()
        for moment in (first, (first + last) // 2, last)
        if moment > seen.begins
    }


def every_fault(seen: Seen) -> Iterator[Fault]:
    """Every fault at every moment."""
    for (number, _), (first, last) in seen.points.items():
        for moment in range(max(first, seen.begins + 1), last + 1):
            yield Fault(moment, "cancel", number)
    for moment in range(seen.begins + 1, seen.moments + 1):
        yield from others_at(seen, moment)


def others_at(seen: Seen, moment: int) -> Iterator[Fault]:
    """What else may go wrong at a moment."""
    yield Fault(moment, "stall")
    for number, (first, last) in seen.calls.items():
        if first <= moment <= last:
            for kind in CALLS:
                yield Fault(moment, kind, number)
    for name, (first, last) in seen.actions.items():
        if first < moment <= last:
            yield Fault(moment, name)
