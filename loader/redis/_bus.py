"""RedisBus: every worker hears what another one changed."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final
from urllib.parse import quote
from uuid import uuid4

from redis.asyncio import Redis

from loader import Debouncer, Keyed, LoaderClosedError
from loader.redis._client import check_client, check_numbers, check_string, client_from
from loader.redis._following import Follower, Following
from loader.redis._guard import BreakerState, Guarded, end
from loader.redis._message import decode, encode
from loader.second_level import Change, invalidate, invalidate_tags, receive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from redis.asyncio.client import PubSub

    from loader import DataLoader, Snapshot
    from loader.redis._following import About, Action

_log = logging.getLogger("loader")

_ANYTHING = Change(anything=True)


@final
@dataclass(frozen=True, slots=True)
class RedisBusStatistics:
    """What passed between this process and the others.

    Attributes:
        connected: Whether it hears the others at present.
        breaker: Whether it speaks to the server at present.
        connections: How often it began to hear, each of which meant that anything may have changed.
        sent: How many changes it announced.
        unsent: How many it could not announce; the others hear that anything may have changed once it can.
        received: How many changes of others it heard of.
        unreadable: How many messages were none of this bus; each meant that anything may have changed.
        last_error: What went wrong last, None if nothing did.
    """

    connected: bool
    breaker: BreakerState
    connections: int
    sent: int
    unsent: int
    received: int
    unreadable: int
    last_error: Exception | None


@final
class RedisBus(Guarded):
    """Tells all workers what one of them changed, by Redis' publish and subscribe.

    `invalidate` after a commit deletes keys from the second-level cache and from the open scopes here, and tells the
    other workers, who clear their open scopes, refresh their snapshots and wake who follows. A burst of changes is one
    refresh. A worker that begins to hear, for the first time or again, takes it that anything may have changed.

    A message is delivered at most once: one that is lost leaves other workers' open scopes and snapshots as old as
    they get by themselves, and the second-level cache as it is, since whoever changed something has deleted it there.
    It raises no error of the server's. All times are in seconds.

    Args:
        client: A client of redis-py's asyncio, with `decode_responses=False`; it stays the caller's to close. Better:
            `RedisBus.from_url`.
        prefix: The name of its channel: all workers that share a cache need the same.
        timeout: How long announcing may take.
        retry_after: How long a server that failed is left alone.
        heartbeat: How long the server may be silent before it is asked whether it is there.
        wait: How long changes must pause before who follows them is told.
        max_wait: How long they may go on before.

    Raises:
        TypeError: If the client is none of redis-py's asyncio, a time no number, or `prefix` no string.
        ValueError: If a time makes no sense, or the client decodes responses.

    Examples:
        ```python
        async with RedisBus.from_url("redis://127.0.0.1:6379/0", prefix="shop") as bus:
            bus.refresh(statistics, "orders")
            ...
            await session.commit()
            await bus.invalidate(loaders.products, [product.id])
        ```
    """

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str = "loader",
        timeout: float = 0.25,
        retry_after: float = 1.0,
        heartbeat: float = 5.0,
        wait: float = 0.05,
        max_wait: float = 0.5,
    ) -> None:
        check_client(client, Redis)
        check_string("prefix", prefix)
        check_numbers(timeout=timeout, retry_after=retry_after, heartbeat=heartbeat, wait=wait, max_wait=max_wait)
        for name, value in (("timeout", timeout), ("retry_after", retry_after), ("heartbeat", heartbeat)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, not {value!r}")
        super().__init__(client, timeout=timeout, retry_after=retry_after)
        self._channel = f"{quote(prefix, safe='')}:changes"
        self._retry_after = retry_after
        self._heartbeat = heartbeat
        self._sender = uuid4().hex
        self._followers: set[Follower] = set()
        self._streams: set[Following] = set()
        self._telling: Keyed[Follower, None] = Keyed(
            Follower.act, lambda act: Debouncer(act, wait=wait, max_wait=max_wait), name="followers of changes"
        )
        self._listener: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self._warned = False  # that it does not hear
        self._unheard = 0  # changes that the others could not be told of
        self._connections = self._sent = self._unsent = self._received = self._unreadable = 0
        self._last_error: Exception | None = None

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 0.25, **options: Any) -> Self:
        """A bus with a client of its own, which `aclose` closes.

        Args:
            url: The server, as in `redis://127.0.0.1:6379/0`.
            timeout: How long announcing may take.
            options: As for the class.
        """
        bus = cls(client_from(url, max_connections=10, timeout=timeout), timeout=timeout, **options)
        bus._owns_client = True
        return bus

    async def start(self, *, wait: float = 0.0) -> bool:
        """Begin to hear; `async with` does it too.

        Args:
            wait: How long to wait until it does.

        Returns:
            Whether it hears.

        Raises:
            LoaderClosedError: If it was closed.
        """
        self._begin()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._listening.wait()
        return self._listening.is_set()

    def _begin(self) -> None:
        self._refuse_if_closed()
        if self._listener is None:
            loop = asyncio.get_running_loop()
            self._listener = Context().run(loop.create_task, self._listen())

    # -- speaking ------------------------------------------------------------------------------------------------

    async def invalidate(self, loader: DataLoader[Any, Any], keys: Iterable[Any] | None = None) -> bool:
        """Say that values of a loader changed: call it after the change was committed.

        When it returns, nothing older is read here, and nothing older can be written to the second-level cache. The
        other workers hear of it a moment later.

        Args:
            loader: The loader, with whatever parameters: those of the call do not count.
            keys: The keys, of the tenant that the loader belongs to; None for all keys of all tenants.

        Returns:
            Whether the others were told. If not, they are, as soon as the server is back.

        Raises:
            LoaderClosedError: If the bus was closed. What is said to be done here is done.
            TypeError: If it is no loader of an instance, or `keys` is a string or not iterable.
            ValueError: If the loader has no second-level cache.
            SecondLevelError: If a key has no text.

        Cancellation: The others may or may not have been told.
        """
        return await self._announce(await invalidate(loader, keys))

    async def invalidate_tags(self, *tags: str) -> bool:
        """Say that something changed which loaders were declared with, or which somebody follows, as `invalidate`."""
        return await self._announce(await invalidate_tags(*tags))

    async def _announce(self, change: Change) -> bool:
        self._refuse_if_closed()
        self._wake(change)
        try:
            told = await self._guard.call(partial(self._publish, change))
        except asyncio.CancelledError:
            self._unheard += 1
            self._guard.suspect()
            raise
        if told is None:
            self._unsent += 1
            self._unheard += 1
            self._guard.look_again()
        return told is not None

    async def _publish(self, change: Change) -> bool:
        missed = self._unheard
        message = encode(self._sender, change | _ANYTHING if missed else change)
        heard = await self._client.publish(self._channel, message)
        if not isinstance(heard, int):
            raise ConnectionError(f"the server answered something else: {heard!r:.100}")
        self._sent += 1
        self._unheard -= missed
        return True

    def _is_owing(self) -> bool:
        return self._unheard > 0

    async def _make_up(self) -> None:
        if self._unheard:
            await self._publish(_ANYTHING)
        else:
            await self._client.ping()

    # -- following -----------------------------------------------------------------------------------------------

    def on_change(self, action: Action, *about: About) -> Callable[[], None]:
        """Have `action` called with what changed, here or elsewhere, once for a burst of changes.

        Args:
            action: An async or a plain function of a `loader.second_level.Change`. What it raises goes to the loop's
                exception handler.
            about: Tags, and loaders: changes of all loaders that have the name and the tenant of these.

        Returns:
            What ends it.

        Raises:
            LoaderClosedError: If the bus was closed.
        """
        self._refuse_if_closed()
        follower = Follower(action, about)
        self._followers.add(follower)

        def stop() -> None:
            self._followers.discard(follower)
            self._telling.cancel(follower)

        return stop

    def refresh(self, snapshot: Snapshot[Any], *about: About) -> Callable[[], None]:
        """Have a snapshot invalidated by changes, as `on_change`; it serves its old value until the new one is there.

        Returns:
            What ends it.
        """
        return self.on_change(lambda _: snapshot.invalidate(), *about)

    def changes(self, *about: About) -> Following:
        """What changes of tags and loaders, as an async iterator for a subscription, which closes it.

        Raises:
            LoaderClosedError: If the bus was closed, or was not opened yet: nothing would ever come.
        """
        if self._listener is None:
            self._refuse_if_closed()
            raise LoaderClosedError(
                f"{self!r} does not hear anything yet: enter it with `async with`, or await start()"
            )
        following = Following(lambda: stop())  # noqa: PLW0108  # it is made in the next line
        ends = self.on_change(following._tell, *about)
        self._streams.add(following)

        def stop() -> None:
            self._streams.discard(following)
            ends()

        return following

    def _wake(self, change: Change) -> None:
        for follower in self._followers:
            if follower.concerns(change):
                self._telling.trigger(follower)

    # -- hearing -------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self._client.pubsub()) as pubsub:
                    async with asyncio.timeout(self._guard.timeout):
                        await pubsub.subscribe(self._channel)
                    await self._hear(pubsub)
            except Exception as error:  # noqa: BLE001  # a server that is none can make a client raise anything
                self._last_error = error
                if not self._warned:
                    self._warned = True
                    _log.warning("%s: changes are not heard until the server is back: %r", self._channel, error)
            finally:
                self._listening.clear()
            await asyncio.sleep(self._retry_after)

    async def _hear(self, pubsub: PubSub) -> None:
        """Take messages until the connection is lost, or the server does not answer."""
        asked = False
        while True:
            async with asyncio.timeout(2 * self._heartbeat):
                message = await pubsub.get_message(timeout=self._heartbeat)
            asked = await self._heard(message, pubsub, asked=asked)

    async def _heard(self, message: dict[str, Any] | None, pubsub: PubSub, *, asked: bool) -> bool:
        """Act on a message, or on a heartbeat without one; whether the server was now asked if it is there."""
        if message is None:
            if asked:
                raise TimeoutError(f"the server was silent for {2 * self._heartbeat:g} seconds")
            await pubsub.ping()
            return True
        if message["type"] == "subscribe":
            # Also when the client has connected again by itself: what was said meanwhile is lost.
            self._connections += 1
            self._warned = False
            self._listening.set()
            await self._take(_ANYTHING)
        elif message["type"] == "message":
            await self._read(message["data"])
        return False

    async def _read(self, data: bytes) -> None:
        try:
            sender, change = decode(data)
        except Exception as error:  # noqa: BLE001  # whoever has published what
            self._unreadable += 1
            self._last_error = error
            sender, change = "", _ANYTHING
        if sender != self._sender:
            self._received += 1
            await self._take(change)

    async def _take(self, change: Change) -> None:
        await receive(change)
        self._wake(change)

    # -- the end -------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Hear and say no more, end all `changes()`, and drop what who follows was to be told.

        It cannot be opened again.

        Cancellation: It may have to be called again.
        """
        self._closed = True
        if self._listener is not None:
            await end(self._listener)
        for stream in self._streams:
            stream._end()
        self._followers.clear()
        await self._telling.aclose(flush=False)
        await self._let_go()

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    def statistics(self) -> RedisBusStatistics:
        """What happened so far."""
        return RedisBusStatistics(
            connected=self._listening.is_set(),
            breaker=self._guard.state,
            connections=self._connections,
            sent=self._sent,
            unsent=self._unsent,
            received=self._received,
            unreadable=self._unreadable,
            last_error=self._guard.last_error or self._last_error,
        )

    def __repr__(self) -> str:
        return f"<RedisBus {self._channel}: {'connected' if self._listening.is_set() else 'not connected'}>"
