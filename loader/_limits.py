"""How many batches may run at once, without a batch ever waiting for itself.

A batch function may load through other loaders. Then its batch waits for theirs, and a limit that both count under
could stop them for ever: the outer one holds the slot that the inner one needs. Two rules prevent it.

1. A slot whose holder waits for another batch is idle, and is lent to a batch that somebody waits for like this: to
   one that the holder itself waits for, or, if no holder at the limit is doing anything, to any. Only when no loan
   is possible does a batch queue. So some batch always runs, and where one limit covers a resource that serves one
   statement at a time (a database session), still only one statement is under way: its holder waits meanwhile.
2. A batch that would wait for itself, directly or through others, gets a `SelfWaitError` at the call.
"""

from __future__ import annotations

from collections import OrderedDict
from contextvars import ContextVar
from typing import TYPE_CHECKING

from loader.errors import SelfWaitError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

current_work: ContextVar[Work | None] = ContextVar("loader.current_work", default=None)
"""The batch whose function is running here, in its own task and those that it starts."""


class Work:
    """What may wait for other work and hold slots: a batch.

    Attributes:
        ended: Whether it will never run again; set once.
        waits_for: The work that its function asked for.
        asked_by: The work whose functions asked for it.
        limits: The limits that it runs under.
    """

    __slots__ = ("asked_by", "ended", "limits", "waits_for")

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits = limits
        self.ended = False
        # Most batches load nothing themselves and are asked for by resolvers only: they share the empty tuple.
        self.waits_for: tuple[Work, ...] = ()
        self.asked_by: tuple[Work, ...] = ()

    def ask_for(self, other: Work, who: object) -> None:
        """Note that this work's function waits for `other`.

        Raises:
            SelfWaitError: If `other` waits for this work, or is it.
        """
        if other in self.waits_for:
            return
        if _reaches(other, self):
            raise SelfWaitError(
                f"{who!r}: the batch function waits for a key of its own batch, directly or through another loader, "
                "and so for itself. Load in it only what its own result is not needed for"
            )
        self.waits_for = (*self.waits_for, other)
        other.asked_by = (*other.asked_by, self)
        for limit in {*self.limits, *other.limits}:
            limit.reconsider(other)

    @property
    def stalled(self) -> bool:
        """Whether its function waits for other work."""
        return any(not other.ended for other in self.waits_for)


def _reaches(work: Work, target: Work) -> bool:
    seen: set[Work] = set()
    todo = [work]
    while todo:
        work = todo.pop()
        if work is target:
            return True
        if work not in seen and not work.ended:
            seen.add(work)
            todo.extend(work.waits_for)
    return False


class Limit:
    """At most `size` batches at once, by the rules of this module."""

    __slots__ = ("_asked", "_holders", "_lenders", "_queue", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._holders: set[Work] = set()
        self._lenders: dict[Work, Work] = {}  # borrower -> the holder whose slot it uses
        self._queue: OrderedDict[Work, Future[None]] = OrderedDict()
        self._asked: dict[Work, None] = {}  # those in the queue that other work waits for

    async def acquire(self, work: Work, loop: AbstractEventLoop) -> None:
        """Wait for a slot, first come, first served.

        Cancellation: Gives up the place in the queue, or the slot if it was granted in the same turn.
        """
        if (not self._queue and self._take(work)) or self._borrow(work):
            return
        granted = self._queue[work] = loop.create_future()
        if work.asked_by:
            self._asked[work] = None
        try:
            await granted
        except BaseException:
            if granted.cancelled():
                self._queue.pop(work, None)
                self._asked.pop(work, None)
            else:
                self.release(work)
            raise

    def release(self, work: Work) -> None:
        """Give back a slot."""
        self._holders.remove(work)
        self._lenders.pop(work, None)
        for borrower, lender in self._lenders.items():
            if lender is work:  # it ended without waiting for all that it had asked for: the slot goes on with it
                del self._lenders[borrower]
                break
        self.reconsider()

    def reconsider(self, asked: Work | None = None) -> None:
        """Grant what can be granted now, after a slot was given back or work has asked for `asked`."""
        if asked is not None and asked in self._queue:
            self._asked[asked] = None
        while self._queue:
            first, granted = next(iter(self._queue.items()))
            if not granted.done() and not self._take(first):
                break
            self._grant(first)
        for work in list(self._asked):
            if not self._queue[work].done() and self._borrow(work):
                self._grant(work)

    def _grant(self, work: Work) -> None:
        self._asked.pop(work, None)
        granted = self._queue.pop(work)
        if not granted.done():  # else it was cancelled, and its task is about to say so
            granted.set_result(None)

    def _take(self, work: Work) -> bool:
        if len(self._holders) - len(self._lenders) >= self.size:
            return False
        self._holders.add(work)
        return True

    def _borrow(self, work: Work) -> bool:
        if not work.asked_by:
            return False
        lending = set(self._lenders.values())
        idle = [holder for holder in self._holders if holder.stalled and holder not in lending]
        if not idle:
            return False
        waiting_for_it = next((holder for holder in idle if _reaches(holder, work)), None)
        nobody_works = len(idle) + len(lending) == len(self._holders)
        lender = waiting_for_it or (idle[0] if nobody_works else None)
        if lender is None:
            return False
        self._holders.add(work)
        self._lenders[work] = lender
        return True


def asking_work() -> Work | None:
    """The batch whose function the caller runs in, if that batch still goes on."""
    work = current_work.get()
    return None if work is None or work.ended else work
