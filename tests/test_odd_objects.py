"""Keys and values that misbehave: each caller is answered nevertheless, with the value or with a clear error."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from loader import (
    Batcher,
    BatchFailedError,
    BatchResultError,
    DataLoader,
    Debouncer,
    LoaderClosedError,
    LoaderError,
    LoaderTimeoutError,
    RunCancelledError,
    SelfWaitError,
    SingleFlight,
    Snapshot,
)
from loader.second_level import MemoryCache
from loader.streams import conflate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Lazy:
    """A proxy as Django's `SimpleLazyObject` is: what it stands for has to be fetched even to tell its class."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("this may not be evaluated here")

    @__class__.setter
    def __class__(self, _: Any) -> None:
        raise NotImplementedError


ODD: dict[str, Any] = {
    "a proxy": Lazy(),
    "a mock": Mock(spec=ValueError),  # `isinstance` says that it is an exception, and no future takes it for one
}


@pytest.fixture(params=ODD)  # by name: pytest itself asks the objects for their class
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_value_is_what_its_type_says_whatever_it_pretends_to_be(kind: str) -> None:
    odd = ODD[kind]

    async def fetch(keys: list[int]) -> list[Any]:
        return [odd for _ in keys]

    loader = DataLoader(fetch)
    async with asyncio.timeout(10):
        alone = await loader.load(1)
        beside = await asyncio.gather(loader.load(2), loader.load(2), loader.load(3))
        many = [await loader.load_many([4, 5]), await loader.load_many([1, 6], return_exceptions=True)]
        again = await loader.load(1)
    assert all(value is odd for value in [alone, *beside, *many[0], *many[1], again, loader.peek(1)])


async def test_so_it_is_with_a_value_that_is_primed_streamed_or_kept_in_a_cache_of_the_users(kind: str) -> None:
    odd = ODD[kind]

    async def fetch(keys: list[int]) -> AsyncIterator[tuple[int, Any]]:
        for key in keys:
            yield key, odd

    class Cache(dict[int, Any]):
        def set(self, key: int, value: Any) -> None:
            self[key] = value

        def delete(self, key: int) -> None:
            del self[key]

    loader = DataLoader(fetch)
    kept: DataLoader[int, Any] = DataLoader(fetch, cache_map=Cache())
    async with asyncio.timeout(10):
        waiting = loader.load(0)
        loader.prime(0, odd)
        values = [await waiting, await loader.load(0), await loader.load(1), await kept.load(1), await kept.load(1)]
    assert all(value is odd for value in values)


async def test_so_it_is_with_a_second_level_cache(kind: str) -> None:
    odd = ODD[kind]

    async def fetch(keys: list[int]) -> list[Any]:
        return [odd for _ in keys]

    async with asyncio.timeout(10):
        loader = DataLoader(fetch, name="odd", second_level=MemoryCache(), fresh_for=60)
        assert await loader.load(1) is odd


async def test_so_it_is_with_results_of_a_batcher(kind: str) -> None:
    odd = ODD[kind]

    async def handle(items: list[int]) -> list[Any]:
        return [odd for _ in items]

    async with Batcher(handle, max_batch_size=3) as batcher, asyncio.timeout(10):
        assert await batcher.submit(1) is odd
        assert all(value is odd for value in await batcher.submit_many([2, 3]))


async def test_so_it_is_with_values_of_a_stream(kind: str) -> None:
    odd = ODD[kind]

    async def source() -> AsyncIterator[Any]:
        yield odd

    async with conflate(source()) as values, asyncio.timeout(10):
        assert [value is odd async for value in values] == [True]


class MuteError(Exception):
    """One that cannot be shown."""

    def __str__(self) -> str:
        raise ZeroDivisionError("it has no text")

    __repr__ = __str__


class MuteExit(BaseException):
    """The same, of the kind that callers get another exception for."""

    def __str__(self) -> str:
        raise ZeroDivisionError("it has no text")

    __repr__ = __str__


