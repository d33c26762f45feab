"""The clients that calls go through."""

from __future__ import annotations

from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


def client_from(url: str, *, max_connections: int, timeout: float) -> Redis:
    """A client that gives up in time and never tries twice."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


def check_client(client: Any) -> None:
    """Refuse a client that makes text of what it reads, since values are bytes.

    Raises:
        ValueError: If it does.
    """
    if client.get_encoder().decode_responses:
        raise ValueError(f"{client!r} was made with decode_responses=True: give a client that leaves bytes as they are")
