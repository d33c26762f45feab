"""RedisBus on a real server: what one worker changes, all hear of.

Two workers in one process are two buses with a cache each; a change that one of them hears of reaches all caches of
the process, which in the tests that tell the workers apart are counted by bus.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from loader import LoaderClosedError, Loaders, Snapshot, dataloader
from loader.redis import BreakerState, RedisBus, RedisCache
from loader.redis._message import MANY_KEYS, decode, encode
from loader.second_level import Change, LoaderChange, MemoryCache, drain
from tests.fakes import Backend
from tests.redis_servers import Place, Server, place, server, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["place", "server"]

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def a_bus(where: Place | Server, **options: Any) -> AsyncIterator[RedisBus]:
    prefix = where.prefix if isinstance(where, Place) else "test"
    async with RedisBus.from_url(where.url, prefix=prefix, **{"timeout": 5.0, "wait": 0.01} | options) as bus:
        assert await bus.start(wait=10)
        yield bus


def app(cache: Any, backend: Backend) -> type[Any]:
    class App(Loaders, tenant="tenant"):
        tenant = "a"

        @dataloader(second_level=cache, fresh_for=60, tags=["flights"])
        async def flights(self, keys: list[int], *, first: int = 1) -> list[str]:
            return await backend(keys)

        @dataloader(second_level=cache, fresh_for=60, tags=["planes", "all"])
        async def planes(self, keys: list[int]) -> list[str]:
            return await backend(keys)

        @dataloader
        async def plain(self, keys: list[int]) -> list[int]:
            return keys

    return App


async def test_a_change_is_read_at_once_here_and_soon_in_the_open_scopes_of_others(place: Place) -> None:
    backend = Backend(lambda key: f"{key} is {len(backend.batches)}")
    async with (
        RedisCache.from_url(place.url, prefix=place.prefix, timeout=5) as mine,
        RedisCache.from_url(place.url, prefix=place.prefix, timeout=5) as yours,
        a_bus(place) as my_bus,
        a_bus(place) as your_bus,
    ):
        here, there = app(mine, backend)(), app(yours, backend)()
        for loaders in (here, there):
            assert await loaders.flights.load_many([1, 2]) == ["1 is 1", "2 is 1"]
            await drain(mine)
        assert await my_bus.invalidate(here.flights, [1])
        assert await here.flights.load_many([1, 2]) == ["1 is 2", "2 is 1"]
        await until(lambda: there.flights.peek(1) is None)
        await drain(mine)
        assert await there.flights.load_many([1, 2]) == ["1 is 2", "2 is 1"]
        assert (my_bus.statistics().sent, your_bus.statistics().received) == (1, 1)
        assert my_bus.statistics().received == 0


async def test_a_change_is_one_of_its_tenant_and_of_all_parameters(place: Place) -> None:
    cache, backend = MemoryCache(), Backend()
    async with a_bus(place) as bus:
        kind = app(cache, backend)
        one, other = kind(), kind()
        other.tenant = "b"
        for loaders in (one, other):
            for first in (1, 2):
                await loaders.flights(first=first).load(1)
        await bus.invalidate(one.flights, [1])
        await drain(cache)
        for loaders in (one, other):
            for first in (1, 2):
                await loaders.flights(first=first).load(1)
        assert len(backend.batches) == 6
        await bus.invalidate(one.flights)
        await other.flights.load(1)
        assert len(backend.batches) == 7
        await drain(cache)


async def test_a_tag_stands_for_all_keys_of_the_loaders_that_have_it(place: Place) -> None:
    async with RedisCache.from_url(place.url, prefix=place.prefix, timeout=5) as cache, a_bus(place) as bus:
        backend = Backend()
        loaders = app(cache, backend)()
        for tag in ("none", "planes", "flights", "none"):
            await loaders.flights.load(1)
            await loaders.planes.load(2)
            await drain(cache)
            await bus.invalidate_tags(tag)
        assert backend.batches == [[1], [2], [2], [1]]


async def test_a_memory_of_each_worker_is_emptied_by_what_it_hears(place: Place) -> None:
    cache, backend = MemoryCache(), Backend()
    async with a_bus(place) as bus, Redis.from_url(place.url) as client:
        loaders = app(cache, backend)()
        for change in (
            Change((LoaderChange(f"{__name__}.app.<locals>.App.flights", "", '"a"', frozenset({1})),)),
            Change((LoaderChange(f"{__name__}.app.<locals>.App.flights"),)),
            Change(tags=frozenset({"flights", "other"})),
            Change(anything=True),
        ):
            await loaders.flights.load(1)
            await drain(cache)
            await client.publish(f"{place.prefix}:changes", encode("another", change))
            await until(lambda: loaders.flights.peek(1) is None)
            assert len(cache) == 0
        assert backend.batches == [[1]] * 4
        assert bus.statistics().received == 4


async def test_a_worker_with_another_version_deletes_its_own_values(place: Place) -> None:
    async with (
        RedisCache.from_url(place.url, prefix=place.prefix, timeout=5) as cache,
        a_bus(place),
        Redis.from_url(place.url) as client,
    ):
        backend = Backend()
        loaders = app(cache, backend)()
        await loaders.flights.load_many([1, 2])
        await drain(cache)
        name = f"{__name__}.app.<locals>.App.flights"
        change = Change((LoaderChange(name, "next", '"a"', frozenset({1})),))
        await client.publish(f"{place.prefix}:changes", encode("another", change))
        await until(lambda: loaders.flights.peek(1) is None)
        await loaders.flights.load_many([1, 2])
        assert backend.batches == [[1, 2], [1]]
        await drain(cache)


# -- followers -----------------------------------------------------------------------------------------------------


async def test_a_burst_of_changes_refreshes_a_snapshot_once_in_every_worker(place: Place) -> None:
    async with a_bus(place, wait=0.3, max_wait=30) as mine, a_bus(place, wait=0.3, max_wait=30) as yours:
        loads = []

        async def load() -> int:
            loads.append(1)
            return len(loads)

        async with Snapshot(load) as here, Snapshot(load) as there:
            stop = mine.refresh(here, "flights")
            yours.refresh(there, "flights", "planes")
            await here.get()
            await there.get()
            for _ in range(20):
                await mine.invalidate_tags("flights")
            for snapshot in (here, there):
                await until(lambda: not snapshot.peek().fresh)  # type: ignore[union-attr]  # noqa: B023
                await snapshot.get(max_age=0)
            assert here.peek().fresh  # type: ignore[union-attr]
            stop()
            await mine.invalidate_tags("flights")
            await until(lambda: not there.peek().fresh)  # type: ignore[union-attr]
            assert here.peek().fresh  # type: ignore[union-attr]
            assert len(loads) == 4


async def test_a_subscription_is_woken_with_what_changed_of_what_it_follows(place: Place) -> None:
    cache = MemoryCache()
    async with a_bus(place) as mine, a_bus(place) as yours:
        loaders = app(cache, Backend())()
        following = yours.changes(loaders.flights, "planes")
        await mine.invalidate(loaders.planes, [5])
        await mine.invalidate(loaders.flights, [1])
        await mine.invalidate(loaders.flights(first=7), [2])
        await mine.invalidate_tags("planes", "other")
        seen = Change()
        while "planes" not in seen.tags:
            seen |= await anext(following)
        assert {key for part in seen.loaders for key in part.keys or {"all"}} == {1, 2}
        assert seen.tags == {"planes"}
        assert not seen.anything
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0)
        await following.aclose()
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert not yours._followers


async def test_streams_end_with_the_bus(place: Place) -> None:
    async with a_bus(place) as bus:
        following = bus.changes("flights")
    assert [change async for change in following] == []


@pytest.mark.logs
async def test_an_action_may_be_async_and_its_failure_is_reported(place: Place, reports: list[str]) -> None:
    async with a_bus(place) as bus:
        seen = []

        async def action(change: Change) -> None:
            seen.append(change)
            raise ValueError("broken")

        bus.on_change(action, "flights")
        await bus.invalidate_tags("flights")
        await until(lambda: reports)
        assert seen == [Change(tags=frozenset({"flights"}))]
        assert "broken" in reports[0]


# -- what goes wrong -----------------------------------------------------------------------------------------------


async def test_a_worker_that_hears_again_takes_it_that_anything_may_have_changed(server: Server) -> None:
    cache, backend = MemoryCache(), Backend()
    async with a_bus(server, retry_after=0.1) as bus:
        loaders = app(cache, backend)()
        following = bus.changes("flights")
        await loaders.flights.load(1)
        await drain(cache)
        server.kill()
        await until(lambda: not bus.statistics().connected)
        assert await loaders.flights.load(1) == "v1"
        server.start()
        await until(lambda: bus.statistics().connected)
        assert (await anext(following)).anything
        await until(lambda: loaders.flights.peek(1) is None)
        await loaders.flights.load(1)
        assert backend.batches == [[1], [1]]
        assert bus.statistics().connections == 2
        assert repr(bus) == "<RedisBus test:changes: connected>"
        await drain(cache)


async def test_a_connection_that_the_server_cut_is_noticed(server: Server) -> None:
    async with a_bus(server, retry_after=0.05) as bus:
        with server.client() as client:
            client.client_kill_filter(_type="pubsub")
        await until(lambda: bus.statistics().connections == 2)


async def test_a_server_that_falls_silent_is_noticed(server: Server) -> None:
    async with a_bus(server, retry_after=0.05, heartbeat=0.1, timeout=0.6) as bus:
        async with Redis.from_url(server.url) as client:
            while (await client.info("commandstats")).get("cmdstat_ping", {"calls": 0})["calls"] < 4:  # noqa: ASYNC110  # nothing here tells when
                await asyncio.sleep(0.01)
        assert bus.statistics().connections == 1  # it answers, though nobody has anything to say
        server.pause()
        await until(lambda: not bus.statistics().connected)
        server.resume()
        await until(lambda: bus.statistics().connected)


async def test_what_could_not_be_said_is_made_up_for_by_saying_that_anything_may_have_changed(
    server: Server,
) -> None:
    async with (
        a_bus(server, timeout=0.6, retry_after=0.1) as mine,
        a_bus(server, retry_after=0.1, heartbeat=60) as yours,
    ):
        following = yours.changes("flights")
        server.pause()
        assert not await mine.invalidate_tags("flights")
        assert not await mine.invalidate_tags("flights")
        assert (mine.statistics().unsent, mine.statistics().breaker) == (2, BreakerState.OPEN)
        assert isinstance(mine.statistics().last_error, TimeoutError)
        server.resume()
        await until(lambda: mine.statistics().breaker is BreakerState.CLOSED)
        seen = Change()
        while not seen.anything:
            seen |= await anext(following)
        assert await mine.invalidate_tags("flights")


async def test_saying_is_found_to_work_again_although_nothing_was_missed(server: Server) -> None:
    async with a_bus(server, timeout=0.6, retry_after=0.05) as bus:
        bus._guard.suspect()
        await until(lambda: bus.statistics().breaker is BreakerState.CLOSED)
        assert bus.statistics().sent == 0


async def test_a_change_whose_announcement_is_cancelled_is_made_up_for(server: Server) -> None:
    async with a_bus(server, timeout=5, retry_after=0.05) as mine, a_bus(server, heartbeat=60) as yours:
        following = yours.changes("flights")
        server.pause()
        task = asyncio.ensure_future(mine.invalidate_tags("flights"))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        server.resume()
        seen = Change()
        while not seen.anything:
            seen |= await anext(following)
        await until(lambda: mine.statistics().breaker is BreakerState.CLOSED)


async def test_an_answer_that_is_none_to_an_announcement_is_a_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def publish(*_: object) -> bytes:
        return b"OK"

    async with a_bus(place) as bus:
        monkeypatch.setattr(bus._client, "publish", publish)
        assert not await bus.invalidate_tags("flights")
        assert "something else" in str(bus.statistics().last_error)


async def test_rubbish_on_the_channel_means_that_anything_may_have_changed(place: Place) -> None:
    async with a_bus(place) as bus, Redis.from_url(place.url) as client:
        following = bus.changes("flights")
        for rubbish in (b"\xff", b"{}", b'{"sender":"x","loaders":[["l","",null,["{"]]]}', b"[]"):
            await client.publish(f"{place.prefix}:changes", rubbish)
            assert (await anext(following)).anything
        assert bus.statistics().unreadable == 4


async def test_without_a_server_nothing_waits_and_nothing_is_raised() -> None:
    backend, cache = Backend(), MemoryCache()
    async with RedisBus.from_url("redis://127.0.0.1:1/0", retry_after=0.02) as bus:
        loaders = app(cache, backend)()
        await loaders.flights.load(1)
        assert not await bus.invalidate(loaders.flights, [1])
        await loaders.flights.load(1)
        assert backend.batches == [[1], [1]]
        assert not await bus.start(wait=0.1)
        assert repr(bus) == "<RedisBus loader:changes: not connected>"
        await drain(cache)


async def test_a_bus_that_never_began_can_be_closed_and_a_client_of_the_callers_stays_open(place: Place) -> None:
    async with Redis.from_url(place.url) as client:
        bus = RedisBus(client, prefix=place.prefix)
        assert await bus.invalidate_tags("flights")
        await bus.aclose()
        assert await client.ping()


async def test_a_closed_bus_says_so_and_what_is_to_be_done_here_is_done(place: Place) -> None:
    async with a_bus(place) as bus:
        pass
    cache, backend = MemoryCache(), Backend()
    loaders = app(cache, backend)()
    await loaders.flights.load(1)
    await drain(cache)
    for use in (
        bus.start,
        bus.__aenter__,
        lambda: bus.invalidate(loaders.flights, [1]),
        lambda: bus.invalidate_tags("x"),
    ):
        with pytest.raises(LoaderClosedError, match="was closed: make a new one"):
            await use()
    for follow in (bus.changes, lambda: bus.on_change(print, "x")):
        with pytest.raises(LoaderClosedError, match="was closed: make a new one"):
            follow()
    await loaders.flights.load(1)
    assert backend.batches == [[1], [1]]
    await bus.aclose()
    await drain(cache)


async def test_changes_of_a_bus_that_was_not_opened_are_refused(place: Place) -> None:
    async with Redis.from_url(place.url) as client:
        with pytest.raises(LoaderClosedError, match="does not hear anything yet"):
            RedisBus(client, prefix=place.prefix).changes("flights")


async def test_a_loader_without_a_second_level_cannot_be_announced(place: Place) -> None:
    async with a_bus(place) as bus:
        loaders = app(MemoryCache(), Backend())()
        with pytest.raises(ValueError, match="has no second_level"):
            await bus.invalidate(loaders.plain, [1])
        with pytest.raises(ValueError, match="has no second_level"):
            bus.changes(loaders.plain)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"retry_after": 0}, {"heartbeat": float("inf")}])
def test_times_that_make_no_sense_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="above 0 and finite"):
        RedisBus(Redis(), **options)


@pytest.mark.parametrize("name", ["timeout", "retry_after", "heartbeat", "wait", "max_wait"])
def test_what_is_no_number_is_refused(name: str) -> None:
    options: Any = {name: "1"}
    with pytest.raises(TypeError, match=f"{name} takes a number, not '1'"):
        RedisBus(Redis(), **options)


@pytest.mark.parametrize("client", ["redis://127.0.0.1", RedisCluster("127.0.0.1")])
def test_what_is_no_asyncio_client_of_one_server_is_refused(client: Any) -> None:
    with pytest.raises(TypeError, match=r"has to be a redis.asyncio.Redis, not .*from_url"):
        RedisBus(client)


async def test_the_log_says_once_that_it_does_not_hear(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.kill()
    async with RedisBus.from_url(server.url, prefix="test", retry_after=0.05) as bus:
        assert not await bus.start(wait=0.3)
        server.start()
        await until(lambda: bus.statistics().connected)
        server.kill()
        await until(lambda: len(caplog.records) > 1)
    said = ["test:changes: changes are not heard until the server is back" in each for each in caplog.messages]
    assert said == [True, True]


def test_a_change_of_very_many_keys_travels_as_a_change_of_all() -> None:
    few = LoaderChange("l", "1", "", frozenset({1, "1", (1, "a")}))
    many = LoaderChange("l", "1", "", frozenset(range(MANY_KEYS + 1)))
    sender, change = decode(encode("me", Change((few, many), frozenset({"t"}))))
    assert sender == "me"
    assert change == Change((few, LoaderChange("l", "1", "")), frozenset({"t"}))
