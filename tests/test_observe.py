"""Observers are told what happens, harm nobody, and cost nothing where there are none."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from loader import (
    Batcher,
    Coalescer,
    DataLoader,
    Debouncer,
    Keyed,
    LoaderOverloadedError,
    Loaders,
    RunCancelledError,
    Scope,
    Settle,
    _hooks,
    _watching,
    dataloader,
)
from loader.observe import (
    BatchRecord,
    Figures,
    Observer,
    Outcome,
    Place,
    Reason,
    RunRecord,
    Statistics,
    asked_from,
    observing,
)
from tests.fakes import Backend, outcome, together, turns
from tests.jobs import Job, JobError, fail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class Seen(Observer):
    """What it was told, in a word each; the records beside it."""

    def __init__(self, *, places: bool = True, keys: bool = False) -> None:
        self.wants_places = places
        self.wants_keys = keys
        self.log: list[Any] = []
        self.batches: list[BatchRecord] = []
        self.runs: list[RunRecord] = []

    def scope_opened(self, scope: Scope) -> None:
        self.log.append("scope opened")

    def scope_closed(self, scope: Scope) -> None:
        self.log.append("scope closed")

    def batch_opened(self, batch: BatchRecord) -> None:
        self.log.append(f"{batch.name} opened")
        self.batches.append(batch)

    def batch_sent(self, batch: BatchRecord) -> None:
        self.log.append(f"{batch.name} sent {batch.size}")

    def batch_finished(self, batch: BatchRecord) -> None:
        assert batch.outcome is not None
        self.log.append(f"{batch.name} {batch.outcome.value}")

    def key_cached(self, name: str, scope: Scope | None, place: Place | None, count: int) -> None:
        self.log.append((f"{name} cached {count}", place and place.function))

    def key_dropped(self, kind: str, name: str, scope: Scope | None, count: int) -> None:
        self.log.append(f"{kind} {name} dropped {count}")

    def overloaded(self, kind: str, name: str, scope: Scope | None, count: int) -> None:
        self.log.append(f"{kind} {name} refused {count}")

    def run_started(self, run: RunRecord) -> None:
        self.log.append(f"{run.name} runs for {run.triggers}")
        self.runs.append(run)

    def run_finished(self, run: RunRecord) -> None:
        assert run.outcome is not None
        self.log.append(f"{run.name} {run.outcome.value}")

    @property
    def batch(self) -> BatchRecord:
        (batch,) = self.batches
        return batch


def here() -> str:
    """This file, as a place names it."""
    return __file__


def asked(batch: BatchRecord) -> dict[str, int]:
    return {place.function.rpartition(".")[2]: asks.count for place, asks in batch.asked.items()}


class Names(Loaders):
    def __init__(self) -> None:
        self.backend = Backend()

    @dataloader
    async def names(self, ids: list[int], *, upper: bool = False) -> list[str]:
        return await self.backend(ids)


class Slow(Loaders, max_concurrent_batches=1):
    @dataloader
    async def one(self, ids: list[int]) -> list[int]:
        await asyncio.sleep(1)
        return ids

    @dataloader
    async def two(self, ids: list[int]) -> list[int]:
        await asyncio.sleep(1)
        return ids


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records take the loop's time, which the tests know."""
    monkeypatch.setattr(_watching, "now", lambda: asyncio.get_running_loop().time())


# -- batches of a loader


@pytest.mark.every_loop
async def test_a_batch_is_told_from_its_first_key_to_its_answers() -> None:
    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend(), name="names")
        assert await together(loader.load(1), loader.load(2), loader.load(1)) == ["v1", "v2", "v1"]
    assert seen.log == ["names opened", "names sent 2", "names done"]
    batch = seen.batch
    assert (batch.name, batch.label, batch.kind, batch.size, batch.capacity) == ("names", "names", "loader", 2, None)
    assert (batch.reason, batch.outcome, batch.error, batch.missing) == (Reason.SETTLED, Outcome.DONE, None, 0)
    assert batch.sent is not None
    assert batch.started is not None
    assert batch.finished is not None
    assert batch.opened <= batch.sent <= batch.started <= batch.finished
    assert batch.keys is None


async def test_nothing_is_recorded_where_nobody_observes() -> None:
    seen = Seen()
    loader = DataLoader(Backend())
    with observing(seen):
        pass
    await loader.load(1)
    assert seen.log == []
    assert _hooks.everywhere == []
    assert loader._notes is None


async def test_a_loader_made_before_is_observed_and_a_batch_is_told_to_its_end() -> None:
    loader, seen = DataLoader(Backend(), name="names"), Seen()
    await loader.load(1)
    with observing(seen):
        future = loader.load(2)
    await future
    await loader.load(3)
    assert seen.log == ["names opened", "names sent 1", "names done"]


