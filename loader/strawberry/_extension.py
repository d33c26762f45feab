"""A scope for every operation, and what else Strawberry needs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from graphql import ExperimentalIncrementalExecutionResults
from graphql.execution.incremental import IncrementalExecutor
from strawberry.extensions import SchemaExtension

from loader.strawberry._awaited import await_results
from loader.strawberry._errors import log_shared_errors_once
from loader.strawberry._executor import executor_class
from loader.strawberry._operation import Operation
from loader.strawberry._relation import prepare_relations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strawberry import Schema
    from strawberry.types import ExecutionContext

    from loader import Loaders


@final
class LoaderExtension(SchemaExtension):
    """Gives each operation a `Scope` of its own, each subscription event a new one, which end with it.

    Add it with `install(schema)`, or in `Schema(extensions=[LoaderExtension])`, which installs it with the default
    options when the schema is first used.
    """

    _operation: Operation

    @property
    def execution_context(self) -> ExecutionContext:
        """The operation, as Strawberry describes it."""
        return self._execution_context

    @execution_context.setter
    def execution_context(self, value: ExecutionContext) -> None:
        # Strawberry sets this right before it looks which executor the schema wants: the last moment to tell it.
        self._execution_context = value
        if not hasattr(value.schema.execution_context_class, "loader_options"):
            install(value.schema)

    def on_operation(self) -> Iterator[None]:
        """Open the scope, and close it whatever happens.

        Not an async generator, though that could wait for the end of cancelled batches: `schema.execute_sync` takes
        no asynchronous extension. Whoever closes the `Loaders` waits instead.
        """
        self._operation = operation = Operation(self.execution_context.context)
        outer = operation.enter()
        try:
            yield
        finally:
            Operation.leave(outer)
            # Over plain HTTP what @defer and @stream left for later is executed after this hook.
            more = isinstance(self.execution_context.result, ExperimentalIncrementalExecutionResults)
            if more and not operation.finished:
                operation.left = True
            else:
                operation.close()

    def on_stream_result(self, result: object) -> Iterator[None]:  # noqa: ARG002  # the hook's signature
        """End the event's batches when its result is complete, not when the next event comes."""
        self._operation.end_event()
        yield


def install(
    schema: Schema, *, loaders: type[Loaders] | None = None, plan: bool = True, early_execution: bool = False
) -> None:
    """Give every operation of `schema` a `Scope` of its own, on every transport.

    Each subscription event has a scope too, and each root field of a mutation starts with empty caches, so that
    nothing stale is read. Lists look ahead at the relations of their items (`relation`). A failure that many fields
    share is logged once, with their number. Installing again changes nothing.

    Args:
        schema: The schema, as it is given to the view.
        loaders: The class of the `Loaders` in the context. With it, every `relation` of the schema is checked now.
        plan: Whether relations are loaded ahead. The results are the same.
        early_execution: Whether `@stream` and `@defer` begin before the initial result was sent. Then the items of a
            stream load in one batch instead of one each.

    Raises:
        TypeError: If a relation's loader is not one of `loaders`.
    """
    prepare_relations(schema, loaders)
    base = schema.execution_context_class or IncrementalExecutor
    if hasattr(base, "loader_options"):
        return
    schema.execution_context_class = executor_class(base, plan=plan, early_execution=early_execution)
    if LoaderExtension not in schema.extensions:
        # First, so that what other extensions do around an operation finds its scope open.
        schema.extensions = (LoaderExtension, *schema.extensions)
    log_shared_errors_once(schema)
    await_results(schema)
