"""Scripts of the triggers, of `SingleFlight`, `Snapshot` and `Batcher`, alone and one behind the other."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from loader import (
    BatchCancelledError,
    Batcher,
    Coalescer,
    DataLoader,
    Debouncer,
    Keyed,
    LoaderClosedError,
    LoaderOverloadedError,
    RunCancelledError,
    SingleFlight,
    Snapshot,
)
from tests.explorer.core import values, watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from loader import Trigger
    from tests.explorer.world import World


class Counted:
    """A function that counts its runs, none of which may overlap another."""

    def __init__(self, world: World, seconds: float = 0.01) -> None:
        self.world, self.seconds = world, seconds
        self.started = self.running = self.overlapped = 0

    async def __call__(self) -> str:
        self.started += 1
        self.running += 1
        self.overlapped += self.running > 1
        try:
            await self.world.io(self.seconds)
        finally:
            self.running -= 1
        return "done"


def watch_trigger(world: World, trigger: Trigger[Any], work: Counted) -> None:
    def adds_up() -> bool:
        statistics = trigger.statistics()
        return statistics.received == statistics.runs + statistics.merged + statistics.dropped

    world.expect("nothing pending", lambda: (trigger._pending, trigger._current, trigger._handle), (None, None, None))
    world.expect("overlapping runs", lambda: work.overlapped, 0)
    world.expect("runs", lambda: trigger.statistics().runs >= work.started, True)
    world.expect("sum of triggers", adds_up, True)


@asynccontextmanager
async def closed_at_last(trigger: Trigger[Any]) -> AsyncIterator[None]:
    """Closes the trigger at the end, and sees that a close that is cancelled closes all the same."""
    try:
        async with trigger:
            yield
    finally:
        see_cut(trigger)


def see_cut(trigger: Trigger[Any]) -> None:
    """After closing nothing goes on, unless somebody else is still closing."""
    run = trigger._current
    over = run is None or (run.task is not None and (run.task.done() or bool(run.task.cancelling())))
    assert trigger._closers or (trigger._pending is None and over)


async def use_trigger(world: World, make: Callable[..., Trigger[str]]) -> None:
    work = Counted(world)
    errors: list[Exception] = []
    trigger = make(work, on_error=errors.append)
    watch_trigger(world, trigger, work)

    dropped = (LoaderClosedError, RunCancelledError)
    world.offer("close", trigger.aclose, LoaderClosedError)
    world.offer("close at once", partial(trigger.aclose, flush=False), *dropped)
    world.offer("close in time", partial(trigger.aclose, timeout=0.005), *dropped)
    world.offer("cancel", trigger.cancel, RunCancelledError)
    world.offer("trigger", trigger.trigger)
    world.offer("trigger from a thread", trigger.trigger_threadsafe)
    world.offer("wait until idle", trigger.wait_idle)

    async with closed_at_last(trigger):
        try:
            trigger.trigger()
            world.ask(trigger.request(), "done")
            await asyncio.sleep(0.003)
            world.ask(trigger.request(), "done")
            world.ask(trigger.request(), "done")
            trigger.trigger()
            await asyncio.sleep(0.006)
            trigger.trigger()
            world.ask(trigger.flush())
            world.ask(trigger.wait_idle())
            await world.answered()
            trigger.trigger_threadsafe()
            world.ask(trigger.request(), "done")
            await asyncio.sleep(0.001)
            trigger.trigger()
        except LoaderClosedError:
            assert trigger._closed
    work = Counted(world)
    late = make(work, on_error=errors.append)
    watch_trigger(world, late, work)
    late.trigger()
    try:
        await asyncio.sleep(0.011)
    finally:
        try:
            await late.aclose(timeout=0.005)
        finally:
            see_cut(late)
    world.expect("unheard errors", lambda: [e for e in errors if not isinstance(e, (*world.permitted, *dropped))], [])


async def debouncer(world: World) -> None:
    await use_trigger(world, partial(Debouncer, wait=0.004, max_wait=0.006))


async def leading_debouncer(world: World) -> None:
    await use_trigger(world, partial(Debouncer, wait=0.004, leading=True))


async def coalescer(world: World) -> None:
    await use_trigger(world, Coalescer)


async def paced_coalescer(world: World) -> None:
    await use_trigger(world, partial(Coalescer, min_interval=0.015))


async def keyed(world: World) -> None:
    errors: list[Exception] = []

    async def work(key: str) -> str:
        await world.io()
        return f"done {key}"

    group: Keyed[str, str] = Keyed(work, lambda fn: Coalescer(fn, min_interval=0.012, on_error=errors.append))
    world.expect("keys", lambda: (group._busy, group._resting), ({}, {}))
    world.expect("doorbell", lambda: group._doorbell.rang, False)
    dropped = (LoaderClosedError, RunCancelledError)
    world.offer("close", group.aclose, LoaderClosedError)
    world.offer("close at once", partial(group.aclose, flush=False, timeout=0), *dropped)
    world.offer("cancel", partial(group.cancel, "a"), RunCancelledError)
    world.offer("cancel all", group.cancel, RunCancelledError)
    world.offer("trigger from a thread", partial(group.trigger_threadsafe, "c"))
    async with group:
        try:
            group.trigger("a")
            world.ask(group.request("a"), "done a")
            world.ask(group.request("b"), "done b")
            await asyncio.sleep(0.003)
            world.ask(group.request("a"), "done a")
            world.ask(group.flush("a"))
            world.ask(group.wait_idle())
            await world.answered()
            group.trigger("c")
            world.ask(group.flush())
            await asyncio.sleep(0.001)
            group.trigger("b")
        except LoaderClosedError:
            assert group._closed

    def adds_up() -> bool:
        statistics = group.statistics()
        return statistics.received == statistics.runs + statistics.merged + statistics.dropped

    world.expect("sum of triggers", adds_up, True)
    world.expect("unheard errors", lambda: [e for e in errors if not isinstance(e, (*world.permitted, *dropped))], [])


async def single_flight(world: World) -> None:
    flights = SingleFlight()

    async def fetch(key: str) -> str:
        await world.io()
        return key.upper() if len(key) == 1 else await flights.do(key[1:], fetch, key[1:])

    world.expect("flights", lambda: flights._flights, {})
    world.offer("forget", partial(flights.forget, "a"))
    world.offer("ask", lambda: world.ask(flights.do("a", fetch, "a"), "A"))
    world.ask(flights.do("a", fetch, "a"), "A")
    world.ask(flights.do("a", fetch, "a"), "A")
    world.ask(flights.do("ba", fetch, "ba"), "A")
    await asyncio.sleep(0.005)
    world.ask(flights.do("a", fetch, "a"), "A")
    world.ask(flights.do("ba", fetch, "ba"), "A")
    await world.answered()
    with suppress(TimeoutError):
        async with asyncio.timeout(0.005):
            await flights.do("c", fetch, "c")
    assert await flights.do("c", fetch, "c") == "C"  # while the call that everybody left is ending


class Clock:
    """A load whose values never go back."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.value = 0

    async def __call__(self) -> int:
        self.value += 1
        value = self.value
        await self.world.io()
        return value


