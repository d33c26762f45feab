"""A timeline shows an operation's batches and runs: as text, as a trace that Perfetto takes, as plain data."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any

import pytest

from loader import Batcher, Coalescer, DataLoader, Loaders, Scope, _watching, dataloader
from loader.observe import observing
from loader.timeline import Timeline
from tests.fakes import Backend, outcome, together, turns
from tests.jobs import Job


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watching, "now", lambda: asyncio.get_running_loop().time())


class Shop(Loaders, max_concurrent_batches=1):
    @dataloader(max_batch_size=2)
    async def users(self, ids: list[int]) -> dict[int, int]:
        await asyncio.sleep(1)
        return {key: key for key in ids if key != 3}

    @dataloader
    async def posts(self, ids: list[int]) -> list[int]:
        return await self.users.load_many(ids)


async def shop(timeline: Timeline) -> None:
    """Batches of every kind: one that queues, one inside another, one that fails, items and runs."""

    async def broken(keys: list[int]) -> list[int]:
        await asyncio.sleep(1)
        raise ConnectionError

    async with Scope() as scope:
        scope.name = "Shop"
        loaders = Shop()
        with observing(timeline):
            await loaders.users.load_many([1, 2, 3], return_exceptions=True)
            await loaders.users.load(1)
            await loaders.posts.load_many([1, 5])
            await outcome(DataLoader(broken, name="broken").load(1))
            async with Batcher(Backend(takes=1), name="rows", max_batch_size=9) as batcher, Coalescer(Job(1)) as job:
                await together(batcher.submit(1), job.request())
    if not timeline.name:
        timeline.scope_closed(scope)


def without_places(text: str) -> list[str]:
    return [re.sub(r":\d+ in", ":N in", line.replace(__file__, "FILE")) for line in text.splitlines()]


async def test_the_chart_has_a_bar_for_each_batch_and_run_and_says_what_happened() -> None:
    timeline = Timeline()
    await shop(timeline)
    assert without_places(timeline.text(width=80)) == CHART
    assert str(timeline) == timeline.text()
    bars = [line for line in timeline.text(80).splitlines() if "▕" in line]
    assert len({(line.index("▕"), line.index("▏")) for line in bars}) == 1
    assert all(len(line) <= 80 for line in bars if "failed" not in line)


CHART = [
    "Shop: 6 batches, 1 run, 5000.0 ms   · gathers ░ queues █ runs",
    "Shop.users ▕██         ▏ 2/2 keys    full      1000.0 ms",
    "            asked by FILE:N in shop (2 times)",
    "Shop.users ▕░░██       ▏ 1/2 key     settled   1000.0 ms",
    "            asked by FILE:N in shop",
    "            waited for a slot that Shop.users held",
    "            nothing came for 1 of them",
    "Shop.posts ▕    ███    ▏   2 keys    settled   1000.0 ms",
    "            asked by FILE:N in shop (2 times)",
    "Shop.users ▕    ███    ▏ 1/2 key     settled   1000.0 ms",
    "            asked by FILE:N in Shop.posts",
    "            inside a batch of Shop.posts",
    "broken     ▕       ██  ▏   1 key     settled   1000.0 ms failed: ConnectionError",
    "            asked by FILE:N in shop",
    "rows       ▕         ██▏ 1/9 item    idle      1000.0 ms",
    "            asked by (a task of its own)",
    "Job        ▕         ██▏   1 trigger coalescer 1000.0 ms",
    "Shop.users: 2 from the cache",
]


async def test_the_chart_of_nothing_is_its_head() -> None:
    assert Timeline().text() == "timeline: 0 batches, 0.0 ms   · gathers ░ queues █ runs"


async def test_a_batch_under_way_is_shown_up_to_now() -> None:
    loader = DataLoader(Backend(takes=10), name="names")
    with observing(Timeline("now")) as timeline:
        running = loader.load(1)
        await asyncio.sleep(1)
        waiting = loader.load(2)
        (first, second) = [line for line in timeline.text(60).splitlines() if "▕" in line]
        assert "under way" in first
        assert "under way" in second
        assert second.rpartition("▏")[0].endswith("·") or "█" not in second
        json.dumps([timeline.data(), timeline.perfetto()])
    await together(running, waiting)


async def test_a_long_name_keeps_its_end_and_a_narrow_chart_its_bars() -> None:
    with observing(Timeline()) as timeline:
        await DataLoader(Backend(takes=1), name="a" * 40 + "end").load(1)
    line = timeline.text(1).splitlines()[1]
    assert line.startswith("…aaaa")
    assert "end ▕██████████" in line


async def test_keys_are_shown_only_where_they_were_asked_for() -> None:
    with observing(Timeline(keys=True)) as keen, observing(Timeline()) as plain:
        await DataLoader(Backend(), name="names").load_many(["secret", "other"])
    for shown in (str(keen), json.dumps(keen.data()), json.dumps(keen.perfetto())):
        assert "'secret'" in shown
    for shown in (str(plain), json.dumps(plain.data()), json.dumps(plain.perfetto())):
        assert "secret" not in shown


class Unspeakable:
    def __repr__(self) -> str:
        raise ValueError("not now")


class Wordy:
    def __repr__(self) -> str:
        return "wordy " * 20_000


class Number(int):
    def __repr__(self) -> str:
        raise ValueError("too many digits")


Number.__name__ = "int"  # so that it is taken for one


@pytest.mark.parametrize(
    ("key", "start"),
    [
        ("x" * 100_000, "'xxx"),
        (("x" * 100_000,), "('xxx"),
        (10**3000, "1000"),
        (Wordy(), "wordy "),
        (Unspeakable(), "<Unspeakable instance at "),
        ((1, Unspeakable()), "(1, <Unspeakable instance at "),
        (Number(1), "<int without a repr>"),
    ],
    ids=["string", "tuple", "number", "wordy", "unspeakable", "unspeakable in a tuple", "no number"],
)
async def test_a_key_is_shown_however_long_it_is_or_if_it_cannot_be_told(key: Any, start: str) -> None:
    with observing(Timeline(keys=True)) as timeline:
        await DataLoader(Backend(answer=lambda _: 1), name="loader").load(key)
    (batch,) = timeline.data()["batches"]
    (shown,) = batch["keys"]
    assert shown.startswith(start)
    assert len(shown) < 120
    assert [shown] in [event.get("args", {}).get("keys") for event in timeline.perfetto()["traceEvents"]]
    assert f"keys {shown}" in str(timeline)


async def test_beyond_its_limit_a_timeline_only_counts() -> None:
    with observing(Timeline(limit=2)) as timeline:
        loader = DataLoader(Backend(), max_batch_size=1)
        await loader.load_many(range(3))
        async with Coalescer(Job()) as job:
            job.trigger()
    assert (len(timeline.batches), len(timeline.runs), timeline.left_out) == (2, 0, 2)
    assert "and 2 more, beyond the limit of 2" in str(timeline)
    timeline.clear()
    assert (timeline.batches, timeline.runs, timeline.left_out) == ([], [], 0)


async def test_plain_data_is_ready_for_json_and_says_what_the_records_say() -> None:
    timeline = Timeline("shop")
    await shop(timeline)
    data = json.loads(json.dumps(timeline.data()))
    assert data["name"] == "shop"
    assert data["began"] == pytest.approx(timeline.began_at + timeline.start - timeline.began)
    batches = data["batches"]
    assert [(batch["id"], batch["name"], batch["size"], batch["reason"], batch["outcome"]) for batch in batches] == [
        (0, "Shop.users", 2, "full", "done"),
        (1, "Shop.users", 1, "settled", "done"),
        (2, "Shop.posts", 2, "settled", "done"),
        (3, "Shop.users", 1, "settled", "done"),
        (4, "broken", 1, "settled", "failed"),
        (5, "rows", 1, "idle", "done"),
    ]
    assert [(batch["opened"], batch["started"], batch["finished"]) for batch in batches] == [
        (0, 0, 1),
        (0, 1, 2),
        (2, 2, 3),
        (2, 2, 3),
        (3, 3, 4),
        (4, 4, 5),
    ]
    assert batches[1]["waited_for"] == [0]
    assert batches[1]["missing"] == 1
    assert batches[3]["parents"] == [2]
    assert batches[4]["error"] == "ConnectionError"
    assert batches[0]["asked"][0]["function"] == "shop"
    assert batches[0]["asked"][0]["count"] == 2
    assert data["cached"] == {"Shop.users": 2}
    assert [(run["name"], run["kind"], run["started"], run["finished"]) for run in data["runs"]] == [
        ("Job", "coalescer", 4, 5)
    ]
    assert data["hints"] == []
    assert data["seconds"] == 5


async def test_the_hints_are_in_all_three() -> None:
    loader = DataLoader(Backend(), name="names")
    with observing(Timeline()) as timeline:
        for key in range(5):
            await loader.load(key)
    assert len(timeline.hints()) == 1
    assert str(timeline).count("hint: ") == 1
    (hint,) = timeline.data()["hints"]
    assert (hint["kind"], hint["place"]["function"]) == ("loop", "test_the_hints_are_in_all_three")


async def test_a_hint_without_a_place_is_data_too() -> None:
    async def none(keys: list[int]) -> dict[int, int]:
        return {}

    timeline = Timeline()
    timeline.wants_places = False
    with observing(timeline):
        await DataLoader(none, default=None).load_many(range(10))
    assert timeline.data()["hints"][0]["place"] is None


# -- the trace, held against the rules of the trace-event format


def check_trace(trace: Any) -> None:
    """What the format demands, and what viewers need to show a trace as it is meant."""
    trace = json.loads(json.dumps(trace))
    events = trace["traceEvents"]
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[int, int]] = set()
    last = 0.0
    for event in events:
        assert set(event) >= {"name", "ph", "ts", "pid", "tid"}
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            assert set(event["args"]) == {"sort_index" if event["name"] == "thread_sort_index" else "name"}
            named.add((event["pid"], event["tid"]))
            continue
        assert event["ph"] in ("X", "s", "f")
        assert event["ts"] >= last, "events are in the order of time"
        last = event["ts"]
        assert (event["pid"], event["tid"]) in named, "every track has a name, before its first event"
        if event["ph"] == "X":
            assert event["dur"] > 0
    slices = [event for event in events if event["ph"] == "X"]
    check_nesting(slices)
    check_flows(events, slices)


def check_nesting(slices: list[Any]) -> None:
    """On one track, slices are inside one another or apart."""
    open_until: dict[int, list[float]] = {}
    for event in slices:
        stack = open_until.setdefault(event["tid"], [])
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        end = round(event["ts"] + event["dur"], 3)
        assert not stack or end <= stack[-1], f"{event} overlaps another slice of its track"
        stack.append(end)


def check_flows(events: list[Any], slices: list[Any]) -> None:
    """Each arrow has a start and an end of the same id, name and category, inside of slices, and leads forwards."""
    flows = [event for event in events if event["ph"] in ("s", "f")]
    assert Counter(Counter(event["id"] for event in flows).values()).keys() <= {2}
    starts = {event["id"]: event for event in flows if event["ph"] == "s"}
    for end in (event for event in flows if event["ph"] == "f"):
        start = starts[end["id"]]
        assert end["bp"] == "e", "it binds to the slice around it, not to the next one"
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        for event in (start, end):
            assert any(
                each["tid"] == event["tid"] and each["ts"] <= event["ts"] <= each["ts"] + each["dur"] for each in slices
            ), f"{event} lies in no slice"


async def test_the_trace_keeps_the_rules_of_the_format() -> None:
    timeline = Timeline("shop")
    await shop(timeline)
    check_trace(timeline.perfetto())


async def test_the_trace_has_a_track_for_each_loader_and_arrows_from_who_asks() -> None:
    timeline = Timeline("shop")
    await shop(timeline)
    events = timeline.perfetto()["traceEvents"]
    tracks = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert {"Shop.users", "Shop.users (2)", "Shop.posts", "broken", "rows", "Job"} <= set(tracks)
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["shop"]
    arrows = Counter(event["name"] for event in events if event["ph"] == "s")
    assert arrows == {"asks": 6, "loads": 1}


async def test_a_batch_is_divided_into_what_it_did() -> None:
    timeline = Timeline()
    await shop(timeline)
    events = timeline.perfetto()["traceEvents"]
    queued = next(event for event in events if event["name"] == "queues")
    runs = next(event for event in events if event["name"] == "runs" and event["tid"] == queued["tid"])
    assert (queued["ts"], queued["dur"], runs["ts"], runs["dur"]) == (0, 1e6, 1e6, 1e6)
    whole = next(event for event in events if event["tid"] == queued["tid"] and event["ph"] == "X")
    assert (whole["name"], whole["args"]["waited for"]) == ("Shop.users (1)", ["Shop.users"])


async def test_overlapping_batches_and_asks_and_unfinished_ones_keep_the_rules() -> None:
    with observing(Timeline()) as timeline:
        loader = DataLoader(Backend(takes=3), name="names", max_batch_size=2, window=1)
        futures = []
        for key in range(12):
            futures.append(loader.load(key))
            await asyncio.sleep(0.4)
        check_trace(timeline.perfetto())
        await together(*futures)
        empty = DataLoader(Backend())
        empty.load(1).cancel()
        await turns()
    check_trace(timeline.perfetto())


async def test_a_parent_beyond_the_limit_gives_no_arrow() -> None:
    timeline = Timeline()
    await shop(timeline)
    parent = next(batch for batch in timeline.batches if batch.name == "Shop.posts")
    timeline.batches.remove(parent)
    events = timeline.perfetto()["traceEvents"]
    assert not [event for event in events if event["name"] == "loads"]
    assert timeline.data()["batches"][2]["parents"] == []
