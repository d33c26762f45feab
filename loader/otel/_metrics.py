"""Instruments for what `loader.observe.Statistics` counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from opentelemetry import metrics

from loader.observe import SECONDS, SIZES, Observer, Outcome, label_of

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider

    from loader import Scope
    from loader.observe import BatchRecord, Place, RunRecord

    Attributes = dict[str, str]


@final
class Metrics(Observer):
    """Counts batches, keys and runs, and how large they are and how long they take, with OpenTelemetry's instruments.

    Their attributes are the name of the loader, batcher or trigger without parameters, its kind, and of what has
    ended the reason and the outcome. All times are in seconds.

    Args:
        meter_provider: Where metrics go. None: to the global provider.

    Examples:
        >>> import asyncio
        >>> from loader import DataLoader
        >>> from loader.observe import observing
        >>> from loader.otel import Metrics
        >>> async def doubles(numbers: list[int]) -> list[int]:
        ...     return [2 * number for number in numbers]
        >>> async def main() -> None:
        ...     with observing(Metrics()):  # to the global meter provider
        ...         print(await DataLoader(doubles).load_many([1, 2]))
        >>> asyncio.run(main())
        [2, 4]
    """

    wants_places = False

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        meter = metrics.get_meter("loader", meter_provider=meter_provider)
        self._batch_size = meter.create_histogram(
            "loader.batch.size", "{key}", "Keys or items of a batch.", explicit_bucket_boundaries_advisory=SIZES
        )
        self._batch_wait = _seconds(meter, "loader.batch.wait_time", "From the first key or item to the call.")
        self._batch_duration = _seconds(meter, "loader.batch.duration", "From the call to the answers.")
        self._batches = meter.create_counter("loader.batches", "{batch}", "Batches that are over, sent or not.")
        self._asked = _keys(meter, "asked", "Keys or items that were asked for.")
        self._cached = _keys(meter, "cached", "Keys that the cache answered.")
        self._dropped = _keys(meter, "dropped", "Keys or items that nobody waited for any more.")
        self._overloaded = _keys(meter, "overloaded", "Keys or items that were refused.")
        self._missing = _keys(meter, "missing", "Keys for which nothing came.")
        self._run_triggers = meter.create_histogram(
            "loader.run.triggers", "{trigger}", "Triggers of a run.", explicit_bucket_boundaries_advisory=SIZES
        )
        self._run_wait = _seconds(meter, "loader.run.wait_time", "From the first trigger to the run.")
        self._run_duration = _seconds(meter, "loader.run.duration", "From the start of a run to its end.")
        self._runs = meter.create_counter("loader.runs", "{run}", "Runs that are over.")
        self._failures = meter.create_counter(
            "loader.failures", "{failure}", "Batches or runs that failed, timed out or were cancelled."
        )

    def batch_sent(self, batch: BatchRecord) -> None:
        """Record its size and its wait."""
        assert batch.started is not None
        attributes = _attributes(batch.kind, batch.label)
        self._asked.add(batch.size, attributes)
        self._batch_size.record(batch.size, attributes)
        self._batch_wait.record(batch.started - batch.opened, attributes)

    def batch_finished(self, batch: BatchRecord) -> None:
        """Count what became of it."""
        assert batch.finished is not None
        attributes = _attributes(batch.kind, batch.label)
        reason = {} if batch.reason is None else {"loader.reason": batch.reason.value}
        self._ended(self._batches, batch.outcome, attributes, reason)
        if batch.started is not None:
            self._batch_duration.record(batch.finished - batch.started, attributes)
        if batch.missing:
            self._missing.add(batch.missing, attributes)

    def key_cached(self, name: str, scope: Scope | None, place: Place | None, count: int) -> None:  # noqa: ARG002
        """Count them."""
        self._count(self._cached, "loader", name, count)

    def key_dropped(self, kind: str, name: str, scope: Scope | None, count: int) -> None:  # noqa: ARG002
        """Count them."""
        self._count(self._dropped, kind, name, count)

    def overloaded(self, kind: str, name: str, scope: Scope | None, count: int) -> None:  # noqa: ARG002
        """Count them."""
        self._count(self._overloaded, kind, name, count)

    def run_started(self, run: RunRecord) -> None:
        """Record its triggers and its wait."""
        attributes = _attributes(run.kind, run.label)
        self._run_triggers.record(run.triggers, attributes)
        self._run_wait.record(run.started - run.triggered, attributes)

    def run_finished(self, run: RunRecord) -> None:
        """Count what became of it."""
        assert run.finished is not None
        attributes = _attributes(run.kind, run.label)
        self._ended(self._runs, run.outcome, attributes, {})
        self._run_duration.record(run.finished - run.started, attributes)

    def _count(self, counter: Counter, kind: str, name: str, count: int) -> None:
        attributes = _attributes(kind, label_of(name))
        counter.add(count, attributes)
        self._asked.add(count, attributes)

    def _ended(self, counter: Counter, outcome: Outcome | None, attributes: Attributes, reason: Attributes) -> None:
        assert outcome is not None
        counter.add(1, {**attributes, **reason, "loader.outcome": outcome.value})
        if outcome in (Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT):
            self._failures.add(1, attributes)


def _attributes(kind: str, label: str) -> Attributes:
    return {"loader.name": label, "loader.kind": kind}


def _seconds(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=SECONDS)


def _keys(meter: Meter, what: str, description: str) -> Counter:
    return meter.create_counter(f"loader.keys.{what}", "{key}", description)
