"""What the check `package` finds in packages that are not as they should be. The check itself builds the real ones."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import packages

ROOT = Path(__file__).resolve().parent.parent
INFO = "strawberry_loader-0.1.0.dist-info"
OF_LOADER = ("_loader_pytest.py", "loader/__init__.py", "loader/py.typed", "loader/strawberry/__init__.py")
DECLARED = """
[project]
name = "strawberry-loader"
version = "0.1.0"
optional-dependencies = { asgi = [], test = [] }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small project."""
    for name in (*OF_LOADER, "loader/__pycache__/__init__.pyc", "tests/test_scope.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "pyproject.toml").write_text(DECLARED)
    return tmp_path


def metadata(root: Path) -> str:
    return "\n".join([*packages.metadata(packages.project(root)), "Provides-Extra: asgi", "Provides-Extra: test"])


def faults(root: Path, wheel: dict[str, str], sdist: tuple[str, ...] = packages.IN_THE_SDIST) -> list[str]:
    """What is found in packages that hold this."""
    folder = root / "dist"
    folder.mkdir()
    with zipfile.ZipFile(folder / "strawberry_loader-0.1.0-py3-none-any.whl", "w") as archive:
        for name, text in wheel.items():
            archive.writestr(name, text)
    with tarfile.open(folder / "strawberry_loader-0.1.0.tar.gz", "w:gz") as tar:
        for name in sdist:
            tar.addfile(tarfile.TarInfo(f"strawberry_loader-0.1.0/{name}"), io.BytesIO())
    return packages.faults(folder, root)


def test_packages_as_they_should_be_have_no_faults(root: Path) -> None:
    held = dict.fromkeys((*OF_LOADER, f"{INFO}/licenses/LICENSE"), "")
    assert faults(root, {**held, f"{INFO}/METADATA": metadata(root)}) == []


def test_what_is_missing_and_what_is_too_much_is_named(root: Path) -> None:
    held = dict.fromkeys(
        ("_loader_pytest.py", "loader/__init__.py", "loader/strawberry/__init__.py", "tests/test_scope.py"), ""
    )
    held[f"{INFO}/METADATA"] = metadata(root).replace("Provides-Extra: asgi\n", "")
    assert faults(root, held, ("site/index.html", "loader/__pycache__/x.pyc", *packages.IN_THE_SDIST[1:])) == [
        "the wheel lacks loader/py.typed",
        "the wheel has tests/test_scope.py, which is no file of loader",
        "the wheel has no license",
        "the wheel offers the extras ['test']",
        "the sdist lacks .gitignore",
        "the sdist has site",
        "the sdist has loader/__pycache__/x.pyc",
    ]


def test_metadata_that_is_not_that_of_the_project_is_named(root: Path) -> None:
    held = dict.fromkeys((*OF_LOADER, f"{INFO}/licenses/LICENSE"), "")
    held[f"{INFO}/METADATA"] = metadata(root).replace("MIT", "GPL").replace("0.1.0", "0.0.9")
    assert faults(root, held) == ["the metadata lacks 'Version: 0.1.0'", "the metadata lacks 'License-Expression: MIT'"]


def test_a_build_that_left_nothing_is_a_fault(root: Path) -> None:
    assert packages.faults(root, root) == ["one wheel and one sdist are built, not 0 and 0"]


def test_every_extra_has_something_to_import() -> None:
    assert packages.extras(ROOT) == packages.ENABLES.keys()
