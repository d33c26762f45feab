"""The inspector without a browser: what it keeps, what it says, and to whom."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import threading
import time
import tracemalloc
import weakref
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

from example_app.app import create_app
from loader import Batcher, Coalescer, DataLoader, LoaderOverloadedError, Loaders, Scope, _hooks, _watching, dataloader
from loader.inspector import Inspector, _live, _record, _store
from loader.inspector._access import is_loopback
from loader.observe import BatchRecord, Outcome, Place, Reason, RunRecord, asked_from, observing
from loader.timeline import Timeline
from tests.fakes import turns
from tests.serving import Server
from tests.test_example_data import built

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

TOKEN = "correct horse battery staple"  # noqa: S105
SCRIPT = "<script>alert(1)</script>"


class Shop(Loaders):
    @dataloader
    async def users(self, ids: list[int]) -> list[str]:
        return [f"user {key}" for key in ids]

    @dataloader
    async def broken(self, ids: list[int]) -> list[str]:
        raise ConnectionError("down")


@pytest.fixture
def inspector() -> Iterator[Inspector]:
    inspector = Inspector()
    yield inspector
    inspector.close()
    assert _hooks.everywhere == []


def client(app: Any, *, host: str = "127.0.0.1", peer: str = "127.0.0.1", **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, client=(peer, 50_000))
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}", headers=headers)


def mounted(inspector: Inspector) -> Starlette:
    return Starlette(routes=[Mount("/inspector", inspector)])


async def got(inspector: Inspector, path: str) -> Any:
    async with client(inspector) as asking:
        response = await asking.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def listed(inspector: Inspector) -> list[dict[str, Any]]:
    return (await got(inspector, "/api/operations"))["operations"]  # type: ignore[no-any-return]


async def operate(name: str = "", keys: int = 1) -> None:
    """One operation of one batch."""
    async with Shop() as shop, Scope() as scope:
        scope.name = name
        await shop.users.load_many(range(keys))


# -- what is kept ----------------------------------------------------------------------------------------------


async def test_an_operation_is_listed_with_what_it_did(inspector: Inspector) -> None:
    await operate("Users", keys=3)
    (operation,) = await listed(inspector)
    assert operation["name"] == "Users"
    assert operation["named"] is True
    assert (operation["batches"], operation["keys"], operation["hints"], operation["failures"]) == (1, 3, [], 0)
    assert operation["loaders"] == ["Shop.users"]
    assert repr(inspector) == "<Inspector: observing, 1 operations kept>"


async def test_a_name_that_is_no_unicode_is_shown_all_the_same(inspector: Inspector) -> None:
    async def load(keys: list[int]) -> list[int]:
        return keys

    async with Scope() as scope:
        scope.name = "job \udcff.csv"
        await DataLoader(load, name="file \udcff").load(1)
    (operation,) = await listed(inspector)
    assert operation["name"] == "job \udcff.csv"
    assert operation["loaders"] == ["file \\udcff"]
    detail = await got(inspector, f"/api/operations/{operation['id']}")
    assert [batch["name"] for batch in detail["batches"]] == ["file \udcff"]
    assert (await got(inspector, f"/api/operations/{operation['id']}/perfetto.json"))["traceEvents"]
    assert [each["name"] for each in (await got(inspector, "/api/loaders"))["loaders"]] == ["file \\udcff"]


async def test_the_latest_comes_first(inspector: Inspector) -> None:
    for name in ("first", "second"):
        await operate(name)
    assert [operation["name"] for operation in await listed(inspector)] == ["second", "first"]


async def test_a_scope_in_which_nothing_happened_is_no_operation(inspector: Inspector) -> None:
    async with Scope():
        pass
    assert await listed(inspector) == []


async def test_one_without_a_name_is_called_after_its_loaders_or_the_fields_that_asked(inspector: Inspector) -> None:
    await operate()
    async with Shop() as shop, Scope():
        for field in ("flights.airline", "flights.plane", "board", "a", "b"):
            asked_from(Place("", 0, field), shop.users.load, field)
        await shop.users.load(1)
    bare = [DataLoader(shop_of(name), name=name) for name in "abcd"]
    async with Scope():  # of a view that knows no `Loaders`, say
        await asyncio.gather(*(loader.load(1) for loader in bare))
        await bare[0].load(1)
    await bare[0].load(2)
    plain, many = (await listed(inspector))[1:], (await listed(inspector))[0]
    assert [(operation["name"], operation["named"]) for operation in plain] == [
        ("{ flights board a … }", False),
        ("Shop", False),
    ]
    assert many["name"] == "a, b, c, …"
    assert (await got(inspector, f"/api/operations/{many['id']}"))["cached"] == {"a": 1}


async def nothing() -> None:
    pass


def shop_of(name: str) -> Any:
    async def load(keys: list[int]) -> list[str]:
        return [name for _ in keys]

    return load


async def test_a_loaders_without_a_scope_around_it_is_an_operation_once_it_is_closed_or_gone(
    inspector: Inspector,
) -> None:
    async with Shop() as shop:
        await shop.users.load(1)
        assert await listed(inspector) == []
    assert len(await listed(inspector)) == 1
    left = Shop()
    await left.users.load(1)
    del left
    await turns(3)
    gc.collect()
    assert [operation["name"] for operation in await listed(inspector)] == ["Shop", "Shop"]


async def test_loads_awaited_in_a_loop_give_one_hint_with_their_place(inspector: Inspector) -> None:
    async with Shop() as shop:
        for key in range(5):
            await shop.users.load(key)  # here
    (operation,) = await listed(inspector)
    assert operation["hints"] == ["loop"]
    detail = await got(inspector, f"/api/operations/{operation['id']}")
    (hint,) = detail["hints"]
    lines, first = inspect.getsourcelines(test_loads_awaited_in_a_loop_give_one_hint_with_their_place)
    line = first + next(number for number, text in enumerate(lines) if text.endswith("  # here\n"))
    assert hint["place"]["file"] == __file__
    assert hint["place"]["line"] == line
    assert "load_many" in hint["remedy"]


async def test_the_detail_is_that_of_a_timeline_and_so_is_the_trace(inspector: Inspector) -> None:
    async with Shop() as shop:
        with observing(Timeline("Both"), scope=shop._own) as timeline:
            await shop.users.load_many([1, 2])
            await shop.users.load(1)
            with pytest.raises(ConnectionError):
                await shop.broken.load(1)
        shop._own.name = "Both"
    (operation,) = await listed(inspector)
    assert operation["failures"] == 1
    detail = await got(inspector, f"/api/operations/{operation['id']}")
    assert detail["operation"] == operation
    assert detail["lead"] >= 0
    assert {**timeline.data(), "began": 0} == {key: detail[key] for key in timeline.data()} | {"began": 0}
    async with client(inspector) as asking:
        response = await asking.get(f"/api/operations/{operation['id']}/perfetto.json")
    assert response.json() == timeline.perfetto()
    assert response.headers["content-disposition"] == 'attachment; filename="Both-1.perfetto.json"'


async def test_runs_and_batchers_of_an_operation_belong_to_it(inspector: Inspector) -> None:
    async def send(items: list[int]) -> list[int]:
        await asyncio.sleep(1)
        return items

    async def work() -> None:
        await asyncio.sleep(1)

    coalescer, batcher = Coalescer(work, name="work"), Batcher(send, name="send")
    async with Scope():
        run = asyncio.ensure_future(coalescer.request())
        await batcher.submit(1)
    (operation,) = await listed(inspector)
    assert operation["loaders"] == ["send", "work"]
    assert (operation["batches"], operation["runs"]) == (1, 1)
    await run
    async with Scope():  # over before its batch and its run are
        submitted = asyncio.ensure_future(batcher.submit(2))
        asked = asyncio.ensure_future(coalescer.request())
        await turns(5)
    path = f"/api/operations/{(await listed(inspector))[0]['id']}"
    detail = await got(inspector, path)
    assert [each["outcome"] for each in (*detail["batches"], *detail["runs"])] == [None, None]
    await asyncio.gather(submitted, asked)
    detail = await got(inspector, path)
    assert [each["outcome"] for each in (*detail["batches"], *detail["runs"])] == ["done", "done"]
    await coalescer.aclose()
    await batcher.aclose()


async def test_keys_are_never_shown_though_another_observer_records_them(inspector: Inspector) -> None:
    with observing(Timeline(keys=True)):
        async with Shop() as shop:
            await shop.users.load(4711)
    (operation,) = await listed(inspector)
    assert "4711" not in json.dumps(await got(inspector, f"/api/operations/{operation['id']}"))


async def test_the_figures_of_every_loader_are_there_in_operations_or_outside(inspector: Inspector) -> None:
    async def work() -> None:
        pass

    users = DataLoader(shop_of("user"), name="users", max_pending=2)
    await users.load_many([1, 2])
    users.load(1)
    with pytest.raises(LoaderOverloadedError):
        users.load_many([3, 4, 5])
    users.load(6).cancel()
    await turns(5)
    async with Coalescer(work, name="work") as coalescer:
        await coalescer.request()
    answer = await got(inspector, "/api/loaders")
    by_name = {figures["name"]: figures for figures in answer["loaders"]}
    assert by_name["users"]["calls"] == 1
    assert (by_name["users"]["cached"], by_name["users"]["overloaded"], by_name["users"]["dropped"]) == (1, 3, 1)
    assert by_name["users"]["size"]["mean"] == 2
    assert by_name["work"]["kind"] == "coalescer"
    assert sum(by_name["work"]["run_time"]["counts"]) == 1
    assert answer["left_out"] is False
    await users.aclose()


async def test_names_beyond_a_number_are_not_counted(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_record, "MOST_NAMES", 2)
    for name in "abc":
        loader = DataLoader(shop_of(name), name=name, max_pending=1)
        await loader.load(1)
        loader.load(1)
        loader.load(2).cancel()
        with pytest.raises(LoaderOverloadedError):
            loader.load_many([3, 4])
        await turns(5)
        async with Coalescer(nothing, name=f"run {name}") as coalescer:
            await coalescer.request()
    answer = await got(inspector, "/api/loaders")
    assert len(answer["loaders"]) == 2
    assert answer["left_out"] is True


async def test_a_run_time_beyond_every_bucket_has_no_bound(inspector: Inspector) -> None:
    batch = BatchRecord("slow", "loader", 0.0, None, None)
    batch.sent = batch.started = 0.0
    batch.reason, batch.size = Reason.SETTLED, 10**6
    inspector._recorder.batch_sent(batch)
    (figures,) = (await got(inspector, "/api/loaders"))["loaders"]
    assert figures["size"]["p50"] is None


# -- memory ----------------------------------------------------------------------------------------------------


def ended(name: str, batches: int, *, places: int = 1, size: int = 0) -> _store.Ended:
    """An operation as a collector leaves it."""
    timeline = Timeline(name)
    for number in range(batches):
        batch = BatchRecord(f"Shop.users({'x' * size})", "loader", float(number), None, None)
        batch.finished = number + 1.0
        for line in range(places):
            batch.ask(Place("", 0, f"field{line}.{number}"), float(number))
        timeline.batches.append(batch)
    return _store.Ended(timeline, 1.0, 0)


def kept(store: _store.Store) -> list[str]:
    return [operation.timeline.name for operation in store.after(0)]


def fill_with_batches(timeline: Timeline, *, places: int = 1, waits: int = 0, name: str = "Shop.users") -> None:
    """Batches of which nothing is shared: texts and numbers are objects of their own."""
    for number in range(1000, 1200):
        batch = BatchRecord(f"{name}{number}", "loader", time.perf_counter(), None, None)
        batch.sent, batch.started, batch.finished = time.perf_counter(), time.perf_counter(), time.perf_counter()
        batch.size = number
        for place in range(places):
            batch.ask(Place("", 0, f"field{place}.{number}"), time.perf_counter(), number)
        batch.refetched[Place("", 0, f"cleared.{number}")] = number
        batch.waited_for = [each.as_holder for each in timeline.batches[-waits:]] if waits else []
        timeline.batches.append(batch)


def fill_with_runs(timeline: Timeline) -> None:
    for number in range(1000, 2000):
        run = RunRecord(f"run {number}", "coalescer", time.perf_counter(), number, time.perf_counter())
        run.finished = time.perf_counter()
        timeline.runs.append(run)


def fill_with_counts(timeline: Timeline) -> None:
    timeline.cached.update({f"name {number}": number for number in range(1000, 2000)})


@pytest.mark.parametrize(
    "fill",
    [
        fill_with_batches,
        partial(fill_with_batches, places=20),
        partial(fill_with_batches, waits=3),
        partial(fill_with_batches, name="\N{SNAKE}" * 500),
        partial(fill_with_batches, name="x" * 200 + "("),
        fill_with_runs,
        fill_with_counts,
    ],
)
def test_an_operation_takes_no_more_than_it_is_said_to_weigh(fill: Callable[[Timeline], None]) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        timeline = Timeline("Users")
        fill(timeline)
        operation = _store.Operation(1, "abc", _store.Ended(timeline, 1.0, 0), 10**9)
        del timeline
        operation.summary()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= operation.weight


def test_the_oldest_operations_give_way_to_new_ones() -> None:
    store = _store.Store(operations=2, memory=2**20)
    for name in "abc":
        store.ended.append(ended(name, 1))
    assert kept(store) == ["b", "c"]
    assert [operation.timeline.name for operation in store.after(2)] == ["c"]
    assert store.after(3) == []
    assert store.after(99) == []
    operation = store.after(2)[0]
    assert store.find(operation.id) is operation
    assert store.find("another-3") is None


def test_the_oldest_give_way_where_there_is_no_more_memory() -> None:
    store = _store.Store(operations=100, memory=2**20)
    for number in range(100):
        store.ended.append(ended(str(number), 60))
        store.take()
    operations = store.after(0)
    assert operations[-1].timeline.name == "99"
    assert 5 < len(operations) < 20
    assert sum(operation.weight for operation in operations) <= 2**20


@pytest.mark.parametrize("huge", [{"batches": 2000}, {"batches": 3, "places": 2000}, {"batches": 300, "size": 10**4}])
def test_of_one_operation_no_more_is_kept_than_its_share(huge: dict[str, int]) -> None:
    store = _store.Store(operations=100, memory=2**20)
    store.ended.append(ended("other", 1))
    store.ended.append(ended("huge", **huge))
    other, operation = store.after(0)
    assert other.timeline.name == "other"
    assert operation.weight <= 2**20 / _store.SHARE
    assert operation.summary()["left_out"] == huge["batches"] - operation.summary()["batches"] > 0


def test_what_does_not_fit_is_left_out_of_runs_and_counts_too() -> None:
    store = _store.Store(operations=100, memory=2**20)
    of_runs, of_counts, cut = ended("runs", 0), ended("counts", 0), ended("x" * 999, 1, size=999)
    of_runs.timeline.runs.extend(RunRecord("work", "coalescer", 0.0, 1, 0.0) for _ in range(2000))
    of_counts.timeline.cached.update({f"name {number}": 1 for number in range(2000)})
    store.ended.extend([of_runs, of_counts, cut])
    runs, counts, long = store.after(0)
    assert 0 < len(runs.timeline.runs) < 2000
    assert runs.timeline.left_out == 2000 - len(runs.timeline.runs)
    assert 0 < len(counts.timeline.cached) < 2000
    assert counts.summary()["name"] == "counts"
    assert len(long.timeline.name) == len(long.timeline.batches[0].name) == _store.LONGEST
    nothing = ended("", 0)
    nothing.timeline.left_out = 1
    store.ended.append(nothing)
    assert store.after(3)[0].summary()["name"] == "(nothing kept)"


def test_a_record_of_one_operation_keeps_none_of_another() -> None:
    store = _store.Store(operations=100, memory=2**20)
    first, second = ended("first", 1), ended("second", 2)
    (before,) = first.timeline.batches
    waiting, inside = second.timeline.batches
    waiting.waited_for, inside.parents, inside.waited_for = [before.as_holder], [waiting, before], [waiting.as_holder]
    waiting.finished = None  # of a loader that another operation waits for too
    long = Place("", 0, "x" * 999)
    waiting.ask(long, 0.0)
    store.ended.append(second)
    (operation,) = store.after(0)
    one, other = operation.timeline.batches
    assert one.waited_for[0].name == before.name
    assert one.waited_for[0] is not before.as_holder
    assert (other.parents, other.waited_for) == ([one], [one.as_holder])
    assert max(len(place.function) for place in one.asked) == _store.LONGEST


async def test_there_is_a_bound_to_what_is_recorded_of_operations_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loader.inspector._app.LEAST_MEMORY", 1)
    inspector = Inspector(memory=3 * _store.BATCH * _store.SHARE)
    inspector._store.memory = 3 * _store.BATCH
    async with Shop() as shop:
        with observing(observer := Timeline()):
            for key in range(5):
                await shop.users.load(key)
            await Coalescer(nothing, name="work").request()
        assert len(observer.batches) == 5
        assert inspector._store._under_way == 3
    assert inspector._store._under_way == 0
    inspector.close()


def test_ten_thousand_operations_stay_within_the_stated_bound() -> None:
    inspector = Inspector(operations=20_000, memory=2**20)
    try:
        for number in range(10_000):
            if number == 8000:  # tracing is slow, and none of those before is kept
                assert inspector._store.after(0)[0].number > 1000
                tracemalloc.start()
            scope = Scope()
            scope.name = f"operation {number}"
            told = [*_hooks.everywhere, *scope._observers]
            # As a loader tells it; with tracing on, loaders would take half a minute for this.
            batch = BatchRecord(f"Shop.users(of={number})", "loader", time.perf_counter(), None, weakref.ref(scope))
            _watching.tell(told, "batch_opened", batch)
            for line in range(2):
                batch.ask(Place("", 0, f"shop{number}.users{line}"), time.perf_counter())
            batch.sent, batch.started = time.perf_counter(), time.perf_counter()
            batch.size, batch.reason = 2, Reason.SETTLED
            _watching.tell(told, "batch_sent", batch)
            batch.finished, batch.outcome = time.perf_counter(), Outcome.DONE
            _watching.tell(told, "batch_finished", batch)
            scope.close()
        del scope, told, batch
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        operations = inspector._store.after(0)
        for operation in operations:
            operation.summary()
        gc.collect()
        looked_at, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        inspector.close()
    assert operations[-1].summary()["name"] == "operation 9999"
    assert len(operations) > 100
    assert used < 2**20
    assert looked_at < 2**20


async def test_an_inspector_that_is_gone_or_closed_observes_no_more() -> None:
    inspector = Inspector()
    async with Shop() as shop:
        await shop.users.load(1)
        inspector.close()
        inspector.close()
        assert repr(inspector) == "<Inspector: closed, 0 operations kept>"
    assert len(await listed(inspector)) == 1
    await operate()
    assert len(await listed(inspector)) == 1
    other = Inspector()
    assert len(_hooks.everywhere) == 1
    del other
    gc.collect()
    assert _hooks.everywhere == []


async def test_what_happens_after_the_end_of_a_scope_changes_nothing(inspector: Inspector) -> None:
    collector = _record.Collector(inspector._store)
    scope = Scope()
    collector.scope_closed(scope)
    collector.scope_closed(scope)
    collector.batch_opened(BatchRecord("late", "loader", 0.0, None, None))
    collector.key_cached("late", None, None, 1)
    collector.run_started(RunRecord("late", "coalescer", 0.0, 1, 0.0))
    scope.close()
    assert await listed(inspector) == []
    assert inspector._store._under_way == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"operations": 0}, ValueError, "operations=.*at least 1, not 0"),
        ({"operations": True}, TypeError, "operations=.*a whole number, not True"),
        ({"memory": 1.5}, TypeError, "memory=.*a whole number, not 1.5"),
        ({"memory": 1000}, ValueError, "memory=.*at least 1,048,576, not 1,000"),
        ({"token": ""}, ValueError, "at least 16 characters, not one of 0"),
        ({"token": "a sécret of the Académie"}, ValueError, "ASCII characters"),
        ({"token": "a token with its line end\n"}, ValueError, "without blanks"),
        ({"token": b"0123456789abcdef"}, TypeError, "a string or None, not bytes"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Inspector(**options)
    assert _hooks.everywhere == []


# -- who may look ----------------------------------------------------------------------------------------------

PATHS = ("/", "/api/operations", "/api/operations/1", "/api/operations/1/perfetto.json", "/api/loaders", "/api/events")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ({"peer": "192.0.2.7"}, "loopback interface"),
        ({"peer": "::ffff:192.0.2.7"}, "loopback interface"),
        ({"peer": "testclient"}, "loopback interface"),
        ({"host": "inspector.example"}, "loopback interface"),  # where the server listens, and what it is called
        ({"x-forwarded-for": "127.0.0.1"}, "x-forwarded-for"),
        ({"forwarded": "for=127.0.0.1"}, "forwarded"),
        ({"host": "127.0.0.1", "via": "1.1 proxy"}, "via"),
    ],
)
async def test_without_a_token_only_the_machine_itself_is_served(
    inspector: Inspector, path: str, who: dict[str, str], reason: str
) -> None:
    async with client(inspector, **who) as asking:
        response = await asking.get(path)
    assert response.status_code == 403
    assert reason in response.text
    assert "Inspector(token=...)" in response.text


async def called(app: Any, **changed: Any) -> int:
    """The status of a request as a server might describe it."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "headers": [(b"host", b"localhost:8000")],
        "http_version": "1.1",
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", 8000),
        "scheme": "http",
        **changed,
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({}, 200),
        ({"server": None}, 200),
        ({"client": ("::1", 5000), "server": ("::1", 8000), "headers": [(b"host", b"[::1]:8000")]}, 200),
        ({"headers": [(b"host", b"APP.localhost")]}, 200),
        ({"client": None}, 403),
        ({"client": None, "server": ("/run/app.sock", None)}, 403),
        ({"server": ("192.0.2.1", 8000)}, 403),
        ({"headers": [(b"host", b"localhost.evil.example")]}, 403),  # a name that was made to lead here
        ({"headers": [(b"host", b"")]}, 403),
        ({"headers": []}, 403),
        ({"http_version": "1.0"}, 403),
    ],
)
async def test_the_address_the_name_and_the_protocol_must_be_those_of_a_browser_here(
    inspector: Inspector, changed: dict[str, Any], status: int
) -> None:
    assert await called(inspector, **changed) == status


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_what_is_the_loopback_interface(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("path", PATHS[1:])
@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://127.0.0.1:3000"}],
)
async def test_another_site_reads_nothing_though_the_app_allows_every_origin(
    inspector: Inspector, path: str, headers: dict[str, str]
) -> None:
    open_to_all = [Middleware(CORSMiddleware, allow_origins=["*"])]
    async with client(Starlette(routes=[Mount("/", inspector)], middleware=open_to_all), **headers) as asking:
        response = await asking.get(path)
    assert response.status_code == 403
    assert "own page only" in response.text