async def test_a_loader_may_have_an_observer_of_its_own() -> None:
    seen = Seen()
    mine, other = DataLoader(Backend(), name="mine", observer=seen), DataLoader(Backend(), name="other")
    await together(mine.load(1), other.load(1))
    assert seen.log == ["mine opened", "mine sent 1", "mine done"]
    assert mine.observed
    assert not other.observed


async def test_a_declared_loader_has_its_own_observer_and_that_of_its_scope() -> None:
    own, of_scope = Seen(), Seen()

    class Observed(Loaders):
        @dataloader(observer=own)
        async def names(self, ids: list[int]) -> list[int]:
            return ids

    async with Scope() as scope:
        await Observed().names.load(1)
        scope.observe(of_scope)
        await Observed().names.load(1)
    assert own.log == ["Observed.names opened", "Observed.names sent 1", "Observed.names done"] * 2
    assert of_scope.log == ["Observed.names opened", "Observed.names sent 1", "Observed.names done", "scope closed"]


async def test_an_observer_of_a_scope_sees_its_loaders_only() -> None:
    seen, loaders = Seen(), Names()
    async with Scope() as scope:
        with observing(seen, scope=scope):
            await loaders.names.load(1)
        await loaders.names.load(2)
    async with Scope():
        await loaders.names.load(1)
    assert seen.log == [f"Names.names(upper=False) {what}" for what in ("opened", "sent 1", "done")]
    assert seen.batch.scope is scope


async def test_a_record_does_not_keep_its_scope() -> None:
    seen = Seen()
    with observing(seen):
        async with Scope():
            await Names().names.load(1)
    gc.collect()
    assert seen.batch.scope is None


async def test_scopes_tell_that_they_open_and_close_once() -> None:
    seen = Seen()
    with observing(seen):
        scope = Scope()
        scope.close()
        scope.close()
    assert seen.log == ["scope opened", "scope closed"]


async def test_who_observes_in_two_ways_is_told_once() -> None:
    seen = Seen()
    with observing(seen), observing(seen):
        await DataLoader(Backend(), name="names", observer=seen).load(1)
    assert seen.log == ["names opened", "names sent 1", "names done"]


async def test_the_label_of_a_loader_lacks_its_parameters() -> None:
    seen = Seen()
    with observing(seen):
        await Names().names(upper=True).load(1)
    assert (seen.batch.name, seen.batch.label) == ("Names.names(upper=True)", "Names.names")


async def test_only_an_observer_can_observe() -> None:
    with pytest.raises(TypeError, match=r"subclass of loader.observe.Observer, not 5"), observing(5):  # type: ignore[type-var]
        pass
    with pytest.raises(TypeError, match=r"subclass of loader.observe.Observer"):
        Scope().observe(print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"subclass of loader.observe.Observer"):
        DataLoader(Backend(), observer=print)  # type: ignore[call-overload]


# -- why a batch left


async def test_the_reason_is_why_the_batch_left(virtual_time: None) -> None:
    seen = Seen()
    with observing(seen):
        await DataLoader(Backend(), max_batch_size=2).load_many([1, 2])
        await DataLoader(Backend(), window=5).load(1)
        flushed = DataLoader(Backend(), window=5)
        future = flushed.load(1)
        flushed.flush()
        await future
        settling = DataLoader(Backend(), window=Settle(turns=5))
        future = settling.load(1)
        settling.flush()
        await future
        ahead = DataLoader(Backend())
        await asked_from(Place("", 0, "flights.airline"), ahead.load, 1, planned=True)
        full_window = DataLoader(Backend(), window=5, max_batch_size=1)
        await full_window.load(1)
    assert [batch.reason for batch in seen.batches] == [
        Reason.FULL,
        Reason.WINDOW,
        Reason.FLUSHED,
        Reason.FLUSHED,
        Reason.PLANNED,
        Reason.FULL,
    ]
    assert [batch.capacity for batch in seen.batches] == [2, None, None, None, None, 1]
    window = seen.batches[1]
    assert (window.opened, window.sent) == (0, 5)


async def test_a_batch_that_queues_knows_who_held_the_slot(virtual_time: None) -> None:
    seen = Seen()
    with observing(seen):
        async with Scope():
            loaders = Slow()
            await together(loaders.one.load(1), loaders.two.load(1))
    first, second = seen.batches
    assert (first.sent, first.started, first.waited_for) == (0, 0, [])
    assert (second.sent, second.started, second.finished, second.waited_for) == (0, 1, 2, [first.as_holder])


