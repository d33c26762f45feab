"""What a request loaded is freed with the request, not when the garbage is collected some time later."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

import pytest
import strawberry

from loader import Loaders, Scope, dataloader
from loader.strawberry import install, relation
from tests.fakes import turns

if TYPE_CHECKING:
    from collections.abc import Iterator


class LibraryLoaders(Loaders):
    def __init__(self, loaded: WeakSet[object], then: str = "") -> None:
        self.loaded = loaded
        self.then = then

    @dataloader
    async def authors(self, numbers: list[int]) -> dict[int, Author]:
        authors = {
            number: Author(name=f"author {number}", portrait=strawberry.scalars.JSON(Portrait())) for number in numbers
        }
        self.loaded.update(authors.values())
        if self.then == "has portraits":
            self.loaded.update(author.portrait for author in authors.values())
        if self.then == "waits":
            await asyncio.sleep(10)
        if self.then == "lacks one":
            del authors[1]
        return authors


class Portrait:
    """What goes into the response as it is."""


@strawberry.type
class Author:
    name: str
    portrait: strawberry.scalars.JSON

    __hash__ = object.__hash__


@strawberry.type
class Book:
    number: strawberry.Private[int]
    author: Author | None = relation(LibraryLoaders.authors, "number")

    @strawberry.field
    async def writer(self, info: strawberry.Info) -> Author | None:
        author: Author = await info.context["loaders"].authors.load(self.number)
        return author

    __hash__ = object.__hash__


@strawberry.type
class Query:
    @strawberry.field
    async def books(self, info: strawberry.Info) -> list[Book]:
        books = [Book(number=number) for number in range(3)]
        info.context["loaders"].loaded.update(books)
        return books


class QuietSchema(strawberry.Schema):
    """A schema that keeps no record of an error: its traceback would have what led to it."""

    def process_errors(self, *_arguments: object) -> None:
        pass


def schema(*, plan: bool) -> QuietSchema:
    made = QuietSchema(Query)
    install(made, plan=plan)
    return made


@contextmanager
def nothing_is_kept() -> Iterator[WeakSet[object]]:
    """Nothing of what is put into the set is left afterwards, without any help of the garbage collector."""
    loaded: WeakSet[object] = WeakSet()
    gc.disable()
    try:
        yield loaded
        assert not loaded
    finally:
        gc.enable()


either_field = pytest.mark.parametrize("field", ["author", "writer"])
with_and_without_plan = pytest.mark.parametrize("plan", [True, False])


@either_field
@with_and_without_plan
async def test_no_circle_of_references_keeps_what_a_request_loaded(plan: bool, field: str) -> None:
    asked = f"{{ books {{ {field} {{ name }} }} }}"
    with nothing_is_kept() as loaded:
        result = await schema(plan=plan).execute(asked, context_value={"loaders": LibraryLoaders(loaded)})
        assert result.data == {"books": [{field: {"name": f"author {number}"}} for number in range(3)]}


async def test_a_planned_response_is_freed_as_soon_as_whoever_asked_lets_go_of_it() -> None:
    with nothing_is_kept() as loaded:
        loaders = LibraryLoaders(loaded, "has portraits")
        result = await schema(plan=True).execute(
            "{ books { author { portrait } } }", context_value={"loaders": loaders}
        )
        assert result.data is not None
        assert {book["author"]["portrait"] for book in result.data["books"]} == set(loaded)
        del result


@either_field
@with_and_without_plan
async def test_an_error_keeps_nothing_that_came_with_it(plan: bool, field: str) -> None:
    asked = f"{{ books {{ {field} {{ name }} }} }}"
    with nothing_is_kept() as loaded:
        loaders = LibraryLoaders(loaded, "lacks one")
        result = await schema(plan=plan).execute(asked, context_value={"loaders": loaders})
        assert result.data == {"books": [{field: {"name": "author 0"}}, {field: None}, {field: {"name": "author 2"}}]}
        del result
        # graphql-core's executor has the error, which has a traceback, which has where it was raised and what called
        # that: where a `def` resolver raises, the whole list, which the next collection of garbage frees.
        loaded -= {each for each in loaded if isinstance(each, Book)}


@either_field
@with_and_without_plan
async def test_a_request_that_is_cancelled_keeps_nothing(plan: bool, field: str) -> None:
    asked = f"{{ books {{ {field} {{ name }} }} }}"
    with nothing_is_kept() as loaded:
        context = {"loaders": LibraryLoaders(loaded, "waits")}
        request = asyncio.ensure_future(schema(plan=plan).execute(asked, context_value=context))
        await turns()
        assert len(loaded) == 6
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        del request
        await turns()


@pytest.mark.every_loop
@pytest.mark.parametrize("then", ["", "waits"])
@pytest.mark.parametrize("scoped", [True, False])
async def test_loaders_that_are_closed_keep_nothing(scoped: bool, then: str) -> None:
    with nothing_is_kept() as loaded:
        loaders, scope = LibraryLoaders(loaded, then), Scope()
        outer = scope.enter() if scoped else None
        loader = loaders.authors
        loading = loader.load(1)
        await turns()
        Scope.leave(outer)
        await (scope.aclose() if scoped else loaders.aclose())
        assert loading.exception() if then else loading.result()
        del loading
        assert loader.peek(1) is None
        assert loader.statistics().cached == 0
        assert loader.statistics().batches == 1
