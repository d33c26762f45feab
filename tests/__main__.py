"""`python -m tests`: every check that this project has, one after the other; the exit status is 1 if one fails.

`python -m tests NAME ...` runs some of them: format, lint, mypy, types, docs, package, suite, properties, matrix; or
extras, which is run before a release. While working on something, plain `pytest` is quicker.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tests import matrix, packages

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
PYTEST = ("-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal")
PROPERTIES = [f"tests/test_{name}.py" for name in ("properties", "random_schemas", "interleaving", "explorer")]


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> bool:
    """Run a command; whether it succeeded."""
    print("$", " ".join(map(str, command)), flush=True)
    return subprocess.run(command, cwd=cwd, env=os.environ | environment, check=False).returncode == 0


def check_format() -> bool:
    return run(PYTHON, "-m", "ruff", "format", "--check", ".")


def check_lint() -> bool:
    return run(PYTHON, "-m", "ruff", "check", ".")


def check_mypy() -> bool:
    return run(PYTHON, "-m", "mypy")


def check_types() -> bool:
    """Every public name has a complete type."""
    # pyright looks for the package where the first `python` of the path has it.
    path = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])
    return run(PYTHON, "-m", "pyright", "--verifytypes", "loader", "--ignoreexternal", PATH=path)


def check_properties() -> bool:
    """What tries random or all possible courses. It is no part of the suite, where tracing would slow it down."""
    return run(PYTHON, *PYTEST, *PROPERTIES)


def check_docs() -> bool:
    """The docs become a site: each page has its place, each link leads somewhere, and nothing comes from elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        command = (PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", folder)
        if not run(*command, NO_MKDOCS_2_WARNING="1"):  # the advertisement of a successor
            return False
        elsewhere = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="?(?:https?:)?//[^>]*>')
        foreign = {tag for page in Path(folder).rglob("*.html") for tag in elsewhere.findall(page.read_text())}
    for tag in sorted(foreign):
        print(f"the docs site loads {tag}")
    return not foreign


@cache
def built() -> Path | None:
    """The folder of the sdist, and of the wheel that is built from it, for all checks; None if that failed."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder if run(PYTHON, "-m", "build", "--no-isolation", "--outdir", folder, ".") else None


def installs(wheel: Path, extra: str, there: Path, *more: str | Path, by: str | Path = PYTHON) -> Path | None:
    """The interpreter of a new environment in which the wheel is installed, and nothing else; None if that failed.

    `more` is for pip, and `by` is the interpreter that makes the environment.
    """
    python = there / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = f"{wheel}[{extra}]" if extra else wheel
    made = run(by, "-m", "venv", there / "env")
    return python if made and run(python, "-m", "pip", "install", "--quiet", wanted, *more) else None


def check_package() -> bool:
    """The packages build, hold what they should and nothing else, and the package index would take them."""
    folder = built()
    if folder is None or not run(PYTHON, "-m", "twine", "check", "--strict", *folder.iterdir()):
        return False
    found = packages.faults(folder, ROOT)
    for fault in found:
        print(fault)
    return not found


def check_extras() -> bool:
    """The wheel installs with each extra, and then what the extra is for can be imported."""
    folder = built()
    if folder is None:
        return False
    (wheel,) = folder.glob("*.whl")
    passed = True
    for extra, modules in packages.ENABLES.items():
        with tempfile.TemporaryDirectory() as there:
            python = installs(wheel, extra, Path(there))
            imports = "import " + ", ".join(modules)
            passed &= (
                python is not None
                and run(python, "-m", "pip", "check", cwd=Path(there))
                and run(python, "-c", imports, cwd=Path(there))
            )
    return passed


def check_suite() -> bool:
    """The tests, and how much of the library they reach.

    That is every line and branch. What CPython 3.11 loses sight of, it loses in every run: between the return of a
    coroutine into which an exception was thrown, and the next wait of those that await it. Nothing stands there alone.

    They run against the wheel, in an environment of its own and without the source tree: what is missing there, or is
    there only by chance here, fails.
    """
    folder = built()
    if folder is None:
        return False
    (wheel,) = folder.glob("*.whl")
    with tempfile.TemporaryDirectory() as copies:
        there = Path(copies)
        pages = [page.name for page in ROOT.glob("*.md")]
        for name in ("tests", "example_app", "benchmarks", "docs", "pyproject.toml", *pages):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, there / name)
        python = installs(wheel, "test", there)
        coverage = ("--cov=loader", "--cov-branch", "--cov-report=term", "--cov-fail-under=100", "--durations=20")
        others = [f"--ignore={path}" for path in PROPERTIES]
        return python is not None and run(python, *PYTEST, *coverage, *others, cwd=there)


def check_matrix() -> bool:
    """The tests with the lowest declared versions, and on the other Pythons that this machine has; see tests/matrix.py.

    As in the suite they run against the wheel, and without the source tree.
    """
    folder = built()
    if folder is None:
        return False
    (wheel,) = folder.glob("*.whl")
    pythons = matrix.pythons()
    print("found:", *(f"{python} at {python.path}" for python in pythons), sep="\n  ", flush=True)
    print("not found:", *matrix.absent(packages.project(ROOT), pythons) or ["none"], flush=True)
    environments = matrix.environments(ROOT, pythons)
    with tempfile.TemporaryDirectory() as copies:
        there = Path(copies)
        for name in ("tests", "example_app", "docs"):
            shutil.copytree(ROOT / name, there / name)
        shutil.copy(ROOT / "pyproject.toml", there)

        def install(number: int) -> Path | None:
            environment, home = environments[number], there / f"env{number}"
            home.mkdir()
            (home / "wanted.txt").write_text("\n".join(environment.wanted))
            (home / "constraints.txt").write_text("\n".join(environment.constraints))
            more = ("--no-compile", "--requirement", home / "wanted.txt", "--constraint", home / "constraints.txt")
            return installs(wheel, environment.extras, home, *more, by=environment.python.path)

        with ThreadPoolExecutor() as pool:
            installed = list(pool.map(install, range(len(environments))))
        passed = True
        for environment, python in zip(environments, installed, strict=True):
            print(f"{environment.name}:", flush=True)
            passed &= python is not None and run(python, *PYTEST, "-m", "not thorough", *environment.tests, cwd=there)
    return passed


CHECKS = {
    "format": check_format,
    "lint": check_lint,
    "mypy": check_mypy,
    "types": check_types,
    "docs": check_docs,
    "package": check_package,
    "suite": check_suite,
    "properties": check_properties,
    "matrix": check_matrix,
}
BEFORE_A_RELEASE = {"extras": check_extras}


def main(names: list[str]) -> int:
    checks = CHECKS | BEFORE_A_RELEASE
    if unknown := [name for name in names if name not in checks]:
        print(f"no such check: {', '.join(unknown)}; there are {', '.join(checks)}", file=sys.stderr)
        return 2
    results: dict[str, str] = {}
    for name in names or CHECKS:
        started = time.monotonic()
        passed = checks[name]()
        results[name] = f"{'passed' if passed else 'FAILED'} in {time.monotonic() - started:.0f} s"
    print("\n".join(f"{name:8} {result}" for name, result in results.items()), flush=True)
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
