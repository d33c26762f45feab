"""The inspector's page in a real Chromium, on a real server: what a developer sees and does.

There is no `from __future__ import annotations` here: Strawberry reads the annotations of the resolvers.
"""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import strawberry
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from loader import DataLoader, Loaders, Scope, dataloader
from loader.inspector import Inspector
from loader.strawberry import install, relation
from loader.strawberry.asgi import GraphQL
from tests.browsers import chromium, page_of
from tests.serving import Server, post

__all__ = ["chromium"]

pytestmark = pytest.mark.real_time

Info = strawberry.Info[Any, None]
SCRIPT = "<script>document.title='taken over'</script><img src=x onerror=alert(1)>"


@strawberry.type
class Author:
    name: str


class Shop(Loaders):
    @dataloader
    async def authors(self, ids: list[int]) -> list[Author]:
        return [Author(name=f"author {key}") for key in ids]

    @dataloader(max_batch_size=1)
    async def one_by_one(self, ids: list[int]) -> list[int]:
        return ids

    @dataloader
    async def broken(self, ids: list[int]) -> list[int]:
        raise ConnectionError("down")


@strawberry.type
class Book:
    author_id: int
    author: Author = relation(Shop.authors, "author_id")


@strawberry.type
class Query:
    @strawberry.field
    def books(self) -> list[Book]:
        return [Book(author_id=key) for key in range(4)]

    @strawberry.field
    async def in_a_loop(self, info: Info) -> list[str]:
        loader = info.context["loaders"].authors
        return [(await loader.load(key)).name for key in range(5)]  # one after another

    @strawberry.field
    async def broken(self, info: Info) -> int | None:
        try:
            return await info.context["loaders"].broken.load(1)  # type: ignore[no-any-return]
        except ConnectionError:
            return None


schema = strawberry.Schema(Query)
install(schema)
LOOP = next(
    number
    for number, text in enumerate(inspect.getsource(inspect.getmodule(Shop)).splitlines(), 1)  # type: ignore[arg-type]
    if text.endswith("  # one after another")
)


@dataclass
class Tool:
    """The page, and the app that it looks into."""

    page: Page
    address: str
    inspector: Inspector

    async def query(self, query: str) -> None:
        response = await post(self.address, query, path="/graphql/")
        assert "errors" not in response.json()

    async def open(self, where: str = "") -> None:
        await self.page.goto(f"http://{self.address}/inspector/{where}")

    def row(self, name: str) -> Any:
        return self.page.locator("#operations a").filter(has_text=name)

    @property
    def names(self) -> Any:
        return self.page.locator("#operations > li:not([hidden]) .name")

    async def focused(self) -> str:
        """The text of what has the focus."""
        return str(await self.page.evaluate("document.activeElement.textContent"))

    async def background(self) -> str:
        return str(await self.page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))


@asynccontextmanager
async def tool(chromium: str, **page: Any) -> AsyncIterator[Tool]:
    inspector = Inspector()
    app = Starlette(
        routes=[Mount("/inspector", inspector), Mount("/graphql", GraphQL(schema, lambda _: Shop()))],
    )
    try:
        async with Server(app) as server, page_of(chromium, **page) as opened:
            yield Tool(opened, server.address, inspector)
    finally:
        await inspector.aclose()


