"""Links in the README and the docs lead somewhere, and the reference has every public name. Nothing is fetched."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import loader

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its examples."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings as GitHub makes them; mkdocs.yml has the site do the same."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-"))
    return found


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere within the project."""
    text = prose(page)
    written = [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)]
    found = []
    for link in written:
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            found.append(link)
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
    used = set(re.findall(r"\]\[([^\]]+)\]", text))
    # What is no definition of the page is a name that mkdocstrings knows, or else the build of the docs fails.
    return found + [f"[{name}]" for name in sorted(used - defined) if not name.startswith("loader.")]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `name`, and more\n\n```python\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[1](#here) [2](#there) [3](other.md#a-name-and-more) [4](other.md#no-heading) [5](none.md)\n"
        "[6](https://example.org) [7][x] [8][y]\n\n[x]: gone.md\n\n```\n[9](gone.md)\n```\n"
    )
    assert broken(page) == ["#there", "other.md#no-heading", "none.md", "gone.md", "[y]"]


def public_modules() -> list[str]:
    names = [each.name for each in pkgutil.walk_packages(loader.__path__, "loader.")]
    return ["loader", *(name for name in names if not re.search(r"\._", name))]


def is_own(value: object, name: str) -> bool:
    """Whether it is a class or a function of the module with this name."""
    return (isinstance(value, type) or inspect.isfunction(value)) and value.__module__ == name


def shown() -> list[Any]:
    """What the pages of the reference show."""
    found: list[Any] = []
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:
                parent, _, attribute = name.rpartition(".")
                found.append(getattr(importlib.import_module(parent), attribute))
            else:
                found += [getattr(module, attribute) for attribute in module.__all__]
    return found


@pytest.mark.parametrize("name", public_modules())
def test_the_reference_has_every_public_name(name: str) -> None:
    module = importlib.import_module(name)
    own = [each for each, value in vars(module).items() if is_own(value, name) and not each.startswith("_")]
    public = getattr(module, "__all__", own)
    known = shown()
    missing = [each for each in public if not any(getattr(module, each) is one for one in known)]
    assert missing == [], f"docs/reference has no page with `::: {name}.{missing[0]}`" if missing else ""


def test_examples_in_docstrings_stand_where_the_reference_looks_for_them() -> None:
    package = Path(loader.__file__).parent
    others = [path.name for path in package.rglob("*.py") if re.search(r"^ +Example:$", path.read_text(), re.MULTILINE)]
    assert others == [], "call the section `Examples:`; another one is shown as a remark, with its lines run together"
