"""Two requests at once share no batch, no value and no context variable, whichever of them runs next at any await.

The loop of these tests runs one callback at a time and asks a schedule whose turn it is. What belongs to which request
is seen from the context it runs in, where each request has put its name; within a request the order is that of any
loop. So each request must go exactly as it does alone: the same answer, the same batches.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain, product, repeat
from typing import TYPE_CHECKING, Any

import pytest
import strawberry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader import Loaders, dataloader
from loader.strawberry import install
from loader.testing import VirtualClockLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IN_CI = bool(os.environ.get("CI"))  # where there is time for all of them

request: ContextVar[str] = ContextVar("request")


class Books(Loaders):
    """Loaders that note their batches under the request they run for, and put its name into every value."""

    def __init__(self, batches: dict[str, list[Any]]) -> None:
        self.batches = batches

    async def answer(self, what: str, keys: list[int], pause: float = 0) -> list[str]:
        self.batches.setdefault(request.get(), []).append((what, sorted(keys)))
        before = request.get()
        await asyncio.sleep(pause)
        assert request.get() == before
        return [f"{what} {key} for {request.get()}" for key in keys]

    @dataloader
    async def titles(self, keys: list[int]) -> list[str]:
        return await self.answer("title", keys)

    @dataloader(window=0.01)
    async def prices(self, keys: list[int]) -> list[str]:
        return await self.answer("price", keys, pause=0.02)

    @dataloader(max_batch_size=2)
    async def shelves(self, keys: list[int]) -> list[str]:
        shelves = await self.answer("shelf", keys)
        signs = await self.titles.load_many([key + 10 for key in keys])
        return [f"{shelf} with {sign}" for shelf, sign in zip(shelves, signs, strict=True)]


@strawberry.type
class Book:
    id: strawberry.Private[int]

    @strawberry.field
    async def title(self, info: strawberry.Info[dict[str, Any]]) -> str:
        books: Books = info.context["loaders"]
        return await books.titles.load(self.id)

    @strawberry.field
    async def price(self, info: strawberry.Info[dict[str, Any]]) -> str:
        books: Books = info.context["loaders"]
        return await books.prices.load(self.id)

    @strawberry.field
    async def shelf(self, info: strawberry.Info[dict[str, Any]]) -> str:
        books: Books = info.context["loaders"]
        await asyncio.sleep(0)
        return await books.shelves.load(self.id)

    @strawberry.field
    async def lost(self, info: strawberry.Info[dict[str, Any]]) -> str:
        books: Books = info.context["loaders"]
        await books.titles.load(self.id)
        raise LookupError(f"lost by {request.get()}")


@strawberry.type
class Query:
    @strawberry.field
    async def books(self, ids: list[int]) -> list[Book]:
        return [Book(id=key) for key in ids]

    @strawberry.field
    async def maybe(self, id: int) -> Book | None:  # noqa: A002  # the argument's name in the schema
        return Book(id=id)


schema = strawberry.Schema(Query)
install(schema)
without_scopes = strawberry.Schema(Query)

PLAIN = "{ books(ids: [1, 2, 3]) { title shelf } }"
SLOW = "{ books(ids: [2, 3, 4]) { price title } }"
# The field that fails cancels its siblings, which wait for the same batches as the other fields do.
FAILING = "{ a: maybe(id: 1) { price shelf lost } books(ids: [1, 2]) { price shelf } }"


# What each gets and does: the answer as it reads for a request of this name, and the keys of its loaders, each once.
EXPECTED: dict[str, tuple[Callable[[str], Any], dict[str, list[int]]]] = {
    PLAIN: (
        lambda name: (
            {
                "books": [
                    {
                        "title": f"title {key} for {name}",
                        "shelf": f"shelf {key} for {name} with title {key + 10} for {name}",
                    }
                    for key in (1, 2, 3)
                ]
            },
            [],
        ),
        {"shelf": [1, 2, 3], "title": [1, 2, 3, 11, 12, 13]},
    ),
    SLOW: (
        lambda name: (
            {"books": [{"price": f"price {key} for {name}", "title": f"title {key} for {name}"} for key in (2, 3, 4)]},
            [],
        ),
        {"price": [2, 3, 4], "title": [2, 3, 4]},
    ),
    FAILING: (
        lambda name: (
            {
                "a": None,
                "books": [
                    {
                        "price": f"price {key} for {name}",
                        "shelf": f"shelf {key} for {name} with title {key + 10} for {name}",
                    }
                    for key in (1, 2)
                ],
            },
            [f"lost by {name}"],
        ),
        {"price": [1, 2], "shelf": [1, 2], "title": [1, 11, 12]},
    ),
}


class Stepper(VirtualClockLoop):
    """Runs one callback at a time, of the request that `schedule` names next, or of the other if that one waits."""

    def __init__(self, schedule: Iterator[str]) -> None:
        super().__init__()
        self.schedule = schedule
        self.steps = {"a": 0, "b": 0}
        self._ready: deque[asyncio.Handle] = deque()

    def _run_once(self) -> None:
        ready = self._ready
        if ready:
            owners = [handle._context.get(request) for handle in ready]  # type: ignore[attr-defined]
            chosen = 0
            if None not in owners:
                wanted = next(self.schedule)
                chosen = owners.index(wanted) if wanted in owners else 0
                self.steps[owners[chosen]] += 1
            else:
                chosen = owners.index(None)
            self._ready = deque([ready[chosen]])
            del ready[chosen]
        super()._run_once()  # type: ignore[misc]
        if ready is not self._ready:
            ready.extend(self._ready)
            self._ready = ready


@dataclass
class Outcome:
    answers: dict[str, Any]
    batches: dict[str, list[Any]]
    steps: dict[str, int]


def execute(
    queries: dict[str, str], schedule: Iterator[str], *, one_instance: bool, schema: strawberry.Schema = schema
) -> Outcome:
    """Execute one operation for each request, all at once."""
    batches: dict[str, list[Any]] = {}
    answers: dict[str, Any] = {}
    reports: list[Any] = []
    loop = Stepper(schedule)
    loop.set_exception_handler(lambda _, report: reports.append(report))
    shared = Books(batches)

    async def serve(name: str, query: str) -> None:
        request.set(name)
        async with Books(batches) as loaders:
            context = {"loaders": shared if one_instance else loaders}
            result = await schema.execute(query, context_value=context)
        answers[name] = (result.data, [error.message for error in result.errors or []])

    async def main() -> None:
        await asyncio.gather(*(serve(name, query) for name, query in queries.items()))
        await shared.aclose()

    try:
        loop.run_until_complete(main())
        loop.run_until_complete(asyncio.sleep(0))
        assert not asyncio.all_tasks(loop)
    finally:
        loop.close()
    assert not reports, reports
    return Outcome(answers, batches, loop.steps)


def in_stretches(stretches: list[int], first: str) -> Iterator[str]:
    """So many steps of one request, then so many of the other, and so on; at the end whoever is next."""
    names = {"a": "b", "b": "a"}
    name = first
    for stretch in stretches:
        for _ in range(stretch):
            yield name
        name = names[name]
    while True:
        yield name


def as_alone(queries: dict[str, str]) -> Outcome:
    """What each request gets and does when the others are not there."""
    together = Outcome({}, {}, {})
    for name, query in queries.items():
        alone = execute({name: query}, repeat(name), one_instance=False)
        together.answers |= alone.answers
        together.batches |= alone.batches
        together.steps[name] = alone.steps[name]
    return together


PAIRS = [{"a": PLAIN, "b": PLAIN}, {"a": PLAIN, "b": FAILING}, {"a": FAILING, "b": SLOW}]
pytestmark = [
    pytest.mark.usefixtures("_unlogged"),
    pytest.mark.timeout(600),
    pytest.mark.parametrize("one_instance", [False, True], ids=["an instance each", "one instance"]),
    pytest.mark.parametrize("queries", PAIRS, ids=["plain and plain", "plain and failing", "failing and slow"]),
]


@pytest.fixture
def _unlogged() -> Iterator[None]:
    """Without the traceback that Strawberry logs of every failing field, a hundred times here."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def test_a_request_alone_gets_and_does_what_these_tests_take_for_granted(
    queries: dict[str, str], one_instance: bool
) -> None:
    for name, query in queries.items():
        alone = execute({name: query}, repeat(name), one_instance=one_instance)
        assert alone.steps[name] > 30
        values, asked_for = EXPECTED[query]
        assert alone.answers[name] == values(name)
        keys: dict[str, list[int]] = {}
        for what, its_keys in alone.batches[name]:
            keys[what] = sorted([*keys.get(what, []), *its_keys])
        assert keys == asked_for