async def test_operations_appear_without_a_reload_and_one_opens_with_its_waterfall_and_hint(chromium: str) -> None:
    async with tool(chromium, expected=r"404 \(Not Found\)") as it:
        await it.open()
        await expect(it.page.locator("#empty")).to_contain_text("Send a query to your app")
        await expect(it.page.locator("#live")).to_have_text("Live")
        await it.query("query Books { books { author { name } } }")
        await expect(it.names).to_have_text(["Books"])
        await it.query("query OneByOne { inALoop }")
        await expect(it.names).to_have_text(["OneByOne", "Books"])
        await expect(it.page.locator("#empty")).to_be_hidden()
        await expect(it.row("OneByOne")).to_contain_text("5 batches")
        await expect(it.row("OneByOne")).to_contain_text("1 hint")

        await it.row("OneByOne").click()
        await expect(it.page.locator("#title")).to_have_text("OneByOne")
        await expect(it.page.locator(".fall-row")).to_have_count(5)
        hint = it.page.locator(".hint-card")
        await expect(hint).to_have_count(1)
        await expect(hint).to_contain_text(f"{__file__}:{LOOP}")
        await expect(hint).to_contain_text("await loader.load_many(keys)")
        await it.page.locator(".fall-row").nth(2).hover()
        tip = it.page.locator("#tip")
        await expect(tip).to_contain_text("Shop.authors")
        await expect(tip).to_contain_text("settled")
        await expect(tip).to_contain_text(f"asked by {__file__}:{LOOP}")

        async with it.page.expect_download() as coming:
            await it.page.get_by_text("Perfetto trace").click()
        download = await coming.value
        assert download.suggested_filename == "OneByOne-2.perfetto.json"
        trace = json.loads((await download.path()).read_text())
        assert sum(event["name"] == "Shop.authors (1)" for event in trace["traceEvents"]) == 5

        await it.row("Books").click()
        await expect(it.page.locator(".fall-row")).to_have_count(1)
        await expect(it.page.locator(".hint-card")).to_have_count(0)
        await it.page.reload()  # its address is that of the operation
        await expect(it.page.locator("#title")).to_have_text("Books")
        await it.open("#/operations/gone-7")
        await expect(it.page.locator("#detail")).to_contain_text("not kept any more")


async def test_the_list_is_filtered_by_text_hints_and_failures(chromium: str) -> None:
    async with tool(chromium) as it:
        for query in ("query Books { books { author { name } } }", "query Loop { inALoop }", "query Bad { broken }"):
            await it.query(query)
        await it.open()
        await expect(it.names).to_have_text(["Bad", "Loop", "Books"])
        await it.page.keyboard.press("/")
        await it.page.keyboard.type("shop.AUTHORS bo")
        await expect(it.names).to_have_text(["Books"])
        await expect(it.page.locator("#count")).to_have_text("1 of 3")
        await it.query("query NotShown { inALoop }")
        await expect(it.page.locator("#count")).to_have_text("1 of 4")
        await it.page.keyboard.press("Escape")
        await expect(it.names).to_have_count(4)
        await it.page.get_by_role("button", name="With hints").click()
        await expect(it.names).to_have_text(["NotShown", "Loop"])
        await it.page.get_by_role("button", name="Failed").click()
        await expect(it.names).to_have_text(["Bad"])
        await it.page.locator("#filter").fill("nothing like it")
        await it.page.get_by_text("Show all operations").click()
        await expect(it.names).to_have_count(4)
        await it.row("Bad").click()
        await expect(it.page.locator(".fall-row .note")).to_have_text(re.compile("failed"))
        await expect(it.page.locator(".figures")).to_contain_text("failed")


