"""OpenTelemetry: a span for every batch and run, and instruments for what `loader.observe.Statistics` counts.

- `instrument(...)`: for everything in the process, until `uninstrument()`.
- `Spans`, `Metrics`: the two observers, for one scope or loader, or to have one of them only.

Key values are in neither of them. What the attributes and instruments are called is in docs/telemetry.md.
"""

from __future__ import annotations

from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING

from loader.observe import observing
from loader.otel._metrics import Metrics
from loader.otel._spans import Spans

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["Metrics", "Spans", "instrument", "uninstrument"]

_lock = Lock()
_instrumented = ExitStack()
"""Ends what the latest `instrument` began."""


def instrument(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    messages: bool = False,
) -> None:
    """Make spans and metrics of what all loaders, batchers and triggers of the process do from now on.

    Called again, it takes the place of the call before: nothing is made twice.

    Args:
        tracer_provider: Where spans go. None: to the global provider.
        meter_provider: Where metrics go. None: to the global provider.
        messages: Whether spans hold the messages of exceptions, which may name keys, and so personal data.
    """
    observers = Spans(tracer_provider, messages=messages), Metrics(meter_provider)
    with _lock:
        _instrumented.close()
        for observer in observers:
            _instrumented.enter_context(observing(observer))


def uninstrument() -> None:
    """Undo `instrument`; nothing happens if there is nothing to undo.

    The spans of batches that are under way are still ended.
    """
    with _lock:
        _instrumented.close()
