"""Every part of the benchmarks runs, and has the rows that it promises; the pages show tables as they are today.

No figure is looked at but for being one: what they are depends on the machine.
"""

from __future__ import annotations

import json
import math
import re
import sys
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from benchmarks import load, pages, second_level, services, workers
from benchmarks.__main__ import PARTS, Run, main
from benchmarks.chart import draw
from benchmarks.rounds import in_turns
from benchmarks.table import Figure, Spread, Table, around, compared, ratio_in_rounds
from tests.postgres import postgres  # noqa: F401  # a fixture, found by its name
from tests.redis_servers import place  # noqa: F401  # another one

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SVG = "{http://www.w3.org/2000/svg}"

DATALOADERS = ["aiodataloader", "strawberry.dataloader", "loader"]
COURSES = ["load, all distinct", "load, 90 % repeated", "load, all cached", "load_many", "a batch of one key"]
QUERIES = ["one relation", "three levels", "wide: six relations", "deep: five levels"]
RELATIONS = ["planned relations", "relations, plan=False"]
RESOLVERS = [f"async def and {name}" for name in ("loader", "strawberry.dataloader", "aiodataloader")]
WAYS_TO_A_SERVICE = ["a call for each", "asked for ahead, attributes", *RELATIONS, *RESOLVERS]


def rows(*names: list[str]) -> list[tuple[str, ...]]:
    """A row for each combination."""
    return list(product(*names))


# What takes processes, and long: `tests/test_example_load.py` and `tests/test_redis_workers.py` run it.
ELSEWHERE = {"load", "workers"}

# What tables say that lack the rows of a server which does not answer, and the first names of these rows.
LEFT_OUT = {"No PostgreSQL answers": {"PostgreSQL"}, "No Redis answers": {"cold", "warm"}}

# The rows of each table of each other part.
PROMISED: dict[str, dict[str, list[tuple[str, ...]]]] = {
    "keys": {
        "keys-ratios": rows(COURSES),
        "keys": rows(COURSES, DATALOADERS),
        "memory": rows(DATALOADERS),
        "growth": rows(["load, all distinct", "load_many"]),
    },
    "reference": {
        "burst": rows(
            [
                "1,000 tasks that sleep for one batch",
                "one call per lookup, 50 at a time",
                "strawberry.dataloader, cache off",
                "strawberry.dataloader",
                "aiodataloader",
                "loader, cache off",
                "loader",
            ]
        ),
        "trickle": rows(["none (settle)", "2 ms", "5 ms"]),
    },
    "latency": {"latency": rows(["one request", "50 requests"], [*DATALOADERS, "loader, Settle(turns=3)"])},
    "batcher": {
        "batcher": [
            ("100/s", "a call for each"),
            *rows(
                ["100/s", "1,000/s", "5,000/s"],
                ["a queue by hand, 5 ms", "Batcher, no window", "Batcher, window=0.005"],
            ),
        ]
    },
    "requests": {
        "requests-ratios": rows(QUERIES),
        "requests": rows(QUERIES, ["plain attributes", *RELATIONS, *RESOLVERS]),
    },
    "services": {
        "services": rows(["simulated, 5 ms", "SQLite", "PostgreSQL"], QUERIES[:2], WAYS_TO_A_SERVICE),
    },
    "shapes": {
        "shapes-total": [
            *rows(["resolvers"], ["loader", "strawberry.dataloader", "aiodataloader"]),
            *rows(["relations"], [*RELATIONS, *RESOLVERS]),
        ],
        "shapes": [],  # each has the name of a shape, and its query
        "shapes-relations": [],
    },
    "observing": {
        "observing": rows(
            QUERIES[:2],
            [*RELATIONS, RESOLVERS[0]],
            ["nobody", "statistics", "statistics, timeline and hints", "the inspector"],
        ),
    },
    "second_level": {"second-level": rows(["absent", "cold", "warm"])},
    "triggers": {
        "scenario": rows(
            ["a task for each", "Debouncer(wait=0.05)", "Debouncer(wait=0.05, max_wait=0.1)", "Coalescer()"]
        ),
        "triggers": rows(
            [
                "cancel() and call_later()",
                "Debouncer.trigger()",
                "Coalescer.trigger()",
                "Keyed.trigger(key)",
                "Debouncer.trigger_threadsafe()",
            ]
        ),
    },
}


