"""The demo under load from a second process, beside the same graph on Strawberry's own DataLoader.

Many connections ask, change and follow; a tenth of what they begin they leave midway. Every answer is compared with the
CSV files. `tests/test_example_load.py` runs a little of it, with hostile clients beside it.
"""

from __future__ import annotations

import asyncio
import csv
import functools
import gzip
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from benchmarks.table import Table, around

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ROOT = Path(__file__).resolve().parent.parent
SECONDS, WINDOWS, CONNECTIONS = 60.0, 6, 50
MAX_GROWTH = 30  # MB that a server may take more after the load than after it has warmed up
ORIGINS = ("EWR", "JFK", "LGA")

ASK = """query Departures($origin: String!, $day: Int!) { flights(origin: $origin, day: $day, first: 20) {
    id number airline { name } plane { model } destination { name arrivals(first: 3) { id airline { name } } } } }"""
CHANGE = "mutation Delay($id: ID!, $minutes: Int!) { delayFlight(id: $id, minutes: $minutes) { id delayedBy } }"
LOOK = "query Look($id: ID!) { flight(id: $id) { id delayedBy departureDelay } }"
FOLLOW = """subscription Board($origin: String!) { departures(origin: $origin, speed: 3600) {
    flight { id number airline { name } } } }"""


class Truth:
    """What the CSV files say, read without the demo's code."""

    def __init__(self) -> None:
        self.flights = {str(number): row for number, row in enumerate(_rows("flights"), start=1)}
        self.airlines = {row["carrier"]: {"name": row["name"]} for row in _rows("airlines")}
        self.airports = {row["faa"]: row["name"] for row in _rows("airports")}
        self.planes = {row["tailnum"]: {"model": row["model"]} for row in _rows("planes")}
        self.departures: dict[tuple[str, int], list[str]] = defaultdict(list)
        self.arrivals: dict[str, list[str]] = defaultdict(list)
        for id, row in sorted(self.flights.items(), key=_scheduled):
            self.departures[row["origin"], int(row["day"])].append(id)
            self.arrivals[row["dest"]].append(id)
        self.left = [id for id, row in self.flights.items() if row["dep_time"]]

    def asked(self, origin: str, day: int) -> Any:
        """The answer to `ASK`."""
        return {"flights": [self._asked(id) for id in self.departures[origin, day][:20]]}

    def _asked(self, id: str) -> Any:
        row = self.flights[id]
        name = self.airports.get(row["dest"])
        arrivals = [
            {"id": arrival, "airline": self.airlines.get(self.flights[arrival]["carrier"])}
            for arrival in self.arrivals[row["dest"]][:3]
        ]
        return {
            **self.followed(id),
            "plane": self.planes.get(row["tailnum"]),
            "destination": None if name is None else {"name": name, "arrivals": arrivals},
        }

    def followed(self, id: str) -> Any:
        """A flight as `FOLLOW` has it."""
        row = self.flights[id]
        return {"id": id, "number": int(row["flight"]), "airline": self.airlines.get(row["carrier"])}

    def looked(self, id: str, delay: int) -> Any:
        """The answer to `LOOK` after a delay."""
        recorded = int(self.flights[id]["dep_delay"])
        return {"flight": {"id": id, "delayedBy": delay, "departureDelay": recorded + delay}}


