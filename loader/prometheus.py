"""Prometheus: a collector that shows what `loader.observe.Statistics` counts.

Nothing is registered by importing this. What the metrics are called is in docs/telemetry.md.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING, final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from loader.observe import Statistics, observing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from prometheus_client.metrics_core import Metric

    from loader import Histogram
    from loader.observe import Figures

__all__ = ["LoaderCollector"]

BATCHES = frozenset({"loader", "batcher"})
RUNS = frozenset({"debouncer", "coalescer"})

_Kinds = frozenset[str]

_HISTOGRAMS: Sequence[tuple[_Kinds, str, str, Callable[[Figures], Histogram]]] = (
    (BATCHES, "batch_size", "Keys or items of a batch", lambda of: of.size),
    (BATCHES, "batch_wait_seconds", "From the first key or item to the call", lambda of: of.wait),
    (BATCHES, "batch_duration_seconds", "From the call to the answers", lambda of: of.run_time),
    (RUNS, "run_triggers", "Triggers of a run", lambda of: of.size),
    (RUNS, "run_wait_seconds", "From the first trigger to the run", lambda of: of.wait),
    (RUNS, "run_duration_seconds", "From the start of a run to its end", lambda of: of.run_time),
)
_COUNTERS: Sequence[tuple[_Kinds, str, str, Callable[[Figures], int]]] = (
    (BATCHES, "keys_asked", "Keys or items that were asked for", lambda of: of.asked),
    (BATCHES, "keys_cached", "Keys that the cache answered", lambda of: of.cached),
    (BATCHES, "keys_dropped", "Keys or items that nobody waited for any more", lambda of: of.dropped),
    (BATCHES, "keys_overloaded", "Keys or items that were refused", lambda of: of.overloaded),
    (BATCHES, "keys_missing", "Keys for which nothing came", lambda of: of.missing),
    (BATCHES | RUNS, "failures", "Batches or runs that failed, timed out or were cancelled", lambda of: of.failures),
)
_BREAKDOWNS: Sequence[tuple[_Kinds, str, str, str, Callable[[Figures], Mapping[str, int]]]] = (
    (BATCHES, "batches_sent", "Batches that left", "reason", lambda of: of.reasons),
    (BATCHES, "batches", "Batches that are over, sent or not", "outcome", lambda of: of.outcomes),
    (RUNS, "runs", "Runs that are over", "outcome", lambda of: of.outcomes),
)


@final
class LoaderCollector(Collector):
    """Shows Prometheus the statistics of all loaders, batchers and triggers, by their name and kind.

    Register it with as many registries as you like. A scrape reads the figures of that moment, in any thread. All
    times are in seconds.

    Args:
        statistics: What it shows, which you let observe what you want. None: statistics of its own, of everything
            in the process from now until it is closed.

    Raises:
        TypeError: If `statistics` is something else.

    Examples:
        >>> import asyncio
        >>> from loader import DataLoader
        >>> from loader.prometheus import LoaderCollector
        >>> from prometheus_client import CollectorRegistry
        >>> async def doubles(numbers: list[int]) -> list[int]:
        ...     return [2 * number for number in numbers]
        >>> async def main() -> None:
        ...     await DataLoader(doubles).load_many([1, 2, 3])
        >>> registry = CollectorRegistry()
        >>> with LoaderCollector() as collector:
        ...     registry.register(collector)
        ...     asyncio.run(main())
        ...     print(registry.get_sample_value("loader_batch_size_sum", {"name": "doubles", "kind": "loader"}))
        3.0
    """

    def __init__(self, statistics: Statistics | None = None) -> None:
        self._observing = ExitStack()
        if statistics is None:
            statistics = self._observing.enter_context(observing(Statistics()))
        elif not isinstance(statistics, Statistics):
            raise TypeError(f"LoaderCollector takes loader.observe.Statistics, not {statistics!r}")
        self._statistics = statistics

    def close(self) -> None:
        """Stop observing. What was counted is still shown; nothing happens where statistics were given."""
        self._observing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples: a registry looks whether their names are free."""
        return _families(())

    def collect(self) -> Iterable[Metric]:
        """The metrics as of now."""
        return _families(self._statistics.snapshot())


def _families(figures: Sequence[Figures]) -> Iterator[Metric]:
    for kinds, name, text, histogram in _HISTOGRAMS:
        unit = "seconds" if name.endswith("_seconds") else ""
        buckets = HistogramMetricFamily(f"loader_{name}", text, labels=("name", "kind"), unit=unit)
        for of in _only(kinds, figures):
            values = histogram(of)
            buckets.add_metric((of.name, of.kind), _cumulative(values), values.total)
        yield buckets
    for kinds, name, text, count in _COUNTERS:
        counter = CounterMetricFamily(f"loader_{name}", text, labels=("name", "kind"))
        for of in _only(kinds, figures):
            counter.add_metric((of.name, of.kind), count(of))
        yield counter
    for kinds, name, text, label, counts in _BREAKDOWNS:
        counter = CounterMetricFamily(f"loader_{name}", text, labels=("name", "kind", label))
        for of in _only(kinds, figures):
            for value, number in counts(of).items():
                counter.add_metric((of.name, of.kind, value), number)
        yield counter


def _only(kinds: _Kinds, figures: Iterable[Figures]) -> Iterator[Figures]:
    return (of for of in figures if of.kind in kinds)


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    """How many values each bound is not exceeded by, with infinity as the last one."""
    bounds = (*histogram.bounds, float("inf"))
    return list(zip(map(floatToGoString, bounds), accumulate(histogram.counts), strict=True))
