"""What type checkers make of it: examples whose types are revealed by mypy and by pyright."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# What each expression is for a type checker, in mypy's words; pyright's are made alike below.
EXAMPLES: dict[str, str] = {
    "DataLoader(of_values).load(1)": "Future[str]",
    "DataLoader(of_values).load_many([1])": "Future[list[str]]",
    "DataLoader(of_values).load_many([1], return_exceptions=True)": "Future[list[str | Exception]]",
    "DataLoader(of_values).peek(1)": "str | None",
    "DataLoader(of_values).peek(1, 0)": "str | int",
    "DataLoader(of_values, max_batch_size=10, window=0.1, cache=False).load(1)": "Future[str]",
    "DataLoader(of_values_or_errors).load(1)": "Future[str]",
    "DataLoader(blocking).load(1)": "Future[str]",
    "DataLoader(of_mapping).load(1)": "Future[str]",
    "DataLoader(of_mapping, default=None).load(1)": "Future[str | None]",
    "DataLoader(of_pairs).load(1)": "Future[str]",
    "DataLoader(of_pairs, default=None).load(1)": "Future[str | None]",
    "DataLoader(of_airports, index_by='code').load('JFK')": "Future[Airport]",
    "DataLoader(of_airports, index_by='code', default=None).load('JFK')": "Future[Airport | None]",
    "DataLoader(of_airports, group_by='city').load('NYC')": "Future[list[Airport]]",
    "loaders.airports.load('JFK')": "Future[Airport | None]",
    "loaders.airports.load_many(['JFK'])": "Future[list[Airport | None]]",
    "loaders.indexed.load('JFK')": "Future[Airport]",
    "loaders.departures.load('JFK')": "Future[list[Airport]]",
    "loaders.departures(first=5).load('JFK')": "Future[list[Airport]]",
    "loaders.plain.load(1)": "Future[str]",
    "loaders.with_options.load(1)": "Future[str]",
    "loaders.mapped.load(1)": "Future[str]",
    "loaders.mapped_or.load(1)": "Future[str | None]",
    "loaders.streamed.load(1)": "Future[str]",
    "loaders.streamed_or.load(1)": "Future[str | None]",
    "loaders.blocking.load(1)": "Future[str]",
    "loaders.required(first=1).load(1)": "Future[str]",
}

# Each of these is an error to both.
MISTAKES = (
    "DataLoader(of_values).load('a string')",
    "DataLoader(of_values).prime(1, 2)",
    "DataLoader(of_values, max_batch_size='many')",
    "DataLoader(of_values, batch_size=10)",
    "loaders.plain.load('a string')",
    "loaders.departures(first='five')",
    "loaders.departures(last=5)",
    "loaders.required()",
    "loaders.plain(first=5)",
)

PREAMBLE = """
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from loader import DataLoader, Loaders, dataloader


@dataclass
class Airport:
    code: str
    city: str


async def of_values(keys: list[int]) -> list[str]: return []
async def of_values_or_errors(keys: list[int]) -> list[str | BaseException]: return []
async def of_mapping(keys: list[int]) -> dict[int, str]: return {}
async def of_pairs(keys: list[int]) -> AsyncIterator[tuple[int, str]]: yield 1, ""
async def of_airports(codes: list[str]) -> Sequence[Airport]: return []
def blocking(keys: list[int]) -> list[str]: return []


class AppLoaders(Loaders, max_concurrent_batches=1):
    @dataloader(index_by="code", default=None)
    async def airports(self, codes: list[str]) -> Sequence[Airport]: return []
    @dataloader(index_by="code")
    async def indexed(self, codes: list[str]) -> list[Airport]: return []
    @dataloader(group_by="city")
    async def departures(self, codes: list[str], *, first: int = 10) -> Sequence[Airport]: return []
    @dataloader
    async def plain(self, keys: list[int]) -> list[str]: return []
    @dataloader(max_batch_size=100, timeout=1.0)
    async def with_options(self, keys: list[int]) -> list[str]: return []
    @dataloader
    async def mapped(self, keys: list[int]) -> dict[int, str]: return {}
    @dataloader(default=None)
    async def mapped_or(self, keys: list[int]) -> dict[int, str]: return {}
    @dataloader
    async def streamed(self, keys: list[int]) -> AsyncIterator[tuple[int, str]]: yield 1, ""
    @dataloader(default=None)
    async def streamed_or(self, keys: list[int]) -> AsyncIterator[tuple[int, str]]: yield 1, ""
    @dataloader
    def blocking(self, keys: list[int]) -> list[str]: return []
    @dataloader
    async def required(self, keys: list[int], *, first: int) -> list[str]: return []


loaders = AppLoaders()
""".lstrip()


def check(folder: Path, lines: list[str], *command: str) -> dict[int, str]:
    """What a type checker says about each of the lines, by their number from 0."""
    program = folder / "example.py"
    program.write_text(PREAMBLE + "\n".join(lines) + "\n")
    first = PREAMBLE.count("\n") + 1
    done = subprocess.run(
        [sys.executable, "-m", *command, str(program)],
        check=False,  # what they say is what is tested
        capture_output=True,
        text=True,
        cwd=folder,
    )
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        if (match := re.search(r"example\.py:(\d+):(?:\d+)?(.*)", line)) is not None:
            said.setdefault(int(match[1]) - first, match[2])
    assert not [text for number, text in said.items() if number < 0], done.stdout
    assert said, done.stdout + done.stderr
    return said


CHECKERS = {
    "mypy": ("mypy", "--strict", "--no-error-summary", "--no-incremental", "--cache-dir", os.devnull),
    "pyright": ("pyright", "--pythonpath", sys.executable),
}


def revealed(text: str) -> str:
    match = re.search(r'(?:Revealed type is|Type of ".*" is) "(.*)"', text)
    assert match is not None, text
    name = re.sub(r"\b(?:\w+\.)+(?=\w)", "", match[1])
    name = re.sub(r"Union\[(.*)\]", lambda union: union[1].replace(", ", " | "), name)
    return name.replace("?", "")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_each_expression_has_the_type_that_one_expects(checker: str, tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    said = check(tmp_path, [f"reveal_type({example})" for example in EXAMPLES], *CHECKERS[checker])
    assert {example: revealed(said.get(number, "")) for number, example in enumerate(EXAMPLES)} == EXAMPLES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_each_mistake_is_an_error(checker: str, tmp_path: Path) -> None:
    said = check(tmp_path, list(MISTAKES), *CHECKERS[checker])
    unnoticed = [mistake for number, mistake in enumerate(MISTAKES) if "error" not in said.get(number, "")]
    assert unnoticed == []
