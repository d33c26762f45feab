"""The pytest plugin that comes with `loader`: the fixtures `batches` and `virtual_clock`.

pytest imports it at its start, for every test run of every environment that has it installed. So it stands outside of
the package and imports pytest only. To import `loader` this early would cost time where nobody asks for its fixtures,
and hide what a module does when it is imported from the measuring of coverage, which starts later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from loader.testing import Batches

_recorded = pytest.StashKey["Batches"]()


@pytest.fixture
def batches(request: pytest.FixtureRequest) -> Iterator[Batches]:
    """The batches that loaders and batchers of this process send during the test; if it fails, their timeline too."""
    from loader.testing import record_batches

    with record_batches() as batches:
        request.node.stash[_recorded] = batches
        yield batches


@pytest.fixture
def virtual_clock() -> Iterator[asyncio.Runner]:
    """Runs coroutines on one event loop, whose clock jumps to the next timer where the loop would have to wait."""
    import asyncio

    from loader.testing import VirtualClockLoop

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        yield runner


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Add the timeline to what the test failed with: after pytest's unittest plugin says that, before the report."""
    recorded = item.stash.get(_recorded, None)
    if recorded is None:
        return
    if call.excinfo is not None:
        recorded.explain(call.excinfo.value)
    if call.when == "teardown":
        del item.stash[_recorded]  # the item, and so what was recorded, would stay to the end of the session