@cache
def quick(part: str) -> dict[str, Table]:
    """The tables of a quick run of a part."""
    return {table.name: table for table in Run().part(part, quick=True)}


def figures(table: Table) -> list[object]:
    """What is no name of a row."""
    cells = [cell for labels, row in zip(table.labels(), table.rows, strict=True) for cell in row[len(labels) :]]
    return [number for cell in cells for number in (cell if isinstance(cell, tuple) else [cell])]


def test_every_part_is_tested() -> None:
    assert PROMISED.keys() == PARTS.keys() - ELSEWHERE


@pytest.mark.parametrize("part", PROMISED)
def test_a_part_has_the_tables_and_rows_that_it_promises(part: str) -> None:
    tables = quick(part)
    assert list(tables) == list(PROMISED[part])
    for name, promised in PROMISED[part].items():
        table = tables[name]
        left_out = {name for said, names in LEFT_OUT.items() if said in table.caption for name in names}
        assert promised == [] or sorted(table.labels()) == sorted(
            labels for labels in promised if labels[0] not in left_out
        )
        assert {len(row) for row in table.rows} == {len(table.head)}
        for figure in figures(table):
            assert figure is None or (isinstance(figure, int | float) and math.isfinite(figure))


@pytest.mark.parametrize("part", PROMISED)
def test_the_tables_of_a_part_are_data_and_charts(part: str) -> None:
    for table in quick(part).values():
        data = json.loads(json.dumps(table.data()))
        assert data["head"] == list(table.head)
        assert len(data["rows"]) == len(table.rows)
        if table.chart:
            drawn = ElementTree.fromstring(draw(table))  # noqa: S314  # our own
            bars = [each.get("class") for each in drawn.iter(f"{SVG}rect") if each.get("class") != "paper"]
            own = [labels[-1] in table.ours for labels in table.labels()]
            assert bars == ["ours" if each else "other" for each in own]
            assert any(own)
            texts = [each.text for each in drawn.iter(f"{SVG}text")]
            assert {labels[-1] for labels in table.labels()} <= set(texts)
            assert "prefers-color-scheme: dark" in (drawn.findtext(f"{SVG}style") or "")


def test_no_two_tables_have_the_same_name() -> None:
    names = [name for tables in PROMISED.values() for name in tables]
    assert sorted(names) == sorted(set(names))


@pytest.mark.usefixtures("postgres")
def test_a_database_server_is_measured_where_one_answers() -> None:
    (table,) = quick("services").values()
    assert sorted(table.labels()) == sorted(PROMISED["services"]["services"])
    assert "left out" not in table.caption


def test_without_a_database_server_its_rows_are_left_out_and_the_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "POSTGRES", "postgresql://postgres@127.0.0.1:1/test")
    (table,) = services.tables(quick=True)
    assert {labels[0] for labels in table.labels()} == {"simulated, 5 ms", "SQLite"}
    assert "No PostgreSQL answers where BENCHMARK_POSTGRES_URL says, so its rows are left out: " in table.caption


@pytest.mark.usefixtures("place")
def test_a_second_level_cache_is_measured_where_a_server_answers() -> None:
    (table,) = quick("second_level").values()
    assert table.labels() == PROMISED["second_level"]["second-level"]
    assert "left out" not in table.caption


def test_without_a_server_only_what_needs_none_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (second_level, workers):
        monkeypatch.setattr(module, "URL", "redis://127.0.0.1:1/0")
    (cached,), (shared,) = second_level.tables(quick=True), workers.tables(quick=True)
    assert cached.labels() == [("absent",)]
    assert shared.rows == []
    for table in (cached, shared):
        assert "No Redis answers where EXAMPLE_REDIS_URL says, so its rows are left out." in table.caption
        assert table.text() and table.markdown()  # noqa: PT018


