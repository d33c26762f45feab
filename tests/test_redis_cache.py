"""RedisCache on a real server: round trips, sizes, leases, and what it says of itself."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from loader import DataLoader, LoaderClosedError, Loaders, dataloader
from loader.redis import BreakerState, RedisBus, RedisCache
from loader.redis import _cache as cache_module
from loader.redis._scripts import MANY_PARAMETERS
from loader.second_level import NOTHING, Entry, Namespace, drain, invalidate, statistics
from tests.redis_servers import Place, Server, own_server, place, server, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["place", "server"]

pytestmark = pytest.mark.real_time

NAMESPACE = Namespace("rows")


@dataclass
class Row:
    id: int
    name: str


class Table:
    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.size = 5

    async def rows(self, keys: list[int]) -> dict[int, Row]:
        self.batches.append(keys)
        return {key: Row(key, "x" * self.size) for key in keys if key < 1000}

    def loader(self, cache: RedisCache, name: str = "table", **options: Any) -> DataLoader[int, Row | None]:
        times = {"fresh_for": 60, "missing_fresh_for": 60} | options
        return DataLoader(self.rows, name=name, second_level=cache, default=None, **times)


@asynccontextmanager
async def a_cache(where: Place | Server, **options: Any) -> AsyncIterator[RedisCache]:
    prefix = where.prefix if isinstance(where, Place) else "test"
    async with RedisCache.from_url(where.url, prefix=prefix, **{"timeout": 5.0} | options) as cache:
        yield cache


async def test_a_batch_is_one_round_trip_and_what_it_writes_another(place: Place) -> None:
    async with a_cache(place) as cache:
        table = Table()
        trips = []
        for keys in ([*range(100), 5000], [*range(100), 5000], [*range(50, 150)]):
            before = cache.statistics().round_trips
            await table.loader(cache).load_many(keys)
            await drain(cache)
            trips.append(cache.statistics().round_trips - before)
        assert trips == [2, 1, 2]
        assert table.batches == [[*range(100), 5000], [*range(100, 150)]]
        counts = statistics(cache)
        assert (counts.hits, counts.known_missing, counts.misses, counts.written) == (150, 1, 151, 151)


async def test_a_batch_of_very_many_keys_is_asked_for_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "KEYS_PER_CALL", 100)
    async with a_cache(place) as cache:
        table = Table()
        for _ in range(2):
            assert len(await table.loader(cache).load_many(range(250))) == 250
            await drain(cache)
        assert [len(batch) for batch in table.batches] == [250]
        assert cache.statistics().round_trips == 9
        await cache.delete_many(Namespace("table"), [str(key) for key in range(250)])
        await table.loader(cache).load_many(range(250))
        assert [len(batch) for batch in table.batches] == [250, 250]


async def test_a_value_is_gone_after_its_time_and_up_to_a_tenth_earlier(place: Place) -> None:
    async with a_cache(place, jitter=0.5) as cache, Redis.from_url(place.url) as client:
        await Table().loader(cache, fresh_for=100).load_many(range(200))
        await drain(cache)
        times = [await client.pexpiretime(key) async for key in client.scan_iter(f"{{{place.prefix}*:*:*:", count=1000)]
        assert len(times) == 200
        assert 30_000 < max(times) - min(times) <= 50_000
        assert max(times) <= 1000 * time.time() + 100_000


async def test_a_value_over_the_limit_is_skipped_and_counted_and_keeps_nobody_waiting(place: Place) -> None:
    async with a_cache(place, max_value_bytes=100, max_wait=100) as cache:
        table = Table()
        table.size = 200
        for _ in range(2):
            await table.loader(cache).load(1)
            await drain(cache)
        assert table.batches == [[1], [1]]
        assert cache.statistics().oversize == 2


async def test_a_lease_that_ran_out_refuses_what_comes_late_and_counts_it(place: Place) -> None:
    async with a_cache(place, lease_for=0.01) as cache:
        found = await cache.get_many(NAMESPACE, ["1"])
        await asyncio.sleep(0.03)
        await cache.set_many([Entry(NAMESPACE, "1", found.leases["1"], b"late", 60)])
        assert cache.statistics().refused == 1


async def test_many_workers_that_want_one_cold_key_ask_the_backend_once(place: Place) -> None:
    async with a_cache(place, max_wait=5) as one, a_cache(place, max_wait=5) as other:
        asked: list[list[int]] = []

        async def slow(keys: list[int]) -> list[int]:
            asked.append(keys)
            await until(lambda: one.statistics().waits + other.statistics().waits == 9)
            return keys

        loaders = [
            DataLoader(slow, second_level=cache, fresh_for=60, name="slow") for cache in (one, other) for _ in range(5)
        ]
        assert await asyncio.gather(*(loader.load(1) for loader in loaders)) == [1] * 10
        assert asked == [[1]]


async def test_a_key_of_whatever_kind_of_value_on_the_server_is_written_over(place: Place) -> None:
    async with a_cache(place) as cache, Redis.from_url(place.url) as client:
        await cache.get_many(NAMESPACE, ["0"])
        names = [f"{cache._state(NAMESPACE)}::{key}:" for key in range(1, 5)]
        await client.set(names[0], b"rubbish")
        await client.rpush(names[1], b"a list")
        await client.set(names[2], b"V" + b"x" * 100)
        await client.set(names[3], b"")
        found = await cache.get_many(NAMESPACE, ["1", "2", "3", "4"])
        assert [*found.leases] == ["1", "2", "3", "4"]
        await client.delete(names[0])
        await client.rpush(names[0], b"a list")
        await cache.set_many([Entry(NAMESPACE, "1", found.leases["1"], b"", 60)])
        assert cache.statistics().refused == 1
        assert cache.statistics().breaker is BreakerState.CLOSED


async def test_a_loader_that_lost_its_state_has_lost_what_it_had(place: Place) -> None:
    async with a_cache(place) as cache, Redis.from_url(place.url) as client:
        table = Table()
        await table.loader(cache).load(1)
        await drain(cache)
        under_way = await cache.get_many(NAMESPACE, ["1"])
        async for key in client.scan_iter(f"{{{place.prefix}*}}"):
            await client.delete(key)
        await cache.set_many([Entry(NAMESPACE, "1", under_way.leases["1"], b"old", 60)])
        assert cache.statistics().refused == 1
        await table.loader(cache).load(1)
        assert table.batches == [[1], [1]]


async def test_with_very_many_sets_of_parameters_deleting_a_key_deletes_all(place: Place) -> None:
    async with a_cache(place) as cache, Redis.from_url(place.url) as client:
        few = Namespace("rows", parameters="few")
        found = await cache.get_many(few, ["1", "2"])
        await cache.set_many([Entry(few, key, found.leases[key], b"", 60) for key in "12"])
        state = cache._state(NAMESPACE)
        await client.hset(state, mapping={f"p{number}": "" for number in range(MANY_PARAMETERS)})
        await cache.delete_many(NAMESPACE, ["1"])
        assert [*(await cache.get_many(few, ["1", "2"])).leases] == ["1", "2"]


async def test_names_with_signs_that_mean_something_to_the_server_stay_apart(place: Place) -> None:
    async with a_cache(place) as cache:
        names = ["a", "a}b", "{a", "a:b", "a:b:", "ä", ""]
        namespaces = [Namespace(name, version) for name in names for version in ("", "1", "b", ":")]
        for namespace in namespaces:
            found = await cache.get_many(namespace, ["1"])
            assert [*found.leases] == ["1"]
            await cache.set_many([Entry(namespace, "1", found.leases["1"], repr(namespace).encode(), 60)])
        for namespace in namespaces:
            assert (await cache.get_many(namespace, ["1"])).stored["1"].data == repr(namespace).encode()


@pytest.fixture
def full_server() -> Iterator[Server]:
    yield from own_server("--maxmemory", "2mb", "--maxmemory-policy", "noeviction")


async def test_a_full_server_still_answers_what_it_has_and_the_rest_comes_from_the_backend(
    full_server: Server,
) -> None:
    async with a_cache(full_server, max_wait=100) as cache, Redis.from_url(full_server.url) as client:
        table = Table()
        await table.loader(cache).load_many([1, 2])
        await drain(cache)
        leased = await cache.get_many(NAMESPACE, ["9"])
        await client.config_set("maxmemory", 1)
        assert await table.loader(cache).load_many([1, 2, 3]) == [Row(key, "xxxxx") for key in (1, 2, 3)]
        assert await table.loader(cache, name="new").load(1) == Row(1, "xxxxx")
        few = Namespace("few", parameters="few")
        assert (await cache.get_many(few, ["1"])).leases == {}
        await cache.set_many([Entry(NAMESPACE, "9", leased.leases["9"], b"", 60)])
        assert table.batches == [[1, 2], [3], [1]]
        assert cache.statistics().breaker is BreakerState.CLOSED
        await client.config_set("maxmemory", 0)
        assert [*(await cache.get_many(NAMESPACE, ["9"])).leases] == ["9"]


async def test_invalidating_reaches_all_parameters_of_a_declared_loader(place: Place) -> None:
    async with a_cache(place) as cache:
        asked = []

        class App(Loaders):
            @dataloader(second_level=cache, fresh_for=60)
            async def rows(self, keys: list[int], *, first: int) -> list[list[int]]:
                asked.append((first, keys))
                return [[key] * first for key in keys]

        async def load(first: int) -> Any:
            async with App() as loaders:
                return await loaders.rows(first=first).load_many([1, 2])

        for first in (1, 2, 1, 2):
            await load(first)
            await drain(cache)
        await invalidate(App().rows(first=9), [1])
        for first in (1, 2):
            assert await load(first) == [[1] * first, [2] * first]
        assert asked == [(1, [1, 2]), (2, [1, 2]), (1, [1]), (2, [1])]


@pytest.fixture
def cluster_node() -> Iterator[Server]:
    yield from own_server("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")


async def test_in_a_cluster_all_that_a_script_reaches_is_in_one_slot(cluster_node: Server) -> None:
    with cluster_node.client() as control:
        control.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await until(lambda: control.cluster("INFO")["cluster_state"] == "ok")
    async with RedisCluster.from_url(cluster_node.url) as client, RedisCache(client, timeout=5) as cache:
        table = Table()
        for _ in range(2):
            for name in ("some", "others"):
                await table.loader(cache, name=name).load_many(range(20))
                await drain(cache)
        assert len(table.batches) == 2
        await cache.delete_many(Namespace("some"), ["1", "2"])
        await table.loader(cache, name="some").load_many(range(20))
        assert table.batches[2:] == [[1, 2]]
        assert cache.statistics().failures == 0, cache.statistics().last_error
        await drain(cache)


async def test_a_server_that_is_back_is_found_although_nothing_is_owed(server: Server) -> None:
    async with a_cache(server, timeout=0.6, retry_after=0.05) as cache:
        server.kill()
        await cache.get_many(NAMESPACE, ["1"])
        assert cache.statistics().breaker is BreakerState.OPEN
        server.start()
        while cache.statistics().breaker is not BreakerState.CLOSED:
            assert not (await cache.get_many(NAMESPACE, ["1"])).leases
            await asyncio.sleep(0.02)
        assert [*(await cache.get_many(NAMESPACE, ["1"])).leases] == ["1"]


# -- what cannot be deleted ----------------------------------------------------------------------------------------


async def test_what_could_not_be_deleted_is_neither_read_nor_written_and_deleted_once_the_server_is_back(
    server: Server,
) -> None:
    async with a_cache(server, timeout=0.6, retry_after=0.2) as cache, a_cache(server) as other:
        for key in ("1", "2", "3"):
            found = await cache.get_many(NAMESPACE, [key])
            await cache.set_many([Entry(NAMESPACE, key, found.leases[key], b"old", 60)])
        lease = (await cache.get_many(NAMESPACE, ["4"])).leases["4"]
        server.pause()
        await cache.delete_many(NAMESPACE, ["1", "4"])
        await cache.delete_many(Namespace("all"), None)
        assert (cache.statistics().breaker, cache.statistics().owed) == (BreakerState.OPEN, 3)
        cache._guard.state = BreakerState.CLOSED  # as if another call had found the server
        await cache.set_many([Entry(NAMESPACE, "4", lease, b"old", 60)])
        found = await cache.get_many(NAMESPACE, ["1", "4"])
        assert (found.stored, found.leases, found.busy) == ({}, {}, [])
        cache._guard.suspect()
        server.resume()
        await until(lambda: not cache.statistics().owed)
        assert (await other.get_many(NAMESPACE, ["1", "2"])).stored.keys() == {"2"}
        await until(lambda: cache.statistics().breaker is BreakerState.CLOSED)


async def test_when_too_much_is_to_be_deleted_whole_loaders_are(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "OWED", 5)
    async with a_cache(place) as cache:
        for key in ("1", "9"):
            found = await cache.get_many(NAMESPACE, [key])
            await cache.set_many([Entry(NAMESPACE, key, found.leases[key], b"old", 60)])
        await cache.delete_many(NAMESPACE, [str(key) for key in range(6)])
        assert [*(await cache.get_many(NAMESPACE, ["1", "9"])).leases] == ["1", "9"]
        assert cache.statistics().owed == 0


async def test_a_deletion_that_is_cancelled_is_made_up_for(server: Server) -> None:
    async with a_cache(server, timeout=1) as cache:
        found = await cache.get_many(NAMESPACE, ["1"])
        await cache.set_many([Entry(NAMESPACE, "1", found.leases["1"], b"old", 60)])
        server.pause()
        task = asyncio.ensure_future(cache.delete_many(NAMESPACE, ["1"]))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        server.resume()
        await until(lambda: not cache.statistics().owed)
        assert [*(await cache.get_many(NAMESPACE, ["1"])).leases] == ["1"]


async def test_a_key_that_changes_again_while_it_is_deleted_stays_owed(place: Place) -> None:
    async with a_cache(place) as cache:
        await asyncio.gather(*(cache.delete_many(NAMESPACE, ["1"]) for _ in range(5)))
        assert cache.statistics().owed == 0
        cache._owed[cache._state(NAMESPACE), cache._row(NAMESPACE, "1")] = 100
        await cache._delete_rows(cache._state(NAMESPACE), [cache._row(NAMESPACE, "1")], 99)
        assert cache.statistics().owed == 1


# -- making and closing --------------------------------------------------------------------------------------------


async def test_closing_writes_what_is_to_be_written_and_after_it_everything_comes_from_the_backend(
    place: Place,
) -> None:
    table = Table()
    async with a_cache(place) as cache:
        await table.loader(cache).load(1)
    await table.loader(cache).load(1)
    async with a_cache(place) as again:
        await table.loader(again).load(1)
    assert table.batches == [[1], [1]]
    assert repr(again) == f"<RedisCache {place.prefix}: breaker closed>"


@pytest.mark.logs
async def test_a_closed_cache_cannot_be_opened_again_and_says_that_it_deletes_nothing(
    place: Place, reports: list[str]
) -> None:
    async with a_cache(place) as cache:
        pass
    with pytest.raises(LoaderClosedError, match="was closed: make a new one"):
        await cache.__aenter__()
    assert reports == []
    await invalidate(Table().loader(cache), [1])
    assert ["was closed: make a new one" in report for report in reports] == [True]


async def test_closing_deletes_what_is_owed_if_the_server_is_there(server: Server) -> None:
    async with a_cache(server) as other:
        found = await other.get_many(NAMESPACE, ["1"])
        await other.set_many([Entry(NAMESPACE, "1", found.leases["1"], b"old", 60)])
        async with a_cache(server, timeout=0.6, retry_after=100) as cache:
            server.pause()
            await cache.delete_many(NAMESPACE, ["1"])
            server.resume()
        assert [*(await other.get_many(NAMESPACE, ["1"])).leases] == ["1"]


async def test_a_client_that_is_the_callers_stays_open(place: Place) -> None:
    async with Redis.from_url(place.url) as client:
        async with RedisCache(client, prefix=place.prefix, timeout=5) as cache:
            found = await cache.get_many(NAMESPACE, ["1"])
            await cache.set_many([Entry(NAMESPACE, "1", found.leases["1"], NOTHING, 60)])
            assert (await cache.get_many(NAMESPACE, ["1"])).stored["1"].data is NOTHING
        assert await client.ping()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout": 0}, "timeout must be at least"),
        ({"retry_after": -1}, "retry_after must be at least"),
        ({"lease_for": 0}, "lease_for must be at least"),
        ({"max_wait": float("inf")}, "finite"),
        ({"max_value_bytes": -1}, "max_value_bytes must be at least"),
        ({"jitter": 1.5}, "from 0 to 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RedisCache(Redis(), **options)


def test_a_client_that_makes_text_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="decode_responses"):
        RedisCache(Redis(decode_responses=True))


@pytest.mark.parametrize("client", ["redis://127.0.0.1", SyncRedis(), Redis, None])
def test_what_is_no_asyncio_client_is_refused(client: Any) -> None:
    with pytest.raises(TypeError, match=r"a redis.asyncio.Redis or redis.asyncio.RedisCluster, not .*from_url"):
        RedisCache(client)


@pytest.mark.parametrize("kind", [RedisCache, RedisBus])
def test_what_is_no_string_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="prefix takes a string, not 3"):
        kind(Redis(), prefix=3)
    with pytest.raises(TypeError, match=r"from_url\(\) takes a string, not None"):
        kind.from_url(None)


@pytest.mark.parametrize("name", ["timeout", "retry_after", "max_value_bytes", "lease_for", "max_wait", "jitter"])
@pytest.mark.parametrize("value", ["1", None, True])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} takes a number, not {value!r}"):
        RedisCache.from_url("redis://127.0.0.1", **{name: value})
