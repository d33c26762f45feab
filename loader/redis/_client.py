"""The clients that calls go through."""

from __future__ import annotations

from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


def client_from(url: str, *, max_connections: int, timeout: float) -> Redis:
    """A client that gives up in time and never tries twice.

    Raises:
        TypeError: If the address is no string.
    """
    check_string("from_url()", url)
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


def check_client(client: Any, *kinds: type[Any]) -> None:
    """Refuse what is no client of these kinds, and one that makes text of what it reads, since values are bytes.

    Raises:
        TypeError: If it is none.
        ValueError: If it makes text.
    """
    if not isinstance(client, kinds):
        expected = " or ".join(f"redis.asyncio.{kind.__name__}" for kind in kinds)
        raise TypeError(f"the client has to be a {expected}, not {client!r}; from_url(...) takes an address")
    if client.get_encoder().decode_responses:
        raise ValueError(f"{client!r} was made with decode_responses=True: give a client that leaves bytes as they are")


def check_numbers(**numbers: object) -> None:
    """Refuse what is no number.

    Raises:
        TypeError: If one is none.
    """
    for name, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} takes a number, not {value!r}")


def check_string(name: str, value: object) -> None:
    """Refuse what is no string.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} takes a string, not {value!r}")
