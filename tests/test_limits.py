"""Limits on concurrent batches, without a batch ever waiting for itself."""

from __future__ import annotations

import asyncio
import itertools
import random
import types
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from loader import DataLoader, LoaderError, Loaders, LoaderTimeoutError, SelfWaitError, dataloader
from loader._limits import Limit
from loader._waits import Work, asking_work
from tests import loops
from tests.fakes import Backend, awaits, outcome, together, turns

if TYPE_CHECKING:
    from collections.abc import Callable

# -- how many at once ----------------------------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_no_more_batches_run_than_allowed_and_the_others_follow_in_order() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend, max_batch_size=1, max_concurrent_batches=2)
    waiting = loader.load_many(range(5))
    await turns()
    assert backend.batches == [[0], [1]]
    gate.set()
    assert await waiting == ["v0", "v1", "v2", "v3", "v4"]
    assert backend.batches == [[0], [1], [2], [3], [4]]
    assert backend.most_running == 2


@pytest.mark.every_loop
async def test_a_batch_that_queues_still_takes_keys() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend, max_concurrent_batches=1)
    first = loader.load(1)
    await turns()
    second = loader.load(2)
    await turns()
    third = loader.load(3)
    assert loader.statistics().waiting == 2
    gate.set()
    await together(first, second, third)
    assert backend.batches == [[1], [2, 3]]


@pytest.mark.every_loop
async def test_a_class_of_loaders_shares_its_limit() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)

    class Shared(Loaders, max_concurrent_batches=1):
        @dataloader
        async def one(self, keys: list[int]) -> list[str]:
            return await backend(keys)

        @dataloader
        async def two(self, keys: list[int]) -> list[str]:
            return await backend(keys)

    class Inherits(Shared):
        pass

    async with Inherits() as loaders, Inherits() as others:
        mine = asyncio.gather(loaders.one.load(1), loaders.two.load(2))
        await turns()
        assert backend.batches == [[1]]
        theirs = others.two.load(3)  # another instance, another limit
        await turns()
        assert backend.batches == [[1], [3]]
        gate.set()
        await together(mine, theirs)


@pytest.mark.every_loop
async def test_a_batch_cancelled_while_it_queues_gives_up_its_place() -> None:
    gate = asyncio.Event()
    loader = DataLoader(Backend(gate=gate), max_batch_size=1, max_concurrent_batches=1)
    first, second, third = loader.load(1), loader.load(2), loader.load(3)
    await turns()
    queued = loader._waiting[2].task
    assert queued is not None
    queued.cancel()
    assert "cancelled with its task" in str(await outcome(second))
    gate.set()
    assert await together(first, third) == ["v1", "v3"]


@pytest.mark.every_loop
async def test_a_slot_granted_to_a_batch_cancelled_in_the_same_turn_goes_on_to_the_next() -> None:
    loop = asyncio.get_running_loop()
    limit, works = Limit(1), [Work(()) for _ in range(3)]
    await limit.acquire(works[0], loop)
    second, third = (awaits(limit.acquire(work, loop)) for work in works[1:])
    await turns()
    limit.release(works[0])  # grants it to the second
    second.cancel()
    await asyncio.wait([second, third])
    assert second.cancelled()
    limit.release(works[2])


@pytest.mark.every_loop
async def test_a_queued_batch_cancelled_right_before_a_slot_is_free_is_passed_over() -> None:
    loop = asyncio.get_running_loop()
    limit, works = Limit(1), [Work(()) for _ in range(3)]
    await limit.acquire(works[0], loop)
    second, third = (awaits(limit.acquire(work, loop)) for work in works[1:])
    await turns()
    second.cancel()
    limit.release(works[0])
    await asyncio.wait([second, third])
    assert not third.cancelled()
    limit.release(works[2])


def test_a_limit_says_what_it_is() -> None:
    assert repr(Limit(2)) == "<limit of 2 concurrent batches>"


def test_slots_held_on_a_loop_that_was_closed_are_free_again() -> None:
    limit, lost, mine = Limit(1), Work(()), Work(())
    old = loops.new_loop()
    old.run_until_complete(limit.acquire(lost, old))
    old.close()

    async def on_a_new_loop() -> None:
        await limit.acquire(mine, asyncio.get_running_loop())
        limit.release(lost)  # too late to count
        limit.release(mine)

    loops.run(on_a_new_loop)


def test_slots_held_on_another_open_loop_are_an_error_and_idle_limits_move() -> None:
    limit, held = Limit(1), Work(())
    old = loops.new_loop()
    old.run_until_complete(limit.acquire(held, old))

    async def take() -> Any:
        return await outcome(limit.acquire(Work(()), asyncio.get_running_loop()))

    assert "belongs to another event loop" in str(loops.run(take))
    limit.release(held)
    assert loops.run(take) is None
    old.close()