def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(ROOT / "example_app" / "data" / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _scheduled(item: tuple[str, dict[str, str]]) -> tuple[str, int, int]:
    id, row = item
    return row["time_hour"], int(row["minute"]), int(id)


truth = functools.cache(Truth)


@dataclass
class Outcome:
    """What a load has come to.

    Attributes:
        began: When the load began, as `time.perf_counter` has it.
        times: Of each operation that was not left, when it ended and how many seconds it took: of a subscription, to
            its tenth event.
        left: When each operation was left that was.
        wrong: Errors, and answers that are not what the CSV files say.
    """

    began: float = field(default_factory=time.perf_counter)
    times: list[tuple[float, float]] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def took(self, began: float) -> None:
        """An operation that began then has ended."""
        ended = time.perf_counter()
        self.times.append((ended, ended - began))

    def check(self, query: str, answer: Any, expected: Any) -> None:
        if answer != {"data": expected}:
            self.wrong.append(
                f"{query.partition('(')[0]}: {json.dumps(answer)[:300]} is not {json.dumps(expected)[:300]}"
            )


async def load(address: str, *, seconds: float, connections: int, seed: int = 1) -> Outcome:
    """Put a server under load: a fifth of the connections follow boards, the others ask and change."""
    outcome = Outcome()
    async with asyncio.TaskGroup() as clients:
        for number in range(connections):
            client = _follower if number % 5 == 4 else _asker
            mine = truth().left[number::connections]  # what others delay would be a wrong answer here
            clients.create_task(client(address, random.Random(seed + number), outcome.began + seconds, mine, outcome))
    return outcome


async def _asker(address: str, chance: random.Random, until: float, mine: list[str], outcome: Outcome) -> None:
    async with aiohttp.ClientSession() as session:

        async def post(query: str, **variables: Any) -> Any:
            began = time.perf_counter()
            sent = {"query": query, "variables": variables}
            async with session.post(f"http://{address}/graphql", json=sent) as response:
                answer = await response.json(content_type=None)
            outcome.took(began)
            return answer

        while time.perf_counter() < until:
            origin, day, flight, minutes = (
                chance.choice(ORIGINS), chance.randint(1, 31), chance.choice(mine), chance.randint(1, 1440),
            )  # fmt: skip
            what = chance.random()
            if what < 0.1:
                outcome.left.append(time.perf_counter())
                with suppress(TimeoutError):
                    async with asyncio.timeout(chance.uniform(0, 0.02)):
                        await post(ASK, origin=origin, day=day)
            elif what < 0.8:
                outcome.check(ASK, await post(ASK, origin=origin, day=day), truth().asked(origin, day))
            else:
                expected = {"delayFlight": {"id": flight, "delayedBy": minutes}}
                outcome.check(CHANGE, await post(CHANGE, id=flight, minutes=minutes), expected)
                outcome.check(LOOK, await post(LOOK, id=flight), truth().looked(flight, minutes))


async def _follower(address: str, chance: random.Random, until: float, _: list[str], outcome: Outcome) -> None:
    async with aiohttp.ClientSession() as session:
        while time.perf_counter() < until:
            origin, leaves = chance.choice(ORIGINS), chance.random() < 0.1
            began = time.perf_counter()
            url, protocols = f"http://{address}/graphql", ["graphql-transport-ws"]
            async with session.ws_connect(url, protocols=protocols) as socket:
                await socket.send_json({"type": "connection_init"})
                await socket.receive_json()
                payload = {"query": FOLLOW, "variables": {"origin": origin}}
                await socket.send_json({"type": "subscribe", "id": "1", "payload": payload})
                for _event in range(3 if leaves else 10):
                    message = await socket.receive_json(timeout=30)
                    if message["type"] != "next" or "errors" in message["payload"]:
                        outcome.wrong.append(f"subscription Board: {message}")
                        return
                    flight = message["payload"]["data"]["departures"]["flight"]
                    outcome.check(FOLLOW, {"data": flight}, truth().followed(flight["id"]))
                    if truth().flights[flight["id"]]["origin"] != origin:
                        outcome.wrong.append(f"subscription Board: flight {flight['id']} does not leave from {origin}")
                if leaves:
                    outcome.left.append(time.perf_counter())
                    assert socket._response.connection is not None
                    assert socket._response.connection.transport is not None
                    socket._response.connection.transport.abort()
                else:
                    await socket.send_json({"type": "complete", "id": "1"})
                    outcome.took(began)


@dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    address: str

    async def metrics(self) -> dict[str, float]:
        """The figures of `/metrics`, those with labels added up."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}/metrics") as response:
            text = await response.text()
        figures: dict[str, float] = defaultdict(float)
        for name, value in re.findall(r"^(\w+)(?:{.*})? (\S+)$", text, re.MULTILINE):
            figures[name] += float(value)
        return figures

    async def settled(self, tasks: float, patience: float = 10) -> float:
        """How many tasks it has when it has no more than `tasks`, or after some seconds."""
        until = time.perf_counter() + patience
        while (now := (await self.metrics())["example_tasks"]) > tasks and time.perf_counter() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return now


@asynccontextmanager
async def serving(module: str, **variables: str) -> AsyncIterator[Server]:
    """`python -m module --port 0` on a database of its own; it must stop with exit code 0 and without a word."""
    with tempfile.TemporaryDirectory(prefix="flights") as folder:
        database = {"EXAMPLE_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/flights.sqlite3", "EXAMPLE_LOG": "off"}
        # All connections ask again at once: how long an answer takes on a slow machine is measured, and no error.
        patient = {"EXAMPLE_MAX_SECONDS": "60", "EXAMPLE_POOL_SECONDS": "60"}
        process = subprocess.Popen(  # noqa: ASYNC220, S603  # our own module, before anything else runs here
            [sys.executable, "-m", module, "--port", "0"], env={**os.environ, **database, **patient, **variables},
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = await asyncio.to_thread(process.stdout.readline)
            yield Server(process, line.split("//")[1].split("/")[0])
            process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(process.wait, 30)
            said = [line for line in process.stderr.read().splitlines() if not line.startswith("Building")]
            if code or said:
                raise RuntimeError(f"{module} stopped with exit code {code}: {said[:5]}")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()


async def measure(module: str, *, seconds: float, windows: int, connections: int) -> list[object]:
    """A row of the table: medians of windows of the load, and their spread.

    Raises:
        RuntimeError: If an answer was wrong, if something stays of the load, or if the server does not stop cleanly.
    """
    async with serving(module) as server:
        await load(server.address, seconds=seconds / 4, connections=connections, seed=1000)  # fills pools and caches
        before = await server.metrics()
        tasks = await server.settled(5)
        watching = asyncio.create_task(_watch(server, [seconds * n / windows for n in range(windows + 1)]))
        outcome = await load(server.address, seconds=seconds, connections=connections)
        edges = await watching
        left = await server.settled(tasks)
        memory = (await server.metrics())["process_resident_memory_bytes"]
    if outcome.wrong:
        raise RuntimeError(f"{len(outcome.wrong)} wrong answers of {module}, first {outcome.wrong[0]}")
    if left > tasks:
        raise RuntimeError(f"{left - tasks:.0f} tasks stay of the load on {module}")
    grown = (memory - before["process_resident_memory_bytes"]) / 1e6
    if grown > MAX_GROWTH:
        raise RuntimeError(f"{module} takes {grown:.0f} MB more after the load")
    rates, medians, slowest, statements = [], [], [], []
    for (began, had, _), (ended, has, _) in pairwise(edges):
        took = sorted(took for at, took in outcome.times if began < at <= ended)
        all_of_it = len(took) + sum(began < at <= ended for at in outcome.left)
        rates.append(len(took) / (ended - began))
        medians.append(statistics.median(took))
        slowest.append(took[len(took) * 99 // 100])
        statements.append((has - had) / all_of_it)
    return [
        around(rates, "", 0),
        around(medians, "ms", 0),
        around(slowest, "ms", 0),
        around(statements, "", 1),
        around([resident for *_, resident in edges], "MB", 0),
    ]


async def _watch(server: Server, edges: list[float]) -> list[tuple[float, float, float]]:
    """So many seconds from now: the time, how many statements the server has run, and its memory in bytes."""
    seen = []
    began = time.perf_counter()
    for edge in edges:
        await asyncio.sleep(began + edge - time.perf_counter())
        figures = await server.metrics()
        resident = figures["process_resident_memory_bytes"]
        seen.append((time.perf_counter(), figures["example_statements_total"], resident))
    return seen


WAYS = {"loader": "example_app", "strawberry.dataloader": "benchmarks.load_peer"}
HEAD = ["way", "operations/s", "p50", "p99", "statements each", "memory"]


def tables(*, quick: bool = False) -> Iterator[Table]:
    """The one table."""
    seconds, windows, connections = (1.0, 1, 5) if quick else (SECONDS, WINDOWS, CONNECTIONS)
    yield Table(
        "load",
        f"{connections} connections for {seconds:.0f} s from a second process: queries of three levels, mutations and "
        "subscriptions, a tenth left midway; every answer compared with the CSV files, no error, no task left over, no "
        f"{MAX_GROWTH} MB more than before; medians of {windows} windows.",
        HEAD,
        [
            [way, *asyncio.run(measure(module, seconds=seconds, windows=windows, connections=connections))]
            for way, module in WAYS.items()
        ],
        chart="operations/s",
        ours=["loader"],
    )