async def test_everything_can_be_reached_by_keyboard(chromium: str) -> None:
    async with tool(chromium) as it:
        for query in ("query Books { books { author { name } } }", "query Loop { inALoop }"):
            await it.query(query)
        await it.open()
        await expect(it.names).to_have_count(2)
        press = it.page.keyboard.press
        await press("j")
        assert "Loop" in await it.focused()
        await press("ArrowDown")
        assert "Books" in await it.focused()
        await press("k")
        await press("Enter")
        await expect(it.page.locator("#title")).to_be_focused()
        await press("w")
        rows = it.page.locator(".fall-row")
        await expect(rows.first).to_be_focused()
        await expect(it.page.locator("#tip")).to_contain_text("1 key")
        await press("j")
        await press("ArrowDown")
        await expect(rows.nth(2)).to_be_focused()
        await expect(rows.nth(2)).to_have_attribute("aria-describedby", "tip")
        await press("End")
        await expect(rows.nth(4)).to_be_focused()
        await press("+")
        await expect(it.page.locator(".zoom-text")).to_have_text(re.compile("^2"))
        await press("0")
        await expect(it.page.locator(".zoom-text")).to_have_text(re.compile("^1"))
        await press("Escape")  # the tooltip
        await expect(it.page.locator("#tip")).to_be_hidden()
        await press("Escape")
        await expect(it.page.locator("#detail")).to_contain_text("Choose an operation")
        assert "Loop" in await it.focused()
        await press("/")
        await expect(it.page.locator("#filter")).to_be_focused()
        await press("j")  # is text here
        await expect(it.page.locator("#filter")).to_have_value("j")
        await press("Escape")
        await press("Escape")
        await press("?")
        await expect(it.page.locator("#help")).to_be_visible()
        await press("Escape")
        await expect(it.page.locator("#help")).to_be_hidden()
        await press("l")
        await expect(it.page.locator(".card")).to_contain_text("Shop.authors")
        await press("o")
        await expect(it.names).to_have_count(2)
        await press("p")
        await it.query("query Later { inALoop }")
        await expect(it.page.locator("#pause")).to_have_text("Resume (1)")
        await expect(it.names).to_have_count(2)
        await press("p")
        await expect(it.names).to_have_text(["Later", "Loop", "Books"])


async def test_names_are_shown_as_text(chromium: str) -> None:
    async def load(keys: list[int]) -> list[int]:
        return keys

    async with tool(chromium) as it:
        await it.open()
        async with Scope() as scope:
            scope.name = SCRIPT
            loader = DataLoader(load, name=f"{SCRIPT}.{SCRIPT}")
            for key in range(4):
                await loader.load(key)
        await expect(it.names).to_have_text([SCRIPT])
        await it.page.locator("#operations a").click()
        await expect(it.page.locator("#title")).to_have_text(SCRIPT)
        await it.page.keyboard.press("w")
        await expect(it.page.locator("#tip strong")).to_have_text(f"{SCRIPT}.{SCRIPT}")
        await it.page.keyboard.press("l")
        await expect(it.page.locator(".card h3")).to_contain_text("<script>")
        assert await it.page.locator("script").count() == 1  # the page's own
        assert await it.page.title() == "Loader inspector"


async def test_a_thousand_batches_can_be_read(chromium: str) -> None:
    async with tool(chromium, viewport={"width": 1200, "height": 800}) as it:
        async with Shop() as shop, Scope():
            await shop.one_by_one.load_many(range(1000))
        await it.open()
        await it.row("1,000 batches").click()
        rows = it.page.locator(".fall-row")
        await expect(rows.first).to_be_visible()
        assert await rows.count() < 60  # those that can be seen
        await it.page.keyboard.press("w")
        await it.page.keyboard.press("End")
        last = it.page.locator('.fall-row[aria-posinset="1000"]')
        await expect(last).to_be_focused()
        await expect(last).to_be_in_viewport(ratio=1)
        for _ in range(8):
            await it.page.keyboard.press("+")
        await it.page.keyboard.press("k")
        parts = it.page.locator('.fall-row[aria-posinset="999"] .bits i')
        await expect(parts.first).to_be_in_viewport()
        widths = await parts.evaluate_all("parts => parts.map(part => part.getBoundingClientRect().width)")
        assert sum(widths) > 20
        heads = it.page.locator(".corner"), it.page.locator(".axis span").first
        for head in heads:
            await expect(head).to_be_in_viewport()
        ticks = await it.page.locator(".axis span").all_text_contents()
        assert len(ticks) == len(set(ticks)) > 1
        assert re.fullmatch(r"[\d.]+ (ms|s)", ticks[0])