async def test_batches_that_always_queue_keep_no_record_of_those_before_them(virtual_time: None) -> None:
    records: weakref.WeakSet[BatchRecord] = weakref.WeakSet()
    queued = 0

    class Counts(Observer):
        def batch_opened(self, batch: BatchRecord) -> None:
            records.add(batch)

        def batch_finished(self, batch: BatchRecord) -> None:
            nonlocal queued
            queued += len(batch.waited_for)

    loader = DataLoader(Backend(takes=1), max_concurrent_batches=1, max_batch_size=1, cache=False)
    with observing(Counts()):
        loads = [asyncio.ensure_future(loader.load(0))]
        for number in range(1, 100):
            loads.append(asyncio.ensure_future(loader.load(number)))
            await turns()
            await loads.pop(0)
        gc.collect()
        assert len(records) == 2  # of the one that runs, and of the last one
        await loads.pop()
    assert queued == 99


async def test_an_unobserved_holder_of_a_slot_is_not_known() -> None:
    seen, loader = Seen(), DataLoader(Backend(takes=1), max_concurrent_batches=1, max_batch_size=1)
    first = loader.load(1)
    with observing(seen):
        await together(first, loader.load(2))
    assert seen.batch.waited_for == []


# -- what became of it


async def test_a_batch_that_fails_says_with_what() -> None:
    async def broken(keys: list[int]) -> list[int]:
        raise ConnectionError

    seen = Seen()
    with observing(seen):
        assert isinstance(await outcome(DataLoader(broken).load(1)), ConnectionError)
    assert (seen.batch.outcome, seen.batch.error) == (Outcome.FAILED, ConnectionError)


async def test_a_batch_that_takes_too_long_or_is_closed_says_so() -> None:
    seen = Seen()
    with observing(seen):
        late = DataLoader(Backend(takes=10), timeout=1)
        await outcome(late.load(1))
        closed = DataLoader(Backend(takes=10))
        future = closed.load(1)
        await turns()
        await closed.aclose()
        await outcome(future)
        early = DataLoader(Backend())
        future = early.load(1)
        await early.aclose()
        await outcome(future)
        left = DataLoader(Backend(takes=10), abandoned="cancel")
        future = left.load(1)
        await turns()
        future.cancel()
        await turns()
    assert [batch.outcome for batch in seen.batches] == [Outcome.TIMED_OUT, *[Outcome.CANCELLED] * 3]
    assert [batch.started is None for batch in seen.batches] == [False, False, True, False]
    assert seen.batches[2].reason is None


async def test_keys_that_nobody_waits_for_are_dropped_and_a_batch_without_any_is_not_sent() -> None:
    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend(), name="names")
        loader.load(1).cancel()
        kept = loader.load(2)
        await kept
        loader.load(3).cancel()
        await turns()
    assert seen.log == [
        "names opened",
        "loader names dropped 1",
        "names sent 1",
        "names done",
        "names opened",
        "loader names dropped 1",
        "names empty",
    ]


async def test_missing_keys_are_counted_whatever_stands_for_them() -> None:
    async def odd(keys: list[int]) -> dict[int, int]:
        return {key: 0 for key in keys if key % 2}

    async def stream(keys: list[int]) -> AsyncIterator[tuple[int, int]]:
        yield keys[0], 0

    seen = Seen()
    with observing(seen):
        await DataLoader(odd).load_many([1, 2, 4], return_exceptions=True)
        await DataLoader(odd, default=0).load_many([1, 2, 4])
        await DataLoader(stream, default=0).load_many([1, 2, 4])
        await DataLoader(Backend()).load_many([1, 2, 4])
    assert [batch.missing for batch in seen.batches] == [2, 2, 2, 0]


async def test_what_is_refused_is_told() -> None:
    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend(), max_pending=1, name="names")
        first = loader.load(1)
        with pytest.raises(LoaderOverloadedError):
            loader.load_many([2, 3])
        await first
    assert seen.log == ["names opened", "loader names refused 2", "names sent 1", "names done"]


async def test_keys_from_the_cache_are_told_every_time() -> None:
    seen = Seen()
    loader = DataLoader(Backend(), name="names")
    with observing(seen):
        await loader.load(1)
        seen.log.clear()
        for _ in range(2):
            await loader.load(1)
        await loader.load_many([1, 1])
        with observing(Seen(places=False)):
            pass
        await asked_from(Place("", 0, "flights.airline"), loader.load, 1)
    function = "test_keys_from_the_cache_are_told_every_time"
    cached = ("names cached 1", function)
    assert seen.log == [cached, cached, cached, ("names cached 1", "flights.airline")]
    quiet = Seen(places=False)
    with observing(quiet):
        await loader.load(1)
    assert quiet.log == [("names cached 1", None)]


# -- who asked


