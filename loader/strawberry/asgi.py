"""The GraphQL app for Starlette and any other ASGI server, with the request's loaders in the context."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from strawberry.asgi import GraphQL as StrawberryGraphQL

from loader.strawberry._extension import ensure_installed
from loader.strawberry._factory import check_factory, open_loaders

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send
    from starlette.websockets import WebSocket
    from strawberry import Schema

    from loader.strawberry._factory import MakeLoaders

Root = TypeVar("Root")

_STACK = "loader.strawberry.stack"  # where an ASGI scope carries what closes its loaders


class GraphQL(StrawberryGraphQL[dict[str, Any], Root]):
    """Strawberry's ASGI app, with the request's `Loaders` as `info.context["loaders"]`.

    It installs the scopes of `loader.strawberry.install` in the schema, unless that was done already. Loaders are made
    once for an HTTP request and once for a websocket connection, and closed after the response was sent, the stream
    has ended or the connection is over.

    Args:
        schema: The schema.
        make_loaders: Makes the loaders from the Starlette `Request` or `WebSocket`: a function, a coroutine function,
            or an async generator function that yields them and then closes what they hold.
        options: Those of `strawberry.asgi.GraphQL`.
    """

    def __init__(self, schema: Schema, make_loaders: MakeLoaders, **options: Any) -> None:
        check_factory(make_loaders)
        super().__init__(schema, **options)
        ensure_installed(schema)
        self._make_loaders = make_loaders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        async with AsyncExitStack() as stack:
            await super().__call__({**scope, _STACK: stack}, receive, send)

    async def get_context(self, request: Request | WebSocket, response: Response | WebSocket) -> dict[str, Any]:
        """The context: `request` and `response` as with Strawberry, and `loaders`."""
        context = await super().get_context(request, response)
        context["loaders"] = await open_loaders(request.scope[_STACK], self._make_loaders, request)
        return context
