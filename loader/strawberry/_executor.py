"""The executor: it knows its operation wherever execution comes back to it, and lets lists look ahead."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, ensure_future, get_running_loop, wait
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from graphql import OperationType
from graphql.execution.executor import ExecutionHooks
from graphql.execution.incremental import IncrementalExecutor

from loader.strawberry._operation import Operation
from loader.strawberry._plan import Plan
from loader.strawberry._relation import seen

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Generator, Iterator

    from graphql import GraphQLList, GraphQLResolveInfo
    from graphql.execution.collect_fields import FieldDetailsList
    from graphql.pyutils import Path

    from loader import Scope
    from loader.strawberry._report import Observed


EAGER: Any = getattr(getattr(asyncio, "eager_task_factory", None), "__code__", None)
"""The code of task factories that `asyncio.create_eager_task_factory` has made, from CPython 3.12 on."""


def executor_class(base: type[Any], *, plan: bool, early_execution: bool, observed: Observed) -> type[Any]:
    """A subclass of the schema's executor class, with these options.

    One that executes fields in its own way may have to say no before anything is loaded: then there is no plan.
    """
    plan = plan and base.execute_field is IncrementalExecutor.execute_field
    attributes = {"loader_base": base, "loader_early_execution": early_execution, "loader_observed": observed}
    return type("LoaderExecutor", (_Planning if plan else _Scoped, base), attributes)


class _Scoped(IncrementalExecutor):
    """Freshness: a scope for each event, empty caches for each root field of a mutation, the end of late work."""

    loader_base: type[Any]
    loader_early_execution: bool
    loader_observed: Observed

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._loader_operation = Operation.current()
        self._loader_event = False
        if self._loader_operation is not None:
            self._loader_operation.context = self.context_value  # which an extension may have set anew
            if self.operation.name is not None:
                self._loader_operation.scope.name = self.operation.name.value
        if self.loader_early_execution:
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
            self._loader_operation.scope.keep_nothing()  # a task that the source has started asks for itself
            return _Source(aiter(iterable), self._loader_operation)
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

    def create_sub_executor(self, *arguments: Any) -> Any:
        copied = super().create_sub_executor(*arguments)
        vars(copied).pop("execute_field", None)  # what is left for later is no root field, and has errors of its own
        return copied

    def build_stream_item_queue(self, index: int, path: Path, iterator: Any, *arguments: Any) -> Any:
        if self._loader_operation is not None:
            iterator = _Steps(iterator, self._loader_operation)
        if not self.enable_early_execution:
            return super().build_stream_item_queue(index, path, iterator, *arguments)
        with _no_eager_tasks():  # one would begin to produce here
            queue = super().build_stream_item_queue(index, path, iterator, *arguments)
        queue._produce = partial(_produce, queue._produce)
        return queue

    def execute_execution_group(self, *arguments: Any) -> Any:
        if self._loader_operation is not None:
            self._loader_operation.enter()
        return super().execute_execution_group(*arguments)

    def complete_stream_item(self, *arguments: Any) -> Any:
        if self._loader_operation is not None:
            self._loader_operation.enter()
        if not self.enable_early_execution:
            return super().complete_stream_item(*arguments)
        result: Any
        try:
            result = super().complete_stream_item(*arguments)
        except Exception as error:  # noqa: BLE001  # raised here it would end the items before this one, see `_produce`
            result = get_running_loop().create_future()
            result.set_exception(error)
        if self.is_awaitable(result):
            result = ensure_future(result)  # which is what is done with it anyway
            result.add_done_callback(seen)
        return result


@contextmanager
def _no_eager_tasks() -> Iterator[None]:
    try:
        loop = get_running_loop()
    except RuntimeError:
        yield  # the queue begins when somebody asks for the first item
        return
    factory = loop.get_task_factory()
    if EAGER is None or getattr(factory, "__code__", None) is not EAGER:
        yield
        return
    loop.set_task_factory(None)
    try:
        yield
    finally:
        loop.set_task_factory(factory)


async def _produce(produce: Callable[[Any], Coroutine[Any, Any, None]], queue: Any) -> None:
    """Feed the queue of a stream whose items are begun early; if the source fails, after the items that are under way.

    graphql-core would cancel them at once, and wait for the first of them for ever; so it would for a source that was
    cancelled.
    """
    try:
        await produce(queue)
        return
    except CancelledError as error:
        if queue._producer_cancelled:
            raise  # whoever takes the items has left
        failure: Exception = RuntimeError("the source of a stream was cancelled")
        failure.__cause__ = error
    except Exception as error:  # noqa: BLE001  # it is raised below
        failure = error
    while queue._pending_futures:
        try:
            await wait(queue._pending_futures)
        except CancelledError:
            if queue._producer_cancelled:
                raise
    try:
        raise failure
    finally:
        del failure  # whose traceback has this frame


class _Steps:
    """An iterator, asynchronous or not, each of whose steps runs in the operation's scope."""

    def __init__(self, iterator: Any, operation: Operation) -> None:
        self._iterator = iterator
        self._operation = operation

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._operation.enter()
        return next(self._iterator)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __anext__(self) -> Any:
        self._operation.enter()
        return self._iterator.__anext__()

    async def aclose(self) -> None:
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()


class _Source(_Steps):
    """The source of a subscription's events: whatever it waits for, it knows nothing from before."""

    def __anext__(self) -> Any:
        self._operation.end_event()
        return _Forgetting(self._step(), self._operation.scope)

    async def _step(self) -> Any:
        return await self._iterator.__anext__()


class _Forgetting:
    """Awaits a coroutine, and has a scope forget what it knows whenever the coroutine goes on.

    A source that asks again and again, and yields only when something has changed, would never see a change.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], scope: Scope) -> None:
        self._coroutine = coroutine
        self._scope = scope

    def __await__(self) -> Generator[Any, Any, Any]:
        go_on: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        while True:
            self._scope.clear_all()
            try:
                waits_for = go_on(value)
            except StopIteration as end:
                return end.value
            try:
                value = yield waits_for
                go_on = self._coroutine.send
            except BaseException as error:  # noqa: BLE001  # thrown into the coroutine, which has a say in it
                go_on, value = self._coroutine.throw, error


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
        self._loader_plan = None if operation is None or intercepted else Plan(operation)

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
        if plan is None:
            return complete()
        if plan.completing:
            return plan.complete_inside(complete)
        if not isinstance(result, list | tuple):
            return complete()
        return plan.complete(self, return_type.of_type, field_details_list, path, result, complete)
