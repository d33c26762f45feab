"""`python -m tests.explorer`: break every script at every point, then in pairs at random for as long as wanted.

The exit status is 1 if anything was wrong. What was found is found again with the same seed.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time

from tests.explorer.awaits import NEVER_WAIT, all_awaits, not_among
from tests.explorer.explore import Explorer, Report
from tests.explorer.scripts import SCRIPTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("scripts", nargs="*", help="names of scripts; all by default")
    parser.add_argument("--seed", type=int, default=0, help="what random choices begin with")
    parser.add_argument("--rounds", type=int, default=0, help="how many rounds of pairs of faults, a few minutes each")
    parser.add_argument("--pairs", type=int, default=200, help="how many pairs of each script in a round")
    parser.add_argument("--all", action="store_true", help="every fault at every moment, not one of them in turn")
    options = parser.parse_args()
    scripts = [script for script in SCRIPTS if not options.scripts or script.__name__ in options.scripts]
    if not scripts:
        parser.error(f"there are {', '.join(script.__name__ for script in SCRIPTS)}")
    gc.collect()
    gc.freeze()  # what was imported is looked through no more: there is a collection after every run
    total = Report()
    for number in range(options.rounds + 1):
        print(f"round {number}, seed {options.seed + number}" if number else "every point once", flush=True)
        for script in scripts:
            began = time.monotonic()
            explorer = Explorer(script, options.seed + number)
            report = explorer.pairs(options.pairs) if number else explorer.all() if options.all else explorer.once()
            total.add(report)
            print(
                f"  {script.__name__:30} {report.points:5} points {report.runs:6} runs "
                f"{time.monotonic() - began:6.1f} s  {len(report.wrong) or 'nothing'} wrong",
                flush=True,
            )
            for faults, wrong in report.wrong.items():
                print(f"    {faults}", *wrong, sep="\n      ", flush=True)
    awaits = all_awaits()
    missed = [] if options.scripts else [each for each in not_among(total.hit) if each.name not in NEVER_WAIT]
    print(
        f"{total.points} points of {len(scripts)} scripts, {total.runs} runs, {len(total.wrong)} of them wrong; "
        f"{len(awaits) - len(not_among(total.hit))} of {len(awaits)} awaits hit, {len(NEVER_WAIT)} never wait"
    )
    for each in missed:
        print(f"  not hit: {each.name}")
    return int(bool(total.wrong or missed))


if __name__ == "__main__":
    sys.exit(main())