def ask(loader: DataLoader[int, str]) -> asyncio.Future[str]:
    return loader.load(1)


async def test_a_place_is_the_users_line_that_asked_and_counts_all_keys() -> None:
    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend())
        await together(ask(loader), ask(loader), loader.load_many([1, 2, 3]))
    batch = seen.batch
    assert asked(batch) == {"ask": 2, "test_a_place_is_the_users_line_that_asked_and_counts_all_keys": 3}
    place = next(iter(batch.asked))
    line = ask.__code__.co_firstlineno + 1
    assert (place.file, place.line) == (here(), line)
    assert str(place) == f"{here()}:{line} in ask"
    assert all(batch.opened <= asks.first <= asks.last <= (batch.sent or 0) for asks in batch.asked.values())


async def test_places_are_not_looked_up_where_nobody_wants_them() -> None:
    seen = Seen(places=False)
    with observing(seen):
        loader = DataLoader(Backend())
        await together(loader.load(1), loader.load(2))
    assert seen.batch.asked == {}


async def test_who_asks_for_somebody_else_says_for_whom() -> None:
    seen, place = Seen(), Place("", 0, "flights.airline")
    with observing(seen):
        await asked_from(place, DataLoader(Backend()).load, 1)
    assert asked(seen.batch) == {"airline": 1}
    assert str(place) == "flights.airline"
    assert seen.batch.reason is Reason.SETTLED


async def test_a_caller_that_is_no_code_of_the_user_is_nowhere() -> None:
    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend())
        asyncio.get_running_loop().call_soon(loader.load, 1)
        await turns()
    assert list(seen.batch.asked) == [_watching.NOWHERE]


async def test_places_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watching, "MOST_PLACES", 1)
    monkeypatch.setattr(_watching, "_places", {})
    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend())
        await together(ask(loader), loader.load(2), ask(loader))
    assert list(asked(seen.batch).values()) == [2, 1]
    assert len(_watching._places) == 1


async def test_an_observer_is_told_of_each_question_if_it_wants_to_know() -> None:
    class Asked(Seen):
        def key_asked(self, batch: BatchRecord, place: Place | None, count: int) -> None:
            self.log.append((place and place.function, count))

    seen = Asked(places=False)
    with observing(seen):
        loader = DataLoader(Backend(), name="names")
        await together(loader.load(1), loader.load_many([2, 3]))
    assert seen.log == ["names opened", (None, 1), (None, 2), "names sent 3", "names done"]
    placed = Asked()
    with observing(placed):
        await ask(DataLoader(Backend(), name="names"))
    assert placed.log[1] == ("ask", 1)


async def test_keys_are_recorded_only_for_who_wants_them() -> None:
    seen, keen = Seen(), Seen(keys=True)
    with observing(seen), observing(keen):
        await DataLoader(Backend()).load_many([1, 2])
        async with Batcher(Backend()) as batcher:
            await batcher.submit_many([3, 3])
    assert [batch.keys for batch in keen.batches] == [[1, 2], [3, 3]]


async def test_a_batch_knows_the_batches_inside_of_which_it_was_asked_for() -> None:
    inner = DataLoader(Backend(), name="inner")

    async def load_outer(keys: list[int]) -> list[Any]:
        return await inner.load_many(keys)

    seen = Seen()
    with observing(seen):
        one, two = DataLoader(load_outer, name="one"), DataLoader(load_outer, name="two")
        await together(one.load(1), two.load(1))
    assert {batch.name: [parent.name for parent in batch.parents] for batch in seen.batches} == {
        "one": [],
        "two": [],
        "inner": ["one", "two"],
    }


async def test_a_parent_that_joins_while_the_batch_runs_is_known_in_the_end() -> None:
    gate = asyncio.Event()
    inner = DataLoader(Backend(gate=gate), name="inner")

    async def load_outer(keys: list[int]) -> list[Any]:
        return await inner.load_many(keys)

    seen = Seen()
    with observing(seen):
        direct = inner.load(1)
        await turns()
        late = DataLoader(load_outer, name="late").load(1)
        await turns()
        gate.set()
        await together(direct, late)
    assert [parent.name for parent in seen.batches[0].parents] == ["late"]


# -- loads awaited one after another


async def test_batches_of_one_key_that_one_call_asks_for_in_a_row_are_counted() -> None:
    async def one(loader: DataLoader[int, str], key: int) -> str:
        return await loader.load(key)

    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend())
        for key in range(4):
            await one(loader, key)
        await loader.load(10)
        await one(loader, 11)
        await loader.load_many([20, 21])
        await one(loader, 22)
    assert [batch.repeats for batch in seen.batches] == [0, 1, 2, 3, 0, 0, 0, 1]


