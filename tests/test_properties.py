"""Whatever is done to a DataLoader in whatever order, it does what the naive one of `tests.naive` says.

Hypothesis makes up a program (what is asked of the loader, when, and who leaves), the options, and how each call of the
batch function goes. The program runs on a virtual clock and is held against the model all the way: the same values, the
same batches, nobody left waiting, nothing logged, nothing left behind.

`HYPOTHESIS_EXAMPLES=200000 python -m pytest tests/test_properties.py` runs that many, all tests together.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from contextlib import contextmanager
from dataclasses import dataclass
from types import new_class
from typing import TYPE_CHECKING, Any

import cachetools
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from loader import (
    RAISE,
    BatchCancelledError,
    BatchResultError,
    DataLoader,
    KeyNotFoundError,
    LoaderError,
    Loaders,
    SelfWaitError,
    Settle,
    dataloader,
)
from loader._batch import BatchState
from loader._loops import _alive
from tests import loops
from tests.naive import A_MOMENT, UNKNOWN, Call, Caller, NaiveLoader, OneOf, Raises, same

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

SHAPES = ("list", "mapping", "rows", "groups", "stream")

IN_CI = bool(os.environ.get("CI"))
EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "10000" if IN_CI else "500"))


def examples(share: float) -> settings:
    return settings(
        max_examples=max(1, round(EXAMPLES * share)),
        deadline=None,
        derandomize=IN_CI,
        print_blob=True,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


@dataclass(frozen=True)
class Row:
    key: int
    call: int


@dataclass(frozen=True)
class Plan:
    """How one call of the batch function goes.

    Attributes:
        outcome: What becomes of it.
        pause: How long it takes: a number of turns of the loop, seconds, or None: until it is cancelled.
        stubborn: Whether it swallows its cancellation, and answers a little later.
    """

    outcome: str = "values"
    pause: int | float | None = 0
    stubborn: bool = False


NOT_SENT = (BatchState.COLLECTING, BatchState.WAITING)

# Times that meet only by intent: those of the program are whole seconds, and no sums of the others are the same.
PAUSES = (0, 1, 2, 0.0107, 0.511, 1.713, None)
OUTCOMES = ("values", "error", "some errors", "some missing", "extra", "wrong shape", "cancel", "late error")
PLANS = [
    *(Plan(outcome, pause) for pause in PAUSES for outcome in OUTCOMES if pause is not None or outcome == "values"),
    *(Plan("values", pause, stubborn=True) for pause in (1, 0.511, 1.713, None)),
]

KEYS = range(6)
SOME_KEYS = [(), (0,), (0, 1), (1, 0), (0, 0, 1), (0, 3), (1, 2, 4), (0, 1, 2, 3, 4, 5), (5, 3, 1, 5)]
OPERATIONS: list[tuple[Any, ...]] = [
    *(("load", key) for key in (*KEYS, *KEYS)),
    *(("load_many", keys, False) for keys in SOME_KEYS),
    *(("load_many", keys, True) for keys in SOME_KEYS[2:]),
    *(("turns", turns) for turns in (1, 1, 1, 2, 2, 3, 5)),
    *(("trickle", keys) for keys in (2, 4, 6)),
    *(("time", seconds) for seconds in (1, 1, 2)),
    *(("cancel", which) for which in (0, 1, 2, -1, -2)),
    *(("prime", key, force) for key in (0, 1, 2, 3) for force in (False, True)),
    *(("prime_error", key, force) for key in (0, 1) for force in (False, True)),
    *(("clear", (key,)) for key in (0, 1, 2, 3)),
    ("clear", (0, 1, 2)),
    ("clear", None),
    ("flush",),
    ("flush",),
    ("close",),
    ("kill",),
]


def modulo_3(key: int) -> int:
    return key % 3


OPTIONS = st.fixed_dictionaries(
    {
        "max_batch_size": st.sampled_from([None, None, 1, 2, 3]),
        "window": st.sampled_from([Settle(), Settle(), Settle(turns=2), Settle(turns=1, max_turns=2), 0.0, 0.3, 1.3]),
        "cache": st.sampled_from(["own", "own", "own", "none", "lru", "ttl", "object"]),
        "cache_key_fn": st.sampled_from([None, None, modulo_3]),
        "max_concurrent_batches": st.sampled_from([None, None, 1, 2]),
        "max_pending": st.sampled_from([None, None, None, 1, 3]),
        "timeout": st.sampled_from([None, None, 0.77, 2.59]),
        "abandoned": st.sampled_from(["finish", "cancel"]),
        "default": st.sampled_from([RAISE, "default"]),
    }
)


PLAIN: dict[str, Any] = {
    "max_batch_size": None,
    "window": Settle(),
    "cache": "own",
    "cache_key_fn": None,
    "max_concurrent_batches": None,
    "max_pending": None,
    "timeout": None,
    "abandoned": "finish",
    "default": RAISE,
}


class CacheObject:
    """A cache with the methods of Strawberry's `AbstractCache`."""

    def __init__(self) -> None:
        self.futures: dict[Any, asyncio.Future[Any]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self.futures

    def get(self, key: Any) -> asyncio.Future[Any] | None:
        return self.futures.get(key)

    def set(self, key: Any, value: asyncio.Future[Any]) -> None:
        self.futures[key] = value

    def delete(self, key: Any) -> None:
        del self.futures[key]

    def clear(self) -> None:
        self.futures.clear()


class Play:
    """One example: a loader, its model, and between them the batch function and whoever calls the loader."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, shape: str, options: dict[str, Any], script: list[Plan]
    ) -> None:
        self.shape = shape
        self.default = RAISE if shape == "groups" else options["default"]
        # What a batch brings may push out what its extra keys are then no longer known by.
        self.evicts = options["cache"] == "lru"
        self.turn = 0
        self.script = iter(script)
        self.numbers = itertools.count()
        self.callers: list[Caller] = []
        self.closing: list[asyncio.Task[None]] = []
        caches: dict[str, Callable[[], Any]] = {
            "lru": lambda: cachetools.LRUCache(2),
            "ttl": lambda: cachetools.TTLCache(99, 1.5, timer=loop.time),
            "object": CacheObject,
        }
        cache = caches[options["cache"]]() if options["cache"] in caches else None
        options = {**options, "cache": options["cache"] != "none"}
        make: Any = DataLoader  # its overloads tell the shapes apart
        self.loader: DataLoader[Any, Any] = make(
            self.stream if shape == "stream" else self.call,
            **{**options, "default": self.default},
            cache_map=cache,
            index_by="key" if shape == "rows" else None,
            group_by="key" if shape == "groups" else None,
        )
        self.model = NaiveLoader(
            options,
            now=loop.time,
            turn=lambda: self.turn,
            unsent=lambda: sum(batch.state in NOT_SENT for batch in self.loader._batches),
            remembered=lambda key: cache is None or key in cache,
        )

    # -- the batch function ------------------------------------------------------------------------------------

    async def call(self, keys: list[int]) -> Any:
        number, plan, call = next(self.numbers), next(self.script, Plan()), self.model.started(keys)
        try:
            await self.pause(call, plan)
            if plan.outcome == "wrong shape":
                self.model.failed(call, Raises(BatchResultError))
                return self.wrong_result(number, keys)
            if error := self.error(plan):
                self.fail(call, error)
            answers = self.answers(plan, number, keys)
            self.model.answered(call, self.outcomes(keys, answers))
            if self.shape == "list":
                return list(answers.values())
            if self.shape == "mapping":
                return answers
            return sorted(answers.values(), key=lambda row: -row.key)
        finally:
            self.model.ended()

    async def stream(self, keys: list[int]) -> AsyncIterator[Any]:
        number, plan, call = next(self.numbers), next(self.script, Plan()), self.model.started(keys)
        try:
            error = self.error(plan)
            answers = self.answers(plan, number, keys)
            slow_at = number % 2
            for index, (key, answer) in enumerate(answers.items()):
                if index == slow_at:
                    await self.pause(call, plan)
                if error and (index > 0 or plan.outcome != "late error"):
                    self.fail(call, error)
                self.model.answered(call, {self.model.cache_key(key): self.outcome(answer)}, last=False)
                yield key, answer
                if plan.outcome == "wrong shape":
                    self.model.failed(call, Raises(BatchResultError))
                    yield (key, answer) if number % 2 else key
            if slow_at >= len(answers):
                await self.pause(call, plan)
            self.model.answered(call, {key: self.missing() for key in call.callers})
        finally:
            self.model.ended()

    async def pause(self, call: Call, plan: Plan) -> None:
        try:
            if plan.pause is None:
                await asyncio.get_running_loop().create_future()
            elif isinstance(plan.pause, float):
                await asyncio.sleep(plan.pause)
            else:
                for _ in range(plan.pause):
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not plan.stubborn:
                self.model.failed(call, Raises(BatchCancelledError, quiet=True))
                raise
            try:
                await asyncio.sleep(0.0503)
            except asyncio.CancelledError:
                self.model.failed(call, Raises(BatchCancelledError, quiet=True))
                raise

    def fail(self, call: Call, error: BaseException) -> None:
        cancelled = isinstance(error, asyncio.CancelledError)
        self.model.failed(call, Raises(BatchCancelledError) if cancelled else Raises(type(error), error))
        raise error

    @staticmethod
    def error(plan: Plan) -> BaseException | None:
        if plan.outcome == "cancel":
            return asyncio.CancelledError()
        return RuntimeError("backend") if plan.outcome in ("error", "late error") else None

    def answers(self, plan: Plan, number: int, keys: list[int]) -> dict[int, Any]:
        """What comes for which key."""
        rows = self.shape in ("rows", "groups")
        answers: dict[int, Any] = {key: Row(key, number) if rows else (number, key) for key in keys}
        if plan.outcome == "some errors" and not rows:
            answers |= {key: LookupError(key) for key in keys[::2]}
        if plan.outcome == "some missing" and self.shape != "list":
            for key in keys[::2]:
                del answers[key]
        if plan.outcome == "extra" and self.shape != "list" and not self.evicts:
            unasked = {self.model.cache_key(key): key for key in KEYS}
            for key in keys:
                del unasked[self.model.cache_key(key)]
            for key in list(unasked.values())[:2]:
                answers[key] = Row(key, number) if rows else (number, key)
        return answers

    def outcomes(self, keys: list[int], answers: dict[int, Any]) -> dict[Any, Any]:
        """What the loader must make of these answers."""
        cache_key = self.model.cache_key
        if self.shape == "groups":
            return {cache_key(key): [answers[key]] if key in answers else [] for key in keys}
        outcomes = {cache_key(key): self.missing() for key in keys}
        return outcomes | {cache_key(key): self.outcome(answer) for key, answer in answers.items()}

    @staticmethod
    def outcome(answer: Any) -> Any:
        return Raises(type(answer), answer) if isinstance(answer, BaseException) else answer

    def missing(self) -> Any:
        return Raises(KeyNotFoundError) if self.default is RAISE else self.default

    def wrong_result(self, number: int, keys: list[int]) -> Any:
        choices: list[Any] = [None, "text", {1, 2}, 7]
        if self.shape == "list":
            choices += [[], keys[1:], [*keys, 1]]
        elif self.shape in ("rows", "groups"):
            choices += [{1: 2}, [None]]
        return choices[number % len(choices)]

    # -- the program -------------------------------------------------------------------------------------------

    async def run(self, program: list[tuple[Any, ...]], ending: str) -> None:
        for name, *arguments in program:
            await getattr(self, name)(*arguments)
        await asyncio.sleep(50)  # whoever can be answered is
        await getattr(self, ending)()
        await asyncio.sleep(1)
        for caller in self.callers:
            self.check(caller)
        statistics = self.loader.statistics()
        model = self.model
        assert (statistics.waiting, statistics.running) == (0, 0)
        assert (statistics.batches, statistics.keys) == (model.started_calls, model.started_keys)
        assert statistics.batches <= model.opened_calls
        assert (statistics.abandoned, statistics.failures) == (model.abandoned, model.failures)
        await self.loader.aclose()

    def idle(self, timers: int) -> None:
        """Nothing can run before the clock moves on."""
        model = self.model
        model.idle()
        # Timers: the program's own, those of batch functions that sleep, of windows, and of time-outs.
        needed = 1 + model.active + len(model.unsent()) + len(model.calls)
        model.expect(timers <= needed, f"{timers} timers where {needed} may be")
        if not self.evicts:  # looking would change what goes next
            for key in KEYS:
                known = model.cache_key(key)
                outcome = model.cache[known] if model.knows(known) else Raises(KeyNotFoundError)
                value = "nothing" if isinstance(outcome, Raises) else outcome
                model.expect(same(value, self.loader.peek(key, "nothing")), f"peek({key}) is not {value!r}")

    def check(self, caller: Caller) -> None:
        future, outcome = caller.future, caller.outcome
        assert future is not None
        if caller.left:
            assert future.cancelled()
            return
        assert future.done(), f"left waiting: {caller}"
        if isinstance(outcome, Raises | OneOf):
            # Looking at an exception tells asyncio that somebody did: where nobody need to, nobody does.
            error = future._exception if outcome.quiet else future.exception()
            assert outcome.fits(error), f"{error!r} instead of {outcome}"
        else:
            assert same(outcome, future.result()), f"{future.result()!r} instead of {outcome!r}"

    async def ask(self, load: Callable[[], asyncio.Future[Any]], caller: Callable[[], Caller]) -> None:
        try:
            expected = caller()
        except LoaderError as error:
            with pytest.raises(type(error)):
                load()
            return
        expected.future = load()
        self.callers.append(expected)
        assert expected.future.done() == (expected.outcome is not UNKNOWN), expected
        expected.future.add_done_callback(lambda _: self.model.told(expected))

    async def load(self, key: int) -> None:
        await self.ask(lambda: self.loader.load(key), lambda: self.model.ask([key], many=False))

    async def trickle(self, keys: int) -> None:
        for key in range(keys):
            await self.load(key)
            await asyncio.sleep(0)

    async def load_many(self, keys: tuple[int, ...], return_exceptions: bool) -> None:
        await self.ask(
            lambda: self.loader.load_many(keys, return_exceptions=return_exceptions),
            lambda: self.model.ask(keys, many=True, return_exceptions=return_exceptions),
        )

    async def cancel(self, which: int) -> None:
        waiting = [caller for caller in self.callers if caller.future and not caller.future.done()]
        if waiting:
            caller = waiting[which % len(waiting)]
            assert caller.future is not None
            caller.future.cancel()
            self.model.cancelled(caller)

    async def prime(self, key: int, force: bool, value: Any = None) -> None:
        value = ("primed", next(self.numbers)) if value is None else value
        try:
            self.model.prime(key, self.outcome(value), force=force)
        except LoaderError as error:
            with pytest.raises(type(error)):
                self.loader.prime(key, value, force=force)
        else:
            self.loader.prime(key, value, force=force)

    async def prime_error(self, key: int, force: bool) -> None:
        await self.prime(key, force, LookupError("primed"))

    async def clear(self, keys: tuple[int, ...] | None) -> None:
        self.model.clear(keys)
        if keys is None:
            self.loader.clear_all()
        else:
            self.loader.clear_many(keys)

    async def flush(self) -> None:
        self.model.flush()
        self.loader.flush()

    async def turns(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def time(self, seconds: int) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        async def closing() -> None:
            self.model.close()
            await self.loader.aclose()

        self.closing.append(asyncio.create_task(closing()))
        await asyncio.sleep(0)

    async def kill(self) -> None:
        """Cancel every task, as a loop does that is torn down, and let them have their last words."""
        for task in asyncio.all_tasks() - {asyncio.current_task(), *self.closing}:
            task.cancel()
        self.model.kill()
        await self.turns(3)


@contextmanager
def quiet_loop(expected: Callable[[Any], bool] = lambda _: False) -> Iterator[Any]:
    """A loop on which nothing may be left behind or logged but what is expected. `loops.run` does more, and slowly."""
    reports: list[Any] = []
    alive_before = set(_alive)  # by tests of loops that died with their tasks
    gc.disable()  # so that the youngest generation holds all that is made here, and can be searched alone
    loop: Any = loops.new_loop()
    loop.set_exception_handler(lambda _, report: None if expected(report) else reports.append(report))
    try:
        yield loop
        assert not asyncio.all_tasks(loop)
        assert _alive <= alive_before
        assert not loops.timers(loop)
        assert not [generator for generator in loop._asyncgens if generator.ag_frame]
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        gc.collect(0)
        gc.enable()
    assert not reports, reports


def play(
    shape: str, options: dict[str, Any], program: list[tuple[Any, ...]], script: list[Plan], ending: str = "close"
) -> None:
    """Run one example and hold it against the model, at the end and whenever nothing can run."""

    def perform(loop: Any) -> None:
        stage = Play(loop, shape, options, script)
        run_once = loop._run_once

        def counted() -> None:
            stage.turn += 1
            due = loop._scheduled and loop._scheduled[0].when() <= loop.time() + A_MOMENT
            if not loop._ready and not due:
                stage.idle(len(loops.timers(loop)))
            run_once()

        loop._run_once = counted
        try:
            loop.run_until_complete(stage.run(program, ending))
        finally:
            del loop._run_once
            assert not stage.model.faults, stage.model.faults
            assert len(unheard) == stage.model.unheard

    def expected(report: Any) -> bool:
        unheard.append(report)
        return "failed after it had answered everybody" in report["message"]

    unheard: list[Any] = []
    with quiet_loop(expected) as loop:
        perform(loop)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", SHAPES)
@examples(0.8 / len(SHAPES))
@given(
    options=OPTIONS,
    program=st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=25),
    script=st.lists(st.sampled_from(PLANS), max_size=6),
    ending=st.sampled_from(["close", "kill"]),
)
# A `load_many` of a key that waits already and of a new one, which the same batch takes, must get both.
@example(options=PLAIN, program=[("load", 0), ("load_many", (0, 1), False)], script=[], ending="close")
# A batch that fails as a whole is no reason for `return_exceptions=True` to raise.
@example(options=PLAIN, program=[("load_many", (0, 1), True)], script=[Plan("error")], ending="close")
@example(
    options={**PLAIN, "max_batch_size": 1},
    program=[("load_many", (0, 1), True)],
    script=[Plan("values"), Plan("error")],
    ending="close",
)
# A `load_many` with `return_exceptions=True` gets one for each key when its batches end one after the other.
@example(
    options={**PLAIN, "max_batch_size": 1}, program=[("load_many", (0, 1), True), ("close",)], script=[], ending="close"
)
# What a batch brings besides what it was asked for may be out of date once anything was cleared.
@example(
    options=PLAIN, program=[("load", 0), ("turns", 5), ("clear", (3,))], script=[Plan("extra", 0.511)], ending="close"
)
# A `load_many` that has failed with one batch has left the others.
@example(
    options={**PLAIN, "max_batch_size": 1, "abandoned": "cancel"},
    program=[("load_many", (0, 1), False), ("turns", 5), ("load", 1), ("time", 1)],
    script=[Plan("error"), Plan("values", None)],
    ending="close",
)
def test_a_loader_does_what_the_naive_one_says(
    shape: str, options: dict[str, Any], program: list[tuple[Any, ...]], script: list[Plan], ending: str
) -> None:
    play(shape, options, program, script, ending)


async def test_a_new_key_makes_quiet_turns_count_from_the_start() -> None:
    """The model does not know who comes first within a turn, which this depends on."""
    batches: list[list[int]] = []

    async def function(keys: list[int]) -> list[int]:
        batches.append(keys)
        return keys

    loader = DataLoader(function, window=Settle(turns=2))
    first = loader.load(0)
    for _ in range(2):
        await asyncio.sleep(0)
    second = loader.load(1)
    for _ in range(2):
        await asyncio.sleep(0)
    third = loader.load(2)
    assert [await first, await second, await third] == [0, 1, 2]
    assert batches == [[0, 1, 2]]


# -- batch functions that load through other loaders ---------------------------------------------------------------

LEVELS = 3
NODES = [(level, key) for level in range(LEVELS) for key in range(3)]
DOWNWARDS = [(node, other) for node in NODES for other in NODES if node[0] < other[0]]
ANYWHERE = [(node, other) for node in NODES for other in NODES]
LEVEL_OPTIONS = st.fixed_dictionaries(
    {
        "window": st.sampled_from([None, None, Settle(turns=2), 0.0, 0.3]),
        "max_batch_size": st.sampled_from([None, None, 1, 2]),
        "max_concurrent_batches": st.sampled_from([None, None, 1, 2]),
        "abandoned": st.sampled_from(["finish", "cancel"]),
        "cache": st.sampled_from([True, True, False]),
    }
)
ARRIVALS = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from([0, 0, 1, 2, 0.4])), min_size=1, max_size=8)

Node = tuple[int, int]


class Nest:
    """Loaders whose batch functions load what `edges` says through one another."""

    def __init__(
        self,
        edges: list[tuple[Node, Node]],
        level_options: list[dict[str, Any]],
        limit: int | None,
        way: str,
        pause: float,
    ) -> None:
        self.limit = limit
        self.way = way
        self.pause = pause
        self.working = 0  # batch functions that do something, rather than wait for another loader
        self.faults: list[str] = []
        self.needs: dict[Node, list[Node]] = {node: [other for one, other in edges if one == node] for node in NODES}

        def declared(level: int) -> Any:
            async def values(_: Loaders, keys: list[int]) -> list[Any]:
                return await self.values(level, keys)

            return dataloader(**level_options[level])(values)

        attributes = {f"level{level}": declared(level) for level in range(LEVELS)}
        options = {"max_concurrent_batches": limit}
        self.loaders: Any = new_class("Levels", (Loaders,), options, lambda body: body.update(attributes))()

    def loader(self, level: int) -> DataLoader[int, Any]:
        found: DataLoader[int, Any] = getattr(self.loaders, f"level{level}")
        return found

    async def statement(self) -> None:
        """What only so many batches do at once: talk to the backend."""
        self.working += 1
        if self.limit is not None and self.working > self.limit:
            self.faults.append(f"{self.working} statements at once")
        try:
            await asyncio.sleep(self.pause)
        finally:
            self.working -= 1

    async def values(self, level: int, keys: list[int]) -> list[Any]:
        await self.statement()
        needed = list(dict.fromkeys(other for key in keys for other in self.needs[level, key]))
        found: dict[Node, Any] = {}
        if self.way == "one by one":
            for other, key in needed:
                found[other, key] = await self.loader(other).load(key)
        elif self.way == "each loader's":
            for other in range(LEVELS):
                its_keys = [key for its_level, key in needed if its_level == other]
                values = await self.loader(other).load_many(its_keys)
                found |= {(other, key): value for key, value in zip(its_keys, values, strict=True)}
        else:

            async def load(other: int, key: int) -> None:
                found[other, key] = await self.loader(other).load(key)

            async with asyncio.TaskGroup() as group:
                for other, key in needed:
                    group.create_task(load(other, key))
        await self.statement()
        return [(level, key, [found[other] for other in self.needs[level, key]]) for key in keys]

    def value(self, node: Node, above: tuple[Node, ...] = ()) -> Any:
        """The value of a node, None if it needs itself."""
        if node in above:
            return None
        values = [self.value(other, (*above, node)) for other in self.needs[node]]
        return None if None in values else (*node, values)


def settle_all(
    nest: Nest,
    arrivals: list[tuple[Node, float]],
    leaving: list[int],
    expected: Callable[[Any], bool] = lambda _: False,
) -> list[tuple[Node, Any]]:
    """Load what arrives when it arrives, let some leave, and return what the others got."""

    async def main() -> list[tuple[Node, Any]]:
        callers: list[tuple[Node, asyncio.Future[Any]]] = []
        for node, pause in arrivals:
            level, key = node
            callers.append((node, nest.loader(level).load(key)))
            if pause:
                await asyncio.sleep(pause if isinstance(pause, float) else 0)
        for which in leaving:
            callers.pop(which % len(callers))[1].cancel()
            if not callers:
                break
        # A caller who waits forever ends the test: the clock has nothing left to jump to.
        results = await asyncio.gather(*(future for _, future in callers), return_exceptions=True)
        await asyncio.sleep(10)  # what nobody waits for comes to its end too
        assert [nest.loader(level).statistics().running for level in range(LEVELS)] == [0] * LEVELS
        await nest.loaders.aclose()
        return [(node, result) for (node, _), result in zip(callers, results, strict=True)]

    with quiet_loop(expected) as loop:
        results: list[tuple[Node, Any]] = loop.run_until_complete(main())
    assert not nest.faults, nest.faults
    return results


@pytest.mark.timeout(3600)
@examples(0.1)
@given(
    edges=st.lists(st.sampled_from(DOWNWARDS), max_size=9, unique=True),
    level_options=st.lists(LEVEL_OPTIONS, min_size=LEVELS, max_size=LEVELS),
    limit=st.sampled_from([None, 1, 1, 2]),
    way=st.sampled_from(["one by one", "each loader's", "all at once"]),
    pause=st.sampled_from([0, 0.0107]),
    arrivals=ARRIVALS,
    leaving=st.lists(st.integers(0, 7), max_size=3),
)
# Two batches under one limit of one wait for the same third: they must not go on both when it has come.
@example(
    edges=[((0, 0), (1, 0)), ((0, 0), (1, 1)), ((1, 0), (2, 0)), ((1, 1), (2, 0))],
    level_options=[{}, {"max_batch_size": 1}, {}],
    limit=1,
    way="each loader's",
    pause=0,
    arrivals=[((0, 0), 0)],
    leaving=[],
)
def test_batches_that_load_through_other_loaders_never_wait_for_one_anothers_slots(
    edges: list[tuple[Node, Node]],
    level_options: list[dict[str, Any]],
    limit: int | None,
    way: str,
    pause: float,
    arrivals: list[tuple[Node, float]],
    leaving: list[int],
) -> None:
    nest = Nest(edges, level_options, limit, way, pause)
    for node, result in settle_all(nest, arrivals, leaving):
        assert result == nest.value(node)


def is_self_wait(error: BaseException) -> bool:
    """Whether nothing else went wrong, in whatever group of tasks it came to light."""
    if isinstance(error, ExceptionGroup):
        return all(map(is_self_wait, error.exceptions))
    return isinstance(error, SelfWaitError)


@pytest.mark.timeout(3600)
@examples(0.1)
@given(
    edges=st.lists(st.sampled_from(ANYWHERE), max_size=9, unique=True),
    level_options=st.lists(LEVEL_OPTIONS, min_size=LEVELS, max_size=LEVELS),
    limit=st.sampled_from([None, 1, 1, 2]),
    way=st.sampled_from(["one by one", "each loader's", "all at once"]),
    pause=st.sampled_from([0, 0.0107]),
    arrivals=ARRIVALS,
    leaving=st.lists(st.integers(0, 7), max_size=3),
)
# A batch that borrowed its slot and lent it on may end, since it failed, before the one that it lent it to.
@example(
    edges=[
        ((0, 0), (0, 0)),
        ((2, 0), (1, 0)),
        ((2, 1), (0, 0)),
        ((2, 2), (0, 0)),
        ((0, 0), (0, 1)),
        ((0, 0), (1, 0)),
        ((2, 0), (2, 1)),
    ],
    level_options=[{}] * LEVELS,
    limit=1,
    way="all at once",
    pause=0.0107,
    arrivals=[((2, 2), 0), ((2, 0), 0)],
    leaving=[],
)
# Each of two limits is held by a batch that waits for one behind the other limit, and no batch waits for itself.
@example(
    edges=[((0, 0), (1, 1)), ((1, 0), (0, 1))],
    level_options=[{"max_batch_size": 1, "max_concurrent_batches": 1}] * LEVELS,
    limit=None,
    way="one by one",
    pause=0.0107,
    arrivals=[((0, 0), 0), ((1, 0), 0)],
    leaving=[],
)
# The same, where one of the two waits for a third batch besides, and that ends last.
@example(
    edges=[((0, 0), (2, 0)), ((0, 0), (1, 1)), ((1, 0), (0, 1))],
    level_options=[*[{"max_batch_size": 1, "max_concurrent_batches": 1}] * 2, {"window": 0.3}],
    limit=None,
    way="all at once",
    pause=0.0107,
    arrivals=[((0, 0), 0), ((1, 0), 0)],
    leaving=[],
)
def test_batches_that_wait_for_themselves_are_told_so_and_all_others_get_their_values(
    edges: list[tuple[Node, Node]],
    level_options: list[dict[str, Any]],
    limit: int | None,
    way: str,
    pause: float,
    arrivals: list[tuple[Node, float]],
    leaving: list[int],
) -> None:
    nest = Nest(edges, level_options, limit, way, pause)

    def nobodys_answer(report: Any) -> bool:
        """A batch function may find out that it waits for itself when all its callers have left."""
        return "after callers were answered" in report["message"] and is_self_wait(report["exception"])

    for node, result in settle_all(nest, arrivals, leaving, nobodys_answer):
        if isinstance(result, Exception):
            assert is_self_wait(result)
        else:
            assert result == nest.value(node)
