"""The GraphQL view: Strawberry's, closed to other origins, and with an answer for bodies and messages of any kind."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cross_web import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from strawberry.asgi import ASGIWebSocketAdapter
from strawberry.http.websocket_origin import is_same_origin
from strawberry.subscriptions import GRAPHQL_TRANSPORT_WS_PROTOCOL
from strawberry.subscriptions.protocols.graphql_transport_ws.handlers import BaseGraphQLTransportWSHandler

from loader.strawberry.asgi import GraphQL

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import HTTPConnection
    from starlette.types import Message, Receive, Scope, Send
    from strawberry import Schema

    from example_app.loaders import AppLoaders
    from example_app.service import Service
    from example_app.settings import Settings

MAX_REASON = 123
"""Bytes that a websocket's close frame has for the reason."""


class WebSocketAdapter(ASGIWebSocketAdapter):
    """Strawberry's, with reasons that fit into a frame."""

    async def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        await super().close(code, reason.encode()[:MAX_REASON].decode(errors="ignore"))


class WebSocketHandler(BaseGraphQLTransportWSHandler[dict[str, Any], None]):
    """Strawberry's, which expects that messages have the shape that the protocol says."""

    async def handle_message(self, message: Any) -> None:
        """Handle a message, or close the connection with code 4400."""
        if isinstance(message, dict) and _is_well_formed(message):
            await super().handle_message(message)  # type: ignore[arg-type]
        else:
            await self.handle_invalid_message("Failed to parse message")


def _is_well_formed(message: dict[str, Any]) -> bool:
    if not isinstance(message.get("id", ""), str):
        return False
    payload = message.get("payload")
    if message.get("type") != "subscribe":
        return True
    return (
        isinstance(payload, dict)
        and isinstance(payload.get("query"), str)
        and isinstance(payload.get("variables"), dict | None)
        and _is_name(payload.get("operationName"))
    )


def _is_name(value: object) -> bool:
    """Whether it may be an operation's name: an answer repeats it, so it must be possible to send."""
    return value is None or (isinstance(value, str) and value.isascii())


class View(GraphQL[None]):
    """What answers at `/graphql`."""

    websocket_adapter_class = WebSocketAdapter  # type: ignore[assignment]  # as Strawberry's own has it
    graphql_transport_ws_handler_class = WebSocketHandler

    def __init__(
        self,
        schema: Schema,
        make_loaders: Callable[[HTTPConnection], AppLoaders],
        service: Service,
        settings: Settings,
    ) -> None:
        super().__init__(
            schema,
            make_loaders,
            graphql_ide="graphiql" if settings.graphiql else None,
            # The older protocol is left out: its tasks are not waited for when a connection ends.
            subscription_protocols=[GRAPHQL_TRANSPORT_WS_PROTOCOL],
            max_subscriptions_per_connection=settings.max_operations,
            allowed_origins=sorted(settings.allowed_origins),
        )
        self._service = service
        self._max_body = settings.max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or a connection; Strawberry looks at the origin of the latter only."""
        if scope["type"] == "http" and not self._is_allowed(scope):
            await PlainTextResponse("This origin is not allowed.", 403)(scope, receive, send)
            return
        with suppress(ClientDisconnect):  # while it sent its request: there is nobody to answer
            await super().__call__(scope, self._limited(receive) if scope["type"] == "http" else receive, send)

    async def get_context(self, request: Any, response: Any) -> dict[str, Any]:
        """The context, as `graph.Context` says it."""
        return {**await super().get_context(request, response), "service": self._service}

    def decode_json(self, data: str | bytes) -> object:
        """Decode what a client sent, which may be no text, or have too many digits or brackets."""
        try:
            return super().decode_json(data)
        except (ValueError, RecursionError):
            raise json.JSONDecodeError("it cannot be decoded", "", 0) from None

    def parse_json(self, data: str | bytes) -> Any:
        """Parse what is an object, or several of them, wherever a request has JSON."""
        value = super().parse_json(data)
        if isinstance(value, dict):
            if _is_name(value.get("operationName")):
                return value
            raise HTTPException(400, "The GraphQL operation's `operationName` must be a name or null, if provided.")
        if isinstance(value, list | None):
            return value or {}
        raise HTTPException(400, "The request must be a JSON object.")

    def _is_allowed(self, scope: Scope) -> bool:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin")
        # Only browsers send it: whoever else sends a request has nobody's cookies and networks to abuse.
        return (
            origin is None
            or is_same_origin(origin, headers.get(b"host"))
            or self.is_websocket_origin_allowed(None, origin)  # type: ignore[arg-type]  # it looks at the origin only
        )

    def _limited(self, receive: Receive) -> Receive:
        taken = 0

        async def limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_body:
                raise HTTPException(413, f"The request may have {self._max_body:,} bytes at most.")
            return message

        return limited
