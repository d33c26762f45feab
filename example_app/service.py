"""What all requests share, and the order in which it is closed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from example_app.search import Searches
from example_app.shared_cache import Changes
from example_app.statistics import Statistics

if TYPE_CHECKING:
    from typing import Any

    from example_app.database import Database
    from loader.streams import conflate, debounce

    Stream = TypeVar("Stream", bound=conflate[Any] | debounce[Any])


class Service:
    """The database, and what lives longer than a request: the statistics, the searches, open subscriptions."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.statistics = Statistics(database)
        self.changes = Changes(self.statistics.mark_dirty)
        self.searches = Searches()
        self._streams: WeakSet[conflate[Any] | debounce[Any]] = WeakSet()

    def open(self, stream: Stream) -> Stream:
        """The stream of a subscription, which ends with the service if nothing ends it before."""
        self._streams.add(stream)
        return stream

    async def aclose(self) -> None:
        """End the subscriptions, then what they read from."""
        async with AsyncExitStack() as last_first:  # each is closed, whatever the others come to
            last_first.push_async_callback(self.database.aclose)
            last_first.push_async_callback(self.statistics.aclose)
            last_first.push_async_callback(self.changes.aclose)
            for stream in list(self._streams):
                last_first.push_async_callback(stream.aclose)
