"""Print figures of this library beside those of its peers: of all parts, or of those that are named.

Ways are measured in turns, in one process. Where several rounds were run, figures are medians, and beside them stands
between what nine rounds in ten lie. Compare the ratios: times are those of the machine.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chart import draw
from benchmarks.pages import refresh, strays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.table import Table

ROOT = Path(__file__).resolve().parent.parent

PARTS = {
    "keys": "what a key costs, beside the peers: time, memory, growth",
    "reference": "the reference burst and trickle: calls, keys, latency",
    "latency": "from the first load to the start of its batch, on an idle and on a busy loop",
    "batcher": "the Batcher beside a call for each item and a queue by hand",
    "requests": "requests over Strawberry: relations beside attributes and resolvers",
    "services": "the same against SQLite, PostgreSQL and a service that takes 5 ms: calls and time",
    "shapes": "batches of queries of many shapes, against the least that is possible",
    "observing": "what observing costs a request",
    "load": "the demo under load for two minutes, beside Strawberry's DataLoader",
    "second_level": "a second-level cache on Redis: cold, warm and absent",
    "workers": "processes that share values and change them: how old is what they read",
    "triggers": "debouncer and coalescer beside a task per trigger, and what a trigger costs",
}

VERSIONS = ("strawberry-loader", "strawberry-graphql", "graphql-core", "aiodataloader", "aiosqlite", "asyncpg")


@dataclass
class Run:
    """The tables of the parts that ran to their end, and how many seconds each took."""

    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    tables: dict[str, list[Table]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def part(self, name: str, *, quick: bool) -> Iterator[Table]:
        """Run a part; its tables, each when it is there."""
        module = importlib.import_module(f"benchmarks.{name}")
        gc.freeze()  # what was imported is no garbage: to look through it before each measurement takes longer than it
        started = time.monotonic()
        tables = []
        for table in module.tables(quick=quick):
            tables.append(table)
            yield table
        self.tables[name], self.seconds[name] = tables, time.monotonic() - started

    def every_table(self) -> list[Table]:
        """The tables of all parts."""
        return [table for tables in self.tables.values() for table in tables]

    def machine(self) -> str:
        """Where it was run, in a line."""
        python = f"{platform.python_implementation()} {platform.python_version()}"
        peers = ", ".join(f"{name} {version(name)}" for name in ("strawberry-graphql", "aiodataloader"))
        machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
        return f"{python}, {machine}; {peers}; {self.began:%Y-%m-%d}."

    def data(self) -> dict[str, Any]:
        """All of it for `json`: times in seconds, memory in bytes, spreads as pairs."""
        return {
            "date": self.began.isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "versions": {name: version(name) for name in VERSIONS},
            "parts": {
                name: {"seconds": round(self.seconds[name], 1), "tables": [table.data() for table in tables]}
                for name, tables in self.tables.items()
            },
        }


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="parts:\n" + "\n".join(f"  {name:10} {what}" for name, what in PARTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="which parts to run")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures to FILE, with what they were taken on"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="write an SVG chart of each table of times to FOLDER"
    )
    parser.add_argument("--readme", action="store_true", help="write the tables into the README and the guides")
    parser.add_argument(
        "--widen", action="store_true", help="the same, but spreads that are stated there stay where they are wider"
    )
    parser.add_argument(
        "--compare", action="store_true", help="say which figures of the README this run did not reproduce"
    )
    parser.add_argument("--quick", action="store_true", help="run few and small rounds, to see that all parts work")
    return parser


def main(given: Sequence[str] | None = None) -> None:
    """Run the parts named on the command line."""
    parser = arguments()
    options = parser.parse_args(given)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for option in ("readme", "widen", "compare"):
        if vars(options)[option] and options.quick:
            parser.error(f"--{option} is for what was measured, and --quick measures nothing: leave one of them out")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"there is no folder {options.json.parent} for --json")
    run, failed = Run(), list[str]()
    for part in options.parts or PARTS:
        print(f"## {part}: {PARTS[part]}\n", flush=True)
        try:
            for table in run.part(part, quick=options.quick):
                print(f"{table.caption}\n\n{table.markdown() if options.markdown else table.text()}\n", flush=True)
        except Exception:  # noqa: BLE001  # the figures of the other parts are not lost with it
            traceback.print_exc()
            failed.append(part)
    print(run.machine())
    print(", ".join(f"{part} {seconds:.0f} s" for part, seconds in run.seconds.items()), end="; ")
    print(f"{sum(run.seconds.values()):.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps(run.data(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.plot:
        options.plot.mkdir(parents=True, exist_ok=True)
        for table in run.every_table():
            if table.chart:
                (options.plot / f"{table.name}.svg").write_text(draw(table), encoding="utf-8")
    apart = strays((ROOT / "README.md").read_text(encoding="utf-8"), run.every_table()) if options.compare else []
    if options.compare:
        print("\n".join(apart) or "every figure of the README that was measured lies within its spread")
    if options.readme or options.widen:
        for path in refresh(ROOT, run.every_table(), run.machine(), widen=options.widen):
            print(f"wrote {path.relative_to(ROOT)}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    if apart:
        sys.exit(f"{len(apart)} figures lie outside of their spread")


if __name__ == "__main__":
    main()