# -- nested --------------------------------------------------------------------------------------------------------


@pytest.mark.every_loop
@pytest.mark.parametrize("slots", [1, 2])
async def test_more_nested_batches_than_slots_do_not_deadlock(slots: int) -> None:
    log: list[str] = []

    class Nested(Loaders):
        @dataloader(max_concurrent_batches=slots)
        async def down(self, keys: list[int]) -> list[int]:
            log.append(f"down {keys}")
            below = [key - 1 for key in keys if key]
            return [*(1 + depth for depth in await self.down.load_many(below)), *(0 for key in keys if not key)]

    async with Nested() as loaders:
        assert await loaders.down.load(5) == 5
    assert log == [f"down [{key}]" for key in (5, 4, 3, 2, 1, 0)]


@pytest.mark.every_loop
async def test_nested_batches_under_the_limit_of_a_class_run_one_statement_at_a_time() -> None:
    statements = Backend(lambda key: key)

    class Session(Loaders, max_concurrent_batches=1):
        @dataloader
        async def users(self, ids: list[int]) -> list[Any]:
            found = await statements(ids)
            return await self.teams.load_many(found)

        @dataloader
        async def teams(self, ids: list[int]) -> list[Any]:
            await statements(ids)
            return await self.places.load_many(ids)

        @dataloader
        async def places(self, ids: list[int]) -> list[Any]:
            await turns(3)
            return await statements(ids)

    async with Session() as loaders:
        one = loaders.users.load(1)
        await turns(3)
        assert await together(one, loaders.places.load(7), loaders.teams.load(8)) == [1, 7, 8]
    assert statements.most_running == 1


@pytest.mark.every_loop
async def test_a_queued_batch_that_a_batch_function_begins_to_wait_for_runs_in_its_place() -> None:
    gate = asyncio.Event()

    class Pair(Loaders, max_concurrent_batches=1):
        @dataloader
        async def outer(self, keys: list[int]) -> list[int]:
            await gate.wait()
            return await self.inner.load_many(keys)

        @dataloader(max_batch_size=1)
        async def inner(self, keys: list[int]) -> list[int]:
            return keys

    async with Pair() as loaders:
        outer = loaders.outer.load(1)
        await turns()
        inner = loaders.inner.load(1)
        await turns()
        assert not inner.done()
        gate.set()
        assert await together(outer, inner) == [1, 1]


@pytest.mark.every_loop
async def test_a_queued_batch_borrows_no_slot_of_a_batch_that_does_not_wait_for_it() -> None:
    gate = asyncio.Event()
    backend = Backend(gate=gate)
    inner = DataLoader(backend, max_concurrent_batches=1)

    async def function(keys: list[int]) -> list[str]:
        return await inner.load_many(keys)

    first = inner.load(1)
    await turns()
    outer = DataLoader(function).load(2)
    await turns()
    assert backend.batches == [[1]]
    gate.set()
    assert await together(first, outer) == ["v1", "v2"]


@pytest.mark.every_loop
async def test_two_loaders_with_one_slot_each_that_load_through_one_another_do_not_deadlock() -> None:
    both = asyncio.Barrier(2)

    class Crossed(Loaders):
        @dataloader(max_concurrent_batches=1)
        async def a(self, keys: list[str]) -> list[str]:
            if keys == ["outer"]:
                await both.wait()
                return await self.b.load_many(["inner"])
            return keys

        @dataloader(max_concurrent_batches=1)
        async def b(self, keys: list[str]) -> list[str]:
            if keys == ["outer"]:
                await both.wait()
                return await self.a.load_many(["inner"])
            return keys

    async with Crossed() as loaders:
        assert await together(loaders.a.load("outer"), loaders.b.load("outer")) == ["inner", "inner"]


@pytest.mark.every_loop
async def test_a_batch_borrows_the_slot_of_one_that_waits_for_something_else_too() -> None:
    gate, log = asyncio.Event(), []

    class Nested(Loaders):
        @dataloader
        async def slow(self, keys: list[str]) -> list[str]:
            await gate.wait()
            return keys

        @dataloader(max_concurrent_batches=1)
        async def limited(self, keys: list[str]) -> list[str]:
            log.append(keys)
            if keys == ["outer"]:
                await together(self.slow.load("slow"), self.limited.load("inner"))
            return keys

    async with Nested() as loaders:
        outer = loaders.limited.load("outer")
        await turns(20)
        assert log == [["outer"], ["inner"]]
        gate.set()
        assert await outer == "outer"


