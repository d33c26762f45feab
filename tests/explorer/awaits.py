"""Every place of the library that may wait, found in its source."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.explorer.moments import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.explorer.moments import Line


# They talk to servers and sockets, or belong to the tests of others: what breaks them is tried in their own tests, with
# real servers, and no virtual clock goes along with one.
LEFT_OUT = ("inspector/", "redis/", "testing/")

NEVER_WAIT = {
    "_runs.py: Closing._close: async with asyncio.timeout(timeout):": "asyncio.timeout waits neither at its beginning "
    "nor at its end",
    "_snapshot.py: Snapshot._call_load: async with limit:": "the same",
    "strawberry/_awaited.py: _Await.resolve_async: result = await next_(source, info, **kwargs)": "behind it is a "
    "plain resolver in a coroutine, whose result is awaited in the next line",
    "strawberry/asgi.py: GraphQL.get_context: context = await super().get_context(request, response)": "Strawberry's "
    "makes a dict",
}
"""Awaits at which no task is ever suspended, and why."""


@dataclass(frozen=True)
class Await:
    """A place that may wait.

    Attributes:
        file: Relative to the library.
        first: Its first line.
        last: Its last line.
        function: The function that it is in, qualified.
        text: Its first line as it stands there, which changes less often than the number.
    """

    file: str
    first: int
    last: int
    function: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.function}: {self.text}"

    def has(self, line: Line) -> bool:
        """Whether a line belongs to it."""
        return line[0] == self.file and self.first <= line[1] <= self.last


def all_awaits() -> list[Await]:
    """Every `await`, `async for`, `async with`, and the `yield`s of what is awaited without being a coroutine.

    Without those of the integrations that are left out.
    """
    found = []
    for path in sorted(Path(LIBRARY).rglob("*.py")):
        text = path.read_text()
        file = str(path.relative_to(LIBRARY))
        if file.startswith(LEFT_OUT):
            continue
        for function, node in _places(ast.parse(text), []):
            last = node.end_lineno or node.lineno
            found.append(Await(file, node.lineno, last, ".".join(function), text.splitlines()[node.lineno - 1].strip()))
    return found


def not_among(lines: Iterable[Line]) -> list[Await]:
    """The awaits that none of these lines belongs to."""
    missing = all_awaits()
    for line in lines:
        missing = [each for each in missing if not each.has(line)]
    return missing


def _places(tree: ast.AST, function: list[str]) -> Iterator[tuple[list[str], ast.expr]]:
    for node in ast.iter_child_nodes(tree):
        inner = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = [*function, node.name]
        if isinstance(node, ast.Await):
            yield inner, node
        elif isinstance(node, ast.AsyncFor):
            yield inner, node.iter
        elif isinstance(node, ast.AsyncWith):
            yield from ((inner, item.context_expr) for item in node.items)
        elif isinstance(node, ast.comprehension) and node.is_async:
            yield inner, node.iter
        elif isinstance(node, ast.Yield | ast.YieldFrom) and _is_awaited(function):
            yield inner, node
        yield from _places(node, inner)


def _is_awaited(function: list[str]) -> bool:
    """Whether a generator is the machinery of an await, by the two names that there are."""
    return function[-1:] in (["_turn"], ["__await__"])
