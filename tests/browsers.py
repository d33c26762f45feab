"""A real Chromium, for tests of pages: that of the system, as Playwright's own cannot be installed everywhere.

Import the fixture `chromium` where it is wanted. Where there is none, the test is skipped and says why; on a
continuous-integration machine (`CI=true`) it fails instead: there a missing browser is a mistake, not a circumstance.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import async_playwright

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # which does not start as root, as in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

PATIENCE = 10_000  # milliseconds until something that should be seen is taken not to come


@pytest.fixture
def chromium() -> str:
    """The path of a Chromium."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"no browser: none of {', '.join(NAMES)} is installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@asynccontextmanager
async def page_of(chromium: str, *, expected: str = "$^", **context: Any) -> AsyncIterator[Page]:
    """An empty page of a new browser; it is an error if it logs any, or lets an exception out.

    Args:
        chromium: The browser.
        expected: A regular expression for what is logged on purpose: a browser logs every answer of 400 and above.
        context: What Playwright's `new_context` takes: `viewport`, `color_scheme`.
    """
    complaints: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            page = await (await browser.new_context(**context)).new_page()
            page.set_default_timeout(PATIENCE)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            yield page
        finally:
            await browser.close()
    assert [complaint for complaint in complaints if not re.search(expected, complaint)] == []
