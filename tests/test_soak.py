"""A short soak: two minutes of traffic leave what the first seconds left. `python -m tests.soak` is the long one."""

from __future__ import annotations

import gc

from tests.soak import TRACED, Sample, growth, run


def test_nothing_grows_with_traffic() -> None:
    gc.collect()
    service, samples = run(120, rate=5, every=10)
    assert growth(samples) == []
    assert len(samples) == 8
    assert {(each.tasks, each.timers) for each in samples} == {(1, 0)}
    # And there was something to leave.
    assert service.requests > 300
    assert service.left > 50
    assert service.failed > 0
    assert service.log.statistics().batches > 10
    assert service.reindex.statistics().runs > 100


def test_growth_is_seen() -> None:
    def samples(**more: int) -> list[Sample]:
        flat = {"tasks": 1, "timers": 0, "traced": 10**6, "resident": 10**7}
        return [
            Sample(at=number, **{name: value + more.get(name, 0) * number for name, value in flat.items()})
            for number in range(16)
        ]

    assert growth(samples()) == []
    assert growth(samples(traced=TRACED // 8)) == []
    assert [text.split(":")[0] for text in growth(samples(traced=TRACED))] == ["traced"]
    assert [text.split(":")[0] for text in growth(samples(tasks=1, timers=1))] == ["tasks", "timers"]
    assert [text.split(":")[0] for text in growth(samples(resident=10**6))] == ["resident"]
