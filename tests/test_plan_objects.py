"""The plan tells objects apart as resolvers do: each has the outcome of its own question, asked once.

Its key may be another one each time it is found, two keys may be one to the loader and not to Python or the other way
round, and one key may be asked for twice at one place, with two outcomes.
"""

import asyncio
import warnings
from typing import Any

import pytest
import strawberry
from strawberry import relay

from loader import Loaders, dataloader
from loader.strawberry import relation
from tests.answers import Log, ask, schemas
from tests.answers import answers as same


class Ref:
    """A key that is equal to no other, whatever it refers to."""

    def __init__(self, number: int) -> None:
        self.number = number


def plain(key: Any) -> Any:
    return key.number if isinstance(key, Ref) else key


class Shop(Loaders):
    """Batches take a second. `broken` has which calls of all fail."""

    broken: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.log = Log()

    async def fetch(self, name: str, keys: list[Any]) -> list[Any]:
        self.log.batches.append((name, [plain(key) for key in keys]))
        call = self.log.count
        await asyncio.sleep(1)
        if call in self.broken:
            raise ConnectionError(f"call {call} failed")
        return [f"{plain(key)!r} from call {call}" for key in keys]

    @dataloader(max_batch_size=1)
    async def boxes(self, numbers: list[int]) -> list["Box"]:
        await asyncio.sleep(numbers[0] * 10)
        return [Box(number=number) for number in numbers]

    @dataloader
    async def names(self, keys: list[Any]) -> list[str]:
        return await self.fetch("names", keys)

    @dataloader(cache=False)
    async def fresh(self, keys: list[Any]) -> list[str]:
        return await self.fetch("fresh", keys)

    @dataloader(cache_key_fn=plain)
    async def by_number(self, keys: list[Any]) -> list[str]:
        return await self.fetch("by_number", keys)

    @dataloader(cache_key_fn=plain, cache=False)
    async def fresh_by_number(self, keys: list[Any]) -> list[str]:
        return await self.fetch("fresh_by_number", keys)

    @dataloader(cache_key_fn=repr)
    async def by_repr(self, keys: list[Any]) -> list[str]:
        return await self.fetch("by_repr", keys)

    @dataloader(cache_key_fn=lambda _: None)
    async def single(self, keys: list[Any]) -> list[str]:
        return await self.fetch("single", keys)

    @dataloader
    async def prices(self, numbers: list[int]) -> list[Any]:
        self.log.batches.append(("prices", numbers))
        await asyncio.sleep(0.5)
        return ["dear" if number == 2 else number for number in numbers]

    @dataloader(max_batch_size=1)
    async def same_box(self, numbers: list[int]) -> list["Box"]:
        await asyncio.sleep(numbers[0] * 10)
        return [THE_BOX for _ in numbers]

    @dataloader
    async def awaitables(self, numbers: list[int]) -> list[Any]:
        self.log.batches.append(("awaitables", numbers))
        futures = [asyncio.get_running_loop().create_future() for _ in numbers]
        futures[0].set_result("there")
        futures[1].cancel()
        return futures

    @dataloader(cache=False)
    async def shelves(self, keys: list[int]) -> list[Any]:
        await self.fetch("shelves", keys)
        return [7 if key == 2 else [Item(id=key)] for key in keys]


@strawberry.type
class Item(relay.Node):
    id: relay.NodeID[int]


@strawberry.type
class Box:
    number: int
    one_name: str | None = relation(Shop.names, lambda _: 5)
    one_fresh: str | None = relation(Shop.fresh, lambda _: 5)


THE_BOX = Box(number=5)


@strawberry.type
class Made:
    """What a property makes anew each time."""

    number: strawberry.Private[int]
    name: str | None = relation(Shop.names, "number")
    fresh: str | None = relation(Shop.fresh, "number")


