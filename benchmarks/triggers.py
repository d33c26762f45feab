"""200 triggers 2 ms apart for work of 30 ms, in real time; and what one trigger costs.

The cost stands beside the usual way to debounce: cancel the timer of the last trigger and make a new one with
`call_later`. Memory is what a burst holds that gives the loop no turn.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING

from benchmarks.table import show
from loader import Coalescer, Debouncer, Keyed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TRIGGERS, PAUSE, WORK = 200, 0.002, 0.030
BURST, ROUNDS = 20_000, 15

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
    work: Work, trigger: Callable[[], object], wait_until_idle: Callable[[], Awaitable[object]]
) -> list[object]:
    """What the triggers lead to: runs, how many at once, and the last one's start and end after the last trigger."""
    last = time.perf_counter()
    for _ in range(TRIGGERS):
        last = time.perf_counter()
        trigger()
        await asyncio.sleep(PAUSE)
    await wait_until_idle()
    while work.at_once:  # noqa: ASYNC110  # the tasks of the first row have nobody who waits for them
        await asyncio.sleep(PAUSE)
    return [work.runs, work.most, f"{(work.started - last) * 1e3:.0f} ms", f"{(work.ended - last) * 1e3:.0f} ms"]


async def scenarios() -> list[list[object]]:
    """A row for each way to answer the triggers."""
    rows: list[list[object]] = []
    work, tasks = Work(), set[asyncio.Task[None]]()
    each = await scenario(work, lambda: tasks.add(asyncio.create_task(work())), lambda: asyncio.sleep(0))
    rows.append(["a task for each", *each])
    for name, policy in POLICIES.items():
        work = Work()
        async with policy(work) as trigger:
            rows.append([name, *await scenario(work, trigger.trigger, trigger.wait_idle)])
    return rows


def timed(call: Callable[[], object]) -> float:
    """Seconds for one of many calls."""
    started = time.perf_counter()
    for _ in range(BURST):
        call()
    return (time.perf_counter() - started) / BURST


def held(call: Callable[[], object]) -> int:
    """The most bytes that many calls in a row hold."""
    tracemalloc.start()
    try:
        for _ in range(BURST):
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


async def costs() -> list[list[object]]:
    """A row for each way to trigger: nanoseconds, the ratio to doing it by hand, and memory."""

    async def nothing(key: object = None) -> None: ...

    by_hand = Recreate()
    async with (
        Debouncer(nothing, wait=0.05) as debouncer,
        Coalescer(nothing, min_interval=10) as coalescer,
        Keyed(nothing, lambda fn: Debouncer(fn, wait=0.05)) as keyed,
    ):
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "cancel() and call_later()": (by_hand.trigger, by_hand.cancel),
            "Debouncer.trigger()": (debouncer.trigger, debouncer.cancel),
            "Coalescer.trigger()": (coalescer.trigger, coalescer.cancel),
            "Keyed.trigger(key)": (lambda: keyed.trigger("key"), keyed.cancel),
            "Debouncer.trigger_threadsafe()": (debouncer.trigger_threadsafe, debouncer.cancel),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):  # in turns, so that a noisy machine disturbs all of them alike
            for name, (trigger, cancel) in ways.items():
                trigger()
                seconds[name].append(timed(trigger))
                cancel()
                await asyncio.sleep(0)
        memory = {}
        for name, (trigger, cancel) in ways.items():
            trigger()
            memory[name] = held(trigger)
            cancel()
            await asyncio.sleep(0)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    reference = median["cancel() and call_later()"]
    return [
        [name, f"{cost * 1e9:.0f} ns", f"1/{reference / cost:.1f}", f"{memory[name] / 1e6:.2f} MB"]
        for name, cost in median.items()
    ]


def main() -> None:
    """Print both tables."""
    show(
        ["200 triggers, 2 ms apart", "runs", "at once", "last start after the last trigger", "last end"],
        asyncio.run(scenarios()),
    )
    print()
    show(["a trigger", "time", "beside call_later", f"held by {BURST:,} in one turn"], asyncio.run(costs()))


if __name__ == "__main__":
    main()