async def test_it_is_light_or_dark_as_the_system_is_or_as_chosen(chromium: str) -> None:
    light, dark = "rgb(246, 247, 249)", "rgb(20, 22, 27)"
    async with tool(chromium, color_scheme="dark") as it:
        await it.open()
        assert await it.background() == dark
        await it.page.emulate_media(color_scheme="light")
        assert await it.background() == light
        button = it.page.locator("#theme")
        for chosen, colour in (("light", light), ("dark", dark)):
            await button.click()
            await expect(button).to_have_text(f"Theme: {chosen}")
            assert await it.background() == colour
        await it.page.reload()
        assert await it.background() == dark
        await button.click()
        assert await it.background() == light


async def test_on_a_phone_there_is_one_pane_and_nothing_is_cut_off(chromium: str) -> None:
    async with tool(chromium, viewport={"width": 360, "height": 740}, has_touch=True) as it:
        await it.query("query Loop { inALoop }")
        await it.open()
        await expect(it.row("Loop")).to_be_visible()
        await expect(it.page.locator("#detail")).to_be_hidden()
        await it.row("Loop").tap()
        await expect(it.page.locator("#title")).to_be_in_viewport()
        await expect(it.page.locator("#operations")).to_be_hidden()
        await it.page.locator(".fall-row").nth(1).tap()
        await expect(it.page.locator("#tip")).to_be_in_viewport(ratio=1)
        for view in ("#/", "#/loaders", None):
            if view is not None:
                await it.page.evaluate(f"location.hash = '{view}'")
            assert await it.page.evaluate("document.documentElement.scrollWidth") == 360
        await it.page.evaluate("location.hash = '#/'")
        await expect(it.row("Loop")).to_be_visible()


async def test_the_figures_of_the_loaders_are_there_and_stay_up_to_date(chromium: str) -> None:
    async with tool(chromium) as it:
        await it.open("#/loaders")
        await expect(it.page.locator("#loaders-view")).to_contain_text("No loader yet")
        await it.query("query Books { books { author { name } } }")
        card = it.page.locator(".card")
        await expect(card).to_contain_text("1 batch")
        size = card.get_by_role("table", name="Size of a batch, in keys")
        await expect(size.locator("tr")).to_have_text(["≤ 41"])
        await it.query("query Loop { inALoop }")
        await expect(card).to_contain_text("6 batches")
        await expect(size.locator("tr")).to_have_text(["≤ 15", "≤ 20", "≤ 41"])
        await expect(card).to_contain_text("mean 1.5")


async def test_it_goes_on_after_the_connection_was_lost(chromium: str) -> None:
    async with tool(chromium) as it:
        await it.query("query Books { books { author { name } } }")
        await it.open()
        await expect(it.names).to_have_text(["Books"])
        for stream in tuple(it.inspector._live._streams):
            it.inspector._live._closed = True
            it.inspector._live._streams[stream]()
        while it.inspector._live._streams:  # noqa: ASYNC110  # the test's time limit is the bound
            await asyncio.sleep(0.01)
        it.inspector._live._closed = False
        await it.query("query Later { books { author { name } } }")
        await expect(it.names).to_have_text(["Later", "Books"])


async def test_a_token_opens_the_page_and_is_gone_from_its_address(chromium: str) -> None:
    token = "correct horse & battery staple"  # noqa: S105
    inspector = Inspector(token=token)
    try:
        async with (
            Server(Starlette(routes=[Mount("/inspector", inspector)])) as server,
            page_of(chromium, expected=r"401 \(Unauthorized\)") as page,
        ):
            await page.goto(f"http://{server.address}/inspector/")
            await expect(page.locator("h1")).to_have_text("The inspector is not shown")
            await page.get_by_label("Token").fill(token)
            await page.get_by_role("button", name="Open").click()
            await expect(page.locator("#live")).to_have_text("Live")
            assert page.url == f"http://{server.address}/inspector/"
    finally:
        await inspector.aclose()
