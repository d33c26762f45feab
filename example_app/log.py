"""One line for each operation: its name, how long it took, the batches and statements that it took, its errors."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strawberry.extensions import SchemaExtension
from strawberry.http.exceptions import WebSocketDisconnected

from loader.observe import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from example_app.database import Statement
    from loader.observe import BatchRecord

LOG = logging.getLogger("example_app.operations")

MAX_NAME = 64
"""Characters of an operation's name that are logged: it is the client's, and may be anything."""


@dataclass(slots=True)
class Tally:
    """What an operation has taken so far."""

    batches: Counter[str] = field(default_factory=Counter)
    keys: int = 0
    statements: int = 0
    rows: int = 0
    events: int = 0
    errors: int = 0


_current: ContextVar[Tally | None] = ContextVar("example_app.tally", default=None)


def count_statement(statement: Statement) -> None:
    """Add a statement to the operation that it was run for: batches run in the context of their operation."""
    tally = _current.get()
    if tally is not None:
        tally.statements += 1
        tally.rows += statement.rows


class CountBatches(Observer):
    """Adds each batch to its operation; it observes the process (`loader.observe.observing`)."""

    wants_places = False

    def batch_sent(self, batch: BatchRecord) -> None:
        """Called in the context of the batch."""
        tally = _current.get()
        if tally is not None:
            tally.batches[batch.label.rpartition(".")[2]] += 1
            tally.keys += batch.size


class OperationLog(SchemaExtension):
    """Logs each operation when it is over; before `LoaderExtension`, so that its scope is made in our context."""

    def on_operation(self) -> Iterator[None]:
        """Count, and log."""
        self.tally = Tally()
        _current.set(self.tally)
        started = time.perf_counter()
        try:
            yield
        finally:
            if LOG.isEnabledFor(logging.INFO):
                LOG.info("", extra={"operation": self._line(time.perf_counter() - started)})

    def on_stream_result(self, result: object) -> Iterator[None]:
        """Count the events of a subscription."""
        self.tally.events += 1
        self.tally.errors += len(getattr(result, "errors", None) or ())
        yield

    def _line(self, seconds: float) -> dict[str, Any]:
        context, tally = self.execution_context, self.tally
        try:
            kind = context.operation_type.value
        except RuntimeError:  # there is no operation, or none of that name
            kind = "none"
        result_errors = getattr(context.result, "errors", None) or context.pre_execution_errors or ()
        return {
            "operation": str(context.operation_name or "")[:MAX_NAME],
            "type": kind,
            "ms": round(1000 * seconds, 1),
            "batches": dict(tally.batches),
            "keys": tally.keys,
            "statements": tally.statements,
            "rows": tally.rows,
            **({"events": tally.events} if kind == "subscription" else {}),
            "errors": tally.errors if tally.events else len(result_errors),
        }


class AsText(logging.Formatter):
    """`name=value` pairs; text is quoted and escaped as in JSON, so that a line stays a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        pairs = _fields(self, record)
        shown = [f"{name}={value if isinstance(value, float | int) else _json(value)}" for name, value in pairs.items()]
        return " ".join(shown)


class AsJson(logging.Formatter):
    """A JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return _json(_fields(self, record))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    fields = {"time": formatter.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
    operation: dict[str, Any] | None = getattr(record, "operation", None)
    if operation:
        return fields | operation
    fields |= {"logger": record.name, "message": record.getMessage()}
    if record.exc_info:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return fields


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether it is no client that left while an event was on its way to it, which Strawberry reports as an error.

    It sees that itself, or has it from Starlette, where it is a `RuntimeError`.
    """
    error = None if record.exc_info is None else record.exc_info[1]
    return not isinstance(error, WebSocketDisconnected) and "once a close message has been sent" not in str(error)


def set_up(how: str) -> None:
    """Write all logs to standard error: those of operations too, unless `how` is "off"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(is_worth_a_line)
    handler.setFormatter(AsJson() if how == "json" else AsText())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    LOG.setLevel(logging.WARNING if how == "off" else logging.INFO)
