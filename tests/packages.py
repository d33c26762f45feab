"""What the built packages hold, and what installs with each extra: for the checks `package` and `extras`."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

# What each extra is for: the modules that can be imported with it. The extra "" is the package by itself.
ENABLES: dict[str, tuple[str, ...]] = {
    "": ("loader", "loader.errors", "loader.observe", "loader.streams", "loader.strawberry", "loader.testing"),
    "asgi": ("loader.strawberry.asgi", "loader.inspector"),
    "fastapi": ("loader.strawberry.fastapi",),
    "sqlalchemy": ("loader.sqlalchemy",),
    "demo": (
        "loader.strawberry.asgi",
        "loader.sqlalchemy",
        "aiosqlite",
        "asyncpg",
        "platformdirs",
        "uvicorn",
        "websockets",
    ),
    "otel": ("loader.otel",),
    "prometheus": ("loader.prometheus",),
    "redis": ("loader.redis",),
    "docs": ("mkdocs", "material", "mkdocstrings_handlers.python"),
}

IN_THE_SDIST = (
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "SECURITY.md",
    "_loader_pytest.py",
    "benchmarks",
    "docs",
    "example_app",
    "loader",
    "mkdocs.yml",
    "pyproject.toml",
    "tests",
)


def project(root: Path) -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table


def extras(root: Path) -> set[str]:
    """The extras to be installed one by one. The check `wheel` installs `test`, and runs the tests with it."""
    return {"", *project(root)["optional-dependencies"]} - {"test"}


def faults(folder: Path, root: Path) -> list[str]:
    """What is wrong with the packages in `folder`, built from `root`."""
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        return [f"one wheel and one sdist are built, not {len(wheels)} and {len(sdists)}"]
    return [*_faults_of_wheel(wheels[0], root), *_faults_of_sdist(sdists[0])]


def _faults_of_wheel(wheel: Path, root: Path) -> list[str]:
    """The wheel has every file of `loader`, py.typed and what else is not Python included, the plugin, and no more."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        path = next(name for name in held if name.endswith(".dist-info/METADATA"))
        text = archive.read(path).decode()
    info = path.removesuffix("METADATA")
    package = {name for name in held if not name.startswith(info)}
    wanted = {"_loader_pytest.py"} | {
        file.relative_to(root).as_posix()
        for file in (root / "loader").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    found = [f"the wheel lacks {name}" for name in sorted(wanted - package)]
    found += [f"the wheel has {name}, which is no file of loader" for name in sorted(package - wanted)]
    if f"{info}licenses/LICENSE" not in held:
        found.append("the wheel has no license")
    declared = project(root)
    offered = re.findall(r"^Provides-Extra: (.+)$", text, re.MULTILINE)
    if sorted(offered) != sorted(declared["optional-dependencies"]):
        found.append(f"the wheel offers the extras {offered}")
    found += [f"the metadata lacks {line!r}" for line in metadata(declared) if line not in text.splitlines()]
    return found


def metadata(declared: dict[str, Any]) -> list[str]:
    """Lines that the metadata of the wheel has."""
    return [
        f"Name: {declared['name']}",
        f"Version: {declared['version']}",
        "License-Expression: MIT",
        "Requires-Python: >=3.11",
        "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown",
    ]


def _faults_of_sdist(sdist: Path) -> list[str]:
    """The sdist has what a reader of a clone has: tests and docs too, and nothing that was made beside them."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in held}
    found = [f"the sdist lacks {name}" for name in IN_THE_SDIST if name not in tops]
    found += [f"the sdist has {name}" for name in sorted(tops - set(IN_THE_SDIST))]
    found += [f"the sdist has {name}" for name in sorted(held) if "__pycache__" in name]
    return found
