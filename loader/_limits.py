"""How many batches may run at once, without a batch ever waiting for itself.

A batch function may load through other loaders. Then its batch waits for theirs, and a limit that both count under
could stop them for ever: the outer one holds the slot that the inner one needs. Two rules prevent it.

1. A slot is lent to a batch that its holder waits for. What a holder waits for is what its function asked for, what
   that asked for in turn, and, once nothing of all this can go on, the slots that it queues for, which is to say their
   holders and what these wait for. So some batch always runs. And since a holder that lends its slot cannot go on
   before the borrower has ended, a limit of one covers a resource that serves one statement at a time (a database
   session): no two are ever under way.
2. A batch that would wait for itself, directly or through others, gets a `SelfWaitError` at the call.

Who waits for whom is known to `loader._waits`: also what waits through triggers, flights and batchers.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from loader._loops import home_loop
from loader._waits import Work, ahead, all_stuck, look_for_loans, needs

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


class Limit:
    """At most `size` batches at once, by the rules of this module."""

    __slots__ = ("_asked", "_holders", "_lenders", "_linked", "_loans", "_loop", "_queue", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._loop: AbstractEventLoop | None = None
        self._holders: set[Work] = set()
        self._lenders: dict[Work, Work] = {}  # borrower -> the holder whose slot it uses
        self._loans: dict[Work, Work] = {}  # the same the other way round
        self._queue: OrderedDict[Work, Future[None]] = OrderedDict()
        self._asked: dict[Work, None] = {}  # those in the queue that other work waits for
        self._linked: dict[Work, None] = {}  # these, and those who hold a slot of another limit

    def __repr__(self) -> str:
        return f"<limit of {self.size} concurrent batches>"

    async def acquire(self, work: Work, loop: AbstractEventLoop) -> None:
        """Wait for a slot, first come, first served.

        Raises:
            LoaderLoopError: If slots are held on another loop that is still open.

        Cancellation: Gives up the place in the queue, or the slot if it was granted in the same turn.
        """
        if loop is not self._loop:
            self._loop = home_loop(self._loop if self._holders else None, self)
            # What held a slot on a loop that is closed never gives it back.
            for store in (self._holders, self._lenders, self._loans, self._queue, self._asked, self._linked):
                store.clear()
        if not self._queue and self._take(work):
            return
        granted = self._queue[work] = loop.create_future()
        work.queued_at = self
        if self in work.limits[1:]:
            self._linked[work] = None
        if work.asked_by:
            self.note_asked(work)
            self.reconsider()
        if not granted.done():
            work.changed()
        if work.watch is not None and not granted.done():
            work.watch.queued(self._holders)
        try:
            await granted
        except BaseException:
            if granted.cancelled():
                self._leave_queue(work)
            else:
                self.release(work)
            raise

    def release(self, work: Work) -> None:
        """Give back a slot."""
        if work not in self._holders:
            return  # its loop is closed, and all that was held there is forgotten
        self._holders.remove(work)
        lender = self._lenders.pop(work, None)
        if lender is not None:
            del self._loans[lender]
        borrower = self._loans.pop(work, None)
        if borrower is not None:  # it ended without waiting for all that it had asked for: the slot goes on with it
            del self._lenders[borrower]
            if lender is not None:  # and was itself borrowed
                self._lend(lender, borrower)
        self.reconsider()
        # One that went on is gone: those that still queue here may now wait for nothing that goes on.
        look_for_loans(self.held_up())

    def held_by(self, work: Work) -> bool:
        """Whether `work` has a slot, its own or a borrowed one."""
        return work in self._holders

    def holders(self) -> set[Work]:
        """Who has a slot."""
        return self._holders

    def held_up(self) -> list[Work]:
        """Who waits for a slot and keeps others waiting, unless some holder plainly goes on."""
        if all(holder.queued_at is not None or any(True for _ in holder.waits()) for holder in self._holders):
            return list(self._linked)
        return []

    def note_asked(self, queued: Work) -> None:
        """Note that other work waits for one that queues here: it may borrow a slot."""
        self._asked[queued] = self._linked[queued] = None

    def reconsider(self, *, stuck: bool = False) -> None:
        """Grant what can be granted now, and if `stuck` is given, to whom only a loan helps to go on."""
        while self._queue:
            first, granted = next(iter(self._queue.items()))
            if not granted.done() and not self._take(first):
                break
            self._grant(first)
        if self._asked:
            for holder in [holder for holder in self._holders if holder not in self._loans]:
                work = self._borrower(holder, stuck=stuck)
                if work is not None:
                    self._holders.add(work)
                    self._lend(holder, work)
                    self._grant(work)

    def _grant(self, work: Work) -> None:
        granted = self._queue[work]
        self._leave_queue(work)
        if not granted.done():  # else it was cancelled, and its task is about to say so
            granted.set_result(None)

    def _leave_queue(self, work: Work) -> None:
        self._queue.pop(work, None)
        self._asked.pop(work, None)
        self._linked.pop(work, None)
        work.queued_at = None

    def _take(self, work: Work) -> bool:
        if len(self._holders) - len(self._lenders) >= self.size:
            return False
        self._holders.add(work)
        return True

    def _lend(self, holder: Work, borrower: Work) -> None:
        self._lenders[borrower] = holder
        self._loans[holder] = borrower

    def _borrower(self, holder: Work, *, stuck: bool) -> Work | None:
        """Who may have the slot of `holder` until it can go on: the first one found that it waits for."""
        if stuck:
            held_up = all_stuck(holder)
            asked = self._asked if held_up else ()
            return next((one for one in asked if one in held_up and self._still_queues(one)), None)
        forked = False
        for one in ahead(holder):
            if not isinstance(one, Work):
                forked = forked or len(one._holders()) > 1
            elif one.queued_at is self and self._still_queues(one) and (not forked or needs(holder, one)):
                return one
        return None

    def _still_queues(self, work: Work) -> bool:
        return not self._queue[work].done()  # else it was cancelled, and its task is about to say so
