"""Scripts of the operators on streams: values that come fast, slowly and all at once, and consumers that leave."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from loader import LoaderClosedError
from loader.streams import conflate, debounce, throttle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from loader.streams._flow import Flow
    from tests.explorer.world import World

    Operator = conflate[int] | debounce[int] | throttle[int]

PAUSES = (0.001, 0.001, 0.008, 0.0, 0.0, 0.003, 0.02)


class Source:
    """Numbers that count up, with pauses; how many sources are open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.opened = self.closed = 0
        world.expect("open sources", lambda: self.opened - self.closed, 0)

    async def __call__(self, pauses: tuple[float, ...] = PAUSES) -> AsyncIterator[int]:
        self.opened += 1
        try:
            for number, pause in enumerate(pauses):
                if pause:
                    await self.world.io(pause)
                yield number
        finally:
            try:
                await self.world.io(0.002)
            finally:
                self.closed += 1


class Consumer:
    """Takes values until an operator ends, and knows whether it got what it had to."""

    def __init__(self, operator: Operator, *, pause: float = 0.0) -> None:
        self._operator = operator
        self._pause = pause
        self._closed = False

    async def consume(self) -> bool:
        """Whether the values of each kind went up, to the last one, unless the operator was closed."""
        seen = []
        async with self._operator:
            async for value in self._operator:
                seen.append(value)
                await asyncio.sleep(self._pause)
        kinds = [[value for value in seen if value % 2 == kind] for kind in (0, 1)]
        upwards = all(values == sorted(set(values)) for values in kinds)
        return upwards and (self._closed or len(PAUSES) - 1 in seen)

    async def close(self) -> None:
        """Close the operator while it is being consumed."""
        self._closed = True
        await self._operator.aclose()


async def use_operator(world: World, make: Callable[[AsyncIterator[int]], Operator]) -> None:
    source = Source(world)
    flows: list[Flow[int]] = []

    def made(pauses: tuple[float, ...] = PAUSES) -> Operator:
        operator = make(source(pauses))
        flows.append(operator._flow)
        return operator

    world.expect("timers", lambda: [flow for flow in flows if flow.timer or flow.held], [])
    consumer = Consumer(made())
    world.offer("close", consumer.close)
    world.ask(consumer.consume(), True)
    world.ask(Consumer(made(), pause=0.005).consume(), True)

    async def leaves(seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await Consumer(made((0.001, 30.0))).consume()

    async def breaks_off() -> None:
        async for _ in made():
            break

    async def takes_none() -> None:
        operator = made()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.0005):
                await anext(operator)
        with suppress(LoaderClosedError):
            await anext(operator)

    began = world.loop.time()
    world.ask(leaves(0.004), None, TimeoutError)
    world.ask(breaks_off())
    await world.answered()
    assert world.permitted or world.loop.time() - began < 1  # nobody waited for the source to go on by itself
    world.ask(takes_none())
    await world.answered()


async def debounced(world: World) -> None:
    await use_operator(world, lambda source: debounce(source, wait=0.002, max_wait=0.006))


async def throttled(world: World) -> None:
    await use_operator(world, lambda source: throttle(source, interval=0.004))


async def conflated(world: World) -> None:
    await use_operator(world, lambda source: conflate(source, key=lambda value: value % 2))


async def ready_at_once(world: World) -> None:
    """A source that never waits, and one operator behind the other."""
    source = Source(world)

    async def last(operator: Operator) -> int:
        values: list[int] = []
        async with operator:
            async for value in operator:
                values.append(value)
        return values[-1]

    world.ask(last(conflate(source((0.0,) * 130))), 129)
    world.ask(last(throttle(conflate(source()), interval=0.003)), len(PAUSES) - 1)
    await world.answered()


SCRIPTS = (debounced, throttled, conflated, ready_at_once)
