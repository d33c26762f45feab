"""The collector, in the client's own exposition, parsed back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from math import inf
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from loader import Batcher, Coalescer, DataLoader, _hooks
from loader.observe import SECONDS, SIZES, Statistics, observing
from loader.prometheus import LoaderCollector
from tests.fakes import Backend, outcome
from tests.jobs import Job, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

Samples = dict[tuple[str, ...], float]


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    made = CollectorRegistry()
    with LoaderCollector() as collector:
        made.register(collector)
        yield made
    assert _hooks.everywhere == []


def scrape(registry: CollectorRegistry) -> dict[str, Metric]:
    """The families as a server reads them."""
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(family: Metric, name: str) -> Samples:
    """The samples with this name, by the values of their labels, in the order of the labels' names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for sample in family.samples
        if sample.name == name
    }


L, B, C = ("loader", "l"), ("batcher", "b"), ("coalescer", "c")


async def work() -> None:
    async def load(keys: list[int]) -> dict[int, int]:
        await asyncio.sleep(1)
        return {key: key for key in keys if key != 2}

    loader = DataLoader(load, name="l", default=None, max_batch_size=3)
    await loader.load_many([1, 2, 3, 4])
    await loader.load(1)
    await outcome(Batcher(Backend(takes=5), name="b", timeout=1).submit(1))
    coalescer = Coalescer(Job(), name="c")
    coalescer.trigger()
    await coalescer.request()
    await outcome(Coalescer(fail, name="c").request())


async def test_counters_are_there_by_name_and_kind(registry: CollectorRegistry) -> None:
    await work()
    found = scrape(registry)
    assert {name for name, family in found.items() if family.type == "counter"} == {
        "loader_keys_asked",
        "loader_keys_cached",
        "loader_keys_dropped",
        "loader_keys_overloaded",
        "loader_keys_missing",
        "loader_failures",
        "loader_batches_sent",
        "loader_batches",
        "loader_runs",
    }
    assert samples(found["loader_keys_asked"], "loader_keys_asked_total") == {L: 5, B: 1}
    assert samples(found["loader_keys_cached"], "loader_keys_cached_total") == {L: 1, B: 0}
    assert samples(found["loader_keys_missing"], "loader_keys_missing_total") == {L: 1, B: 0}
    assert samples(found["loader_failures"], "loader_failures_total") == {L: 0, B: 1, C: 1}
    sent = {(*L, "full"): 1, (*L, "settled"): 1, (*B, "idle"): 1}
    assert samples(found["loader_batches_sent"], "loader_batches_sent_total") == sent
    over = {("loader", "l", "done"): 2, ("batcher", "b", "timed out"): 1}
    assert samples(found["loader_batches"], "loader_batches_total") == over
    assert samples(found["loader_runs"], "loader_runs_total") == {(*C, "done"): 1, (*C, "failed"): 1}


async def test_histograms_are_cumulative_end_at_infinity_and_agree_with_sum_and_count(
    registry: CollectorRegistry,
) -> None:
    await work()
    found = scrape(registry)
    histograms = {name: family for name, family in found.items() if family.type == "histogram"}
    assert {name: len(samples(family, f"{name}_count")) for name, family in histograms.items()} == {
        "loader_batch_size": 2,
        "loader_batch_wait_seconds": 2,
        "loader_batch_duration_seconds": 2,
        "loader_run_triggers": 1,
        "loader_run_wait_seconds": 1,
        "loader_run_duration_seconds": 1,
    }
    for name, family in histograms.items():
        bounds = (*(SECONDS if name.endswith("_seconds") else SIZES), inf)
        for labels, count in samples(family, f"{name}_count").items():
            kind, which = labels
            buckets = [
                (float(sample.labels["le"]), sample.value)
                for sample in family.samples
                if sample.name == f"{name}_bucket" and (sample.labels["kind"], sample.labels["name"]) == (kind, which)
            ]
            assert tuple(bound for bound, _ in buckets) == bounds
            values = [value for _, value in buckets]
            assert values == sorted(values)
            assert values[-1] == count
    assert samples(found["loader_batch_size"], "loader_batch_size_sum") == {L: 4, B: 1}
    assert samples(found["loader_batch_size"], "loader_batch_size_count") == {L: 2, B: 1}
    at_most = samples(found["loader_batch_size"], "loader_batch_size_bucket")
    assert [at_most["loader", bound, "l"] for bound in ("1.0", "2.0", "4.0", "+Inf")] == [1, 1, 2, 2]


