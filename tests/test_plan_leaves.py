"""Scalars and enums that cannot go into a response fail with the plan when they fail without it, and nothing is loaded.

Such a failure makes null whatever has to have a value there, up to the list that would have been loaded ahead.
"""

import asyncio
import datetime
import enum
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import strawberry

from loader import Loaders, dataloader
from loader.strawberry import relation
from tests.answers import Log, answers, ask, schemas

TODAY = datetime.date(2024, 1, 31)


@strawberry.enum
class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Stock(Loaders):
    def __init__(self) -> None:
        self.log = Log()

    @dataloader
    async def makers(self, ids: list[int]) -> dict[int, "Maker"]:
        self.log.batches.append(("makers", ids))
        await asyncio.sleep(10)
        return {key: Maker(name=f"maker {key}") for key in ids}

    @dataloader
    async def prices(self, ids: list[int]) -> dict[int, Any]:
        self.log.batches.append(("prices", ids))
        await asyncio.sleep(1)
        return {key: "dear" if key == 2 else key for key in ids}

    @dataloader
    async def tags(self, ids: list[int]) -> dict[int, Any]:
        self.log.batches.append(("tags", ids))
        await asyncio.sleep(1)
        return {key: ["a", {}] if key == 2 else ["a"] for key in ids}


@strawberry.type
class Maker:
    name: str


@strawberry.type
class Article:
    """What is on sale. Each field has a value that fits unless a test says otherwise."""

    id: int
    number: int = 7
    share: float = 0.5
    flag: bool = True
    name: str = "a"
    key: strawberry.ID = strawberry.ID("k")
    colour: Colour = Colour.RED
    since: datetime.date = TODAY
    tags: list[str] = strawberry.field(default_factory=lambda: ["a", "b"])
    grid: list[list[int]] = strawberry.field(default_factory=lambda: [[1, 2], [3]])
    maybe_number: int | None = None
    maybe_tags: list[str | None] | None = None
    maker: Maker | None = relation(Stock.makers, "id")
    price: int = relation(Stock.prices, "id")
    maybe_price: int | None = relation(Stock.prices, "id")
    labels: list[str] = relation(Stock.tags, "id")


@strawberry.type
class Query:
    @strawberry.field
    def articles(self, info: strawberry.Info) -> list[Article] | None:
        found: list[Article] = info.context["articles"]
        return found


BOTH = schemas(Query, Stock)


def articles(**odd: Any) -> dict[str, Any]:
    return {"articles": [Article(id=1), Article(id=2, **odd), Article(id=3)]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", "xx"),
        ("number", 2**31),
        ("number", -(2**31) - 1),
        ("number", object()),
        ("number", 1.5),
        ("share", math.nan),
        ("share", -math.inf),
        ("share", 10**400),
        ("share", 2**53 + 1),
        ("share", "half"),
        ("flag", "yes"),
        ("name", {}),
        ("key", []),
        ("key", math.nan),
        pytest.param("key", 10**5000, id="too many digits"),
        ("colour", "green"),
        ("since", "today"),
        ("tags", 5),
        ("tags", "ab"),
        ("tags", {"a": "b"}),
        ("tags", ["a", None]),
        ("tags", ["a", {}]),
        ("grid", [[1], 2]),
        ("grid", [[1], ["x"]]),
        ("grid", None),
    ],
)
async def test_nothing_is_loaded_where_a_value_cannot_go_into_the_response(name: str, value: Any) -> None:
    for query in (f"{{ articles {{ {name} maker {{ name }} }} }}", f"{{ articles {{ maker {{ name }} {name} }} }}"):
        fast, slow = await answers(BOTH, query, Stock, context=articles(**{name: value}))
        assert fast.data == {"articles": None}
        assert fast.took == slow.took == 0
        assert fast.log.count == slow.log.count == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", True),
        ("number", 2**31 - 1),
        ("number", "12"),
        ("share", 3),
        ("flag", 0),
        ("name", 3),
        ("key", 4),
        ("colour", Colour.BLUE),
        ("tags", {"a"}),
        ("tags", ("a", "b")),
        ("tags", []),
        ("grid", ([1], ())),
        ("maybe_number", "xx"),
        ("maybe_tags", [{}, None, "a"]),
    ],
)
async def test_what_can_go_into_the_response_leaves_the_list_planned(name: str, value: Any) -> None:
    names = "number share flag name key colour since tags grid maybeNumber maybeTags"
    fast, slow = await answers(
        BOTH, f"{{ articles {{ {names} maker {{ name }} }} }}", Stock, context=articles(**{name: value})
    )
    assert len(fast.data["articles"]) == 3
    assert bool(fast.errors) == name.startswith("maybe")
    assert fast.log.batches == slow.log.batches == [("makers", [1, 2, 3])]


@pytest.mark.parametrize("field", ["price", "labels"])
async def test_one_that_comes_from_a_loader_fails_when_it_comes(field: str) -> None:
    fast, slow = await answers(BOTH, f"{{ articles {{ {field} maker {{ name }} }} }}", Stock, context=articles())
    assert fast.data == {"articles": None}
    assert fast.took == slow.took == 1


async def test_one_that_may_be_null_holds_nothing_up() -> None:
    fast, slow = await answers(BOTH, "{ articles { maybePrice maker { name } } }", Stock, context=articles())
    assert [each["maybePrice"] for each in fast.data["articles"]] == [1, None, 3]
    assert fast.took == slow.took == 10


@pytest.mark.parametrize("field", ["tags", "maybeTags"])
async def test_what_can_be_gone_through_once_is_not_used_up(field: str) -> None:
    def letters() -> Iterator[str]:
        yield from "ab"

    for schema in BOTH:
        context = articles(tags=letters(), maybe_tags=letters())
        answer = await ask(schema, f"{{ articles {{ {field} maker {{ name }} }} }}", Stock(), context=context)
        assert answer.data["articles"][1] == {field: ["a", "b"], "maker": {"name": "maker 2"}}


async def test_what_comes_one_by_one_does_not_wait_for_what_is_loaded() -> None:
    async def letters(seen: list[float]) -> AsyncIterator[str]:
        for letter in "ab":
            await asyncio.sleep(1)
            seen.append(asyncio.get_running_loop().time())
            yield letter

    for schema in BOTH:
        began, seen = asyncio.get_running_loop().time(), list[float]()
        context = articles(maybe_tags=letters(seen))
        answer = await ask(schema, "{ articles { maybeTags maker { name } } }", Stock(), context=context)
        assert answer.data["articles"][1] == {"maybeTags": ["a", "b"], "maker": {"name": "maker 2"}}
        assert [round(at - began, 3) for at in seen] == [1, 2]
