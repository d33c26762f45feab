"""When a batch leaves: settled, at the end of its window, full, or flushed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from loader import DataLoader, Loaders, Settle, dataloader
from loader._dispatch import Departure, seconds, whole_number
from tests.fakes import Backend, together, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def after(count: int, loader: DataLoader[Any, Any], key: Any) -> Any:
    await turns(count)
    return await loader.load(key)


@pytest.mark.every_loop
async def test_resolvers_a_turn_apart_share_a_batch() -> None:
    backend = Backend()
    loader = DataLoader(backend)
    await together(*(after(late, loader, late) for late in range(6)))
    assert backend.batches == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.every_loop
async def test_keys_of_load_and_of_load_many_that_come_in_the_same_turn_keep_a_batch_open() -> None:
    backend = Backend()
    loader = DataLoader(backend)

    async def many_after(count: int, key: int) -> Any:
        await turns(count)
        return await loader.load_many([key])

    await together(*(caller for late in range(4) for caller in (after(late, loader, late), many_after(late, late + 4))))
    assert len(backend.batches) == 1


@pytest.mark.every_loop
@pytest.mark.parametrize(("quiet", "batches"), [(1, [[1], [2], [3]]), (4, [[1, 2, 3]])])
async def test_more_turns_wait_for_resolvers_that_are_further_apart(quiet: int, batches: list[list[int]]) -> None:
    backend = Backend()
    loader = DataLoader(backend, window=Settle(turns=quiet))
    await together(after(0, loader, 1), after(4, loader, 2), after(8, loader, 3))
    assert backend.batches == batches


class Library(Loaders):
    """Books that are there at once, and later."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    @dataloader
    async def books(self, ids: list[int]) -> list[int]:
        return ids

    @dataloader
    async def arriving(self, ids: list[int]) -> AsyncIterator[tuple[int, int]]:
        yield ids[0], ids[0]
        await asyncio.sleep(1)
        for key in ids[1:]:
            yield key, key

    @dataloader
    async def authors(self, ids: list[int]) -> list[int]:
        self.asked.append(ids)
        return ids


@pytest.mark.every_loop
@pytest.mark.parametrize("name", ["books", "arriving"])
async def test_a_batch_waits_for_what_those_ask_who_were_just_answered(name: str) -> None:
    async with Library() as library:
        books: DataLoader[int, int] = getattr(library, name)

        async def author_of(book: int) -> int:
            return await library.authors.load(await books.load(book))

        await together(author_of(1), after(0, books, 8), after(0, library.authors, 2))
    assert library.asked == [[2, 1]]


@pytest.mark.every_loop
@pytest.mark.parametrize("quiet", [1, 3])
async def test_a_batch_leaves_as_soon_as_it_has_settled_though_keys_came_late(quiet: int) -> None:
    backend = Backend()
    loader = DataLoader(backend, window=Settle(turns=quiet))
    first = loader.load(1)
    await turns(1)
    late = loader.load(2)
    await turns(quiet + 4)
    assert backend.batches == [[1, 2]]
    await together(first, late)


async def test_a_batch_leaves_after_the_greatest_number_of_turns_even_if_keys_keep_coming() -> None:
    backend = Backend()
    loader = DataLoader(backend, window=Settle(turns=1, max_turns=3))
    await together(*(after(late, loader, late) for late in range(9)))
    assert [len(batch) for batch in backend.batches] == [4, 4, 1]


async def test_a_window_opens_with_the_first_key_and_is_never_restarted() -> None:
    times: list[tuple[float, list[int]]] = []
    loop = asyncio.get_running_loop()

    async def record(keys: list[int]) -> list[int]:
        times.append((round(loop.time(), 6), keys))
        return keys

    loader = DataLoader(record, window=0.01)

    async def caller(key: int, when: float) -> int:
        await asyncio.sleep(when)
        return await loader.load(key)

    await together(*(caller(key, when) for key, when in enumerate((0.1, 0.105, 0.109, 0.111, 0.2))))
    assert times == [(0.11, [0, 1, 2]), (0.121, [3]), (0.21, [4])]


async def test_a_full_batch_leaves_at_once_and_its_timer_sends_nothing_early() -> None:
    times: list[tuple[float, list[int]]] = []
    loop = asyncio.get_running_loop()

    async def record(keys: list[int]) -> list[int]:
        times.append((round(loop.time(), 6), keys))
        return keys

    loader = DataLoader(record, window=0.01, max_batch_size=2)
    full = loader.load_many([1, 2])
    await asyncio.sleep(0.006)
    next_one = loader.load(3)
    await together(full, next_one)
    # The timer of the first batch would have fired at 0.010.
    assert times == [(0.0, [1, 2]), (0.016, [3])]


@pytest.mark.every_loop
async def test_flush_sends_what_was_gathered() -> None:
    backend = Backend()
    loader = DataLoader(backend, window=3600)
    loader.flush()  # nothing to send
    waiting = loader.load(1)
    await turns()
    assert backend.batches == []
    loader.flush()
    assert await waiting == "v1"


@pytest.mark.every_loop
async def test_flush_before_the_batch_has_begun_to_wait() -> None:
    backend = Backend()
    for window in (3600, Settle(turns=40)):
        loader = DataLoader(backend, window=window)
        waiting = loader.load(1)
        loader.flush()
        loader.flush()
        await turns(4)
        assert waiting.done()


async def test_flushing_twice_is_no_error() -> None:
    departure = Departure()
    leaving = asyncio.ensure_future(departure.at(asyncio.get_running_loop(), 3600))
    await turns()
    departure.now()
    departure.now()
    await leaving


async def test_a_wait_for_a_window_that_is_cancelled_leaves_no_timer() -> None:
    leaving = asyncio.ensure_future(Departure().at(asyncio.get_running_loop(), 3600))
    await turns()
    leaving.cancel()


async def test_a_window_of_no_time_is_the_next_turn_of_the_loop() -> None:
    backend = Backend()
    loader = DataLoader(backend, window=0)
    await together(loader.load(1), loader.load(2))
    assert backend.batches == [[1, 2]]


@pytest.mark.parametrize("value", [1.5, "1", None, True])
def test_a_number_of_turns_is_a_whole_number(value: Any) -> None:
    with pytest.raises(TypeError, match=r"Settle\(turns=\) takes a whole number"):
        Settle(turns=value)


def test_too_few_turns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Settle\(turns=\) must be at least 1, not 0"):
        Settle(turns=0)
    with pytest.raises(ValueError, match=r"Settle\(max_turns=\) must be at least 60, not 50"):
        Settle(turns=60)


def test_a_rule_of_settling_is_a_value() -> None:
    assert Settle() == Settle(turns=1, max_turns=50)
    assert repr(Settle(3)) == "Settle(turns=3, max_turns=50)"


@pytest.mark.parametrize("value", ["1", None, False])
def test_a_time_span_is_a_number(value: object) -> None:
    with pytest.raises(TypeError, match="window takes a number of seconds, not"):
        seconds("window", value)


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_a_time_span_is_finite_and_not_negative(value: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        seconds("window", value)


def test_what_is_right_passes() -> None:
    assert seconds("window", 2) == 2.0
    whole_number("max_batch_size", 3, least=3)


async def test_a_time_that_no_float_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="float"):
        DataLoader(Backend(), window=10**400)
