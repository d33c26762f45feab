"""`python -m loader plan`: its arithmetic, its simulation (held against the real Batcher), and its command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loader import _plan, _plan_svg
from loader.__main__ import main
from loader._batcher import Batcher
from loader._plan import Backend, Policy
from tests import loops

COSTS = ["--call-cost", "0.01", "--item-cost", "0.0001"]
SVG = "{http://www.w3.org/2000/svg}"


# The figures


@pytest.mark.parametrize(
    ("rate", "wait", "batch_size"),
    [(200, 0.035, 8), (20, 0.05, 2)],
    ids=["at 200/s batches fill within the window", "at 20/s the window ends first"],
)
def test_the_latency_that_batching_adds_can_be_planned(rate: float, wait: float, batch_size: float) -> None:
    planned = _plan.forecast(rate, max_batch_size=8, window=0.05)
    assert (planned.wait, planned.batch_size) == (wait, batch_size)
    assert planned.fill_time == pytest.approx(7 / rate)


@pytest.mark.parametrize(("rate", "wait", "batch_size"), [(200, 0.035, 8), (20, 0.05, 2)])
def test_regular_arrivals_behave_as_planned(rate: float, wait: float, batch_size: float) -> None:
    arrivals = [index / rate for index in range(4000)]
    result = _plan.simulate(arrivals, Policy("window", 8, 0.05 + 1e-9), Backend(0, 0))
    assert result.added_worst == pytest.approx(wait, abs=1e-6)
    assert result.batch_size == pytest.approx(batch_size, rel=0.01)


@pytest.mark.parametrize(
    ("policy", "backend"),
    [
        (Policy("none", 1), Backend(0.01, 0.001)),
        (Policy("idle", 8), Backend(0.01, 0.001)),
        (Policy("idle", 3), Backend(0.05, 0.001, concurrency=2)),
        (Policy("window", 8, 0.05), Backend(0.01, 0.001)),
        (Policy("window", 4, 0.02), Backend(0.05, 0.001, concurrency=3)),
        (Policy("window", 100, 0.3), Backend(0.4, 0)),
    ],
)
def test_the_simulation_sends_what_a_batcher_sends(policy: Policy, backend: Backend) -> None:
    arrivals = _plan.poisson(100, seed=1, count=300)
    batches: list[tuple[float, int]] = []

    async def handler(items: list[int]) -> list[int]:
        batches.append((asyncio.get_running_loop().time(), len(items)))
        await asyncio.sleep(backend.duration(len(items)))
        return items

    async def send_arrivals() -> None:
        loop = asyncio.get_running_loop()
        batcher = Batcher(
            handler,
            max_batch_size=policy.max_batch_size,
            window=policy.window or None,
            max_concurrent_batches=backend.concurrency,
        )
        futures = []
        for item, time in enumerate(arrivals):
            await asyncio.sleep(max(0.0, time - loop.time()))
            futures.append(batcher.submit_nowait(item))
        await asyncio.gather(*futures)

    loops.run(send_arrivals, debug=False)
    result = _plan.simulate(arrivals, policy, backend)
    assert len(arrivals) / len(batches) == pytest.approx(result.batch_size, rel=0.01)
    waits, items = 0.0, iter(arrivals)
    for left, size in batches:
        waits += sum(left - next(items) for _ in range(size))
    assert waits / len(arrivals) == pytest.approx(result.added_mean, rel=0.01, abs=1e-6)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert _plan.poisson(5, seed=3) == _plan.poisson(5, seed=3)
    assert _plan.poisson(5, seed=3) != _plan.poisson(5, seed=4)
    assert _plan.mean_rate(_plan.poisson(5, seed=3)) == pytest.approx(5, rel=0.05)


def test_arrivals_all_at_once_have_no_rate() -> None:
    result = _plan.simulate([1.0, 1.0, 1.0], Policy("idle", 2), Backend(0, 0))
    assert (result.batch_size, result.calls_per_second, result.utilisation) == (1.5, 0, 0)


# The advice


@pytest.mark.parametrize(
    ("rate", "backend", "says"),
    [
        (2000, Backend(0.01, 0.0001), "Nothing keeps up: full batches of 8 serve 740.7 items/s"),
        (200, Backend(0, 0.001), "Batching does not pay: the cost is per item, not per call"),
        (200, Backend(0, 0), "Batching does not pay: the cost is per item, not per call"),
        (410, Backend(0.0002, 0.0023), "would save only 7% of the backend's time (what you need"),
        (200, Backend(0.01, 0.0001), "Choose idle dispatch (no window): one call per item does not keep up"),
        (110, Backend(0.01, 0.0001, 8), "Choose idle dispatch (no window) if latency counts"),
        (5, Backend(0.001, 0.0001), "Batching does not pay at this rate"),
        (700, Backend(0.01, 0.0001), "one call per item does not keep up, and idle dispatch adds"),
        (70, Backend(0.5, 0.0001, 5), "Choose a window of 200 ms"),
    ],
)
def test_the_advice_is_one_sentence_that_fits(rate: float, backend: Backend, says: str) -> None:
    arrivals = _plan.poisson(rate, seed=0)
    results = [_plan.simulate(arrivals, policy, backend) for policy in _plan.policies(8, 0.05)]
    advice = _plan.advice(results, backend, rate, 0.05)
    assert says in advice
    assert advice.endswith(".")
    assert ". " not in advice


# The picture


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314  # our own output, not somebody's input


def test_the_picture_has_a_column_for_each_policy_and_titled_axes() -> None:
    backend = Backend(0.01, 0.0001)
    arrivals = _plan.poisson(200, seed=0, count=2000)
    results = [_plan.simulate(arrivals, policy, backend) for policy in _plan.policies(8, 0.05)]
    root = parsed(_plan_svg.draw(results, "<title> & more", "subtitle"))
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert {"<title> & more", "subtitle", "added latency (ms)", "backend busy (%)"} <= set(texts)
    assert {"none", "idle", "12.5 ms", "25 ms", "50 ms", "100 ms", "200 ms"} <= set(texts)
    assert "grows without end" in texts, "one call per item does not keep up"
    assert "prefers-color-scheme: dark" in ElementTree.tostring(root, encoding="unicode")


def test_bars_stay_inside_their_panel_whatever_the_scale() -> None:
    for call_cost, unit in ((0.0, "ms"), (0.0001, "ms"), (3.0, "s")):
        backend = Backend(call_cost, 0, concurrency=100)
        results = [
            _plan.simulate([index / 10 for index in range(50)], policy, backend)
            for policy in _plan.policies(8, call_cost)
        ]
        root = parsed(_plan_svg.draw(results, "title", "subtitle"))
        assert any(text.text == f"added latency ({unit})" for text in root.iter(f"{SVG}text"))
        bars = [bar for bar in root.iter(f"{SVG}rect") if bar.get("class") in {"mean", "worst"}][2:]
        assert bars
        for bar in bars:
            top, height = float(bar.attrib["y"]), float(bar.attrib["height"])
            assert 109.9 <= top <= top + height <= 320.1


# The command


def test_the_command_prints_a_row_for_each_policy_and_the_planned_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--rate", "200", "--max-batch-size", "8", "--window", "0.05", *COSTS]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert [row[0] for row in rows if row and row[0] in {"none", "idle", "window"}] == [
        "none",
        "idle",
        *["window"] * 5,
    ]
    assert ["window", "50", "ms", "8", "35", "ms"] in [row[:6] for row in rows]
    assert "(n-1)/r = 7/200 = 35 ms to fill a batch of 8, within the window" in printed
    assert printed.splitlines()[-1].startswith("Choose idle dispatch")


def test_the_command_says_when_the_window_ends_first(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--rate", "20", *COSTS])
    printed = capsys.readouterr().out
    assert "350 ms to fill a batch of 8, longer than the window of 50 ms" in printed
    assert "about 2 items share a batch" in printed


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--rate", "200", "--json", "--concurrency", "3", "--seed", "7", *COSTS])
    plan = json.loads(capsys.readouterr().out)
    assert plan["rate"] == 200
    assert plan["backend"] == {"call_cost": 0.01, "item_cost": 0.0001, "concurrency": 3}
    assert [row["policy"]["name"] for row in plan["results"]] == ["none", "idle", *["window"] * 5]
    assert plan["results"][0]["planned"] is None
    assert plan["results"][4]["planned"] == {"fill_time": 0.035, "wait": 0.035, "batch_size": 8}
    assert plan["advice"].endswith(".")


def test_the_command_takes_the_users_own_arrivals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, plot = tmp_path / "calls.txt", tmp_path / "plan.svg"
    trace.write_text("# seconds\n0.0\n\n0.25  # the second\n0.5\n0.75\n1.0\n", encoding="utf-8")
    main(["plan", "--trace", str(trace), "--plot", str(plot), *COSTS])
    printed = capsys.readouterr().out
    assert printed.startswith("Batching 4 arrivals/s\n")
    assert "5 arrivals of calls.txt" in printed
    assert parsed(plot.read_text(encoding="utf-8")).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0\n1\nsoon\n", "line 3: expected a number of seconds, found 'soon'"),
        ("0\n\n2\n1\n", "line 4: 1 is earlier than the arrival before it, 2"),
        ("0\nnan\n", "line 2: a time must be finite, not nan"),
        ("0\ninf\n", "line 2: a time must be finite, not inf"),
        ("# nothing\n", "expected at least two arrivals at different times"),
        ("5\n5\n", "expected at least two arrivals at different times"),
        ("0\n5e-324\n", "more than 1e+09 arrivals a second; are the times in seconds?"),
        ("0\n1e308\n", "line 2: 1e+308 seconds are too many; is the file in another unit?"),
        ("-1e308\n1e308\n", "line 1: -1e+308 seconds are too many"),
        ("9" * 5000, "line 1: a time must be finite, not 999"),
        (b"\xff\xfe", "is no text file"),
        (None, "cannot read"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_trace_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes | None, complaint: str
) -> None:
    trace = tmp_path / "calls.txt"
    if text is not None:
        trace.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SystemExit) as exit_:
        main(["plan", "--trace", str(trace), *COSTS])
    assert exit_.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["plan", *COSTS], "give --rate, or --trace"),
        (["plan", "--rate", "200"], "--call-cost"),
        (["plan", "--rate", "0", *COSTS], "--rate: must be above 0"),
        (["plan", "--rate", "many", *COSTS], "--rate: must be a number, not 'many'"),
        (["plan", "--rate", "inf", *COSTS], "--rate: must be finite"),
        (["plan", "--rate", "1", "--window", "-1", *COSTS], "--window"),
        (["plan", "--rate", "1", "--window", "0", *COSTS], "--window: must be above 0"),
        (["plan", "--rate", "1", "--max-batch-size", "0", *COSTS], "--max-batch-size: must be a whole number"),
        (["plan", "--rate", "1", "--concurrency", "1.5", *COSTS], "--concurrency: must be a whole number"),
        (["plan", "--rate", "1e308", *COSTS], "--rate: must be between 1e-09 and 1e+09"),
        (["plan", "--rate", "1e-320", *COSTS], "--rate: must be between"),
        (["plan", "--rate", "9" * 5000, *COSTS], "--rate: must be finite"),
        (["plan", "--rate", "x" * 5000, *COSTS], "--rate: must be a number, not 'xxx"),
        (["plan", "--rate", "1", "--window", "1e-320", *COSTS], "--window: must be between"),
        (["plan", "--rate", "1", "--call-cost", "1e308", "--item-cost", "0.001"], "--call-cost: must be between"),
        (["plan", "--rate", "1", "--call-cost", "0", "--item-cost", "5e-324"], "--item-cost: must be between"),
        (["plan", "--rate", "1", "--max-batch-size", "9" * 5000, *COSTS], "--max-batch-size: must have 6 digits"),
        (["plan", "--rate", "1", "--max-batch-size", "000", *COSTS], "--max-batch-size: must be a whole number"),
        (["plan", "--rate", "1", "--concurrency", "1000000", *COSTS], "--concurrency: must have 6 digits at most"),
        (["plan", "--rate", "1", "--plot", "no/such/place.svg", *COSTS], "cannot write"),
    ],
    ids=lambda value: " ".join(value)[:80] if isinstance(value, list) else None,
)
def test_bad_arguments_are_a_one_line_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    printed = capsys.readouterr()
    assert complaint in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("rate", ["1e-9", "1e9"])
@pytest.mark.parametrize("window", ["1e-9", "1e9"])
@pytest.mark.parametrize("cost", ["0", "1e-9", "1e9"])
@pytest.mark.parametrize("count", ["1", "999999"])
def test_at_its_bounds_a_plan_is_made_of_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str, window: str, cost: str, count: str
) -> None:
    plot = tmp_path / "plan.svg"
    costs = ["--call-cost", cost, "--item-cost", cost]
    counts = ["--max-batch-size", count, "--concurrency", count]
    main(["plan", "--rate", rate, "--window", window, "--plot", str(plot), "--json", *costs, *counts])
    drawn = plot.read_text(encoding="utf-8")
    parsed(drawn)
    printed = capsys.readouterr().out
    json.loads(printed, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert "nan" not in drawn
    assert '"nan' not in printed


def test_the_module_runs_as_a_command() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "loader", "plan", "--rate", "20", *COSTS],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout.startswith("Batching 20 arrivals/s")


def test_the_guide_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parent.parent / "docs" / "batcher.md").read_text(encoding="utf-8")
    examples = [block.partition("```")[0] for block in guide.split("```console\n$ python -m loader ")[1:]]
    assert len(examples) == 3
    for example in examples:
        command, _, output = example.partition("\n")
        main(command.split())
        assert capsys.readouterr().out == output
