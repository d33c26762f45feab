"""The demo as a process: how it starts, looks after itself, and stops. Others on its database are left in peace."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import websockets
from strawberry.http.exceptions import WebSocketDisconnected
from strawberry.schema.exceptions import CannotGetOperationTypeError
from uvicorn.config import STARTUP_FAILURE

from example_app import log
from example_app.app import create_app
from example_app.build import VARIABLE
from example_app.database import Database
from example_app.schema import make_schema
from example_app.settings import Settings
from loader.observe import observing
from tests.serving import TRANSPORT_WS, connect, in_process
from tests.test_example_app import environment
from tests.test_example_data import ROOT, built
from tests.test_example_service import demo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import URL

DELAY = "mutation { delayFlight(id: 7, minutes: 30) { delayedBy } }"
DELAYED = "{ flight(id: 7) { delayedBy } }"


@pytest.fixture
def url(tmp_path: Path) -> URL:
    """A database of the test's own."""
    shutil.copy(built().database or "", tmp_path)
    return built().set(database=str(tmp_path / "flights.sqlite3"))


class Process:
    """`python -m example_app` on a free port."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self.address = process.stdout.readline().split("//")[1].split("/")[0]
        self.log: list[str] = []

    def ask(self, query: str) -> Any:
        body = {"query": query}
        for attempt in range(40):
            try:
                answer = httpx.post(f"http://{self.address}/graphql", json=body, trust_env=False, timeout=20)
            except httpx.TransportError:  # none of its workers is up yet, or the one that has it stops
                if attempt == 39:
                    raise
            else:
                return answer.json()["data"]
        return None

    def stop(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        code = self.process.wait(30)
        assert self.process.stderr is not None
        self.log = self.process.stderr.read().splitlines()
        return code


@contextmanager
def started(url: URL, *arguments: str, **variables: str) -> Iterator[Process]:
    with subprocess.Popen(
        [sys.executable, "-m", "example_app", "--port", "0", *arguments],
        env=environment(**{VARIABLE: url.render_as_string()}, **variables), cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield Process(process)
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_stops_all_processes_and_ends_subscriptions_with_a_code(
    url: URL, how: signal.Signals, workers: str
) -> None:
    async def follow(server: Process) -> None:
        while True:
            try:
                async with connect(server.address, TRANSPORT_WS) as client:
                    await client.start("1", "subscription { routeStatistics { refreshes } }")
                    assert (await client.get("1"))[0] == "next"
                    stopping = asyncio.create_task(asyncio.to_thread(server.stop, how))
                    await client.connection.wait_closed()
                    assert client.connection.close_code == 1012
                    assert await stopping == 0
                    return
            except (OSError, websockets.InvalidMessage):  # no worker is up yet
                await asyncio.sleep(0.1)

    with started(url, "--workers", workers) as server:
        asyncio.run(follow(server))
        assert [line for line in server.log if 'level="info"' not in line] == []
        assert [line for line in server.log if 'type="subscription"' in line and "errors=0" in line] != []


def test_requests_that_run_when_the_signal_comes_get_their_answers(url: URL) -> None:
    query = " ".join(f'a{n}: flights(first: 200, after: "{n + 1}") {{ id plane {{ model }} }}' for n in range(60))

    async def ask(server: Process) -> list[Any]:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            asking = [
                asyncio.create_task(client.post(f"http://{server.address}/graphql", json={"query": f"{{ {query} }}"}))
                for _ in range(3)
            ]
            await asyncio.sleep(0.3)  # they have come; their answers take longer
            assert await asyncio.to_thread(server.stop, signal.SIGTERM) == 0
            return [response.json() for response in await asyncio.gather(*asking)]

    with started(url) as server:
        server.ask("{ __typename }")
        answers = asyncio.run(ask(server))
    assert [len(answer["data"]) for answer in answers] == [60] * 3


def test_a_second_server_does_not_undo_what_the_first_one_has_delayed(url: URL) -> None:
    with started(url) as first:
        assert first.ask(DELAY) == {"delayFlight": {"delayedBy": 30}}
        with started(url, "--workers", "2") as second:
            assert second.ask(DELAYED) == {"flight": {"delayedBy": 30}}
            assert second.stop(signal.SIGTERM) == 0
        assert first.ask(DELAYED) == {"flight": {"delayedBy": 30}}
        first.process.kill()  # without any goodbye
        first.process.wait()
    with started(url) as third:
        assert third.ask(DELAYED) == {"flight": {"delayedBy": 0}}


def start_two_at_once(url: URL) -> None:
    """Two servers on a database that is not there yet; both answer, and one undoes nothing of the other."""
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        first, second = pool.map(lambda _: stack.enter_context(started(url)), range(2))
        assert first.ask(DELAY) == {"delayFlight": {"delayedBy": 30}}
        assert second.ask(DELAYED) == {"flight": {"delayedBy": 30}}
        assert [first.stop(signal.SIGTERM), second.stop(signal.SIGTERM)] == [0, 0]
        said = "\n".join(first.log + second.log)
        assert said.count("Building") == said.count("done in") == 1
    with started(url) as third:
        assert third.ask(DELAYED) == {"flight": {"delayedBy": 0}}
        assert third.stop(signal.SIGTERM) == 0
        assert [line for line in third.log if 'level="info"' not in line] == []


def test_two_servers_that_start_at_once_both_come_up(tmp_path: Path) -> None:
    start_two_at_once(built().set(database=str(tmp_path / "flights.sqlite3")))


def test_a_worker_that_cannot_start_says_why_and_is_not_started_again() -> None:
    code = "from example_app.app import from_environment; from_environment()"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(**{VARIABLE: "mysql://x"}), cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == STARTUP_FAILURE
    (line,) = ran.stderr.splitlines()
    assert line.startswith("example_app: EXAMPLE_DATABASE_URL must be")


@pytest.mark.real_time
async def test_health_says_whether_the_database_is_there_even_if_the_pool_is_busy(url: URL, tmp_path: Path) -> None:
    app = create_app(url, Settings(pool_size=1))
    async with app.router.lifespan_context(app), in_process(app) as client:
        answers = await asyncio.gather(*[client.get("/health") for _ in range(20)])
        assert {(answer.status_code, answer.text) for answer in answers} == {(200, '{"service":"ok","database":"ok"}')}
        (tmp_path / "flights.sqlite3").unlink()
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()) == (503, {"service": "ok", "database": "cannot be reached"})


@pytest.mark.real_time
async def test_metrics_count_the_statements_and_the_tasks() -> None:
    app = create_app(built())
    async with app.router.lifespan_context(app), in_process(app) as client:
        for _ in range(3):
            await client.post("/graphql", json={"query": "{ flights(first: 2) { airline { name } } }"})
        text = (await client.get("/metrics")).text
    assert 'example_statements_total{source="airlines"} 3.0' in text
    assert 'example_rows_total{source="Query.flights"} 6.0' in text
    assert "example_statement_seconds_count 6.0" in text
    assert 'loader_batch_size_count{kind="loader",name="AppLoaders.airlines"} 3.0' in text
    assert re.search(r"^example_tasks [1-9]", text, re.MULTILINE)
    assert re.search(r"^process_resident_memory_bytes \d", text, re.MULTILINE)


@pytest.mark.real_time
async def test_a_pool_that_is_taken_is_an_error_that_says_so() -> None:
    database = Database(built(), pool_size=1, pool_seconds=0.1)
    app = create_app(built(), Settings(pool_size=1, pool_seconds=0.1))
    async with app.router.lifespan_context(app), in_process(app) as client:
        fields = " ".join(f'a{n}: flights(first: 1000, after: "{n + 1}") {{ id }}' for n in range(12))
        body = (await client.post("/graphql", json={"query": f"{{ {fields} }}"})).json()
        answer = await client.post("/graphql", json={"query": DELAYED})
    busy = "the service is busy: no database connection became free, try again later"
    assert {error["message"] for error in body.get("errors", [])} <= {busy}
    assert answer.json()["data"] is not None
    async with database.session("first"), database.engine.connect():
        with pytest.raises(Exception, match="the service is busy: no database connection became free"):
            async with database.session("second") as session:
                await session.connection()
    await database.aclose()


class Lines:
    """What the log has of operations."""

    def __init__(self, caplog: pytest.LogCaptureFixture, formatter: Any) -> None:
        self.caplog, self.formatter = caplog, formatter

    def take(self) -> str:
        (line,) = [self.formatter.format(record) for record in self.caplog.records if record.name == log.LOG.name]
        self.caplog.clear()
        return str(line)


async def test_each_operation_is_a_line_with_what_it_took(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", log.LOG.name)
    lines = Lines(caplog, log.AsJson())
    schema = make_schema(Settings())
    async with demo() as it:
        it.database._on_statement = log.count_statement
        with observing(log.CountBatches()):
            query = "query Board { flights(first: 3) { airline { code } origin { code } } }"
            await schema.execute(query, context_value=it.context())
            line = json.loads(lines.take())
            assert (line.pop("time"), line.pop("ms")) != (None, None)
            assert line == {
                "level": "info", "operation": "Board", "type": "query", "batches": {"airlines": 1, "airports": 1},
                "keys": 5, "statements": 3, "rows": 8, "errors": 0,
            }  # fmt: skip
            await schema.execute("{ flights(first: 0) { id } }", context_value=it.context())
            assert json.loads(lines.take())["errors"] == 1
            await schema.execute("{ nonsense", context_value=it.context())
            assert json.loads(lines.take())["type"] == "none"
            stream: Any = await schema.subscribe(
                'subscription { departures(origin: "JFK", speed: 3600) { flight { airline { code } } } }',
                context_value=it.context(),
            )
            for _ in range(3):
                await anext(stream)
            await stream.aclose()
            line = json.loads(lines.take())
            assert (line["type"], line["events"], line["batches"]) == (
                "subscription", 3, {"departures": 1, "flights": 3, "airlines": 3},
            )  # fmt: skip


async def test_a_name_of_an_operation_cannot_make_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", log.LOG.name)
    evil = 'x"\n\x1b[31mtime="now" level="error" ü\ud800' + "y" * 5000
    async with demo() as it:
        for formatter in (log.AsText(), log.AsJson()):
            with pytest.raises(CannotGetOperationTypeError):
                await make_schema(Settings()).execute("{ __typename }", operation_name=evil, context_value=it.context())
            line = Lines(caplog, formatter).take()
            assert line.isascii()
            assert line.isprintable()
            assert len(line) < 600


@pytest.mark.parametrize(
    ("error", "worth"),
    [
        (WebSocketDisconnected(), False),
        (RuntimeError('Cannot call "send" once a close message has been sent.'), False),
        (RuntimeError("another"), True),
        (None, True),
    ],
)
def test_a_client_that_leaves_while_an_event_is_sent_to_it_is_no_error(error: Exception | None, worth: bool) -> None:
    exc_info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("strawberry.ws.task", logging.ERROR, "", 1, "Exception in worker task", (), exc_info)
    assert log.is_worth_a_line(record) is worth