def test_the_services_count_a_call_for_each_level_or_for_each_record() -> None:
    (table,) = quick("services").values()
    calls = {labels: row[-1] for labels, row in zip(table.labels(), table.rows, strict=True)}
    for service, way in product(["simulated, 5 ms", "SQLite"], WAYS_TO_A_SERVICE):
        for_each = way == "a call for each"
        assert calls[service, "one relation", way] == 1 + (services.QUICK if for_each else 1)
        assert calls[service, "three levels", way] == 1 + 3 * (services.QUICK if for_each else 1)


def test_planned_relations_take_the_least_number_of_batches_in_every_shape() -> None:
    total = quick("shapes")["shapes-total"]
    (row,) = [row for row in total.rows if row[1] == "planned relations"]
    cells = dict(zip(total.head, row, strict=True))
    assert cells["batches"] == cells["least"]
    assert cells["least reached"] == cells["shapes served"] == cells["of"]


def test_a_run_is_printed_and_written_as_data_and_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "figures.json", tmp_path / "charts"
    main(["triggers", "--quick", "--markdown", "--json", str(file), "--plot", str(folder)])
    printed = capsys.readouterr().out
    assert "| way | of doing it by hand | median | nine in ten | held |\n|---|---|---|---|---|\n" in printed
    assert re.search(r"\ntriggers \d+ s; \d+ s in all\n", printed)
    data = json.loads(file.read_text())
    assert data["versions"].keys() >= {"strawberry-loader", "strawberry-graphql", "aiodataloader"}
    assert data["python"] and data["platform"] and data["cores"] and data["date"]  # noqa: PT018
    assert [table["name"] for table in data["parts"]["triggers"]["tables"]] == ["scenario", "triggers"]
    assert [path.name for path in folder.iterdir()] == ["triggers.svg"]
    main(["triggers", "--quick"])
    assert "\nway                             of doing it by hand" in capsys.readouterr().out


