"""The pytest plugin in sessions of its own: its fixtures are there, and failures show the timeline."""

from __future__ import annotations

import json
import re
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = "pytester"

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "testing.md").read_text(encoding="utf-8")

USERS = """\
import asyncio, contextlib, unittest, pytest
from loader import DataLoader
from loader.testing import record_batches

async def load_users(ids):
    return ids

async def one_by_one():
    users = DataLoader(load_users, name="users")
    for key in (1, 2, 3):
        await users.load(key)

"""
LINE = 1 + USERS.splitlines().index("        await users.load(key)")
HEAD = "loaders: 3 batches, "


@pytest.fixture(autouse=True)
def no_cache(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "BUILD_NUMBER"):  # where one of them is set, pytest's summary repeats whole failures
        monkeypatch.delenv(name, raising=False)
    # What pytest-asyncio wants to be told, as long as it warns.
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider\nasyncio_default_fixture_loop_scope = function\n")


def session(pytester: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    """The result of running a file of tests in this process, without the other plugins that are installed."""
    pytester.makepyfile(test_it=USERS + textwrap.dedent(tests))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return pytester.runpytest_inprocess("-p", "strawberry_loader", *arguments)


def hints(result: pytest.RunResult) -> list[str]:
    return [line.partition("hint: ")[2] for line in result.outlines if "hint: " in line]


def heads(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if HEAD in line]


def the_place(pytester: pytest.Pytester) -> str:
    return f"{pytester.path / 'test_it.py'}:{LINE} in one_by_one: users sent 3 batches of one key each"


def test_each_test_has_the_batches_that_were_sent_during_it(pytester: pytest.Pytester) -> None:
    session(
        pytester,
        """
        @pytest.mark.parametrize("time", [1, 2])
        def test_batches(batches, time):
            assert batches == {}
            asyncio.run(one_by_one())
            assert batches["users"] == [[1], [2], [3]]
            batches.assert_batches(users=3)
        """,
    ).assert_outcomes(passed=2)


CHECKS = (
    "assert batches['users'] == [[1, 2, 3]]",
    "assert len(batches['users']) == 1",
    "batches.assert_batches(users=1)",
    "batches['usres']",
    "pytest.fail('for a reason of its own')",
    "1 / 0",
)


@pytest.mark.parametrize("options", [(), ("--tb=short", "--show-capture=no")])
def test_a_failure_shows_the_timeline_and_the_hint_once(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    tests = "".join(
        f"""
        def test_fails_{number}(batches):
            asyncio.run(one_by_one())
            {check}
        """
        for number, check in enumerate(CHECKS)
    )
    result = session(pytester, tests, *options)
    result.assert_outcomes(failed=len(CHECKS))
    assert len(heads(result)) == len(CHECKS)
    assert [hint.startswith(the_place(pytester)) for hint in hints(result)] == [True] * len(CHECKS)
    assert not [line for line in result.outlines if "def assert_batches" in line or "def __getitem__" in line]


def test_a_failure_around_the_test_shows_it_too(pytester: pytest.Pytester) -> None:
    result = session(
        pytester,
        """
        @pytest.fixture
        def fails_before(batches):
            asyncio.run(one_by_one())
            raise LookupError("before")

        @pytest.fixture
        def fails_after(batches):
            yield
            batches.assert_batches(users=1)

        def test_never_runs(fails_before): ...

        @pytest.mark.usefixtures("fails_after")
        def test_passes():
            asyncio.run(one_by_one())
        """,
    )
    result.assert_outcomes(passed=1, errors=2)
    assert len(heads(result)) == len(hints(result)) == 2


def test_what_is_no_failure_and_what_has_no_fixture_shows_nothing(pytester: pytest.Pytester) -> None:
    result = session(
        pytester,
        """
        def test_without():
            asyncio.run(one_by_one())
            assert 0

        def test_passes(batches):
            asyncio.run(one_by_one())

        def test_is_skipped(batches):
            asyncio.run(one_by_one())
            pytest.skip("for a reason")

        @pytest.mark.xfail
        def test_is_expected_to_fail(batches):
            asyncio.run(one_by_one())
            batches.assert_batches()
        """,
    )
    result.assert_outcomes(passed=1, failed=1, skipped=1, xfailed=1)
    assert heads(result) == []


def test_an_assertion_inside_a_recording_shows_it_without_the_fixture(pytester: pytest.Pytester) -> None:
    result = session(
        pytester,
        """
        def test_fails():
            with record_batches() as batches:
                asyncio.run(one_by_one())
                assert batches["users"] == []

        class Test(unittest.IsolatedAsyncioTestCase):
            async def test_fails(self):
                with record_batches() as batches:
                    await one_by_one()
                    self.assertEqual(len(batches["users"]), 1)
        """,
    )
    result.assert_outcomes(failed=2)
    assert len(heads(result)) == len(hints(result)) == 2


def test_a_unittest_that_uses_the_fixture_shows_it_too(pytester: pytest.Pytester) -> None:
    result = session(
        pytester,
        """
        @pytest.mark.usefixtures("batches")
        class Test(unittest.TestCase):
            def test_fails(self):
                asyncio.run(one_by_one())
                self.fail()
        """,
    )
    result.assert_outcomes(failed=1)
    assert len(heads(result)) == len(hints(result)) == 1


def test_what_was_recorded_is_forgotten_after_the_test(pytester: pytest.Pytester) -> None:
    session(
        pytester,
        """
        import gc, weakref

        kept = []

        def test_records(batches):
            asyncio.run(one_by_one())
            kept.append(weakref.ref(batches.timeline))

        def test_nothing_is_left():
            gc.collect()
            assert [each() for each in kept] == [None]
        """,
    ).assert_outcomes(passed=2)


def test_a_fixture_of_the_users_own_goes_before(pytester: pytest.Pytester) -> None:
    session(
        pytester,
        """
        @pytest.fixture
        def batches():
            return "mine"

        @pytest.fixture
        def virtual_clock(batches):
            return batches + " too"

        def test_mine(batches, virtual_clock):
            assert (batches, virtual_clock) == ("mine", "mine too")
        """,
    ).assert_outcomes(passed=1)


def test_the_clock_of_a_test_goes_on_from_run_to_run_and_ends_with_it(pytester: pytest.Pytester) -> None:
    result = session(
        pytester,
        """
        seen = []

        async def waits_forever():
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("ended")

        def test_time(virtual_clock):
            loop = virtual_clock.get_loop()
            seen.append(loop)
            virtual_clock.run(asyncio.sleep(3600))
            virtual_clock.run(asyncio.to_thread(int))
            virtual_clock.run(asyncio.sleep(3600))
            assert loop.time() >= 7200
            loop.create_task(waits_forever())
            virtual_clock.run(asyncio.sleep(0))

        def test_it_is_over(virtual_clock):
            loop, ended = seen
            assert loop.is_closed()
            assert ended == "ended"
            assert virtual_clock.get_loop().time() == 0

        def test_a_deadlock(virtual_clock):
            virtual_clock.run(waits_forever())
        """,
    )
    result.assert_outcomes(passed=2, failed=1)
    where = 1 + USERS.count("\n") + 5
    result.stdout.fnmatch_lines([f"E *DeadlockError: nothing can run * Waiting: Task-* at *test_it.py:{where}. *"])


def test_it_works_where_tests_run_in_processes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=USERS
        + textwrap.dedent(
            """
            @pytest.mark.parametrize("number", [1, 2, 3])
            def test_fails(batches, number):
                asyncio.run(one_by_one())
                batches.assert_batches(users=number)
            """
        )
    )
    result = pytester.runpytest_subprocess("-n", "1")
    result.assert_outcomes(passed=1, failed=2)
    assert len(heads(result)) == len(hints(result)) == 2


@pytest.mark.thorough  # by pytest-cov
def test_nothing_is_loaded_before_a_test_asks_for_it_so_that_coverage_sees_all_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing(request):
            assert request.config.pluginmanager.get_plugin("strawberry_loader").__name__ == "_loader_pytest"
            assert not {name for name in sys.modules if name.partition(".")[0] in ("loader", "strawberry", "graphql")}

        def test_something(batches):
            assert "loader" in sys.modules
        """
    )
    result = pytester.runpytest_subprocess("--cov=loader", "--cov-report=json:seen.json")
    result.assert_outcomes(passed=2)
    files = json.loads((pytester.path / "seen.json").read_text(encoding="utf-8"))["files"]
    imported = {name: file["missing_lines"] for name, file in files.items() if file["executed_lines"]}
    assert {Path(name).name for name in imported} >= {"__init__.py", "errors.py", "_dataloader.py", "_batches.py"}
    for name, missing in imported.items():
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        assert [lines[number - 1] for number in missing if not lines[number - 1].startswith(" ")] == []


def sections() -> list[Any]:
    """The sections of the guide, each with its files and with what a session of them shows."""
    found = []
    for section in GUIDE.split("\n## "):
        files: dict[str, str] = defaultdict(str)
        for name, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE):
            files[name] += f"# {name}\n{text}"
        shown = re.findall(r"^```text\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        found.append(pytest.param(files, shown, id=section.splitlines()[0]))
    return found


def in_general(line: str) -> str:
    return re.sub(r"[\d.]+ ms", "N ms", re.sub("▕.*▏", "▕▏", line)).rstrip()


@pytest.mark.parametrize(("files", "shown"), sections())
def test_the_guides_examples_hold(pytester: pytest.Pytester, files: dict[str, str], shown: list[str]) -> None:
    for name, text in files.items():
        (pytester.path / name).write_text(text, encoding="utf-8")
    result = pytester.runpytest_inprocess("-W", "error")
    tests = sum(len(re.findall(r"^ *(?:async )?def test_", text, re.MULTILINE)) for text in files.values())
    assert tests > 0
    result.assert_outcomes(passed=tests - len(shown), failed=len(shown))
    output = [in_general(line.replace(f"{pytester.path}/", "")) for line in result.outlines]
    for text in shown:
        lines = [in_general(line) for line in text.splitlines()]
        first = output.index(lines[0])
        assert output[first : first + len(lines)] == lines
