"""The context getter for FastAPI's `GraphQLRouter`, with the request's loaders in the context."""

from __future__ import annotations

from contextlib import AsyncExitStack
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from fastapi.dependencies.utils import get_typed_signature
from starlette.requests import HTTPConnection

from loader.strawberry._factory import check_factory, open_loaders

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
            them and then closes what they hold. Its parameters are those of a FastAPI dependency; one with neither
            an annotation nor a default gets the request or websocket.

    Returns:
        A dependency for `GraphQLRouter(schema, context_getter=...)`.

    Raises:
        TypeError: If `make_loaders` cannot be called, is a generator function that is not `async`, or has a parameter
            that cannot be given by name.
    """
    check_factory(make_loaders)
    parameters = get_typed_signature(make_loaders).parameters.values()
    if unnamed := [parameter.name for parameter in parameters if parameter.kind is Parameter.POSITIONAL_ONLY]:
        raise TypeError(f"make_loaders gets its parameters by name, so {unnamed[0]!r} must not be positional-only")

    async def get_context(**arguments: Any) -> AsyncIterator[dict[str, Loaders]]:
        async with AsyncExitStack() as stack:
            yield {"loaders": await open_loaders(stack, make_loaders, **arguments)}

    # How inspect is told of a signature.
    get_context.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            parameter.replace(annotation=HTTPConnection) if _is_bare(parameter) else parameter
            for parameter in parameters
            if parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        ]
    )
    return get_context


def _is_bare(parameter: Parameter) -> bool:
    return parameter.annotation is Parameter.empty and parameter.default is Parameter.empty
