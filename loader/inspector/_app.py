"""The ASGI app: the page, what is on it as JSON, and the events."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, final
from urllib.parse import quote
from weakref import finalize

from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from loader.inspector._access import Access
from loader.inspector._live import Live
from loader.inspector._record import Recorder
from loader.inspector._store import Store
from loader.observe import observing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from loader import Histogram
    from loader.inspector._access import Refusal
    from loader.observe import Figures

    Endpoint = Callable[[Request], Response]

LEAST_MEMORY = 2**20

TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

HEADERS = {
    # Nothing from elsewhere, nothing inline, and nobody shows it inside of a page of their own.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@final
class Inspector:
    """An ASGI app that shows the latest operations: mount it, and open it in a browser.

    It observes the process from the moment it is made until it is closed or gone. Every scope in which loaders,
    batchers or triggers did something is an operation: that of a GraphQL operation, of a subscription's event, or of
    a `Loaders` without any. It keeps the latest within a bound of memory, and works out what it shows when somebody
    looks. Keys and values are never recorded.

    Without a token it serves the machine that it runs on, and nobody else: a request must come over the loopback
    interface, without a proxy in between. With one, it serves who sends `Authorization: Bearer TOKEN`, or opens the
    page once as `/inspector/?token=TOKEN`, which leaves a cookie.

    Examples:
        >>> from starlette.applications import Starlette
        >>> from starlette.routing import Mount
        >>> from loader.inspector import Inspector
        >>> inspector = Inspector()
        >>> app = Starlette(routes=[Mount("/inspector", inspector)])
        >>> inspector.close()

    Args:
        token: A secret of at least 16 characters, or None.
        operations: How many of the latest operations it keeps, at most.
        memory: How many bytes they take, at most, from 1 MiB; what is recorded of operations under way may take as
            much again. Of one operation it keeps what fits into an eighth of it.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If the token is too short or cannot be sent, or a number is too small.
    """

    def __init__(self, *, token: str | None = None, operations: int = 500, memory: int = 32 * 2**20) -> None:
        for name, value, least in (("operations", operations, 1), ("memory", memory, LEAST_MEMORY)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"Inspector({name}=) takes a whole number, not {value!r}")
            if value < least:
                raise ValueError(f"Inspector({name}=) must be at least {least:,}, not {value:,}")
        self._access = Access(token)
        self._store = Store(operations, memory)
        self._recorder = Recorder(self._store)
        self._live = Live(self._store)
        observed = ExitStack()
        observed.enter_context(observing(self._recorder))
        self._stop = finalize(self, observed.close)  # one that is gone observes no more
        self._app = Starlette(
            routes=[
                Route("/", self._guarded(self._page, is_page=True)),
                Route("/static/{name}", _asset),
                Route("/api/operations", self._guarded(self._operations)),
                Route("/api/operations/{id}", self._guarded(self._operation)),
                Route("/api/operations/{id}/perfetto.json", self._guarded(self._perfetto)),
                Route("/api/loaders", self._guarded(self._loaders)),
                Route("/api/events", self._guarded(self._events)),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as ASGI has it."""
        root = scope.get("root_path", "")
        if scope["type"] == "http" and root and scope["path"] in {"", root}:
            await _into_folder(root, scope.get("query_string", b""))(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def close(self) -> None:
        """Observe no new operation, and let the streams of open pages end; what was seen is still there to be read."""
        self._stop()
        self._live.close()

    async def aclose(self) -> None:
        """`close`, and wait until the streams have ended, a second at most: a client that reads nothing blocks its own.

        Cancellation: It is closed before the wait; only the wait ends.
        """
        self.close()
        await self._live.ended()

    def __repr__(self) -> str:
        watching = "observing" if self._stop.alive else "closed"
        return f"<Inspector: {watching}, {len(self._store.after(0))} operations kept>"

    # -- what is served --------------------------------------------------------------------------------------------

    def _guarded(self, endpoint: Endpoint, *, is_page: bool = False) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            token = request.query_params.get("token") if is_page and self._access.token_wanted else None
            if token is not None and self._access.accepts(token):
                return self._remembering(request)
            refusal = self._access.refusal(request, is_page=is_page)
            response = endpoint(request) if refusal is None else _refused(refusal, is_page=is_page)
            response.headers.update(HEADERS)
            return response

        return guarded

    def _remembering(self, request: Request) -> Response:
        """The cookie in place of the token, and on to the page without it.

        A page that leads on, no redirect: after one, a strict cookie would not be sent if another site led here.
        """
        page = _PAGE.format(
            refresh='<meta http-equiv="refresh" content="0; url=./">',
            title="Loader inspector",
            body='<p>The token is accepted. <a href="./">Open the inspector</a>.</p>',
        )
        response = HTMLResponse(page, headers=HEADERS)
        response.set_cookie(
            self._access.cookie,
            self._access.cookie_value,
            path=None,  # the folder of the page, as the browser knows it: a proxy may serve it in another one
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    def _page(self, _: Request) -> Response:
        return _static("index.html")

    def _operations(self, _: Request) -> Response:
        kept = self._store.after(0)
        return _JSON({"operations": [operation.summary() for operation in reversed(kept)]})

    def _operation(self, request: Request) -> Response:
        operation = self._store.find(request.path_params["id"])
        return _gone() if operation is None else _JSON(operation.detail())

    def _perfetto(self, request: Request) -> Response:
        operation = self._store.find(request.path_params["id"])
        if operation is None:
            return _gone()
        name = re.sub(r"[^A-Za-z0-9]+", "-", operation.summary()["name"])[:60].strip("-") or "operation"
        disposition = f'attachment; filename="{name}-{operation.number}.perfetto.json"'
        return _JSON(operation.timeline.perfetto(), headers={"content-disposition": disposition})

    def _loaders(self, _: Request) -> Response:
        figures = [_figures(each) for each in self._recorder.figures()]
        return _JSON({"loaders": figures, "left_out": self._recorder.left_out})

    def _events(self, request: Request) -> Response:
        last_id = request.headers.get("last-event-id") or request.query_params.get("last", "")
        stream = self._live.stream(last_id)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _into_folder(root: str, query: bytes) -> Response:
    """To the page's folder, which its links are relative to; from where it is, wherever a proxy may have put it."""
    folder = f"./{quote(root.rpartition('/')[2])}/"
    return Response(status_code=307, headers={"location": f"{folder}?{query.decode('latin-1')}" if query else folder})


class _JSON(Response):
    """JSON that escapes whatever is not ASCII: half of a surrogate pair, in a name of a file say, is no UTF-8."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _gone() -> Response:
    return _JSON({"error": "This operation is not kept any more, or was one of another process."}, 404)


def _figures(figures: Figures) -> dict[str, object]:
    return {
        "kind": figures.kind,
        "name": figures.name[:300],
        "calls": figures.calls,
        "asked": figures.asked,
        "cached": figures.cached,
        "dropped": figures.dropped,
        "overloaded": figures.overloaded,
        "missing": figures.missing,
        "failures": figures.failures,
        "reasons": figures.reasons,
        "outcomes": figures.outcomes,
        "size": _histogram(figures.size),
        "wait": _histogram(figures.wait),
        "run_time": _histogram(figures.run_time),
    }


def _histogram(histogram: Histogram) -> dict[str, object]:
    # Infinity, which is above every bound, is no JSON.
    median, p95 = (None if bound == float("inf") else bound for bound in map(histogram.quantile, (0.5, 0.95)))
    return {
        "bounds": histogram.bounds,
        "counts": histogram.counts,
        "count": histogram.count,
        "mean": histogram.mean,
        "p50": median,
        "p95": p95,
    }


# -- what is the same for everybody --------------------------------------------------------------------------------

_FOLDER = files("loader.inspector") / "static"
_ASSETS = {asset.name: asset.read_bytes() for asset in _FOLDER.iterdir() if asset.name.endswith(tuple(TYPES))}


def _static(name: str) -> Response:
    content = _ASSETS.get(name)
    if content is None:
        return Response("There is no such file.", 404, HEADERS, "text/plain")
    return Response(content, headers=HEADERS, media_type=TYPES[name[name.rindex(".") :]])


async def _asset(request: Request) -> Response:
    # For everybody: the page that says why it is not shown has a style too, and there is nothing secret in it.
    return _static(request.path_params["name"])


_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
    '<link rel="icon" href="static/icon.svg"><link rel="stylesheet" href="static/inspector.css"></head>'
    '<body class="notice"><main><h1>{title}</h1>{body}</main></body></html>'
)

_FORM = (
    '<form method="get" action="./"><label for="token">Token</label>'
    '<input id="token" name="token" type="password" autocomplete="off" required autofocus>'
    '<button type="submit">Open</button></form>'
)


def _refused(refusal: Refusal, *, is_page: bool) -> Response:
    headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else {}
    if not is_page:
        return _JSON({"error": f"{refusal.reason} {refusal.remedy}"}, refusal.status, headers)
    body = f"<p>{escape(refusal.reason)}</p><p>{escape(refusal.remedy)}</p>{_FORM * (refusal.status == 401)}"
    page = _PAGE.format(refresh="", title="The inspector is not shown", body=body)
    return HTMLResponse(page, refusal.status, headers)
