"""SingleFlight: one call for all who ask for the same thing at the same time."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, final

from loader._loops import home_loop
from loader._waits import asking_work
from loader._work import Call, capture_context, check_function, fallback_report, name_of, waiting_for
from loader.errors import SelfWaitError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable, Hashable

    from loader._waits import Work

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class SingleFlight:
    """Joins calls for the same key: whoever asks while a call is under way gets the result of that call.

    It remembers nothing: a call that comes after the end starts anew. What a joined call read may be older than the
    question; where that matters, `Coalescer.request()` waits for a run that starts afterwards.

    The function runs in a task of its own, in a copy of the context in which the `SingleFlight` was made. It goes on
    as long as anybody waits for it; when the last caller is cancelled, so is the function.

    Calls that wait for each other in a circle get a SelfWaitError, also through a `DataLoader`, a `Coalescer`, a
    `Batcher` or the like.

    Examples:
        >>> import asyncio
        >>> from loader import SingleFlight
        >>> async def main() -> None:
        ...     async def fetch(airport: str) -> str:
        ...         print("fetching", airport)
        ...         await asyncio.sleep(0.1)
        ...         return airport.lower()
        ...
        ...     flights = SingleFlight()
        ...     print(await asyncio.gather(*(flights.do("JFK", fetch, "JFK") for _ in range(3))))
        >>> asyncio.run(main())
        fetching JFK
        ['jfk', 'jfk', 'jfk']
    """

    def __init__(self) -> None:
        self._context = capture_context()
        self._loop: AbstractEventLoop | None = None
        # An entry is removed by whoever ends its flight: its own end, its last caller, or `forget`.
        self._flights: dict[Hashable, _Flight] = {}

    async def do(self, key: Hashable, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """The result of `fn(*args)`, or of the call for the same key that is under way.

        Args:
            key: What makes two calls the same. The function and its arguments do not.
            fn: The function to call if no call is under way: `async def`, or anything that returns an awaitable.
            args: Its arguments.

        Returns:
            What the function returned; the same object for all callers.

        Raises:
            Exception: Whatever the function raised; the same object for all callers.
            RunCancelledError: If the function was cancelled, though this caller was not.
            LoaderLoopError: If the call comes from another event loop than the calls before.
            SelfWaitError: If the call comes from inside the function that it would wait for, or would start anew after
                that was cancelled.
            TypeError: If the key is not hashable, or `fn` is not callable, a generator function, or returns
                nothing that can be awaited.

        Cancellation:
            The other callers go on. The last one to be cancelled takes the function with it, and the next call
            for the key starts anew at once.
        """
        loop = self._home()
        flight = self._flights.get(key)
        starts = flight is None or flight.landed
        if flight is None or starts:
            check_function("SingleFlight", fn)
            self._refuse_to_revive(key)
            flight = self._flights[key] = _Flight(self, key, fn, loop)
        work: Call[T] = flight.work
        with waiting_for(flight):
            if starts:
                # Not before its entry is there and our wait is known: an eager task runs the function at once.
                work.start(self._context, fn, *args, then=flight.land)
            return await work.result()

    def forget(self, key: Hashable) -> bool:
        """Have the next call for `key` start anew, even if one is under way; its callers still get its result.

        Returns:
            Whether a call was under way.
        """
        return self._flights.pop(key, None) is not None

    def _refuse_to_revive(self, key: Hashable) -> None:
        """Refuse to start a call anew from inside of one that was cancelled.

        Calls that ask for each other in a circle would otherwise go on without a caller: whenever the cancellation has
        got to one of them, the next one has started it anew.
        """
        work = asking_work()
        while work is not None and isinstance(flight := getattr(work, "owner", None), _Flight):
            if flight.cut and flight._home is self and flight._key == key:
                shown = reprlib.repr(key)
                raise SelfWaitError(f"{flight!r} was cancelled, and asks for {shown} again, directly or through others")
            work = flight.asked_by

    def __repr__(self) -> str:
        return f"<SingleFlight: {len(self._flights)} under way>"

    def _home(self) -> AbstractEventLoop:
        loop = home_loop(self._loop, self)
        if loop is not self._loop:
            self._loop = loop
            self._flights.clear()  # those of a loop that is closed will never land
        return loop


class _Flight:
    """A call under way: the owner of its work, and what may become of its entry.

    Attributes:
        asked_by: Inside of what it was started, if anything.
        cut: Whether its last caller has left it.
        work: The call.
    """

    __slots__ = ("_awaited_by", "_fn", "_home", "_key", "_loop", "asked_by", "cut", "work")

    def __init__(
        self, home: SingleFlight, key: Hashable, fn: Callable[..., Awaitable[Any]], loop: AbstractEventLoop
    ) -> None:
        self.asked_by: Work | None = asking_work()
        self.cut = False
        self.work: Call[Any] = Call(self, loop)
        self._awaited_by: list[Work] = []
        self._home = home
        self._key = key
        self._fn = fn
        self._loop = loop

    def _holders(self) -> tuple[Call[Any]]:
        return (self.work,)

    @property
    def landed(self) -> bool:
        """Whether the call has ended, though its end may not have been taken notice of yet."""
        return self.work.task is not None and self.work.task.done()

    def land(self, work: Call[Any]) -> None:
        if not self.cut:
            self.asked_by = None  # or calls that go on in each other's background would never be freed
        self._leave()
        self._left_alone(work)

    def _left_alone(self, work: Call[Any]) -> None:
        if not work.ended:
            # In one step, so that nobody joins a call that is being cancelled.
            self._leave()
            self.cut = True
            work.cut_short()
        elif (error := work.take_unheard()) is not None:
            fallback_report(self._loop, f"{self!r} failed, and nobody waited for it any more", error)

    def _leave(self) -> None:
        if self._home._flights.get(self._key) is self:
            del self._home._flights[self._key]

    def __repr__(self) -> str:
        return f"<SingleFlight call of {name_of(self._fn)} for {reprlib.repr(self._key)}>"  # which never fails
