"""Spans: one for each call of a batch function, and one for each run of a trigger."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, Link, NonRecordingSpan, Status, StatusCode

from loader.observe import BatchRecord, Observer, Outcome, RunRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.trace import Span, SpanContext, TracerProvider

    from loader.observe import Place

MOST_LINKS = 128
"""Of one span: what the SDK keeps by default."""

_AROUND = contexts.create_key("loader.around")
"""In the context of a batch or run that has a span: its record, and the span that was current before it."""


class _UnderWay:
    """What is known of a batch or a run until it is over.

    Attributes:
        asked: How many keys or items were asked for, repeated ones included.
        askers: The spans in which it was asked for, each once, and no more of them than are linked to.
        span: Its own, once its function has been called.
    """

    __slots__ = ("asked", "askers", "span")

    def __init__(self) -> None:
        self.asked = 0
        self.askers: dict[Span, None] = {}
        self.span: Span | None = None


@final
class Spans(Observer):
    """Makes a span of every call of a batch function and of every run of a trigger.

    The span is current while the function runs, so that those of an instrumented database driver are its children. It
    is linked to the spans that asked. That of a batch is a child of the operation's span: of the span around all the
    fields that asked, or else of the one that was current where the scope was made. What serves several traces is
    the root of a trace of its own, and so is a run, unless the span in which its trigger was made goes on.

    A batch whose function was never called has no span.

    Args:
        tracer_provider: Where spans go. None: to the global provider.
        messages: Whether spans hold the messages of exceptions, which may name keys, and so personal data. Their
            types and tracebacks are there in any case.

    Examples:
        >>> import asyncio
        >>> from loader import DataLoader
        >>> from loader.observe import observing
        >>> from loader.otel import Spans
        >>> from opentelemetry import trace
        >>> async def load_names(ids: list[int]) -> list[str]:
        ...     trace.get_current_span().set_attribute("app.shard", 3)  # that of the batch
        ...     return [f"user {number}" for number in ids]
        >>> async def main() -> None:
        ...     with observing(Spans()):
        ...         print(await DataLoader(load_names).load_many([1, 2]))
        >>> asyncio.run(main())
        ['user 1', 'user 2']
    """

    wants_places = False

    def __init__(self, tracer_provider: TracerProvider | None = None, *, messages: bool = False) -> None:
        self._tracer = trace.get_tracer("loader", tracer_provider=tracer_provider)
        self._messages = messages
        # Weak: a batch whose loop was closed under it is never told to be over.
        self._under_way: WeakKeyDictionary[BatchRecord | RunRecord, _UnderWay] = WeakKeyDictionary()

    def key_asked(self, batch: BatchRecord, place: Place | None, count: int) -> None:  # noqa: ARG002
        """Remember the span that asks, or link to it if the batch is running already."""
        work = self._work(batch)
        work.asked += count
        _ask(work)

    def batch_sent(self, batch: BatchRecord) -> None:
        """Begin the span."""
        assert batch.started is not None
        assert batch.reason is not None
        around = _around(batch)
        attributes: dict[str, Any] = {
            "loader.name": batch.label,
            "loader.kind": batch.kind,
            "loader.batch.size": batch.size,
            "loader.reason": batch.reason.value,
            "loader.wait_time": batch.started - batch.opened,
        }
        if batch.capacity is not None:
            attributes["loader.batch.capacity"] = batch.capacity
        parent = _parent(self._work(batch).askers, around)
        self._begin(batch, f"batch {batch.label}", around, parent, attributes)

    def batch_finished(self, batch: BatchRecord) -> None:
        """End the span."""
        self._end(batch, {"loader.batch.asked": self._work(batch).asked, "loader.batch.missing": batch.missing})

    def run_asked(self, run: RunRecord) -> None:
        """Remember the span that triggers it."""
        _ask(self._work(run))

    def run_started(self, run: RunRecord) -> None:
        """Begin the span."""
        around = _around(run)
        attributes = {
            "loader.name": run.label,
            "loader.kind": run.kind,
            "loader.run.triggers": run.triggers,
            "loader.wait_time": run.started - run.triggered,
        }
        self._begin(run, f"run {run.label}", around, _lasting(around), attributes)

    def run_finished(self, run: RunRecord) -> None:
        """End the span."""
        self._end(run, {})

    def failed(self, what: BatchRecord | RunRecord, error: BaseException) -> None:
        """Say in the span why it failed. To be cancelled, as by an operation that is over, is no error."""
        span = self._work(what).span
        if span is None or what.outcome is Outcome.CANCELLED:
            return
        name = _sendable(_type_of(error))
        span.set_attribute("error.type", name)
        event = {"exception.type": name}
        if self._messages:
            event["exception.message"] = message = _sendable(str(error))
            event["exception.stacktrace"] = _sendable("".join(traceback.format_exception(error)))
            span.set_status(Status(StatusCode.ERROR, f"{name}: {message}"))
            span.record_exception(error, event)
        else:
            event["exception.stacktrace"] = _sendable("".join(traceback.format_tb(error.__traceback__)))
            span.set_status(Status(StatusCode.ERROR, name))
            span.add_event("exception", event)

    def _work(self, what: BatchRecord | RunRecord) -> _UnderWay:
        work = self._under_way.get(what)
        if work is None:
            work = self._under_way[what] = _UnderWay()
        return work

    def _begin(
        self,
        what: BatchRecord | RunRecord,
        name: str,
        around: Span,
        parent: SpanContext | None,
        attributes: Mapping[str, Any],
    ) -> None:
        work = self._work(what)
        asked_from = [asker.get_span_context() for asker in work.askers]
        work.span = span = self._tracer.start_span(
            name,
            context=trace.set_span_in_context(INVALID_SPAN if parent is None else NonRecordingSpan(parent)),
            links=[Link(each) for each in asked_from if parent is None or each.span_id != parent.span_id],
            attributes=attributes,
        )
        if span.get_span_context().is_valid:
            # It is not detached: this context is that of the task that calls the function, and ends with it.
            contexts.attach(contexts.set_value(_AROUND, (what, around), trace.set_span_in_context(span)))

    def _end(self, what: BatchRecord | RunRecord, attributes: Mapping[str, Any]) -> None:
        assert what.outcome is not None
        work = self._under_way.pop(what, None)
        if work is None or work.span is None:
            return
        work.span.set_attributes({"loader.outcome": what.outcome.value, **attributes})
        work.span.end()


def _ask(work: _UnderWay) -> None:
    """Note the current span as one that asks; called for every key, so whatever can wait is left for later."""
    asker = trace.get_current_span()
    if asker in work.askers or len(work.askers) >= MOST_LINKS:
        return
    context = asker.get_span_context()
    if context.is_valid:
        work.askers[asker] = None
        if work.span is not None:
            work.span.add_link(context)


def _around(what: BatchRecord | RunRecord) -> Span:
    """The span in which a batch or a run takes place, whether or not another observer has made it one already."""
    made: Any = contexts.get_value(_AROUND)
    around: Span = made[1] if made is not None and made[0] is what else trace.get_current_span()
    return around


def _lasting(span: Span) -> SpanContext | None:
    """The context of a span that has not ended: a batcher, say, may outlive the request that made it."""
    context = span.get_span_context()
    # What does not record is a span of another process, or one that is not sampled: who knows when it ends.
    lasts = isinstance(span, NonRecordingSpan) or span.is_recording()
    return context if context.is_valid and lasts else None


def _parent(askers: Iterable[Span], around: Span) -> SpanContext | None:
    """The operation's span, as far as it can be told; None if what asked belongs to several traces, or to none.

    Strawberry's extension for tracing makes the spans of fields current, but never that of their operation. So what
    all the fields that ask are children of is looked for first.
    """
    here = _lasting(around)
    found = {parent.span_id: parent for parent in (_parent_of(asker, around) for asker in askers)}
    if not found:
        return here
    first = next(iter(found.values()))
    if any(parent.trace_id != first.trace_id for parent in found.values()):
        return None
    if len(found) == 1 or here is None or here.trace_id != first.trace_id:
        return first
    return here


def _parent_of(asker: Span, around: Span) -> SpanContext:
    """What a batch for `asker` is a child of: `around`, and a span that is the first in its process, stand for one."""
    context = asker.get_span_context()
    if context.span_id == around.get_span_context().span_id:
        return context
    parent: SpanContext | None = getattr(asker, "parent", None)  # only the SDK's spans know it
    return context if parent is None or parent.is_remote else parent


def _sendable(text: str) -> str:
    """Text in which half of a surrogate pair, as in the name of a file that is no UTF-8, is an escape, as in labels."""
    return text.encode("utf-8", "backslashreplace").decode()


def _type_of(error: BaseException) -> str:
    """The name of an exception's class, as OpenTelemetry writes it."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
