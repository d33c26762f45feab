"""The loaders of one request: made by the user's function, closed after the request whatever happened."""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from loader import Loaders

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from types import TracebackType

    MakeLoaders = Callable[..., Loaders | Awaitable[Loaders] | AsyncIterator[Loaders]]
    """What the context factories take: a function, a coroutine function or an async generator function."""


def check_factory(make_loaders: object) -> None:
    """Refuse what cannot make loaders.

    Raises:
        TypeError: If it cannot be called, or is a generator function that is not `async`.
    """
    if not callable(make_loaders):
        raise TypeError(f"make_loaders is a function that makes the loaders of a request, not {make_loaders!r}")
    if inspect.isgeneratorfunction(make_loaders):
        raise TypeError(f"make_loaders yields, so it has to be async: make {make_loaders!r} an `async def`")


async def open_loaders(stack: AsyncExitStack, make_loaders: MakeLoaders, *arguments: Any, **named: Any) -> Loaders:
    """Make the loaders of a request; leaving `stack` ends their batches, then closes what they hold.

    Raises:
        TypeError: If `make_loaders` gives anything but a `Loaders`, or as a generator does not yield once.
    """
    made: Any = make_loaders(*arguments, **named)
    if inspect.isasyncgen(made):
        made = await stack.enter_async_context(_Yielded(made))
    elif inspect.isawaitable(made):
        made = await made
    if not isinstance(made, Loaders):
        raise TypeError(
            f"make_loaders must return, or yield once as an async generator, an instance of a subclass of Loaders, "
            f"not {made!r}"
        )
    stack.push_async_callback(_close, made)
    return made


class _Yielded:
    """What an async generator yields, which it has to do once; it goes on when that is not used any more."""

    def __init__(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generator = generator
        self._manager = asynccontextmanager(lambda: generator)()

    async def __aenter__(self) -> Any:
        try:
            return await anext(self._generator)
        except StopAsyncIteration:
            raise TypeError("make_loaders ended without a yield; it must yield the loaders, once") from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        if error is not None:
            return await self._manager.__aexit__(kind, error, where)
        async for again in self._generator:
            await self._generator.aclose()
            raise TypeError(f"make_loaders yielded a second time, {again!r}; it must yield the loaders, once")
        return None


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
