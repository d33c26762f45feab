"""What is served at `/`: the page, its files, and comparisons, closed to other origins."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from urllib.parse import urljoin

import httpx
import pytest

from example_app import home
from example_app.app import create_app
from example_app.home import FILES
from example_app.questions import QUESTIONS
from example_app.settings import Settings
from tests.serving import Server
from tests.test_example_data import built
from tests.test_example_view import client

pytestmark = pytest.mark.real_time

POLICY = {
    "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self'",
    "connect-src": "'self'", "form-action": "'none'", "base-uri": "'none'", "frame-ancestors": "'none'",
}  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/page/page.css", "/page/icon.svg", "/page/none", "/questions"])
async def test_nothing_runs_or_comes_from_elsewhere(path: str) -> None:
    async with client() as asking:
        answer = await asking.get(path)
    given = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert given == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", sorted(FILES))
async def test_every_file_is_served_and_refers_to_what_is_there(name: str) -> None:
    async with client() as asking:
        answer = await asking.get(f"/page/{name}")
        text = answer.text
        assert answer.status_code == 200
        for path in re.findall(r'(?:href|src)="(page/[^"]+)"', text) + re.findall(r'from "\./([^"]+)"', text):
            found = await asking.get("/page/" + path.removeprefix("page/"))
            assert found.status_code == 200, path
        for path in re.findall(r'@import "([^"]+)"', text):
            found = await asking.get(urljoin("/page/", path))
            assert (found.status_code, found.headers["content-type"].split(";")[0]) == (200, "text/css"), path
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\bstyle=|\bon\w+=", text) == []
    types = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].split(";")[0] == types[name.rpartition(".")[2]]


@pytest.mark.parametrize("path", ["/page/nothing.js", "/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page/"])
async def test_no_other_file_is_served(path: str) -> None:
    async with client() as asking:
        answer = await asking.get(path)
    assert answer.status_code == 404


async def test_the_questions_are_told_and_whether_there_is_graphiql() -> None:
    async with client() as asking:
        told = (await asking.get("/questions")).json()
    assert [question["id"] for question in told["questions"]] == [question.id for question in QUESTIONS]
    assert [way["id"] for way in told["ways"]] == ["one", "hand", "planned"]
    assert told["graphiql"] is True
    async with client(graphiql=False) as asking:
        assert (await asking.get("/questions")).json()["graphiql"] is False


async def test_a_comparison_comes_as_lines_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "QUESTIONS", [replace(question, first=3) for question in QUESTIONS])
    async with client() as asking:
        answer = await asking.post("/questions/aircraft")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert told[0] == {"way": "one", "statements": 0, "done": False}
    assert [event["way"] for event in told if event.get("done")] == ["one", "hand", "planned"]
    assert told[-1]["equal"] is True


async def test_a_client_that_leaves_gives_its_turn_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "QUESTIONS", [replace(question, first=40) for question in QUESTIONS])
    app = create_app(built(), Settings(log="off"))
    async with (
        app.router.lifespan_context(app),
        Server(app) as server,
        httpx.AsyncClient(base_url=f"http://{server.address}", trust_env=False, timeout=50) as asking,
    ):
        for _ in range(3):
            async with asking.stream("POST", "/questions/departures") as leaving:
                assert json.loads(await anext(leaving.aiter_lines()))["way"] == "one"
        answer = await asking.post("/questions/departures")
    assert json.loads(answer.text.splitlines()[-1])["equal"] is True


async def test_an_unknown_question_another_method_and_another_origin_are_refused() -> None:
    async with client() as asking:
        assert (await asking.post("/questions/none")).status_code == 404
        assert (await asking.get("/questions/aircraft")).status_code == 405
        answer = await asking.post("/questions/aircraft", headers={"origin": "https://elsewhere.example"})
        assert (answer.status_code, answer.json()) == (403, {"error": "This origin is not allowed."})
