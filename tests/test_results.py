"""Every kind of batch function, every promised shape, and a clear error for every other one."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import UserDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from loader import (
    BatchCancelledError,
    BatchFailedError,
    BatchResultError,
    DataLoader,
    KeyNotFoundError,
    LoaderLoopError,
)
from loader._results import BatchFunction, Shape
from tests.fakes import outcome, together, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


@dataclass(frozen=True)
class Row:
    id: int
    owner: str = ""


async def listed(keys: list[int]) -> list[int]:
    return [10 * key for key in keys]


async def pairs(keys: list[int]) -> AsyncIterator[tuple[int, int]]:
    for key in keys:
        yield key, 10 * key


class Methods:
    async def method(self, keys: list[int]) -> list[int]:
        return await listed(keys)

    @staticmethod
    async def static(keys: list[int]) -> list[int]:
        return await listed(keys)

    @classmethod
    async def of_class(cls, keys: list[int]) -> list[int]:
        return await listed(keys)

    async def __call__(self, keys: list[int]) -> list[int]:
        return await listed(keys)

    async def generator(self, keys: list[int]) -> AsyncIterator[tuple[int, int]]:
        async for pair in pairs(keys):
            yield pair


async def scaled(factor: int, keys: list[int]) -> list[int]:
    return [factor * key for key in keys]


def returns_a_future(keys: list[int]) -> asyncio.Future[list[int]]:
    return asyncio.ensure_future(listed(keys))


@pytest.mark.every_loop
@pytest.mark.parametrize(
    "function",
    [
        listed,
        pairs,
        Methods().method,
        Methods.static,
        Methods.of_class,
        Methods(),
        Methods().generator,
        functools.partial(scaled, 10),
        functools.partial(Methods()),
        functools.partial(pairs),
    ],
)
async def test_every_kind_of_coroutine_or_generator_function_runs_on_the_loop(function: Callable[..., Any]) -> None:
    loader: DataLoader[int, int] = DataLoader(function)
    assert await loader.load_many([1, 2]) == [10, 20]


# -- functions in threads ------------------------------------------------------------------------------------------


@pytest.mark.real_time
@pytest.mark.every_loop
async def test_a_plain_function_runs_in_a_worker_thread() -> None:
    threads: list[threading.Thread] = []

    def blocking(keys: list[int]) -> dict[int, int]:
        threads.append(threading.current_thread())
        return {key: 10 * key for key in keys}

    assert await DataLoader(blocking).load_many([1, 2]) == [10, 20]
    assert threads[0] is not threading.main_thread()


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


@pytest.mark.real_time
async def test_the_thread_has_the_context_variables_of_the_loader() -> None:
    def blocking(keys: list[int]) -> list[str]:
        return [variable.get() for _ in keys]

    variable.set("of the loader")
    loader = DataLoader(blocking)
    variable.set("of the caller")
    assert await loader.load(1) == "of the loader"


@pytest.mark.real_time
@pytest.mark.parametrize(
    "wrapped", [lambda keys: listed(keys), lambda keys: pairs(keys)], ids=["coroutine", "generator"]
)
async def test_a_lambda_around_a_coroutine_function_runs_on_the_loop_from_the_second_call_on(
    wrapped: Callable[[list[int]], Any],
) -> None:
    threads: list[threading.Thread] = []

    def function(keys: list[int]) -> Any:
        threads.append(threading.current_thread())
        return wrapped(keys)

    loader: DataLoader[int, int] = DataLoader(function, cache=False)
    assert [await loader.load(1), await loader.load(2)] == [10, 20]
    assert (threads[0] is threading.main_thread(), threads[1] is threading.main_thread()) == (False, True)


@pytest.mark.parametrize("uses", ["gather", "create_task", "get_running_loop"])
async def test_a_plain_function_that_needs_the_loop_is_told_to_be_async(uses: str) -> None:
    def load(keys: list[int]) -> Any:
        coroutine = asyncio.sleep(0)
        try:
            return asyncio.get_running_loop() if uses == "get_running_loop" else getattr(asyncio, uses)(coroutine)
        finally:
            coroutine.close()

    with pytest.raises(LoaderLoopError, match="the batch function asks for the event loop"):
        await DataLoader(load).load(1)

    def fails(keys: list[int]) -> Any:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        await DataLoader(fails).load(1)


@pytest.mark.real_time
async def test_a_generator_and_a_lazy_query_are_read_in_the_thread() -> None:
    threads: set[threading.Thread] = set()

    def generated(keys: list[int]) -> Iterator[int]:
        for key in keys:
            threads.add(threading.current_thread())
            yield 10 * key

    class Query:
        def __init__(self, keys: list[int]) -> None:
            self.keys = keys

        def __iter__(self) -> Iterator[int]:
            return generated(self.keys)

    assert await DataLoader(generated).load_many([1, 2]) == [10, 20]
    query: DataLoader[int, int] = DataLoader(lambda keys: Query(keys))
    assert await query.load_many([1, 2]) == [10, 20]
    assert threading.main_thread() not in threads


class Fatal(BaseException):
    pass


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (ValueError("broken"), ValueError),
        (StopIteration(), RuntimeError),
        (Fatal(), BatchFailedError),
        (asyncio.CancelledError(), BatchCancelledError),
    ],
    ids=repr,
)
async def test_whatever_a_thread_raises_reaches_the_callers(error: BaseException, becomes: type[Exception]) -> None:
    def blocking(keys: list[int]) -> list[int]:
        raise error

    loader = DataLoader(blocking)
    one, two = await together(loader.load(1), loader.load(2), return_exceptions=True)
    assert type(one) is type(two) is becomes


@pytest.mark.real_time
async def test_a_cancelled_call_ends_when_its_thread_does() -> None:
    begun, may_end = threading.Event(), threading.Event()
    ended = []

    def blocking(keys: list[int]) -> list[int]:
        begun.set()
        may_end.wait(20)
        ended.append(keys)
        raise ConnectionError("nobody waits for this any more")

    call = asyncio.ensure_future(BatchFunction(blocking)([1]))
    await asyncio.to_thread(begun.wait, 20)
    call.cancel()
    await turns()
    assert not call.done()
    may_end.set()
    await asyncio.wait([call])
    assert call.cancelled()
    assert ended == [[1]]


@pytest.mark.real_time
async def test_closing_waits_for_the_thread_and_answers_the_callers_before() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def blocking(keys: list[int]) -> list[int]:
        begun.set()
        may_end.wait(20)
        return keys

    loader = DataLoader(blocking)
    waiting = loader.load(1)
    await asyncio.to_thread(begun.wait, 20)
    closing = asyncio.ensure_future(loader.aclose())
    assert "closed" in str(await outcome(waiting))
    await turns()
    assert not closing.done()
    may_end.set()
    await closing


def test_what_cannot_be_called_is_refused_when_the_loader_is_made() -> None:
    with pytest.raises(TypeError, match=r"load_fn must be a function of a list of keys, not \[1, 2\] \(list\)"):
        DataLoader([1, 2])  # type: ignore[call-overload]


# -- shapes --------------------------------------------------------------------------------------------------------


def returning(result: object, **options: Any) -> DataLoader[Any, Any]:
    async def named(keys: list[Any]) -> Any:
        return result

    return DataLoader(named, name="things", **options)


async def results(loader: DataLoader[Any, Any], keys: list[Any]) -> list[Any]:
    return await loader.load_many(keys, return_exceptions=True)


@pytest.mark.parametrize("result", [["a", "b"], ("a", "b"), iter(["a", "b"]), {1: "a", 2: "b"}.values()])
async def test_values_in_the_order_of_the_keys(result: object) -> None:
    assert await results(returning(result), [1, 2]) == ["a", "b"]


@pytest.mark.parametrize("result", [{2: "b", 1: "a"}, UserDict({2: "b", 1: "a"})], ids=repr)
async def test_a_mapping_is_looked_up_by_key(result: object) -> None:
    assert await results(returning(result), [1, 2]) == ["a", "b"]


@pytest.mark.parametrize("mapped", [False, True])
async def test_coroutines_in_place_of_values_are_an_error_that_says_what_to_await(mapped: bool) -> None:
    async def forgets_to_gather(keys: list[int]) -> Any:
        found: list[Any] = [listed([1]), "a value", listed([3])]
        return dict(zip(keys, found, strict=True)) if mapped else found

    with pytest.raises(BatchResultError, match=r"returned coroutines instead of values\. Await them in it"):
        await DataLoader(forgets_to_gather).load_many([1, 2, 3])


async def test_an_exception_in_place_of_a_value_fails_only_its_key() -> None:
    error = LookupError("no 2")
    assert await results(returning(["a", error, "c"]), [1, 2, 3]) == ["a", error, "c"]


async def test_a_key_missing_from_a_mapping_fails_alone_and_says_so() -> None:
    value, missing = await results(returning({1: "a"}), [1, 2])
    assert value == "a"
    assert isinstance(missing, KeyNotFoundError)
    assert str(missing) == "things: no value came for key 2 (int); pass default= if that is no error"


@pytest.mark.parametrize("options", [{}, {"index_by": "id"}], ids=str)
async def test_a_missing_key_yields_the_default(options: dict[str, Any]) -> None:
    result: object = [Row(1)] if options else {1: Row(1)}
    assert await results(returning(result, default=None, **options), [1, 2]) == [Row(1), None]


async def test_the_default_stands_in_for_what_a_generator_left_out() -> None:
    async def some(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        yield 2, "b"

    assert await DataLoader(some, default="-").load_many([1, 2]) == ["-", "b"]
    for loader in (DataLoader(some), DataLoader(some, cache_key_fn=str)):
        missing = await outcome(loader.load(1))
        assert isinstance(missing, KeyNotFoundError)
        assert "no value came for key 1 (int)" in str(missing)


@pytest.mark.parametrize(
    "by", ["id", lambda row: row["id"] if isinstance(row, dict) else row.id], ids=["by name", "by function"]
)
@pytest.mark.parametrize("rows", [[Row(2), Row(1)], [{"id": 2}, {"id": 1}], (row for row in [Row(2), Row(1)])])
async def test_rows_in_any_order_are_found_by_attribute_item_or_function(rows: Any, by: Any) -> None:
    rows = list(rows) or [Row(2), Row(1)]  # a generator is shared by the parametrised tests
    assert await results(returning(rows, index_by=by), [1, 2]) == [rows[1], rows[0]]


async def test_rows_are_grouped_and_a_key_without_rows_gets_an_empty_list() -> None:
    rows = [Row(1, "a"), Row(2, "b"), Row(3, "a"), Row(4, "nobody asked")]
    found = await results(returning(rows, group_by="owner"), ["a", "b", "c"])
    assert found == [[rows[0], rows[2]], [rows[1]], []]


@pytest.mark.parametrize("by", ["index_by", "group_by"])
async def test_a_composite_key_is_found_by_several_names(by: str) -> None:
    row = Row(1, "a")
    found = await results(returning([row], **{by: ("owner", "id")}), [("a", 1)])
    assert found == ([row] if by == "index_by" else [[row]])


async def test_keys_are_compared_after_the_cache_key_function() -> None:
    calls = []

    def lower(key: str) -> str:
        calls.append(key)
        return key.lower()

    rows = [Row(1, "A"), Row(2, "b")]
    assert await results(returning({"A": 1, "b": 2}, cache_key_fn=lower), ["a", "B"]) == [1, 2]
    assert await results(returning(rows, index_by="owner", cache_key_fn=lower), ["a", "B"]) == rows
    assert await results(returning(rows, group_by="owner", cache_key_fn=lower), ["a", "B"]) == [rows[:1], rows[1:]]

    async def in_upper_case(keys: list[str]) -> AsyncIterator[tuple[str, str]]:
        for key in keys:
            yield key.upper(), key

    assert await DataLoader(in_upper_case, cache_key_fn=lower).load_many(["a", "B", "b"]) == ["a", "B", "B"]


# -- wrong shapes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "options", "says"),
    [
        ([1], {}, "was given 2 keys and promised a value for each, in their order, but returned 1. "),
        ([1, 2, 3], {}, "was given 2 keys and promised a value for each, in their order, but returned 3. "),
        (None, {}, "promised a list of values or a mapping, but returned None (NoneType)"),
        ("ab", {}, "promised a list of values or a mapping, but returned 'ab' (str)"),
        (b"ab", {}, "promised a list of values or a mapping, but returned b'ab' (bytes)"),
        (12, {}, "promised a list of values or a mapping, but returned 12 (int)"),
        ({7}, {}, "promised a list of values or a mapping, but returned {7} (set); a set has no order"),
        (None, {"index_by": "id"}, "promised rows, but returned None (NoneType)"),
        ({1: 2}, {"index_by": "id"}, "index_by promises rows, whose keys are found in them, but a mapping came: "),
        ({1: 2}, {"group_by": "id"}, "group_by promises rows, whose keys are found in them, but a mapping came: "),
        ([Row(1), Row(1)], {"index_by": "id"}, "promises one row for each key, but two rows have the key 1 (int)"),
        ([Row(1)], {"index_by": "code"}, "index_by='code' finds no usable key in the row Row(id=1, owner='') (Row): "),
        ([Row(1)], {"group_by": "code"}, "group_by='code' finds no usable key in the row Row(id=1, owner='') (Row): "),
        ([{}], {"index_by": "id"}, "index_by='id' finds no usable key in the row {} (dict): KeyError('id')"),
        ([{"id": []}], {"index_by": "id"}, "finds no usable key in the row {'id': []} (dict): TypeError"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_a_wrong_shape_says_who_promised_what_and_what_came(
    result: object, options: dict[str, Any], says: str
) -> None:
    one, two = await results(returning(result, **options), [1, 2])
    assert isinstance(one, BatchResultError)
    assert one is two
    assert str(one).startswith("things: ")
    assert says in str(one)
    assert ("a set has no order" in str(one)) is isinstance(result, set)


async def test_a_long_result_is_cut_short() -> None:
    [error] = await results(returning(["x" * 1000] * 1000), [1])
    assert len(str(error)) < 600


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (7, "it yielded 7 (int)"),
        ((1, 2, 3), "it yielded (1, 2, 3) (tuple)"),
        ([1, 2], "it yielded [1, 2] (list)"),
        (([1], 2), "yielded the key [1] (list), which is not hashable"),
    ],
)
async def test_a_generator_that_yields_no_pair_says_what_it_yielded(item: object, says: str) -> None:
    async def generator(keys: list[int]) -> AsyncIterator[Any]:
        yield item

    error = await outcome(DataLoader(generator).load(1))
    assert isinstance(error, BatchResultError)
    assert "generator" in str(error)
    assert says in str(error)


async def test_a_generator_that_yields_a_key_twice_fails_who_still_waits() -> None:
    async def generator(keys: list[int]) -> AsyncIterator[tuple[int, str]]:
        yield 1, "first"
        yield 1, "second"
        yield 2, "never"

    first, other = await results(DataLoader(generator), [1, 2])
    assert first == "first"
    assert isinstance(other, BatchResultError)
    assert "yielded the key 1 twice" in str(other)


@pytest.mark.parametrize("by", [7, (), ("id", 7), ("id", ("id",)), ("id", ""), ["id"]], ids=repr)
@pytest.mark.parametrize("option", ["index_by", "group_by"])
def test_index_by_and_group_by_take_names_or_a_function(option: str, by: Any) -> None:
    with pytest.raises(TypeError, match="take the name of an attribute or item, a tuple of names, or a function"):
        Shape(**{option: by})


def test_promises_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="give one of them"):
        Shape(index_by="id", group_by="id")
    with pytest.raises(ValueError, match="default= would never be used"):
        Shape(group_by="id", default=None)


async def test_the_function_may_change_the_list_it_is_given() -> None:
    async def consumes(keys: list[int]) -> list[int]:
        values = []
        while keys:
            values.append(10 * keys.pop(0))
        return values

    assert await DataLoader(consumes).load_many([1, 2]) == [10, 20]


async def test_a_plain_function_may_return_any_awaitable() -> None:
    function = BatchFunction(returns_a_future)
    function._on_loop = True
    found: Awaitable[Any] = function([1])
    assert await found == [10]
