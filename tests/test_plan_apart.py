"""What the plan keeps out of: queries too large to look through, empty lists, executors of others, odd attributes."""

import asyncio
import gc
import itertools
import warnings
from typing import Any

import pytest
import strawberry
from strawberry.extensions import SchemaExtension
from strawberry.schema.schema import StrawberryGraphQLCoreExecutionContext

from loader import dataloader
from loader.strawberry import install, relation
from loader.strawberry._plan import MOST_LOOKED_AT, Plan
from tests.answers import QuietSchema, answers, ask, schemas
from tests.test_plan_once import Names as JustNames


class Names(JustNames):
    @dataloader
    async def authors(self, ids: list[int]) -> list["Author"]:
        self.log.batches.append(("authors", ids))
        return [Author(id=number) for number in ids]

    @dataloader
    async def failing(self, ids: list[int]) -> Any:
        self.log.batches.append(("failing", ids))
        for number in ids:
            yield number, ValueError("there is none")


@strawberry.interface
class Thing:
    id: int
    name: str | None = relation(Names.names, "id")
    things: list["Thing"] = ()  # type: ignore[assignment]  # as a list for each object would be the same


OVERLAPPING = [strawberry.interface(type(f"Kind{k}", (Thing,), {"__annotations__": {}})) for k in range(3)]
TYPES: list[Any] = [
    strawberry.type(
        type("Of" + "".join(map(str, kinds)), tuple(OVERLAPPING[k] for k in kinds), {"__annotations__": {}})
    )
    for many in (1, 2, 3)
    for kinds in itertools.combinations(range(3), many)
]


@strawberry.type
class Author:
    id: int
    prize: str | None = relation(Names.failing, "id")


class Unlike:
    """Its attributes are made anew whenever they are read, and are to be awaited."""

    id = 1

    @property
    async def author(self) -> Author:
        return Author(id=1)

    @property
    def authors(self) -> list[Any]:
        return [self.author, self.author]


@strawberry.type
class Book:
    id: int
    author: Author | None = None
    authors: list[Author] | None = None
    name: str | None = relation(Names.names, "id")
    by: Author | None = relation(Names.authors, "id")


@strawberry.type
class Query:
    @strawberry.field
    def things(self, most: int) -> list[Thing]:
        return [kind(id=0, things=[kind(id=1), kind(id=2)]) for kind in TYPES[:most]]

    @strawberry.field
    def books(self, most: int = 3) -> list[Book]:
        return [Book(id=number) for number in range(most)]

    @strawberry.field
    def unlike(self) -> list[Book]:
        return [Unlike(), Unlike()]  # type: ignore[list-item]  # as rows of an ORM would be