@pytest.mark.every_loop
async def test_loaders_that_load_through_one_another_lend_no_slot_while_something_that_they_wait_for_goes_on() -> None:
    both, gate = asyncio.Barrier(2), asyncio.Event()
    log: list[str] = []

    class Crossed(Loaders):
        @dataloader
        async def slow(self, keys: list[str]) -> list[str]:
            await gate.wait()
            return keys

        @dataloader(max_concurrent_batches=1)
        async def a(self, keys: list[str]) -> list[str]:
            if keys == ["outer"]:
                await both.wait()
                _, inner = await together(self.slow.load("slow"), self.b.load("inner"))
                return [inner]
            log.append("a")
            return keys

        @dataloader(max_concurrent_batches=1)
        async def b(self, keys: list[str]) -> list[str]:
            if keys == ["outer"]:
                await both.wait()
                return await self.a.load_many(["inner"])
            log.append("b")
            return keys

    async with Crossed() as loaders:
        waiting = awaits(together(loaders.a.load("outer"), loaders.b.load("outer")))
        await turns(20)
        assert log == []
        gate.set()
        assert await waiting == ["inner", "inner"]
        assert sorted(log) == ["a", "b"]


@pytest.mark.every_loop
async def test_loaders_that_load_through_one_another_go_on_when_what_still_went_on_in_a_lent_slot_has_ended() -> None:
    both, gate = asyncio.Barrier(2), asyncio.Event()

    class Crossed(Loaders):
        @dataloader(max_concurrent_batches=1, max_batch_size=1)
        async def a(self, keys: list[str]) -> list[str]:
            if keys == ["outer"]:
                await both.wait()
                _, inner = await together(self.a.load("first"), self.b.load("inner"))
                return [inner]
            if keys == ["first"]:
                await gate.wait()
            return keys

        @dataloader(max_concurrent_batches=1)
        async def b(self, keys: list[str]) -> list[str]:
            if keys == ["outer"]:
                await both.wait()
                return await self.a.load_many(["inner"])
            return keys

    async with Crossed() as loaders:
        waiting = awaits(together(loaders.a.load("outer"), loaders.b.load("outer")))
        await turns(20)
        gate.set()
        assert await waiting == ["inner", "inner"]


@pytest.mark.every_loop
async def test_a_full_batch_that_queues_at_the_common_limit_does_not_hold_the_slot_of_its_loader() -> None:
    gate = asyncio.Event()

    class Both(Loaders, max_concurrent_batches=1):
        @dataloader(max_concurrent_batches=1, max_batch_size=1)
        async def inner(self, keys: list[int]) -> list[int]:
            return keys

        @dataloader
        async def outer(self, keys: list[int]) -> list[int]:
            await gate.wait()
            return await self.inner.load_many([key + 10 for key in keys])

    async with Both() as loaders:
        outer = loaders.outer.load(1)
        await turns()
        other = loaders.inner.load(5)
        await turns()
        gate.set()
        assert await together(outer, other) == [11, 5]


@pytest.mark.every_loop
async def test_a_slot_lent_goes_on_when_its_holder_ends_first() -> None:
    may_end = asyncio.Event()

    class Pair(Loaders, max_concurrent_batches=1):
        @dataloader
        async def impatient(self, keys: list[int]) -> list[int]:
            self.asked = self.slow.load(1)
            await turns()
            return keys  # without what it asked for

        @dataloader
        async def slow(self, keys: list[int]) -> list[int]:
            await may_end.wait()
            return keys

        @dataloader
        async def third(self, keys: list[int]) -> list[int]:
            return keys

    async with Pair() as loaders:
        assert await loaders.impatient.load(1) == 1
        third = loaders.third.load(3)
        await turns()
        assert not third.done()  # the slot is in use
        may_end.set()
        assert await third == 3
        assert await loaders.asked == 1


async def test_a_batch_that_timed_out_and_takes_no_notice_may_still_load() -> None:
    class Deaf(Loaders, max_concurrent_batches=1):
        @dataloader
        async def quick(self, keys: list[int]) -> list[int]:
            return keys

        @dataloader(timeout=1)
        async def deaf(self, keys: list[int]) -> list[int]:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.late = await self.quick.load_many(keys)
            return keys

    async with Deaf() as loaders:
        assert isinstance(await outcome(loaders.deaf.load(1)), LoaderTimeoutError)
        assert await loaders.quick.load(2) == 2
        await turns()
        assert loaders.late == [1]