@pytest.mark.parametrize("error", [MuteError, MuteExit])
@pytest.mark.parametrize("how", ["raises", "returns", "yields"])
async def test_an_exception_that_cannot_be_shown_reaches_its_callers(error: type[BaseException], how: str) -> None:
    async def raises(_: list[int]) -> list[Any]:
        raise error

    async def returns(keys: list[int]) -> list[Any]:
        return [error() for _ in keys]

    async def yields(keys: list[int]) -> AsyncIterator[tuple[int, Any]]:
        for key in keys:
            yield key, error()

    function: Any = {"raises": raises, "returns": returns, "yields": yields}[how]
    loader = DataLoader[int, Any](function)
    callers = [loader.load(1), loader.load(2), loader.load(2), loader.load_many([3])]
    if how != "yields":
        batcher = Batcher[int, Any](function)
        callers.append(batcher.submit_nowait(1))
    async with asyncio.timeout(10):
        got = await asyncio.gather(*callers, return_exceptions=True)
    assert {type(each) for each in got} == {MuteError if error is MuteError else BatchFailedError}
    if error is MuteExit:
        assert {type(each.__cause__) for each in got} == {MuteExit}


@pytest.mark.logs
async def test_so_it_is_with_runs_and_streams(reports: list[str]) -> None:
    async def leave() -> int:
        raise MuteExit

    async def source() -> AsyncIterator[int]:
        yield 1
        raise MuteExit

    def complain(_: Exception) -> None:
        raise LookupError

    values = conflate(source())
    assert await anext(values) == 1
    waits: list[Callable[[], Any]] = [
        lambda: SingleFlight().do("key", leave),
        lambda: Snapshot(leave).get(),
        lambda: Debouncer(leave, wait=0).request(),
        lambda: anext(values),
    ]
    for wait in waits:
        with pytest.raises(LoaderError) as caught:
            await asyncio.wait_for(wait(), 10)
        assert (type(caught.value), type(caught.value.__cause__)) == (RunCancelledError, MuteExit)

    async def fail() -> None:
        raise MuteError

    async with Debouncer(fail, wait=0, on_error=complain) as debouncer:
        debouncer.trigger()
        await debouncer.wait_idle()
    assert ["on_error raised for MuteError" in report for report in reports] == [True]


