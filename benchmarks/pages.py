"""The tables in the README and the guides, which a run writes anew.

A table stands between two comments, `<!-- figures: NAME -->` and `<!-- end of figures -->`; `machine` is a line that
says where they were taken. A picture is one of `docs/images` that has the name of a table.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks.chart import draw

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from benchmarks.table import Table

MARKED = re.compile(
    r"(?<=<!-- figures: )(?P<name>\S+)(?P<open> -->\n\n)(?P<text>.*?)(?=\n\n<!-- end of figures -->)", re.DOTALL
)


FIGURE = re.compile(r"(?P<shown>-?[\d,.]+)(?: \S+)? \((?P<low>-?[\d,.]+) to (?P<high>-?[\d,.]+)\)")
"""A figure and its spread, as `Around` shows them."""


def pages(root: Path) -> Iterator[Path]:
    """The pages that may have tables."""
    yield root / "README.md"
    yield from sorted((root / "docs").glob("**/*.md"))


def pictures(root: Path) -> dict[str, Path]:
    """The pictures, by the name of the table."""
    return {path.stem: path for path in sorted((root / "docs" / "images").glob("*.svg"))}


def marked(page: str) -> dict[str, str]:
    """What stands between the comments of a page, by the name of the table."""
    return {match["name"]: match["text"] for match in MARKED.finditer(page)}


def refreshed(page: str, texts: Mapping[str, str]) -> str:
    """A page with new texts between its comments; those that are not given stay."""
    return MARKED.sub(lambda match: match["name"] + match["open"] + texts.get(match["name"], match["text"]), page)


def refresh(root: Path, tables: list[Table], machine: str, *, widen: bool = False) -> list[Path]:
    """Write the tables of a run into the pages, and draw the pictures anew; which files that were.

    With `widen` the spreads that the pages state stay where they are wider: from one run to the next a machine differs
    more than from round to round.
    """
    texts = {"machine": machine, **{table.name: table.markdown() for table in tables}}
    written = []
    for page in pages(root):
        before = page.read_text(encoding="utf-8")
        wider = {name: widened(text, texts.get(name, text)) for name, text in marked(before).items()}
        after = refreshed(before, wider if widen else texts)
        if after != before:
            page.write_text(after, encoding="utf-8")
            written.append(page)
    known = pictures(root)
    for table in tables:
        if table.name in known:
            known[table.name].write_text(draw(table), encoding="utf-8")
            written.append(known[table.name])
    return written


def widened(stated: str, new: str) -> str:
    """A new table, with the spreads that are stated where they are wider."""
    before, now = FIGURE.finditer(stated), FIGURE.finditer(new)
    if len(FIGURE.findall(stated)) != len(FIGURE.findall(new)):
        return new
    spreads = zip(before, now, strict=True)

    def wider(match: re.Match[str]) -> str:
        both = next(spreads)
        low = min((each["low"] for each in both), key=_number)
        high = max((each["high"] for each in both), key=_number)
        return f"{match[0].partition(' (')[0]} ({low} to {high})"

    return FIGURE.sub(wider, new)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def strays(page: str, tables: list[Table]) -> list[str]:
    """Which figures of a page a run did not reproduce: within the spread that is stated, or exactly where none is."""
    found = []
    for table in tables:
        stated = marked(page).get(table.name)
        if stated is None:
            continue
        (head, *said), (new_head, *now) = cells(stated), cells(table.markdown())
        if (head, [row[0] for row in said]) != (new_head, [row[0] for row in now]):
            found.append(f"{table.name} has other columns or rows than are stated")
            continue
        for row, new_row in zip(said, now, strict=True):
            for column, cell, new in zip(head, row, new_row, strict=True):
                if not _agree(cell, new):
                    found.append(f"{table.name}, {row[0]}, {column}: {new} is not what is stated, {cell}")
    return found


def cells(markdown: str) -> list[list[str]]:
    """The cells of a table, without the rule below its head."""
    head, _, *rows = markdown.splitlines()
    return [line.strip("| ").split(" | ") for line in (head, *rows)]


def _agree(stated: str, new: str) -> bool:
    before, now = FIGURE.fullmatch(stated), FIGURE.fullmatch(new)
    if before is None or now is None:
        return stated == new
    return _number(before["low"]) <= _number(now["shown"]) <= _number(before["high"])
