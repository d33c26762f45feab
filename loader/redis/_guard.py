"""Calls of a server that may be down, slow, full or out of its mind: a bounded time once, then none for a while."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, final

from loader import LoaderClosedError

if TYPE_CHECKING:
    from asyncio import Task, TimerHandle
    from collections.abc import Awaitable, Callable
    from types import TracebackType

T = TypeVar("T")

_log = logging.getLogger("loader")


class BreakerState(Enum):
    """Whether a server is called."""

    CLOSED = "closed"  # it is
    OPEN = "open"  # it failed a moment ago, and is left alone
    HALF_OPEN = "half-open"  # it was left alone for long enough: one call finds out, in the background


@final
class Guard:
    """Calls a server as long as it answers.

    A call that fails, or takes too long, opens the breaker: what comes next fails at once. After a while one call, in
    a task of its own, finds out whether the server is back; nobody waits for that.

    Args:
        timeout: How many seconds a call may take.
        retry_after: How many seconds the server is left alone.
        probe: That one call; it also makes up for what could not be done meanwhile.
        owes: Whether there is something to be made up for, so that somebody has to find out even if nobody asks.
        who: Whose server it is: what the log says when it fails, once until it is back.
    """

    def __init__(
        self,
        *,
        timeout: float,
        retry_after: float,
        probe: Callable[[], Awaitable[object]],
        owes: Callable[[], bool],
        who: object,
    ) -> None:
        self.timeout: float = timeout
        self.state: BreakerState = BreakerState.CLOSED
        self.failures: int = 0
        self.opened: int = 0
        self.last_error: Exception | None = None
        self._retry_after = retry_after
        self._probe = probe
        self._owes = owes
        self._who = who
        self._warned = False
        self._retry_at = 0.0
        self._closed = False
        self._probing: Task[None] | None = None
        self._timer: TimerHandle | None = None

    async def call(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """What `work` returns; None if the server is left alone, or it failed now."""
        if self.state is BreakerState.CLOSED:
            return await self.attempt(work)
        self.look_again()
        return None

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The same, whether the server is left alone or not."""
        if self._closed:
            return None
        try:
            async with asyncio.timeout(self.timeout):
                return await work()
        except Exception as error:  # noqa: BLE001  # a server that is none can make a client raise anything
            self._failed(error)
            return None

    def suspect(self) -> None:
        """Call the server no more until it was found to be there."""
        self.state = BreakerState.OPEN
        self._retry_at = asyncio.get_running_loop().time()
        self.look_again()

    async def aclose(self) -> None:
        """Call the server no more."""
        self._closed = True
        self._disarm()
        if self._probing is not None:
            await end(self._probing)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = error
        if self.state is BreakerState.CLOSED:
            self.opened += 1
        self.state = BreakerState.OPEN
        if not self._warned:
            self._warned = True
            _log.warning("%r: the server failed, and is not used until it is back: %r", self._who, error)
        self._retry_at = asyncio.get_running_loop().time() + self._retry_after
        self.look_again()

    def look_again(self) -> None:
        """Find out whether the server is back, if it was left alone for long enough; else later, if that matters."""
        if self.state is not BreakerState.OPEN or self._closed:
            return
        loop = asyncio.get_running_loop()
        self._disarm()
        if loop.time() >= self._retry_at:
            self.state = BreakerState.HALF_OPEN
            # Not in the context of whoever asks just now: this is nobody's request.
            self._probing = Context().run(loop.create_task, self._find_out())
        elif self._owes():
            self._timer = loop.call_at(self._retry_at, self.look_again, context=Context())

    async def _find_out(self) -> None:
        async def probe() -> bool:
            await self._probe()
            return True

        try:
            if await self.attempt(probe) and self.state is BreakerState.HALF_OPEN:
                self.state = BreakerState.CLOSED
                self._warned = False
        finally:
            if self.state is BreakerState.HALF_OPEN:  # cancelled
                self.state = BreakerState.OPEN

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Guarded(ABC):
    """What calls a server through a guard, over a client that may be its own, until it is closed."""

    def __init__(self, client: Any, *, timeout: float, retry_after: float) -> None:
        self._client = client
        self._owns_client = False
        self._closed = False
        self._guard = Guard(
            timeout=timeout, retry_after=retry_after, probe=self._make_up, owes=self._is_owing, who=self
        )

    @abstractmethod
    async def _make_up(self) -> None:
        """Call the server, which may be back, and make up for what could not be done meanwhile."""

    @abstractmethod
    def _is_owing(self) -> bool:
        """Whether there is something to be made up for."""

    @abstractmethod
    async def aclose(self) -> None:
        """End it; the last step is `_let_go`."""

    async def _let_go(self) -> None:
        """Call the server no more, and close the client if nobody else has it."""
        await self._guard.aclose()
        if self._owns_client:
            await self._client.aclose()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise LoaderClosedError(f"{self!r} was closed: make a new one")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()


async def end(task: Task[None]) -> None:
    """Cancel a task until it has ended: a client may take the first cancellation for a time-out of its own."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
