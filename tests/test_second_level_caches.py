"""What every second-level cache promises, of `MemoryCache` and of `RedisCache` on a real server."""

from __future__ import annotations

import asyncio
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import pytest

from loader.redis import RedisCache
from loader.second_level import NOTHING, Entry, Found, MemoryCache, Namespace, SecondLevelCache, drain
from tests.fakes import turns
from tests.redis_servers import Place, place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

from contextlib import asynccontextmanager

__all__ = ["place"]

pytestmark = pytest.mark.real_time

NAMESPACE = Namespace("app.Loaders.rows")


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Callable[..., AbstractAsyncContextManager[SecondLevelCache]]:
    """Makes a cache with options that both kinds have."""
    where: Place | None = request.getfixturevalue("place") if request.param == "redis" else None

    @asynccontextmanager
    async def made(**options: Any) -> AsyncIterator[SecondLevelCache]:
        if where is None:
            yield MemoryCache(**options)
            return
        async with RedisCache.from_url(where.url, prefix=where.prefix, timeout=5, jitter=0, **options) as cache:
            yield cache

    return made


async def write(cache: SecondLevelCache, namespace: Namespace, key: str, data: Any, fresh_for: float = 60) -> None:
    found = await cache.get_many(namespace, [key])
    await cache.set_many([Entry(namespace, key, found.leases[key], data, fresh_for)])


def data(found: Found) -> dict[str, Any]:
    return {key: stored.data for key, stored in found.stored.items()}


async def test_what_is_written_is_found_in_one_call_and_the_rest_is_leased(make: Any) -> None:
    async with make() as cache:
        await write(cache, NAMESPACE, "1", b"one")
        await write(cache, NAMESPACE, "2", NOTHING)
        await write(cache, NAMESPACE, "3", b"")
        found = await cache.get_many(NAMESPACE, ["3", "4", "2", "1"])
        assert data(found) == {"1": b"one", "2": NOTHING, "3": b""}
        assert [*found.leases] == ["4"]
        assert not found.busy


async def test_a_value_expires_counted_from_its_lease(make: Any) -> None:
    async with make() as cache:
        found = await cache.get_many(NAMESPACE, ["1", "2"])
        await asyncio.sleep(0.2)
        entries = [Entry(NAMESPACE, "1", found.leases["1"], b"", 2), Entry(NAMESPACE, "2", found.leases["2"], b"", 9)]
        await cache.set_many(entries)
        assert [*data(await cache.get_many(NAMESPACE, ["1", "2"]))] == ["1", "2"]
        await asyncio.sleep(1.9)
        assert [*data(await cache.get_many(NAMESPACE, ["1", "2"]))] == ["2"]


async def test_a_load_that_took_longer_than_its_value_would_be_fresh_writes_nothing(make: Any) -> None:
    async with make() as cache:
        found = await cache.get_many(NAMESPACE, ["1"])
        await asyncio.sleep(0.05)
        await cache.set_many([Entry(NAMESPACE, "1", found.leases["1"], b"", 0.01)])
        assert [*(await cache.get_many(NAMESPACE, ["1"])).leases] == ["1"]


async def test_one_lease_of_a_key_is_out_and_others_are_told_that_it_is_busy(make: Any) -> None:
    async with make() as cache:
        first = await cache.get_many(NAMESPACE, ["1", "2"])
        second = await cache.get_many(NAMESPACE, ["2", "3"])
        assert [*first.leases] == ["1", "2"]
        assert [*second.leases] == ["3"]
        assert [*second.busy] == ["2"]


async def test_who_waits_gets_what_another_writes(make: Any) -> None:
    async with make(max_wait=5) as cache:
        first = await cache.get_many(NAMESPACE, ["1", "2", "3"])
        waiting = asyncio.ensure_future(cache.get_many(NAMESPACE, ["1", "2", "3"], wait=True))
        await asyncio.sleep(0.02)
        await cache.set_many([Entry(NAMESPACE, "1", first.leases["1"], b"one", 60)])
        await cache.set_many([Entry(NAMESPACE, "2", first.leases["2"], NOTHING, 0)])
        await asyncio.sleep(0.1)
        await cache.set_many([Entry(NAMESPACE, "3", first.leases["3"], b"three", 60)])
        found = await waiting
        assert data(found) == {"1": b"one", "3": b"three"}
        assert [*found.leases] == ["2"]  # it was given back, so whoever waited loads
        assert not found.busy


