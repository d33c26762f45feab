"""A scope for every operation, and what else Strawberry needs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from graphql import ExperimentalIncrementalExecutionResults
from strawberry import Schema
from strawberry.extensions import SchemaExtension

from loader.strawberry._awaited import await_results
from loader.strawberry._errors import log_shared_errors_once
from loader.strawberry._executor import executor_class
from loader.strawberry._operation import Operation
from loader.strawberry._relation import prepare_relations
from loader.strawberry._report import Observed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strawberry.types import ExecutionContext

    from loader import Loaders
    from loader.strawberry._operation import Outer
    from loader.strawberry._report import Report, Wanted


@final
class LoaderExtension(SchemaExtension):
    """Gives each operation a `Scope` of its own, each subscription event a new one, which end with it.

    Add it with `install(schema)`, or in `Schema(extensions=[LoaderExtension])`, which installs it with the default
    options when the schema is first used.
    """

    _operation: Operation
    _outer: Outer
    _report: Report | None = None

    @property
    def execution_context(self) -> ExecutionContext:
        """The operation, as Strawberry describes it."""
        return self._execution_context

    @execution_context.setter
    def execution_context(self, value: ExecutionContext) -> None:
        # Strawberry sets this right before it looks which executor the schema wants: the last moment to tell it.
        self._execution_context = value
        ensure_installed(value.schema)

    def on_operation(self) -> Iterator[None]:
        """Open the scope, and close it whatever happens.

        Not an async generator, though that could wait for the end of cancelled batches: `schema.execute_sync` takes
        no asynchronous extension. Whoever closes the `Loaders` waits instead.
        """
        executor: Any = self.execution_context.schema.execution_context_class
        self._report, observers = executor.loader_observed.begin(self.execution_context)
        self._operation = operation = Operation(self.execution_context.context, observers)
        self._outer = operation.enter()
        try:
            yield
            # Over plain HTTP what @defer and @stream left for later is executed after this hook.
            result: Any = self.execution_context.result
            if isinstance(result, ExperimentalIncrementalExecutionResults):
                operation.left = not operation.finished
                if self._report is not None:
                    self._report.put_into(result.initial_result)
        finally:
            Operation.leave(self._outer)
            if not operation.left:
                operation.close()

    def get_results(self) -> dict[str, Any]:
        """The report, if one is wanted: of the operation, or of the event that is over."""
        return {} if self._report is None else self._report.results()

    def on_stream_result(self, result: object) -> Iterator[None]:
        """End the event's batches when its result is complete, not when the next event comes.

        While the consumer has the result, what was current for the consumer is so again. It may come back in another
        context, and may not come back at all.
        """
        if self._report is not None:
            self._report.put_into(result)
        self._operation.end_event()
        Operation.leave(self._outer)
        try:
            yield
        finally:
            self._outer = self._operation.enter()


def install(
    schema: Schema,
    *,
    loaders: type[Loaders] | None = None,
    plan: bool = True,
    early_execution: bool = False,
    report: Wanted = None,
    hints: bool | None = None,
) -> None:
    """Give every operation of `schema` a `Scope` of its own, on every transport.

    Each subscription event has a scope too, and each root field of a mutation starts with empty caches, so that
    nothing stale is read. Lists look ahead at the relations of their items (`relation`). A failure that many fields
    share is logged once, with their number. Installing again sets the options anew.

    Args:
        schema: The schema, as it is given to the view.
        loaders: The class of the `Loaders` in the context. With it, every `relation` of the schema is checked now.
        plan: Whether relations are loaded ahead. The results are the same.
        early_execution: Whether `@stream` and `@defer` begin before the initial result was sent. Then the items of a
            stream load in one batch instead of one each.
        report: Whether every response has a report of its batches, with hints, as `loaders` in its `extensions`; or a
            plain function of Strawberry's `ExecutionContext` that says True or False for each operation, before its
            query is parsed. It shows places of the server's code.
        hints: Whether hints are logged as warnings of the logger `loader`, each place once. None: in development,
            which is `python -X dev`, or a server that reloads its code (`--reload`, `fastapi dev`, `strawberry dev`).

    Raises:
        TypeError: If `schema` is no schema, a relation's loader is not one of `loaders`, or an option is of another
            type; also if `report` is an `async def`.
    """
    if not isinstance(schema, Schema):
        raise TypeError(f"install takes the strawberry.Schema that the view is given, not {schema!r}")
    for name, option in (("plan", plan), ("early_execution", early_execution)):
        if not isinstance(option, bool):
            raise TypeError(f"install({name}=) takes True or False, not {option!r}")
    if not (hints is None or isinstance(hints, bool)):
        raise TypeError(f"install(hints=) takes True, False or None, not {hints!r}")
    observed = Observed(report, hints=hints)
    prepare_relations(schema, loaders)
    again = _is_installed(schema)
    base: Any = schema.execution_context_class
    schema.execution_context_class = executor_class(
        base.loader_base if again else base,
        plan=plan,
        early_execution=early_execution,
        observed=observed,
    )
    if again:
        return
    if LoaderExtension not in schema.extensions:
        # First, so that what other extensions do around an operation finds its scope open.
        schema.extensions = (LoaderExtension, *schema.extensions)
    log_shared_errors_once(schema)
    await_results(schema)


def ensure_installed(schema: Schema) -> None:
    """`install` with the default options, unless that was done already."""
    if not _is_installed(schema):
        install(schema)


def _is_installed(schema: Schema) -> bool:
    return hasattr(schema.execution_context_class, "loader_base")
