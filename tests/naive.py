"""A naive DataLoader to hold the real one against: what each caller may get, and when each batch may leave.

It knows nothing of tasks, futures and turns. It is told what is asked of the loader (`ask`, `prime`, `clear`, ...)
and what the batch function does (`started`, `answered`, `failed`), and says from that what each caller gets. Whatever
contradicts it is put down in `faults`, since an exception in a batch function would only be one more failing batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loader import (
    BatchCancelledError,
    LoaderClosedError,
    LoaderOverloadedError,
    LoaderTimeoutError,
    Settle,
)

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterable, Mapping

A_MOMENT = 1e-6  # less than this apart, two times are the same


@dataclass(frozen=True)
class Raises:
    """An outcome: an exception of this kind, and of this identity if the test made it."""

    kind: type[BaseException]
    error: BaseException | None = None
    quiet: bool = False  # nobody need look at it: it comes of the callers' own end

    def fits(self, error: object) -> bool:
        return error is self.error if self.error is not None else type(error) is self.kind


@dataclass(frozen=True)
class OneOf:
    """An outcome: one of several exceptions that came at once."""

    choices: tuple[Raises, ...]

    @property
    def quiet(self) -> bool:
        return all(choice.quiet for choice in self.choices)

    def fits(self, error: object) -> bool:
        return any(choice.fits(error) for choice in self.choices)


def same(outcome: object, result: object) -> bool:
    """Whether a value or an exception that the loader gave is what the model said."""
    if isinstance(outcome, Raises | OneOf):
        return outcome.fits(result)
    if isinstance(outcome, list):
        return isinstance(result, list) and len(outcome) == len(result) and all(map(same, outcome, result))
    return bool(result == outcome)


@dataclass(eq=False)
class Caller:
    """Who called `load` (one key) or `load_many`, and what it must get: `UNKNOWN` as long as it must wait."""

    keys: list[Any]
    many: bool = False
    return_exceptions: bool = False
    found: dict[Any, Any] = field(default_factory=dict)
    outcome: Any = field(default_factory=lambda: UNKNOWN)
    future: Future[Any] | None = None
    left: bool = False  # it cancelled its future
    gone: bool = False  # it was answered or has left, and the loop has told everybody so

    @property
    def waits(self) -> bool:
        return self.outcome is UNKNOWN and not self.left

    def take(self, outcomes: Mapping[Any, Any]) -> None:
        """Get what came for some of the keys, all at once."""
        if not self.waits:
            return
        self.found.update(outcomes)
        errors = tuple(outcome for outcome in outcomes.values() if isinstance(outcome, Raises))
        if not self.many:
            self.outcome = self.found[self.keys[0]]
        elif errors and not self.return_exceptions:
            self.outcome = OneOf(errors)
        elif all(key in self.found for key in self.keys):
            self.outcome = [self.found[key] for key in self.keys]
            cached = tuple(outcome for outcome in self.outcome if isinstance(outcome, Raises))
            if cached and not self.return_exceptions:
                self.outcome = OneOf(cached)


UNKNOWN: Any = object()


@dataclass(eq=False)
class Call:
    """One call of the batch function, from its first key on."""

    opened: float
    opened_in_turn: int
    clears: int = 0
    keys: dict[Any, Any] = field(default_factory=dict)  # what the function is given, by cache key
    callers: dict[Any, list[Caller]] = field(default_factory=dict)  # of the keys not yet answered
    everybody: set[Caller] = field(default_factory=set)
    full: bool = False  # it was, at one time: it takes no more keys
    hurried: float | None = None  # when it was flushed, or full
    sent: bool = False
    over: bool = False

    def wanted(self, key: Any) -> bool:
        return any(caller.waits for caller in self.callers[key])


class NaiveLoader:
    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        now: Callable[[], float],
        turn: Callable[[], int],
        unsent: Callable[[], int],
        remembered: Callable[[Any], bool],
    ) -> None:
        self.options = options
        self.now = now
        self.turn = turn
        self.really_unsent = unsent  # how many batches the loader has that have not left
        self.remembered = remembered  # whether the cache, which may forget, still has a key
        self.cache_key: Callable[[Any], Any] = options.get("cache_key_fn") or (lambda key: key)
        self.cache: dict[Any, Any] = {}
        self.calls: list[Call] = []  # those that have not ended, oldest first
        self.where: dict[Any, Call] = {}  # the call that a load of this key joins
        self.callers: list[Caller] = []
        self.closed = False
        self.clears = 0
        self.last_new_key = self.last_ended = 0  # turns
        self.active = 0  # batch functions that run
        self.started_calls = self.started_keys = self.opened_calls = self.abandoned = self.failures = 0
        self.unheard = 0  # failures when everybody had an answer, which asyncio was told of
        self.faults: list[str] = []

    def expect(self, truth: object, complaint: str) -> None:
        if not truth:
            self.faults.append(complaint)

    # -- what is asked of the loader ---------------------------------------------------------------------------

    def ask(self, keys: Iterable[Any], *, many: bool, return_exceptions: bool = False) -> Caller:
        """`load` or `load_many`; raises what the loader must raise."""
        self.catch_up()
        if self.closed:
            raise LoaderClosedError
        by_cache_key: dict[Any, Any] = {}
        cache_keys = []
        for key in keys:
            cache_keys.append(self.cache_key(key))
            by_cache_key.setdefault(cache_keys[-1], key)
        new = {key: by_cache_key[key] for key in by_cache_key if key not in self.where and not self.knows(key)}
        most = self.options["max_pending"]
        if new and most is not None and sum(len(call.callers) for call in self.unsent()) + len(new) > most:
            raise LoaderOverloadedError
        caller = Caller(cache_keys, many, return_exceptions)
        self.callers.append(caller)
        # A cached error fails a `load_many` when all else is there, one that arrives fails it at once.
        caller.found = {key: self.cache[key] for key in by_cache_key if key not in self.where and key not in new}
        for key, spelling in by_cache_key.items():
            if key in self.where or key in new:
                self.put(caller, key, spelling)
        if all(key in caller.found for key in cache_keys):
            caller.take({})
        return caller

    def put(self, caller: Caller, key: Any, spelling: Any) -> None:
        call = self.where.get(key)
        if call is None:
            call = self.where[key] = self.open_call()
            call.keys[key] = spelling
            call.callers[key] = []
            self.last_new_key = self.turn()
            if len(call.callers) == self.options["max_batch_size"]:
                call.full = True
                self.hurry(call)
        call.callers[key].append(caller)
        call.everybody.add(caller)

    def open_call(self) -> Call:
        """The call that takes one more key."""
        for call in self.unsent():
            if not call.full:
                window = self.options["window"]
                if isinstance(window, Settle) and not self.no_slot():
                    latest = max(call.opened_in_turn + window.max_turns, self.last_ended) + 1
                    self.expect(self.turn() <= latest, "a batch waited for quiet longer than it may")
                return call
        call = Call(self.now(), self.turn())
        self.calls.append(call)
        self.opened_calls += 1
        return call

    def cancelled(self, caller: Caller) -> None:
        caller.left = True

    def told(self, caller: Caller) -> None:
        """The loop has told everybody that this caller's future is done."""
        self.catch_up()
        caller.gone = True
        if self.options["abandoned"] == "finish":
            return
        for call in list(self.calls):
            if call.sent and caller in call.everybody and call.callers and all(who.gone for who in call.everybody):
                self.abandoned += len(call.callers)
                self.end(call)

    def prime(self, key: Any, outcome: Any, *, force: bool) -> None:
        self.catch_up()
        if self.closed:
            raise LoaderClosedError
        key = self.cache_key(key)
        call = self.where.get(key)
        if call is None:
            if not force and self.knows(key):
                return
        elif not call.sent:
            del self.where[key], call.keys[key]
            for caller in call.callers.pop(key):
                caller.take({key: outcome})
        elif force:
            del self.where[key]
            self.clears += 1
        else:
            return
        self.keep(key, outcome)

    def clear(self, keys: Iterable[Any] | None) -> None:
        self.catch_up()
        self.clears += 1
        cache_keys = {*self.where, *self.cache} if keys is None else {self.cache_key(key) for key in keys}
        for key in cache_keys:
            self.cache.pop(key, None)
            if key in self.where and self.where[key].sent:
                del self.where[key]

    def flush(self) -> None:
        self.catch_up()
        for call in self.unsent():
            if not call.full:
                self.hurry(call)

    def close(self) -> None:
        self.catch_up()
        self.closed = True
        for call in list(self.calls):
            self.failed(call, Raises(LoaderClosedError, quiet=True))

    def kill(self) -> None:
        """Every task of the loader was cancelled: those that run will say themselves what they make of it."""
        self.catch_up()
        for call in list(self.unsent()):
            self.failed(call, Raises(BatchCancelledError, quiet=True))

    # -- what the batch function does --------------------------------------------------------------------------

    def started(self, keys: list[Any]) -> Call:
        self.active += 1
        self.started_calls += 1
        self.started_keys += len(keys)
        # Slots go to who comes first, but one that is free at once is taken a turn before one that is waited for.
        known = {key: call for call in self.unsent() for key in call.keys}
        call = known.get(self.cache_key(keys[0])) if keys else None
        if call is None:
            self.expect(truth=False, complaint=f"the batch function was called with {keys}, for nobody")
            return Call(self.now(), self.turn(), over=True)
        self.expect(self.due(call), f"the batch of {keys} left too early")
        for key in [key for key in call.callers if not call.wanted(key)]:
            del call.callers[key], call.keys[key], self.where[key]
            self.abandoned += 1
        wanted = list(call.keys.values())
        self.expect(keys == wanted, f"the batch function was called with {keys} instead of {wanted}")
        self.expect(len(keys) <= (self.options["max_batch_size"] or len(keys)), f"too large a batch: {keys}")
        slots = self.options["max_concurrent_batches"]
        self.expect(slots is None or self.active <= slots, f"{self.active} batches at once")
        call.sent = True
        call.clears = self.clears
        self.catch_up()
        return call

    def answered(self, call: Call, outcomes: Mapping[Any, Any], *, last: bool = True) -> None:
        """Outcomes came, by cache key; some maybe for keys that were not asked for."""
        self.catch_up()
        if call.over:
            return
        got: dict[Caller, dict[Any, Any]] = {}
        extra = {key: outcome for key, outcome in outcomes.items() if key not in call.callers}
        for key, outcome in outcomes.items():
            for caller in call.callers.pop(key, ()):
                got.setdefault(caller, {})[key] = outcome
            if key not in extra and self.where.get(key) is call:
                del self.where[key]
                self.keep(key, outcome)
        for caller, its_outcomes in got.items():
            caller.take(its_outcomes)
        for key, outcome in extra.items():
            if call.clears == self.clears and key not in self.where and not self.knows(key):
                self.keep(key, outcome)
        if last:
            self.end(call)

    def failed(self, call: Call, error: Raises) -> None:
        self.catch_up()
        if not call.over and not call.callers:
            self.unheard += issubclass(error.kind, Exception) and not error.quiet
        self.fail(call, error)

    def ended(self) -> None:
        """The batch function is at its end, whether anybody still waits for what it brings or not."""
        self.active -= 1
        self.last_ended = self.turn()

    # -- rules -------------------------------------------------------------------------------------------------

    def unsent(self) -> list[Call]:
        return [call for call in self.calls if not call.sent]

    def knows(self, key: Any) -> bool:
        return key in self.cache and self.remembered(key)

    def keep(self, key: Any, outcome: Any) -> None:
        if self.options["cache"]:
            self.cache[key] = outcome

    def hurry(self, call: Call) -> None:
        if call.hurried is None:
            call.hurried = self.now()

    def fail(self, call: Call, error: Raises) -> None:
        if not call.over:
            self.failures += error.kind is not LoaderClosedError
            callers = {caller for callers in call.callers.values() for caller in callers}
            for caller in callers:
                caller.take({key: error for key in caller.keys if caller in call.callers.get(key, ())})
            self.end(call)

    def end(self, call: Call) -> None:
        call.over = True
        self.calls.remove(call)
        for key in [key for key, where in self.where.items() if where is call]:
            del self.where[key]

    def drop(self, call: Call) -> None:
        """A batch whose callers have all left has left without a call."""
        self.abandoned += len(call.callers)
        self.end(call)

    def catch_up(self) -> None:
        """Note what happened without anybody's doing: batches that took too long, and those without callers."""
        timeout = self.options["timeout"]
        for call in list(self.calls) if timeout is not None else ():
            if self.departure(call) + timeout <= self.now() + A_MOMENT:
                self.fail(call, Raises(LoaderTimeoutError))
        gone = len(self.unsent()) - self.really_unsent()
        for call in self.unsent() if gone > 0 else ():
            if gone > 0 and self.due(call) and not any(map(call.wanted, call.callers)):
                self.drop(call)
                gone -= 1

    def departure(self, call: Call) -> float:
        """When a batch leaves if a slot is free. Turns of the loop take no time."""
        window = self.options["window"]
        regular = call.opened + (0 if isinstance(window, Settle) else window)
        return regular if call.hurried is None else min(regular, call.hurried)

    def due(self, call: Call) -> bool:
        window = self.options["window"]
        if call.hurried is not None or not isinstance(window, Settle):
            return self.departure(call) <= self.now() + A_MOMENT
        quiet = self.turn() - self.last_new_key
        return quiet >= window.turns or self.turn() > call.opened_in_turn + window.max_turns

    def no_slot(self) -> bool:
        slots = self.options["max_concurrent_batches"]
        return slots is not None and self.active >= slots

    def idle(self) -> None:
        """Nothing can run before the clock moves on: whoever can have an answer has one, what is due has left."""
        self.catch_up()
        for caller in self.callers:
            assert caller.future is not None
            self.expect(caller.future.done() or caller.waits, f"left waiting: {caller}")
            self.expect(not caller.future.done() or not caller.waits, f"answered from nowhere: {caller}")
        self.callers = [caller for caller in self.callers if caller.waits]
        if not self.no_slot():
            for call in self.unsent():
                self.expect(self.departure(call) > self.now() + A_MOMENT, f"overdue: {list(call.keys.values())}")