@strawberry.type
class Row:
    number: int
    key: strawberry.Private[Any] = None
    box: Box | None = relation(Shop.boxes, "number")
    ref: str | None = relation(Shop.names, lambda row: Ref(row.number))
    nan: str | None = relation(Shop.names, lambda _: float("nan"))
    by_number: str | None = relation(Shop.by_number, lambda row: Ref(row.number))
    fresh_by_number: str | None = relation(Shop.fresh_by_number, lambda row: Ref(row.number // 2))
    by_repr: str | None = relation(Shop.by_repr, "key")
    single: str | None = relation(Shop.single, "key")
    lists: str | None = relation(Shop.by_repr, lambda row: [row.number])
    same_box: Box | None = relation(Shop.same_box, "number")
    awaitable: str | None = relation(Shop.awaitables, "number")
    price: int = relation(Shop.prices, "number")
    shelf: relay.ListConnection[Item] | None = relation(Shop.shelves, "number")


class Model:
    """A row as of an ORM: what it has is a property."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def made(self) -> Made:
        return Made(number=self.number)

    @property
    def some_made(self) -> list[Made]:
        return [self.made, self.made]

    @property
    def label(self) -> Any:
        async def read() -> str:
            return f"label {self.number}"

        return read()


@strawberry.type
class Modelled:
    number: int
    label: str
    made: Made
    some_made: list[Made]
    name: str | None = relation(Shop.names, "number")


@strawberry.type
class Query:
    @strawberry.field
    def rows(self) -> list[Row]:
        return [Row(number=number, key=key) for number, key in ((1, 1), (2, True), (3, 1.0), (4, None))]

    @strawberry.field
    def maybe_rows(self) -> list[Row | None]:
        return [Row(number=number, key=number) for number in (1, 2, 3)]

    @strawberry.field
    def models(self) -> list[Modelled]:
        return [Model(1), Model(2)]  # type: ignore[list-item]  # what is tested


BOTH = schemas(Query, Shop)


@pytest.mark.parametrize("broken", [{1}, {2}, {3}, {1, 2}, {2, 3}, set()])
@pytest.mark.parametrize("field", ["oneName", "oneFresh"])
@pytest.mark.parametrize("box", ["box", "sameBox"])
async def test_a_key_that_is_asked_for_again_at_the_same_place_has_its_own_outcome(
    box: str, field: str, broken: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shop, "broken", frozenset(broken))
    fast, slow = await same(BOTH, f"{{ rows {{ {box} {{ {field} }} }} }}", Shop)
    assert fast.log.batches == slow.log.batches
    assert fast.took == slow.took
    assert fast.errors == slow.errors


@pytest.mark.parametrize("broken", [{1}, set()])
@pytest.mark.parametrize(
    ("field", "keys"),
    [
        ("ref", [1, 2, 3, 4]),
        ("byNumber", [1, 2, 3, 4]),
        ("freshByNumber", [0, 1, 2]),
        ("byRepr", [1, True, 1.0]),
        ("single", [1]),
        ("lists", [[1], [2], [3], [4]]),
    ],
)
async def test_a_key_is_found_once_and_is_what_the_loader_takes_it_for(
    field: str, keys: list[Any], broken: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shop, "broken", frozenset(broken))
    fast, slow = await same(BOTH, f"{{ rows {{ {field} }} }}", Shop)
    assert [repr(batch) for _, batch in fast.log.batches] == [repr(keys)]
    assert fast.log.batches == slow.log.batches
    assert fast.took == slow.took == 1


@pytest.mark.parametrize("broken", [{2}, set()])
@pytest.mark.parametrize("field", ["ref", "nan", "byNumber", "freshByNumber", "lists", "single"])
async def test_a_key_that_is_under_way_when_the_list_is_completed_is_not_asked_for_again(
    field: str, broken: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shop, "broken", frozenset(broken))
    fast, slow = await same(BOTH, f"{{ maybeRows {{ {field} price }} }}", Shop)
    assert fast.data["maybeRows"][1] is None
    assert repr(fast.log) == repr(slow.log)
    assert fast.log.count == 2
    assert fast.took == slow.took == 1


async def test_a_number_that_is_none_is_asked_for_once_for_each_object() -> None:
    fast, slow = await same(BOTH, "{ rows { nan } }", Shop)
    assert len(fast.log.batches[0][1]) == len(slow.log.batches[0][1]) == 4
    assert fast.log.count == slow.log.count == 1
    assert fast.took == slow.took == 1


async def test_a_value_that_makes_no_connection_fails_alone() -> None:
    fast, slow = await same(BOTH, "{ rows { shelf { edges { cursor } } } }", Shop)
    assert [path for path, _ in fast.errors] == [["rows", 1, "shelf"]]
    assert fast.log.batches == slow.log.batches == [("shelves", [1, 2, 3, 4])]
    assert fast.took == slow.took == 1


@pytest.mark.parametrize("broken", [{1}, set()])
@pytest.mark.parametrize("inner", ["name", "fresh", "name fresh"])
@pytest.mark.parametrize("made", ["made", "someMade"])
async def test_what_a_property_makes_anew_is_asked_about_once(
    made: str, inner: str, broken: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shop, "broken", frozenset(broken))
    fast, slow = await same(BOTH, f"{{ models {{ {made} {{ {inner} }} name }} }}", Shop)
    assert fast.log.batches == slow.log.batches
    assert fast.took == slow.took == 1


@pytest.mark.parametrize("times", [1, 2])
async def test_a_value_that_could_be_awaited_is_not(times: int) -> None:
    query = f"{{ {' '.join(f'a{n}: rows {{ awaitable }}' for n in range(times))} }}"
    for schema in BOTH:
        shop = Shop()
        async with shop:
            for _ in range(times):  # the second time they are cached
                result = await schema.execute(query, context_value={"loaders": shop})
                assert result.data is not None
                assert [row["awaitable"][:8] for row in result.data["a0"]] == ["<Future "] * 4
        assert {name for name, _ in shop.log.batches} == {"awaitables"}


async def test_a_coroutine_that_a_property_makes_anew_is_closed() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = await ask(BOTH[0], "{ models { label name } }", Shop())
    assert [each["label"] for each in fast.data["models"]] == ["label 1", "label 2"]
    assert fast.log.batches == [("names", [1, 2])]
