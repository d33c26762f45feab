"""200 triggers 2 ms apart for work of 30 ms, in real time; and what one trigger costs.

The cost stands beside the usual way to debounce: cancel the timer of the last trigger and make a new one with
`call_later`. Memory is what a burst holds that gives the loop no turn.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.rounds import in_turns
from benchmarks.table import Figure, Table, compared
from loader import Coalescer, Debouncer, Keyed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

TRIGGERS, PAUSE, WORK = 200, 0.002, 0.030
BURST, ROUNDS = 20_000, 15
BY_HAND = "cancel() and call_later()"

POLICIES: dict[str, Callable[[Callable[[], Awaitable[None]]], Debouncer[None] | Coalescer[None]]] = {
    "Debouncer(wait=0.05)": lambda fn: Debouncer(fn, wait=0.05),
    "Debouncer(wait=0.05, max_wait=0.1)": lambda fn: Debouncer(fn, wait=0.05, max_wait=0.1),
    "Coalescer()": Coalescer,
}


class Work:
    """Takes 30 ms, and counts its runs and how many of them there were at once."""

    def __init__(self) -> None:
        self.runs = self.at_once = self.most = 0
        self.started = self.ended = 0.0

    async def __call__(self) -> None:
        self.runs += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.started = time.perf_counter()
        await asyncio.sleep(WORK)
        self.ended = time.perf_counter()
        self.at_once -= 1


async def scenario(
    work: Work, triggers: int, trigger: Callable[[], object], wait_until_idle: Callable[[], Awaitable[object]]
) -> list[object]:
    """What the triggers lead to: runs, how many at once, and the last one's start and end after the last trigger."""
    last = time.perf_counter()
    for _ in range(triggers):
        last = time.perf_counter()
        trigger()
        await asyncio.sleep(PAUSE)
    await wait_until_idle()
    while work.at_once:  # noqa: ASYNC110  # the tasks of the first row have nobody who waits for them
        await asyncio.sleep(PAUSE)
    return [work.runs, work.most, Figure(work.started - last, "ms"), Figure(work.ended - last, "ms")]


async def scenarios(triggers: int) -> list[list[object]]:
    """A row for each way to answer the triggers."""
    rows: list[list[object]] = []
    work, tasks = Work(), set[asyncio.Task[None]]()
    each = await scenario(work, triggers, lambda: tasks.add(asyncio.create_task(work())), lambda: asyncio.sleep(0))
    rows.append(["a task for each", *each])
    for name, policy in POLICIES.items():
        work = Work()
        async with policy(work) as trigger:
            rows.append([name, *await scenario(work, triggers, trigger.trigger, trigger.wait_idle)])
    return rows


def timed(times: int, call: Callable[[], object]) -> float:
    """The CPU seconds of one of many calls."""
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times


def held(times: int, call: Callable[[], object]) -> int:
    """The most bytes that many calls in a row hold."""
    tracemalloc.start()
    try:
        for _ in range(times):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Recreate:
    """Debounces by hand: cancel the last timer, make a new one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def trigger(self) -> None:
        """Put the work off."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(0.05, print)

    def cancel(self) -> None:
        """Give the work up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def costs(rounds: int, times: int) -> list[list[object]]:
    """A row for each way to trigger: the ratio to doing it by hand, nanoseconds, and memory."""

    async def nothing(key: object = None) -> None: ...

    by_hand = Recreate()
    async with (
        Debouncer(nothing, wait=0.05) as debouncer,
        Coalescer(nothing, min_interval=10) as coalescer,
        Keyed(nothing, lambda fn: Debouncer(fn, wait=0.05)) as keyed,
    ):
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            BY_HAND: (by_hand.trigger, by_hand.cancel),
            "Debouncer.trigger()": (debouncer.trigger, debouncer.cancel),
            "Coalescer.trigger()": (coalescer.trigger, coalescer.cancel),
            "Keyed.trigger(key)": (lambda: keyed.trigger("key"), keyed.cancel),
            "Debouncer.trigger_threadsafe()": (debouncer.trigger_threadsafe, debouncer.cancel),
        }

        async def begun(use: Callable[[int, Callable[[], object]], float], way: str) -> float:
            """A use of a trigger that has been called before; afterwards there is nothing left of it."""
            trigger, cancel = ways[way]
            trigger()
            result = use(times, trigger)
            cancel()
            await asyncio.sleep(0)
            return result

        seconds = await in_turns(rounds, {way: partial(begun, timed, way) for way in ways})
        memory = {way: await begun(held, way) for way in ways}
    return [[way, *cells, Figure(memory[way], "MB", 2)] for way, cells in compared(seconds, [BY_HAND], "ns", 0).items()]


def tables(*, quick: bool = False) -> Iterator[Table]:
    """What triggers lead to, and what one costs."""
    rounds, triggers, burst = (1, TRIGGERS // 10, BURST // 10) if quick else (ROUNDS, TRIGGERS, BURST)
    yield Table(
        "scenario",
        f"{triggers} triggers, 2 ms apart, for work that takes 30 ms; the times are those after the last trigger.",
        ["way", "runs", "at once", "last start", "last end"],
        asyncio.run(scenarios(triggers)),
    )
    yield Table(
        "triggers",
        f"CPU time of a trigger, and what {burst:,} in one turn hold.",
        ["way", "of doing it by hand", "median", "nine in ten", "held"],
        asyncio.run(costs(rounds, burst)),
        chart="median",
        ours=["Debouncer.trigger()", "Coalescer.trigger()", "Keyed.trigger(key)", "Debouncer.trigger_threadsafe()"],
    )
