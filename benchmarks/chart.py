"""The chart of a table: a bar for each row, with its spread, as an SVG file that needs no other."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from benchmarks.table import Around, Figure, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.table import Table

_WIDTH, _LEFT, _RIGHT = 800, 262, 650  # the bars stand between left and right
_ROW, _BAR, _GROUP = 21, 14, 32

_KEY = "Bars: {}, each group to a scale of its own; blue is loader."
_KEY_OF_SPREAD = "Lines: nine in ten."

_STYLE = """
    svg { font: 12px system-ui, sans-serif; }
    text { fill: #1f2328; } .paper { fill: #ffffff; } .quiet { fill: #59636e; }
    .ours { fill: #0969da; } .other { fill: #afb8c1; } .spread { stroke: #1f2328; stroke-width: 1.5; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; } .paper { fill: #0d1117; } .quiet { fill: #9198a1; }
      .ours { fill: #4493f8; } .other { fill: #59636e; } .spread { stroke: #f0f6fc; }
    }
"""


def draw(table: Table) -> str:
    """The text of the file. Rows that have several names stand in groups, named by all but the last."""
    column = list(table.head).index(table.chart)
    y = 20.0
    parts = []
    spread = any(_spread(row, column) for row in table.rows)
    words = f"{table.caption} {_KEY.format(table.chart)} {_KEY_OF_SPREAD if spread else ''}"
    for line in textwrap.wrap(words, 115):
        parts.append(_text(12, y, line, 'class="quiet"'))
        y += 17
    named = zip(table.labels(), table.rows, strict=True)
    for group, members in groupby(named, key=lambda each: each[0][:-1]):
        rows = list(members)
        scale = (_RIGHT - _LEFT) / max(_reach(row, column) for _, row in rows)
        y += _GROUP if group else _ROW
        if group:
            parts.append(_text(12, y - 8, ", ".join(group), 'font-weight="600"'))
        for (*_, name), row in rows:
            parts += _bar(y, name, row, column, scale, name in table.ours)
            y += _ROW
    height = y + 8
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img">',
            f"<title>{escape(table.caption)}</title><style>{_STYLE}</style>",
            f'<rect class="paper" width="{_WIDTH}" height="{height:.0f}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _spread(row: Sequence[object], column: int) -> Spread | None:
    """That of a figure stands in it, or beside it."""
    cell = row[column]
    if isinstance(cell, Around):
        return Spread(cell.low, cell.high)
    beside = row[column + 1] if column + 1 < len(row) else None
    return beside if isinstance(beside, Spread) else None


def _reach(row: Sequence[object], column: int) -> float:
    """How far to the right something of the row is drawn, in the figures' unit."""
    spread = _spread(row, column)
    return max(_number(row[column]), spread.high if spread else 0.0)


def _number(cell: object) -> float:
    if isinstance(cell, Around):
        return cell.median
    if not isinstance(cell, int | float):
        raise TypeError(f"a chart shows numbers, not {cell!r}")
    return cell


def _bar(y: float, name: str, row: Sequence[object], column: int, scale: float, ours: bool) -> Iterator[str]:
    kind = "ours" if ours else "other"
    width = _number(row[column]) * scale
    end = _reach(row, column) * scale
    yield _text(_LEFT - 8, y + 11, name, "", "end")
    yield f'<rect class="{kind}" x="{_LEFT}" y="{y:.1f}" width="{width:.1f}" height="{_BAR}"/>'
    if spread := _spread(row, column):
        middle = f"{y + _BAR / 2:.1f}"
        low, high = (f"{_LEFT + edge * scale:.1f}" for edge in spread)
        yield f'<line class="spread" x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>'
    cell = row[column]
    cell = cell.median if isinstance(cell, Around) else cell
    shown = str(cell) if isinstance(cell, Figure) else f"{_number(cell):,}"
    yield _text(_LEFT + end + 6, y + 11, shown)


def _text(x: float, y: float, text: str, attributes: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {attributes}>{escape(text)}</text>'
