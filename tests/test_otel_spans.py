"""Batches and runs as spans, in the SDK's exporter: whose children they are, what they are linked to, how they end."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import NonRecordingSpan, NoOpTracerProvider, SpanContext, SpanKind, StatusCode, TraceFlags

from loader import (
    Batcher,
    BatchResultError,
    Coalescer,
    DataLoader,
    Debouncer,
    Keyed,
    LoaderClosedError,
    Loaders,
    LoaderTimeoutError,
    Scope,
    Snapshot,
    dataloader,
)
from loader.observe import observing
from loader.otel import Spans
from loader.otel._spans import MOST_LINKS
from tests.fakes import Backend, outcome, together, turns
from tests.jobs import Job, JobError, fail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence


class Traces:
    """A tracer, an observer that makes spans with it, and what was exported so far."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("the test")
        self.spans = Spans(self.provider)

    def all(self, beginning: str = "") -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(beginning)]

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.all() if span.name == name]
        return span

    def parent(self, name: str) -> str | None:
        """The name of the span that the one of this name is a child of."""
        parent = self.one(name).parent
        if parent is None:
            return None
        (found,) = [span.name for span in self.all() if ids(span) == (parent.trace_id, parent.span_id)]
        return found

    def links(self, name: str) -> list[str]:
        """The names of the spans that the one of this name is linked to."""
        linked = [(link.context.trace_id, link.context.span_id) for link in self.one(name).links]
        return sorted(span.name for span in self.all() if ids(span) in linked)

    async def within(self, name: str, start: Callable[[], Awaitable[Any]], parent: trace.Span | None = None) -> Any:
        """Await something in a span, as the resolver of a field."""
        around = None if parent is None else trace.set_span_in_context(parent)
        with self.tracer.start_as_current_span(name, context=around):
            return await outcome(start())


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Those of a span without the time that it waited."""
    assert span.attributes is not None
    return {name: value for name, value in span.attributes.items() if name != "loader.wait_time"}


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    with observing(made.spans):
        yield made


class Names(Loaders):
    @dataloader
    async def names(self, ids: list[int], *, upper: bool = False) -> list[str]:
        return [f"name {number}" for number in ids]


# -- whose child it is, and what it is linked to


@pytest.mark.every_loop
async def test_a_batch_is_a_child_of_the_span_around_its_scope_and_linked_to_those_that_ask(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("operation"):
        async with Names() as loaders, Scope():
            await together(
                traces.within("field 1", lambda: loaders.names.load(1)),
                traces.within("field 2", lambda: loaders.names.load_many([1, 2])),
            )
    assert traces.parent("batch Names.names") == "operation"
    assert traces.links("batch Names.names") == ["field 1", "field 2"]
    span = traces.one("batch Names.names")
    assert span.kind is SpanKind.INTERNAL
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span) == {
        "loader.name": "Names.names",
        "loader.kind": "loader",
        "loader.batch.size": 2,
        "loader.reason": "settled",
        "loader.outcome": "done",
        "loader.batch.asked": 3,
        "loader.batch.missing": 0,
    }
    assert span.attributes is not None
    assert isinstance(span.attributes["loader.wait_time"], float)
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "loader"


async def test_a_batch_that_the_operation_itself_asks_for_is_not_linked_to_its_own_parent(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("server"), traces.tracer.start_as_current_span("operation"):
        async with Names() as loaders:
            await loaders.names.load(1)
    assert traces.parent("batch Names.names") == "operation"
    assert traces.links("batch Names.names") == []


async def test_the_span_that_all_askers_are_children_of_counts_though_it_was_never_current(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("server"):
        async with Names() as loaders:
            operation = traces.tracer.start_span("operation")  # as Strawberry's extension does
            await together(*(traces.within(f"field {n}", partial(loaders.names.load, n), operation) for n in range(2)))
            operation.end()
    assert traces.parent("batch Names.names") == "operation"
    assert traces.links("batch Names.names") == ["field 0", "field 1"]


async def test_askers_with_different_parents_leave_the_batch_to_the_span_around_its_scope(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("server"):
        loader = DataLoader(Backend(), name="l")
        with traces.tracer.start_as_current_span("field"):
            inner = asyncio.ensure_future(traces.within("inner", lambda: loader.load(1)))
        await together(inner, traces.within("other field", lambda: loader.load(2)))
    assert traces.parent("batch l") == "server"
    assert traces.links("batch l") == ["inner", "other field"]


async def test_a_loader_made_before_any_span_stays_in_the_trace_of_those_who_ask(traces: Traces) -> None:
    loader = DataLoader(Backend(), name="l")
    with traces.tracer.start_as_current_span("job"):
        await loader.load(1)
    assert traces.parent("batch l") == "job"
    with traces.tracer.start_as_current_span("server"), traces.tracer.start_as_current_span("field"):
        inner = asyncio.ensure_future(traces.within("inner", lambda: loader.load(2)))
        await together(inner, loader.load(3))
    second = traces.all("batch l")[1]
    assert second.parent is not None
    assert second.parent.trace_id == ids(traces.one("server"))[0]


async def test_the_first_span_of_a_process_is_an_operation_whoever_its_parent_elsewhere_is(traces: Traces) -> None:
    loader = DataLoader(Backend(), name="l")
    remote = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
    await traces.within("server", partial(loader.load, 1), remote)
    assert traces.parent("batch l") == "server"


@pytest.mark.parametrize("kind", ["loader", "batcher"])
async def test_what_serves_several_traces_is_the_root_of_its_own_and_linked_to_them(traces: Traces, kind: str) -> None:
    serve: Callable[[int], Awaitable[str]]
    with traces.tracer.start_as_current_span("the request that made it"):
        serve = DataLoader(Backend(), name="b").load if kind == "loader" else Batcher(Backend(), name="b").submit
    await together(*(traces.within(f"request {n}", partial(serve, n)) for n in range(2)))
    assert traces.parent("batch b") is None
    assert traces.links("batch b") == ["request 0", "request 1"]
    assert attributes(traces.one("batch b"))["loader.batch.asked"] == 2


async def test_without_any_span_around_a_batch_is_a_root(traces: Traces) -> None:
    await DataLoader(Backend(), name="l").load(1)
    assert traces.parent("batch l") is None
    assert traces.links("batch l") == []


async def test_a_batch_inside_of_a_batch_is_linked_to_it_and_a_child_of_the_same_operation(traces: Traces) -> None:
    async def load_outer(keys: list[int]) -> list[Any]:
        return await inner.load_many(keys)

    with traces.tracer.start_as_current_span("operation"):
        inner, outer = DataLoader(Backend(), name="inner"), DataLoader(load_outer, name="outer")
        await traces.within("field", lambda: outer.load(1))
    assert (traces.parent("batch outer"), traces.parent("batch inner")) == ("operation", "operation")
    assert (traces.links("batch outer"), traces.links("batch inner")) == (["field"], ["batch outer"])


async def test_who_joins_a_batch_that_runs_is_linked_to_and_counted(traces: Traces) -> None:
    gate = asyncio.Event()
    with traces.tracer.start_as_current_span("operation"):
        loader = DataLoader(Backend(gate=gate), name="l")
        first = asyncio.ensure_future(traces.within("field 1", lambda: loader.load(1)))
        await turns()
        late = asyncio.ensure_future(traces.within("field 2", lambda: loader.load(1)))
        await turns()
        gate.set()
        await together(first, late)
    assert traces.links("batch l") == ["field 1", "field 2"]
    assert attributes(traces.one("batch l"))["loader.batch.asked"] == 2


async def test_links_are_bounded_and_what_was_asked_for_is_counted_all_the_same(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("operation"):
        loader = DataLoader(Backend(), name="l")
        await together(*(traces.within(f"field {n}", partial(loader.load, n)) for n in range(MOST_LINKS + 2)))
    span = traces.one("batch l")
    assert len(span.links) == MOST_LINKS
    assert attributes(span)["loader.batch.asked"] == MOST_LINKS + 2


async def test_a_parent_in_another_process_is_kept_to_whether_or_not_it_is_sampled() -> None:
    for flags in (TraceFlags.SAMPLED, TraceFlags.DEFAULT):
        traces = Traces()
        remote = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(flags)))
        traces.provider.sampler = ParentBased(ALWAYS_OFF)
        with observing(traces.spans), trace.use_span(remote):
            await DataLoader(Backend(), name="l").load(1)
        assert [span.parent for span in traces.all("batch l")] == [remote.get_span_context()] * (flags == 1)


# -- what is current while the function runs


@pytest.mark.parametrize("kind", ["async", "thread", "stream", "batcher", "run"])
@pytest.mark.real_time
async def test_the_span_is_current_while_the_function_runs_and_nowhere_else(traces: Traces, kind: str) -> None:
    def query(keys: Any = ()) -> list[Any]:
        with traces.tracer.start_as_current_span("SELECT"):
            return list(keys)

    async def load(keys: Any = ()) -> list[Any]:
        await asyncio.sleep(0)
        return query(keys)

    async def stream(keys: list[Any]) -> Any:
        for key in query(keys):
            yield key, key

    with traces.tracer.start_as_current_span("operation") as operation:
        if kind == "batcher":
            await Batcher(load, name="x").submit(1)
        elif kind == "run":
            await Coalescer(load, name="x").request()
        else:
            function: Any = {"async": load, "thread": query, "stream": stream}[kind]
            await DataLoader(function, name="x").load(1)
        assert trace.get_current_span() is operation
    assert traces.parent("SELECT") == ("run x" if kind == "run" else "batch x")


async def test_baggage_and_other_context_reach_the_function(traces: Traces) -> None:
    key = context.create_key("tenant")

    async def load(keys: list[int]) -> list[Any]:
        return [context.get_value(key) for _ in keys]

    token = context.attach(context.set_value(key, "a tenant"))
    loader = DataLoader(load)
    context.detach(token)
    assert await loader.load(1) == "a tenant"


async def test_a_tracer_that_makes_no_spans_leaves_the_current_one_alone() -> None:
    current: list[trace.Span] = []

    async def load(keys: list[int]) -> list[int]:
        current.append(trace.get_current_span())
        return keys

    traces = Traces()
    with observing(Spans(NoOpTracerProvider())):
        await DataLoader(load).load(1)
        with traces.tracer.start_as_current_span("operation") as operation:
            await DataLoader(load).load(1)
            await Coalescer(Job()).request()
            loader = DataLoader(load)
            requests = [traces.tracer.start_span(f"request {n}", context=context.Context()) for n in range(2)]
            await together(*(traces.within("field", partial(loader.load, n), requests[n]) for n in range(2)))
    none, around, around_again = [span.get_span_context() for span in current]
    assert none == trace.INVALID_SPAN_CONTEXT
    assert around == around_again == operation.get_span_context()


# -- how it ends


async def test_a_failed_batch_has_an_error_with_its_traceback_and_without_its_message(traces: Traces) -> None:
    rows = {1: "one"}

    async def load(keys: list[Any]) -> list[str]:
        return [rows[key] for key in keys]

    await outcome(DataLoader(load, name="l").load("a secret"))
    span = traces.one("batch l")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "KeyError")
    assert attributes(span) | {"error.type": "KeyError", "loader.outcome": "failed"} == attributes(span)
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "KeyError"
    assert "return [rows[key] for key in keys]" in str(event.attributes["exception.stacktrace"])
    assert "a secret" not in span.to_json()


async def test_messages_of_exceptions_are_there_for_who_asks_for_them() -> None:
    traces = Traces()

    async def load(keys: list[int]) -> list[int]:
        return []

    with observing(Spans(traces.provider, messages=True)):
        assert isinstance(await outcome(DataLoader(load, name="l").load(1)), BatchResultError)
    span = traces.one("batch l")
    assert span.status.description is not None
    assert span.status.description.startswith("loader.errors.BatchResultError: l")
    (event,) = span.events
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "loader.errors.BatchResultError"
    assert str(event.attributes["exception.message"]).startswith("l")


@pytest.mark.parametrize("messages", [False, True])
async def test_whatever_an_error_says_can_be_sent(messages: bool) -> None:
    traces = Traces()
    source = "def load(keys):\n    raise error\n"
    error = type("Missing", (Exception,), {"__module__": "file \udcff"})("no such file: \udcff")
    names: dict[str, Any] = {"error": error}
    exec(compile(source, "file \udcff.py", "exec"), names)  # noqa: S102  # a module in a file whose name is no UTF-8

    async def load(keys: list[int]) -> list[int]:
        names["load"](keys)
        return keys

    with observing(Spans(traces.provider, messages=messages)):
        await outcome(DataLoader(load, name="l \udcff").load(1))
    (span,) = traces.exporter.get_finished_spans()
    (event,) = span.events
    assert event.attributes is not None
    assert event.attributes["exception.type"] == "file \\udcff.Missing"
    assert "file \\udcff.py" in str(event.attributes["exception.stacktrace"])
    assert event.attributes.get("exception.message", messages) == ("no such file: \\udcff" if messages else False)
    texts = [span.name, span.status.description, *attributes(span).values(), *event.attributes.values()]
    assert "udcff" in "".join(str(text).encode().decode() for text in texts)


async def test_neither_keys_nor_parameters_nor_items_are_in_a_span(traces: Traces) -> None:
    async def refresh(tenant: str) -> None: ...

    async with Names() as loaders, Batcher(Backend(), name="b") as batcher:
        await loaders.names(upper=True).load("secret key")  # type: ignore[arg-type]
        await batcher.submit("secret item")
        async with Keyed(refresh, lambda fn: Coalescer(fn), name="k") as keyed:
            keyed.trigger("secret tenant")
    exported = [span.to_json() for span in traces.all()]
    assert [span.name for span in traces.all()] == ["batch Names.names", "batch b", "run k"]
    assert not [text for text in exported if "secret" in text or "upper" in text]


async def test_a_batch_that_is_timed_out_is_an_error_and_ends_though_its_function_goes_on(traces: Traces) -> None:
    gate = asyncio.Event()

    async def stubborn(keys: list[int]) -> list[int]:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await gate.wait()
        return keys

    loader = DataLoader(stubborn, name="l", timeout=1)
    assert isinstance(await outcome(loader.load(1)), LoaderTimeoutError)
    span = traces.one("batch l")
    assert (span.status.status_code, span.status.description) == (
        StatusCode.ERROR,
        "loader.errors.LoaderTimeoutError",
    )
    assert attributes(span)["loader.outcome"] == "timed out"
    gate.set()
    await turns()
    assert len(traces.all()) == 1


async def test_a_scope_that_is_closed_while_a_batch_runs_ends_its_span_which_is_no_error(traces: Traces) -> None:
    backend = Backend(takes=10)

    class Slow(Loaders):
        @dataloader
        async def slow(self, keys: list[int]) -> list[Any]:
            return await backend(keys)

    async with Slow() as loaders:
        async with Scope():
            waiting = asyncio.ensure_future(outcome(loaders.slow.load(1)))
            await turns()
        assert isinstance(await waiting, LoaderClosedError)
    assert backend.cancelled == 1
    span = traces.one("batch Slow.slow")
    assert attributes(span)["loader.outcome"] == "cancelled"
    assert (span.status.status_code, span.events) == (StatusCode.UNSET, ())


async def test_a_batch_that_never_left_has_no_span(traces: Traces) -> None:
    left = DataLoader(Backend(), name="left")
    left.load(1).cancel()
    late = DataLoader(Backend(takes=5), name="late", max_batch_size=1, max_concurrent_batches=1, timeout=2)
    await together(outcome(late.load(1)), outcome(late.load(2)))
    async with Scope(), Names() as loaders:
        closed = loaders.names.load(1)
    assert isinstance(await outcome(closed), LoaderClosedError)
    assert [span.name for span in traces.all()] == ["batch late"]


async def test_a_batch_that_was_under_way_when_observing_ended_is_ended_all_the_same() -> None:
    traces = Traces()
    loader = DataLoader(Backend(takes=1), name="l")
    with observing(traces.spans):
        waiting = loader.load(1)
        await turns()
    assert await waiting == "v1"
    assert attributes(traces.one("batch l"))["loader.outcome"] == "done"


def test_nothing_is_kept_of_a_batch_whose_loop_was_closed_under_it() -> None:
    traces = Traces()

    async def load(keys: list[int]) -> list[int]:
        await asyncio.sleep(100)
        return keys

    def abandon() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)

        async def main() -> None:
            loader.load(1)
            await turns()

        loader = DataLoader(load, name="l")
        loop.run_until_complete(main())
        (task,) = asyncio.all_tasks(loop)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        assert len(traces.spans._under_way) == 1
        loop.close()
        coroutine: Any = task.get_coro()
        coroutine.close()

    with observing(traces.spans):
        abandon()
    gc.collect()
    assert len(traces.spans._under_way) == 0


# -- batchers and triggers


async def test_a_batch_of_a_batcher_is_linked_to_the_spans_that_submitted(traces: Traces) -> None:
    async with Batcher(Backend(), name="b", max_batch_size=5) as batcher:
        with traces.tracer.start_as_current_span("operation"):
            await together(*(traces.within(f"field {n}", partial(batcher.submit, n)) for n in range(2)))
    assert traces.parent("batch b") == "operation"
    assert traces.links("batch b") == ["field 0", "field 1"]
    assert attributes(traces.one("batch b")) == {
        "loader.name": "b",
        "loader.kind": "batcher",
        "loader.batch.size": 2,
        "loader.batch.capacity": 5,
        "loader.reason": "idle",
        "loader.outcome": "done",
        "loader.batch.asked": 2,
        "loader.batch.missing": 0,
    }


async def test_a_run_is_linked_to_its_first_trigger_and_to_those_who_wait_for_it(traces: Traces) -> None:
    async def trigger() -> None:
        debouncer.trigger()

    async with Debouncer(Job(), wait=1, name="reindex") as debouncer:
        await traces.within("first", trigger)
        await traces.within("second", trigger)
        await traces.within("third", debouncer.request)
    assert traces.parent("run reindex") is None
    assert traces.links("run reindex") == ["first", "third"]
    assert attributes(traces.one("run reindex")) == {
        "loader.name": "reindex",
        "loader.kind": "debouncer",
        "loader.run.triggers": 3,
        "loader.outcome": "done",
    }


async def test_a_run_is_a_child_of_the_span_that_its_trigger_was_made_in_while_that_lasts(traces: Traces) -> None:
    with traces.tracer.start_as_current_span("request"):
        coalescer = Coalescer(Job(), name="c")
        await coalescer.request()
    await coalescer.request()
    parents = [span.parent and span.parent.span_id for span in traces.all("run c")]
    assert parents == [ids(traces.one("request"))[1], None]


async def test_a_load_of_a_snapshot_is_linked_to_who_reads_it(traces: Traces) -> None:
    async def load() -> int:
        return 1

    snapshot = Snapshot(load, name="rates")
    await traces.within("field", snapshot.get)
    await snapshot.aclose()
    assert traces.links("run of the snapshot rates") == ["field"]


async def test_a_run_that_fails_is_an_error(traces: Traces) -> None:
    assert isinstance(await outcome(Coalescer(fail, name="c").request()), JobError)
    span = traces.one("run c")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "tests.jobs.JobError")
    assert attributes(span)["loader.outcome"] == "failed"


# -- several observers, and exporters that fail


async def test_two_observers_make_two_spans_side_by_side(traces: Traces) -> None:
    begin = traces.tracer.start_as_current_span
    with observing(Spans(traces.provider)), begin("server"), begin("operation") as operation:
        await DataLoader(Backend(), name="l").load(1)
        await Coalescer(Job(), name="c").request()
    parents = [span.parent and span.parent.span_id for span in traces.all() if span.name in ("batch l", "run c")]
    assert parents == [operation.get_span_context().span_id] * 4


class Broken(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ConnectionError("the collector is away")


class BrokenTracing(Traces):
    """A tracer whose spans cannot be begun."""

    def __init__(self) -> None:
        super().__init__()
        self.spans._tracer = self  # type: ignore[assignment]

    def start_span(self, *arguments: Any, **named: Any) -> trace.Span:
        raise RuntimeError("no more spans")


@pytest.mark.logs
async def test_an_exporter_that_fails_harms_nobody(reports: list[str]) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Broken()))
    with observing(Spans(provider)):
        assert await DataLoader(Backend()).load(1) == "v1"
        assert await Coalescer(Job()).request() == 1
        assert await Batcher(Backend()).submit(1) == "v1"


@pytest.mark.logs
async def test_a_span_that_cannot_be_begun_harms_nobody(reports: list[str]) -> None:
    with observing(BrokenTracing().spans):
        assert await DataLoader(Backend()).load(1) == "v1"
        assert isinstance(await outcome(Coalescer(fail).request()), JobError)
    assert len(reports) == 2
