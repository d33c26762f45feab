"""Doorbell: triggers from other threads, and what becomes of them when the loop or the bell goes."""

from __future__ import annotations

from typing import Any

import pytest

from loader._doorbell import Doorbell
from loader.errors import LoaderLoopError


class Loop:
    """The part of an event loop that a doorbell uses; it counts how often it is woken."""

    def __init__(self, *, closed: bool = False, closes_now: bool = False) -> None:
        self.closed = closed
        self.closes_now = closes_now
        self.woken = 0

    def is_closed(self) -> bool:
        return self.closed

    def call_soon_threadsafe(self, answer: Any) -> None:
        if self.closes_now:
            raise RuntimeError("Event loop is closed")
        self.woken += 1


def ring(bell: Doorbell, loop: Loop | None, key: Any = None) -> bool:
    return bell.ring("somebody", loop, lambda: None, key)  # type: ignore[arg-type]


def test_the_loop_is_woken_once_until_what_rang_is_taken() -> None:
    bell, loop = Doorbell(), Loop()
    for key in "aab":
        assert ring(bell, loop, key)
    assert (loop.woken, bell.rang) == (1, True)
    assert bell.take() == {"a": 2, "b": 1}
    assert (bell.take(), bell.rang) == ({}, False)
    assert ring(bell, loop)
    assert loop.woken == 2


def test_what_was_accepted_is_handed_out_when_it_is_shut_and_nothing_is_accepted_afterwards() -> None:
    bell, loop = Doorbell(), Loop()
    assert ring(bell, loop, "a")
    assert bell.shut() == {"a": 1}
    assert not ring(bell, loop, "a")
    assert not ring(bell, None, "a")
    assert bell.take() == {}


@pytest.mark.parametrize("loop", [Loop(closed=True), Loop(closes_now=True)])
def test_a_loop_that_is_closed_or_closes_in_this_moment_takes_nothing(loop: Loop) -> None:
    bell = Doorbell()
    assert not ring(bell, loop)
    assert not bell.rang


def test_without_a_loop_it_says_what_to_do() -> None:
    with pytest.raises(LoaderLoopError, match=r"somebody.*async with"):
        ring(Doorbell(), None)


def test_a_ring_in_the_middle_of_a_ring_neither_blocks_nor_is_lost() -> None:
    """As a signal handler or a finalizer may do, on the same thread."""

    class Interrupted(Loop):
        def call_soon_threadsafe(self, answer: Any) -> None:
            super().call_soon_threadsafe(answer)
            if self.woken == 1:
                assert ring(bell, self, "inner")

    bell, loop = Doorbell(), Interrupted()
    assert ring(bell, loop, "outer")
    assert bell.take() == {"outer": 1, "inner": 1}
