"""What a request loaded is freed with the request, not when the garbage is collected some time later."""

from __future__ import annotations

import gc
from weakref import WeakSet

import pytest
import strawberry

from loader import Loaders, dataloader
from loader.strawberry import install, relation


class LibraryLoaders(Loaders):
    def __init__(self, loaded: WeakSet[object]) -> None:
        self.loaded = loaded

    @dataloader
    async def authors(self, numbers: list[int]) -> list[Author]:
        authors = [Author(name=f"author {number}") for number in numbers]
        self.loaded.update(authors)
        return authors


@strawberry.type
class Author:
    name: str

    __hash__ = object.__hash__


@strawberry.type
class Book:
    number: strawberry.Private[int]
    author: Author = relation(LibraryLoaders.authors, "number")

    @strawberry.field
    async def writer(self, info: strawberry.Info) -> Author:
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


@pytest.mark.parametrize("field", ["author", "writer"])
@pytest.mark.parametrize("plan", [True, False])
async def test_no_circle_of_references_keeps_what_was_loaded(plan: bool, field: str) -> None:
    schema = strawberry.Schema(Query)
    install(schema, plan=plan)
    loaded: WeakSet[object] = WeakSet()
    gc.disable()
    try:
        result = await schema.execute(
            f"{{ books {{ {field} {{ name }} }} }}", context_value={"loaders": LibraryLoaders(loaded)}
        )
        assert result.data == {"books": [{field: {"name": f"author {number}"}} for number in range(3)]}
        assert not loaded
    finally:
        gc.enable()
