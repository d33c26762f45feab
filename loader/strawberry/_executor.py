"""The executor: it knows its operation wherever execution comes back to it, and lets lists look ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphql import OperationType
from graphql.execution.executor import ExecutionHooks
from graphql.execution.incremental import IncrementalExecutor

from loader.strawberry._operation import Operation
from loader.strawberry._plan import Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

    from graphql import GraphQLList, GraphQLResolveInfo
    from graphql.execution.collect_fields import FieldDetailsList
    from graphql.pyutils import Path


def executor_class(base: type[Any], *, plan: bool, early_execution: bool) -> type[Any]:
    """A subclass of the schema's executor class, with these options."""
    options = {"loader_options": {"plan": plan, "early_execution": early_execution}}
    return type("LoaderExecutor", (_Planning if plan else _Scoped, base), options)


class _Scoped(IncrementalExecutor):
    """Freshness: a scope for each event, empty caches for each root field of a mutation, the end of late work."""

    loader_options: dict[str, bool]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._loader_operation = Operation.current()
        self._loader_event = False
        if self.loader_options["early_execution"]:
            self.enable_early_execution = True
        self.hooks = ExecutionHooks(async_work_finished=self._after(self.hooks))

    def _after(self, hooks: ExecutionHooks | None) -> Any:
        """Close an operation whose results came in parts, when the last of them is there."""
        before = None if hooks is None else hooks.async_work_finished
        operation = self._loader_operation

        def finished(info: Any) -> None:
            if before is not None:
                before(info)
            if operation is not None:
                operation.finished = True
                if operation.left:
                    operation.close()

        return finished

    def build_per_event_executor(self, payload: Any) -> Any:
        executor: Any = super().build_per_event_executor(payload)
        executor._loader_event = True
        if self._loader_operation is not None:
            self._loader_operation.begin_event()
        return executor

    def cancellable_iterable(self, iterable: AsyncIterable[Any]) -> AsyncIterable[Any]:
        iterable = super().cancellable_iterable(iterable)
        is_source = self.operation.operation is OperationType.SUBSCRIPTION and not self._loader_event
        if is_source and self._loader_operation is not None:
            return _Source(iterable, self._loader_operation)
        return iterable

    def execute_fields_serially(self, *arguments: Any) -> Any:
        # Only here, for mutations, an override of the method that runs for every field.
        self.execute_field = self._execute_field_afresh  # type: ignore[method-assign,assignment]
        return super().execute_fields_serially(*arguments)

    def _execute_field_afresh(self, parent_type: Any, source: Any, details: Any, path: Path, position: Any) -> Any:
        if path.prev is None and self._loader_operation is not None:
            self._loader_operation.scope.clear_all()
        return super().execute_field(parent_type, source, details, path, position)

    # Late work may run in a task that was made outside the operation.

    def execute_execution_group(self, *arguments: Any) -> Any:
        if self._loader_operation is not None:
            self._loader_operation.enter()
        return super().execute_execution_group(*arguments)

    def complete_stream_item(self, *arguments: Any) -> Any:
        if self._loader_operation is not None:
            self._loader_operation.enter()
        return super().complete_stream_item(*arguments)


class _Source:
    """The source of a subscription's events: each of its steps runs in the operation's scope."""

    def __init__(self, source: AsyncIterable[Any], operation: Operation) -> None:
        self._iterator = source.__aiter__()
        self._operation = operation

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __anext__(self) -> Any:
        self._operation.end_event()
        return self._iterator.__anext__()

    async def aclose(self) -> None:
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()


class _Planning(_Scoped):
    """The plan: lists load the relations below them before they are completed.

    An object on its own needs none: what its relations ask for is asked for in the same turn of the loop anyway, and
    a hook on every object costs a tenth of a request of plain attributes, measured.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        operation = self._loader_operation
        # An extension that intercepts every field may have to say no before anything is loaded.
        intercepted = bool(self.middleware_manager and self.middleware_manager.middlewares)
        self._loader_plan = None if operation is None or intercepted else Plan(self, operation)

    def complete_list_value(
        self,
        return_type: GraphQLList[Any],
        field_details_list: FieldDetailsList,
        info: GraphQLResolveInfo[Any],
        path: Path,
        result: Any,
        position_context: Any,
    ) -> Any:
        def complete() -> Any:
            return super(_Planning, self).complete_list_value(
                return_type, field_details_list, info, path, result, position_context
            )

        plan = self._loader_plan
        if plan is None or plan.completing or not isinstance(result, list | tuple):
            return complete()
        return plan.complete(return_type, field_details_list, result, complete)
