"""Four processes that change rows under each other's hands: nobody reads for long what is out of date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import workers
from tests.redis_servers import place

if TYPE_CHECKING:
    from tests.redis_servers import Place

__all__ = ["place"]

BOUND = 1.0
"""How long a change may take to reach everybody, in seconds: far below `workers.FRESH_FOR`."""


def test_no_worker_reads_what_is_older_than_the_bound_and_all_are_fresh_soon_after_the_last_change(
    place: Place,
) -> None:
    reports = workers.run(place.url, place.prefix, workers=4, reads=600)
    assert len(reports) == 4
    for report in reports:
        assert report.reads >= 600
        assert report.changes > 0
        assert report.hits > 0
        assert report.own_lost == 0
        assert report.oldest < BOUND < workers.FRESH_FOR
        assert report.settled < BOUND


pytestmark = pytest.mark.timeout(60)
