"""A search that answers when the user pauses: a mutation brings the keystrokes, a debounced subscription answers."""
# ruff: noqa: D101, D102, TC003  # the graph's descriptions say what types and fields are; Strawberry reads annotations
# Strawberry types its decorators with arguments as Any:
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated

import strawberry
from graphql import GraphQLError
from sqlalchemy import or_, select

from example_app import models
from example_app.graph import Airport, Info, field
from example_app.loaders import First, checked
from loader.streams import debounce

QUIET, AT_LATEST = 0.3, 1.5  # seconds without a keystroke, and with them, until an answer
MAX_LENGTH = 100

SearchId = Annotated[
    strawberry.ID, strawberry.argument(description="Of your choice, and nobody else's: such as a random UUID.")
]


class Searches:
    """The searches that are open in this process, by their ids."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Queue[str | None]] = {}

    @contextmanager
    def open(self, id: str) -> Iterator[AsyncIterator[str]]:  # noqa: A002  # GraphQL's word
        """The texts that `type` brings while the block lasts, or until another one takes over the id."""
        _check("id", id)
        # A client that subscribes again need not wait until its last subscription has ended here.
        if id in self._open:
            _put(self._open[id], None)
        queue = self._open[id] = asyncio.Queue(maxsize=1)
        try:
            yield _texts(queue)
        finally:
            if self._open.get(id) is queue:
                del self._open[id]

    def type(self, id: str, text: str) -> None:  # noqa: A002
        """Bring the text that the user sees now."""
        _check("text", text)
        if id not in self._open:
            raise GraphQLError(f"id must be that of an open search, not {id!r:.50}: subscribe to searchAirports first")
        _put(self._open[id], text)


def _check(name: str, value: str) -> None:
    if len(value) > MAX_LENGTH:
        raise GraphQLError(f"{name} must have {MAX_LENGTH} characters at most, not {len(value)}")


def _put(queue: asyncio.Queue[str | None], text: str | None) -> None:
    if queue.full():
        queue.get_nowait()  # nobody needs the text before the newest
    queue.put_nowait(text)


async def _texts(queue: asyncio.Queue[str | None]) -> AsyncIterator[str]:
    while (text := await queue.get()) is not None:
        yield text


@strawberry.type(description="What a search has found.")
class AirportSearch:
    text: str = field("What was searched for; empty, and nothing found, in the first event.")

    @strawberry.field(graphql_type=list[Airport], description="Those with this code, or with the text in their names.")
    async def airports(self, info: Info, first: First = 10) -> list[models.Airport]:
        limit = checked(first)
        if not self.text.strip():
            return []
        text = self.text.strip()
        airport = models.Airport
        query = (
            select(airport)
            .where(or_(airport.code == text.upper(), airport.name.icontains(text, autoescape=True)))
            .order_by(airport.code != text.upper(), airport.name, airport.code)
            .limit(limit)
        )
        async with info.context["loaders"].database.session("AirportSearch.airports") as session:
            return list(await session.scalars(query))


@strawberry.type
class SearchMutation:
    @strawberry.mutation(
        description="Tell an open search what the user has typed so far, after each keystroke. Send it on the "
        "subscription's websocket: where the service has several processes, others do not know the search."
    )
    async def type_search(self, info: Info, id: SearchId, text: str) -> bool:  # noqa: A002
        info.context["service"].searches.type(id, text)
        return True


@strawberry.type
class SearchSubscription:
    @strawberry.subscription(
        description="Airports as the user types. The first event comes at once: from then on `typeSearch` is heard. "
        f"An answer comes when nothing was typed for {QUIET} seconds, and at least every {AT_LATEST} seconds. "
        "A new subscription takes over its id, and the one that had it ends."
    )
    async def search_airports(self, info: Info, id: SearchId) -> AsyncGenerator[AirportSearch, None]:  # noqa: A002
        service = info.context["service"]
        with service.searches.open(id) as keystrokes:
            async with service.open(debounce(keystrokes, wait=QUIET, max_wait=AT_LATEST)) as texts:
                yield AirportSearch(text="")
                async for text in texts:
                    yield AirportSearch(text=text)
