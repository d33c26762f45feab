"""The context getter for FastAPI's `GraphQLRouter`, with the request's loaders in the context."""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from loader.strawberry._factory import open_loaders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from loader import Loaders
    from loader.strawberry._factory import MakeLoaders


def context_getter(make_loaders: MakeLoaders) -> Callable[..., AsyncIterator[dict[str, Loaders]]]:
    """A `context_getter` that puts the request's `Loaders` into the context as `info.context["loaders"]`.

    Loaders are made once for an HTTP request and once for a websocket connection, and closed after the response was
    sent, the stream has ended or the connection is over. Call `loader.strawberry.install` for the schema too.

    Args:
        make_loaders: Makes the loaders: a function, a coroutine function, or an async generator function that yields
            them and then closes what they hold. Its parameters are those of a FastAPI dependency; one without an
            annotation gets the request or websocket.

    Returns:
        A dependency for `GraphQLRouter(schema, context_getter=...)`.
    """

    async def get_context(**arguments: Any) -> AsyncIterator[dict[str, Loaders]]:
        async with AsyncExitStack() as stack:
            yield {"loaders": await open_loaders(stack, make_loaders, **arguments)}

    signature = inspect.signature(make_loaders, eval_str=True)
    get_context.__signature__ = signature.replace(  # type: ignore[attr-defined]  # how inspect is told of one
        parameters=[
            parameter.replace(
                annotation=HTTPConnection if parameter.annotation is parameter.empty else parameter.annotation
            )
            for parameter in signature.parameters.values()
        ],
        return_annotation=inspect.Signature.empty,
    )
    return get_context
