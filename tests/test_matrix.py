"""What the check `matrix` runs, and where. The check itself makes the environments."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import matrix, packages

ROOT = Path(__file__).resolve().parent.parent
THIS = sys.version_info[:3]
NEXT = (THIS[0], THIS[1] + 1)

PROJECT = {
    "name": "parcel",
    "dependencies": ["strings>=1"],
    "optional-dependencies": {
        "box": ["cardboard[thick]>=2.5", "tape>=1; sys_platform != 'win32'"],
        "gift": ["parcel[box]", "paper>=3", "strings>=1.4"],
    },
}


def interpreter(path: Path, says: str) -> Path:
    """A program that says what a Python says of its version, or fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """A machine's variables, with no Python but the one that runs this."""
    return {"PATH": str(tmp_path / "bin"), "PYENV_ROOT": str(tmp_path / "pyenv")}


def test_a_machine_with_one_python_has_that(machine: dict[str, str]) -> None:
    assert matrix.pythons(machine) == [matrix.Python(THIS, Path(sys.executable))]


def test_of_each_minor_version_the_newest_is_taken_and_of_the_running_one_the_one_that_runs(
    machine: dict[str, str], tmp_path: Path
) -> None:
    minor = f"{NEXT[0]}.{NEXT[1]}"
    interpreter(tmp_path / "bin" / f"python{minor}", f"echo '[{NEXT[0]}, {NEXT[1]}, 2]'")
    newest = interpreter(
        tmp_path / "pyenv" / "versions" / f"{minor}.10" / "bin" / "python", f"echo '[3, {NEXT[1]}, 10]'"
    )
    interpreter(tmp_path / "pyenv" / "versions" / "3.again" / "bin" / "python", f"echo '[3, {THIS[1]}, 99]'")
    assert matrix.pythons(machine) == [
        matrix.Python(THIS, Path(sys.executable)),
        matrix.Python((*NEXT, 10), newest),
    ]


def test_what_is_too_old_or_cannot_be_run_or_is_called_otherwise_is_left_out(
    machine: dict[str, str], tmp_path: Path
) -> None:
    interpreter(tmp_path / "bin" / "python3.10", "echo '[3, 10, 14]'")
    interpreter(tmp_path / "bin" / "python3.90", "exit 127")  # as a shim of pyenv's
    interpreter(tmp_path / "bin" / "python3.91", "echo").chmod(0o644)
    interpreter(tmp_path / "bin" / "python3.92-config", "echo '[3, 92, 0]'")
    assert matrix.pythons(machine) == [matrix.Python(THIS, Path(sys.executable))]


def test_an_interpreter_is_asked_itself(machine: dict[str, str], tmp_path: Path) -> None:
    path = interpreter(tmp_path / "bin" / "python3.12", f'exec {shlex.quote(sys.executable)} "$@"')
    assert matrix.probed(path) == matrix.Python(THIS, path)


def test_what_is_declared_and_not_there_is_named() -> None:
    here = [matrix.Python((3, 12, 4), Path("python"))]
    lines = ["Programming Language :: Python :: 3", *(f"Programming Language :: Python :: 3.{x}" for x in (11, 12, 13))]
    assert matrix.absent({"classifiers": lines}, here) == ["3.11", "3.13"]


def test_an_extra_brings_what_the_extras_that_it_names_bring() -> None:
    found = map(str, matrix.requirements(PROJECT, "gift"))
    assert list(found) == [
        "strings>=1", "cardboard[thick]>=2.5", 'tape>=1; sys_platform != "win32"', "paper>=3", "strings>=1.4",
    ]  # fmt: skip


def test_the_lowest_versions_meet_every_bound_and_name_no_extras() -> None:
    assert matrix.lowest(matrix.requirements(PROJECT, "gift")) == [
        "cardboard==2.5", "paper==3", "strings==1.4", "tape==1",
    ]  # fmt: skip
    assert matrix.lowest(map(Requirement, ["tape>=1.10", "tape>=1.9"])) == ["tape==1.10"]


@pytest.mark.parametrize("requirement", ["tape", "tape<2", "tape==1.0"])
def test_what_has_no_lowest_version_is_an_error(requirement: str) -> None:
    with pytest.raises(ValueError, match=f"{requirement} has no lowest version"):
        matrix.lowest([Requirement(requirement)])


def test_everything_declared_has_a_lowest_version() -> None:
    project = packages.project(ROOT)
    assert matrix.lowest(matrix.requirements(project, *project["optional-dependencies"]))


def test_a_file_needs_what_its_helpers_import(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    (tests / "far").mkdir(parents=True)
    (tests / "test_a.py").write_text("import os.path\nfrom tests import near\nfrom tests.far.away import x\n")
    (tests / "near.py").write_text("def late():\n    from playwright import y\n    import tests.test_a\n")
    (tests / "far" / "away.py").write_text("from example_app.z import w\n")
    assert matrix.needs(tests / "test_a.py", tmp_path) == {"os", "tests", "playwright", "example_app"}


def test_each_file_of_tests_runs_in_one_environment_or_is_said_not_to() -> None:
    library, demo = matrix.tests(ROOT, demo=False), matrix.tests(ROOT, demo=True)
    files = {f"tests/{path.name}": path for path in (ROOT / "tests").glob("test_*.py")}
    elsewhere = {name for name, path in files.items() if matrix.needs(path, ROOT) & matrix.NOT_HERE}
    elsewhere |= {f"tests/{name}.py" for name in matrix.NOT_THESE}
    assert sorted([*library, *demo, *elsewhere]) == sorted(files)
    assert "tests/test_dataloader.py" in library
    assert "tests/test_strawberry_views.py" in library
    assert "tests/test_example_schema.py" in demo
    assert "tests/test_example_page.py" in elsewhere


def test_tools_are_what_the_extra_test_has() -> None:
    declared = {requirement.name for requirement in matrix.requirements(packages.project(ROOT), "test")}
    assert declared > matrix.TOOLS


def test_the_oldest_has_the_lowest_versions_and_the_others_the_newest_where_the_suite_does_not_run() -> None:
    old, this, new = (matrix.Python(version, Path("python")) for version in ((3, 1, 5), THIS, (*NEXT, 0)))
    library, demo, older, newer = matrix.environments(ROOT, [old, this, new])
    assert [each.python for each in (library, demo, older, newer)] == [old, old, old, new]
    assert library.extras == older.extras == newer.extras == "asgi,fastapi,otel,prometheus,redis,sqlalchemy"
    assert demo.extras == "demo"
    assert {"strawberry-graphql==0.328.3", "starlette==0.40", "opentelemetry-api==1.30"} < set(library.constraints)
    assert {"strawberry-graphql==0.341.2", "uvicorn==0.52.1"} < set(demo.constraints)
    assert older.constraints == newer.constraints == []
    assert older.wanted == library.wanted
    assert {"pytest", "hypothesis", "asyncpg"} < {Requirement(line).name for line in older.wanted}
