"""The loaders of one request: made by the user's function, closed after the request whatever happened."""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from loader import Loaders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    MakeLoaders = Callable[..., Loaders | Awaitable[Loaders] | AsyncIterator[Loaders]]
    """What the context factories take: a function, a coroutine function or an async generator function."""


def check_factory(make_loaders: object) -> None:
    """Refuse what cannot make loaders.

    Raises:
        TypeError: If it cannot be called.
    """
    if not callable(make_loaders):
        raise TypeError(f"make_loaders is a function that makes the loaders of a request, not {make_loaders!r}")


async def open_loaders(stack: AsyncExitStack, make_loaders: MakeLoaders, *arguments: Any, **named: Any) -> Loaders:
    """Make the loaders of a request; leaving `stack` ends their batches, then closes what they hold.

    Raises:
        TypeError: If `make_loaders` gives anything but a `Loaders`.
    """
    made: Any = make_loaders(*arguments, **named)
    if inspect.isasyncgen(made):
        made = await stack.enter_async_context(asynccontextmanager(lambda: made)())
    elif inspect.isawaitable(made):
        made = await made
    if not isinstance(made, Loaders):
        raise TypeError(
            f"make_loaders must return, or yield once as an async generator, an instance of a subclass of Loaders, "
            f"not {made!r}"
        )
    stack.push_async_callback(_close, made)
    return made


async def _close(loaders: Loaders) -> None:
    """Close the loaders, and wait for their batches even when cancelled: what these work with is closed next."""
    cancelled: CancelledError | None = None
    while True:
        try:
            await loaders.aclose()
            break
        except CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
