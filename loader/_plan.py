"""What batching would do to a stream of calls: the arithmetic and the simulation behind `python -m loader plan`."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapreplace
from random import Random
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ARRIVALS = 20_000
"""How many arrivals are simulated: the mean latencies are then good to a few per cent."""


LEAST, MOST = 1e-9, 1e9
"""Between these a rate, a cost and a window make sense: farther out, sums of floats lose their parts, or overflow."""


@final
@dataclass(frozen=True, slots=True)
class Backend:
    """What one call costs, and how much the backend does at once. Times are in seconds.

    Attributes:
        call_cost: The part of a call's time that does not depend on its items.
        item_cost: The part that each item adds.
        concurrency: How many calls may run at once: the `max_concurrent_batches` of a `Batcher`.
    """

    call_cost: float
    item_cost: float
    concurrency: int = 1

    def duration(self, items: float) -> float:
        """How long a call with that many items takes."""
        return self.call_cost + self.item_cost * items

    def capacity(self, items: int) -> float:
        """How many items a second can be served, at most, in calls of so many items."""
        duration = self.duration(items)
        return self.concurrency * items / duration if duration else float("inf")


@final
@dataclass(frozen=True, slots=True)
class Policy:
    """When a batch leaves.

    Attributes:
        name: What tables call it.
        max_batch_size: The most items of one batch; 1 is no batching.
        window: How long a batch waits for company after its first item; 0 is idle dispatch.
    """

    name: str
    max_batch_size: int
    window: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class Forecast:
    """What the formulas say before any simulation; they know no queue in front of the backend.

    Attributes:
        fill_time: The seconds until a batch is full, `(n - 1) / rate`.
        wait: The seconds that the first item of a batch waits: the fill time, or the window if that is shorter.
        batch_size: The items of a batch: all `n`, or those that arrive within the window.
    """

    fill_time: float
    wait: float
    batch_size: float


@final
@dataclass(frozen=True, slots=True)
class Result:
    """What a policy did with a stream of arrivals.

    Attributes:
        policy: The policy.
        batch_size: The mean number of items in a call.
        added_mean: The mean time from an item's arrival until its batch left, in seconds.
        added_worst: The longest such time.
        answer_mean: The mean time from an item's arrival until its answer, in seconds.
        calls_per_second: How often the backend was called.
        utilisation: The part of the backend's time that calls took, 0 to 1.
        overloaded: Whether more arrives than the policy can ever send, so that the times grow without end.
    """

    policy: Policy
    batch_size: float
    added_mean: float
    added_worst: float
    answer_mean: float
    calls_per_second: float
    utilisation: float
    overloaded: bool


def forecast(rate: float, max_batch_size: int, window: float) -> Forecast:
    """The planned figures of one window, for regular arrivals.

    Args:
        rate: Arrivals a second.
        max_batch_size: The most items of one batch.
        window: In seconds.
    """
    fill_time = (max_batch_size - 1) / rate
    if fill_time <= window:
        return Forecast(fill_time, fill_time, max_batch_size)
    return Forecast(fill_time, window, 1 + rate * window)


def poisson(rate: float, seed: int, count: int = ARRIVALS) -> list[float]:
    """Times of `count` arrivals that know nothing of each other, `rate` a second on average."""
    random = Random(seed)  # noqa: S311  # arrivals, not secrets
    now, times = 0.0, []
    for _ in range(count):
        now += random.expovariate(rate)
        times.append(now)
    return times


def simulate(arrivals: Sequence[float], policy: Policy, backend: Backend) -> Result:
    """Send `arrivals` through a batcher with this policy in front of this backend.

    A batch leaves once it is full or the window of its first item is over, but not before a call may run; it takes
    whoever has come by then, in order. That is all that happens, so one step of the simulation is one batch.

    Args:
        arrivals: When items come, in seconds, in ascending order, at least one.
        policy: When a batch leaves.
        backend: What a call costs.
    """
    free = [arrivals[0]] * backend.concurrency  # a heap: when each of the slots is free again
    total = len(arrivals)
    head = batches = 0
    busy = added = answered = worst = 0.0
    end = arrivals[-1]
    while head < total:
        due = arrivals[head] + policy.window
        full = head + policy.max_batch_size - 1
        if full < total:
            due = min(due, arrivals[full])
        left = max(due, free[0])
        tail = head
        while tail < total and tail - head < policy.max_batch_size and arrivals[tail] <= left:
            added += left - arrivals[tail]
            tail += 1
        duration = backend.duration(tail - head)
        heapreplace(free, left + duration)
        worst = max(worst, left - arrivals[head])
        busy += duration
        answered += duration * (tail - head)
        end = max(end, left + duration)
        batches += 1
        head = tail
    span = end - arrivals[0]
    return Result(
        policy=policy,
        batch_size=total / batches,
        added_mean=added / total,
        added_worst=worst,
        answer_mean=(added + answered) / total,
        calls_per_second=batches / span if span else 0.0,
        utilisation=busy / (span * backend.concurrency) if span else 0.0,
        overloaded=mean_rate(arrivals) >= backend.capacity(policy.max_batch_size),
    )


def mean_rate(arrivals: Sequence[float]) -> float:
    """Arrivals a second, 0 if all came at once."""
    span = arrivals[-1] - arrivals[0]
    return (len(arrivals) - 1) / span if span else 0.0


def policies(max_batch_size: int, window: float) -> list[Policy]:
    """No batching, idle dispatch, and a row of windows around `window`."""
    return [
        Policy("none", 1),
        Policy("idle", max_batch_size),
        *(Policy("window", max_batch_size, window * factor) for factor in (0.25, 0.5, 1, 2, 4)),
    ]


def advice(results: Sequence[Result], backend: Backend, rate: float, window: float) -> str:
    """One sentence: what to choose, or why batching does not pay.

    Args:
        results: Those of `policies`, in that order.
        backend: What a call costs.
        rate: Arrivals a second.
        window: The window that the user asked about, in seconds.
    """
    none, idle, *windows = results
    size = idle.policy.max_batch_size
    alone, batched = backend.duration(1), backend.duration(size) / size
    saving = 1 - batched / alone if alone else 0.0
    if idle.overloaded:
        return (
            f"Nothing keeps up: full batches of {size} serve {backend.capacity(size):.4g} items/s and "
            f"{rate:.4g} arrive; allow at least {int(rate * batched) + 1} concurrent batches, "
            "or larger ones, or make the items cheaper."
        )
    if saving < 0.1:
        cure = " (what you need is more concurrency: one call per item does not keep up)" if none.overloaded else ""
        return (
            "Batching does not pay: the cost is per item, not per call, and even full batches of "
            f"{size} would save only {saving:.0%} of the backend's time{cure}."
        )
    chosen = next(result for result in windows if result.policy.window == window)
    trade = (
        f"a window of {seconds(window)} would take the backend from {idle.utilisation:.0%} to "
        f"{chosen.utilisation:.0%} busy for {seconds(chosen.answer_mean - idle.answer_mean)} more until the answer"
    )
    worth = idle.utilisation - chosen.utilisation >= 0.05
    best = min(windows, key=lambda result: result.answer_mean)
    if best.answer_mean < 0.9 * idle.answer_mean:
        return (
            f"Choose a window of {seconds(best.policy.window)}: answers come after {seconds(best.answer_mean)} on "
            f"average, and after {seconds(idle.answer_mean)} with idle dispatch, whose small batches keep the "
            "backend from larger ones."
        )
    if none.overloaded:
        return (
            f"Choose idle dispatch (no window): one call per item does not keep up, and idle dispatch adds "
            f"{seconds(idle.added_mean)} on average" + (f"; {trade}." if worth else ".")
        )
    if worth:
        return (
            f"Choose idle dispatch (no window) if latency counts, which adds {seconds(idle.added_mean)} on average; "
            f"{trade}, which pays only if the backend's time is what you lack."
        )
    return (
        f"Batching does not pay at this rate: one call per item keeps the backend only {none.utilisation:.0%} busy "
        f"and a window of {seconds(window)} would save little for {seconds(chosen.answer_mean - idle.answer_mean)} "
        "more until the answer; idle dispatch costs nothing, and batches once the load grows."
    )


def seconds(value: float) -> str:
    """A time for people: in milliseconds below one second."""
    return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"


def read_trace(lines: Iterable[str]) -> list[float]:
    """Arrival times, one number of seconds a line; empty lines and what follows a # do not count.

    Raises:
        ValueError: If a line is no finite number or earlier than the one before, or if fewer than two are left. The
            message names the line.
    """
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            time = float(text)
        except ValueError:
            raise ValueError(f"line {number}: expected a number of seconds, found {text[:40]!r}") from None
        if not abs(time) < float("inf"):
            raise ValueError(f"line {number}: a time must be finite, not {text[:40]}")
        if abs(time) > MOST * 10:
            raise ValueError(f"line {number}: {time:g} seconds are too many; is the file in another unit?")
        if times and time < times[-1]:
            raise ValueError(f"line {number}: {text[:40]} is earlier than the arrival before it, {times[-1]:g}")
        times.append(time)
    if len(times) < 2 or times[0] == times[-1]:
        raise ValueError("expected at least two arrivals at different times")
    if (len(times) - 1) > MOST * (times[-1] - times[0]):
        raise ValueError(f"more than {MOST:g} arrivals a second; are the times in seconds?")
    return times
