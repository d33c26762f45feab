"""The operations as server-sent events.

A stream has a position, the number of the last operation that it sent, and no queue: a client that is slow, or comes
back with `Last-Event-ID`, gets what is newer and still kept. So nobody makes memory grow.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from loader.inspector._store import Store

PACE = 0.25  # seconds at least between two events: however many operations end, a stream costs little
LOOK = 0.5  # seconds after which it looks whether the server wants to end
HEARTBEAT = 5.0  # seconds after which something is sent, so that nothing in between takes it for dead
LIFE = 20.0  # seconds after which it ends, and the client comes back: a server that says nothing ends in that time
RETRY = 500  # milliseconds until a client comes back


class Live:
    """The streams of an inspector."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._closed = False
        self._streams: dict[asyncio.Future[None], Callable[[], None]] = {}  # how to wake each

    def close(self) -> None:
        """Let every stream end."""
        self._closed = True
        for wake in tuple(self._streams.values()):
            wake()

    async def ended(self) -> None:
        """Wait until the streams on this loop have ended, for a second at most."""
        here = [stream for stream in self._streams if stream.get_loop() is asyncio.get_running_loop()]
        if here:
            await asyncio.wait(here, timeout=1)

    async def stream(self, last_id: str) -> AsyncIterator[str]:
        """Events with the operations after the one with an id, or with all if it is not of this process."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        run, _, number = last_id.rpartition("-")
        known = run == self._store.run and number.isdecimal() and len(number) < 20
        position, reset = (int(number) if known else 0), not known
        pending = False

        def tell() -> None:  # from any thread
            nonlocal pending
            if not pending and not loop.is_closed():
                pending = True
                loop.call_soon_threadsafe(news.set)

        stream = loop.create_future()
        self._streams[stream] = tell
        stop = self._store.on_change(tell)
        try:
            yield f"retry: {RETRY}\n\n"
            until, heartbeat = loop.time() + LIFE, loop.time() + HEARTBEAT
            while not (self._closed or _server_is_ending() or loop.time() >= until):
                pending = False
                news.clear()
                operations = self._store.after(position)
                if operations or reset:
                    position = operations[-1].number if operations else 0
                    yield self._event(operations, position, reset=reset)
                    reset = False
                    heartbeat = loop.time() + HEARTBEAT
                    await asyncio.sleep(PACE)
                elif loop.time() >= heartbeat:
                    yield ": nothing new\n\n"
                    heartbeat = loop.time() + HEARTBEAT
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK):
                        await news.wait()
        finally:
            stop()
            del self._streams[stream]
            stream.set_result(None)

    def _event(self, operations: list[Any], position: int, *, reset: bool) -> str:
        kept = self._store.after(0)
        data = {
            "reset": reset,
            "oldest": kept[0].number if kept else 0,
            "operations": [operation.summary() for operation in operations],
        }
        # JSON escapes line breaks, which would end the event.
        return f"id: {self._store.run}-{position}\ndata: {json.dumps(data)}\n\n"


def _server_is_ending() -> bool:
    """Whether a uvicorn server in this process was told to end.

    It waits for every response to end, and tells none: a page left open would keep it from ending or reloading. While
    it serves, it is the handler of the signal. Of other servers nothing is known here; `LIFE` is for them.
    """
    handler = signal.getsignal(signal.SIGTERM)
    return bool(getattr(getattr(handler, "__self__", None), "should_exit", False))
