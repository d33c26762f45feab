"""Counts of values in buckets: how large the batches were, how long the waits."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import final

SIZES = tuple(2**power for power in range(14))
"""Bucket bounds for counts of keys or items: 1, 2, 4, ... 8192."""

SECONDS = tuple(base * 10.0**power for power in range(-5, 2) for base in (1, 2.5, 5))
"""Bucket bounds for times in seconds: 10 µs, 25 µs, 50 µs, 100 µs, ... 50 s."""


@final
@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values fell into each bucket.

    Attributes:
        bounds: The upper bounds of the buckets, each included in its bucket, in ascending order.
        counts: One count for each bound, and a last one for values above all of them.
        total: The sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The arithmetic mean of the values, 0 if there were none."""
        count = self.count
        return self.total / count if count else 0.0

    def quantile(self, q: float) -> float:
        """The upper bound of the bucket that holds the `q`-quantile; infinity if it lies above every bound.

        Args:
            q: From 0 to 1; 0.5 is the median.

        Returns:
            The bound, 0 if there were no values.

        Raises:
            ValueError: If `q` is not between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, not at {q!r}")
        rank, seen = q * self.count, 0
        if rank == 0 and self.count == 0:
            return 0.0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= rank:
                return bound
        raise AssertionError("unreachable: the counts add up to the count")  # pragma: no cover


@final
class Recorder:
    """Takes values one by one; `snapshot` hands out what came together as a `Histogram`."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def record(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> Histogram:
        """All values so far; later ones do not change it."""
        return Histogram(self._bounds, tuple(self._counts), self._total)
