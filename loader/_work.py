"""One piece of work in a task of its own: who waits for it, what came of it, and waits that could never end.

Runs of the triggers and flights of `SingleFlight` are both a `Call`. Whoever waits for one owns its own wait and
nothing else; whoever waits from inside one is looked at first, because a circle of waits would never be broken.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from asyncio import all_tasks
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from loader._dispatch import seconds
from loader._loops import start_task
from loader._waits import Awaited, Work, asking_work, current_work, needs
from loader.errors import RunCancelledError, SelfWaitError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Task
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from contextvars import Context

    from loader._waits import Wait


T = TypeVar("T")

_alive: set[Task[Any]] = set()
"""The tasks of all work under way: the loop itself refers to its tasks only weakly."""


class Owner(Awaited, Protocol):
    """What a `Call` belongs to."""

    def _left_alone(self, call: Call[Any]) -> None:
        """The last caller of the call was cancelled."""
        ...


class Bell:
    """Wakes all who wait for it; each of them may leave, and nothing is left of those who did."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Future[None], None] = {}

    async def wait(self, loop: AbstractEventLoop) -> None:
        """Wait for the next ring."""
        future = loop.create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)

    def ring(self) -> None:
        """Wake all who wait now."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():  # cancelled in this very turn of the loop
                future.set_result(None)


class Call(Work, Generic[T]):
    """A call of an async function in a task of its own, and those who wait for it.

    Attributes:
        owner: What the call belongs to.
        callers: How many wait for the result. Those who only want to know when it is over do not count.
        failure: What the callers get raised; known once it has ended.
        unheard: The same failure for as long as somebody ought to hear of it and nobody has.
    """

    __slots__ = (
        "_late",
        "_loop",
        "_over",
        "_result",
        "_then",
        "_traceback",
        "callers",
        "failure",
        "owner",
        "task",
        "unheard",
    )

    def __init__(self, owner: Owner, loop: AbstractEventLoop) -> None:
        super().__init__(())
        self.owner = owner
        self.callers = 0
        self.failure: Exception | None = None
        self.unheard: Exception | None = None
        self.task: Task[T] | None = None
        self._loop = loop
        self._late: Exception | None = None
        self._over = Bell()

    def __str__(self) -> str:
        return f"a run of {self.owner!r}"

    def askers(self) -> Iterable[Work]:
        """Who waits for the run in flight, and who for the one after it."""
        return self.owner._awaited_by

    def start(self, context: Context, fn: Callable[..., Awaitable[T]], *args: Any, then: Callable[[Any], None]) -> None:
        """Call `fn(*args)` in a new task, and `then` once it is over and who waited for it has been woken."""
        self._then = then
        call = self._call(fn, args)
        try:
            self.task = start_task(self._loop, context, call)
        except BaseException as error:
            # No task: its factory failed, or is an eager one and let SystemExit or KeyboardInterrupt through.
            call.close()
            self.settle(failure=self._presentable(error), report=True)
            then(self)
            raise
        _alive.add(self.task)
        self.task.add_done_callback(self._finish, context=context)

    async def _call(self, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
        self._enter()
        return await invoke(self.owner, fn, *args)

    def _enter(self) -> None:
        """The first step of the task, in its context."""
        self.begin()

    def _finish(self, task: Task[T]) -> None:
        # A done-callback, because a task that is cancelled before its first step never runs any of its own code.
        _alive.discard(task)
        if task.cancelled():
            # Whoever cancelled the task knows of it; a CancelledError out of the work itself is news.
            inside = not task.cancelling()
            self.settle(failure=self._late or self._presentable(None), report=inside or self._late is not None)
        elif (error := task.exception()) is not None:
            self.settle(failure=self._presentable(error), report=True)
        else:
            self._result = task.result()
            self.settle()
        self._then(self)
        self.task = None  # its context refers to this object, which shall be gone without the cycle collector

    def cut_short(self, failure: Exception | None = None) -> None:
        """Cancel it; with `failure` as what its callers, or else its owner, hear of it."""
        if self.task is not None:  # else it is just being started, by an eager task factory
            self._late = failure
            self.task.cancel()

    def _presentable(self, error: BaseException | None) -> Exception:
        """The exception for the callers: a CancelledError or a SystemExit would end them as well."""
        if isinstance(error, Exception):
            return error
        how = "was cancelled" if error is None else f"ended with {type(error).__name__}"
        failure = RunCancelledError(f"the run of {self.owner!r} {how}; nobody cancelled its callers")
        failure.__cause__ = error
        return failure

    def settle(self, *, failure: Exception | None = None, report: bool = False) -> None:
        """Wake all who wait. With a failure the callers get it raised; with `report` it must not go unheard."""
        self.ended = True
        self.finish()
        self.failure = failure
        self.unheard = failure if report else None
        self._traceback = failure.__traceback__ if failure is not None else None
        self._over.ring()

    def take_unheard(self) -> Exception | None:
        """The failure that no caller will hear of, once."""
        unheard = None if self.callers else self.unheard
        if unheard is not None:
            self.unheard = None
        return unheard

    async def result(self) -> T:
        """The result, as soon as there is one."""
        self.callers += 1
        try:
            await self.until_over()
        except BaseException:
            self.callers -= 1
            if not self.callers and not self._loop.is_closed():
                self.owner._left_alone(self)
            raise
        if self.failure is not None:
            # All callers raise the same object: without its own traceback back, each would add to the last one's.
            raise self.failure.with_traceback(self._traceback)
        return self._result

    async def until_over(self) -> None:
        """Wait until it is done, whatever comes of it."""
        if not self.ended:
            await self._over.wait(self._loop)


@contextmanager
def waiting_for(*awaited: Awaited | Wait) -> Iterator[None]:
    """Around any wait for work: refuses to wait for what waits for us.

    Raises:
        SelfWaitError: If all that could make room for the work of one of the `awaited` waits, directly or through
            others, for the work that is running here.
    """
    work = asking_work()
    if work is None:
        yield
        return
    for one in awaited:
        if needs(one, work):
            raise SelfWaitError(
                f"a run of {one!r} waits for {one!r} itself, directly or through what it calls: that would never end. "
                "To run again afterwards, call trigger() or submit_nowait() without waiting; a Batcher may be given "
                "more max_concurrent_batches."
            )
    work.awaits += awaited
    for one in awaited:
        one._awaited_by.append(work)
    try:
        work.changed()
        yield
    finally:
        rest = list(work.awaits)
        for one in awaited:
            rest.remove(one)
            one._awaited_by.remove(work)
        work.awaits = tuple(rest)
        work.changed()  # it may still wait for something else, and now for nothing that goes on


def capture_context() -> Context:
    """A copy of the current context for work that starts later, which is then not inside of what runs now."""
    context = copy_context()
    context.run(current_work.set, None)
    return context


def check_function(who: str, fn: object) -> None:
    """Refuse what certainly is no async function.

    A plain function is let through, since it may return something to await; that is looked at when it runs.

    Raises:
        TypeError: If `fn` cannot be called, or is a generator function.
    """
    if not callable(fn):
        raise TypeError(f"{who} needs an async function, not {fn!r}; pass the function itself, not its result")
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(f"{who} needs an async function, and {name_of(fn)} is a generator function: it has a `yield`")


def checked_seconds(who: str, name: str, value: object) -> float:
    """The duration that `who` got as its argument `name`.

    It is looked at before anything counts on it: a clock that refused it later would leave those waiting who do.

    Raises:
        TypeError: If it is no number.
        ValueError: If it is negative, not finite or too large.
    """
    return seconds(f"{who}: {name}", value)


def is_ending(loop: AbstractEventLoop) -> bool:
    """Whether `loop` is being torn down: every task that is left has been cancelled, as `asyncio.run()` does."""
    return all(task.cancelling() for task in all_tasks(loop))


async def invoke(who: object, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
    """The result of `fn(*args)`.

    Raises:
        TypeError: If it returns nothing that can be awaited.
    """
    awaitable = fn(*args)
    if not inspect.isawaitable(awaitable):
        raise TypeError(
            f"{who!r} needs an async function: {name_of(fn)} returned {reprlib.repr(awaitable)}, "
            "which cannot be awaited. Make it `async def`; one that blocks goes into asyncio.to_thread() there."
        )
    return await awaitable


def name_of(fn: object) -> str:
    """What to call `fn` in a text: its qualified name, with the arguments that a partial carries."""
    if isinstance(fn, functools.partial):
        arguments = [reprlib.repr(argument) for argument in fn.args]
        arguments += [f"{name}={reprlib.repr(value)}" for name, value in fn.keywords.items()]
        return f"{name_of(fn.func)}({', '.join(arguments)})"
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def fallback_report(loop: AbstractEventLoop, message: str, error: BaseException) -> None:
    """Hand an error that nobody waits for to the loop's exception handler."""
    loop.call_exception_handler({"message": message, "exception": error})