async def test_who_leaves_while_waiting_keeps_no_lease_of_what_it_got_meanwhile(make: Any) -> None:
    async with make(max_wait=5, lease_for=60) as cache:
        leases = (await cache.get_many(NAMESPACE, ["1", "2"])).leases
        leaving = asyncio.ensure_future(cache.get_many(NAMESPACE, ["1", "2", "3"], wait=True))
        await asyncio.sleep(0.02)
        await cache.set_many([Entry(NAMESPACE, "2", leases["2"], NOTHING, 0)])
        await asyncio.sleep(0.1)
        assert [*(await cache.get_many(NAMESPACE, ["2", "3"])).busy] == ["2", "3"]
        leaving.cancel()
        await asyncio.wait([leaving])
        await drain(cache)
        found = await cache.get_many(NAMESPACE, ["1", "2", "3"])
        assert ([*found.leases], [*found.busy]) == (["2", "3"], ["1"])


async def test_who_waits_does_so_for_a_bounded_time_and_then_has_no_lease(make: Any) -> None:
    async with make(max_wait=0.1) as cache:
        await cache.get_many(NAMESPACE, ["1"])
        found = await cache.get_many(NAMESPACE, ["1"], wait=True)
        assert (found.stored, found.leases, [*found.busy]) == ({}, {}, [])


async def test_a_memory_takes_back_what_somebody_got_who_was_cancelled_while_waiting_for_the_rest() -> None:
    cache = MemoryCache(max_wait=5)
    first = await cache.get_many(NAMESPACE, ["1", "2", "3"])
    waiting = asyncio.ensure_future(cache.get_many(NAMESPACE, ["1", "2", "3"], wait=True))
    await asyncio.sleep(0)
    await cache.set_many([Entry(NAMESPACE, key, first.leases[key], NOTHING, 0) for key in ("1", "2")])
    await turns(3)
    await cache.delete_many(NAMESPACE, ["2"])
    others = await cache.get_many(NAMESPACE, ["1", "2"])
    assert ([*others.leases], others.busy) == (["2"], ["1"])
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    found = await cache.get_many(NAMESPACE, ["1", "2", "3"])
    assert ([*found.leases], found.busy) == (["1"], ["2", "3"])


async def test_a_lease_runs_out(make: Any) -> None:
    async with make(lease_for=0.05) as cache:
        first = await cache.get_many(NAMESPACE, ["1"])
        await asyncio.sleep(0.08)
        await cache.set_many([Entry(NAMESPACE, "1", first.leases["1"], b"late", 60)])
        second = await cache.get_many(NAMESPACE, ["1"])
        assert [*second.leases] == ["1"]
        await cache.set_many([Entry(NAMESPACE, "1", first.leases["1"], b"late", 60)])
        await cache.set_many([Entry(NAMESPACE, "1", second.leases["1"], b"in time", 60)])
        assert data(await cache.get_many(NAMESPACE, ["1"])) == {"1": b"in time"}


async def test_deleting_keys_ends_what_there_is_of_them_leases_too_and_nothing_else(make: Any) -> None:
    async with make() as cache:
        await write(cache, NAMESPACE, "1", b"old")
        await write(cache, NAMESPACE, "2", b"other")
        under_way = await cache.get_many(NAMESPACE, ["3"])
        await cache.delete_many(NAMESPACE, ["1", "3", "nobody"])
        await cache.set_many([Entry(NAMESPACE, "3", under_way.leases["3"], b"old", 60)])
        found = await cache.get_many(NAMESPACE, ["1", "2", "3"])
        assert data(found) == {"2": b"other"}
        assert [*found.leases] == ["1", "3"]


async def test_deleting_a_key_ends_it_for_all_parameters(make: Any) -> None:
    async with make() as cache:
        few, many = (Namespace("app.Loaders.rows", parameters=text) for text in ("5", "10"))
        for namespace in (few, many):
            await write(cache, namespace, "1", b"one")
            await write(cache, namespace, "2", b"two")
        under_way = await cache.get_many(few, ["3"])
        await cache.delete_many(NAMESPACE, ["1", "3"])
        await cache.set_many([Entry(few, "3", under_way.leases["3"], b"old", 60)])
        for namespace in (few, many):
            assert data(await cache.get_many(namespace, ["1", "2", "3"])) == {"2": b"two"}


async def test_deleting_all_ends_everything_of_a_loader_whoever_its_tenant(make: Any) -> None:
    async with make() as cache:
        tenants = [Namespace("app.Loaders.rows", tenant=tenant) for tenant in ("", '"a"', '"b"')]
        others = [Namespace("app.Loaders.rows2"), Namespace("app.Loaders.rows", version="2")]
        for namespace in (*tenants, *others):
            await write(cache, namespace, "1", b"one")
        under_way = await cache.get_many(tenants[1], ["2"])
        await cache.delete_many(NAMESPACE, None)
        await cache.set_many([Entry(tenants[1], "2", under_way.leases["2"], b"old", 60)])
        for namespace in tenants:
            assert [*(await cache.get_many(namespace, ["1", "2"])).leases] == ["1", "2"]
        for namespace in others:
            assert data(await cache.get_many(namespace, ["1"])) == {"1": b"one"}


