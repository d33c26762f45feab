"""Scopes: the life of one operation's loaders."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest

from loader import DataLoader, LoaderClosedError, LoaderLoopError, Loaders, Scope, Settle, dataloader
from tests import loops
from tests.fakes import Backend, awaits, outcome, together, turns


class AppLoaders(Loaders):
    def __init__(self, backend: Backend | None = None) -> None:
        self.backend = backend or Backend()

    @dataloader
    async def users(self, ids: list[int]) -> list[str]:
        return await self.backend(ids)

    @dataloader
    async def teams(self, ids: list[int]) -> list[str]:
        return await self.backend(ids)

    @dataloader
    async def nested(self, ids: list[int]) -> list[str]:
        return await self.users.load_many(ids)


@pytest.mark.every_loop
async def test_without_a_scope_an_instance_is_its_own() -> None:
    loaders = AppLoaders()
    assert Scope.current() is None
    assert loaders.users is loaders.users
    assert await together(loaders.users.load(1), loaders.users.load(2)) == ["v1", "v2"]
    assert await loaders.users.load(1) == "v1"
    loaders.clear_all()
    await loaders.users.load(1)
    assert loaders.backend.batches == [[1, 2], [1]]
    await loaders.aclose()
    with pytest.raises(LoaderClosedError, match=r"AppLoaders.users"):
        loaders.users.load(3)
    with pytest.raises(LoaderClosedError, match=r"AppLoaders.teams: the scope is closed, as the operation .* is over"):
        loaders.teams  # noqa: B018  # made on first use


@pytest.mark.every_loop
async def test_each_scope_has_its_own_loaders_and_caches() -> None:
    loaders = AppLoaders()
    seen = []
    for _ in range(2):
        async with Scope() as scope:
            assert Scope.current() is scope
            seen.append(loaders.users)
            await loaders.users.load(1)
            await loaders.users.load(1)
            scope.clear_all()
            loaders.clear_all()
            await loaders.users.load(1)
    assert Scope.current() is None
    assert seen[0] is not seen[1]
    assert loaders.backend.batches == [[1]] * 4
    with pytest.raises(LoaderClosedError):
        seen[0].load(1)


@pytest.mark.every_loop
async def test_a_scope_may_keep_nothing() -> None:
    loaders = AppLoaders()
    async with Scope() as scope:
        assert await loaders.users.load(1) == "v1"
        scope.keep_nothing()
        assert await together(loaders.users.load(1), loaders.users.load(1)) == ["v1", "v1"]
        assert loaders.users.peek(1) is None
        loaders.users.prime(2, "primed")
        assert await loaders.users.load_many([1, 2]) == ["v1", "primed"]
    assert loaders.backend.batches == [[1]] * 3
    await loaders.aclose()


@pytest.mark.every_loop
async def test_two_instances_in_one_scope_share_nothing() -> None:
    async with Scope():
        one, two = AppLoaders(), AppLoaders()
        assert one.users is not two.users
        await together(one.users.load(1), two.users.load(1))
        assert one.backend.batches == two.backend.batches == [[1]]


@pytest.mark.every_loop
async def test_closing_one_instance_leaves_the_other_of_its_scope() -> None:
    async with Scope():
        one, two = AppLoaders(), AppLoaders()
        await together(one.users.load(1), two.users.load(1))
        await one.aclose()
        assert await two.users.load(2) == "v2"
        with pytest.raises(LoaderClosedError):
            one.users.load(2)


@pytest.mark.every_loop
async def test_scopes_nest() -> None:
    loaders = AppLoaders()
    async with Scope() as outer:
        first = loaders.users
        async with Scope() as inner:
            assert Scope.current() is inner
            assert loaders.users is not first
        assert Scope.current() is outer
        assert loaders.users is first


@pytest.mark.every_loop
async def test_what_a_batch_function_loads_belongs_to_the_scope_of_its_batch() -> None:
    loaders = AppLoaders()
    async with Scope():
        assert await together(loaders.nested.load(1), loaders.users.load(2)) == ["v1", "v2"]
        assert await loaders.users.load(1) == "v1"
    assert sorted(key for batch in loaders.backend.batches for key in batch) == [1, 2]
    assert loaders._own._loaders == {}
    assert await loaders.nested.load(1) == "v1"  # and without a scope to the instance
    assert len(loaders._own._loaders) == 2


@pytest.mark.every_loop
async def test_the_own_scope_of_an_instance_made_in_an_operation_outlives_the_operation() -> None:
    async with Scope():
        loaders = AppLoaders()
    assert await loaders.nested.load(1) == "v1"
    await loaders.aclose()


@pytest.mark.every_loop
async def test_loaders_of_one_scope_settle_together() -> None:
    log: list[str] = []

    class Timed(Loaders):
        @dataloader(window=Settle(turns=2))
        async def first(self, keys: list[int]) -> list[int]:
            log.append(f"first {keys}")
            return keys

        @dataloader
        async def second(self, keys: list[int]) -> list[int]:
            log.append(f"second {keys}")
            return keys

    loaders = Timed()

    async def later(count: int, loader: DataLoader[int, int], key: int) -> None:
        await turns(count)
        await loader.load(key)

    await together(
        *(later(count, loaders.second if count % 2 else loaders.first, count) for count in range(8)),
    )
    assert sorted(log) == ["first [0, 2, 4, 6]", "second [1, 3, 5, 7]"]


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


@pytest.mark.every_loop
async def test_a9_nothing_of_one_operation_shows_in_another() -> None:
    class Private(Loaders):
        @dataloader
        async def secrets(self, keys: list[str]) -> list[Any]:
            await turns(2)
            whose = variable.get()
            variable.set("of a batch function")
            return [PermissionError(whose) if key == "forbidden" else f"{whose}: {key}" for key in keys]

    loaders = Private()

    async def operation(whose: str, late: int) -> None:
        variable.set(whose)
        await turns(late)
        async with Scope():
            for key in ("a", "b"):
                assert await loaders.secrets.load(key) == f"{whose}: {key}"
            error = await outcome(loaders.secrets.load("forbidden"))
            assert isinstance(error, PermissionError)
            assert str(error) == whose
            assert loaders.secrets.statistics().cached == 3
        assert variable.get() == whose

    await together(*(operation(f"user {number}", number % 5) for number in range(20)))


@pytest.mark.every_loop
async def test_closing_a_scope_answers_everybody_and_the_instance_waits_for_the_functions_to_end() -> None:
    may_end, log = asyncio.Event(), []

    class Slow(Loaders):
        @dataloader
        async def things(self, keys: list[int]) -> list[int]:
            try:
                await asyncio.Event().wait()
            finally:
                await may_end.wait()
                log.append("ended")
            return keys

    loaders, scope = Slow(), Scope()
    outer = scope.enter()
    waiting, many = loaders.things.load(1), loaders.things.load_many([1, 2])
    await turns()
    Scope.leave(outer)
    scope.close()
    scope.close()
    assert isinstance(await outcome(waiting), LoaderClosedError)
    assert isinstance(await outcome(many), LoaderClosedError)
    closing = [awaits(loaders.aclose()), awaits(scope.aclose())]
    await turns()
    assert not any(task.done() for task in closing)
    may_end.set()
    await together(*closing)
    assert log == ["ended"]
    assert loaders._ending == set()


@pytest.mark.real_time
async def test_a_scope_that_somebody_waits_in_cannot_be_closed_from_elsewhere() -> None:
    may_end = asyncio.Event()

    class Slow(Loaders):
        @dataloader
        async def things(self, keys: list[int]) -> list[int]:
            await may_end.wait()
            return keys

    scope = Scope()
    outer = scope.enter()
    waiting = Slow().things.load(1)
    Scope.leave(outer)
    await turns()
    with pytest.raises(LoaderLoopError, match="things"):
        await asyncio.to_thread(scope.close)
    assert not scope.closed
    may_end.set()
    assert await waiting == 1
    await asyncio.to_thread(scope.close)
    assert scope.closed


@pytest.mark.every_loop
async def test_a_batch_function_may_close_its_own_scope() -> None:
    class Suicidal(Loaders):
        @dataloader
        async def things(self, keys: list[int]) -> list[int]:
            await self.aclose()
            return keys

    loaders = Suicidal()
    assert isinstance(await outcome(loaders.things.load(1)), LoaderClosedError)
    await loaders.aclose()


@pytest.mark.every_loop
async def test_closing_an_idle_scope_and_closing_twice_are_no_errors() -> None:
    async with AppLoaders() as loaders:
        pass
    await loaders.aclose()
    scope = Scope()
    await scope.aclose()
    scope.close()


@pytest.mark.every_loop
async def test_no_loader_is_made_in_a_closed_scope_nor_for_closed_loaders() -> None:
    loaders = AppLoaders()
    async with Scope() as scope:
        scope.close()
        with pytest.raises(LoaderClosedError, match=r"AppLoaders.users: the scope is closed"):
            loaders.users  # noqa: B018  # made on first use
    await loaders.aclose()
    async with Scope():
        with pytest.raises(LoaderClosedError, match=r"AppLoaders.users: the loaders are closed"):
            loaders.users  # noqa: B018  # made on first use


def test_a_scope_can_be_closed_where_no_loop_runs() -> None:
    scope, loaders = Scope(), AppLoaders()
    outer = scope.enter()

    async def main() -> None:
        await loaders.users.load(1)

    loops.run(main)
    Scope.leave(outer)
    scope.close()
    assert scope.closed


@pytest.mark.every_loop
async def test_a_scope_can_be_left_in_another_context_than_it_was_entered_in() -> None:
    scope = Scope()
    outer = contextvars.copy_context().run(scope.enter)
    contextvars.copy_context().run(Scope.leave, outer)
    assert Scope.current() is None
    await scope.aclose()


@pytest.mark.every_loop
async def test_a_scope_that_is_over_holds_nothing_of_its_operation() -> None:
    loaders = AppLoaders()
    alive = weakref.ref(loaders)
    async with Scope() as scope:
        await loaders.nested.load(1)
    held = weakref.ref(scope)
    del loaders, scope
    await turns()
    gc.collect()
    assert alive() is None
    assert held() is None


@dataclass(frozen=True)
class Frozen(Loaders):
    offset: int

    @dataloader
    async def things(self, keys: list[int]) -> list[int]:
        return [key + self.offset for key in keys]


@pytest.mark.every_loop
async def test_loaders_may_be_a_frozen_dataclass() -> None:
    async with Frozen(10) as loaders:
        assert await loaders.things.load(1) == 11
    assert Frozen(10) == Frozen(10)


def test_the_limit_of_a_class_is_a_whole_number_of_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_concurrent_batches must be at least 1, not 0"):

        class _None(Loaders, max_concurrent_batches=0):
            pass

    with pytest.raises(TypeError, match="max_concurrent_batches takes a whole number"):

        class _Half(Loaders, max_concurrent_batches=0.5):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("name", [None, 123, b"job"])
def test_the_name_of_a_scope_is_a_string(name: Any) -> None:
    scope = Scope()
    with pytest.raises(TypeError, match="the name of a scope is a string, not"):
        scope.name = name
    assert scope.name == ""


def test_loaders_that_could_not_be_closed_from_elsewhere_can_still_be_closed_at_home() -> None:
    ended: list[str] = []

    class Slow(Loaders):
        @dataloader
        async def rows(self, ids: list[int]) -> list[int]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("batch")
            return ids

    async def begin() -> tuple[Scope, Slow, Any]:
        scope, loaders = Scope(), Slow()
        scope.enter()
        waiting = loaders.rows.load(1)
        await turns()
        return scope, loaders, waiting

    home = loops.new_loop()
    scope, loaders, waiting = home.run_until_complete(begin())
    with pytest.raises(LoaderLoopError):
        asyncio.run(loaders.aclose())
    assert not ended
    home.run_until_complete(loaders.aclose())
    assert ended == ["batch"]
    assert isinstance(waiting.exception(), LoaderClosedError)
    home.run_until_complete(scope.aclose())
    home.close()


async def test_loaders_that_are_closed_inside_of_a_scope_are_let_go() -> None:
    gone = []
    async with Scope():
        for _ in range(3):
            async with AppLoaders() as loaders:
                assert await loaders.users.load(1) == "v1"
                gone.append(weakref.ref(loaders))
                users = loaders.users
            with pytest.raises(LoaderClosedError):
                loaders.users  # noqa: B018
            with pytest.raises(LoaderClosedError):
                users.load(1)
            del loaders, users
        await turns()
        gc.collect()
        assert [each() for each in gone] == [None] * 3
