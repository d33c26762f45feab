"""Where looking ahead ends: exceptions that are no `Exception`, deep queries, parts of a batch, lists that fail."""

import asyncio
import sys
from typing import Any

import pytest
import strawberry
from strawberry.schema.config import StrawberryConfig
from strawberry.schema.name_converter import NameConverter

from loader import Loaders, dataloader
from loader.strawberry import relation
from loader.strawberry._keys import Sought
from tests.answers import Log, answers, ask, schemas


class BrokenOffError(BaseException):
    """As a test framework raises it to leave a test."""


class Row:
    """What a loader has: reading it fails in its own way."""

    def __init__(self, fails: BaseException, where: str, number: int) -> None:
        self.fails, self.where, self.number = fails, where, number
        self.reads = 0

    @property
    def name(self) -> str:
        self.reads += 1
        if self.where == "attribute" or (self.where == "second read" and self.reads == 2):
            raise self.fails
        return f"name {self.number}"


def key_of(row: Any) -> int:
    if row.where == "key":
        raise row.fails
    number: int = row.number
    return number


class Shelf(Loaders):
    def __init__(self, fails: BaseException | None = None, where: str = "") -> None:
        self.log = Log()
        self.fails, self.where = fails or ValueError(), where

    @dataloader
    async def authors(self, ids: list[int]) -> list[Any]:
        self.log.batches.append(("authors", ids))
        await asyncio.sleep(1)
        return [Row(self.fails, self.where, key) for key in ids]

    @dataloader
    async def some(self, ids: list[int]) -> list[Any]:
        self.log.batches.append(("some", ids))
        await asyncio.sleep(1)
        return [ValueError("there is none") if key == 2 else Row(self.fails, "", key) for key in ids]

    @dataloader
    async def children(self, ids: list[int]) -> list[list["Node"]]:
        self.log.batches.append(("children", ids))
        return [[Node(id=key + 1)] for key in ids]

    @dataloader
    async def one_by_one(self, ids: list[int]) -> Any:
        self.log.batches.append(("one_by_one", ids))
        for key in ids:
            await asyncio.sleep(0)
            yield key, f"{key}"

    @dataloader(max_batch_size=10)
    async def by_ten(self, ids: list[int]) -> list[str]:
        self.log.batches.append(("by_ten", ids))
        return [f"{key}" for key in ids]

    @dataloader
    async def words(self, ids: list[int]) -> list[str]:
        self.log.batches.append(("words", ids))
        return [f"word {key}" for key in ids]


@strawberry.type
class Author:
    name: str | None
    word: str | None = relation(Shelf.words, key_of)


@strawberry.type
class Node:
    id: int
    children: list["Node"] = relation(Shelf.children, "id")


@strawberry.type
class Book:
    id: int
    author: Author | None = relation(Shelf.authors, "id")
    needed: Author = relation(Shelf.some, "id")
    one_by_one: str = relation(Shelf.one_by_one, "id")
    by_ten: str = relation(Shelf.by_ten, "id")


@strawberry.type
class Box:
    books: list[Book] | None


@strawberry.type
class Query:
    @strawberry.field
    def books(self, most: int = 3) -> list[Book] | None:
        return [Book(id=number) for number in range(1, most + 1)]

    @strawberry.field
    def boxes(self) -> list[Box]:
        return [Box(books=[Book(id=1), Book(id=2)]), Box(books=[Book(id=3)])]

    @strawberry.field
    def roots(self) -> list[Node]:
        return [Node(id=0)]

    @strawberry.field
    async def slow(self) -> int:
        await asyncio.sleep(20)
        return 1


BOTH = schemas(Query, Shelf)


@pytest.mark.parametrize("where", ["attribute", "key"])
@pytest.mark.parametrize("fails", [BrokenOffError(), GeneratorExit(), asyncio.CancelledError()])
async def test_what_is_no_exception_ends_the_query_as_it_does_without_a_plan(fails: BaseException, where: str) -> None:
    for schema in BOTH:
        operation = asyncio.ensure_future(
            schema.execute("{ books { author { name word } } }", context_value={"loaders": Shelf(fails, where)})
        )
        await asyncio.wait([operation], timeout=60)
        with pytest.raises(type(fails)):
            operation.result()


