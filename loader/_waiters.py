"""The callers of a batch: one value for each key, many callers, each free to leave.

All rules of cancellation live here. A caller owns one future. Nobody else holds it, so that cancelling it (which is
what cancelling the task that awaits it does) changes nothing for anybody else; and nothing is ever set on a future
that is done, so that a caller that left is passed over.

An *outcome* is what a key came to: a value, or an exception instance, which the callers of that key get raised.
"""

from __future__ import annotations

from asyncio import Future, InvalidStateError, _get_running_loop
from itertools import repeat
from typing import TYPE_CHECKING, Any

from loader.errors import BatchCancelledError, BatchFailedError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from contextvars import Context
    from typing import Self, TypeGuard


def failed(outcome: object) -> TypeGuard[BaseException]:
    """Whether an outcome is an exception.

    That is what its type says. `isinstance` would ask a proxy (a `SimpleLazyObject` of Django, a mock) for what it
    stands for, which may fail, block, or be what no future takes.
    """
    return issubclass(type(outcome), BaseException)


def answer(future: Future[Any], outcome: object) -> None:
    """Settle `future` with an outcome, unless it is done."""
    if future.done():
        return
    if failed(outcome):
        future.set_exception(failure(outcome))
    else:
        future.set_result(outcome)


def failure(error: BaseException) -> Exception:
    """The exception that callers get for `error`: always one that a future can hold and `except Exception` catches.

    A `CancelledError` would look to the caller as if it had itself been cancelled, `SystemExit` would end the
    process from wherever it is awaited, a future refuses `StopIteration`, and `StopAsyncIteration` would end an
    iteration that the caller is part of.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    name = type(error).__name__  # its text may fail
    if name == "CancelledError":
        safe: Exception = BatchCancelledError(
            "the batch function was cancelled from within (a task, a driver or a pool that it waited for)"
        )
    else:
        safe = BatchFailedError(f"the batch function ended with {name}, the __cause__ of this")
    safe.__cause__ = error
    return safe


class Known(Future[Any]):
    """A future that is finished before anybody sees it, and so belongs to whichever loop asks.

    What awaits it is not made to wait, and never has to be woken from another loop. `asyncio.gather` and the like look
    at the loop nevertheless, and want a callback.
    """

    def get_loop(self) -> AbstractEventLoop:
        return _get_running_loop() or super().get_loop()

    def add_done_callback(self, callback: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        self.get_loop().call_soon(callback, self, context=context)


class Group:
    """The one future of a `load_many`, and what has been found for it so far."""

    __slots__ = ("_found", "_keys", "_missing", "_return_exceptions", "future")

    def __init__(
        self,
        future: Future[list[Any]],
        keys: Sequence[Hashable],
        found: dict[Hashable, Any],
        missing: int,
        *,
        return_exceptions: bool,
    ) -> None:
        self.future = future
        self._keys = keys
        self._found = found
        self._missing = missing
        self._return_exceptions = return_exceptions
        if not missing:
            self._finish(found)

    def take(self, keys: Mapping[Hashable, object], outcomes: Mapping[Hashable, Any]) -> None:
        """Take the outcomes of `keys`, some of those that were missing; the last ones settle the future."""
        if self.future.done():
            return
        if not self._return_exceptions:
            for key in keys:
                if failed(outcomes[key]):
                    answer(self.future, outcomes[key])
                    return
        self._missing -= len(keys)
        if not self._missing and not self._found:
            self._finish(outcomes)  # everything came from one batch: nothing to put together
            return
        for key in keys:
            self._found[key] = outcomes[key]
        if not self._missing:
            self._finish(self._found)

    def _finish(self, found: Mapping[Hashable, Any]) -> None:
        results = [found[key] for key in self._keys]
        failures = [index for index, result in enumerate(results) if failed(result)]
        if failures and not self._return_exceptions:
            answer(self.future, results[failures[0]])
            return
        for index in failures:
            results[index] = failure(results[index])
        self.future.set_result(results)


class Callers:
    """Who waits for the keys of one batch.

    Attributes:
        futures: For each key, in the order of the first question for it, the future of its only caller or a list of
            its callers' futures. A `load_many` stands with its one future under each of its keys.
        groups: The `load_many`s among the callers: their future, and which keys they still lack from this batch.
        shared: Whether a key has, or has had, more than one caller.
    """

    __slots__ = ("futures", "groups", "loop", "shared")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.futures: dict[Hashable, Future[Any] | list[Future[Any]]] = {}
        self.groups: dict[Future[Any], tuple[Group, dict[Hashable, None]]] = {}
        self.shared = False

    def join(self, key: Hashable, future: Future[Any]) -> None:
        """Let one more caller wait for a key of this batch."""
        self.shared = True
        others = self.futures[key]
        if isinstance(others, list):
            others.append(future)
        else:
            self.futures[key] = [others, future]

    def join_group(self, group: Group, keys: Iterable[Hashable]) -> None:
        """Let a `load_many` wait for several keys of this batch."""
        self.note_group(group, keys)
        for key in keys:
            self.join(key, group.future)

    def note_group(self, group: Group, keys: Iterable[Hashable]) -> None:
        """Note what a `load_many` lacks from this batch, besides what it may lack from it already."""
        _, lacking = self.groups.setdefault(group.future, (group, {}))
        lacking.update(dict.fromkeys(keys))

    def abandoned(self) -> list[Hashable]:
        """The keys that nobody waits for any more."""
        futures: dict[Hashable, Any] = self.futures
        if not self.shared and True not in map(Future.done, futures.values()):
            return []
        return [
            key
            for key, callers in self.futures.items()
            if (all(map(Future.done, callers)) if isinstance(callers, list) else callers.done())
        ]

    def answer_key(self, key: Hashable, outcome: object) -> None:
        """Settle the callers of one key, which then is no key of this batch any more."""
        callers = self.futures.pop(key)
        for future in callers if isinstance(callers, list) else (callers,):
            if future in self.groups:
                group, keys = self.groups[future]
                del keys[key]
                group.take({key: None}, {key: outcome})
            else:
                answer(future, outcome)

    def answer_all(self, outcomes: Mapping[Hashable, Any]) -> None:
        """Settle every caller, in the order of their questions: `outcomes` has one for each key, in that order too."""
        if self.shared or self.groups:
            self._settle(outcomes.values(), lambda _: outcomes)
        else:
            # The usual case, one caller for each key, and `answer` written out: its call would double the price, and to
            # ask whether a caller has left costs more than to find out.
            futures: Iterable[Any] = self.futures.values()
            for future, outcome in zip(futures, outcomes.values(), strict=True):
                if issubclass(type(outcome), BaseException):
                    answer(future, outcome)
                else:
                    try:  # noqa: SIM105  # for each key that would cost more than the rest
                        future.set_result(outcome)
                    except InvalidStateError:
                        pass
        self._forget()

    def fail_all(self, error: BaseException, *, quietly: bool = False) -> None:
        """Settle every caller with `error`.

        Args:
            error: What the callers get, through `failure`.
            quietly: asyncio complains of an exception that nobody ever looks at. That is right for a failure of the
                backend, and noise where the callers left together with what they waited for (a closed scope).
        """
        outcome = failure(error)
        waiting = [
            future
            for callers in self.futures.values()
            for future in (callers if isinstance(callers, list) else (callers,))
            if quietly and not future.done()
        ]
        self._settle(repeat(outcome), lambda keys: dict.fromkeys(keys, outcome))
        for future in waiting:
            if future.done():  # a `load_many` may still lack keys of other batches
                future.exception()
        self._forget()

    def _settle(
        self, outcomes: Iterable[object], found: Callable[[dict[Hashable, None]], Mapping[Hashable, Any]]
    ) -> None:
        """Settle every caller, whatever becomes of the keys meanwhile: nothing is looked up but for a `load_many`.

        Args:
            outcomes: One for each key, in order.
            found: The outcomes of some keys by key.
        """
        rest = dict(self.groups)
        for callers, outcome in zip(self.futures.values(), outcomes, strict=False):
            for future in callers if isinstance(callers, list) else (callers,):
                if future not in self.groups:
                    answer(future, outcome)
                elif future in rest:
                    group, keys = rest.pop(future)
                    try:
                        group.take(keys, found(keys))
                    except Exception as error:  # noqa: BLE001  # of a key, which is not hashable any more
                        answer(future, outcome if failed(outcome) else error)

    def _forget(self) -> None:
        # Whoever still holds this batch (a traceback, a context) must not keep its callers alive.
        self.futures = {}
        self.groups = {}