def test_a_part_that_fails_is_reported_and_the_figures_of_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tables(*, quick: bool) -> Iterator[Table]:
        yield MADE
        raise RuntimeError("no answer")

    failing = ModuleType("benchmarks.failing")
    failing.tables = tables  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.failing", failing)
    monkeypatch.setitem(PARTS, "failing", "fails")
    file = tmp_path / "figures.json"
    with pytest.raises(SystemExit, match="failed: failing"):
        main(["failing", "triggers", "--quick", "--json", str(file)])
    assert "RuntimeError: no answer" in capsys.readouterr().err
    assert json.loads(file.read_text())["parts"].keys() == {"triggers"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["keys", "keyz"], "no such part: keyz; there are keys, reference,"),
        (["--quick", "--readme"], "--readme is for what was measured, and --quick measures nothing"),
        (["--quick", "--compare"], "--compare is for what was measured, and --quick measures nothing"),
        (["--json", "/no/such/folder/figures.json"], "there is no folder /no/such/folder for --json"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(given)
    assert message in capsys.readouterr().err


MADE = Table(
    "made",
    "By hand.",
    ["way", "ratio", "median", "nine in ten", "calls"],
    [
        ["ours", Figure(0.5, digits=2), Figure(0.0123, "ms", 1), Spread(Figure(0.012, "ms"), Figure(0.0131, "ms")), 10],
        ["theirs", Figure(1, digits=2), Figure(1.5, "ms", 1), Spread(Figure(1.4, "ms"), Figure(1.6, "ms")), 1234],
        ["neither", None, None, None, None],
    ],
)


def test_a_table_is_shown_in_units_and_is_data_in_seconds() -> None:
    assert MADE.markdown().splitlines() == [
        "| way | ratio | median | nine in ten | calls |",
        "|---|---|---|---|---|",
        "| ours | 0.50 | 12.3 ms | 12 to 13 ms | 10 |",
        "| theirs | 1.00 | 1,500.0 ms | 1,400 to 1,600 ms | 1,234 |",
        "| neither | - | - | - | - |",
    ]
    assert MADE.text().splitlines()[:2] == [
        "way      ratio      median        nine in ten  calls",
        "ours      0.50     12.3 ms        12 to 13 ms     10",
    ]
    assert json.loads(json.dumps(MADE.data()))["rows"] == [
        ["ours", 0.5, 0.0123, [0.012, 0.0131], 10],
        ["theirs", 1.0, 1.5, [1.4, 1.6], 1234],
        ["neither", None, None, None, None],
    ]


async def test_ways_have_their_turns_in_one_order_and_then_in_the_other() -> None:
    turns: list[str] = []

    async def way(name: str) -> int:
        turns.append(name)
        return len(turns)

    took = await in_turns(3, {name: partial(way, name) for name in "abc"})
    assert turns == [*"abc", *"cba", *"abc"]
    assert took == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_ways_are_compared_by_their_medians_and_have_a_spread() -> None:
    cells = compared({"ours": [float(took) for took in range(21)], "theirs": [20.0]}, ["theirs"], "s")
    assert cells == {"ours": [0.5, 10.0, (1.0, 19.0)], "theirs": [1.0, 20.0, (20.0, 20.0)]}


def test_ways_are_compared_round_by_round() -> None:
    others = [1.0, *[2.0, 4.0] * 10]  # the machine was slower at times
    around = ratio_in_rounds([times * other for times, other in enumerate(others)], others)
    assert around == (10.0, 1.0, 19.0)
    assert str(around) == "10.00 (1.00 to 19.00)"


def test_a_run_writes_its_tables_into_the_pages_and_leaves_the_rest(tmp_path: Path) -> None:
    page = "# A\n\n<!-- figures: {} -->\n\n{}\n\n<!-- end of figures -->\n\nText.\n"
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "README.md").write_text(page.format("made", "-") + page.format("machine", "-"))
    (tmp_path / "docs" / "other.md").write_text(page.format("other", "| a |\n|---|\n| b |"))
    (tmp_path / "docs" / "images" / "other.svg").write_text("<svg/>")
    assert pages.refresh(tmp_path, [MADE], "This one.") == [tmp_path / "README.md"]
    written = page.format("made", MADE.markdown()) + page.format("machine", "This one.")
    assert (tmp_path / "README.md").read_text() == written
    assert pages.refresh(tmp_path, [MADE], "This one.") == []
    assert pages.marked((tmp_path / "docs" / "other.md").read_text()) == {"other": "| a |\n|---|\n| b |"}
    assert (tmp_path / "docs" / "images" / "other.svg").read_text() == "<svg/>"


def test_a_run_may_widen_the_spreads_that_are_stated(tmp_path: Path) -> None:
    def page(*cells: str) -> str:
        table = "| way | took | calls |\n|---|---|---|\n" + "\n".join(cells)
        return f"<!-- figures: made -->\n\n{table}\n\n<!-- end of figures -->\n"

    def table(*rounds: list[float]) -> Table:
        rows = [[f"way {number}", around(each, "ms", 0), 6] for number, each in enumerate(rounds)]
        return Table("made", "", ["way", "took", "calls"], rows)

    readme = tmp_path / "README.md"
    readme.write_text(page("| way 0 | 1,200 ms (900 to 1,500) | 7 |", "| way 1 | 5 ms (5 to 5) | 7 |"))
    assert pages.refresh(tmp_path, [table([1.0], [0.006])], "This one.", widen=True) == [readme]
    assert readme.read_text() == page("| way 0 | 1,000 ms (900 to 1,500) | 6 |", "| way 1 | 6 ms (5 to 6) | 6 |")
    pages.refresh(tmp_path, [table([2.0], [0.001], [0.001])], "This one.", widen=True)
    assert "| way 0 | 2,000 ms (2,000 to 2,000) | 6 |" in readme.read_text()  # it has other rows now


