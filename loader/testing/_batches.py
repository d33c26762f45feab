"""The batches of a test: their keys, how many there were, and what to show where that is not what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from reprlib import Repr
from typing import TYPE_CHECKING, Any, final

from loader.errors import LoaderError
from loader.observe import Observer, observing
from loader.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from loader.observe import BatchRecord

MOST_LINES = 80
"""Of a chart in a failure: a test that sends thousands of batches fails with the first of them, and all hints."""

_brief = Repr()
_brief.maxlist = 10
_brief.maxstring = _brief.maxother = 60


class NoBatchError(LoaderError, KeyError):
    """No loader or batcher of this name sent a batch."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would put the sentence in quotes


class AmbiguousNameError(LoaderError, LookupError):
    """Loaders of several classes have this name, and only the names of their classes tell them apart."""


@final
class Batches(Mapping[str, list[list[Any]]]):
    """The keys of the batches that were sent, in the order in which they were, by the name of the loader or batcher.

    A loader of a `Loaders` class needs the name of its class only where another class has one of the same name:
    `batches["AppLoaders.users"]` is `batches["users"]`. Of a loader with parameters, `batches["posts(first=5)"]` are
    the batches with these, `batches["posts"]` those with any. The name has all parameters, also those with a default,
    in the order of the method. The batches of several loaders of one name, such as those of two requests, are in one
    list. A batch is there as soon as its function is called.

    As a mapping it has one entry for each loader, parameters included, under the shortest name that tells it apart,
    so that all batches can be compared at once: `batches == {"users": [[1, 2], [3]], "posts(first=5)": [[1]]}`.

    Examples:
        >>> import asyncio
        >>> from loader import DataLoader
        >>> from loader.testing import record_batches
        >>> async def doubles(numbers: list[int]) -> list[int]:
        ...     return [2 * number for number in numbers]
        >>> async def main() -> None:
        ...     loader = DataLoader(doubles)
        ...     await loader.load_many([1, 2, 1])
        ...     await loader.load(3)
        >>> with record_batches() as batches:
        ...     asyncio.run(main())
        >>> batches["doubles"]
        [[1, 2], [3]]
        >>> batches.assert_batches(doubles=2)

    Attributes:
        timeline: All that was observed meanwhile, to look at: `print(batches.timeline)`.
    """

    __slots__ = ("_sent", "timeline")

    def __init__(self) -> None:
        self.timeline: Timeline = Timeline("loaders", keys=True)
        self._sent: list[BatchRecord] = []

    def __getitem__(self, name: str) -> list[list[Any]]:
        """The keys of the batches of one name.

        Raises:
            NoBatchError: If there was none: a misspelled name must not look like a loader that was not needed. A loader
                that sent none is `name not in batches`, or `batches.get(name, []) == []`.
            AmbiguousNameError: If it is the name of loaders of several classes.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test
        found = self._named(name)
        if not found:
            seen = ", ".join(f"{each} ({len(keys)})" for each, keys in self.items())
            others = f"but those of {seen}" if seen else "nor any other"
            raise NoBatchError(f"no batch of {name!r} was sent, {others}")
        return _keys(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name())

    def __len__(self) -> int:
        return len(self._by_name())

    def __repr__(self) -> str:
        return repr(dict(self))

    def assert_batches(self, counts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Assert how many batches each loader sent, and that no other loader sent one.

        To leave the others out of it, look at one: `assert len(batches["users"]) == 1`.

        Args:
            counts: Numbers by name, for names that are no Python names: `{"posts(first=5)": 1}`.
            named: Numbers by name.

        Raises:
            AssertionError: If it is not so. It tells the numbers, the timeline, and what hints were found in it.
            AmbiguousNameError: If a name is that of loaders of several classes.
            TypeError: If a count is no whole number.
        """
        __tracebackhide__ = True
        expected = {**(counts or {}), **named}
        if wrong := [name for name, count in expected.items() if not isinstance(count, int)]:
            raise TypeError(f"assert_batches() takes numbers of batches; for keys, assert batches[{wrong[0]!r}] == ...")
        found = {name: self._named(name) for name in expected}
        mentioned = {batch.name for batches in found.values() for batch in batches}
        found |= {name: batches for name, batches in self._by_name().items() if batches[0].name not in mentioned}
        differences = [
            f"{name}: {_counted(batches)}, not {expected.get(name, 0)}"
            for name, batches in found.items()
            if len(batches) != expected.get(name, 0)
        ]
        if differences:
            raise AssertionError("\n".join(["other batches were sent than expected", *differences, "", self._shown()]))

    def explain(self, error: BaseException) -> None:
        """Add the timeline, and what hints were found in it, to an exception as a note, unless it tells it already."""
        note = self._shown()
        told = (*error.args, *getattr(error, "__notes__", ()))
        if not any(isinstance(text, str) and note in text for text in told):
            error.add_note(note)

    def _named(self, name: str) -> list[BatchRecord]:
        """The batches that a name stands for: a whole name before a part of one."""
        sent = list(self._sent)
        for part in (_whole, _label, _without_class, _short):
            found = [batch for batch in sent if part(batch) == name]
            labels = dict.fromkeys(batch.label for batch in found)
            if len(labels) > 1:
                raise AmbiguousNameError(f"{name!r} is the name of several loaders: {', '.join(labels)}")
            if found:
                return found
        return []

    def _by_name(self) -> dict[str, list[BatchRecord]]:
        sent = list(self._sent)
        labels: dict[str, set[str]] = {}
        for batch in sent:
            labels.setdefault(_short(batch), set()).add(batch.label)
        found: dict[str, list[BatchRecord]] = {}
        for batch in sent:
            name = _without_class(batch) if len(labels[_short(batch)]) == 1 else batch.name
            found.setdefault(name, []).append(batch)
        return found

    def _shown(self) -> str:
        """The chart, not longer than one wants to read."""
        hints = [f"hint: {hint}" for hint in self.timeline.hints()]
        lines = str(self.timeline).splitlines()[: -len(hints) or None]
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"and {len(lines) - MOST_LINES} more lines: print(batches.timeline)"]
        return "\n".join([*lines, *hints])


