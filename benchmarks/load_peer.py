"""The part of the demo's graph that the load asks, on resolvers with Strawberry's own DataLoader."""

# Strawberry types its decorators with arguments as Any:
# mypy: disallow-untyped-decorators=False

import argparse
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import strawberry
import uvicorn
from sqlalchemy import select, update
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from strawberry.asgi import GraphQL
from strawberry.dataloader import DataLoader
from strawberry.subscriptions import GRAPHQL_TRANSPORT_WS_PROTOCOL

from example_app import board, log, models
from example_app.build import database_url
from example_app.database import Database
from example_app.metrics import Metrics
from loader.sqlalchemy import grouped_rows, rows_by_key
from loader.streams import conflate

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Awaitable, Callable


@strawberry.type
class Airline:
    name: str


@strawberry.type
class Plane:
    model: str


@strawberry.type
class Airport:
    code: strawberry.Private[str]
    name: str

    @strawberry.field
    async def arrivals(self, info: strawberry.Info, first: int = 20) -> list["Flight"]:
        assert first == 3, "the loader is made for one limit: each has to have one of its own"
        return await info.context["arrivals"].load(self.code)  # type: ignore[no-any-return]


@strawberry.type
class Flight:
    id: strawberry.ID
    number: int
    carrier_code: strawberry.Private[str]
    tail_number: strawberry.Private[str | None]
    destination_code: strawberry.Private[str]
    delayed_by: int
    departure_delay: int | None

    @strawberry.field(graphql_type=Airline | None)
    async def airline(self, info: strawberry.Info) -> Any:
        return await info.context["airlines"].load(self.carrier_code)

    @strawberry.field(graphql_type=Plane | None)
    async def plane(self, info: strawberry.Info) -> Any:
        return None if self.tail_number is None else await info.context["planes"].load(self.tail_number)

    @strawberry.field(graphql_type=Airport | None)
    async def destination(self, info: strawberry.Info) -> Any:
        return await info.context["airports"].load(self.destination_code)


@strawberry.type
class Departure:
    flight_id: strawberry.Private[int]

    @strawberry.field(graphql_type=Flight)
    async def flight(self, info: strawberry.Info) -> Any:
        return await info.context["flights"].load(self.flight_id)


@strawberry.type
class Query:
    @strawberry.field(graphql_type=list[Flight])
    async def flights(self, info: strawberry.Info, origin: str, day: int, first: int) -> Any:
        flight = models.Flight
        query = select(flight).where(flight.origin_code == origin, flight.date == _day(day))
        query = query.order_by(flight.scheduled_departure, flight.id).limit(first)
        async with info.context["database"].session("Query.flights") as session:
            return list(await session.scalars(query))

    @strawberry.field(graphql_type=Flight | None)
    async def flight(self, info: strawberry.Info, id: strawberry.ID) -> Any:
        return await info.context["flights"].load(int(id))


@strawberry.type
class Mutation:
    @strawberry.mutation(graphql_type=Flight)
    async def delay_flight(self, info: strawberry.Info, id: strawberry.ID, minutes: int) -> Any:
        flight = await info.context["flights"].load(int(id))
        async with info.context["database"].session("Mutation.delayFlight") as session:
            await session.execute(update(models.Flight).where(models.Flight.id == flight.id).values(delayed_by=minutes))
            await session.commit()
        flight.delayed_by = minutes
        return flight


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def departures(self, info: strawberry.Info, origin: str, speed: float) -> AsyncIterator[Departure]:
        changes = board.replay(info.context["database"], origin, speed, board.BEGIN)
        async with conflate(changes, key=lambda departure: departure.flight_id) as departures:
            async for departure in departures:
                yield Departure(flight_id=departure.flight_id)


def _day(day: int) -> "dt.date":
    return board.BEGIN.date().replace(day=day)


def _loaders(database: Database) -> dict[str, Any]:
    def by(model: Any, column: Any) -> "Callable[[list[Any]], Awaitable[list[Any]]]":
        async def load(keys: list[Any]) -> list[Any]:
            async with database.session(model.__tablename__, keys) as session:
                rows = await rows_by_key(session, model, column, keys)
            return [rows.get(key) for key in keys]

        return load

    async def arrivals(codes: list[str]) -> list[Any]:
        flight = models.Flight
        async with database.session("arrivals", codes) as session:
            order = flight.scheduled_departure
            rows = await grouped_rows(session, flight, flight.destination_code, codes, limit=3, order_by=order)
        return [rows.get(code, []) for code in codes]

    return {
        "database": database,
        "airlines": DataLoader(by(models.Airline, models.Airline.code)),
        "airports": DataLoader(by(models.Airport, models.Airport.code)),
        "planes": DataLoader(by(models.Plane, models.Plane.tail_number)),
        "flights": DataLoader(by(models.Flight, models.Flight.id)),
        "arrivals": DataLoader(arrivals),
    }


def main() -> None:
    """Serve it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    log.set_up("off")
    metrics = Metrics()
    database = Database(database_url(), on_statement=metrics.count_statement, pool_seconds=60)

    class View(GraphQL[dict[str, Any], None]):
        async def get_context(self, request: Any, response: Any) -> dict[str, Any]:
            return {"request": request, "response": response, **_loaders(database)}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await database.aclose()

    view = View(
        strawberry.Schema(Query, Mutation, Subscription), subscription_protocols=[GRAPHQL_TRANSPORT_WS_PROTOCOL]
    )
    routes = [Route("/metrics", metrics.show), Route("/graphql", view), WebSocketRoute("/graphql", view)]
    app = Starlette(routes=routes, lifespan=lifespan)
    with socket.create_server(("127.0.0.1", port)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listener])


if __name__ == "__main__":
    main()
