"""Environments beside that of the suite, for the check `matrix`: other Pythons, and the lowest declared versions.

The suite runs on one Python, with the newest version of everything. Here the newest of each other minor version of
CPython on this machine runs the library's tests, on each kind of loop that it has: with eager tasks from 3.12 on. And
the oldest one runs them with the lowest versions that pyproject.toml allows, and then the demo's with its own lowest.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.version import Version

from tests import packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

OLDEST = (3, 11)

# What the extra `test` has for other checks, or for tests that do not run here.
TOOLS = {
    *("build", "coverage", "hatchling", "mkdocs-material", "mkdocstrings", "mypy", "playwright", "pyright"),
    *("pytest-cov", "ruff", "twine", "types-cachetools"),
}

# Tests that do not run here: those of pages and of the benchmarks, which import these modules; ...
NOT_HERE = {"playwright", "benchmarks"}
# ... of the project's files, which other checks see to; and what tries very many courses, as `properties` does.
NOT_THESE = {
    *("test_docs", "test_links", "test_matrix", "test_packages", "test_typing"),
    *("test_explorer", "test_interleaving", "test_properties", "test_random_schemas", "test_second_level_interleaving"),
    "test_soak",
}

# Fails in what cannot be asked to run tests: what is not CPython, no release or without GIL, or makes no environments.
PROBE = """
import ensurepip, json, platform, sys, sysconfig, venv
assert platform.python_implementation() == "CPython" and sys.version_info.releaselevel == "final"
assert not sysconfig.get_config_var("Py_GIL_DISABLED")
print(json.dumps(sys.version_info[:3]))
"""


@dataclass(frozen=True, order=True)
class Python:
    """An interpreter, and the three numbers of its version."""

    version: tuple[int, ...]
    path: Path

    def __str__(self) -> str:
        return f"CPython {'.'.join(map(str, self.version))}"


def candidates(variables: Mapping[str, str]) -> Iterator[Path]:
    """Where interpreters are: the one that runs this, `python3.x` in the path, and pyenv's versions."""
    yield Path(sys.executable)
    for folder in variables.get("PATH", "").split(os.pathsep):
        yield from (path for path in Path(folder).glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))
    pyenv = Path(variables.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from pyenv.glob("versions/3.*/bin/python")


def probed(path: Path) -> Python | None:
    """The interpreter at this path; None if it cannot be used, like pyenv's shim for a version that is not active."""
    try:
        said = subprocess.run([path, "-I", "-c", PROBE], capture_output=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return Python(tuple(json.loads(said)), path)


def pythons(variables: Mapping[str, str] = os.environ) -> list[Python]:
    """An interpreter for each minor version that is supported, oldest first: the one that runs this, or the newest."""
    found = [python for path in candidates(variables) if (python := probed(path)) and python.version >= OLDEST]
    running = Python(sys.version_info[:3], Path(sys.executable))
    by_minor = {python.version[:2]: python for python in sorted(found)}
    return sorted((by_minor | {running.version[:2]: running}).values())


def absent(project: Mapping[str, Any], found: list[Python]) -> list[str]:
    """The versions of Python that the package is said to work with, and that were not found."""
    here = {".".join(map(str, python.version[:2])) for python in found}
    said = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in project["classifiers"])
    return [match[1] for match in said if match and match[1] not in here]


def requirements(project: Mapping[str, Any], *extras: str) -> list[Requirement]:
    """What the package needs with these extras, and with those that they name."""
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    found: dict[str, Requirement] = {}
    for requirement in map(Requirement, lines):
        own = requirement.name == project["name"]
        more = requirements(project, *sorted(requirement.extras)) if own else [requirement]
        found |= {str(each): each for each in more}
    return list(found.values())


def lowest(wanted: Iterable[Requirement]) -> list[str]:
    """Constraints that hold pip to the lowest versions that meet all of this."""
    found: dict[str, Version] = {}
    for requirement in wanted:
        bounds = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        if len(bounds) != 1:
            raise ValueError(f"{requirement} has no lowest version")
        found[requirement.name] = max(*bounds, found.get(requirement.name, bounds[0]))
    return [f"{name}=={version}" for name, version in sorted(found.items())]


@cache
def imported(path: Path) -> frozenset[str]:
    """The modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(found)


def needs(path: Path, root: Path) -> set[str]:
    """The packages that a file of tests imports, or what it imports of `tests`."""
    files, modules = {path}, set[str]()
    while files:
        new = imported(files.pop()) - modules
        modules |= new
        beside = {root.joinpath(*name.split(".")).with_suffix(".py") for name in new if name.startswith("tests.")}
        files |= {file for file in beside if file.is_file()}
    return {name.partition(".")[0] for name in modules}


def tests(root: Path, *, demo: bool) -> list[str]:
    """The files with the tests of the demo, which are those that import it; or with those of the library."""
    found = []
    for path in sorted((root / "tests").glob("test_*.py")):
        needed = needs(path, root)
        if path.stem not in NOT_THESE and not needed & NOT_HERE and ("example_app" in needed) == demo:
            found.append(f"tests/{path.name}")
    return found


@dataclass(frozen=True)
class Environment:
    """What is installed for an interpreter, and the tests that it runs then.

    Attributes:
        name: What it is.
        python: The interpreter.
        extras: Extras of the package, with commas.
        wanted: What is installed beside it.
        constraints: Versions that pip is held to.
        tests: Files.
    """

    name: str
    python: Python
    extras: str
    wanted: list[str]
    constraints: list[str]
    tests: list[str]


def environments(root: Path, found: list[Python]) -> list[Environment]:
    """The lowest versions on the oldest of these interpreters, and the newest where the suite does not run."""
    project = packages.project(root)
    demo = {"demo"}
    library = packages.extras(root) - {"", "docs", "demo"}

    def environment(name: str, python: Python, extras: set[str], *, low: bool) -> Environment:
        own = requirements(project, *sorted(extras))
        names = {requirement.name for requirement in own} | TOOLS
        more = [requirement for requirement in requirements(project, "test") if requirement.name not in names]
        return Environment(
            f"{python}, {name}",
            python,
            ",".join(sorted(extras)),
            [str(requirement) for requirement in more],
            lowest([*own, *more]) if low else [],
            tests(root, demo=extras == demo),
        )

    return [
        environment("lowest versions", found[0], library, low=True),
        environment("lowest versions of the demo", found[0], demo, low=True),
        *(
            environment("newest versions", python, library, low=False)
            for python in found
            if python.version[:2] != sys.version_info[:2]
        ),
    ]
