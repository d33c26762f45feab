"""Loaders with a second-level cache: what is asked of whom, whatever shape the batch function's result has."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest

from loader import DataLoader, KeyNotFoundError, Loaders, LoaderTimeoutError, SecondLevelError, _backing, dataloader
from loader._backed import CLEARED_KEPT
from loader.redis import MsgspecCodec
from loader.second_level import NOTHING, Entry, Found, MemoryCache, Namespace, SecondLevelCache, drain, statistics
from loader.testing import record_batches
from tests.fakes import Backend, outcome, together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence


@dataclass
class Row:
    id: int
    name: str


class Table:
    """Rows by id, in every shape in which a batch function may return them; `batches` has the keys of each call."""

    def __init__(self, *ids: int) -> None:
        self.ids = set(ids)
        self.batches: list[list[int]] = []

    def rows(self, keys: list[int]) -> list[Row]:
        self.batches.append(keys)
        return [Row(key, f"row {key}") for key in keys if key in self.ids]

    async def mapping(self, keys: list[int]) -> dict[int, Row]:
        return {row.id: row for row in self.rows(keys)}

    async def listed(self, keys: list[int]) -> list[Row | Exception]:
        found = {row.id: row for row in self.rows(keys)}
        return [found.get(key, LookupError(f"no {key}")) for key in keys]

    async def any_order(self, keys: list[int]) -> list[Row]:
        return self.rows(keys)[::-1]

    def blocking(self, keys: list[int]) -> dict[int, Row]:
        return {row.id: row for row in self.rows(keys)}

    async def pairs(self, keys: list[int]) -> AsyncIterator[tuple[int, Row]]:
        for row in self.rows(keys):
            yield row.id, row


SHAPES: dict[str, Callable[[Table, SecondLevelCache], DataLoader[int, Any]]] = {
    "mapping": lambda table, cache: DataLoader(
        table.mapping, second_level=cache, fresh_for=60, name="rows", missing_fresh_for=5, default=None
    ),
    "index_by": lambda table, cache: DataLoader(
        table.any_order, index_by="id", second_level=cache, fresh_for=60, name="rows", missing_fresh_for=5, default=None
    ),
    "pairs": lambda table, cache: DataLoader(
        table.pairs, second_level=cache, fresh_for=60, name="rows", missing_fresh_for=5, default=None
    ),
    "cache_key_fn": lambda table, cache: DataLoader(
        table.mapping,
        cache_key_fn=lambda key: f"k{key}",
        second_level=cache,
        fresh_for=60,
        name="rows",
        missing_fresh_for=5,
        default=None,
    ),
}
CODECS: list[Any] = [None, MsgspecCodec()]


@pytest.mark.parametrize("codec", CODECS, ids=["objects", "json"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_another_loader_finds_what_one_has_loaded_and_asks_for_the_rest(shape: str, codec: Any) -> None:
    cache, table = MemoryCache(codec=codec), Table(1, 2, 3)
    first = await SHAPES[shape](table, cache).load_many([1, 2, 8])
    await drain(cache)
    second = await SHAPES[shape](table, cache).load_many([8, 3, 2, 1])
    assert first == [Row(1, "row 1"), Row(2, "row 2"), None]
    assert second == [None, Row(3, "row 3"), Row(2, "row 2"), Row(1, "row 1")]
    assert table.batches == [[1, 2, 8], [3]]
    await drain(cache)
    counts = statistics(cache)
    assert (counts.asks, counts.hits, counts.known_missing, counts.misses, counts.written) == (2, 2, 1, 4, 4)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_value_is_fresh_for_its_time_and_a_missing_key_for_its_own(shape: str) -> None:
    cache, table = MemoryCache(), Table(1)
    await SHAPES[shape](table, cache).load_many([1, 8])
    await asyncio.sleep(4.9)
    await SHAPES[shape](table, cache).load_many([1, 8])
    await asyncio.sleep(0.1)
    await SHAPES[shape](table, cache).load_many([1, 8])
    await asyncio.sleep(54.9)
    await SHAPES[shape](table, cache).load_many([1])
    await asyncio.sleep(0.1)
    await SHAPES[shape](table, cache).load_many([1])
    assert table.batches == [[1, 8], [8], [1]]
    await drain(cache)


async def test_group_by_keeps_the_list_of_a_key_also_an_empty_one() -> None:
    cache, table = MemoryCache(codec=MsgspecCodec()), Table(1)
    for _ in range(2):
        loader = DataLoader(table.any_order, group_by="id", second_level=cache, fresh_for=60, name="l")
        assert await loader.load_many([1, 2]) == [[Row(1, "row 1")], []]
        await drain(cache)
    assert table.batches == [[1, 2]]


async def test_an_exception_in_place_of_a_value_is_never_kept() -> None:
    cache, table = MemoryCache(codec=MsgspecCodec()), Table(1)
    for _ in range(2):
        loader = DataLoader(table.listed, second_level=cache, fresh_for=60, name="l")
        assert await loader.load(1) == Row(1, "row 1")
        with pytest.raises(LookupError, match="no 2"):
            await loader.load(2)
        await drain(cache)
    assert table.batches == [[1], [2], [2]]


async def test_a_missing_key_is_not_remembered_unless_one_says_for_how_long_and_its_error_is_made_anew() -> None:
    cache, table = MemoryCache(), Table()
    for _ in range(2):
        with pytest.raises(KeyNotFoundError, match="no value came for key 7"):
            await DataLoader(table.mapping, second_level=cache, fresh_for=60, name="l").load(7)
        await drain(cache)
    for default in (0, 1):
        loader = DataLoader(
            table.mapping, second_level=cache, fresh_for=60, missing_fresh_for=5, default=default, name="b"
        )
        assert await loader.load(7) == default
        await drain(cache)
    assert table.batches == [[7], [7], [7]]


@pytest.mark.parametrize("fails", [ValueError("broken"), asyncio.CancelledError(), SystemError("bad")])
async def test_a_batch_that_fails_keeps_nothing_and_lets_the_next_one_load_at_once(fails: BaseException) -> None:
    cache = MemoryCache(max_wait=100)

    async def broken(keys: list[int]) -> list[int]:
        raise fails

    assert isinstance(await outcome(DataLoader(broken, second_level=cache, fresh_for=60, name="l").load(1)), Exception)
    await drain(cache)
    backend = Backend()
    assert await DataLoader(backend, second_level=cache, fresh_for=60, name="l").load(1) == "v1"
    assert asyncio.get_running_loop().time() < 1
    await drain(cache)


async def test_extra_rows_of_a_mapping_prime_the_loader_as_ever() -> None:
    cache = MemoryCache()

    async def more(keys: list[int]) -> dict[int, int]:
        return {1: 10, 2: 20}

    loader = DataLoader(more, second_level=cache, fresh_for=60, name="l")
    assert await loader.load(1) == 10
    assert loader.peek(2) == 20
    await drain(cache)


async def test_pairs_answer_as_they_come_and_what_the_cache_has_comes_first() -> None:
    cache, gate = MemoryCache(), asyncio.Event()
    closed = []

    async def slow(keys: list[int]) -> AsyncIterator[tuple[int, int]]:
        try:
            for key in keys:
                yield key, 10 * key
                await gate.wait()
            yield 99, 990  # nobody asked
        finally:
            closed.append(keys)

    def loader() -> DataLoader[int, int]:
        return DataLoader(slow, second_level=cache, fresh_for=60, name="l")

    gate.set()
    await loader().load(3)
    await drain(cache)
    gate.clear()
    one = loader()
    futures = [one.load(key) for key in (1, 2, 3)]
    assert await futures[2] == 30
    assert await futures[0] == 10
    assert not futures[1].done()
    gate.set()
    assert await futures[1] == 20
    await asyncio.sleep(0)
    assert one.peek(99) == 990
    assert closed == [[3], [1, 2]]
    await drain(cache)


@pytest.mark.logs
async def test_pairs_that_fail_half_way_keep_what_came_and_give_back_the_rest(reports: list[str]) -> None:
    cache, asked = MemoryCache(max_wait=100), []

    async def broken(keys: list[int]) -> AsyncIterator[tuple[int, int]]:
        asked.append(keys)
        yield keys[0], 1
        raise ValueError("broken")

    async def load(*keys: int) -> list[Any]:
        loader = DataLoader(broken, second_level=cache, fresh_for=60, name="l")
        return await loader.load_many(keys, return_exceptions=True)

    first = await load(1, 2)
    await drain(cache)
    second = await load(1, 2)
    assert first[0] == second[0] == 1
    assert isinstance(first[1], ValueError)
    assert second[1] == 1
    assert asked == [[1, 2], [2]]
    assert ["failed after it had answered everybody" in report for report in reports] == [True]  # the second time
    assert asyncio.get_running_loop().time() < 1
    await drain(cache)


# -- one of many loads of a key asks the backend -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mapping", "pairs"])
async def test_of_many_loads_of_a_key_one_asks_and_the_others_get_what_it_brings(kind: str) -> None:
    cache, table = MemoryCache(max_wait=1), Table(1, 2, 3, 4)
    gate = asyncio.Event()

    class Slow(Table):
        async def mapping(self, keys: list[int]) -> dict[int, Row]:
            await gate.wait()
            return await super().mapping(keys)

        async def pairs(self, keys: list[int]) -> AsyncIterator[tuple[int, Row]]:
            await gate.wait()
            async for pair in super().pairs(keys):
                yield pair

    slow = Slow(*table.ids)
    first = SHAPES[kind](slow, cache).load_many([1, 2])
    await asyncio.sleep(0.01)
    others = [SHAPES[kind](slow, cache).load_many([2, key]) for key in (3, 4)]
    await asyncio.sleep(0.01)
    gate.set()
    await together(first, *others)
    assert sorted(slow.batches) == [[1, 2], [3], [4]]
    assert [row.id for row in await others[0]] == [2, 3]
    await drain(cache)


@pytest.mark.parametrize("kind", ["mapping", "pairs"])
async def test_nobody_waits_for_another_load_for_longer_than_the_bound(kind: str) -> None:
    cache, table = MemoryCache(max_wait=0.5, lease_for=100), Table(1, 2)
    await cache.get_many(SHAPES[kind](table, cache)._backed.namespace, ["1"])  # type: ignore[union-attr]  # who is gone
    assert await SHAPES[kind](table, cache).load_many([1, 2]) == [Row(1, "row 1"), Row(2, "row 2")]
    assert table.batches == [[2], [1]]
    assert asyncio.get_running_loop().time() == pytest.approx(0.5)
    await drain(cache)


# -- clear and prime -----------------------------------------------------------------------------------------------


async def test_a_cleared_key_is_asked_of_the_backend_and_others_still_get_what_is_kept() -> None:
    cache, backend = MemoryCache(), Backend()
    one = DataLoader(backend, second_level=cache, fresh_for=60, name="l", cache=False)
    await one.load(1)
    await drain(cache)
    one.clear(1)
    await one.load(1)
    await one.load(1)
    await DataLoader(backend, second_level=cache, fresh_for=60, name="l").load(1)
    assert backend.batches == [[1], [1], [1]]
    await asyncio.sleep(60)
    await one.load(1)
    await drain(cache)
    await one.load(1)  # what is kept now was loaded after the clearing
    assert backend.batches == [[1]] * 4
    assert statistics(cache).bypassed == 2


async def test_after_clear_all_every_key_is_asked_of_the_backend() -> None:
    cache, backend = MemoryCache(), Backend()
    one = DataLoader(backend, second_level=cache, fresh_for=60, name="l")
    await one.load_many([1, 2])
    await drain(cache)
    one.clear(2)
    one.clear_all()
    await one.load_many([1, 2])
    assert backend.batches == [[1, 2], [1, 2]]


async def test_what_is_cleared_while_it_is_loaded_is_not_written() -> None:
    cache, gate = MemoryCache(), asyncio.Event()
    backend = Backend(gate=gate)
    loader = DataLoader(backend, second_level=cache, fresh_for=60, name="l")
    waiting = loader.load(1)
    await asyncio.sleep(0.01)
    loader.clear(1)
    gate.set()
    await waiting
    await drain(cache)
    await DataLoader(backend, second_level=cache, fresh_for=60, name="l").load(1)
    assert backend.batches == [[1], [1]]
    await drain(cache)


def test_clearing_where_no_loop_runs_is_remembered() -> None:
    cache, backend = MemoryCache(), Backend()

    def loader() -> DataLoader[int, str]:
        return DataLoader(backend, second_level=cache, fresh_for=60, name="l")

    async def main() -> None:
        await loader().load(1)
        await drain(cache)
        await cleared.load(1)

    cleared = loader()
    cleared.clear(1)
    asyncio.run(main())
    assert backend.batches == [[1], [1]]


async def test_a_loader_that_lives_long_forgets_what_was_cleared_long_ago() -> None:
    cache = MemoryCache()
    loader = DataLoader(Backend(), second_level=cache, fresh_for=60, name="l")
    loader.clear_many(range(CLEARED_KEPT))
    await asyncio.sleep(61)
    loader.clear("one more")
    assert loader._backed is not None
    assert [*loader._backed._cleared] == ["one more"]


async def test_a_primed_value_is_for_its_loader_alone() -> None:
    cache, backend = MemoryCache(), Backend()
    one = DataLoader(backend, second_level=cache, fresh_for=60, name="l")
    one.prime(1, "primed")
    assert await one.load(1) == "primed"
    assert await DataLoader(backend, second_level=cache, fresh_for=60, name="l").load(1) == "v1"
    await drain(cache)


async def test_a_value_that_is_changed_after_it_was_loaded_is_kept_as_it_was() -> None:
    cache, table = MemoryCache(codec=MsgspecCodec()), Table(1)
    row = await SHAPES["mapping"](table, cache).load(1)
    row.name = "changed, and never saved"
    await drain(cache)
    assert await SHAPES["mapping"](table, cache).load(1) == Row(1, "row 1")


# -- whose values --------------------------------------------------------------------------------------------------


async def test_loaders_parameters_versions_and_tenants_never_see_each_others_values() -> None:
    cache, asked = MemoryCache(), []

    class Shop(Loaders, tenant="organisation"):
        def __init__(self, organisation: Any) -> None:
            self.organisation = organisation

        @dataloader(second_level=cache, fresh_for=60)
        async def one(self, keys: list[int], *, first: int | bool | str = 1) -> list[Any]:
            asked.append(("one", self.organisation, first))
            return [(self.organisation, first) for _ in keys]

        @dataloader(second_level=cache, fresh_for=60, schema_version=2)
        async def two(self, keys: list[int]) -> list[Any]:
            asked.append(("two", self.organisation, 0))
            return [(self.organisation, 0) for _ in keys]

    async def all_of(organisation: Any) -> list[Any]:
        async with Shop(organisation) as shop:
            loaders: list[Any] = [shop.one(first=first) for first in (1, True, "1", "1]")]
            values = [await loader.load(5) for loader in [*loaders, shop.two]]
            await drain(cache)
            return values

    organisations = ["a", "b", 1, "1", ("a", "b"), "a,b", "a:b"]
    before = [await all_of(organisation) for organisation in organisations]
    assert len(asked) == len(set(map(repr, asked))) == 5 * len(organisations)
    assert [await all_of(organisation) for organisation in organisations] == before
    assert len(asked) == 5 * len(organisations)
    assert before[2] == [(1, 1), (1, True), (1, "1"), (1, "1]"), (1, 0)]


async def test_a_tenant_that_is_not_known_is_an_error() -> None:
    cache = MemoryCache()

    class Shop(Loaders, tenant="organisation"):
        organisation = None

        @dataloader(second_level=cache, fresh_for=60)
        async def rows(self, keys: list[int]) -> list[int]:
            return keys

    class Sub(Shop):
        pass

    for kind in (Shop, Sub):
        with pytest.raises(SecondLevelError, match="organisation is None"):
            kind().rows  # noqa: B018


async def test_a_class_of_its_own_has_values_of_its_own() -> None:
    cache, backend = MemoryCache(), Backend()

    class One(Loaders):
        @dataloader(second_level=cache, fresh_for=60)
        async def rows(self, keys: list[int]) -> list[Any]:
            return await backend(keys)

    class Two(One):
        pass

    for kind in (One, Two, One, Two):
        await kind().rows.load(1)
        await drain(cache)
    assert backend.batches == [[1], [1]]


@pytest.mark.parametrize("key", [object(), frozenset({1})])
async def test_a_key_without_a_text_is_an_error_that_says_so(key: Any) -> None:
    loader = DataLoader(Backend(), second_level=MemoryCache(), fresh_for=60, name="l")
    with pytest.raises(SecondLevelError, match="cache_key_fn"):
        await loader.load(key)


@pytest.mark.parametrize("known", [False, True])
async def test_a_function_that_says_no_type_is_an_error_where_values_are_encoded(known: bool) -> None:
    cache = MemoryCache(codec=MsgspecCodec())

    async def untyped(keys):  # type: ignore[no-untyped-def]
        return keys

    loader = DataLoader(untyped, second_level=cache, fresh_for=60, name="l")
    if known:
        namespace = Namespace("l")
        found = await cache.get_many(namespace, ["1"])
        await cache.set_many([Entry(namespace, "1", found.leases["1"], b"1", 60)])
    with pytest.raises(SecondLevelError, match="has no return annotation"):
        await loader.load(1)
    await drain(cache)


# -- what goes wrong -----------------------------------------------------------------------------------------------


class Broken:
    """A cache that fails."""

    codec = None
    shared = True

    async def get_many(self, namespace: Namespace, keys: Sequence[str], *, wait: bool = False) -> Found:
        raise ConnectionError("no cache")

    async def set_many(self, entries: Sequence[Entry]) -> None:
        raise ConnectionError("no cache")

    async def delete_many(self, namespace: Namespace, keys: Sequence[str] | None) -> None:
        raise ConnectionError("no cache")


@pytest.mark.logs
async def test_a_cache_that_fails_is_reported_and_everything_comes_from_the_backend(reports: list[str]) -> None:
    cache, backend = Broken(), Backend()
    assert await DataLoader(backend, second_level=cache, fresh_for=60, name="l").load_many([1, 2]) == ["v1", "v2"]
    assert backend.batches == [[1, 2]]
    assert "second-level cache" in reports[0]
    assert statistics(cache).failures == 1


class Forgetful(Broken):
    """A cache that gives leases and fails to write."""

    async def get_many(self, namespace: Namespace, keys: Sequence[str], *, wait: bool = False) -> Found:
        return Found(leases=dict.fromkeys(keys, "lease"))


@pytest.mark.logs
async def test_a_cache_that_cannot_write_is_reported_and_nobody_waits_for_it(reports: list[str]) -> None:
    cache = Forgetful()
    assert await DataLoader(Backend(), second_level=cache, fresh_for=60, name="l").load(1) == "v1"
    await drain(cache)
    assert ["ConnectionError('no cache')" in report for report in reports] == [True]


class Slow(Forgetful):
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.written: list[Sequence[Entry]] = []

    async def set_many(self, entries: Sequence[Entry]) -> None:
        await self.gate.wait()
        self.written.append(entries)


async def test_a_cache_that_writes_slowly_keeps_nobody_waiting_and_what_is_too_much_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_backing, "WRITES_WAITING", 5)
    cache = Slow()
    loader = DataLoader(Backend(), second_level=cache, fresh_for=60, name="l", max_batch_size=1)
    many = 200
    await loader.load_many(range(many))
    counts = statistics(cache)
    assert counts.dropped > 0
    assert counts.written + counts.dropped == many
    await loader.aclose()  # a scope that closes loses nothing of what is to be written, and does not wait for it
    cache.gate.set()
    await drain(cache)
    assert sum(map(len, cache.written)) == counts.written


async def test_what_was_loaded_is_written_although_its_scope_is_over() -> None:
    cache, backend = MemoryCache(), Backend()

    class App(Loaders):
        @dataloader(second_level=cache, fresh_for=60)
        async def rows(self, keys: list[int]) -> list[Any]:
            return await backend(keys)

    for _ in range(2):
        async with App() as loaders:
            await loaders.rows.load(1)
    assert backend.batches == [[1]]


async def test_a_batch_that_is_closed_or_timed_out_gives_its_leases_back() -> None:
    cache, backend = MemoryCache(max_wait=100), Backend(takes=10)
    late = DataLoader(backend, second_level=cache, fresh_for=60, name="l", timeout=0.1)
    with pytest.raises(LoaderTimeoutError):
        await late.load(1)
    closed = DataLoader(backend, second_level=cache, fresh_for=60, name="l")
    waiting = closed.load(1)
    await asyncio.sleep(0.01)
    await closed.aclose()
    waiting.exception()
    await drain(cache)
    found = await cache.get_many(Namespace("l"), ["1"])
    assert [*found.leases] == ["1"]


class Picky:
    """A codec that refuses some values and cannot read others."""

    def encode(self, value: Any, value_type: Any) -> bytes:
        return str(value).encode() if value != 13 else 1 / 0  # type: ignore[return-value]

    def decode(self, data: bytes, value_type: Any) -> Any:
        return int(data)


async def test_what_cannot_be_encoded_is_not_kept_and_the_next_one_may_load_at_once() -> None:
    cache, asked = MemoryCache(codec=Picky(), max_wait=100), []

    async def same(keys: list[int]) -> list[int]:
        asked.append(keys)
        return keys

    for _ in range(2):
        assert await DataLoader(same, second_level=cache, fresh_for=60, name="l").load_many([12, 13]) == [12, 13]
        await drain(cache)
    assert asked == [[12, 13], [13]]
    assert statistics(cache).codec_errors == 2


async def test_what_cannot_be_decoded_is_loaded_and_replaced() -> None:
    cache, asked = MemoryCache(codec=Picky()), []
    answers: list[Any] = ["rubbish", 2, 3]

    async def next_answer(keys: list[int]) -> list[Any]:
        asked.append(keys)
        return [answers.pop(0)]

    got = []
    for _ in range(3):
        got.append(await DataLoader(next_answer, second_level=cache, fresh_for=60, name="l").load(1))
        await drain(cache)
    assert got == ["rubbish", 2, 2]
    counts = statistics(cache)
    assert (counts.codec_errors, counts.hits, counts.misses) == (1, 1, 2)


# -- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"second_level": MemoryCache()}, ValueError, "second_level needs fresh_for"),
        ({"second_level": MemoryCache(), "fresh_for": 0}, ValueError, "leave second_level out"),
        ({"second_level": MemoryCache(), "fresh_for": -1}, ValueError, "not negative"),
        ({"second_level": MemoryCache(), "fresh_for": 1, "missing_fresh_for": None}, TypeError, "a number of seconds"),
        ({"second_level": MemoryCache(), "fresh_for": 1, "tags": "flights"}, TypeError, "collection of names"),
        ({"second_level": MemoryCache(), "fresh_for": 1, "tags": ["a", 3]}, TypeError, "tags takes a string, not 3"),
        (
            {"second_level": MemoryCache(), "fresh_for": 1, "schema_version": None},
            TypeError,
            "a whole number, not None",
        ),
        ({"second_level": {}, "fresh_for": 1}, TypeError, "takes a SecondLevelCache"),
        ({"second_level": MemoryCache, "fresh_for": 1}, TypeError, "takes a SecondLevelCache"),
        ({"fresh_for": 1}, ValueError, "are for a second_level"),
        ({"missing_fresh_for": 1}, ValueError, "are for a second_level"),
        ({"schema_version": 1}, ValueError, "are for a second_level"),
        ({"tags": ["flights"]}, ValueError, "are for a second_level"),
    ],
)
def test_options_that_make_no_sense_are_refused_where_they_are_written(
    options: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        dataloader(**options)(Table.mapping)


async def test_a_loader_is_known_by_its_name_or_else_by_where_its_function_is() -> None:
    def namespace(load_fn: Any, **options: Any) -> str:
        backed = DataLoader(load_fn, second_level=MemoryCache(), fresh_for=1, **options)._backed
        assert backed is not None
        return backed.namespace.loader

    assert namespace(squares) == "tests.test_backed.squares"
    assert namespace(Table().mapping, name="rows") == "rows"


async def squares(keys: list[int]) -> list[int]:
    return [key * key for key in keys]


async def closure(keys: list[int]) -> list[int]:
    return keys


closure.__qualname__ = "make.<locals>.closure"


@pytest.mark.parametrize("load_fn", [Table().mapping, Backend(), partial(squares), lambda keys: keys, closure])
def test_functions_that_differ_in_more_than_where_they_are_need_a_name(load_fn: Any) -> None:
    with pytest.raises(ValueError, match="give the loader a name="):
        DataLoader(load_fn, second_level=MemoryCache(), fresh_for=60)
    DataLoader(load_fn, second_level=MemoryCache(), fresh_for=60, name="rows")


async def test_pairs_of_a_batch_that_is_waited_for_come_from_the_cache_too() -> None:
    cache = MemoryCache(max_wait=1)
    table = Table(1, 2)
    loader = SHAPES["pairs"](table, cache)
    namespace = loader._backed.namespace  # type: ignore[union-attr]
    leases = (await cache.get_many(namespace, ["1", "8"])).leases
    waiting = loader.load_many([1, 2, 8])
    await asyncio.sleep(0.01)
    await cache.set_many(
        [Entry(namespace, "1", leases["1"], Row(1, "another's"), 60), Entry(namespace, "8", leases["8"], NOTHING, 60)]
    )
    assert await waiting == [Row(1, "another's"), Row(2, "row 2"), None]
    assert table.batches == [[2]]
    await drain(cache)


async def test_an_iterator_that_cannot_be_closed_is_read_all_the_same() -> None:
    class Pairs:
        def __init__(self, keys: list[int]) -> None:
            self.keys = keys

        def __aiter__(self) -> Pairs:
            return self

        async def __anext__(self) -> tuple[int, int]:
            if not self.keys:
                raise StopAsyncIteration
            return self.keys[0], self.keys.pop(0)

    async def pairs(keys: list[int]) -> Any:
        return Pairs(keys)

    cache = MemoryCache()
    assert await DataLoader(pairs, second_level=cache, fresh_for=60, name="l").load_many([1, 2]) == [1, 2]
    await drain(cache)


async def test_what_is_to_be_written_is_dropped_with_its_cache() -> None:
    cache: Any = MemoryCache()
    backing = _backing.backing_of(cache)
    backing.write([Entry(Namespace("l"), "1", None, NOTHING, 60)])
    gone = ref(cache)
    del cache
    gc.collect()
    assert gone() is None
    await backing.drain()


async def test_what_is_nothing_to_the_cache_is_a_missing_key_to_the_loader() -> None:
    cache = MemoryCache()
    found = await cache.get_many(Namespace("l"), ["1"])
    await cache.set_many([Entry(Namespace("l"), "1", found.leases["1"], NOTHING, 5)])
    loader = DataLoader(Table().mapping, second_level=cache, fresh_for=60, name="l", default="nobody")
    assert await loader.load(1) == "nobody"


async def test_nobody_is_told_of_what_is_written_behind_the_callers() -> None:
    cache = MemoryCache()
    with record_batches() as batches:
        await DataLoader(squares, second_level=cache, fresh_for=60).load(2)
        await drain(cache)
    assert batches == {"squares": [[2]]}
    assert statistics(cache).written == 1


def test_a_loop_that_ends_with_writes_under_way_says_nothing_of_them() -> None:
    cache = Slow()
    reports: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        loader = DataLoader(squares, second_level=cache, fresh_for=60, max_batch_size=1)
        for key in range(3):
            await loader.load(key)
            await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert reports == []
    assert cache.written == []


async def test_parameters_of_different_types_have_different_values_although_they_are_equal() -> None:
    cache = MemoryCache()

    class App(Loaders):
        @dataloader(second_level=cache, fresh_for=60)
        async def shown(self, keys: list[int], *, by: object) -> list[str]:
            return [f"{key} {by!r}" for key in keys]

    for _ in range(2):
        async with App() as loaders:
            different = (1, 1.0, True, (1, (1,)), (1, (True,)))
            assert [await loaders.shown(by=by).load(1) for by in different] == [f"1 {by}" for by in different]
        await drain(cache)
    assert statistics(cache).hits == 5


async def test_a_key_without_a_text_is_an_error_of_its_callers_only() -> None:
    cache, backend = MemoryCache(), Backend()
    loader = DataLoader[Any, Any](backend, second_level=cache, fresh_for=60, name="l")
    good, bad, many = await asyncio.gather(
        loader.load(1), loader.load(frozenset()), loader.load_many([2, 3]), return_exceptions=True
    )
    assert (good, many) == (await loader.load(1), [await loader.load(2), await loader.load(3)])
    assert isinstance(bad, SecondLevelError)
    assert "a frozenset is none of str, int" in str(bad)
    assert frozenset() not in {key for batch in backend.batches for key in batch}


async def test_each_loop_writes_what_it_loaded() -> None:
    cache, backend = MemoryCache(), Backend()

    async def load(key: int) -> None:
        await DataLoader(backend, second_level=cache, fresh_for=60, name="l").load(key)
        await drain(cache)

    await load(1)
    for key in (2, 3):
        thread = Thread(target=asyncio.run, args=(load(key),))
        thread.start()
        thread.join()
    counts = statistics(cache)
    assert (counts.written, counts.dropped, len(cache)) == (3, 0, 3)


async def test_pairs_that_another_load_did_not_bring_in_time_are_asked_for_after_the_rest() -> None:
    cache, table = MemoryCache(max_wait=1), Table(1, 2)
    loader = SHAPES["pairs"](table, cache)
    await cache.get_many(loader._backed.namespace, ["1"])  # type: ignore[union-attr]
    assert await loader.load_many([1, 2]) == [Row(1, "row 1"), Row(2, "row 2")]
    assert table.batches == [[2], [1]]
    await drain(cache)
