"""RedisCache: a second-level cache on a Redis or Valkey server."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, final
from urllib.parse import quote

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import NoScriptError

from loader.redis._client import check_client, check_numbers, check_string, client_from
from loader.redis._codec import MsgspecCodec
from loader.redis._guard import BreakerState, Guarded
from loader.redis._scripts import DELETE, GET, HEADER, MANY_PARAMETERS, SET, Script
from loader.second_level import NOTHING, Found, Stored, drain, give_back

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from loader.second_level import Codec, Entry, Namespace

KEYS_PER_CALL = 2000
"""How many keys one script is called with: Lua takes 8,000 arguments, and the server serves nobody else meanwhile."""

OWED = 10_000
"""How many keys may wait to be deleted before whole loaders do."""

_VALUE, _NOTHING, _LEASE, _NONE = b"V", b"N", b"L", b""


@final
@dataclass(frozen=True, slots=True)
class RedisCacheStatistics:
    """What passed between this process and the server.

    Attributes:
        breaker: Whether the server is called at present.
        opened: How often it failed and was then left alone for a while.
        failures: How many calls failed or took too long.
        last_error: What the last failure was, None if there was none.
        round_trips: How many calls there were.
        waits: For how many keys a load waited that another one was loading.
        refused: How many values were not written, since their key was deleted while they were loaded, or the load took
            longer than `lease_for`.
        oversize: How many values were too large to be kept.
        owed: How many deletions wait until the server is back.
    """

    breaker: BreakerState
    opened: int
    failures: int
    last_error: Exception | None
    round_trips: int
    waits: int
    refused: int
    oversize: int
    owed: int


@final
class RedisCache(Guarded):
    """Keeps values where all workers find them.

    A batch asks for all its keys in one round trip. A value expires `fresh_for` seconds after it was asked for, or up
    to a tenth earlier, so that what was loaded together is not loaded again all at once. Of many loads of one key, in
    whatever worker, one asks the backend; the others wait for what it brings, at most `max_wait`.

    It raises nothing. A server that is down, slow or full costs `timeout` once; then it is left alone for
    `retry_after`, and everything comes from the backend. What could not be deleted meanwhile is deleted before anything
    is read again. All times are in seconds.

    Args:
        client: A client of redis-py's asyncio, of a server or of a cluster, with `decode_responses=False`; it stays the
            caller's to close. For a server `RedisCache.from_url` is better: its client never tries twice.
        codec: What makes bytes of values.
        prefix: What its keys begin with on the server: give each application its own.
        timeout: How long a call may take.
        retry_after: How long a server that failed is left alone.
        max_value_bytes: Larger values are not kept.
        lease_for: How long a load may take: a slower one is not kept, and who is gone keeps others waiting so long.
        max_wait: How long a load waits for another one of the same key. 0 never waits.
        jitter: By which part of `fresh_for` a value may expire earlier, from 0 to 1.

    Raises:
        TypeError: If the client is none of redis-py's asyncio, a number none, or `prefix` no string.
        ValueError: If a number makes no sense, or the client decodes responses.

    Examples:
        ```python
        cache = RedisCache.from_url("redis://127.0.0.1:6379/0", prefix="shop")

        class AppLoaders(Loaders):
            @dataloader(second_level=cache, fresh_for=60.0)
            async def products(self, ids: list[int]) -> dict[int, Product]: ...
        ```
    """

    shared: bool = True

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        codec: Codec | None = None,
        prefix: str = "loader",
        timeout: float = 0.25,
        retry_after: float = 1.0,
        max_value_bytes: int = 100_000,
        lease_for: float = 5.0,
        max_wait: float = 0.2,
        jitter: float = 0.1,
    ) -> None:
        check_client(client, Redis, RedisCluster)
        check_string("prefix", prefix)
        for name, value, least in (
            ("timeout", timeout, 0.001),
            ("retry_after", retry_after, 0.0),
            ("max_value_bytes", max_value_bytes, 0),
            ("lease_for", lease_for, 0.001),
            ("max_wait", max_wait, 0.0),
        ):
            check_numbers(**{name: value})
            if not least <= value < float("inf"):
                raise ValueError(f"{name} must be at least {least} and finite, not {value!r}")
        check_numbers(jitter=jitter)
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter is a part of fresh_for, from 0 to 1, not {jitter!r}")
        super().__init__(client, timeout=timeout, retry_after=retry_after)
        self.codec: Codec = MsgspecCodec() if codec is None else codec
        self._prefix = quote(prefix, safe="")
        self._max_value_bytes = max_value_bytes
        self._lease_for = max(1, round(1000 * lease_for))
        self._max_wait = max_wait
        self._jitter = jitter
        # What is to be deleted and may not have been: keys by the state of their loader, "" for all of them. It is
        # neither read nor written. The number tells one deletion of a key from the next.
        self._owed: dict[tuple[str, str], int] = {}
        self._deletions = 0
        self._round_trips = self._waits = self._refused = self._oversize = 0

    @classmethod
    def from_url(cls, url: str, *, max_connections: int = 20, timeout: float = 0.25, **options: Any) -> Self:
        """A cache with a client of its own, which `aclose` closes: one that gives up in time and never tries twice.

        Args:
            url: The server, as in `redis://127.0.0.1:6379/0`.
            max_connections: How many connections it opens; more calls wait.
            timeout: How long a call may take.
            options: As for the class.
        """
        cache = cls(client_from(url, max_connections=max_connections, timeout=timeout), timeout=timeout, **options)
        cache._owns_client = True
        return cache

    async def get_many(self, namespace: Namespace, keys: Sequence[str], *, wait: bool = False) -> Found:
        """As `SecondLevelCache` says."""
        found = await self._ask(namespace, keys)
        if not wait or not found.busy:
            return found
        self._waits += len(found.busy)
        stored, leases = dict(found.stored), dict(found.leases)
        loop = asyncio.get_running_loop()
        now, pause = loop.time(), 0.005
        deadline = now + self._max_wait
        try:
            while found.busy and now < deadline:
                await asyncio.sleep(min(pause, deadline - now))
                found = await self._ask(namespace, list(found.busy))
                stored.update(found.stored)
                leases.update(found.leases)
                now, pause = loop.time(), min(2 * pause, 0.05)
        except asyncio.CancelledError:
            give_back(self, namespace, leases)  # nobody will hear of them
            raise
        return Found(stored, leases)

    async def set_many(self, entries: Sequence[Entry]) -> None:
        """As `SecondLevelCache` says."""
        loaders = groupby(sorted(entries, key=lambda entry: self._state(entry.namespace)), self._state_of)
        for state, group in loaders:
            wanted = [entry for entry in group if not self._owes(state, self._row(entry.namespace, entry.key))]
            for some in _parts(wanted):
                keys = [state, *(self._key(state, entry.namespace, entry.key) for entry in some)]
                arguments = [part for entry in some for part in self._written(entry)]
                refused = await self._call(SET, keys, arguments, answers=1)
                self._refused += 0 if refused is None else refused[0]

    async def delete_many(self, namespace: Namespace, keys: Sequence[str] | None) -> None:
        """As `SecondLevelCache` says. What cannot be deleted now is, as soon as the server is back.

        Raises:
            LoaderClosedError: If the cache was closed: nothing would ever be deleted.
        """
        self._refuse_if_closed()
        state = self._state(namespace)
        self._deletions += 1
        rows = [""] if keys is None else [self._row(namespace, key) for key in keys]
        self._owed |= dict.fromkeys([(state, row) for row in rows], self._deletions)
        if len(self._owed) > OWED:
            self._owed = dict.fromkeys([(owed, "") for owed, _ in self._owed], self._deletions)
            work = self._make_up
        else:
            work = partial(self._delete_rows, state, rows, self._deletions)
        try:
            await self._guard.call(work)
        except asyncio.CancelledError:
            self._guard.suspect()  # so that what may not have been deleted is, by a task of our own
            raise

    async def aclose(self) -> None:
        """Write what is to be written and delete what is owed, if the server is there, and call it no more.

        It cannot be opened again. Loads that come later get everything from the backend.

        Cancellation: Something may be left that was to be written or deleted.
        """
        await drain(self)
        self._closed = True
        if self._owed:
            await self._guard.attempt(self._make_up)
        await self._let_go()

    async def __aenter__(self) -> Self:
        self._refuse_if_closed()
        return self

    def statistics(self) -> RedisCacheStatistics:
        """What happened so far; `loader.second_level.statistics(cache)` says what loaders got."""
        guard = self._guard
        return RedisCacheStatistics(
            breaker=guard.state,
            opened=guard.opened,
            failures=guard.failures,
            last_error=guard.last_error,
            round_trips=self._round_trips,
            waits=self._waits,
            refused=self._refused,
            oversize=self._oversize,
            owed=len(self._owed),
        )

    def __repr__(self) -> str:
        return f"<RedisCache {self._prefix}: breaker {self._guard.state.value}>"

    # -- what things are called on the server --------------------------------------------------------------------

    def _state(self, namespace: Namespace) -> str:
        return f"{{{self._prefix}:{quote(namespace.loader, safe='')}:{quote(namespace.version, safe='')}}}"

    def _state_of(self, entry: Entry) -> str:
        return self._state(entry.namespace)

    @staticmethod
    def _row(namespace: Namespace, key: str) -> str:
        return f"{namespace.tenant}:{key}:"

    def _key(self, state: str, namespace: Namespace, key: str) -> str:
        return f"{state}:{self._row(namespace, key)}{namespace.parameters}"

    # -- calls ---------------------------------------------------------------------------------------------------

    async def _call(self, script: Script, keys: Sequence[str], arguments: Sequence[Any], *, answers: int) -> Any:
        """What a script answers; None if it could not be called."""
        return await self._guard.call(partial(self._run, script, keys, arguments, answers=answers))

    async def _run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Any], *, answers: int = 0
    ) -> list[Any]:
        """Call a script that answers so much."""
        self._round_trips += 1
        client = self._client
        token = os.urandom(8)
        sent = (len(keys), *keys, token, *arguments)
        try:
            answer = await client.evalsha(script.sha, *sent)
        except NoScriptError:  # as after a restart
            self._round_trips += 1
            answer = await client.eval(script.text, *sent)
        if not isinstance(answer, list) or answer[:1] != [token] or len(answer) != answers + 1:
            # Whoever is at the other end, or in whatever order its answers come: not over these connections again.
            await getattr(client, "connection_pool", client).disconnect()
            raise ConnectionError(f"the server answered something else: {answer!r:.100}")
        return answer[1:]

    async def _ask(self, namespace: Namespace, keys: Sequence[str]) -> Found:
        state = self._state(namespace)
        stored: dict[str, Stored] = {}
        leases: dict[str, bytes] = {}
        busy: list[str] = []
        wanted = [key for key in keys if not self._owes(state, self._row(namespace, key))]
        for some in _parts(wanted):
            names = [state, *(self._key(state, namespace, key) for key in some)]
            answer = await self._call(GET, names, [self._lease_for, namespace.parameters], answers=len(some) + 1)
            if answer is None:
                break
            lease, *entries = answer
            for key, entry in zip(some, entries, strict=True):
                if entry is None:
                    leases[key] = lease
                elif entry == _LEASE:
                    busy.append(key)
                elif entry != _NONE:
                    data = NOTHING if entry[:1] == _NOTHING else entry[HEADER:]
                    stored[key] = Stored(data, entry[:HEADER])
        return Found(stored, leases, busy)

    def _written(self, entry: Entry) -> tuple[Any, int, bytes, bytes]:
        """The arguments for what is to be written: the lease, how long it is fresh, what it is, and its data."""
        fresh_for = round(1000 * entry.fresh_for * (1 - self._jitter * random.random()))  # noqa: S311  # no secret
        if entry.data is NOTHING:
            return entry.lease, fresh_for, _NOTHING, b""
        if len(entry.data) > self._max_value_bytes:
            self._oversize += 1
            return entry.lease, 0, _VALUE, b""
        return entry.lease, fresh_for, _VALUE, entry.data

    # -- what is owed --------------------------------------------------------------------------------------------

    def _owes(self, state: str, row: str) -> bool:
        return bool(self._owed) and ((state, row) in self._owed or (state, "") in self._owed)

    async def _delete_rows(self, state: str, rows: Sequence[str], deletion: int) -> None:
        """Delete rows of a loader, and forget that they are to be deleted if that was this or an earlier deletion."""
        for some in [[""]] if "" in rows else _parts(rows):
            await self._run(DELETE, [state, *(f"{state}:{row}" for row in some if row)], [MANY_PARAMETERS])
        for row in rows:
            if self._owed.get((state, row), deletion + 1) <= deletion:
                del self._owed[state, row]

    def _is_owing(self) -> bool:
        return bool(self._owed)

    async def _make_up(self) -> None:
        """Delete what is owed; whatever it is, the server has shown that it is back."""
        if not self._owed:
            await self._run(SET, ["{nothing}"], [], answers=1)
        deletion = self._deletions
        for state, rows in groupby(sorted(self._owed), lambda owed: owed[0]):
            await self._delete_rows(state, [row for _, row in rows], deletion)


def _parts(items: Sequence[Any]) -> list[Sequence[Any]]:
    return [items[at : at + KEYS_PER_CALL] for at in range(0, len(items), KEYS_PER_CALL)]
