"""A function as FastAPI users write it: annotations are strings, one of them with a name for checkers only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Header
from starlette.requests import Request  # noqa: TC002  # FastAPI reads it

from loader import Loaders, dataloader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Names(Loaders):
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @dataloader
    async def names(self, ids: list[int]) -> list[str]:
        return [f"{self.prefix} {n}" for n in ids]


async def prefix_of(x_prefix: Annotated[str, Header()]) -> str:
    return x_prefix


async def make_loaders(request: Request, prefix: Annotated[str, Depends(prefix_of)]) -> AsyncIterator[Names]:
    yield Names(f"{request.url.path} {prefix}")
