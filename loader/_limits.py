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
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from loader._loops import home_loop
from loader.errors import SelfWaitError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Collection, Iterable, Iterator

    from loader._watching import BatchWatch

current_work: ContextVar[Work | None] = ContextVar("loader.current_work", default=None)
"""The work whose function is running here, in its own task and those that it starts."""


_NOTHING: dict[Work, None] = {}


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
        waits_for: The batches that its function asked for and that have not ended, oldest first.
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
        # Most batches load nothing themselves and are asked for by resolvers only: they share what is empty.
        self.waits_for = _NOTHING
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
        self.waits_for = self.waits_for or {}
        self.waits_for[other] = None
        other.asked_by = (*other.asked_by, self)
        if other.queued_at is not None:
            other.queued_at.note_asked(other)
        self.changed()

    def end(self) -> None:
        """Nobody waits for it any more."""
        self.ended = True
        if self.asked_by:
            for asker in self.asked_by:
                del asker.waits_for[self]
            self.changed()

    def waits(self) -> Iterable[Awaited | Work]:
        """All that it waits for: it goes on when the last of these has come."""
        return chain(self.waits_for, self.awaits)

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
                    todo.extend(limit.held_up())
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


def _next(one: Awaited | Work, *, slots: bool) -> Iterable[Awaited | Work]:
    if not isinstance(one, Work):
        return one._holders()
    return one.waits() if one.queued_at is None or not slots else one.queued_at.holders()


def _ahead(work: Work, *, slots: bool = False) -> Iterator[Awaited | Work]:
    """What `work` waits for, itself first, step by step, so that who has found something need not see the rest.

    Args:
        work: The work.
        slots: Whether who queues for a slot counts as waiting for those who hold one.
    """
    seen: set[Awaited | Work] = set()
    path: list[Iterator[Awaited | Work]] = [iter((work,))]
    while path:
        one = next((one for one in path[-1] if one not in seen), None)
        if one is None:
            path.pop()
        else:
            seen.add(one)
            yield one
            path.append(iter(_next(one, slots=slots)))


def _stuck(work: Work) -> set[Awaited | Work]:
    """All that `work` waits for in whatever way, itself included, if nothing of it can go on; else nothing."""
    stuck: set[Awaited | Work] = set()
    for one in _ahead(work, slots=True):
        if not any(True for _ in _next(one, slots=True)):
            return set()
        stuck.add(one)
    return stuck


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
        _look_for_loans(self.held_up())

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
            waited_for = _stuck(holder)
            return next((work for work in self._asked if work in waited_for and self._still_queues(work)), None)
        forked = False
        for one in _ahead(holder):
            if not isinstance(one, Work):
                forked = forked or len(one._holders()) > 1
            elif one.queued_at is self and self._still_queues(one) and (not forked or needs(holder, one)):
                return one
        return None

    def _still_queues(self, work: Work) -> bool:
        return not self._queue[work].done()  # else it was cancelled, and its task is about to say so


def asking_work() -> Work | None:
    """The work whose function the caller runs in, if that function still goes on."""
    work = current_work.get()
    return None if work is None or work.over else work
