"""RedisBus and RedisCache with clients that stand for a server, on a virtual clock: what a real one does by chance."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import ConnectionPool, Redis

from loader.redis import BreakerState, RedisBus, RedisCache
from loader.second_level import Found, Namespace


class Silent(Redis):
    """A server that takes what it is sent and says nothing but that one may listen."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[float, str]] = []

    def note(self, what: str) -> None:
        self.log.append((asyncio.get_running_loop().time(), what))

    def pubsub(self, **_: Any) -> Any:
        return Connection(self)


class Connection:
    def __init__(self, server: Silent) -> None:
        self.server = server
        self.messages = [{"type": "subscribe"}]

    async def subscribe(self, channel: str) -> None:
        self.server.note(f"subscribe {channel}")

    async def get_message(self, timeout: float) -> dict[str, Any] | None:  # noqa: ASYNC109  # as the client has it
        if self.messages:
            return self.messages.pop()
        await asyncio.sleep(timeout)
        return None

    async def ping(self) -> None:
        self.server.note("ping")
        if len(self.server.log) == 2:
            self.messages.append({"type": "pong"})

    async def aclose(self) -> None:
        self.server.note("close")


async def test_a_server_that_says_nothing_is_asked_and_then_given_up() -> None:
    server = Silent()
    async with RedisBus(server, heartbeat=5, retry_after=3) as bus:
        assert not bus.statistics().connected
        await asyncio.sleep(19)
        assert server.log == [
            (0, "subscribe loader:changes"),
            (5, "ping"),  # which is answered
            (10, "ping"),  # which is not
            (15, "close"),
            (18, "subscribe loader:changes"),
        ]
        assert "silent for 10 seconds" in str(bus.statistics().last_error)
        assert bus.statistics().connections == 2


class Pool(ConnectionPool):
    disconnected = 0

    async def disconnect(self, inuse_connections: bool = True) -> None:
        self.disconnected += 1


class Impostor(Redis):
    """A server that answers every script with the same."""

    def __init__(self, answer: Any) -> None:
        self.pool = Pool()
        super().__init__(connection_pool=self.pool)
        self.answer = answer

    async def evalsha(self, *_: Any) -> Any:
        return self.answer


async def test_after_an_answer_to_something_else_the_connections_are_not_used_again() -> None:
    for answer in (b"OK", [], [b"the token of another"], [None, None]):
        server = Impostor(answer)
        async with RedisCache(server) as cache:
            assert await cache.get_many(Namespace("rows"), ["1"]) == Found(busy=[])
            assert server.pool.disconnected == 1
            assert cache.statistics().breaker is BreakerState.OPEN
            assert "the server answered something else" in str(cache.statistics().last_error)