@pytest.mark.every_loop
async def test_what_a_batch_function_started_may_load_after_it() -> None:
    class Starts(Loaders):
        @dataloader
        async def keys(self, keys: list[int]) -> list[int]:
            self.afterwards = asyncio.ensure_future(self.later())
            return keys

        async def later(self) -> int:
            await turns()
            assert asking_work() is None
            return await self.keys.load(1)

    async with Starts() as loaders:
        assert await loaders.keys.load(1) == 1
        assert await loaders.afterwards == 1


# -- waiting for oneself -------------------------------------------------------------------------------------------


class Circles(Loaders):
    @dataloader
    async def direct(self, keys: list[int]) -> list[int]:
        return [await self.direct.load(key) for key in keys]

    @dataloader
    async def many(self, keys: list[int]) -> list[int]:
        return await self.many.load_many(keys)

    @dataloader
    async def there(self, keys: list[int]) -> list[int]:
        return await self.back.load_many(keys)

    @dataloader
    async def back(self, keys: list[int]) -> list[int]:
        return await self.further.load_many(keys)

    @dataloader
    async def further(self, keys: list[int]) -> list[int]:
        return [await self.there.load(key) for key in keys]


@pytest.mark.every_loop
@pytest.mark.parametrize("name", ["direct", "many", "there"])
async def test_a_batch_that_waits_for_itself_gets_an_error_instead(name: str) -> None:
    async with Circles() as loaders:
        error = await outcome(getattr(loaders, name).load(1))
    assert isinstance(error, SelfWaitError)
    assert "the batch function waits for a key that waits for it in turn, directly or through others" in str(error)


@pytest.mark.every_loop
async def test_after_the_error_the_loader_is_usable() -> None:
    circular = [True]

    async def function(keys: list[int]) -> list[int]:
        if circular.pop() if circular else False:
            assert isinstance(await outcome(loads_itself(keys[0])), SelfWaitError)
            return await loader.load_many([key + 1 for key in keys])
        return keys

    async def loads_itself(key: int) -> int:
        return await loader.load(key)

    loader: DataLoader[int, int] = DataLoader(function)
    assert await loader.load(1) == 2


def test_asking_twice_is_noted_once_and_what_has_ended_is_forgotten() -> None:
    asking, ended, other = Work(()), Work(()), Work(())
    asking.ask_for(ended, "somebody")
    asking.ask_for(ended, "somebody")
    assert list(asking.waits()) == [ended]
    ended.end()
    assert list(asking.waits()) == []
    asking.ask_for(other, "somebody")
    assert list(asking.waits()) == [other]


def test_two_ways_to_the_same_work_are_no_circle() -> None:
    top, left, right, bottom, end = (Work(()) for _ in range(5))
    for asking, asked in ((top, left), (top, right), (left, bottom), (right, bottom), (bottom, end)):
        asking.ask_for(asked, "somebody")
    Work(()).ask_for(top, "somebody")
    with pytest.raises(SelfWaitError):
        end.ask_for(top, "somebody")


