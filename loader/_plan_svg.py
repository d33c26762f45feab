"""The picture of a plan: added latency above, backend time below, one column for each policy; a single SVG file."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from loader._plan import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from loader._plan import Result

_WIDTH, _HEIGHT = 800, 600
_LEFT, _RIGHT = 80, 780
_UPPER = (110, 320)  # top and bottom of the panel of latencies
_LOWER = (370, 510)  # and of that of the backend's time

_STYLE = """
    svg { font: 12px system-ui, sans-serif; }
    text { fill: #1f2328; } .paper { fill: #ffffff; } .quiet { fill: #59636e; }
    line { stroke: #d1d9e0; } .base { stroke: #59636e; }
    .mean { fill: #0969da; } .worst { fill: #a8c8ee; } .busy { fill: #1a7f37; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; } .paper { fill: #0d1117; } .quiet { fill: #9198a1; }
      line { stroke: #3d444d; } .base { stroke: #9198a1; }
      .mean { fill: #4493f8; } .worst { fill: #27476f; } .busy { fill: #3fb950; }
    }
"""


def draw(results: Sequence[Result], title: str, subtitle: str) -> str:
    """The results side by side, as the text of an SVG file that needs no other.

    Args:
        results: One for each column, in order.
        title: The first line.
        subtitle: The second, in smaller letters.
    """
    top = max((result.added_worst for result in results if not result.overloaded), default=0.0)
    unit, factor = ("s", 1.0) if top >= 1 else ("ms", 1000.0)
    latency = _scale(top * factor, *_UPPER)
    busy = _scale(100.0, *_LOWER)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        _text(_LEFT, 32, title, 'font-size="17" font-weight="600"'),
        _text(_LEFT, 54, subtitle, 'class="quiet" font-size="11.5"'),
        *_legend([("mean", "mean"), ("worst", "worst")], 84),
        *_axis(latency, f"added latency ({unit})", *_UPPER),
        *_axis(busy, "backend busy (%)", *_LOWER),
    ]
    step = (_RIGHT - _LEFT) / len(results)
    for index, result in enumerate(results):
        middle = _LEFT + step * (index + 0.5)
        if result.overloaded:
            parts.append(_text(middle, _UPPER[1] - 8, "grows without end", 'class="quiet" font-size="10"', "middle"))
        else:
            for x, kind, value in (
                (middle - 34, "mean", result.added_mean * factor),
                (middle + 2, "worst", result.added_worst * factor),
            ):
                parts += _bar(x, 32, kind, value, latency[0], _UPPER[1])
        parts += _bar(middle - 24, 48, "busy", result.utilisation * 100, busy[0], _LOWER[1])
        window = seconds(result.policy.window) if result.policy.window else "-"
        calls = f"{result.calls_per_second:.3g} calls/s"
        parts.append(_text(middle, _LOWER[1] + 18, result.policy.name, "", "middle"))
        parts.append(_text(middle, _LOWER[1] + 34, window, "", "middle"))
        parts.append(_text(middle, _LOWER[1] + 50, calls, 'class="quiet" font-size="11"', "middle"))
    middle = (_LEFT + _RIGHT) / 2
    parts.append(
        _text(
            middle,
            _HEIGHT - 12,
            "dispatch, its window, and the calls it makes",
            'font-weight="600"',
            "middle",
        )
    )
    return "\n".join([*parts, "</svg>", ""])


def _scale(top: float, upper: float, lower: float) -> tuple[Callable[[float], float], list[float]]:
    """How high a value stands between the two edges of a panel, and round values for the grid up to `top`."""
    step = _round_step(top / 4) if top else 1.0
    count = max(1, -int(-top // step))  # up to the first line that is not below the top
    ticks = [step * index for index in range(count + 1)]
    return lambda value: lower - (lower - upper) * value / ticks[-1], ticks


def _round_step(step: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(step))
    return next(round_step * power for round_step in (1, 2, 2.5, 5, 10) if round_step * power >= step * 0.999)


def _axis(scale: tuple[Callable[[float], float], list[float]], title: str, upper: float, lower: float) -> Iterator[str]:
    height, ticks = scale
    for tick in ticks:
        y = f"{height(tick):.1f}"
        kind = "grid" if tick else "base"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
        yield _text(_LEFT - 8, height(tick) + 4, f"{tick:g}", 'class="quiet"', "end")
    x, y = 24, f"{(upper + lower) / 2:.1f}"
    yield _text(x, float(y), title, f'font-weight="600" transform="rotate(-90 {x} {y})"', "middle")


def _bar(
    x: float, width: float, kind: str, value: float, height: Callable[[float], float], lower: float
) -> Iterator[str]:
    top = height(value)
    yield (
        f'<rect class="{kind}" x="{x:.1f}" y="{top:.1f}" width="{width}" height="{lower - top:.1f}">'
        f"<title>{kind}: {value:.3g}</title></rect>"
    )
    yield _text(x + width / 2, top - 4, f"{value:.3g}", 'font-size="11"', "middle")


def _legend(entries: list[tuple[str, str]], y: float) -> Iterator[str]:
    x = _LEFT
    for kind, label in entries:
        yield f'<rect class="{kind}" x="{x}" y="{y - 10}" width="12" height="12"/>'
        yield _text(x + 18, y, label)
        x += 80


def _text(x: float, y: float, text: str, attributes: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {attributes}>{escape(text)}</text>'
