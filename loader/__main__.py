"""The commands of this package: `python -m loader COMMAND`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from loader import _plan, _plan_svg
from loader._plan import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: what is wrong, without the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, and return the exit code.

    Args:
        arguments: What stands after `python -m loader`; by default what the process was given.
    """
    parser = _Parser(prog="python -m loader", description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_plan(commands.add_parser("plan", help=_PLAN, description=f"{_PLAN}. Times are in seconds."))
    chosen = parser.parse_args(arguments)
    try:
        print(chosen.run(chosen))
    except _UsageError as error:
        chosen.fail(str(error))
    return 0


class _UsageError(Exception):
    """What the user asked for cannot be done; the message is one line."""


_DIGITS = 6
"""What batch sizes and numbers of slots have at most: each slot is simulated."""

_PLAN = "what batching would do to your calls: batch sizes, added latency, load of the backend"


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=_positive, metavar="N", help="arrivals a second; a trace has its own")
    parser.add_argument(
        "--max-batch-size", type=_count, default=8, metavar="N", help="most items of a batch (default: 8)"
    )
    parser.add_argument(
        "--window", type=_positive, default=0.05, metavar="S", help="window to look around (default: 0.05)"
    )
    parser.add_argument(
        "--call-cost", type=_not_negative, required=True, metavar="S", help="time of a call, whatever is in it"
    )
    parser.add_argument(
        "--item-cost", type=_not_negative, required=True, metavar="S", help="time that each item adds to it"
    )
    parser.add_argument(
        "--concurrency", type=_count, default=1, metavar="N", help="calls that may run at once (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the simulated arrivals (default: 0)")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="your own arrival times, one number of seconds a line"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the trade-off")
    parser.add_argument("--json", action="store_true", help="print JSON, all times in seconds")
    parser.set_defaults(run=_run_plan, fail=parser.error)


def _run_plan(given: argparse.Namespace) -> str:
    if given.trace is None:
        if given.rate is None:
            raise _UsageError("give --rate, or --trace with your own arrival times")
        arrivals = _plan.poisson(given.rate, given.seed)
        rate = given.rate
        source = f"{len(arrivals):,} random arrivals, seed {given.seed}"
    else:
        arrivals = _read_trace(given.trace)
        rate = _plan.mean_rate(arrivals)
        source = f"{len(arrivals):,} arrivals of {given.trace.name[:40]}"
    backend = _plan.Backend(given.call_cost, given.item_cost, given.concurrency)
    policies = _plan.policies(given.max_batch_size, given.window)
    results = [_plan.simulate(arrivals, policy, backend) for policy in policies]
    advice = _plan.advice(results, backend, rate, given.window)
    title = f"Batching {rate:.4g} arrivals/s"
    subtitle = (
        f"batches of at most {given.max_batch_size}, {given.concurrency} at a time; a call takes "
        f"{seconds(given.call_cost)} + {seconds(given.item_cost)} an item; {source}"
    )
    if given.plot is not None:
        try:
            given.plot.write_text(_plan_svg.draw(results, title, subtitle), encoding="utf-8")
        except OSError as error:
            raise _UsageError(f"cannot write {given.plot}: {error.strerror}") from None
    forecasts = [_plan.forecast(rate, given.max_batch_size, policy.window) for policy in policies]
    if given.json:
        rows = [
            asdict(result) | {"planned": asdict(forecast) if result.policy.window else None}
            for result, forecast in zip(results, forecasts, strict=True)
        ]
        return json.dumps({"rate": rate, "backend": asdict(backend), "results": rows, "advice": advice}, indent=2)
    planned = _planned_line(rate, given.max_batch_size, given.window)
    return "\n".join([title, subtitle, "", *_table(results, forecasts), "", planned, "", advice])


def _read_trace(path: Path) -> list[float]:
    try:
        with path.open(encoding="utf-8") as lines:
            return _plan.read_trace(lines)
    except OSError as error:
        raise _UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _UsageError(f"{path} is no text file") from None
    except ValueError as error:
        raise _UsageError(f"{path}: {error}") from None


def _table(results: Sequence[_plan.Result], forecasts: Sequence[_plan.Forecast]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("", "", "planned", "planned", "batch", "added", "added", "answer", "calls", "backend"),
        ("dispatch", "window", "size", "wait", "size", "mean", "worst", "mean", "/s", "busy"),
    ]
    for result, planned in zip(results, forecasts, strict=True):
        window = result.policy.window
        times = (result.added_mean, result.added_worst, result.answer_mean)
        rows.append(
            (
                result.policy.name,
                seconds(window) if window else "-",
                f"{planned.batch_size:.3g}" if window else "-",
                seconds(planned.wait) if window else "-",
                f"{result.batch_size:.3g}",
                *(["grows"] * 3 if result.overloaded else map(seconds, times)),
                f"{result.calls_per_second:.3g}",
                f"{result.utilisation:.0%}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _planned_line(rate: float, size: int, window: float) -> str:
    planned = _plan.forecast(rate, size, window)
    fill = f"Planned: (n-1)/r = {size - 1}/{rate:.4g} = {seconds(planned.fill_time)} to fill a batch of {size}"
    if planned.fill_time <= window:
        return f"{fill}, within the window of {seconds(window)}: batches are full, and the first item waits that long."
    return (
        f"{fill}, longer than the window of {seconds(window)}: the first item waits for the window, and about "
        f"{planned.batch_size:.2g} items share a batch."
    )


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text[:40]!r}") from None
    if not isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"must be finite and not negative, not {text[:40]}")
    if value and not _plan.LEAST <= value <= _plan.MOST:
        raise argparse.ArgumentTypeError(f"must be between {_plan.LEAST:g} and {_plan.MOST:g}, not {text[:40]}")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not text.strip("0"):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, not {text[:40]!r}")
    if len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(f"must have {_DIGITS} digits at most, not {len(text)}")
    return int(text)


if __name__ == "__main__":  # pragma: no cover  # the tests run this line in a process of its own
    sys.exit(main())
