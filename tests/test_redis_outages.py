"""The server is paused, killed, flushed, started again or replaced by rubbish while it is used: nobody notices."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from loader import Loaders, dataloader
from loader.redis import BreakerState, RedisBus, RedisCache
from loader.second_level import drain, statistics
from tests.redis_servers import Server, server, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["server"]

pytestmark = pytest.mark.real_time

TIMEOUT = 0.5
PATIENCE = 3.0
"""Far more than a request may take: a timeout for asking and one for waiting, on a machine with other work."""


class Service:
    """Rows that change, requests that read them, and a check of each answer."""

    def __init__(self, cache: RedisCache, bus: RedisBus) -> None:
        self.cache, self.bus = cache, bus
        self.rows = dict.fromkeys(range(10), 0)
        self.announced = dict(self.rows)
        self.answers = 0
        self.stop = False
        service = self

        class App(Loaders):
            @dataloader(second_level=cache, fresh_for=60)
            async def rows(self, keys: list[int]) -> list[int]:
                await asyncio.sleep(0.001)
                return [service.rows[key] for key in keys]

        self.app = App

    async def read(self) -> None:
        """A request: what it gets is no older than what had been announced when it began."""
        least = dict(self.announced)
        async with asyncio.timeout(PATIENCE), self.app() as loaders:
            values = await loaders.rows.load_many(self.rows)
        assert [value >= at_least for value, at_least in zip(values, least.values(), strict=True)] == [True] * 10
        self.answers += 1

    async def change(self, key: int) -> None:
        version = self.rows[key] = self.rows[key] + 1
        async with asyncio.timeout(PATIENCE):
            await self.bus.invalidate(self.app().rows, [key])
        self.announced[key] = version

    async def reading(self) -> None:
        while not self.stop:
            await self.read()
            await asyncio.sleep(0.005)

    async def changing(self) -> None:
        key = 0
        while not self.stop:
            key = (key + 1) % 10
            await self.change(key)
            await asyncio.sleep(0.02)

    async def some(self, answers: int = 20) -> None:
        """Let so many requests be answered."""
        goal = self.answers + answers
        await until(lambda: self.answers >= goal)


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Service]:
    options: dict[str, Any] = {"prefix": "test", "timeout": TIMEOUT, "retry_after": 0.1}
    async with RedisCache.from_url(server.url, **options) as cache, RedisBus.from_url(server.url, **options) as bus:
        service = Service(cache, bus)
        async with asyncio.TaskGroup() as tasks:
            for work in (service.reading, service.reading, service.reading, service.changing):
                tasks.create_task(work())
            try:
                await until(lambda: statistics(cache).hits > 0)
                yield service
            finally:
                service.stop = True
        await drain(cache)


async def is_used_again(service: Service) -> None:
    """Wait until the cache answers again."""
    hits = statistics(service.cache).hits
    await until(lambda: statistics(service.cache).hits > hits + 20)
    await until(lambda: service.cache.statistics().owed == 0)
    await until(lambda: service.cache.statistics().breaker is BreakerState.CLOSED)


async def test_the_server_is_paused(server: Server) -> None:
    async with serving(server) as service:
        server.pause()
        await until(lambda: service.cache.statistics().breaker is BreakerState.OPEN)
        await service.some()
        server.resume()
        await is_used_again(service)


async def test_the_server_is_killed_and_started_again_empty(server: Server) -> None:
    async with serving(server) as service:
        server.kill()
        await until(lambda: service.cache.statistics().opened)
        await service.some()
        server.start()
        await is_used_again(service)
        await until(lambda: service.bus.statistics().connected)


async def test_the_server_is_flushed(server: Server) -> None:
    async with serving(server) as service:
        with server.client() as client:
            for _ in range(10):
                client.flushall()
                client.script_flush()
                await service.some(3)
        await is_used_again(service)
        assert service.cache.statistics().opened == 0


async def test_the_server_cuts_all_connections(server: Server) -> None:
    async with serving(server) as service:
        with server.client() as client:
            for _ in range(5):
                client.client_kill_filter(_type="normal", skipme=True)
                client.client_kill_filter(_type="pubsub")
                await service.some(3)
        await is_used_again(service)


@pytest.mark.parametrize(
    "rubbish",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$-7\r\n", b"*3\r\n:1\r\n:2\r\n:3\r\n", b"+OK\r\n" * 50, b"", b"\0"],
)
async def test_something_else_answers_in_its_place(server: Server, rubbish: bytes) -> None:
    connections: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        with suppress(ConnectionError):
            while await reader.read(1000) and rubbish:
                writer.write(rubbish)
        writer.close()

    async with serving(server) as service:
        server.kill()
        impostor = await asyncio.start_server(answer, "127.0.0.1", server.port)
        await until(lambda: service.cache.statistics().opened)
        await service.some(10)
        impostor.close()
        server.start()  # while connections to the other are still open, and may be used
        await is_used_again(service)
        for connection in connections:
            connection.close()