async def snapshots(world: World) -> None:
    clock = Clock(world)
    errors: list[Exception] = []
    snapshot = Snapshot(clock, fresh_for=0.05, stale_for=0.05, timeout=1, error_backoff=0.01, on_error=errors.append)
    closed = (LoaderClosedError, RunCancelledError)
    world.offer("close", snapshot.aclose, *closed)
    world.offer("invalidate", snapshot.invalidate)
    world.offer("drop", partial(snapshot.invalidate, serve_stale=False))

    async def read(**limits: float) -> bool:
        return await snapshot.get(**limits) <= clock.value

    async def refresh() -> bool:
        before = clock.value
        return await snapshot.refresh() > before

    world.offer("refresh", lambda: world.ask(refresh(), True, *closed))
    world.offer("read", lambda: world.ask(read(max_age=0), True, *closed))

    async def follow(least: int) -> bool:
        seen: list[int] = []
        changes = snapshot.changes()
        async for value in changes:
            seen.append(value)
            if len(seen) == least:
                break
        await changes.aclose()
        return seen == sorted(set(seen))

    async with snapshot:
        world.ask(read(), True)
        world.ask(read(), True)
        world.ask(follow(3), True)
        world.ask(follow(2), True)
        await asyncio.sleep(0.005)
        world.ask(refresh(), True)
        await asyncio.sleep(0.12)
        world.ask(read(), True)
        world.ask(read(max_age=0), True)
        await world.answered()
        world.ask(follow(9), True)
        world.ask(refresh(), True, *closed)
        await asyncio.sleep(0.001)
    world.expect("followers", lambda: list(snapshot._followers), [])
    world.expect("timer", lambda: snapshot._timer, None)
    world.expect(
        "loading", lambda: (snapshot._loading, snapshot._loads._current, snapshot._loads._pending), (None,) * 3
    )
    world.expect("unheard errors", lambda: [e for e in errors if not isinstance(e, (*world.permitted, *closed))], [])


