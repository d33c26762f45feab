"""Two processes of the demo that share rows over Redis: what one changes shows in the other."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from example_app import models, shared_cache
from example_app.build import VARIABLE
from loader.redis import MsgspecCodec
from tests.redis_servers import server, until
from tests.serving import TRANSPORT_WS, post, subscribed
from tests.test_example_data import ROOT, built

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.redis_servers import Server

__all__ = ["server"]

FLIGHT = "{ flight(id: 1) { departureDelay delayedBy } routeStatistics { routes(first: 1000) { delayed } } }"


def environment(server: Server, database: Path) -> dict[str, str]:
    url = built().set(database=str(database)).render_as_string()
    return {**os.environ, VARIABLE: url, shared_cache.VARIABLE: server.url}


@contextmanager
def process(server: Server, database: Path) -> Iterator[str]:
    """A process of the demo; its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "example_app", "--port", "0"],
        env=environment(server, database),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            found = re.search(r"127\.0\.0\.1:\d+", running.stdout.readline())
            assert found is not None
            running.stdout.readline()
            yield found[0]
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(10)


async def ask(address: str, query: str) -> Any:
    for _ in range(50):
        try:
            answer = (await post(address, query)).json()
            break
        except OSError:  # it is about to listen
            await asyncio.sleep(0.1)
    assert "errors" not in answer, answer
    return answer["data"]


@pytest.mark.real_time
async def test_what_one_process_changes_shows_in_the_flights_the_statistics_and_the_boards_of_another(
    server: Server, tmp_path: Path
) -> None:
    database = tmp_path / "flights.sqlite3"
    shutil.copy(built().database or "", database)
    with ExitStack() as stack:
        one, other = (stack.enter_context(process(server, database)) for _ in range(2))
        lists = '{ airport(code: "JFK") { departures(first: 1000) { id delayedBy } } }'
        for address in (one, other, one):
            data = await ask(address, FLIGHT)
            assert data["flight"]["delayedBy"] == 0
            assert sum(route["delayed"] for route in data["routeStatistics"]["routes"]) == 0
            first = (await ask(address, lists))["airport"]["departures"][0]["id"]
        with server.client() as client:
            assert len(client.keys("{example_app*flights*}*")) >= 2
        board = 'subscription { departures(origin: "JFK", speed: 6000) { flight { id delayedBy } } }'
        for flight in ("1", first):
            await ask(one, f"mutation {{ delayFlight(id: {flight}, minutes: 7) {{ delayedBy }} }}")
        assert (await ask(other, FLIGHT))["flight"]["delayedBy"] == 7
        assert (await ask(other, lists))["airport"]["departures"][0] == {"id": first, "delayedBy": 7}
        async with subscribed(other, board, TRANSPORT_WS) as events:
            async for event in events:
                if event["data"]["departures"]["flight"]["id"] == first:
                    assert event["data"]["departures"]["flight"]["delayedBy"] == 7
                    break
        delayed = 0

        async def look() -> None:
            nonlocal delayed
            while delayed < 2:
                routes = (await ask(other, FLIGHT))["routeStatistics"]["routes"]
                delayed = sum(route["delayed"] for route in routes)
                await asyncio.sleep(0.1)

        looking = asyncio.create_task(look())
        await until(lambda: delayed == 2)
        await looking


@pytest.mark.parametrize("model", [models.Airline, models.Airport, models.Plane, models.Weather, models.Flight])
def test_a_row_comes_back_as_it_was(model: type[models.Base]) -> None:
    from sqlalchemy import create_engine, select
    from sqlalchemy.orm import Session

    engine = create_engine(built().set(drivername="sqlite"))
    with Session(engine) as session:
        rows = list(session.scalars(select(model).limit(200)))
    engine.dispose()
    codec = MsgspecCodec(enc_hook=shared_cache._pack, dec_hook=shared_cache._unpack)
    names = shared_cache._columns(model).__struct_fields__
    assert rows
    for row in rows:
        again = codec.decode(codec.encode(row, model | None), model | None)
        assert type(again) is model
        assert [getattr(again, name) for name in names] == [getattr(row, name) for name in names]


def test_without_a_server_one_query_needs_none(server: Server, tmp_path: Path) -> None:
    database = tmp_path / "flights.sqlite3"
    shutil.copy(built().database or "", database)
    server.kill()
    ran = subprocess.run(
        [sys.executable, "-m", "example_app", "query", "{ flight(id: 1) { number airline { name } } }"],
        env=environment(server, database),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert json.loads(ran.stdout)["data"]["flight"]["airline"]
    assert "2 statements" in ran.stderr