async def test_the_same_is_valid_openmetrics_with_seconds_as_unit(registry: CollectorRegistry) -> None:
    await work()
    text = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert families["loader_batch_wait_seconds"].unit == "seconds"
    assert families["loader_keys_asked"].type == "counter"
    assert families.keys() == scrape(registry).keys()


async def test_names_of_any_characters_survive_the_exposition(registry: CollectorRegistry) -> None:
    name = 'a "quoted"\nname \\ <b>ü</b>'
    await DataLoader(Backend(), name=name).load(1)
    assert samples(scrape(registry)["loader_batch_size"], "loader_batch_size_count") == {("loader", name): 1}


async def test_one_collector_serves_several_registries_and_each_scrape_reads_the_figures_anew() -> None:
    registries = CollectorRegistry(auto_describe=True), CollectorRegistry()
    with LoaderCollector() as collector:
        for registry in registries:
            registry.register(collector)
        for expected in (1, 2):
            await DataLoader(Backend(), name="l").load(1)
            counts = [samples(scrape(each)["loader_batch_size"], "loader_batch_size_count") for each in registries]
            assert counts == [{L: expected}] * 2
    registries[0].unregister(collector)
    assert scrape(registries[0]) == {}


async def test_a_collector_that_is_closed_shows_what_it_had_counted_and_counts_no_more() -> None:
    registry, collector = CollectorRegistry(), LoaderCollector()
    registry.register(collector)
    await DataLoader(Backend(), name="l").load(1)
    collector.close()
    collector.close()
    await DataLoader(Backend(), name="l").load(1)
    assert samples(scrape(registry)["loader_batch_size"], "loader_batch_size_count") == {L: 1}


async def test_given_statistics_are_shown_and_left_to_who_made_them() -> None:
    registry, statistics = CollectorRegistry(), Statistics()
    with LoaderCollector(statistics) as collector:
        registry.register(collector)
        await DataLoader(Backend(), name="unobserved").load(1)
        with observing(statistics):
            await DataLoader(Backend(), name="l").load(1)
    assert samples(scrape(registry)["loader_batch_size"], "loader_batch_size_count") == {L: 1}


def test_a_registry_refuses_a_second_collector_with_the_same_names(registry: CollectorRegistry) -> None:
    with pytest.raises(ValueError, match="loader_batch_size"):
        registry.register(LoaderCollector(Statistics()))


def test_something_else_than_statistics_is_refused_at_once() -> None:
    nonsense: Any = CollectorRegistry()
    with pytest.raises(TypeError, match=r"takes loader\.observe\.Statistics, not <prometheus_client"):
        LoaderCollector(nonsense)


def test_importing_it_registers_and_observes_nothing() -> None:
    program = (
        "from prometheus_client import REGISTRY; before = dict(REGISTRY._names_to_collectors)\n"
        "import loader.prometheus; from loader import _hooks\n"
        "assert REGISTRY._names_to_collectors == before and not _hooks.everywhere"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_a_name_that_is_no_unicode_harms_no_scrape(registry: CollectorRegistry) -> None:
    await DataLoader(Backend(), name="file \udcff").load(1)
    asked = samples(scrape(registry)["loader_keys_asked"], "loader_keys_asked_total")
    assert asked == {("loader", "file \\udcff"): 1}
