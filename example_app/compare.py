"""Questions, each asked in three ways of the same schema, and what each way took: the page at `/` shows it.

One way knows of no loaders: every field that needs something looks it up. One has resolvers that somebody wrote by
hand, with loaders. One is the demo's own. They answer one after the other, so that their times can be compared, and
statements are counted where they reach the database's driver.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphql import GraphQLError
from sqlalchemy import event
from strawberry.extensions import SchemaExtension

from example_app.by_hand import ByHand
from example_app.loaders import STATEMENTS_AT_ONCE, AppLoaders
from example_app.schema import make_schema
from example_app.shared_cache import CACHE
from example_app.waterfall import waterfall
from loader import Scope
from loader.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from strawberry import Schema

    from example_app.database import Database
    from example_app.questions import Question
    from example_app.service import Service
    from example_app.settings import Settings

MOST_STATEMENTS = 5_000  # of one way: a question that takes more is stopped
MOST_WAITING = 10  # comparisons: one at a time is made, and these may wait
PROGRESS = 0.2  # seconds from one report of a way under way to the next
MOST_ERRORS = 3


class Lone(AppLoaders):
    """Loaders for one lookup, out of its request's share of the database."""

    def __init__(self, database: Database) -> None:
        self.database = database


class OneByOne:
    """Loaders as resolvers have them that know of none: whoever asks gets new ones, with no batch or cache to share."""

    def __init__(self, database: Database) -> None:
        self.database = database.share(STATEMENTS_AT_ONCE)

    def __getattr__(self, name: str) -> Any:
        return getattr(Lone(self.database), name)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to answer."""

    id: str
    title: str
    note: str
    schema: Schema
    make_loaders: Callable[[Database], object]


class Recorder:
    """What one operation takes: its statements, each with the time when it was sent, and its batches."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, float]] = []
        self.timeline = Timeline()
        self.timeline.wants_places = False  # to find out who asks costs one way more than another
        self.began = time.perf_counter()


_recorder: ContextVar[Recorder | None] = ContextVar("example_app.recorder", default=None)


class Recording(SchemaExtension):
    """Lets the recorder, if there is one, see the operation's batches; after `LoaderExtension`, in whose scope."""

    def on_execute(self) -> Iterator[None]:
        """Observe the scope, which ends with the operation."""
        recorder, scope = _recorder.get(), Scope.current()
        if recorder is not None and scope is not None:
            scope.observe(recorder.timeline)
        yield


class Comparison:
    """Asks the questions in all ways, for one visitor at a time."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        event.listen(service.database.engine.sync_engine, "before_cursor_execute", _sent)
        by_hand = make_schema(settings, ByHand, plan=False)
        planned = make_schema(settings)
        for schema in by_hand, planned:
            schema.extensions = (*schema.extensions, Recording)
        self.ways = [
            Way("one", "One lookup per field", "Every field asks the database by itself.", by_hand, OneByOne),
            Way("hand", "Loaders by hand", "Each field has a resolver that awaits a loader.", by_hand, AppLoaders),
            Way("planned", "Planned relations", "A field is a line; lists load ahead.", planned, AppLoaders),
        ]
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def events(self, question: Question) -> AsyncGenerator[dict[str, Any], None]:
        """What the page is told: how far each way has come, what it took, and in the end whether the answers agree."""
        if CACHE is not None:
            yield {"error": "here rows come from a cache that outlives questions: start without EXAMPLE_REDIS_URL."}
            return
        if self._waiting == MOST_WAITING:
            yield {"error": "too many others compare at this moment, try again soon."}
            return
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            answers = []
            for way in self.ways:
                recorder = Recorder()
                answering = asyncio.create_task(self._answer(way, question, recorder))
                try:
                    while not answering.done():
                        yield {"way": way.id, "statements": len(recorder.statements), "done": False}
                        await asyncio.wait({answering}, timeout=PROGRESS)
                finally:
                    answering.cancel()
                    await asyncio.wait({answering})
                answer, took = answering.result()
                answers.append(answer)
                yield {"way": way.id, "done": True, **took}
            yield verdict(answers)
        finally:
            self._turn.release()

    async def _answer(self, way: Way, question: Question, recorder: Recorder) -> tuple[Any, dict[str, Any]]:
        await self._execute(way, question, 1)  # what is done once only, such as compiling statements, counts for nobody
        gc.collect()  # nor does what the way before has left
        _recorder.set(recorder)
        recorder.began = time.perf_counter()
        result = await self._execute(way, question, question.first)
        seconds = time.perf_counter() - recorder.began
        errors = [error.message for error in result.errors or ()]
        return None if errors else result.data, {
            "statements": len(recorder.statements),
            "seconds": seconds,
            "errors": list(dict.fromkeys(errors))[:MOST_ERRORS],
            "sql": [
                {"text": text, "times": times}
                for text, times in Counter(text for text, _ in recorder.statements).most_common()
            ],
            "waterfall": waterfall(recorder.timeline, recorder.statements, recorder.began, seconds),
        }

    async def _execute(self, way: Way, question: Question, first: int) -> Any:
        context = {"loaders": way.make_loaders(self._service.database), "service": self._service}
        return await way.schema.execute(question.query, variable_values={"first": first}, context_value=context)


def verdict(answers: list[Any]) -> dict[str, Any]:
    """Whether answers are the same as canonical JSON, and how many values each has; None is a missing answer."""
    if None in answers:
        return {"equal": None, "values": 0}
    texts = {json.dumps(answer, sort_keys=True, separators=(",", ":")) for answer in answers}
    return {"equal": len(texts) == 1, "values": _values(answers[0])}


def _values(data: Any) -> int:
    if isinstance(data, dict):
        return sum(map(_values, data.values()))
    return sum(map(_values, data)) if isinstance(data, list) else 1


def _sent(*arguments: Any) -> None:
    """SQLAlchemy's event, in the context of the operation that the statement is for."""
    recorder = _recorder.get()
    if recorder is not None:
        if len(recorder.statements) >= MOST_STATEMENTS:
            raise GraphQLError(f"stopped after {MOST_STATEMENTS:,} statements")
        recorder.statements.append((arguments[2], time.perf_counter()))
