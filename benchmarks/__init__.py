"""Measurements beside the peers, in one run: `python -m benchmarks`."""
