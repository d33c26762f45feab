"""What is counted and measured, in the SDK's metric reader: the same as in `Statistics`."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from loader import Batcher, Coalescer, DataLoader, LoaderOverloadedError, Loaders, Scope, dataloader
from loader.observe import SECONDS, SIZES, Statistics, observing
from loader.otel import Metrics
from tests.fakes import Backend, outcome, together, turns
from tests.jobs import Job, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

Labels = tuple[str, ...]


class Read:
    """A meter provider and what it has counted so far."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)

    def points(self, name: str) -> dict[Labels, Any]:
        """The points of an instrument, by the values of their attributes: the name, the kind, and others."""
        data = self.reader.get_metrics_data()
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        order = ["loader.name", "loader.kind", "loader.reason", "loader.outcome"]
        return {
            tuple(str(point.attributes[key]) for key in order if key in (point.attributes or {})): point  # type: ignore[index]
            for metric in metrics
            if metric.name == name
            for point in metric.data.data_points
        }

    def counts(self, name: str) -> dict[Labels, int]:
        return {labels: point.value for labels, point in self.points(name).items()}

    def histogram(self, name: str, labels: Labels) -> HistogramDataPoint:
        point = self.points(name)[labels]
        assert isinstance(point, HistogramDataPoint)
        return point

    def units(self) -> dict[str, str | None]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {metric.name: metric.unit for metric in data.resource_metrics[0].scope_metrics[0].metrics}


@pytest.fixture
def read() -> Iterator[Read]:
    made = Read()
    with observing(Metrics(made.provider)):
        yield made
    made.provider.shutdown()


L, B, C = ("l", "loader"), ("b", "batcher"), ("c", "coalescer")


async def test_batches_are_counted_by_reason_and_outcome_and_their_sizes_and_times_measured(read: Read) -> None:
    loader = DataLoader(Backend(takes=1), name="l", max_batch_size=3)
    await loader.load_many([1, 2, 3, 4])
    assert read.counts("loader.batches") == {(*L, "full", "done"): 1, (*L, "settled", "done"): 1}
    sizes = read.histogram("loader.batch.size", L)
    assert (sizes.count, sizes.sum, sizes.min, sizes.max) == (2, 4, 1, 3)
    assert tuple(sizes.explicit_bounds) == SIZES
    for name in ("loader.batch.wait_time", "loader.batch.duration"):
        times = read.histogram(name, L)
        assert times.count == 2
        assert tuple(times.explicit_bounds) == SECONDS
    assert read.counts("loader.keys.asked") == {L: 4}
    assert read.counts("loader.failures") == {}


async def test_keys_are_counted_by_what_became_of_them(read: Read) -> None:
    async def load(keys: list[int]) -> dict[int, int]:
        return {key: key for key in keys if key != 2}

    loader = DataLoader(load, name="l", default=None, max_pending=3)
    await loader.load_many([1, 2])
    await loader.load(1)
    loader.load(3).cancel()
    kept = loader.load(4)
    with pytest.raises(LoaderOverloadedError):
        loader.load_many([5, 6])
    await kept
    counts = {name: read.counts(f"loader.keys.{name}") for name in ("asked", "cached", "dropped", "overloaded")}
    assert counts == {"asked": {L: 7}, "cached": {L: 1}, "dropped": {L: 1}, "overloaded": {L: 2}}
    assert read.counts("loader.keys.missing") == {L: 1}


