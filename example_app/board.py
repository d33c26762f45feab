"""The departures board: the month's flights as a subscription, replayed by a clock that the client sets."""
# ruff: noqa: D101, D102, TC003  # the graph's descriptions say what types and fields are; Strawberry reads annotations
# Strawberry types its decorators with arguments as Any:
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import strawberry
from graphql import GraphQLError
from sqlalchemy import and_, or_, select

from example_app import models
from example_app.graph import Flight, Info, field
from example_app.loaders import AppLoaders
from loader.strawberry import relation
from loader.streams import conflate

if TYPE_CHECKING:
    from example_app.database import Database

BEGIN = dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)  # five in the morning in New York, shortly before the first flight
END = dt.datetime(2013, 2, 1, 5, tzinfo=dt.UTC)  # midnight there
AHEAD = dt.timedelta(hours=1)  # how long before its scheduled departure a flight is on the board
LATEST = dt.timedelta(days=2)  # how long after it a flight may leave, at most
MAX_SPEED = 86_400
TICK = 0.25  # seconds from one look at the flights to the next


@strawberry.enum(name="DepartureStatus")
class Status(Enum):
    SCHEDULED = "scheduled"
    DELAYED = "delayed"
    DEPARTED = "departed"
    CANCELLED = "cancelled"


GONE = {Status.DEPARTED, Status.CANCELLED}


def status_at(flight: models.Flight, now: dt.datetime) -> Status:
    """What the board says of a flight at a time."""
    if flight.departure is not None and flight.departure <= now:
        return Status.DEPARTED
    if flight.scheduled_departure <= now:
        return Status.CANCELLED if flight.cancelled else Status.DELAYED
    return Status.DELAYED if flight.delayed_by else Status.SCHEDULED


@strawberry.type(description="A line of the board that is new, or has changed.")
class Departure:
    flight_id: strawberry.Private[int]
    time: dt.datetime = field("What the board's clock showed at the change.")
    status: Status

    flight: Flight = relation(AppLoaders.flights, "flight_id", description="As it is when the event is sent.")


async def replay(database: Database, origin: str, speed: float, since: dt.datetime) -> AsyncIterator[Departure]:
    """What changes on an airport's board, until the last flight has left; the clock starts with the first call."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    board: dict[int, tuple[Status, dt.datetime | None]] = {}  # what it says of each flight that has not left
    known = since - LATEST  # flights that are scheduled for later have not been on it
    while known < END or board:
        now = since + dt.timedelta(seconds=(loop.time() - began) * speed)
        for flight in await _read(database, origin, known, now + AHEAD, board):
            if flight.id not in board and status_at(flight, since) in GONE:
                continue
            status = status_at(flight, now)
            line = status, flight.departure
            if board.get(flight.id) != line:
                yield Departure(flight_id=flight.id, time=now, status=status)
            board[flight.id] = line
            if status in GONE:
                del board[flight.id]
        known = now + AHEAD
        await asyncio.sleep(TICK)


async def _read(
    database: Database, origin: str, after: dt.datetime, until: dt.datetime, ids: Iterable[int]
) -> Sequence[models.Flight]:
    """The flights that are scheduled for a time, and those with these ids, as they are now."""
    flight = models.Flight
    new = and_(flight.origin_code == origin, flight.scheduled_departure > after, flight.scheduled_departure <= until)
    query = select(flight).where(or_(new, flight.id.in_(ids))).order_by(flight.scheduled_departure, flight.id)
    async with database.session("Subscription.departures") as session:
        return list(await session.scalars(query))


@strawberry.type
class BoardSubscription:
    @strawberry.subscription(
        description="The departures board of an airport, replayed: a flight is on it from an hour before its scheduled "
        "departure until it leaves, and each change is an event. A client that is slower than the changes gets "
        "the newest state of each flight.",
    )
    async def departures(
        self,
        info: Info,
        origin: Annotated[str, strawberry.argument(description="An airport's code: EWR, JFK or LGA.")],
        speed: Annotated[
            float, strawberry.argument(description=f"Seconds of the board's clock in one second, up to {MAX_SPEED:,}.")
        ] = 60,
        since: Annotated[
            dt.datetime,
            strawberry.argument(
                description="Where the clock starts, in January 2013. With the latest time of its events a board goes "
                "on, for example at another speed."
            ),
        ] = BEGIN,
    ) -> AsyncIterator[Departure]:
        if not 0 < speed <= MAX_SPEED:
            raise GraphQLError(f"speed must be above 0 and at most {MAX_SPEED:,}, not {speed:g}")
        if since.tzinfo is None:
            since = since.replace(tzinfo=dt.UTC)
        if not BEGIN <= since < END:
            raise GraphQLError(
                f"since must be from {BEGIN.isoformat()} to before {END.isoformat()}, not {since.isoformat()}"
            )
        service = info.context["service"]
        if not await info.context["loaders"].departures(first=1).load(origin):
            raise GraphQLError(
                f"origin must be an airport that flights leave from, EWR, JFK or LGA, not {origin!r:.50}"
            )
        changes = replay(service.database, origin, speed, since)
        return service.open(conflate(changes, key=lambda departure: departure.flight_id))