def watch_batcher(world: World, batcher: Batcher[Any, Any]) -> None:
    world.expect(
        "batcher at rest",
        lambda: (dict(batcher._queue), batcher._running, batcher._alarm, batcher._drains),
        ({}, set(), None, {}),
    )


async def use_batcher(world: World, batcher: Batcher[int, str]) -> None:
    watch_batcher(world, batcher)
    closed = (LoaderClosedError, BatchCancelledError)
    world.offer("close", batcher.aclose, LoaderClosedError)
    world.offer("close at once", partial(batcher.aclose, flush=False), *closed)
    world.offer("flush", batcher.flush)
    full = () if batcher._may_wait else (LoaderOverloadedError,)

    world.offer("submit", lambda: world.ask(batcher.submit_nowait(7), "v7"), *full)
    async with batcher:
        for item in range(3):
            world.ask(batcher.submit(item), f"v{item}", *full)
        world.ask(batcher.submit_many([3, 4, 5]), values([3, 4, 5]), *full)
        await asyncio.sleep(0.004)
        world.ask(batcher.submit(6), "v6", *full)
        world.ask(batcher.flush())
        await world.answered()
        world.ask(batcher.submit_many([8, 9], return_exceptions=True), values([8, 9]), *full)
        await asyncio.sleep(0)


def handler(world: World) -> Callable[[list[int]], Any]:
    async def handle(items: list[int]) -> list[str]:
        await world.io()
        return values(items)

    return handle


async def batches(world: World) -> None:
    await use_batcher(world, Batcher(handler(world), max_batch_size=2, max_pending=3, timeout=1))


async def rejecting_batcher(world: World) -> None:
    made = Batcher(handler(world), window=0.003, max_pending=3, overflow="reject", max_concurrent_batches=2)
    await use_batcher(world, made)


async def batcher_in_threads(world: World) -> None:
    await use_batcher(world, Batcher(values, max_batch_size=3, window=0.002, timeout=1))


async def one_behind_the_other(world: World) -> None:
    """A snapshot of a flight of a batcher of a loader, and a coalescer that waits for all of it."""

    async def load(keys: list[int]) -> list[str]:
        await world.io(0.002)
        return values(keys)

    loader = DataLoader(load, timeout=1, abandoned="cancel")
    watch(world, loader)
    flights = SingleFlight()
    errors: list[Exception] = []

    async def handle(items: list[int]) -> list[str]:
        return list(await loader.load_many(items))

    async def summary() -> list[str]:
        return [*await snapshot.get(max_age=0), await batcher.submit(4)]

    async with (
        Batcher(handle, max_batch_size=2, timeout=2) as batcher,
        Snapshot(
            lambda: flights.do("all", batcher.submit_many, [1, 2, 3]), fresh_for=0.01, timeout=3, on_error=errors.append
        ) as snapshot,
        Coalescer(summary, on_error=errors.append) as coalescer,
    ):
        watch_batcher(world, batcher)
        world.expect("flights", lambda: flights._flights, {})
        closed = (LoaderClosedError, RunCancelledError)
        world.offer("close loader", loader.aclose, LoaderClosedError)
        world.offer("close batcher", batcher.aclose, LoaderClosedError)
        world.offer("close snapshot", snapshot.aclose, *closed)
        world.offer("close coalescer", coalescer.aclose, LoaderClosedError)
        world.offer("forget", partial(flights.forget, "all"))
        world.ask(coalescer.request(), values([1, 2, 3, 4]))
        world.ask(snapshot.get(), values([1, 2, 3]))
        world.ask(flights.do("all", batcher.submit_many, [1, 2, 3]), values([1, 2, 3]))
        await asyncio.sleep(0.001)
        world.ask(batcher.submit(1), "v1")
        world.ask(coalescer.request(), values([1, 2, 3, 4]))
        await world.answered()
    await loader.aclose()
    world.expect("unheard errors", lambda: [e for e in errors if not isinstance(e, world.permitted)], [])


SCRIPTS = (
    debouncer,
    leading_debouncer,
    coalescer,
    paced_coalescer,
    keyed,
    single_flight,
    snapshots,
    batches,
    rejecting_batcher,
    batcher_in_threads,
    one_behind_the_other,
)
