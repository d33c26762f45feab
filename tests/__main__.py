"""`python -m tests`: every check that this project has, one after the other; the exit status is 1 if one fails.

`python -m tests NAME ...` runs some of them: format, lint, mypy, types, suite, properties, faults, wheel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable


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


def check_suite() -> bool:
    """The tests, and how much of the library they reach."""
    coverage = ("--cov=loader", "--cov-branch", "--cov-report=term", "--cov-fail-under=99")
    return run(PYTHON, "-m", "pytest", "-q", *coverage, HYPOTHESIS_EXAMPLES="100")


def check_properties() -> bool:
    """The loader against its model again, with as many examples as that asks for; tracing would slow it down."""
    return run(PYTHON, "-m", "pytest", "-q", "tests/test_properties.py")


def check_faults() -> bool:
    """Every fault that the explorer knows once at every await, and that it hits all of these."""
    return run(PYTHON, "-m", "tests.explorer")


def check_wheel() -> bool:
    """The same tests against the wheel, in an environment of its own and without the source tree."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        if not run(PYTHON, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", there / "dist", "."):
            return False
        for name in ("tests", "example_app", "benchmarks", "docs", "README.md", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, there / name)
        python = there / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        (wheel,) = (there / "dist").glob("*.whl")
        return (
            run(PYTHON, "-m", "venv", there / "env")
            and run(python, "-m", "pip", "install", "--quiet", f"{wheel}[test]")
            and run(python, "-m", "pytest", "-q", cwd=there, HYPOTHESIS_EXAMPLES="100")
        )


CHECKS = {
    "format": check_format,
    "lint": check_lint,
    "mypy": check_mypy,
    "types": check_types,
    "suite": check_suite,
    "properties": check_properties,
    "faults": check_faults,
    "wheel": check_wheel,
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in CHECKS]:
        print(f"no such check: {', '.join(unknown)}; there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    results: dict[str, str] = {}
    for name in names or CHECKS:
        started = time.monotonic()
        passed = CHECKS[name]()
        results[name] = f"{'passed' if passed else 'FAILED'} in {time.monotonic() - started:.0f} s"
    print("\n".join(f"{name:8} {result}" for name, result in results.items()), flush=True)
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