async def test_its_own_page_and_a_link_to_it_are_served(inspector: Inspector) -> None:
    async with client(inspector) as asking:
        own = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1"}
        assert (await asking.get("/api/loaders", headers=own)).status_code == 200
        assert (await asking.get("/", headers={"sec-fetch-site": "cross-site"})).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}, {"cookie": "a=b"}]
)
async def test_with_a_token_nobody_is_served_without_it(path: str, headers: dict[str, str]) -> None:
    inspector = Inspector(token=TOKEN)
    async with client(inspector, **headers) as asking:
        response = await asking.get(path)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert "token" in response.text
        assert TOKEN not in response.text
    inspector.close()


async def test_a_wrong_token_is_said_to_be_wrong_and_can_be_entered_anew() -> None:
    inspector = Inspector(token=TOKEN)
    async with client(inspector) as asking:
        response = await asking.get("/?token=%ff%00wrong")
    assert response.status_code == 401
    assert "not the inspector&#x27;s token" in response.text
    assert 'name="token"' in response.text
    inspector.close()


async def test_with_a_token_it_is_served_from_anywhere_as_bearer() -> None:
    inspector = Inspector(token=TOKEN)
    far = {"host": "app.example", "peer": "192.0.2.7", "x-forwarded-for": "192.0.2.9"}
    async with client(inspector, authorization=f"bearer {TOKEN}", **far) as asking:
        assert (await asking.get("/")).status_code == 200
        assert (await asking.get("/api/loaders")).status_code == 200
    inspector.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(scheme: str) -> None:
    inspector = Inspector(token=TOKEN)
    transport = httpx.ASGITransport(mounted(inspector), client=("192.0.2.7", 1))
    async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://app.example") as asking:
        assert (await asking.get("/inspector/api/loaders", params={"token": TOKEN})).status_code == 401  # the page only
        response = await asking.get("/inspector/", params={"token": TOKEN})
        cookie = response.headers["set-cookie"]
        assert 'http-equiv="refresh" content="0; url=./"' in response.text
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ("Secure" in cookie) is (scheme == "https")
        assert "Path" not in cookie  # the folder of the page
        assert TOKEN not in cookie
        assert TOKEN not in response.text
        assert (await asking.get("/inspector/")).status_code == 200
        assert (await asking.get("/inspector/api/loaders")).status_code == 200
    inspector.close()


