"""What the check `package` finds in packages that are not as they should be. The check itself builds the real ones."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from tests import packages

ROOT = Path(__file__).resolve().parent.parent
INFO = "strawberry_loader-0.1.0.dist-info"


def files_of_loader() -> list[Path]:
    return [path for path in (ROOT / "loader").rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def metadata() -> str:
    declared = packages.project(ROOT)
    extras = [f"Provides-Extra: {extra}" for extra in declared["optional-dependencies"]]
    return "\n".join([*packages.metadata(declared), *extras])


def build(folder: Path, wheel: dict[str, str], sdist: list[str]) -> None:
    with zipfile.ZipFile(folder / "strawberry_loader-0.1.0-py3-none-any.whl", "w") as archive:
        for name, text in wheel.items():
            archive.writestr(name, text)
    with tarfile.open(folder / "strawberry_loader-0.1.0.tar.gz", "w:gz") as tar:
        for name in sdist:
            tar.addfile(tarfile.TarInfo(f"strawberry_loader-0.1.0/{name}"), io.BytesIO())


def test_packages_as_they_should_be_have_no_faults(tmp_path: Path) -> None:
    held = {path.relative_to(ROOT).as_posix(): "" for path in files_of_loader()}
    held |= {f"{INFO}/METADATA": metadata(), f"{INFO}/licenses/LICENSE": ""}
    build(tmp_path, held, list(packages.IN_THE_SDIST))
    assert packages.faults(tmp_path, ROOT) == []


def test_what_is_missing_and_what_is_too_much_is_named(tmp_path: Path) -> None:
    held = {path.relative_to(ROOT).as_posix(): "" for path in files_of_loader() if path.name != "py.typed"}
    held |= {"tests/test_scope.py": "", f"{INFO}/METADATA": metadata().replace("Provides-Extra: asgi\n", "")}
    build(tmp_path, held, ["site/index.html", *packages.IN_THE_SDIST[1:]])
    offered = [extra for extra in packages.project(ROOT)["optional-dependencies"] if extra != "asgi"]
    assert packages.faults(tmp_path, ROOT) == [
        "the wheel lacks loader/py.typed",
        "the wheel has tests/test_scope.py, which is no file of loader",
        "the wheel has no license",
        f"the wheel offers the extras {offered}",
        "the sdist lacks .gitignore",
        "the sdist has site",
    ]


def test_metadata_that_is_not_that_of_the_project_is_named(tmp_path: Path) -> None:
    held = {path.relative_to(ROOT).as_posix(): "" for path in files_of_loader()}
    held |= {f"{INFO}/METADATA": metadata().replace("MIT", "GPL"), f"{INFO}/licenses/LICENSE": ""}
    build(tmp_path, held, list(packages.IN_THE_SDIST))
    assert packages.faults(tmp_path, ROOT) == ["the metadata lacks 'License-Expression: MIT'"]


def test_a_build_that_left_nothing_is_a_fault(tmp_path: Path) -> None:
    assert packages.faults(tmp_path, ROOT) == ["one wheel and one sdist are built, not 0 and 0"]


def test_every_extra_has_something_to_import() -> None:
    assert packages.extras(ROOT) == packages.ENABLES.keys()
