"""How many batches may run at once, without any work ever waiting for itself.

A batch function may load through other loaders. Then its batch waits for theirs, and a limit that both count under
could stop them for ever: the outer one holds the slot that the inner one needs. Two rules prevent it.

1. A slot is lent to a batch that its holder waits for. What a holder waits for is what its function asked for, what
   that asked for in turn, and, once nothing of all this can go on, the slots that it queues for, which is to say their
   holders and what these wait for. So some batch always runs. And since a holder that lends its slot cannot go on
   before the borrower has ended, a limit of one covers a resource that serves one statement at a time (a database
   session): no two are ever under way.
2. Work that would wait for itself, directly or through others, gets a `SelfWaitError` at the call.

Work is a batch, a run of a trigger, a flight, or a batch of a `Batcher`: a circle may lead through all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from loader._loops import home_loop
from loader.errors import SelfWaitError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Collection, Iterable

    from loader._watching import BatchWatch

current_work: ContextVar[Work | None] = ContextVar("loader.current_work", default=None)
"""The work whose function is running here, in its own task and those that it starts."""


class Awaited(Protocol):
    """What work waits for besides batches of a loader: a debouncer, a coalescer, a flight, a `Batcher`."""

    @property
    def _awaited_by(self) -> list[Work]:
        """The work that waits for it, once for each wait."""
        ...

    def _holders(self) -> Collection[Work]:
        """All the work of which one has to end before any other may start; none while a slot is free."""
        ...


class Work:
    """What may wait for other work and hold slots.

    Attributes:
        ended: Whether nobody waits for it any more: everybody has an answer. Set once.
        over: Whether its function has ended, which may be later (one that takes no notice of its time-out).
        waits_for: The batches that its function asked for.
        awaits: What else its function waits for at present, once for each wait: written by `waiting_for` only.
        asked_by: The work whose functions asked for it.
        limits: The limits that it runs under.
        queued_at: The limit that it has no slot of yet, and must have one of next.
        watch: Its record, None if nobody observes it.
    """

    __slots__ = ("asked_by", "awaits", "ended", "limits", "over", "queued_at", "waits_for", "watch")

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits = limits
        self.watch: BatchWatch | None = None
        self.ended = False
        self.over = False
        self.queued_at: Limit | None = None
        # Most batches load nothing themselves and are asked for by resolvers only: they share the empty tuple.
        self.waits_for: tuple[Work, ...] = ()
        self.asked_by: tuple[Work, ...] = ()
        self.awaits: tuple[Awaited | Work, ...] = ()

    def __str__(self) -> str:
        return "the batch function"

    def ask_for(self, other: Work, who: object) -> None:
        """Note that this work's function waits for `other`.

        Raises:
            SelfWaitError: If `other` waits for this work, or is it.
        """
        if other in self.waits_for:
            return
        if needs(other, self):
            raise SelfWaitError(
                f"{who!r}: {self} waits for a key that waits for it in turn, directly or through others: that would "
                "never end. Load in it only what its own result is not needed for"
            )
        self.waits_for = (*(work for work in self.waits_for if not work.ended), other)
        other.asked_by = (*other.asked_by, self)
        if other.queued_at is not None:
            other.queued_at.note_asked(other)
        self.changed()

    def waits(self) -> Iterable[Awaited | Work]:
        """All that it waits for: it goes on when the last of these has come."""
        return (*(other for other in self.waits_for if not other.ended), *self.awaits)

    def askers(self) -> Iterable[Work]:
        """The work that waits for it, and maybe some that waits for work beside it."""
        return self.asked_by

    def changed(self) -> None:
        """Look for loans wherever somebody waits for this work, which goes on differently, or no more."""
        _look_for_loans([self])


def _look_for_loans(todo: list[Work]) -> None:
    """Look for loans wherever somebody waits for one of `todo`, directly, through others, or for a slot."""
    limits: dict[Limit, None] = {}
    seen: set[Work] = set()
    while todo:
        work = todo.pop()
        if work not in seen:
            seen.add(work)
            todo.extend(work.askers())
            for limit in work.limits:
                if limit.held_by(work):
                    limits[limit] = None
                    todo.extend(limit.queue())
    for limit in limits:
        limit.reconsider()
    for limit in limits:  # only now is it known that nothing goes on
        limit.reconsider(stuck=True)


class Wait(Work):
    """What somebody waits for who needs several things of `home`: no work itself, but it ends with the last of these.

    Args:
        home: What all that is part of.
        ahead: What has not come yet.
    """

    __slots__ = ("_ahead", "_home")

    def __init__(self, home: Awaited, ahead: Callable[[], Iterable[Awaited | Work]]) -> None:
        super().__init__(())
        self._home = home
        self._ahead = ahead

    def __repr__(self) -> str:
        return repr(self._home)

    @property
    def _awaited_by(self) -> list[Work]:
        return self._home._awaited_by

    def waits(self) -> Iterable[Awaited | Work]:
        return self._ahead()


def needs(awaited: Awaited | Work, target: Work) -> bool:
    """Whether `awaited` is `target`, or cannot come before that has ended."""
    reached: dict[Awaited | Work, Collection[Awaited | Work]] = {}
    todo = [awaited]
    while todo:
        one = todo.pop()
        if one not in reached:
            reached[one] = () if one is target else tuple(one.waits() if isinstance(one, Work) else one._holders())
            todo.extend(reached[one])
    if target not in reached:
        return False
    # All that was reached is taken to need it, until nothing more proves not to: work goes on when all that it waits
    # for has come, and a place is free as soon as one of its holders has ended.
    found = True
    while found:
        found = False
        for one, others in reversed(list(reached.items())):
            held_up = any if isinstance(one, Work) else all
            if one is not target and not (others and held_up(other in reached for other in others)):
                del reached[one]
                found = True
    return awaited in reached


def _stuck(work: Work) -> set[Work]:
    """All that `work` waits for in whatever way, itself included, if nothing of it can go on; else nothing."""
    seen: set[Work] = set()
    todo = [work]
    while todo:
        work = todo.pop()
        if work in seen:
            continue
        seen.add(work)
        if work.queued_at is not None:
            todo.extend(work.queued_at.holders())
            continue
        ahead = [holder for one in work.waits() for holder in ((one,) if isinstance(one, Work) else one._holders())]
        if not ahead:
            return set()
        todo.extend(ahead)
    return seen


class Limit:
    """At most `size` batches at once, by the rules of this module."""

    __slots__ = ("_asked", "_holders", "_lenders", "_loop", "_queue", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._loop: AbstractEventLoop | None = None
        self._holders: set[Work] = set()
        self._lenders: dict[Work, Work] = {}  # borrower -> the holder whose slot it uses
        self._queue: OrderedDict[Work, Future[None]] = OrderedDict()
        self._asked: dict[Work, None] = {}  # those in the queue that other work waits for

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
            for store in (self._holders, self._lenders, self._queue, self._asked):
                store.clear()
        if not self._queue and self._take(work):
            return
        granted = self._queue[work] = loop.create_future()
        work.queued_at = self
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
        borrower = next((borrower for borrower, its_lender in self._lenders.items() if its_lender is work), None)
        if borrower is not None:  # it ended without waiting for all that it had asked for: the slot goes on with it
            del self._lenders[borrower]
            if lender is not None:  # and was itself borrowed
                self._lenders[borrower] = lender
        self.reconsider()
        # One that went on is gone: those that still queue here may now wait for nothing that goes on.
        _look_for_loans([queued for queued in self._queue if queued.asked_by or len(queued.limits) > 1])

    def held_by(self, work: Work) -> bool:
        """Whether `work` has a slot, its own or a borrowed one."""
        return work in self._holders

    def holders(self) -> set[Work]:
        """Who has a slot."""
        return self._holders

    def queue(self) -> Iterable[Work]:
        """Who waits for a slot."""
        return self._queue

    def note_asked(self, queued: Work) -> None:
        """Note that other work waits for one that queues here: it may borrow a slot."""
        self._asked[queued] = None

    def reconsider(self, *, stuck: bool = False) -> None:
        """Grant what can be granted now, and if `stuck` is given, to whom only a loan helps to go on."""
        while self._queue:
            first, granted = next(iter(self._queue.items()))
            if not granted.done() and not self._take(first):
                break
            self._grant(first)
        for work in list(self._asked):
            if not self._queue[work].done() and self._borrow(work, stuck=stuck):
                self._grant(work)

    def _grant(self, work: Work) -> None:
        granted = self._queue[work]
        self._leave_queue(work)
        if not granted.done():  # else it was cancelled, and its task is about to say so
            granted.set_result(None)

    def _leave_queue(self, work: Work) -> None:
        self._queue.pop(work, None)
        self._asked.pop(work, None)
        work.queued_at = None

    def _take(self, work: Work) -> bool:
        if len(self._holders) - len(self._lenders) >= self.size:
            return False
        self._holders.add(work)
        return True

    def _borrow(self, work: Work, *, stuck: bool) -> bool:
        lending = set(self._lenders.values())
        for holder in self._holders:
            if holder not in lending and (work in _stuck(holder) if stuck else needs(holder, work)):
                self._holders.add(work)
                self._lenders[work] = holder
                return True
        return False


def asking_work() -> Work | None:
    """The work whose function the caller runs in, if that function still goes on."""
    work = current_work.get()
    return None if work is None or work.over else work
