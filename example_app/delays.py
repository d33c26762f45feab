"""The mutation: a flight leaves later than it did.

The delay is a column of its own, `Flight.delayed_by`, beside what was recorded: one statement sets it, 0 takes it
back, and every process that shares the database sees it. It lasts until the service is started the next time, which
undoes all delays (`build.undo_delays`), or until the database is rebuilt.
"""
# ruff: noqa: D101, D102  # the graph's descriptions say what types and fields are
# Strawberry types its decorators with arguments as Any:
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Annotated

import strawberry
from graphql import GraphQLError
from sqlalchemy import update

from example_app import models
from example_app.graph import Flight, Info
from example_app.loaders import flight_by_id

MAX_MINUTES = 24 * 60


@strawberry.type
class DelayMutation:
    @strawberry.mutation(
        graphql_type=Flight,
        description="Let a flight leave and arrive later than it did. Boards show it with their next event, the "
        "statistics soon. It replaces an earlier delay of the same flight, and lasts until the next start.",
    )
    async def delay_flight(
        self,
        info: Info,
        id: strawberry.ID,  # noqa: A002  # GraphQL's word
        minutes: Annotated[int, strawberry.argument(description=f"0 to {MAX_MINUTES}; 0 takes the delay back.")],
    ) -> models.Flight:
        if not 0 <= minutes <= MAX_MINUTES:
            raise GraphQLError(f"minutes must be from 0 to {MAX_MINUTES}, not {minutes}")
        loaders = info.context["loaders"]
        flight = await flight_by_id(loaders, id)
        if flight is None:
            raise GraphQLError(f"id must be the id of a flight: there is none with {id!r:.50}")
        if flight.cancelled:
            raise GraphQLError(f"flight {id} was cancelled: it cannot be delayed")
        async with loaders.database.session("Mutation.delayFlight") as session:
            await session.execute(update(models.Flight).where(models.Flight.id == flight.id).values(delayed_by=minutes))
            await session.commit()
        await info.context["service"].changes.flight_changed(loaders, flight)
        flight.delayed_by = minutes
        return flight
