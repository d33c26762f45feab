"""Callers of a batch: each free to leave, each answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loader._waiters import Callers, Group, answer, failure
from loader.errors import BatchCancelledError, BatchFailedError
from tests.fakes import outcome


def new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def ask(callers: Callers, key: str, future: asyncio.Future[Any]) -> None:
    """Let a caller wait for a key, which may be new to the batch."""
    if key in callers.futures:
        callers.join(key, future)
    else:
        callers.futures[key] = future


def ask_for_many(callers: Callers, group: Group, keys: list[str]) -> None:
    """Let a `load_many` wait for keys, some of which may be new to the batch."""
    callers.join_group(group, [key for key in keys if key in callers.futures])
    new = [key for key in keys if key not in callers.futures]
    callers.futures.update(dict.fromkeys(new, group.future))
    callers.note_group(group, new)


def waiting_group(
    keys: list[str], *, found: dict[Any, Any] | None = None, return_exceptions: bool = False
) -> tuple[Group, asyncio.Future[Any]]:
    future = new_future()
    found = found or {}
    group = Group(future, keys, found, len(set(keys) - found.keys()), return_exceptions=return_exceptions)
    return group, future


@pytest.mark.parametrize("first", ["group", "single"])
async def test_callers_are_answered_in_the_order_in_which_they_asked(first: str) -> None:
    callers, told = Callers(asyncio.get_running_loop()), list[str]()
    group, many = waiting_group(["a", "b"])
    single = new_future()
    if first == "single":
        ask(callers, "c", single)
    ask_for_many(callers, group, ["a", "b"])
    if first == "group":
        ask(callers, "c", single)
    many.add_done_callback(lambda _: told.append("group"))
    single.add_done_callback(lambda _: told.append("single"))
    callers.answer_all({key: {"a": 1, "b": 2, "c": 3}[str(key)] for key in callers.futures})
    await asyncio.sleep(0)
    assert told == [first, *({"group", "single"} - {first})]
    assert (many.result(), single.result()) == ([1, 2], 3)


@pytest.mark.every_loop
async def test_a_future_that_is_done_is_left_alone() -> None:
    left, answered = new_future(), new_future()
    left.cancel()
    answer(answered, 1)
    for late in (2, ValueError("late")):
        answer(left, late)
        answer(answered, late)
    assert left.cancelled()
    assert answered.result() == 1


@pytest.mark.every_loop
async def test_an_exception_in_place_of_a_value_is_raised() -> None:
    future = new_future()
    answer(future, LookupError("none"))
    with pytest.raises(LookupError, match="none"):
        await future


def test_an_exception_that_callers_can_catch_is_given_as_it_is() -> None:
    error = ValueError("wrong")
    assert failure(error) is error


@pytest.mark.parametrize(
    ("error", "becomes", "says"),
    [
        (asyncio.CancelledError(), BatchCancelledError, "the batch function was cancelled from within"),
        (SystemExit(1), BatchFailedError, "the batch function ended with SystemExit, the __cause__ of this"),
        (
            KeyboardInterrupt(),
            BatchFailedError,
            "the batch function ended with KeyboardInterrupt, the __cause__ of this",
        ),
        (GeneratorExit(), BatchFailedError, "the batch function ended with GeneratorExit, the __cause__ of this"),
        (StopIteration("no future takes it"), BatchFailedError, "the batch function ended with StopIteration"),
    ],
)
def test_no_caller_gets_an_exception_that_would_end_more_than_its_wait(
    error: BaseException, becomes: type[Exception], says: str
) -> None:
    safe = failure(error)
    assert type(safe) is becomes
    assert says in str(safe)
    assert safe.__cause__ is error


async def test_every_caller_of_a_key_is_answered_and_one_that_left_is_passed_over() -> None:
    callers = Callers(asyncio.get_running_loop())
    first, second, third = new_future(), new_future(), new_future()
    for future in (first, second, third):
        ask(callers, "a", future)
    second.cancel()
    callers.answer_all({"a": 1})
    assert (first.result(), third.result()) == (1, 1)
    assert second.cancelled()
    assert not callers.futures


async def test_a_single_caller_that_left_is_passed_over() -> None:
    callers = Callers(asyncio.get_running_loop())
    left, failed, answered = new_future(), new_future(), new_future()
    for key, future in zip("abc", (left, failed, answered), strict=True):
        ask(callers, key, future)
    left.cancel()
    callers.answer_all({"a": 1, "b": ValueError("b"), "c": 3})
    assert isinstance(await outcome(failed), ValueError)
    assert answered.result() == 3


async def test_a_key_is_abandoned_when_all_its_callers_have_left() -> None:
    callers = Callers(asyncio.get_running_loop())
    futures = [new_future() for _ in range(4)]
    for key, future in zip("aabc", futures, strict=True):
        ask(callers, key, future)
    futures[0].cancel()
    futures[2].cancel()
    assert callers.abandoned() == ["b"]
    futures[1].cancel()
    assert callers.abandoned() == ["a", "b"]


async def test_of_keys_with_one_caller_each_those_are_abandoned_whose_caller_has_left() -> None:
    callers = Callers(asyncio.get_running_loop())
    futures = [new_future() for _ in range(3)]
    for key, future in zip("abc", futures, strict=True):
        ask(callers, key, future)
    assert callers.abandoned() == []
    futures[1].cancel()
    assert callers.abandoned() == ["b"]


async def test_a_group_is_answered_in_the_order_of_its_keys_repeats_included() -> None:
    callers = Callers(asyncio.get_running_loop())
    group, future = waiting_group(["b", "a", "b"])
    ask_for_many(callers, group, ["b", "a"])
    callers.answer_all({"a": 1, "b": 2})
    assert future.result() == [2, 1, 2]


async def test_a_group_that_lacks_nothing_is_answered_at_once() -> None:
    assert waiting_group(["a", "b"], found={"a": 1, "b": 2})[1].result() == [1, 2]
    assert waiting_group([])[1].result() == []


async def test_a_group_puts_together_what_was_known_and_what_several_batches_bring() -> None:
    first, second = Callers(asyncio.get_running_loop()), Callers(asyncio.get_running_loop())
    group, future = waiting_group(["a", "b", "c"], found={"a": 1})
    ask_for_many(first, group, ["b"])
    ask_for_many(second, group, ["c"])
    second.answer_all({"c": 3})
    assert not future.done()
    first.answer_all({"b": 2})
    assert future.result() == [1, 2, 3]


async def test_a_group_may_join_the_same_batch_twice() -> None:
    callers = Callers(asyncio.get_running_loop())
    other = new_future()
    ask(callers, "a", other)
    group, future = waiting_group(["a", "b"])
    ask_for_many(callers, group, ["a"])
    ask_for_many(callers, group, ["b"])
    callers.answer_all({"a": 1, "b": 2})
    assert future.result() == [1, 2]
    assert other.result() == 1


async def test_a_group_takes_single_keys_as_they_are_answered() -> None:
    callers = Callers(asyncio.get_running_loop())
    other = new_future()
    group, future = waiting_group(["a", "b"])
    ask_for_many(callers, group, ["a", "b"])
    ask(callers, "a", other)
    callers.answer_key("a", 1)
    assert other.result() == 1
    assert not future.done()
    callers.answer_key("b", 2)
    assert future.result() == [1, 2]


async def test_a_group_fails_with_the_first_exception_that_comes() -> None:
    callers = Callers(asyncio.get_running_loop())
    group, future = waiting_group(["a", "b"])
    ask_for_many(callers, group, ["a", "b"])
    callers.answer_key("b", LookupError("b"))
    assert isinstance(await outcome(future), LookupError)
    callers.answer_all({"a": 1})  # which nobody waits for any more


async def test_a_group_that_found_an_exception_fails_once_the_rest_is_there() -> None:
    group, future = waiting_group(["a", "b"], found={"a": LookupError("a")})
    group.take({"b": None}, {"b": 2})
    assert isinstance(await outcome(future), LookupError)


async def test_a_group_may_take_exceptions_as_results() -> None:
    callers = Callers(asyncio.get_running_loop())
    group, future = waiting_group(["a", "b", "c"], found={"c": SystemExit()}, return_exceptions=True)
    error = LookupError("b")
    ask_for_many(callers, group, ["a", "b"])
    callers.answer_all({"a": 1, "b": error})
    value, failed, ended = future.result()
    assert (value, failed) == (1, error)
    assert isinstance(ended, BatchFailedError)


async def test_a_failed_batch_fails_the_keys_of_a_group_that_it_had() -> None:
    lost, good = Callers(asyncio.get_running_loop()), Callers(asyncio.get_running_loop())
    group, future = waiting_group(["a", "b"], return_exceptions=True)
    ask_for_many(lost, group, ["a"])
    ask_for_many(good, group, ["b"])
    error = ConnectionError("lost")
    lost.fail_all(error)
    assert not future.done()
    good.answer_all({"b": 2})
    assert future.result() == [error, 2]


async def test_a_failed_batch_fails_everybody() -> None:
    callers = Callers(asyncio.get_running_loop())
    alone, one, two, left = (new_future() for _ in range(4))
    ask(callers, "a", alone)
    for future in (one, two, left):
        ask(callers, "b", future)
    group, many = waiting_group(["a", "b"])
    ask_for_many(callers, group, ["a", "b"])
    left.cancel()
    callers.fail_all(ConnectionError("lost"))
    for future in (alone, one, two, many):
        assert isinstance(await outcome(future), ConnectionError)
    assert left.cancelled()


async def test_a_quiet_failure_that_nobody_looks_at_is_not_reported() -> None:
    callers = Callers(asyncio.get_running_loop())
    for key in "abb":
        ask(callers, key, new_future())
    half = Callers(asyncio.get_running_loop())
    group, lacking = waiting_group(["b", "c"], return_exceptions=True)
    ask_for_many(half, group, ["b"])
    callers.fail_all(ConnectionError("lost"), quietly=True)
    half.fail_all(ConnectionError("lost"), quietly=True)
    assert not lacking.done()


@pytest.mark.logs
async def test_a_failure_that_nobody_looks_at_is_reported_by_asyncio(reports: list[str]) -> None:
    callers = Callers(asyncio.get_running_loop())
    ask(callers, "a", new_future())
    callers.fail_all(ConnectionError("lost"))
    del callers
    assert len(reports) == 1
    assert "lost" in reports[0]
