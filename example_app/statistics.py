"""Route statistics: one snapshot for all readers, refreshed once for a burst of mutations.

A mutation marks them dirty. That triggers the debouncer, which lets the burst go on for a moment, and then refreshes
the snapshot; what is marked while it loads leads to one more refresh. Readers get the old statistics meanwhile.
"""
# ruff: noqa: D101, D102, TC003  # the graph's descriptions say what types and fields are; Strawberry reads annotations
# Strawberry types its decorators with arguments as Any:
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import strawberry
from sqlalchemy import Float, cast, func, select

from example_app import models
from example_app.graph import Airport, Info, field
from example_app.loaders import DEFAULT_FIRST, AppLoaders, First, checked
from loader import Debouncer, Snapshot
from loader.strawberry import relation

if TYPE_CHECKING:
    from example_app.database import Database

BURST = 0.5  # seconds from the first mutation to the refresh
LAST_REFRESH = 5.0  # seconds that closing gives to the refresh that is due or under way
FRESH_FOR = 60.0  # seconds after which what other processes wrote is seen, too


@strawberry.type(description="All flights between two airports.")
class Route:
    origin_code: str
    destination_code: str
    flights: int = field("How many were scheduled.")
    cancelled: int = field("How many never left.")
    delayed: int = field("How many `delayFlight` has delayed.")
    average_delay: float | None = field("Minutes at departure, on average of those that left; negative is early.")

    origin: Airport | None = relation(AppLoaders.airports, "origin_code")
    destination: Airport | None = relation(AppLoaders.airports, "destination_code")


class Statistics:
    """The routes, those with most flights first, and how old they are."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.snapshot = Snapshot(self._load, fresh_for=FRESH_FOR)
        self.dirty = False
        self._refreshing = Debouncer(self._refresh, wait=BURST)

    def mark_dirty(self) -> None:
        """Say that a flight has changed."""
        if not self.dirty:
            self.dirty = True
            self._refreshing.trigger()

    async def current(self) -> RouteStatistics:
        """The statistics at once, if there are any; stale ones are refreshed behind that."""
        while True:
            await self.snapshot.get()
            now = self.snapshot.peek()
            if now is not None:
                return RouteStatistics(
                    all=now.value, age=now.age, refreshes=now.version, dirty=self.dirty or not now.fresh
                )

    async def aclose(self) -> None:
        """Make the refresh that is due, if it takes not too long, and end the subscriptions."""
        await self._refreshing.aclose(timeout=LAST_REFRESH)
        await self.snapshot.aclose()

    async def _refresh(self) -> None:
        self.dirty = False  # a change that is marked from here on may be too late for this load
        self.snapshot.invalidate()
        await self.snapshot.refresh()

    async def _load(self) -> Sequence[Route]:
        flight = models.Flight
        count, left = func.count(), func.count(flight.recorded_departure_delay)
        total = func.sum(flight.recorded_departure_delay + flight.delayed_by)  # null if none left
        query = (
            select(
                flight.origin_code,
                flight.destination_code,
                count.label("flights"),
                (count - left).label("cancelled"),
                func.count().filter(flight.delayed_by > 0).label("delayed"),
                (cast(total, Float) / left).label("average_delay"),
            )
            .group_by(flight.origin_code, flight.destination_code)
            .order_by(count.desc(), flight.origin_code, flight.destination_code)
        )
        async with self.database.session("statistics") as session:
            return [Route(**row) for row in (await session.execute(query)).mappings()]


@strawberry.type(description="Statistics of all routes, as they were when they were last refreshed.")
class RouteStatistics:
    all: strawberry.Private[Sequence[Route]]
    age: float = field("Seconds since the refresh began.")
    refreshes: int = field("How often they were loaded since the service started.")
    dirty: bool = field("Whether they are out of date: a refresh is on its way.")

    @strawberry.field(description="Those with most flights first.")
    async def routes(self, first: First = DEFAULT_FIRST) -> list[Route]:
        return list(self.all[: checked(first)])


@strawberry.type
class StatisticsQuery:
    @strawberry.field(description="Statistics of all routes, at once: out of date while they are refreshed.")
    async def route_statistics(self, info: Info) -> RouteStatistics:
        return await info.context["service"].statistics.current()


@strawberry.type
class StatisticsSubscription:
    @strawberry.subscription(description="Statistics of all routes, now and after each refresh.")
    async def route_statistics(self, info: Info) -> AsyncGenerator[RouteStatistics, None]:
        statistics = info.context["service"].statistics
        async with aclosing(statistics.snapshot.changes()) as changes:
            async for _ in changes:
                yield await statistics.current()