async def test_deleting_a_key_of_a_tenant_is_nothing_to_another(make: Any) -> None:
    async with make() as cache:
        mine, yours = (Namespace("app.Loaders.rows", tenant=tenant) for tenant in ("1", '"1"'))
        for namespace in (mine, yours):
            await write(cache, namespace, "1", b"one")
        await cache.delete_many(mine, ["1"])
        assert data(await cache.get_many(mine, ["1"])) == {}
        assert data(await cache.get_many(yours, ["1"])) == {"1": b"one"}


async def test_what_was_found_can_be_replaced_once_by_who_found_it(make: Any) -> None:
    async with make() as cache:
        await write(cache, NAMESPACE, "1", b"rubbish")
        lease = (await cache.get_many(NAMESPACE, ["1"])).stored["1"].lease
        await cache.set_many([Entry(NAMESPACE, "1", lease, b"better", 60)])
        assert data(await cache.get_many(NAMESPACE, ["1"])) == {"1": b"better"}
        await cache.delete_many(NAMESPACE, ["1"])
        await write(cache, NAMESPACE, "1", b"rubbish")
        await cache.set_many([Entry(NAMESPACE, "1", lease, b"older", 60)])
        assert data(await cache.get_many(NAMESPACE, ["1"])) == {"1": b"rubbish"}


async def test_a_key_that_was_used_most_recently_survives_in_a_full_memory() -> None:
    cache = MemoryCache(max_entries=2)
    await write(cache, NAMESPACE, "1", b"one")
    await write(cache, NAMESPACE, "2", b"two")
    await cache.get_many(NAMESPACE, ["1"])
    await write(cache, NAMESPACE, "3", b"three")
    assert len(cache) == 2
    assert data(await cache.get_many(NAMESPACE, ["1"])) == {"1": b"one"}
    assert data(await cache.get_many(NAMESPACE, ["2"])) == {}


@pytest.mark.parametrize(
    ("options", "error"),
    [({"max_entries": 0}, ValueError), ({"max_entries": 1.5}, TypeError), ({"lease_for": -1}, ValueError)],
)
def test_a_memory_that_makes_no_sense_is_refused(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        MemoryCache(**options)


async def test_nothing_is_left_to_wait_for_where_nothing_was_written() -> None:
    await drain(MemoryCache())


def test_loops_of_several_threads_share_a_memory_and_none_waits_for_longer_than_the_bound() -> None:
    cache = MemoryCache(max_wait=30, lease_for=60)
    waiting = Barrier(2, timeout=10)
    found: list[Found] = []

    async def wait_for_it() -> None:
        asyncio.get_running_loop().set_debug(True)  # refuses calls from another thread that nobody made safe
        look = asyncio.ensure_future(cache.get_many(NAMESPACE, ["1"], wait=True))
        await asyncio.sleep(0)
        waiting.wait()
        async with asyncio.timeout(20):
            found.append(await look)

    async def write_it() -> None:
        lease = (await cache.get_many(NAMESPACE, ["1"])).leases["1"]
        thread = Thread(target=asyncio.run, args=(wait_for_it(),))
        thread.start()
        waiting.wait()
        await cache.set_many([Entry(NAMESPACE, "1", lease, "one", 60)])
        await asyncio.to_thread(thread.join)

    asyncio.run(write_it())
    assert [data(each) for each in found] == [{"1": "one"}]


async def test_a_waiter_whose_loop_is_closed_or_who_has_just_left_keeps_nobody_from_writing() -> None:
    cache = MemoryCache(max_wait=30, lease_for=60)
    leases = (await cache.get_many(NAMESPACE, ["1", "2"])).leases
    other = asyncio.new_event_loop()
    abandoned = other.create_future()
    other.close()
    cache._waiting.add(abandoned)
    leaving = asyncio.ensure_future(cache.get_many(NAMESPACE, ["1"], wait=True))
    await asyncio.sleep(0)
    await cache.set_many([Entry(NAMESPACE, "2", leases["2"], "two", 60)])
    leaving.cancel()
    await asyncio.sleep(0)
    await cache.set_many([Entry(NAMESPACE, "1", leases["1"], "one", 60)])
    assert data(await cache.get_many(NAMESPACE, ["1", "2"])) == {"1": "one", "2": "two"}
    assert not cache._waiting
    await asyncio.gather(leaving, return_exceptions=True)