class Key:
    """A mutable key, whose hash can be made to fail."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.broken = False

    def __hash__(self) -> int:
        if self.broken:
            raise ZeroDivisionError("this key has no hash any more")
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.number == other.number


@pytest.mark.parametrize("course", ["load", "twice", "load_many", "load_many, some cached", "return_exceptions"])
@pytest.mark.parametrize("beside_another_batch", [False, True])
async def test_whoever_waits_for_a_key_that_is_not_hashable_any_more_gets_that_error(
    course: str, beside_another_batch: bool
) -> None:
    goes_on = asyncio.Event()
    first, second, cached, other = Key(1), Key(2), Key(3), Key(4)

    async def fetch(keys: list[Key]) -> list[int]:
        if keys == [other]:
            await goes_on.wait()
        elif keys != [cached]:
            second.broken = True
        return [key.number for key in keys]

    loader = DataLoader(fetch)
    await loader.load(cached)
    beside = [loader.load(other)] if beside_another_batch else []
    await asyncio.sleep(0.01)
    futures: list[asyncio.Future[Any]]
    match course:
        case "load":
            futures = [loader.load(first), loader.load(second)]
        case "twice":
            futures = [loader.load(second), loader.load(second), loader.load(first)]
        case "load_many":
            futures = [loader.load_many([first, second])]
        case "load_many, some cached":
            futures = [loader.load_many([first, cached, second]), loader.load(first)]
        case _:
            futures = [loader.load_many([first, second], return_exceptions=True)]
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(error) for error in errors] == [ZeroDivisionError] * len(futures)
    second.broken = False
    goes_on.set()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*beside) == [4] * len(beside)
        assert await loader.load(Key(5)) == 5


async def test_keys_that_become_equal_while_their_batch_is_under_way_get_no_value_of_each_other() -> None:
    first, second, third = Key(1), Key(2), Key(3)

    async def fetch(keys: list[Key]) -> list[int]:
        numbers = [key.number for key in keys]
        second.number = 1
        return numbers

    loader = DataLoader(fetch, name="numbers")
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*map(loader.load, (first, second, third)), return_exceptions=True)
    assert {type(error) for error in errors} == {BatchResultError}
    assert str(errors[0]) == (
        "numbers: keys have become equal while their batch was under way. What a key is equal to must not change: "
        "load immutable keys, or give the loader a cache_key_fn that makes one of what they are"
    )


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("way", ["load", "load_many", "timeout", "aclose"])
async def test_so_it_is_with_keys_of_one_hash_and_with_any_failure(way: str, fails: bool) -> None:
    @dataclass(unsafe_hash=True)
    class Page:
        tenant: int
        slug: str = field(hash=False)

    pages = [Page(1, "a"), Page(1, "A"), Page(1, "b")]

    async def fetch(keys: list[Page]) -> list[str]:
        for key in keys:
            key.slug = key.slug.lower()
        if way in ("timeout", "aclose"):
            await asyncio.Event().wait()
        if fails:
            raise ConnectionError
        return [key.slug for key in keys]

    loader = DataLoader(fetch, timeout=1 if way == "timeout" else None)
    async with asyncio.timeout(10):
        await DataLoader(fetch).aclose()
        futures: list[asyncio.Future[Any]] = [*map(loader.load, pages)]
        if way == "load_many":
            futures.append(loader.load_many(pages))
        if way == "aclose":
            await asyncio.sleep(0.1)
            await loader.aclose()
        errors = await asyncio.gather(*futures, return_exceptions=True)
    expected = {
        "timeout": LoaderTimeoutError,
        "aclose": LoaderClosedError,
    }.get(way, ConnectionError if fails else BatchResultError)
    assert [type(error) for error in errors] == [expected] * len(futures)


async def test_so_it_is_with_keys_whose_comparison_fails() -> None:
    class Odd:
        broken = False

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            if Odd.broken:
                raise ZeroDivisionError("it cannot be compared")
            return self is other

    async def fetch(keys: list[Odd]) -> list[int]:
        Odd.broken = True
        raise ConnectionError

    loader, odds = DataLoader(fetch), [Odd(), Odd(), Odd()]
    futures: list[asyncio.Future[Any]] = [*map(loader.load, odds), loader.load(odds[0]), loader.load_many(odds)]
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(error) for error in errors] == [ConnectionError] * 5


class MuteKey:
    """A key that cannot be shown, as an expired row of an ORM."""

    def __repr__(self) -> str:
        raise ZeroDivisionError("it has no text")


async def test_a_key_that_cannot_be_shown_is_a_key_nevertheless() -> None:
    async def cut() -> int:
        raise asyncio.CancelledError

    async def circle(key: MuteKey) -> int:
        return await flights.do(key, circle, key)

    flights = SingleFlight()
    async with asyncio.timeout(10):
        for key in (MuteKey(), (MuteKey(),)):
            with pytest.raises(RunCancelledError):
                await flights.do(key, cut)
        with pytest.raises(SelfWaitError):
            await flights.do(key := MuteKey(), circle, key)

        async def yields_twice(keys: list[Any]) -> AsyncIterator[tuple[Any, int]]:
            yield keys[0], 1
            yield keys[0], 1

        loader = DataLoader(yields_twice)
        first, second = MuteKey(), MuteKey()
        answers = await asyncio.gather(loader.load(first), loader.load(second), return_exceptions=True)
    assert answers[0] == 1
    assert isinstance(answers[1], BatchResultError)