def test_these_tests_notice_what_requests_share(queries: dict[str, str], one_instance: bool) -> None:
    alone = as_alone(queries)
    noticed = [
        execute(queries, in_stretches([steps, 3], "a"), one_instance=one_instance, schema=without_scopes) != alone
        for steps in range(0, alone.steps["a"], 10)
    ]
    # Nothing but their scopes keeps two requests apart that use one instance.
    assert all(noticed) if one_instance else not any(noticed)


def test_the_other_request_runs_from_start_to_end_at_any_await(queries: dict[str, str], one_instance: bool) -> None:
    alone = as_alone(queries)
    for first in queries:
        for steps in range(alone.steps[first] + 1):
            assert execute(queries, in_stretches([steps, 10_000], first), one_instance=one_instance) == alone


def test_the_other_request_runs_any_number_of_steps_at_any_await(queries: dict[str, str], one_instance: bool) -> None:
    alone = as_alone(queries)
    for steps in range(alone.steps["a"] + 1):
        for others_steps in range(1, alone.steps["b"], 1 if IN_CI else 7):
            schedule = in_stretches([steps, others_steps], "a")
            assert execute(queries, schedule, one_instance=one_instance) == alone


def test_they_take_turns_in_stretches_of_any_length(queries: dict[str, str], one_instance: bool) -> None:
    alone = as_alone(queries)
    for mine, others in product(range(1, 8), repeat=2):
        for first in queries:
            schedule = in_stretches([mine, others] * 100, first)
            assert execute(queries, schedule, one_instance=one_instance) == alone


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choices=st.lists(st.sampled_from("ab"), max_size=120))
def test_they_run_in_any_order(queries: dict[str, str], one_instance: bool, choices: list[str]) -> None:
    alone = as_alone(queries)
    assert execute(queries, chain(choices, repeat("a")), one_instance=one_instance) == alone
