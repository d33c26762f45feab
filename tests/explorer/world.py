"""The world that a script runs in: its callers, its backends, what goes wrong, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

from loader import BatchCancelledError, LoaderClosedError, LoaderError, LoaderTimeoutError, RunCancelledError, _loops
from loader import _work as work_module
from loader.testing import DeadlockError
from tests.explorer.moments import LIBRARY, Moments, Threads, lines, task_of
from tests.loops import timers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from concurrent import futures

    from tests.explorer.moments import Line

    Script = Callable[["World"], Coroutine[Any, Any, None]]

TESTS = str(Path(__file__).parent.parent)

LATE = 50.0
"""After how many more seconds a backend answers that is late: later than every time-out of the scripts."""

ENDLESS = 20_000
"""After how many moments a run is taken to go on for ever; scripts have a few hundred."""


FORGIVEN = (
    *(f"coroutine '{name}" for name in ("Executor.", "GraphQLCoreConverter.", "Loudly.")),
    "coroutine method 'aclose' of 'WorkQueue.events'",  # of which CPython speaks from 3.13
)
"""What graphql-core leaves without having awaited it, where it is cancelled, or at the end of what comes in parts."""


class Boom(Exception):  # noqa: N818  # it is no error of anything, it is the fault
    """What a backend fails with."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and when.

    Attributes:
        moment: Before which callback of the loop.
        kind: "cancel", "fail", "break off", "late", "stall", or an action of the script.
        target: Which task or backend call, counted from the first one that was made.
    """

    moment: int
    kind: str
    target: int = 0

    def __str__(self) -> str:
        number = f" {self.target}" if self.kind in {"cancel", "fail", "break off", "late"} else ""
        return f"{self.kind}{number} at {self.moment}"


@dataclass
class Seen:
    """What a run came by.

    Attributes:
        begins: The moment from which on faults may come.
        moments: How many moments there were before the script's end, or up to which faults may come.
        points: For each step of each task, the first and the last moment in which it waited there.
        calls: For each backend call, the first and the last moment in which it was under way.
        actions: For each action, the first and the last moment in which it could be taken.
        waited: The lines of the library at which tasks waited, and a fault that cancels one that does.
        hit: The lines at which the task waited that a fault cancelled.
        wrong: What was wrong afterwards.
    """

    begins: int = 0
    moments: int = 0
    points: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    calls: dict[int, tuple[int, int]] = field(default_factory=dict)
    actions: dict[str, tuple[int, int]] = field(default_factory=dict)
    waited: dict[Line, Fault] = field(default_factory=dict)
    hit: set[Line] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


class Call:
    """A backend call under way; it may fail, be cancelled from within, or be late."""

    def __init__(self, world: World, settle: Callable[[Exception | None], None], seconds: float) -> None:
        self._loop, self._settle = world.loop, settle
        self._timer = self._loop.call_later(seconds, settle, None)

    def fail(self) -> None:
        self._timer.cancel()
        self._settle(Boom("the backend failed"))

    def be_late(self) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_at(self._timer.when() + LATE, self._settle, None)

    def end(self) -> None:
        self._timer.cancel()


@dataclass
class Caller:
    """Somebody who waits for something, and what that has to be."""

    task: asyncio.Task[Any]
    expected: Any
    permitted: tuple[type[BaseException], ...]


class World:
    """One run of a script, with faults.

    A script starts callers with `ask`, waits in its backends with `io` or `thread`, offers actions that may be taken
    at any moment from then on, and says with `expect` what must hold at the end.
    """

    def __init__(self, script: Script, faults: tuple[Fault, ...] = (), *, threads: bool = False) -> None:
        self.seen = Seen()
        self.loop = Moments(self._before, threads=threads)
        self.loop.set_default_executor(Threads(self._start_thread))
        self.loop.set_exception_handler(lambda _, report: self._reports.append(report))
        self.main: asyncio.Task[None] | None = None
        self.callers: list[Caller] = []
        self.permitted: tuple[type[BaseException], ...] = ()
        self.lost_with_a_task: tuple[type[BaseException], ...] = (BatchCancelledError, RunCancelledError)
        """What callers may get when a task is cancelled that is no caller; a script may add to it."""
        self.theirs = False
        """Whether a task was cancelled that is neither the library's nor the script's: what waits for it is too."""
        self.cancelled: list[asyncio.Task[Any]] = []
        self._acting: list[asyncio.Task[Any]] = []  # the callers that are actions
        self._script = script
        self._faults = {fault.moment: [each for each in faults if each.moment == fault.moment] for fault in faults}
        self._reports: list[dict[str, Any]] = []
        self._expected: list[tuple[str, Callable[[], object], object]] = []
        self._actions: dict[str, tuple[Callable[[], Any], tuple[type[BaseException], ...]]] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._numbers: dict[asyncio.Task[Any], int] = {}
        self._steps: Counter[int] = Counter()
        self._stepping: int | None = None  # the number of the task whose step runs
        self._calls = count()
        self._all_moments = count()
        self._open: dict[int, Call] = {}
        self._threads: set[futures.Future[Any]] = set()  # what is still to come from worker threads
        self._inner: dict[int, asyncio.Future[Any]] = {}
        self._context = copy_context()
        self._running = False

    # -- what scripts use --------------------------------------------------------------------------------------

    def ask(self, question: Awaitable[Any], expected: Any = None, *permitted: type[BaseException]) -> asyncio.Task[Any]:
        """A caller, who gets what is expected, or one of the errors."""

        async def caller() -> Any:
            return await question

        # A coroutine is the task's own: one that is cancelled before its first step is closed with the task.
        task = self.loop.create_task(question if asyncio.iscoroutine(question) else caller())
        self.callers.append(Caller(task, expected, permitted))
        return task

    async def io(self, seconds: float = 0.01, *, in_batch: bool = True) -> None:
        """What a backend waits for.

        Args:
            seconds: How long.
            in_batch: Whether it is the library that calls the backend. Where it is a caller itself, the wait is not
                cancelled from within: that would cancel the caller.
        """
        answer: asyncio.Future[None] = self.loop.create_future()

        def settle(error: Exception | None) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

        number = next(self._calls)
        call = self._open[number] = Call(self, settle, seconds)
        if in_batch:
            self._inner[number] = answer
        try:
            await answer
        finally:
            call.end()
            self._close_call(number)

    def offer(self, name: str, action: Callable[[], Any], *spoils: type[BaseException]) -> None:
        """An action that may be taken at any moment from now on, and the errors that callers may get after it.

        If it returns a coroutine, a caller of its own awaits that. It may be refused with an error of the library.
        """
        self._actions[name] = action, spoils
        self.seen.actions[name] = (self.seen.moments, self.seen.moments)

    def withdraw(self, name: str) -> None:
        """The action makes no sense any more."""
        del self._actions[name]

    def expect(self, what: str, look: Callable[[], object], value: object) -> None:
        """At the end `look()` must be `value`."""
        self._expected.append((what, look, value))

    def begin(self) -> None:
        """What comes before this is no part of what is tried."""
        self.seen.begins = self.seen.moments

    def end(self) -> None:
        """What comes after this is no part of what is tried."""
        self._running = False

    async def answered(self) -> None:
        """Wait until every caller so far has an answer, whatever it is."""
        if self.callers:
            await asyncio.wait([caller.task for caller in self.callers])

    # -- a run -------------------------------------------------------------------------------------------------

    def run(self) -> Seen:
        """Run the script to its end, and look at what is left."""
        with _quiet():
            try:
                self.loop.run_until_complete(self._drive())
            except DeadlockError:
                self._complain(f"waits for ever: {self._waiting()}")
            except _EndlessError:
                self._complain("goes on for ever")
            self._look_around()
        return self.seen

    async def _drive(self) -> None:
        self.loop.set_task_factory(self._make_task)
        self._running = True
        self.main = self.loop.create_task(self._script(self))
        await asyncio.wait([self.main])
        self._running = False
        await self.answered()
        me = asyncio.current_task()
        while others := asyncio.all_tasks() - {me}:  # those that are cancelled end within the next turns
            _, late = await asyncio.wait(others, timeout=2 * LATE)
            if late:
                self._complain(f"tasks are left: {sorted(map(repr, late))}")
                return
        if self._threads:  # which go on when nobody waits for them any more
            await asyncio.wait([asyncio.wrap_future(thread) for thread in self._threads])
        gc.collect()  # what is forgotten may have something to say, then and in the next turns
        for _ in range(3):
            await asyncio.sleep(0)
        if left := timers(self.loop):
            self._complain(f"timers are left: {left}")

    def _look_around(self) -> None:
        mine = [task for task in {*_loops._alive, *work_module._alive} if task.get_loop() is self.loop]
        if self.seen.wrong:
            for task in mine:  # it would be found again in every later run
                _loops._alive.discard(task)
                work_module._alive.discard(task)
        elif mine:
            self._complain(f"the library still holds tasks: {mine}")
        for caller in self.callers:
            if not caller.task.done():
                continue  # it was complained about
            self._judge(caller)
        if self.main is not None and self.main.done() and self.main not in self.cancelled:
            self._judge(Caller(self.main, None, ()))
        self.callers.clear()
        self._tasks.clear()
        self._numbers.clear()
        self.cancelled.clear()
        self._acting.clear()
        self.main = None
        gc.collect()
        for what, look, value in self._expected:
            if not self.seen.wrong and (found := look()) != value:
                self._complain(f"{what}: {found!r} and not {value!r}")
        for report in self._reports:
            if not isinstance(report.get("exception"), self.permitted):
                self._complain(f"logged: {report['message']}: {report.get('exception')!r}")
        self.loop.close()
        # A finalizer may hold the loop for as long as something lives that we would hold.
        self.loop.before = _nothing
        for store in (self._expected, self._actions, self._reports):
            store.clear()

    def _judge(self, caller: Caller) -> None:
        name = f"{caller.task.get_coro().__qualname__} for {caller.expected!r}"  # type: ignore[union-attr]
        if caller.task.cancelled():
            if caller.task not in self.cancelled and self.main not in self.cancelled and not self.theirs:
                self._complain(f"{name} was cancelled")
            return
        outcome = caller.task.exception() or caller.task.result()
        if not self._is_right(outcome, caller.expected, (*self.permitted, *caller.permitted)):
            self._complain(f"{name} got {outcome!r}")

    def _is_right(self, outcome: object, expected: object, permitted: tuple[type[BaseException], ...]) -> bool:
        if isinstance(outcome, list) and isinstance(expected, list) and len(outcome) == len(expected):
            return all(self._is_right(*pair, permitted) for pair in zip(outcome, expected, strict=True))
        return outcome == expected or isinstance(outcome, permitted)

    def _complain(self, what: str) -> None:
        self.seen.wrong.append(what)

    def _waiting(self) -> str:
        return "; ".join(f"{task.get_coro()} at {lines(task)}" for task in self._tasks if not task.done())

    # -- moments -----------------------------------------------------------------------------------------------

    def _make_task(self, loop: Any, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **named)
        if self._running:
            self.seen.points[len(self._tasks), 0] = (self.seen.moments, self.seen.moments)
            self._numbers[task] = len(self._tasks)
            self._tasks.append(task)
        return task

    def _before(self, callback: Any) -> None:
        if next(self._all_moments) > ENDLESS:
            raise _EndlessError
        if not self._running:
            return
        moment = self.seen.moments = self.seen.moments + 1
        self._note_waiting(moment)
        for fault in self._faults.get(moment, ()):
            self._context.copy().run(self._do, fault)
        task = task_of(callback)
        self._stepping = None
        if task is not None and task in self._numbers:
            number = self._stepping = self._numbers[task]
            first, _ = self.seen.points[number, self._steps[number]]
            self.seen.points[number, self._steps[number]] = (first, moment)
        for name in self._actions:
            self.seen.actions[name] = (self.seen.actions[name][0], moment)
        for number in self._open:
            self.seen.calls[number] = (self.seen.calls.get(number, (moment, 0))[0], moment)

    def _note_waiting(self, moment: int) -> None:
        """The task that has just made a step waits now."""
        number = self._stepping
        if number is None or self._tasks[number].done():
            return
        self._steps[number] += 1
        self.seen.points[number, self._steps[number]] = (moment, moment)
        for line in lines(self._tasks[number]):
            self.seen.waited.setdefault(line, Fault(moment, "cancel", number))

    def _do(self, fault: Fault) -> None:
        kind, number = fault.kind, fault.target
        if kind == "cancel":
            if number < len(self._tasks) and not self._tasks[number].done():
                task = self._tasks[number]
                # What a framework makes of its own task's cancellation is its affair, but for our part in it.
                if _is_ours(task) or lines(task):
                    self._cancel(task)
        elif kind == "stall":
            self._permit(LoaderTimeoutError)
            self.loop.clock.now += 2 * LATE
        elif kind in {"fail", "late", "break off"}:
            if number in self._open:
                self._spoil(kind, number)
        elif kind in self._actions:
            action, spoils = self._actions[kind]
            self._permit(*spoils)
            try:
                result = action()
            except LoaderError:
                return  # it was refused, with an error that says so
            except Exception as error:
                self._complain(f"{kind} raised {error!r}")
                return
            if asyncio.iscoroutine(result):
                self._acting.append(self.ask(result))

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        self.seen.hit.update(lines(task))
        self.cancelled.append(task)
        if task is self.main:
            self._permit(LoaderClosedError, BatchCancelledError, RunCancelledError)  # it closes what it works with
        elif task in self._acting:
            self._permit(*self.lost_with_a_task)  # a close that is cancelled cuts short what it waits for
        elif task not in {caller.task for caller in self.callers}:
            self._permit(*self.lost_with_a_task)
            self.theirs = self.theirs or not _is_ours(task)
        task.cancel()

    def _spoil(self, kind: str, number: int) -> None:
        if kind == "fail":
            self._permit(Boom)
            self._open[number].fail()
        elif kind == "late":
            self._permit(LoaderTimeoutError, RunCancelledError)
            self._open[number].be_late()
        elif number in self._inner:
            self._permit(BatchCancelledError, RunCancelledError)
            self._inner[number].cancel()

    def _permit(self, *errors: type[BaseException]) -> None:
        self.permitted = (*self.permitted, *errors)

    # -- backends ----------------------------------------------------------------------------------------------

    def _start_thread(self, future: futures.Future[Any], work: Callable[[], Any]) -> None:
        number = next(self._calls)

        def settle(error: Exception | None) -> None:
            self._threads.discard(future)
            self._close_call(number)
            try:
                if error is not None:
                    raise error
                future.set_result(work())
            except BaseException as failure:
                future.set_exception(failure)

        self._threads.add(future)
        self._open[number] = Call(self, settle, 0.01)

    def _close_call(self, number: int) -> None:
        self._open.pop(number, None)
        self._inner.pop(number, None)


def run(script: Script, *faults: Fault) -> Seen:
    """Run a script with these faults, and see that nothing of it is held afterwards, and that Python did not warn."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        threads = getattr(script, "threads", False)
        world = World(script, faults, threads=threads)
        loop, seen = ref(world.loop), world.run()
        del world
        for _ in range(5):  # a generator that is closed by one collection is gone with the next
            if loop() is None:
                break
            time.sleep(0.02 if threads else 0)  # a thread that has answered holds it until it has ended
            gc.collect()
            while warned:  # a warning holds what it is about
                message = str(warned.pop().message)
                if not message.startswith(FORGIVEN):
                    seen.wrong.append(f"warned: {message}")
        else:  # everything of a run refers to its loop
            seen.wrong.append("something of the run is still held")
    return seen


def _is_ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith((LIBRARY, TESTS))


def _nothing(_: object) -> None:
    """Before the callbacks of a loop whose run is over."""


class _EndlessError(SystemExit):
    """Too many moments. A loop lets nothing else through that a callback raises."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Strawberry logs of fields that fail, which is what they are to do here."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
