"""`instrument` and `uninstrument`: the whole process, once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from loader import DataLoader, _hooks
from loader.otel import instrument, uninstrument
from tests.fakes import Backend, turns
from tests.loops import run
from tests.test_otel_metrics import Read
from tests.test_otel_spans import Traces

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    uninstrument()
    assert _hooks.everywhere == []


async def test_instrument_makes_spans_and_metrics_of_everything_until_uninstrument() -> None:
    traces, read = Traces(), Read()
    instrument(traces.provider, read.provider)
    await DataLoader(Backend(), name="l").load(1)
    uninstrument()
    uninstrument()
    await DataLoader(Backend(), name="l").load(1)
    assert [span.name for span in traces.all()] == ["batch l"]
    assert read.counts("loader.batches") == {("l", "loader", "settled", "done"): 1}


async def test_a_second_call_takes_the_place_of_the_first(caplog: pytest.LogCaptureFixture) -> None:
    first, second, read = Traces(), Traces(), Read()
    instrument(first.provider, read.provider)
    instrument(second.provider, read.provider, messages=True)

    async def broken(keys: list[int]) -> list[int]:
        raise ConnectionError("of the function")

    with pytest.raises(ConnectionError):
        await DataLoader(broken, name="l").load(1)
    assert (len(first.all()), len(second.all())) == (0, 1)
    assert second.one("batch l").status.description == "ConnectionError: of the function"
    assert read.counts("loader.batches") == {("l", "loader", "settled", "failed"): 1}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_what_cannot_be_made_leaves_what_is_instrumented_alone() -> None:
    traces = Traces()
    instrument(traces.provider)
    nonsense: Any = "a provider"
    with pytest.raises(AttributeError):
        instrument(nonsense)
    await DataLoader(Backend(), name="l").load(1)
    assert len(traces.all()) == 1


async def test_a_batch_under_way_has_its_span_ended_after_uninstrument() -> None:
    traces = Traces()
    instrument(traces.provider)
    waiting = DataLoader(Backend(takes=1), name="l").load(1)
    await turns()
    uninstrument()
    assert await waiting == "v1"
    assert traces.one("batch l").end_time is not None


def test_loops_of_several_threads_are_traced_each_in_its_own_trace() -> None:
    traces = Traces()
    instrument(traces.provider)

    async def main() -> None:
        with traces.tracer.start_as_current_span(threading.current_thread().name):
            loader = DataLoader(Backend(takes=1), name="l")
            for number in range(5):
                await loader.load(number)

    threads = [threading.Thread(target=run, args=(main,), name=f"thread {number}") for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parents = sorted(span.parent.span_id for span in traces.all("batch l") if span.parent is not None)
    roots = [span.context.span_id for span in traces.all("thread") if span.context is not None]
    assert parents == sorted(roots * 5)


async def test_the_global_providers_are_the_default() -> None:
    instrument()
    assert await DataLoader(Backend()).load(1) == "v1"  # they do nothing, unless the program has set them
    assert trace.get_current_span() is trace.INVALID_SPAN
