"""The demo as people meet it: the command line, and the service behind it."""
# ruff: noqa: A001  # `id` is GraphQL's word

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from example_app.app import create_app
from example_app.build import VARIABLE
from tests.test_example_data import ROOT, built, flight, in_order
from tests.test_example_schema import ACCEPTANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loader.testing import Batches


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, VARIABLE: built().render_as_string(), **changes}


def run(
    *arguments: str, stdin: str = "", encoding: str = "utf-8", **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "example_app", *arguments],
        input=stdin, encoding=encoding, env=environment(**variables), cwd=ROOT, capture_output=True, check=False,
        timeout=50,
    )  # fmt: skip


def test_a_query_prints_the_answer_and_on_standard_error_the_statements() -> None:
    ran = run("query", ACCEPTANCE)
    assert ran.returncode == 0
    assert [item["number"] for item in json.loads(ran.stdout)["data"]["flights"]] == [
        int(flight(id)["flight"]) for id in in_order()[:1000]
    ]
    *lines, last = ran.stderr.splitlines()
    assert sorted(re.sub(r"\d[\d.]*", "N", line) for line in lines) == [
        "Query.flights: N rows, N ms",
        "airlines: N keys, N rows, N ms",
        "airports: N keys, N rows, N ms",
        "planes: N keys, N rows, N ms",
        "weather: N keys, N rows, N ms",
    ]
    assert re.fullmatch(r"5 statements, \d+ ms", last)


def test_a_dash_reads_the_query_from_standard_input() -> None:
    ran = run("query", "-", stdin='{ airport(code: "JFK") { name } }')
    assert json.loads(ran.stdout) == {"data": {"airport": {"name": "John F Kennedy Intl"}}}
    assert ran.returncode == 0
    assert re.fullmatch(r"airports: 1 key, 1 row, [\d.]+ ms\n1 statement, \d+ ms\n", ran.stderr)


def test_standard_input_that_is_no_text_gets_one_line() -> None:
    ran = run("query", "-", stdin="\xff", PYTHONIOENCODING="utf-8:strict", encoding="latin-1")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "example_app: standard input is not text in utf-8, as a query is: invalid start byte\n"


@pytest.mark.parametrize(
    ("query", "message", "data"),
    [
        ("{ flights(first: 0) { id } }", "first must be from 1 to 1000, not 0", None),
        ("{ flights { nothing } }", "Cannot query field 'nothing' on type 'Flight'.", None),
        ("{ flights {", "Syntax Error: Expected Name, found <EOF>.", None),
        ("", "Syntax Error: Unexpected <EOF>.", None),
        (
            "subscription { routeStatistics { age } }",
            "subscriptions need a websocket: GraphiQL opens one, where python -m example_app serves it",
            None,
        ),
        (
            '{ ok: airline(code: "UA") { code } bad: airline(code: "UA") { flights(first: 0) { id } } }',
            "first must be from 1 to 1000, not 0",
            {"ok": {"code": "UA"}, "bad": None},
        ),
    ],
)
def test_errors_in_the_query_are_in_the_answer_and_in_the_exit_code(query: str, message: str, data: Any) -> None:
    ran = run("query", query)
    answer = json.loads(ran.stdout)
    assert ([error["message"] for error in answer["errors"]], answer["data"]) == ([message], data)
    assert ran.returncode == 1
    assert re.fullmatch(r"(airlines: .*\n)?[01] statements?, \d+ ms\n", ran.stderr)


def test_a_query_without_an_operation_gets_one_line() -> None:
    ran = run("query", "fragment f on Query { __typename }")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "example_app: there is no operation in the query, only fragments\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "example_app", "query", ACCEPTANCE],
        env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        assert process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, as on Linux")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [(["query", "{ __typename }"], "the answer"), (["--port", "0"], "where the demo is")],
    ids=["query", "serve"],
)
def test_what_cannot_be_written_gets_one_line(arguments: Sequence[str], what: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "example_app", *arguments],
            env=environment(), cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=50,
        )  # fmt: skip
    *statements, line = ran.stderr.splitlines()
    assert (ran.returncode, line) == (1, f"example_app: cannot write {what}: No space left on device")
    assert len(statements) == (1 if "query" in arguments else 0)