# -- what is served --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
async def test_it_mounts_under_starlette_and_fastapi_and_finds_its_folder(
    inspector: Inspector, framework: type[Starlette]
) -> None:
    app = framework()
    app.mount("/tools/inspector", inspector)
    async with client(app) as asking:
        response = await asking.get("/tools/inspector", follow_redirects=True)
        assert response.url.path == "/tools/inspector/"
        assert "Loader inspector" in response.text
        assert (await asking.get("/tools/inspector/static/main.js")).status_code == 200
        assert (await asking.get("/tools/inspector/api/operations")).status_code == 200


@pytest.mark.parametrize("path", ["/tools/the inspector", ""])
async def test_it_mounts_under_any_asgi_app_that_says_where(inspector: Inspector, path: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inspector({**scope, "root_path": "/tools/the inspector", "path": path}, receive, send)

    async with client(app) as asking:
        response = await asking.get("/anything?token=a")
        assert response.status_code == 307
        assert response.headers["location"] == "./the%20inspector/?token=a"
        assert (await asking.get("/anything")).headers["location"] == "./the%20inspector/"


@pytest.mark.real_time
async def test_the_demo_has_it() -> None:
    app = create_app(built())
    query = {"query": "query First { flights(first: 2) { airline { name } } }"}
    async with app.router.lifespan_context(app), client(app) as asking:
        assert "errors" not in (await asking.post("/graphql", json=query)).json()
        (operation,) = (await asking.get("/inspector/api/operations")).json()["operations"]
    assert (operation["name"], operation["loaders"]) == ("First", ["AppLoaders.airlines"])
    assert _hooks.everywhere == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", "text/html"),
        ("static/inspector.css", "text/css"),
        ("static/palette.css", "text/css"),
        ("static/main.js", "text/javascript"),
        ("static/icon.svg", "image/svg+xml"),
    ],
)
async def test_what_it_serves_allows_nothing_from_elsewhere_and_nothing_inline(
    inspector: Inspector, name: str, kind: str
) -> None:
    async with client(inspector) as asking:
        response = await asking.get(f"/{name}")
    assert response.status_code == 200
    assert response.headers["content-type"].partition(";")[0] == kind
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"
    assert "http://" not in response.text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in response.text
    assert "innerHTML" not in response.text


