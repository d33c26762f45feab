"""`python -m benchmarks [PART ...]`: print the figures that the README shows; all parts without a name."""

from __future__ import annotations

import argparse
import importlib

PARTS = {
    "keys": "what a key costs, beside the peers: time, memory, growth",
    "reference": "the reference burst and trickle: calls, keys, latency",
    "latency": "from the first load to the start of its batch, on an idle and on a busy loop",
    "batcher": "the Batcher beside a call for each item and a queue by hand",
    "requests": "requests over Strawberry: relations beside attributes and resolvers",
    "observing": "what observing costs a request",
    "load": "the demo under load for two minutes, beside Strawberry's DataLoader",
    "second_level": "a second-level cache on Redis: cold, warm and absent",
    "workers": "processes that share values and change them: how old is what they read",
    "triggers": "debouncer and coalescer beside a task per trigger, and what a trigger costs",
}


def main() -> None:
    """Run the parts named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help="; ".join(f"{name}: {what}" for name, what in PARTS.items()))
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for part in chosen:
        print(f"## {part}: {PARTS[part]}\n")
        importlib.import_module(f"benchmarks.{part}").main()
        print()


if __name__ == "__main__":
    main()