class Crowd(Loaders, max_concurrent_batches=2):
    """Many batches of one key, which queue for slots in each way that they may be waited for."""

    @dataloader(max_batch_size=1, max_concurrent_batches=1)
    async def plain(self, keys: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return keys

    @dataloader(max_batch_size=1)
    async def below(self, keys: list[int]) -> list[int]:
        return await self.plain.load_many(keys)

    @dataloader
    async def from_one(self, keys: list[int]) -> list[list[int]]:
        return [await self.plain.load_many(range(key)) for key in keys]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often work was asked for what is around it."""
    counts: Counter[str] = Counter()

    def counted(name: str, method: Callable[[Work], Any]) -> Callable[[Work], Any]:
        def call(work: Work) -> Any:
            counts[name] += 1
            return method(work)

        return call

    for name in ("waits", "askers"):
        monkeypatch.setattr(Work, name, counted(name, getattr(Work, name)))
    return counts


@pytest.mark.parametrize("name", ["plain", "below", "from_one"])
def test_a_batch_is_looked_at_as_often_however_many_queue(name: str, looks: Counter[str]) -> None:
    async def load(count: int) -> None:
        async with Crowd() as loaders:
            loader = getattr(loaders, name)
            await (loader.load(count) if name == "from_one" else loader.load_many(range(count)))

    totals = []
    for count in (50, 500):
        looks.clear()
        loops.run(partial(load, count), debug=False)
        totals.append(looks.total())
    assert totals[1] < 12 * totals[0]


class Ladder(Loaders, max_concurrent_batches=1):
    """Batches that each wait for one more, on one slot."""

    @dataloader
    async def below(self, keys: list[int]) -> list[int]:
        return await self.below.load_many([key - 1 for key in keys]) if keys[0] else keys


def test_a_batch_is_looked_at_no_more_than_once_for_each_that_waits_for_it(looks: Counter[str]) -> None:
    async def load(depth: int) -> None:
        async with Ladder() as loaders:
            await loaders.below.load(depth)

    totals = []
    for depth in (20, 80):
        looks.clear()
        loops.run(partial(load, depth), debug=False)
        totals.append(looks.total())
    assert totals[1] < 20 * totals[0]  # 16 times, and 64 times if one that waits looked at all the others


@pytest.mark.parametrize("downwards", [True, False])
def test_however_many_ways_lead_to_the_same_work_it_is_looked_at_once(downwards: bool) -> None:
    levels = [[Work(()), Work(())] for _ in range(50)]  # 2 ** 49 ways from the first to the last
    for above, below in list(itertools.pairwise(levels))[:: 1 if downwards else -1]:
        for asking, asked in itertools.product(above, below):
            asking.ask_for(asked, "somebody")
    with pytest.raises(SelfWaitError):
        levels[-1][0].ask_for(levels[0][0], "somebody")


# -- any shape of nesting ------------------------------------------------------------------------------------------


def nested_loaders(seed: int) -> Callable[[], Any]:
    """A scenario: loaders with random limits whose functions load through one another, and callers that leave."""
    shape = random.Random(seed)
    depth = shape.randint(2, 5)
    calls = [0]

    def declare(level: int) -> Any:
        choices: dict[str, list[Any]] = {
            "max_concurrent_batches": [None, 1, 1, 2],
            "max_batch_size": [None, 1, 2, 3],
            "abandoned": ["finish", "finish", "cancel"],
            "timeout": [None, None, None, 5],
            "window": [None, None, 0, 1],
        }
        options: dict[str, Any] = {name: shape.choice(values) for name, values in choices.items()}

        async def function(self: Any, keys: list[int]) -> list[int]:
            calls[0] += 1
            chance = random.Random(seed * 1000 + calls[0])
            for _ in range(chance.randint(0, 3) if calls[0] < 60 else 0):
                await asyncio.sleep(chance.choice([0, 0, 0.3, 1]))
                wanted = [chance.randrange(12) for _ in range(chance.randint(1, 3))]
                nested = [getattr(self, f"level{chance.randrange(depth)}") for _ in wanted]
                if chance.random() < 0.5:
                    await outcome(each(nested[0], wanted))
                else:
                    await together(
                        *(each(loader, [key]) for loader, key in zip(nested, wanted, strict=True)),
                        return_exceptions=True,
                    )
            return keys

        function.__name__ = f"level{level}"
        return dataloader(cache=False, **options)(function)

    async def each(loader: DataLoader[int, int], keys: list[int]) -> object:
        return await (loader.load(keys[0]) if len(keys) == 1 else loader.load_many(keys))

    declared = {f"level{level}": declare(level) for level in range(depth)}
    limit = shape.choice([None, 1, 1, 2, 3])
    cls = types.new_class("Nested", (Loaders,), {"max_concurrent_batches": limit}, lambda body: body.update(declared))

    async def scenario() -> None:
        loaders = cls()

        async def caller(number: int) -> None:
            chance = random.Random(seed * 77 + number)
            for _ in range(chance.randint(1, 4)):
                await asyncio.sleep(chance.choice([0, 0.2, 0.5, 1]))
                loader = getattr(loaders, f"level{chance.randrange(depth)}")
                with suppress(LoaderError):
                    await each(loader, [chance.randrange(12) for _ in range(chance.choice([1, 3]))])

        callers = [asyncio.create_task(caller(number)) for number in range(shape.randint(1, 6))]
        for task in shape.sample(callers, k=len(callers) // 3):
            await asyncio.sleep(shape.random())
            task.cancel()
        await asyncio.wait(callers)
        await asyncio.sleep(1000)  # whatever was abandoned ends too, or the loop raises DeadlockError
        for _, loader in loaders._own._loaders.values():
            assert (loader._waiting, loader._batches, loader._open, loader._unsent) == ({}, set(), None, 0)
            for bound in loader._limits:
                assert (bound._holders, bound._lenders, len(bound._queue), bound._asked) == (set(), {}, 0, {})
        await loaders.aclose()

    return scenario


@pytest.mark.parametrize("seed", range(120))
def test_no_nesting_deadlocks_and_every_slot_comes_back(seed: int) -> None:
    loops.run(nested_loaders(seed), debug=False, expect_logged=[])