async def test_batches_of_one_key_from_different_calls_are_no_repeats() -> None:
    async def one(loader: DataLoader[int, str], key: int) -> str:
        return await loader.load(key)

    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend())
        for key in range(3):
            await asyncio.create_task(one(loader, key))
        for key in range(3, 6):
            await asked_from(Place("", 0, "a.b"), loader.load, key)
    assert [batch.repeats for batch in seen.batches] == [0] * 6


async def test_forgetting_everything_starts_anew() -> None:
    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend())
        for key in range(3):
            await loader.load(key)
            loader.clear_all()
    assert [batch.repeats for batch in seen.batches] == [0, 0, 0]


# -- keys fetched again


async def test_a_key_that_is_fetched_again_after_it_was_cleared_is_counted_where_it_was_cleared() -> None:
    seen = Seen()
    with observing(seen):
        loader = DataLoader(Backend())
        await loader.load_many([1, 2])
        loader.clear_many([1, 2, 3])
        await loader.load_many([1, 2, 3])
    assert [sum(batch.refetched.values()) for batch in seen.batches] == [0, 2]
    (place,) = seen.batches[1].refetched
    assert place.function == "test_a_key_that_is_fetched_again_after_it_was_cleared_is_counted_where_it_was_cleared"


async def test_clearing_a_key_under_way_counts_and_clearing_one_that_waits_does_not() -> None:
    gate, seen = asyncio.Event(), Seen()
    with observing(seen):
        loader = DataLoader(Backend(gate=gate), cache=False)
        first = loader.load(1)
        loader.clear(1)
        await turns()
        loader.clear(1)
        again = loader.load(1)
        gate.set()
        await together(first, again)
        await loader.load(1)
    assert [sum(batch.refetched.values()) for batch in seen.batches] == [0, 1, 0]


async def test_cleared_keys_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watching, "MOST_PLACES", 1)
    loader = DataLoader(Backend())
    await loader.load_many([1, 2])
    with observing(Seen()):
        loader.clear_many([1, 2])
    assert loader._notes is not None
    assert list(loader._notes.cleared) == [1]


# -- batchers and triggers


async def test_a_batcher_tells_of_its_batches_their_reasons_and_who_submitted(virtual_time: None) -> None:
    seen = Seen()
    with observing(seen):
        idle = Batcher(Backend(takes=1), name="idle", max_batch_size=3)
        await idle.submit(1)
        await idle.submit_many([1, 2, 3])
        slow = Batcher(Backend(), name="slow", window=5)
        await slow.submit(1)
        future = slow.submit_nowait(1)
        await slow.flush()
        await future
    assert [(batch.name, batch.size, batch.reason) for batch in seen.batches] == [
        ("idle", 1, Reason.IDLE),
        ("idle", 3, Reason.FULL),
        ("slow", 1, Reason.WINDOW),
        ("slow", 1, Reason.FLUSHED),
    ]
    assert {batch.kind for batch in seen.batches} == {"batcher"}
    assert {batch.outcome for batch in seen.batches} == {Outcome.DONE}
    assert seen.log[:3] == ["idle opened", "idle sent 1", "idle done"]
    window = seen.batches[2]
    assert (window.opened, window.started, window.scope) == (2, 7, None)
    assert asked(window) == {"test_a_batcher_tells_of_its_batches_their_reasons_and_who_submitted": 1}


async def test_a_batcher_tells_of_what_it_drops_refuses_and_fails() -> None:
    async def broken(items: list[int]) -> list[int]:
        await asyncio.sleep(1)
        raise ConnectionError

    seen = Seen(places=False)
    with observing(seen):
        batcher = Batcher(broken, name="b", max_pending=1, max_batch_size=1, overflow="reject")
        running, waiting = batcher.submit_nowait(1), batcher.submit_nowait(2)
        with pytest.raises(LoaderOverloadedError):
            batcher.submit_nowait(3)
        waiting.cancel()
        assert isinstance(await outcome(running), ConnectionError)
    assert seen.log == ["b opened", "batcher b refused 1", "b sent 1", "batcher b dropped 1", "b failed"]
    assert seen.batch.error is ConnectionError
    assert seen.batch.asked == {}


async def test_a_batch_of_a_batcher_that_is_timed_out_or_closed_is_over_at_once() -> None:
    seen = Seen()
    with observing(seen):
        late = Batcher(Backend(takes=10), name="late", timeout=1)
        await outcome(late.submit(1))
        closed = Batcher(Backend(takes=10), name="closed")
        future = closed.submit_nowait(1)
        await turns()
        await closed.aclose(flush=False)
        await outcome(future)
    assert [batch.outcome for batch in seen.batches] == [Outcome.TIMED_OUT, Outcome.CANCELLED]
    assert seen.log.count("late timed out") == seen.log.count("closed cancelled") == 1