def test_a_run_draws_the_pictures_of_the_pages_anew(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("![made](docs/images/triggers.svg)\n")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    picture = tmp_path / "docs" / "images" / "triggers.svg"
    picture.touch()
    table = quick("triggers")["triggers"]
    assert pages.refresh(tmp_path, [table], "This one.") == [picture]
    assert picture.read_text() == draw(table)


def test_a_run_says_which_figures_of_a_page_it_did_not_reproduce() -> None:
    def table(first: list[float], second: list[float], calls: int) -> Table:
        return Table("made", "", ["way", "took", "of it", "calls"], [
            ["ours", around(first, "ms"), around(second, "", 2), calls],
        ])  # fmt: skip

    page = (
        f"<!-- figures: made -->\n\n{table([1.0, 1.2, 2.0], [0.5, 0.6, 0.7], 6).markdown()}\n\n<!-- end of figures -->"
    )
    assert "| ours | 1,200.0 ms (1,020.0 to 1,920.0) | 0.60 (0.51 to 0.69) | 6 |" in page
    assert pages.strays(page, [table([1.9], [0.52], 6), Table("other", "", ["way"], [])]) == []
    assert pages.strays(page, [table([1.93], [0.7], 7)]) == [
        "made, ours, took: 1,930.0 ms (1,930.0 to 1,930.0) is not what is stated, 1,200.0 ms (1,020.0 to 1,920.0)",
        "made, ours, of it: 0.70 (0.70 to 0.70) is not what is stated, 0.60 (0.51 to 0.69)",
        "made, ours, calls: 7 is not what is stated, 6",
    ]
    other = Table("made", "", ["way", "calls"], [["ours", 6]])
    assert pages.strays(page, [other]) == ["made has other columns or rows than are stated"]


def test_a_run_that_does_not_reproduce_the_readme_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[str] = []
    monkeypatch.setattr("benchmarks.__main__.strays", lambda *_: found)
    monkeypatch.setattr(Run, "part", lambda self, name, quick: iter(()))
    main(["triggers", "--compare"])
    assert "every figure of the README that was measured lies within its spread" in capsys.readouterr().out
    found.append("made, ours, calls: 7 is not what is stated, 6")
    with pytest.raises(SystemExit, match="1 figures lie outside of their spread"):
        main(["triggers", "--compare"])
    assert found[0] in capsys.readouterr().out


SHOWN = [
    pytest.param(name, text, id=f"{page.relative_to(ROOT)}:{name}")
    for page in pages.pages(ROOT)
    for name, text in pages.marked(page.read_text()).items()
]
PART_OF = {name: part for part, tables in PROMISED.items() for name in tables}


@pytest.mark.parametrize(("name", "text"), SHOWN)
def test_a_page_shows_a_table_with_the_columns_and_rows_that_it_has_today(name: str, text: str) -> None:
    if name == "machine":
        assert re.fullmatch(r"\w+ 3\.\d+\.\d+\S*, \d+ cores, .*; strawberry-graphql .*, aiodataloader .*\.", text)
        return
    head, *rows = pages.cells(text)
    if name == "load":  # which takes its time
        assert (head, [row[0] for row in rows]) == (load.HEAD, list(load.WAYS))
        return
    today = quick(PART_OF[name])[name]
    assert head == list(today.head)
    assert [tuple(row[: len(labels)]) for row, labels in zip(rows, today.labels(), strict=True)] == today.labels()


def test_the_readme_shows_the_machine_the_tables_and_the_picture_that_it_speaks_of() -> None:
    readme = (ROOT / "README.md").read_text()
    assert pages.marked(readme).keys() == {"machine", "requests-ratios", "keys-ratios", "burst", "trickle", "load"}
    assert "](docs/images/requests.svg)" in readme


@pytest.mark.parametrize("name", [name for name in pages.pictures(ROOT) if name in PART_OF])
def test_a_picture_of_the_docs_has_the_rows_that_its_table_has_today(name: str) -> None:
    drawn = ElementTree.parse(pages.pictures(ROOT)[name])  # noqa: S314  # our own
    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    for *groups, label in quick(PART_OF[name])[name].labels():
        assert not groups or ", ".join(groups) in texts
        assert label in texts
