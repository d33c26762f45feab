"""What a schema has observed of its operations: the report in the response, and hints in the log."""

from __future__ import annotations

import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from loader.hints import LogHints, in_development
from loader.observe import label_of
from loader.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from strawberry.types import ExecutionContext

    from loader.observe import BatchRecord, Observer

    Wanted = bool | Callable[[ExecutionContext], bool] | None

KEY = "loaders"
"""Where in the `extensions` of a response the report is."""


class Observed:
    """What a schema was told to have observed: of every operation anew, or, for hints, once in all."""

    def __init__(self, report: Wanted, *, hints: bool | None) -> None:
        if not (report is None or isinstance(report, bool) or callable(report)):
            raise TypeError(
                f"install(report=) takes True, False or a function of the execution context, not {report!r}"
            )
        if _is_async(report):
            raise TypeError(
                f"install(report=) takes a function that decides at once, not {report!r}: an operation does not wait "
                "for it. Look up who may see the report before, where the context is made"
            )
        self._report = report
        self._log_hints = LogHints() if hints or (hints is None and in_development()) else None

    def begin(self, context: ExecutionContext) -> tuple[Report | None, list[Observer]]:
        """The report of an operation, if it is wanted, and who observes the operation."""
        report = Report() if self._wants_report(context) else None
        observers: list[Observer] = [] if report is None else [report.timeline]
        if self._log_hints is not None:
            observers.append(self._log_hints)
        return report, observers

    def _wants_report(self, context: ExecutionContext) -> bool:
        if not callable(self._report):
            return bool(self._report)
        try:
            return _decided(self._report(context))
        except Exception:  # noqa: BLE001  # whatever it is, it is no reason to refuse the operation
            _log.exception("install(report=): %r failed, so there is no report", self._report)
            return False


def _is_async(function: object) -> bool:
    """Whether a call of `function` gives something to await, as far as that can be seen beforehand."""
    while isinstance(function, partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004  # the method itself is asked for
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _decided(wanted: object) -> bool:
    """What the function has decided. Nothing else counts as true: who may not see the report must not get it.

    Raises:
        TypeError: If it is no bool.
    """
    if inspect.iscoroutine(wanted):
        wanted.close()  # else it warns, later and elsewhere, that nobody has awaited it
    if not isinstance(wanted, bool):
        raise TypeError(f"it must return True or False, not {wanted!r}")
    return wanted


class Report:
    """The report of one operation: what happened since it was last made."""

    def __init__(self) -> None:
        self.timeline = Timeline()

    def results(self) -> dict[str, Any]:
        """The report as `extensions` of a response, or nothing if it cannot be made."""
        try:
            return {KEY: self._made()}
        except Exception:  # noqa: BLE001  # whatever it is, it must not harm the response
            _log.exception("the report of the loaders failed")
            return {}
        finally:
            self.timeline.clear()

    def put_into(self, result: Any) -> None:
        """Put the report into a result that Strawberry asks no extension about: one that comes in parts, or a part."""
        if KEY not in (result.extensions or {}):
            result.extensions = {**(result.extensions or {}), **self.results()}

    def _made(self) -> dict[str, Any]:
        timeline = self.timeline
        # By the names without parameters, which may be personal data, the server's own, or as long as a client likes.
        batches: dict[str, list[dict[str, Any]]] = {}
        for batch in timeline.batches:
            batches.setdefault(batch.label, []).append(_in_short(batch))
        cached: dict[str, int] = {}
        for name, count in timeline.cached.items():
            cached[label_of(name)] = cached.get(label_of(name), 0) + count
        return {
            "ms": round(1000 * (timeline.end - timeline.start), 3),
            "batches": batches,
            **({"cached": cached} if cached else {}),
            "hints": list(map(str, timeline.hints())),
        }


def _in_short(batch: BatchRecord) -> dict[str, Any]:
    outcome = "under way" if batch.outcome is None else batch.outcome.value
    ms = None if batch.started is None or batch.finished is None else round(1000 * (batch.finished - batch.started), 3)
    return {
        "size": batch.size,
        "reason": None if batch.reason is None else batch.reason.value,
        "ms": ms,
        **({} if outcome == "done" else {"outcome": outcome}),
    }


_log = logging.getLogger("loader")