async def test_a_batch_of_a_batcher_counts_items_from_before_anybody_observed() -> None:
    seen = Seen()
    batcher = Batcher(Backend(), name="b")
    future = batcher.submit_nowait(1)
    with observing(seen):
        await together(future, batcher.submit_nowait(2))
    assert (seen.batch.size, sum(asks.count for asks in seen.batch.asked.values())) == (2, 1)


async def test_an_item_that_leaves_in_the_same_turn_as_its_batch_is_dropped() -> None:
    seen = Seen()
    with observing(seen):
        batcher = Batcher(Backend(), name="b", max_batch_size=2)
        batcher.submit_nowait(1).cancel()
        await batcher.submit_nowait(2)
    assert seen.log == ["batcher b dropped 1", "b opened", "b sent 1", "b done"]


async def test_a_trigger_tells_of_its_runs(virtual_time: None) -> None:
    seen = Seen()
    with observing(seen):
        async with Debouncer(Job(2), wait=1, name="reindex") as reindex:
            reindex.trigger()
            reindex.trigger()
        async with Coalescer(fail, on_error=lambda error: None) as refresh:
            refresh.trigger()
    assert seen.log == ["reindex runs for 2", "reindex done", "fail runs for 1", "fail failed"]
    debounced, failed = seen.runs
    assert (debounced.kind, failed.kind, failed.error) == ("debouncer", "coalescer", JobError)
    assert (debounced.triggered, debounced.started, debounced.finished) == (0, 0, 2)
    assert debounced.label == "reindex"


async def test_a_cancelled_run_is_no_failure() -> None:
    seen = Seen()
    with observing(seen):
        coalescer = Coalescer(Job(10), on_error=lambda error: None)
        coalescer.trigger()
        await turns()
        await coalescer.aclose(timeout=1)
    assert (seen.runs[0].outcome, seen.runs[0].error) == (Outcome.CANCELLED, RunCancelledError)


async def test_a_run_of_a_keyed_trigger_is_named_without_its_key() -> None:
    seen = Seen()
    with observing(seen):
        async with Keyed(Job(), lambda fn: Coalescer(fn), name="reindex") as named:
            named.trigger("secret")
        async with Keyed(Job(), lambda fn: Coalescer(fn, name="private")) as unnamed:
            unnamed.trigger("secret")
    assert [run.name for run in seen.runs] == ["reindex", "Job"]


async def test_what_a_scope_submits_and_triggers_is_told_to_its_observers() -> None:
    seen, other = Seen(), Seen()
    coalescer, batcher = Coalescer(Job()), Batcher(Backend(), name="b")
    async with Scope() as scope, Scope() as unused:
        unused.observe(other)
        Scope.leave(scope)
        scope.observe(seen)
        await together(coalescer.request(), coalescer.request())
        await batcher.submit(1)
        Scope.leave(None)
        await coalescer.request()
    assert seen.log[:-1] == ["Job runs for 2", "Job done", "b opened", "b sent 1", "b done"]
    assert other.log == ["scope closed"]


# -- observers that misbehave, and other threads


@pytest.mark.logs
async def test_an_observer_that_raises_is_reported_and_harms_nobody(reports: list[str]) -> None:
    class Broken(Observer):
        def batch_opened(self, batch: BatchRecord) -> None:
            raise ValueError("broken")

        def batch_finished(self, batch: BatchRecord) -> None:
            raise SystemExit

    seen = Seen()
    with observing(Broken()), observing(seen):
        assert await DataLoader(Backend(), name="names").load(1) == "v1"
    assert seen.log == ["names opened", "names sent 1", "names done"]
    assert len(reports) == 2
    assert "failed in batch_opened: ValueError('broken')" in reports[0]
    assert "failed in batch_finished: SystemExit()" in reports[1]


def test_without_a_loop_an_observer_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Observer):
        def scope_opened(self, scope: Scope) -> None:
            raise ValueError("broken")

    with observing(Broken()), caplog.at_level(logging.ERROR, "loader"):
        Scope()
    assert "failed in scope_opened" in caplog.text


