"""Counts in buckets."""

from __future__ import annotations

import pytest

from loader._histogram import SECONDS, SIZES, Histogram, Recorder


def test_a_value_on_a_bound_belongs_to_its_bucket() -> None:
    recorder = Recorder((1, 2, 4))
    for value in (1, 2, 3, 4, 5):
        recorder.record(value)
    assert recorder.snapshot() == Histogram(bounds=(1, 2, 4), counts=(1, 1, 2, 1), total=15.0)


def test_a_snapshot_does_not_change() -> None:
    recorder = Recorder(SIZES)
    before = recorder.snapshot()
    recorder.record(3)
    assert before.count == 0
    assert recorder.snapshot().count == 1


def test_mean_and_count() -> None:
    recorder = Recorder(SECONDS)
    assert recorder.snapshot().mean == 0
    for value in (0.1, 0.3):
        recorder.record(value)
    assert recorder.snapshot().count == 2
    assert recorder.snapshot().mean == pytest.approx(0.2)


def test_a_quantile_is_the_bound_of_the_bucket_that_holds_it() -> None:
    recorder = Recorder((1, 10, 100))
    assert recorder.snapshot().quantile(0.5) == 0
    for value in (1, 1, 7, 1000):
        recorder.record(value)
    snapshot = recorder.snapshot()
    assert [snapshot.quantile(q) for q in (0, 0.5, 0.75, 1)] == [1, 1, 10, float("inf")]


@pytest.mark.parametrize("q", [-0.1, 1.1, float("nan")])
def test_a_quantile_outside_0_and_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Recorder(SIZES).snapshot().quantile(q)


def test_the_bounds_ascend() -> None:
    for bounds in (SIZES, SECONDS):
        assert list(bounds) == sorted(set(bounds))
