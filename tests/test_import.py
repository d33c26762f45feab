"""What `import loader` brings in, what is public, and that imports point one way."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import loader
from loader import errors

PACKAGE = Path(loader.__file__).parent

# Each module imports only modules that stand before it.
ORDER = (
    "errors",
    "_hooks",
    "_histogram",
    "_doorbell",
    "_loops",
    "_waiters",
    "_results",
    "_dispatch",
    "observe",
    "_statistics",
    "_watching",
    "_waits",
    "_limits",
    "_work",
    "_batch",
    "_caches",
    "_batching",
    "_batcher",
    "_entries",
    "_key_text",
    "_value_type",
    "_backing",
    "_backed",
    "_dataloader",
    "_invalidation",
    "_memory_cache",
    "second_level",
    "_scope",
    "_options",
    "_declare_types",
    "_declare",
    "_runs",
    "_single_flight",
    "_debouncer",
    "_coalescer",
    "_keyed",
    "_snapshot",
    "streams",
    "hints",
    "_timeline_text",
    "_timeline_trace",
    "timeline",
    "_plan",
    "_plan_svg",
    "__init__",
    "__main__",
)
TRIGGERS = {
    "_doorbell",
    "_work",
    "_runs",
    "_single_flight",
    "_debouncer",
    "_coalescer",
    "_keyed",
    "_snapshot",
    "streams",
}
LOADERS = {"_batch", "_batching", "_dataloader", "_batcher", "_scope", "_declare"}


def top(path: Path) -> str:
    """The module or the package below `loader` that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


CORE = [path for path in sorted(PACKAGE.rglob("*.py")) if top(path) in ORDER]
INTEGRATIONS = [path for path in sorted(PACKAGE.rglob("*.py")) if top(path) not in ORDER]


class Imports(ast.NodeVisitor):
    """The modules of this package that a file imports when it runs; what is for type checkers only does not count."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.module is not None
        assert node.level == 0, "imports are absolute here"
        submodules = [f"loader.{alias.name}" for alias in node.names if (PACKAGE / f"{alias.name}.py").exists()]
        self.found.update(submodules if node.module == "loader" and submodules else [node.module])


def imports(path: Path) -> set[str]:
    """The imported modules of this package, without its name: `""` is the package itself."""
    visitor = Imports()
    visitor.visit(ast.parse(path.read_text()))
    return {name.partition(".")[2] for name in visitor.found if name.partition(".")[0] == "loader"}


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", CORE, ids=named)
def test_imports_point_one_way(path: Path) -> None:
    own = top(path)
    before = set(ORDER[: ORDER.index(own)])
    for name in imports(path):
        imported = name.partition(".")[0] or "__init__"
        assert imported == own or imported in before, f"{own} imports {imported}, which does not stand before it"


def test_no_module_is_left_out_of_the_order() -> None:
    private = {top(path) for path in INTEGRATIONS if top(path).startswith("_")}
    assert not private, "put these into ORDER"


@pytest.mark.parametrize("path", [path for path in CORE if top(path) in TRIGGERS], ids=named)
def test_triggers_never_import_the_loaders(path: Path) -> None:
    assert not {name.partition(".")[0] for name in imports(path)} & LOADERS


@pytest.mark.parametrize("path", INTEGRATIONS, ids=named)
def test_an_integration_imports_public_names_and_itself(path: Path) -> None:
    own = top(path)
    for name in imports(path):
        imported = name.partition(".")[0]
        public = not imported.startswith("_") and (imported in ORDER or not imported)
        assert imported == own or public, f"{named(path)} imports loader.{name}"


def test_importing_the_package_loads_the_standard_library_only() -> None:
    program = (
        "import sys; before = set(sys.modules); import loader; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"loader"}


def is_ours(value: object) -> bool:
    return not isinstance(value, ModuleType) and str(getattr(value, "__module__", "")).startswith("loader.")


def test_every_public_name_is_in_all_and_every_name_in_all_is_there() -> None:
    named = {name for name in loader.__all__ if is_ours(getattr(loader, name))}
    assert sorted(named) == sorted(loader.__all__)
    assert {name for name, value in vars(loader).items() if not name.startswith("_") and is_ours(value)} == named
    assert set(errors.__all__) <= named


def test_the_package_lists_its_names_before_they_are_imported_and_knows_no_others() -> None:
    assert set(loader.__all__) <= set(dir(loader))
    with pytest.raises(AttributeError, match="module 'loader' has no attribute 'DataLodaer'"):
        loader.DataLodaer  # noqa: B018


@pytest.mark.parametrize(
    "name",
    [
        "errors",
        "inspector",
        "observe",
        "otel",
        "prometheus",
        "redis",
        "second_level",
        "sqlalchemy",
        "strawberry",
        "streams",
        "testing",
    ],
)
def test_every_name_in_all_of_a_public_module_is_there(name: str) -> None:
    module = importlib.import_module(f"loader.{name}")
    assert [missing for missing in module.__all__ if not hasattr(module, missing)] == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