def test_an_observer_sees_the_loops_of_all_threads() -> None:
    async def main(name: str) -> None:
        await DataLoader(Backend(), name=name).load(1)

    statistics = Statistics()
    with observing(statistics):
        threads = [threading.Thread(target=lambda n=n: asyncio.run(main(f"loader {n}"))) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [(each.name, each.calls) for each in statistics.snapshot()] == [(f"loader {n}", 1) for n in range(3)]


# -- statistics


async def test_statistics_count_and_measure_by_name(virtual_time: None) -> None:
    async def odd(keys: list[int]) -> dict[int, int]:
        await asyncio.sleep(1)
        return {key: key for key in keys if key % 2}

    with observing(Statistics()) as statistics:
        loader = DataLoader(odd, name="odd", default=None, window=2, max_pending=3)
        await loader.load_many([1, 2, 3])
        await loader.load(1)
        with pytest.raises(LoaderOverloadedError):
            loader.load_many([10, 11, 12, 13])
        loader.load(20).cancel()
        await asyncio.sleep(5)
        async with Coalescer(fail, name="run", on_error=lambda error: None) as coalescer:
            coalescer.trigger()
            coalescer.trigger()
    run, figures = statistics.snapshot()
    assert (figures.kind, figures.name, figures.calls, figures.asked) == ("loader", "odd", 1, 9)
    assert (figures.cached, figures.dropped, figures.overloaded, figures.missing) == (1, 1, 4, 1)
    assert (figures.reasons, figures.outcomes, figures.failures) == ({"window": 1}, {"done": 1, "empty": 1}, 0)
    assert (figures.size.mean, figures.wait.mean, figures.run_time.mean) == (3, 2, 1)
    assert (run.kind, run.calls, run.asked, run.outcomes, run.failures) == ("coalescer", 1, 2, {"failed": 1}, 1)


async def test_statistics_of_a_scope_are_its_own_and_those_of_the_process_the_sum() -> None:
    with observing(Statistics()) as statistics:
        loaders = Names()
        async with Scope() as one:
            await together(loaders.names.load(1), loaders.names(upper=True).load(1))
        async with Scope() as two:
            await loaders.names.load_many([1, 2])

        def keys(figures: tuple[Figures, ...]) -> list[tuple[str, int, float]]:
            return [(each.name, each.calls, each.size.total) for each in figures]

        assert keys(statistics.for_scope(one)) == [("Names.names", 2, 2)]
        assert keys(statistics.for_scope(two)) == [("Names.names", 1, 2)]
        assert keys(statistics.snapshot()) == [("Names.names", 3, 4)]
        assert statistics.for_scope(Scope()) == ()


async def test_records_say_what_they_are() -> None:
    seen, gate = Seen(), asyncio.Event()
    with observing(seen):
        loader = DataLoader(Backend(gate=gate), name="names")
        future = loader.load(1)
        assert repr(seen.batch) == "<batch of names: 0 keys, waiting>"
        await turns()
        assert repr(seen.batch) == "<batch of names: 1 keys, running>"
        gate.set()
        await future
        assert repr(seen.batch) == "<batch of names: 1 keys, done>"
        async with Batcher(Backend(), name="b") as batcher:
            await batcher.submit(1)
        assert repr(seen.batches[1]) == "<batch of b: 1 items, done>"
        async with Coalescer(Job(1), name="run") as coalescer:
            coalescer.trigger()
            await turns()
            assert repr(seen.runs[0]) == "<run of run: 1 triggers, running>"
        assert repr(seen.runs[0]) == "<run of run: 1 triggers, done>"


async def test_an_observer_that_overrides_nothing_hears_nothing() -> None:
    with observing(Observer()):
        async with Scope():
            loaders = Names()
            await loaders.names.load(1)
            await loaders.names.load(1)
        loader = DataLoader(Backend(), max_pending=1)
        loader.load(1).cancel()
        with pytest.raises(LoaderOverloadedError):
            loader.load_many([1, 2])
        await turns()
        async with Coalescer(Job()) as coalescer:
            coalescer.trigger()


def test_statistics_are_imported_on_demand_and_nothing_else_is_there() -> None:
    import loader.observe

    assert loader.observe.Statistics is Statistics
    with pytest.raises(AttributeError, match="has no attribute 'Sttistics'"):
        loader.observe.Sttistics  # noqa: B018


# -- the contexts in which observers are told

where: ContextVar[str] = ContextVar("where", default="nowhere")


class Sets(Observer):
    """Sets a context variable when a function is about to be called, and notes where keys and runs were asked for."""

    wants_places = False

    def __init__(self) -> None:
        self.log: list[Any] = []

    def key_asked(self, batch: BatchRecord, place: Place | None, count: int) -> None:
        self.log.append((batch.name, where.get(), place, count))

    def batch_sent(self, batch: BatchRecord) -> None:
        where.set(f"the batch of {batch.name}")

    def run_asked(self, run: RunRecord) -> None:
        self.log.append((run.name, where.get(), run.triggers))

    def run_started(self, run: RunRecord) -> None:
        where.set(f"the run of {run.name}")


async def tell_where(items: list[Any]) -> list[str]:
    return [where.get() for _ in items]


async def tell_where_it_runs() -> str:
    return where.get()


@pytest.mark.every_loop
async def test_what_an_observer_sets_when_a_function_is_called_is_set_for_that_function_alone() -> None:
    with observing(Sets()):
        for _ in range(2):
            loader = DataLoader(tell_where, name="l", cache=False)
            assert await together(loader.load(1), loader.load(2)) == ["the batch of l"] * 2
            async with Batcher(tell_where, name="b") as batcher:
                assert await batcher.submit(1) == "the batch of b"
            async with Coalescer(tell_where_it_runs, name="c") as coalescer:
                assert await coalescer.request() == "the run of c"
            assert where.get() == "nowhere"
    async with Batcher(tell_where) as batcher, Coalescer(tell_where_it_runs) as coalescer:
        assert (await batcher.submit(1), await coalescer.request()) == ("nowhere", "nowhere")


async def test_who_asks_is_told_in_its_own_context_by_loaders_batchers_and_triggers() -> None:
    sets = Sets()

    async def ask(who: str, start: Callable[[], Awaitable[Any]]) -> None:
        where.set(who)
        await start()

    with observing(sets):
        loader = DataLoader(tell_where, name="l")
        await together(ask("one", lambda: loader.load(1)), ask("two", lambda: loader.load_many([2, 3])))
        async with Batcher(tell_where, name="b") as batcher, Coalescer(tell_where_it_runs, name="c") as coalescer:
            await together(*(ask(who, lambda: batcher.submit(1)) for who in ("one", "two")))
            coalescer.trigger()
            coalescer.trigger()
            await together(*(ask(who, coalescer.request) for who in ("one", "two")))
    assert sets.log == [
        ("l", "one", None, 1),
        ("l", "two", None, 2),
        ("b", "one", None, 1),
        ("b", "two", None, 1),
        ("c", "nowhere", 2),  # the first trigger; the second one joined what was there
        ("c", "one", 2),
        ("c", "two", 2),
    ]
    assert where.get() == "nowhere"


async def test_of_the_contexts_of_those_who_wait_for_a_run_a_bounded_number_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_watching, "MOST_ASKERS", 3)
    sets = Sets()
    with observing(sets):
        async with Debouncer(tell_where_it_runs, wait=1) as debouncer:
            await together(*(debouncer.request() for _ in range(4)))
    assert len(sets.log) == 3


