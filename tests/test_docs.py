"""Every example in the README, the guides and the docstrings runs, and prints what it says it prints."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import loader
from example_app.build import VARIABLE
from tests.test_example_data import built

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[Any]:
    """The fenced blocks of one kind, each named after its page and line."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match["kind"] == kind:
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match["text"], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


def outside(*command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("script", blocks("python"))
def test_a_python_example_runs_and_prints_what_its_comments_say(script: str) -> None:
    done = outside(sys.executable, "-W", "error", "-X", "dev", "-", stdin=script)
    assert done.returncode == 0, done.stderr
    # On a busy machine asyncio's debug mode finds that steps take long.
    assert re.sub(r"^Executing <.*> took .* seconds\n", "", done.stderr, flags=re.MULTILINE) == ""
    # A line of its own `# prints: ...` says what the example prints, line by line.
    promised = re.findall(r"^# prints: (.*)$", script, re.MULTILINE)
    if promised:
        assert done.stdout.splitlines() == promised


def in_general(text: str) -> list[str]:
    """Output without what differs from run to run: times, and the order in which parallel work was done."""
    return sorted(re.sub(r"\d+(\.\d+)? ?(ms|s)\b", "N ms", text).split("\n"))


@pytest.mark.parametrize("session", blocks("console"))
def test_a_console_example_prints_what_it_shows(session: str) -> None:
    shown = re.split(r"^\$ (.*)$", session, flags=re.MULTILINE)[1:]
    for command, output in zip(shown[::2], shown[1::2], strict=True):
        if "venv" in command:
            assert not output.strip(), "the set-up commands are run by CI, their output is not shown"
            continue
        assert command.startswith("python -m "), command
        # The demo's database is there: its first start would say that it builds it.
        there = f"export {VARIABLE}={built().render_as_string()}; exec 2>&1; "
        done = outside("bash", "-c", there + command.replace("python -m", f"{sys.executable} -m", 1))
        assert in_general(done.stdout.strip()) == in_general(output.strip())


MODULES = sorted(each.name for each in pkgutil.walk_packages(loader.__path__, "loader."))


@pytest.mark.parametrize("name", [name for name in MODULES if name != "loader.__main__"])
def test_the_examples_of_a_modules_docstrings_hold(name: str) -> None:
    # Each example starts from nothing, as in its reader's program: the module's own names, and how it has its
    # annotations read, are not there.
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(importlib.import_module(name), globs={"__name__": "__main__"}):
        runner.run(example)
    assert runner.summarize().failed == 0


def test_the_readme_gives_the_command_that_ci_runs() -> None:
    commands = re.findall(r"^\$ (.*python -m tests)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(commands) == 1
    assert f"$ {commands[0]}\n" in (ROOT / "CONTRIBUTING.md").read_text()
