"""Redis for tests: a part of the server that is there, or a server of a test's own, to stop, kill and start again.

Where no server answers, or none can be started, the test is skipped and says why; on a continuous-integration machine
(`CI=true`) it fails instead: there a missing server is a mistake, not a circumstance.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

URL = "redis://127.0.0.1:6379/0"
PATIENCE = 10


@dataclass(frozen=True)
class Place:
    """A server, and a prefix that nothing else there has."""

    url: str
    prefix: str


def unavailable(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def place() -> Iterator[Place]:
    """A part of the server that is there, emptied afterwards."""
    prefix = f"test-{uuid4().hex}"
    with redis.Redis.from_url(URL, socket_timeout=PATIENCE) as client:
        try:
            client.ping()
        except redis.RedisError as error:
            unavailable(f"no Redis at {URL}: {error!r}")
        try:
            yield Place(URL, prefix)
        finally:
            for key in client.scan_iter(f"*{prefix}*", count=1000):
                client.delete(key)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so that other processes bring about."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # nothing here tells when
            await asyncio.sleep(0.01)


class Server:
    """A Redis server of our own, on a free port; `url` stays the same when it is started again."""

    def __init__(self, folder: str, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.command = [
            *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", folder),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", *options),
        ]
        self.start()

    def start(self) -> None:
        self.process = self._spawn()
        for _ in range(PATIENCE * 100):
            if self.process.poll() is not None:  # something else has its port for a moment
                self.process = self._spawn()
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                time.sleep(0.01)
        raise AssertionError("the server does not answer")

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def client(self) -> redis.Redis:
        """A client that waits, but never tries twice: for what the test itself does with the server."""
        return redis.Redis.from_url(self.url, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0))

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own."""
    yield from own_server()


def own_server(*options: str) -> Iterator[Server]:
    if shutil.which("redis-server") is None:
        unavailable("there is no redis-server to start")
    with tempfile.TemporaryDirectory(prefix="redis") as folder:
        server = Server(str(Path(folder)), *options)
        try:
            yield server
        finally:
            server.kill()
