"""Who waits for whom, so that nothing ever waits for itself.

Work is a batch of a loader, a run of a trigger, a flight, or a batch of a `Batcher`. What its function asks a loader
for, and what it waits for besides, is known here: a wait that would close a circle is refused, through whatever it
leads, and `loader._limits` lends the slots of what waits.
"""

from __future__ import annotations

from contextvars import ContextVar
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from loader.errors import SelfWaitError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from loader._limits import Limit
    from loader._watching import BatchWatch

current_work: ContextVar[Work | None] = ContextVar("loader.current_work", default=None)
"""The work whose function is running here, in its own task and those that it starts."""

under_way: set[Work] = set()
"""All work whose function is running anywhere. While there is none, nobody has to ask what is running here: to look for
a context variable that is not set takes 80 ns, a tenth of what a new key costs."""


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

    def begin(self) -> None:
        """Its function runs from here on, in this task and those that it starts."""
        current_work.set(self)
        under_way.add(self)

    def finish(self) -> None:
        """Its function has ended."""
        self.over = True
        under_way.discard(self)

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
        look_for_loans([self])


def look_for_loans(todo: list[Work]) -> None:
    """Look for loans wherever somebody waits for one of `todo`, directly, through others, or for a slot."""
    limits: dict[Limit, None] = {}
    seen: set[Work] = set()
    while todo:
        work = todo.pop()
        if work not in seen:
            seen.add(work)
            todo.extend(work.askers())
            for limit in work.limits:
                if limit not in limits and limit.held_by(work):
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


def _after(one: Awaited | Work, *, slots: bool) -> Iterable[Awaited | Work]:
    if not isinstance(one, Work):
        return one._holders()
    return one.waits() if one.queued_at is None or not slots else one.queued_at.holders()


def ahead(work: Work, *, slots: bool = False) -> Iterator[Awaited | Work]:
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
            path.append(iter(_after(one, slots=slots)))


def all_stuck(work: Work) -> set[Awaited | Work]:
    """All that `work` waits for in whatever way, itself included, if nothing of it can go on; else nothing."""
    found: set[Awaited | Work] = set()
    for one in ahead(work, slots=True):
        if not any(True for _ in _after(one, slots=True)):
            return set()
        found.add(one)
    return found


def asking_work() -> Work | None:
    """The work whose function the caller runs in, if that function still goes on."""
    work = current_work.get()
    return None if work is None or work.over else work
