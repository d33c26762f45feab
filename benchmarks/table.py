"""Tables of figures: what each part of the benchmarks yields, for people to read and for programs.

A row begins with strings, which name it; figures follow. As data a figure is a number in seconds or bytes, or without
a unit; how it is shown, it knows itself.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_FACTORS = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9, "B": 1.0, "MB": 1e-6, "": 1.0}


class Figure(float):
    """A number that is shown in a unit, and with so many digits after the point."""

    unit: str
    digits: int

    def __new__(cls, value: float, unit: str = "", digits: int = 0) -> Self:
        self = super().__new__(cls, value)
        self.unit, self.digits = unit, digits
        return self

    @property
    def number(self) -> str:
        """How it is shown, without the unit."""
        return f"{self * _FACTORS[self.unit]:,.{self.digits}f}"

    def __str__(self) -> str:
        return f"{self.number} {self.unit}".rstrip()


class Spread(NamedTuple):
    """Nine rounds in ten lie between these."""

    low: Figure
    high: Figure

    def __str__(self) -> str:
        return f"{self.low.number} to {self.high}"


class Around(NamedTuple):
    """A median, and between what nine rounds in ten lie."""

    median: Figure
    low: Figure
    high: Figure

    def __str__(self) -> str:
        return f"{self.median} ({self.low.number} to {self.high.number})"


@dataclass(frozen=True)
class Table:
    """Rows under a head.

    Attributes:
        name: Its name, which no other table of any part has.
        caption: What was measured, and how.
        head: The names of the columns.
        rows: Strings that name the row, then figures: a number, a `Figure`, a `Spread`, an `Around`, or None where
            there is none.
        chart: The column that a chart of the table shows; none without it.
        ours: The names of the rows that measure this library: the chart sets them off.
    """

    name: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    chart: str = ""
    ours: Collection[str] = ()

    def labels(self) -> list[tuple[str, ...]]:
        """The names of each row."""
        return [tuple(_labels(row)) for row in self.rows]

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = ["| " + " | ".join(cells) + " |" for cells in self._cells()]
        return "\n".join([lines[0], "|" + "---|" * len(self.head), *lines[1:]])

    def text(self) -> str:
        """The table for a terminal, in columns as wide as what stands in them, figures on the right."""
        cells = list(self._cells())
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        named = min(map(len, self.labels()), default=1)
        return "\n".join(
            "  ".join(
                cell.ljust(width) if column < named else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        )

    def data(self) -> dict[str, Any]:
        """The table for `json`."""
        return {"name": self.name, "caption": self.caption, "head": list(self.head), "rows": [*map(list, self.rows)]}

    def _cells(self) -> Iterator[list[str]]:
        yield list(self.head)
        for row in self.rows:
            yield ["-" if cell is None else f"{cell:,}" if type(cell) is int else str(cell) for cell in row]


def _labels(row: Sequence[object]) -> Iterator[str]:
    for cell in row:
        if not isinstance(cell, str):
            return
        yield cell


def median(values: Sequence[float], unit: str, digits: int = 1) -> Figure:
    """The median of the rounds."""
    return Figure(statistics.median(values), unit, digits)


def nine_in_ten(values: Sequence[float], unit: str, digits: int = 1) -> Spread:
    """What lies between the lowest and the highest twentieth of the rounds."""
    if len(values) == 1:  # a quick run
        values = [*values, *values]
    low, *_, high = statistics.quantiles(values, n=20, method="inclusive")
    return Spread(Figure(low, unit, digits), Figure(high, unit, digits))


def around(values: Sequence[float], unit: str, digits: int = 1) -> Around:
    """The median of the rounds, and between what nine in ten lie."""
    return Around(median(values, unit, digits), *nine_in_ten(values, unit, digits))


def percentile(values: Sequence[float], percent: int, unit: str, digits: int = 1) -> Figure:
    """What so many percent of the values do not exceed."""
    return Figure(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], unit, digits)


def ratio(values: Sequence[float], reference: Sequence[float], digits: int = 2) -> Figure:
    """The median of some rounds beside that of others."""
    return Figure(statistics.median(values) / statistics.median(reference), digits=digits)


def ratio_in_rounds(values: Sequence[float], reference: Sequence[float], digits: int = 2) -> Around:
    """What something took beside something else in the same round, when the machine was as fast for both."""
    return around([each / other for each, other in zip(values, reference, strict=True)], "", digits)


def compared(
    took: Mapping[str, Sequence[float]], beside: Sequence[str], unit: str, digits: int = 1
) -> dict[str, list[object]]:
    """For each way: its ratios to some of the ways, its median, and between what nine of its rounds in ten lie."""
    return {
        way: [
            *(ratio(values, took[reference]) for reference in beside),
            median(values, unit, digits),
            nine_in_ten(values, unit, digits),
        ]
        for way, values in took.items()
    }


def compared_each(
    took: Mapping[str, Mapping[str, Sequence[float]]], beside: Sequence[str], unit: str, digits: int = 1
) -> list[list[object]]:
    """The rows of a table that compares the ways of each course."""
    return [
        [course, way, *cells]
        for course, ways in took.items()
        for way, cells in compared(ways, beside, unit, digits).items()
    ]
