"""Ask one query of two schemas that differ only in whether they plan, and hold the answers against each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import strawberry
from strawberry.schema.config import StrawberryConfig

from loader.strawberry import install

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from strawberry.extensions import SchemaExtension

    from loader import Loaders

INCREMENTAL = StrawberryConfig(enable_experimental_incremental_execution=True)


class QuietSchema(strawberry.Schema):
    """A schema that logs no errors: the tests look at those of the answer."""

    def process_errors(self, errors: Any, execution_context: Any = None) -> None:
        pass


@dataclass
class Log:
    """What one operation led to.

    Attributes:
        batches: What the loaders were asked: the name of the loader, and the keys.
        calls: How often each resolver and permission was called, at each path.
    """

    batches: list[tuple[str, list[Any]]] = field(default_factory=list)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return len(self.batches)

    def call(self, what: str, info: strawberry.Info) -> None:
        self.calls[what, repr(info.path.as_list())] += 1

    def keys(self, name: str) -> list[list[Any]]:
        return [keys for loader, keys in self.batches if loader == name]


@dataclass
class Answer:
    data: Any
    errors: list[tuple[list[str | int], str]]
    log: Log
    took: float

    def __post_init__(self) -> None:
        self.errors.sort(key=repr)  # GraphQL gives them no order: without a plan it is that of their coming

    def seen(self) -> list[Any]:
        """The errors as far as GraphQL says which they are.

        One in what became null because of another one may be there or not: the spec lets fields be cancelled whose
        answer nobody will see, and which of several errors is the first depends on the timing.
        """
        seen: dict[str, Any] = {}
        for path, message in self.errors:
            at = self._null_at(path)
            seen.setdefault(repr(path[:at]), message if at == len(path) else "something below")
        return sorted(seen.items())

    @property
    def cancelled(self) -> bool:
        """Whether an error made more null than its own field: then others were cancelled, or had asked just before."""
        return bool(self.nulls_of_errors_below())

    def nulls_of_errors_below(self) -> list[list[str | int]]:
        """The paths of what an error made null beyond its own field."""
        return [path[:at] for path, _ in self.errors if (at := self._null_at(path)) < len(path)]

    def _null_at(self, path: list[str | int]) -> int:
        """How many steps of an error's path lead to the null that it made."""
        value, at = self.data, 0
        while at < len(path) and value is not None:
            value, at = value[path[at]], at + 1
        return at


async def ask(schema: strawberry.Schema, query: str, loaders: Loaders, **more: Any) -> Answer:
    """The answer, and how long it took on the loop's clock. `loaders` has a `log`."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    context = {"loaders": loaders, **more.pop("context", {})}
    async with loaders:
        result = await schema.execute(query, context_value=context, **more)
        took = round(loop.time() - began, 6)
    errors = [(list(error.path or ()), error.message) for error in result.errors or ()]
    return Answer(result.data, errors, loaders.log, took)  # type: ignore[attr-defined]  # the tests' loaders have one


def schemas(
    query: type,
    loaders: type[Loaders] | None = None,
    *,
    extensions: Sequence[type[SchemaExtension]] = (),
    early_execution: bool = False,
    **options: Any,
) -> tuple[strawberry.Schema, strawberry.Schema]:
    """One with a plan and one without."""
    both = []
    for plan in (True, False):
        schema = QuietSchema(query, extensions=list(extensions), **options)
        install(schema, loaders=loaders, plan=plan, early_execution=early_execution)
        both.append(schema)
    return both[0], both[1]


async def answers(
    both: tuple[strawberry.Schema, strawberry.Schema], query: str, make: Callable[[], Loaders], **more: Any
) -> tuple[Answer, Answer]:
    """The answers with a plan and without, which are the same, and as fast, with no more batches."""
    planned = await ask(both[0], query, make(), **more)
    plain = await ask(both[1], query, make(), **more)
    assert planned.data == plain.data
    assert planned.seen() == plain.seen()
    assert planned.took <= plain.took
    assert planned.log.count <= plain.log.count
    assert {*planned.log.calls.values(), *plain.log.calls.values()} <= {1}
    return planned, plain