@pytest.mark.parametrize("arguments", [["query", "{ __typename }"], ["--port", "0"]])
def test_an_unusable_database_gets_one_line(arguments: Sequence[str]) -> None:
    ran = run(*arguments, **{VARIABLE: "postgres"})
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "example_app: EXAMPLE_DATABASE_URL must be sqlite+aiosqlite:///PATH, with the path of a file, "
        "or postgresql+asyncpg://USER:PASSWORD@HOST/DATABASE, not 'postgres'\n"
    )


def test_a_port_in_use_gets_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = run("--port", str(port))
    assert (ran.returncode, ran.stdout) == (1, "")
    (line,) = ran.stderr.splitlines()
    assert line == f"example_app: port {port} on 127.0.0.1 is in use: choose another with --port"


def test_a_host_that_is_not_ours_gets_one_line() -> None:
    ran = run("--host", "192.0.2.1")
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("example_app: cannot listen on port 8000 of 192.0.2.1, ")


def test_a_port_that_cannot_be_is_refused() -> None:
    ran = run("--port", "70000")
    assert ran.returncode == 2
    assert "must be a number from 0 to 65535, not '70000'" in ran.stderr


@pytest.mark.parametrize("module", ["platformdirs", "aiosqlite", "uvicorn"])
def test_a_missing_extra_gets_one_line(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from example_app.__main__ import main; sys.exit(main([]))"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr == (
        f"example_app: the module {module} is missing: install the demo with pip install -e '.[demo]'\n"
    )


def test_the_service_says_where_it_is_and_answers_there() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "example_app", "--port", "0"],
        env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            where = re.search(r"http://127\.0\.0\.1:\d+/graphql", process.stdout.readline())
            assert where is not None
            process.stdout.readline()
            query = process.stdout.readline().strip()
            answer = httpx.post(where[0], json={"query": query}).json()
            assert [item["number"] for item in answer["data"]["flights"]] == [
                int(flight(id)["flight"]) for id in in_order()[:5]
            ]
            page = httpx.get(where[0].removesuffix("graphql"))
            assert "<h1>The same GraphQL question" in page.text
            assert "graphiql" in httpx.get(where[0], headers={"accept": "text/html"}).text.lower()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        (line,) = process.stderr.read().splitlines()
        assert re.fullmatch(
            r'time="[^"]+" level="info" operation="" type="query" ms=[\d.]+ '
            r'batches={"airlines":1,"planes":1,"airports":1,"weather":1} keys=\d+ statements=5 rows=\d+ errors=0',
            line,
        )


@pytest.mark.real_time
async def test_over_http_a_subscription_is_told_where_to_go_and_a_mutation_by_get_is_refused() -> None:
    app = create_app(built())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://demo") as client,
    ):
        answer = await client.post("/graphql", json={"query": "subscription { routeStatistics { age } }"})
        assert "subscriptions need a websocket" in answer.json()["errors"][0]["message"]
        answer = await client.get("/graphql", params={"query": "mutation { delayFlight(id: 1, minutes: 1) { id } }"})
        assert (answer.status_code, answer.text) == (400, "mutations are not allowed when using GET")


@pytest.mark.real_time
async def test_requests_side_by_side_get_the_same_right_answer_each_from_its_own_batches(batches: Batches) -> None:
    app = create_app(built())
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://demo") as client,
    ):
        requests = [client.post("/graphql", json={"query": ACCEPTANCE.replace("1000", "50")}) for _ in range(10)]
        answers = [response.json() for response in await asyncio.gather(*requests)]
    assert "errors" not in answers[0]
    assert all(answer == answers[0] for answer in answers)
    batches.assert_batches(airlines=10, airports=10, planes=10, weather=10)
    assert [item["number"] for item in answers[0]["data"]["flights"]] == [
        int(flight(id)["flight"]) for id in in_order()[:50]
    ]