@pytest.mark.real_time  # Starlette looks for files in threads of anyio, which no clock sees
@pytest.mark.parametrize("path", ["/static/_app.py", "/static/%2e%2e%2f_app.py", "/static/", "/api", "/static/a/b"])
async def test_there_are_no_other_files(inspector: Inspector, path: str) -> None:
    async with client(inspector) as asking:
        assert (await asking.get(path)).status_code == 404


@pytest.mark.parametrize("path", ["/api/operations/gone-1", "/api/operations/gone-1/perfetto.json"])
async def test_an_operation_that_is_not_kept_is_said_to_be_gone(inspector: Inspector, path: str) -> None:
    async with client(inspector) as asking:
        response = await asking.get(path)
    assert response.status_code == 404
    assert "not kept any more" in response.json()["error"]


async def test_names_are_told_as_they_are_and_make_no_header(inspector: Inspector) -> None:
    await operate(f'{SCRIPT}"\r\nx: y')
    (operation,) = await listed(inspector)
    assert operation["name"].startswith(SCRIPT)
    async with client(inspector) as asking:
        response = await asking.get(f"/api/operations/{operation['id']}/perfetto.json")
        evil = await asking.get("/", headers={"host": SCRIPT})
    assert response.headers["content-disposition"] == 'attachment; filename="script-alert-1-script-x-y-1.perfetto.json"'
    assert "x" not in response.headers
    assert evil.status_code == 403
    assert SCRIPT not in evil.text
    assert "&lt;script&gt;" in evil.text
    await operate("…")
    async with client(inspector) as asking:
        response = await asking.get(f"/api/operations/{(await listed(inspector))[0]['id']}/perfetto.json")
    assert "operation-2.perfetto.json" in response.headers["content-disposition"]