@pytest.mark.parametrize("within", ["loader", "batcher", "trigger"])
async def test_a_batch_and_a_run_that_fail_hand_over_their_error_right_before_they_are_over(within: str) -> None:
    class Failures(Seen):
        def failed(self, what: BatchRecord | RunRecord, error: BaseException) -> None:
            assert (what.outcome, what.error) == (Outcome.FAILED, type(error))
            self.log.append(error)

    async def broken(*_: Any) -> Any:
        raise JobError("of the function")

    seen = Failures(places=False)
    with observing(seen):
        if within == "loader":
            await outcome(DataLoader(broken).load(1))
        elif within == "batcher":
            await outcome(Batcher(broken).submit(1))
        else:
            await outcome(Coalescer(broken).request())
    error, over = seen.log[-2:]
    assert isinstance(error, JobError)
    assert over.endswith(" failed")


async def test_a_run_that_is_cancelled_before_its_first_step_is_told_from_beginning_to_end_all_the_same() -> None:
    sets, seen = Sets(), Seen()
    with observing(sets), observing(seen):
        coalescer = Coalescer(tell_where_it_runs, name="c", on_error=lambda error: None)
        coalescer.trigger()
        await asyncio.sleep(0)
        assert coalescer._current is not None
        assert coalescer._current.task is not None
        coalescer._current.task.cancel()
        await coalescer.wait_idle()
    assert seen.log == ["c runs for 1", "c cancelled"]
    assert await coalescer.request() == "nowhere"


async def test_a_batch_of_a_batcher_that_is_cancelled_before_its_first_step_was_never_sent() -> None:
    seen = Seen()
    with observing(seen):
        batcher = Batcher(Backend(), name="b", max_batch_size=1)
        future = batcher.submit_nowait(1)
        await batcher.aclose(flush=False)
        await outcome(future)
    assert seen.log == ["b opened", "b cancelled"]
    assert (seen.batch.size, seen.batch.started) == (1, None)


async def test_a_run_is_counted_without_the_arguments_of_its_partial() -> None:
    async def refresh(tenant: str) -> None: ...

    with observing(Statistics()) as statistics:
        for tenant in ("secret", "other"):
            async with Coalescer(functools.partial(refresh, tenant)) as coalescer:
                await coalescer.request()
    (figures,) = statistics.snapshot()
    assert figures.name.endswith("refresh")
    assert figures.calls == 2