async def test_failures_are_what_failed_was_cancelled_or_took_too_long(read: Read) -> None:
    async def broken(keys: list[int]) -> list[int]:
        raise ConnectionError

    await outcome(DataLoader(broken, name="l").load(1))
    await outcome(Batcher(Backend(takes=5), name="b", timeout=1).submit(1))
    await outcome(Coalescer(fail, name="c").request())
    slow = DataLoader(Backend(takes=5), name="l", max_batch_size=1, max_concurrent_batches=1)
    waiting = slow.load(1), slow.load(2)
    await turns()
    await slow.aclose()
    await together(*map(outcome, waiting))
    closed = DataLoader(Backend(), name="l")
    never_left = closed.load(1)
    await closed.aclose()
    await outcome(never_left)
    assert read.counts("loader.failures") == {L: 4, B: 1, C: 1}
    assert read.counts("loader.batches") == {
        (*L, "settled", "failed"): 1,
        (*L, "full", "cancelled"): 2,
        (*L, "cancelled"): 1,
        (*B, "idle", "timed out"): 1,
    }
    assert read.counts("loader.runs") == {(*C, "failed"): 1}
    assert read.histogram("loader.batch.duration", L).count == 2


async def test_runs_are_counted_with_their_triggers_and_without_the_arguments_of_a_partial(read: Read) -> None:
    async def refresh(tenant: str) -> None: ...

    async with Coalescer(Job(1), name="c") as coalescer:
        coalescer.trigger()
        coalescer.trigger()
    for tenant in ("one", "two"):
        await Coalescer(functools.partial(refresh, tenant)).request()
    label = [name for name, *_ in read.counts("loader.runs") if name.endswith("refresh")]
    assert read.counts("loader.runs") == {(*C, "done"): 1, (label[0], "coalescer", "done"): 2}
    assert read.histogram("loader.run.triggers", C).sum == 2
    assert read.histogram("loader.run.wait_time", C).count == read.histogram("loader.run.duration", C).count == 1


async def test_attributes_are_bounded_whatever_parameters_and_keys_there_are(read: Read) -> None:
    class Names(Loaders):
        @dataloader
        async def names(self, ids: list[str], *, first: int = 1) -> list[str]:
            return ids

    async with Names() as loaders:
        for number in range(5):
            async with Scope():
                await loaders.names(first=number).load(f"key {number}")
    assert read.counts("loader.batches") == {("Names.names", "loader", "settled", "done"): 5}


async def test_every_instrument_has_a_unit_and_counts_what_statistics_count(read: Read) -> None:
    with observing(Statistics()) as statistics:
        loader = DataLoader(Backend(), name="l", max_batch_size=2)
        await together(loader.load(1), loader.load(2), loader.load(3))
        await loader.load(1)
        await together(*(Batcher(Backend(), name="b").submit(number) for number in range(3)))
        await Coalescer(Job(), name="c").request()
    assert {unit for name, unit in read.units().items() if name.endswith(("wait_time", "duration"))} == {"s"}
    assert {unit for name, unit in read.units().items() if ".keys." in name or name == "loader.batch.size"} == {"{key}"}
    for figures in statistics.snapshot():
        what = "run" if figures.kind == "coalescer" else "batch"
        size = read.histogram(
            "loader.run.triggers" if what == "run" else "loader.batch.size", (figures.name, figures.kind)
        )
        wait = read.histogram(f"loader.{what}.wait_time", (figures.name, figures.kind))
        assert (tuple(size.bucket_counts), size.sum) == (figures.size.counts, figures.size.total)
        assert tuple(wait.bucket_counts) == figures.wait.counts
        assert wait.sum == pytest.approx(figures.wait.total)
    asked = {(figures.name, figures.kind): figures.asked for figures in statistics.snapshot() if figures.kind != C[1]}
    assert read.counts("loader.keys.asked") == asked


@pytest.mark.logs
async def test_a_meter_that_fails_harms_nobody(reports: list[str]) -> None:
    metrics = Metrics()
    metrics._batch_size = None  # type: ignore[assignment]
    with observing(metrics):
        assert await DataLoader(Backend()).load(1) == "v1"
        await asyncio.sleep(0)
    assert len(reports) == 1


async def test_a_name_that_is_no_unicode_can_be_sent(read: Read) -> None:
    await DataLoader(Backend(), name="file \udcff").load(1)
    assert read.counts("loader.keys.asked") == {("file \\udcff", "loader"): 1}
