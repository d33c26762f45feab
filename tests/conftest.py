"""Coroutine tests run on a loop of `tests.loops`: virtual time, nothing may be left behind."""

from __future__ import annotations

import gc
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from tests import loops

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "every_loop: run the coroutine test on the default loop, with eager tasks, and on uvloop",
        "real_time: the coroutine test waits for sockets or threads, so its loop's time is real",
        "thorough: the test tries very many courses, or needs tools; the environments of tests/matrix.py leave it out",
        "logs: the test expects asyncio to report something, and finds it in the list `reports`",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_finish() -> None:
    freeze()


def freeze() -> None:
    """Let later collections pass over all that is there for good.

    Every coroutine test collects garbage, to see what it left. Among what was imported, and what tests keep for those
    after them, such as schemas and tables, that would take half a second each time.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    result = yield
    if nextitem is not None and nextitem.path != item.path:  # no fixture is left, and no test's garbage
        freeze()
    return result


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("every_loop"):
        metafunc.fixturenames.append("loop_kind")
        metafunc.parametrize("loop_kind", loops.KINDS)


@pytest.fixture
def reports() -> list[str]:
    """What asyncio reported during a test marked `logs`."""
    return []


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given: dict[str, Any] = pyfuncitem.funcargs
    arguments = {name: given[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    def main() -> Coroutine[Any, Any, None]:
        return pyfuncitem.obj(**arguments)  # type: ignore[no-any-return]

    loops.run(
        main,
        kind=given.get("loop_kind", "default"),
        real_time=pyfuncitem.get_closest_marker("real_time") is not None,
        expect_logged=given["reports"] if pyfuncitem.get_closest_marker("logs") else None,
    )
    return True
