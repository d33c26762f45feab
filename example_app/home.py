"""The page at `/` and what it asks for: its files, the questions, and a comparison as it goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from strawberry.http.websocket_origin import is_same_origin

from example_app.compare import Comparison
from example_app.questions import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from example_app.service import Service
    from example_app.settings import Settings

TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = {file.name: file for file in Path(__file__).with_name("page").iterdir() if file.suffix in TYPES}

HEADERS = {
    # Nothing from elsewhere, nothing inline, and nobody shows it inside of a page of their own.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Home:
    """The routes of the page."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._comparison = Comparison(service, settings)
        self._graphiql = settings.graphiql
        self._questions = {question.id: question for question in QUESTIONS}
        self.routes = [
            Route("/", self.page),
            Route("/page/{name}", self.file),
            Route("/questions", self.questions),
            Route("/questions/{id}", self.compare, methods=["POST"]),
        ]

    async def page(self, _: Request) -> Response:
        """The page itself."""
        return _shown("index.html")

    async def file(self, request: Request) -> Response:
        """A file that belongs to it."""
        return _shown(request.path_params["name"])

    async def questions(self, _: Request) -> Response:
        """What can be asked, and in which ways."""
        ways = [{"id": way.id, "title": way.title, "note": way.note} for way in self._comparison.ways]
        questions = [asdict(question) for question in QUESTIONS]
        return JSONResponse({"questions": questions, "ways": ways, "graphiql": self._graphiql}, headers=HEADERS)

    async def compare(self, request: Request) -> Response:
        """A comparison: a line of JSON for each event, as they come."""
        origin = request.headers.get("origin")
        if origin is not None and not is_same_origin(origin, request.headers.get("host")):
            return JSONResponse({"error": "This origin is not allowed."}, 403, HEADERS)
        question = self._questions.get(request.path_params["id"])
        if question is None:
            return JSONResponse({"error": "There is no such question."}, 404, HEADERS)
        lines = _lines(self._comparison.events(question))
        return StreamingResponse(lines, headers=HEADERS, media_type="application/x-ndjson")


async def _lines(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    async for event in events:
        yield json.dumps(event) + "\n"


def _shown(name: str) -> Response:
    file = FILES.get(name)
    if file is None:
        return Response("There is no such file.", 404, HEADERS, "text/plain")
    return Response(file.read_bytes(), headers=HEADERS, media_type=TYPES[file.suffix])