# -- events ----------------------------------------------------------------------------------------------------


class Stream:
    """Reads the events of a stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self.lines = lines
        self.last_id = ""

    async def next(self) -> dict[str, Any]:
        async for text in self.lines:
            if text.startswith("id: "):
                self.last_id, _, data = text.removeprefix("id: ").removesuffix("\n\n").partition("\ndata: ")
                return json.loads(data)  # type: ignore[no-any-return]
        raise EOFError

    async def names(self) -> list[str]:
        return [operation["name"] for operation in (await self.next())["operations"]]


@asynccontextmanager
async def streamed(inspector: Inspector, last_id: str = "") -> AsyncIterator[Stream]:
    stream: Any = inspector._live.stream(last_id)
    try:
        yield Stream(stream)
    finally:
        await stream.aclose()


async def test_operations_are_sent_as_they_end(inspector: Inspector) -> None:
    await operate("before")
    async with streamed(inspector) as stream:
        first = await stream.next()
        assert [operation["name"] for operation in first["operations"]] == ["before"]
        assert (first["reset"], first["oldest"]) == (True, 1)
        coming = asyncio.ensure_future(stream.next())
        await turns(10)
        await operate("then")
        await operate("and then")
        event = await coming
        assert [operation["name"] for operation in event["operations"]] == ["then", "and then"]
        assert event["reset"] is False
        last_id = stream.last_id
    await operate("meanwhile")
    async with streamed(inspector, last_id) as stream:
        assert await stream.names() == ["meanwhile"]
    for unknown in ("another-1", "nonsense", f"{inspector._store.run}-x", f"{inspector._store.run}-{'9' * 5000}"):
        async with streamed(inspector, unknown) as stream:
            assert (await stream.next())["reset"] is True
    assert inspector._store._told == []


async def test_a_slow_client_gets_what_is_kept_by_then() -> None:
    inspector = Inspector(operations=2)
    async with streamed(inspector) as stream:
        assert await stream.names() == []
        for number in range(10):
            await operate(str(number))
        event = await stream.next()
    assert [operation["name"] for operation in event["operations"]] == ["8", "9"]
    assert event["oldest"] == 9
    inspector.close()


async def test_operations_of_other_threads_are_sent_too(inspector: Inspector) -> None:
    async with streamed(inspector) as stream:
        assert await stream.names() == []
        thread = threading.Thread(target=lambda: asyncio.run(operate("elsewhere")))
        thread.start()
        thread.join()
        assert await stream.names() == ["elsewhere"]


async def test_a_stream_without_news_says_that_it_lives_and_ends_in_time(inspector: Inspector) -> None:
    began = asyncio.get_running_loop().time()
    texts = [text async for text in inspector._live.stream("")]
    assert asyncio.get_running_loop().time() - began <= _live.LIFE + _live.LOOK
    beats = [text for text in texts if text.startswith(":")]
    assert len(beats) == int(_live.LIFE / _live.HEARTBEAT) - 1
    assert texts[0] == "retry: 500\n\n"


async def test_closing_ends_the_streams(inspector: Inspector) -> None:
    async with streamed(inspector) as stream:
        await stream.next()
        rest = asyncio.ensure_future(stream.next())
        await turns(10)
        await inspector.aclose()
        with pytest.raises(EOFError):
            await rest
    await inspector.aclose()


async def test_closing_waits_a_second_at_most_for_a_client_that_reads_nothing(inspector: Inspector) -> None:
    async with streamed(inspector) as stream:
        await stream.next()
        began = asyncio.get_running_loop().time()
        await inspector.aclose()
        assert asyncio.get_running_loop().time() - began == 1


@pytest.mark.real_time
async def test_a_server_ends_though_a_page_is_open_and_forgets_one_that_left(inspector: Inspector) -> None:
    async with Server(mounted(inspector)) as server, httpx.AsyncClient(trust_env=False) as asking:
        address = f"http://{server.address}/inspector/api/events"
        async with asking.stream("GET", address) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    break
            assert len(inspector._live._streams) == 1
        while inspector._live._streams:  # noqa: ASYNC110  # the test's time limit is the bound
            await asyncio.sleep(0.01)

        async def read_on() -> None:
            async with asking.stream("GET", address) as response:
                async for _ in response.aiter_lines():
                    reading.set()

        reading = asyncio.Event()
        task = asyncio.create_task(read_on())
        await reading.wait()
    async with asyncio.timeout(5):
        with suppress(httpx.HTTPError):
            await task


async def test_events_and_everything_else_of_a_page_come_over_asgi(inspector: Inspector) -> None:
    await operate("Users")
    inspector._live.close()  # so that the stream ends
    async with client(inspector) as asking:
        response = await asking.get("/api/events", params={"last": "x"}, headers={"last-event-id": "y"})
    assert response.headers["x-accel-buffering"] == "no"
    assert response.text == "retry: 500\n\n"