async def test_what_is_no_exception_ends_a_list_before_anything_is_loaded() -> None:
    class Odd(Box):
        def __getattribute__(self, name: str) -> Any:
            if name == "books":
                raise BrokenOffError
            return super().__getattribute__(name)

    @strawberry.type
    class Odds:
        @strawberry.field
        def odds(self) -> list[Box]:
            return [Odd(books=None)]

    for schema in schemas(Odds, Shelf):
        with pytest.raises(BrokenOffError):
            await schema.execute("{ odds { books { author { name } } } }", context_value={"loaders": Shelf()})


@pytest.mark.parametrize("where", ["attribute", "key", "second read"])
@pytest.mark.parametrize("fails", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_through_the_loop(fails: type[BaseException], where: str) -> None:
    for schema in BOTH[:1] if where == "second read" else BOTH:  # without a plan it is read once
        with pytest.raises(fails):
            asyncio.run(
                schema.execute(
                    "{ books { author { name word } } }", context_value={"loaders": Shelf(fails("stop"), where)}
                )
            )


@pytest.mark.parametrize("depth", [5, 29, 35, 60])
async def test_a_deep_query_takes_no_deep_stack(depth: int) -> None:
    query = "{ roots { " + "children { " * depth + "id" + " }" * depth + " } }"
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        fast, slow = await answers(BOTH, query, Shelf)
    finally:
        sys.setrecursionlimit(before)
    assert fast.errors == []
    assert fast.log.batches == slow.log.batches == [("children", [level]) for level in range(depth)]


@pytest.mark.parametrize("field", ["oneByOne", "byTen"])
async def test_outcomes_that_come_in_parts_are_found_without_going_through_all_objects(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, slot = 0, vars(Sought)["objects"]

    def counted(sought: Sought) -> Any:
        nonlocal looked
        looked += 1
        return slot.__get__(sought)

    monkeypatch.setattr(Sought, "objects", property(counted, slot.__set__))
    answer = await ask(BOTH[0], f"{{ books(most: 200) {{ {field} }} }}", Shelf())
    assert answer.data["books"] == [{field: f"{number}"} for number in range(1, 201)]
    assert looked < 10


@pytest.mark.parametrize("root", ["books", "boxes"])
async def test_a_list_that_fails_asks_no_more_below_what_it_had(root: str) -> None:
    inner = "needed { word }"
    asked = f"books {{ {inner} }}" if root == "boxes" else inner
    fast, slow = await answers(BOTH, f"{{ {root} {{ {asked} }} slow }}", Shelf)
    assert fast.errors == slow.errors
    assert len(fast.errors) == 1
    words = [("words", [3])] if root == "boxes" else []
    assert fast.log.batches == slow.log.batches == [("some", [1, 2, 3]), *words]


@strawberry.interface
class Named:
    id: int


@strawberry.type
class Shown(Named):
    word: str | None = relation(Shelf.words, "id")


@strawberry.type
class Hidden(Named):
    other: int = 1


@strawberry.type
class Cast:
    @strawberry.field
    def shown(self) -> list[Shown | None]:
        return [strawberry.cast(Hidden, Shown(id=1)), Shown(id=2)]

    @strawberry.field
    def named(self) -> list[Named]:
        return [strawberry.cast(Hidden, Shown(id=1)), Shown(id=2)]


@pytest.mark.parametrize("query", ["{ shown { word } }", "{ named { ... on Shown { word } } }"])
async def test_what_goes_for_another_type_is_not_asked_about(query: str) -> None:
    fast, slow = await answers(schemas(Cast, Shelf, types=[Hidden]), query, Shelf)
    assert fast.log.batches == slow.log.batches == [("words", [2])]


class KeyedError(Exception):
    """An exception that has what a relation looks for."""

    where, number = "", 7


@strawberry.type
class Holding:
    @strawberry.field
    def authors(self) -> list[Author | None]:
        return [Row(ValueError(), "", 1), KeyedError("no author"), Row(ValueError(), "", 2)]  # type: ignore[list-item]


async def test_an_exception_in_a_list_is_asked_about_nothing() -> None:
    fast, slow = await answers(schemas(Holding, Shelf), "{ authors { name word } }", Shelf)
    assert [path for path, _ in fast.errors] == [["authors", 1]]
    assert fast.log.batches == slow.log.batches == [("words", [1, 2])]


class Prefixed(NameConverter):
    def from_object(self, object_type: Any) -> str:
        return f"Api{object_type.name}"


@strawberry.type
class Thing:
    id: int
    word: str = relation(Shelf.words, "id")


@strawberry.type
class ApiThing:
    id: int
    digits: str = relation(Shelf.by_ten, "id")


@strawberry.type
class Renamed:
    @strawberry.field
    def things(self) -> list[Thing | ApiThing]:
        return [ApiThing(id=1), ApiThing(id=2)]


async def test_a_type_is_known_by_what_it_is_and_not_by_its_name() -> None:
    both = schemas(Renamed, Shelf, config=StrawberryConfig(name_converter=Prefixed()))
    query = "{ things { ... on ApiThing { word } ... on ApiApiThing { digits } } }"
    fast, slow = await answers(both, query, Shelf)
    assert fast.data == {"things": [{"digits": "1"}, {"digits": "2"}]}
    assert fast.log.batches == slow.log.batches == [("by_ten", [1, 2])]


class Shared(Loaders):
    """One object in two places; what is asked about it fails, each time anew."""

    one: "Item"

    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def words(self, ids: list[int]) -> list[str]:
        self.log.batches.append(("words", ids))
        await asyncio.sleep(0.25)
        raise ConnectionError(f"call {self.log.count} failed")

    @dataloader(max_batch_size=2)
    async def items(self, ids: list[int]) -> list["Item"]:
        self.log.batches.append(("items", ids))
        await asyncio.sleep(1)
        return [self.one if key == 1 else Item(id="none" if key == 2 else key) for key in ids]  # type: ignore[arg-type]  # what is tested


@strawberry.type
class Item:
    id: int
    word: str | None = relation(Shared.words, lambda _: 5)


@strawberry.type
class Holder:
    number: int
    item: Item
    later: Item | None = relation(Shared.items, "number")
    next: Item | None = relation(Shared.items, lambda holder: holder.number + 2)


@strawberry.type
class Holders:
    @strawberry.field
    def holders(self) -> list[Holder | None]:
        Shared.one = Item(id=1)
        return [Holder(number=1, item=Shared.one), Holder(number=2, item=Item(id=7))]


TWICE = schemas(Holders, Shared)


async def test_an_object_that_failed_in_one_place_is_asked_about_in_another_that_was_not_looked_at() -> None:
    fast, slow = await answers(TWICE, "{ holders { item { word } later { id word } } }", Shared)
    assert fast.data["holders"] == [
        {"item": {"word": None}, "later": {"id": 1, "word": None}},
        {"item": {"word": None}, "later": None},
    ]
    assert fast.errors == slow.errors
    for answer in (fast, slow):
        assert sorted(answer.log.batches) == [("items", [1, 2]), ("words", [5]), ("words", [5])]


async def test_keys_of_two_relations_are_asked_for_object_by_object_whatever_stands_between_them() -> None:
    fast, slow = await answers(TWICE, "{ holders { next { id } number item { id } later { id } } }", Shared)
    assert fast.log.batches == slow.log.batches == [("items", [3, 1]), ("items", [4, 2])]


async def test_a_query_that_is_cancelled_when_its_list_is_completed_early_leaves_nothing() -> None:
    for schema in TWICE:
        shared = Shared()
        query = "{ holders { item { word } later { id word } } }"
        operation = asyncio.ensure_future(schema.execute(query, context_value={"loaders": shared}))
        await asyncio.sleep(1.1)
        operation.cancel()
        await asyncio.wait([operation], timeout=60)
        assert operation.cancelled()