def nested(depth: int) -> str:
    return "name" if not depth else "".join(f"... on Kind{k} {{ things {{ {nested(depth - 1)} }} }} " for k in range(3))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many selections a plan has looked at, after each look that was not too much."""
    seen: list[int] = []
    look = Plan._node

    def counted(self: Any, *arguments: Any) -> Any:
        node = look(self, *arguments)
        seen.append(self._looked_at)
        return node

    monkeypatch.setattr(Plan, "_node", counted)
    return seen


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
async def test_what_a_plan_looks_at_is_bounded_however_the_query_grows(depth: int, looked_at: list[int]) -> None:
    both = schemas(Query, types=TYPES)
    for most in (1, len(TYPES)):
        looked_at.clear()
        planned, _ = await answers(both, f"{{ things(most: {most}) {{ name {nested(depth)} }} }}", Names)
        assert len(looked_at) <= max(looked_at, default=0) <= MOST_LOOKED_AT
        assert len(planned.data["things"]) == most
        assert planned.log.count == 1  # whether it was planned or not


async def test_what_stands_in_fragments_is_counted(looked_at: list[int]) -> None:
    skipped = "... on Thing @skip(if: true) { id } " * 50
    for depth in (0, 5):
        query = "{ things(most: 7) { name ...F } } fragment F on Thing { id "
        query += (
            "things { ...G } } fragment G on Thing { name " + skipped + "things { ...H " * depth + "id " + "}" * depth
        )
        query += " } fragment H on Thing { " + skipped + " }" if depth else " }"
        looked_at.clear()
        planned, _ = await answers(schemas(Query, types=TYPES), query, Names)
        assert len(planned.data["things"]) == 7
        assert (50 * len(TYPES) if not depth else 0) < max(looked_at, default=1) <= MOST_LOOKED_AT


@strawberry.type
class Shelf:
    id: int
    authors: list[Author]
    name: str | None = relation(Names.names, "id")


class OfItsOwn:
    """It has coroutines that it hands out in another order each time."""

    id = 1

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.turn = 0
        self.own = [self.fetch(1), self.fetch(2)]

    async def fetch(self, number: int) -> Author:
        return Author(id=number)

    @property
    def authors(self) -> Any:
        self.turn += 1
        return self.kind(self.own[::-1] if self.turn % 2 else self.own)


@pytest.mark.parametrize("kind", [list, tuple])
async def test_coroutines_that_an_object_keeps_are_its_own(kind: type) -> None:
    @strawberry.type
    class Root:
        @strawberry.field
        def shelves(self) -> list[Shelf]:
            return [OfItsOwn(kind)]  # type: ignore[list-item]

    planned, _ = await answers(schemas(Root), "{ shelves { name authors { id } } }", Names)
    assert sorted(each["id"] for each in planned.data["shelves"][0]["authors"]) == [1, 2]
    assert planned.errors == []


async def test_for_an_empty_list_nothing_is_looked_at(looked_at: list[int]) -> None:
    planned, _ = await answers(schemas(Query, types=TYPES), "{ things(most: 0) { name things { name } } }", Names)
    assert planned.data == {"things": []}
    assert looked_at == []


async def test_failures_that_come_one_by_one_take_time_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    from loader.strawberry._keys import Sought

    passes = 0
    came_to = Sought.came_to

    def counted(self: Any, outcomes: Any) -> Any:
        nonlocal passes
        passes += len(outcomes)
        return came_to(self, outcomes)

    monkeypatch.setattr(Sought, "came_to", counted)
    counts = []
    for most in (10, 100):
        passes = 0
        await ask(schemas(Query)[0], f"{{ books(most: {most}) {{ by {{ prize }} }} }}", Names())
        counts.append(passes)
    assert counts[1] <= 11 * counts[0]


@pytest.mark.parametrize("field", ["author", "authors"])
async def test_coroutines_that_are_attributes_are_awaited_or_closed(field: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        planned, _ = await answers(schemas(Query), f"{{ unlike {{ name {field} {{ id }} }} }}", Names)
        gc.collect()
    assert planned.data["unlike"][1]["name"] == "name 1"
    assert [str(each.message) for each in seen] == []


class Refusing(StrawberryGraphQLCoreExecutionContext):
    """An executor that has the last word on every field."""

    def execute_field(self, parent_type: Any, source: Any, details: Any, path: Any, position: Any) -> Any:
        if details[0].node.name.value == "name":
            return None
        return super().execute_field(parent_type, source, details, path, position)


async def test_an_executor_that_executes_fields_in_its_own_way_is_asked_before_anything_is_loaded() -> None:
    schema = QuietSchema(Query, execution_context_class=Refusing)
    install(schema)
    answer = await ask(schema, "{ books { name } }", Names())
    assert answer.data == {"books": [{"name": None}] * 3}
    assert answer.log.batches == []


async def test_a_relation_finds_its_loaders_in_the_context_that_an_extension_has_made() -> None:
    class Making(SchemaExtension):
        def on_operation(self) -> Any:
            self.execution_context.context = {"loaders": Names()}
            yield

    for plan in (True, False):
        schema = QuietSchema(Query, extensions=[Making])
        install(schema, plan=plan)
        result = await schema.execute("{ books { name } }")
        assert result.errors is None
        assert result.data == {"books": [{"name": f"name {number}"} for number in range(3)]}
        await asyncio.sleep(0)