@contextmanager
def record_batches() -> Iterator[Batches]:
    """Record the batches that are sent inside the block, in all threads and event loops of the process.

    What it hands out does not change any more after the block. An `AssertionError` that leaves the block takes the
    timeline with it, as a note. Recordings may overlap: each has what was sent inside its own block. A batch that was
    open before the block is not recorded.

    Returns:
        The batches so far, at any time.
    """
    batches = Batches()
    with observing(batches.timeline), observing(_Recorder(batches._sent)):
        try:
            yield batches
        except AssertionError as error:
            batches.explain(error)
            raise
        finally:
            batches._sent = list(batches._sent)  # what was opened inside and is sent later goes to the other list


class _Recorder(Observer):
    wants_places = False
    wants_keys = True

    def __init__(self, sent: list[BatchRecord]) -> None:
        self._sent = sent

    def batch_sent(self, batch: BatchRecord) -> None:
        self._sent.append(batch)


def _whole(batch: BatchRecord) -> str:
    return batch.name


def _label(batch: BatchRecord) -> str:
    return batch.label


def _without_class(batch: BatchRecord) -> str:
    return _short(batch) + "".join(batch.name.partition("(")[1:])


def _short(batch: BatchRecord) -> str:
    return batch.label.rpartition(".")[2]


def _keys(batches: Iterable[BatchRecord]) -> list[list[Any]]:
    return [list(batch.keys or ()) for batch in batches]


def _counted(batches: Sequence[BatchRecord]) -> str:
    count = len(batches)
    number = f"{count} batch" + "es" * (count != 1)
    return f"{number} {_brief.repr(_keys(batches))}" if batches else number
