"""The demo's page in a real Chromium, on a real server: what a visitor sees and does."""
# ruff: noqa: RUF001  # the sign of multiplication is the page's

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from example_app import home, statistics
from example_app.app import create_app
from example_app.questions import QUESTIONS, Question
from example_app.settings import Settings
from tests.browsers import PATIENCE, chromium, page_of
from tests.serving import Server
from tests.test_example_data import built
from tests.test_example_server import started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Page

__all__ = ["chromium"]

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(180)]

RUN = 60_000  # milliseconds that the three ways may take
SMALL = Question("small", "A few", 5, "query Small($first: Int!) { flights(first: $first) { airline { name } } }")
HOSTILE = Question("<b>id</b>", "<img src=x onerror=alert(1)>", 5, SMALL.query + " # <script>alert(2)</script>")


@asynccontextmanager
async def site(
    chromium: str, folder: Path, *, expected: str = "$^", settings: Settings | None = None, **context: Any
) -> AsyncIterator[tuple[Page, Server]]:
    """The page, of a demo on a database of its own."""
    copy = folder / "flights.sqlite3"
    shutil.copy(built().database or "", copy)
    app = create_app(built().set(database=str(copy)), settings or Settings(log="off"))
    async with (
        app.router.lifespan_context(app),
        Server(app) as server,
        page_of(chromium, expected=expected, **context) as page,
    ):
        await page.goto(f"http://{server.address}/")
        yield page, server


async def figure(page: Page, way: str, number: int) -> str:
    return await page.locator(f".way[data-way={way}] .figures dd").nth(number).inner_text()


async def taken(page: Page, way: str) -> int:
    return int((await figure(page, way, 0)).replace(",", ""))


async def run_by_keyboard(page: Page) -> None:
    await page.keyboard.press("Enter")
    await expect(page.locator("#verdict")).to_have_attribute("data-state", "running")
    await expect(page.locator("#verdict")).to_have_attribute("data-state", "equal", timeout=RUN)


async def test_each_question_run_three_ways_has_one_answer_from_hundreds_of_statements_and_from_single_digits(
    chromium: str, tmp_path: Path
) -> None:
    copy = shutil.copy(built().database or "", tmp_path)
    # A process of its own: asyncio's debug mode, which tests have, makes a thousand statements slow.
    with started(built().set(database=str(copy)), EXAMPLE_MAX_SECONDS="60") as server:
        async with page_of(chromium) as page:
            await page.goto(f"http://{server.address}/")
            await ask_all(page)


async def ask_all(page: Page) -> None:
    await expect(page.locator("#questions input")).to_have_count(len(QUESTIONS))
    await page.locator("#questions input:checked").focus()
    for number, question in enumerate(QUESTIONS):
        if number:
            await page.keyboard.press("ArrowDown")
        await expect(page.locator("#query")).to_have_text(question.query)
        await run_by_keyboard(page)
        text = await page.locator("#verdict").inner_text()
        values = re.search(r"The three answers are equal, ([\d,]+) values compared", text)
        assert values is not None
        assert int(values[1].replace(",", "")) >= 200
        many = await taken(page, "one")
        assert 300 < many < 5000
        for way in "hand", "planned":
            assert 1 < await taken(page, way) < 10
            rows = await page.locator(f".way[data-way={way}] .fall li").count()
            # A row for each statement: the first is that of the root field, or a batch too.
            assert rows == await taken(page, way)
        assert re.fullmatch(r"[\d.]+ m?s", await figure(page, "planned", 1))
        # Hundreds of batches are a row for each loader, whose numbers add up to all statements.
        sizes = await page.locator(".way[data-way=one] .fall small").all_inner_texts()
        assert sum(int(size.removeprefix("× ").replace(",", "")) for size in sizes) == many
        assert len(sizes) < 12


async def test_the_sql_is_shown_on_demand(chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "QUESTIONS", [SMALL])
    async with site(chromium, tmp_path) as (page, _):
        await page.locator("#run").click()
        await expect(page.locator("#verdict")).to_have_attribute("data-state", "equal", timeout=RUN)
        sql = page.locator(".way[data-way=one] .sql")
        await expect(sql).not_to_be_visible()
        await page.locator(".way[data-way=one] summary").click()
        await expect(sql).to_be_visible()
        await expect(sql.locator("figure").first).to_contain_text("5 ×")
        await expect(sql.locator("figure").first).to_contain_text("FROM airlines")


async def test_questions_and_answers_are_shown_as_text(
    chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "QUESTIONS", [HOSTILE])
    async with site(chromium, tmp_path) as (page, _):
        await expect(page.locator("#questions label span")).to_have_text(HOSTILE.title)
        await expect(page.locator("#query")).to_have_text(HOSTILE.query)
        assert await page.locator("main img, main script, main b").count() == 0


async def test_a_limit_a_refusal_and_a_server_that_is_gone_are_said(
    chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("example_app.compare.MOST_STATEMENTS", 3)
    monkeypatch.setattr(home, "QUESTIONS", [SMALL])
    async with site(chromium, tmp_path, expected="ERR_|WebSocket|404|403") as (page, server):
        await page.locator("#run").click()
        await expect(page.locator("#verdict")).to_have_text(
            "The answers cannot be compared: not every way came to an end.", timeout=RUN
        )
        await expect(page.locator(".way[data-way=one] .error")).to_have_text(
            "Not a whole answer: stopped after 3 statements."
        )
        await expect(page.locator(".way[data-way=planned] .error")).to_have_count(0)
        server.uvicorn.should_exit = True
        await server.task
        await expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
        await page.locator("#run").click()
        await expect(page.locator("#verdict")).to_contain_text("Not compared:")
        await expect(page.locator("#run")).not_to_have_attribute("aria-disabled", "true")


async def test_the_board_moves_and_goes_on_where_it_was_after_a_reload(chromium: str, tmp_path: Path) -> None:
    async with site(chromium, tmp_path) as (page, _):
        rows, clock = page.locator("#lines tbody tr"), page.locator("#clock")
        await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        await expect(rows.first).to_be_visible()
        assert "On time" in await page.locator("#lines tbody").inner_text()
        await page.locator("select[name=speed]").select_option("1800")
        await page.locator("#board-controls label", has_text="Newark").click()
        # It moves: flights leave, others come.
        await expect(rows.filter(has_text="Departed").first).to_be_visible()
        await expect(clock).to_have_text(re.compile("15 Jan 2013, (0[89]|1)"), timeout=PATIENCE)
        before = await clock.inner_text()
        await page.reload()
        await expect(rows.first).to_be_visible()
        after = await clock.inner_text()
        assert before <= after < before[:-5] + "24:00"
        assert await page.locator("input[name=origin]:checked").input_value() == "EWR"
        assert await page.locator("select[name=speed]").input_value() == "1800"
        await expect(rows.filter(has_text="Departed").first).to_be_visible()
        times = await page.locator("#lines tbody td:first-child").all_inner_texts()
        assert times == sorted(times)


async def test_the_board_comes_back_by_itself_when_the_connection_was_lost(chromium: str, tmp_path: Path) -> None:
    async with site(chromium, tmp_path, expected="WebSocket") as (page, server):
        await expect(page.locator("#lines tbody tr").first).to_be_visible()
        for connection in list(server.uvicorn.server_state.connections):
            connection.transport.close()
        await expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
        await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        await expect(page.locator("#lines tbody tr").first).to_be_visible()


async def test_the_page_goes_on_when_the_service_is_started_again(chromium: str, tmp_path: Path) -> None:
    url = built().set(database=str(shutil.copy(built().database or "", tmp_path)))
    async with page_of(chromium, expected="WebSocket") as page:
        with started(url) as server:
            await page.goto(f"http://{server.address}/")
            await page.locator("select[name=speed]").select_option("1800")
            await expect(page.locator("#clock")).to_have_text(re.compile("15 Jan 2013, 0[789]"), timeout=PATIENCE)
            await page.locator("#delay").click()
            await expect(page.locator("#refreshes")).to_have_text("1")
            await expect(page.locator("#freshness")).to_have_text("Up to date")
            assert await asyncio.to_thread(server.stop, signal.SIGTERM) == 0
            await expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
            await expect(page.locator("#freshness")).to_have_attribute("data-state", "lost")
            before = await page.locator("#clock").inner_text()
        with started(url, "--port", server.address.rpartition(":")[2]):
            await expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=30_000)
            await expect(page.locator("#freshness")).to_have_text("Up to date")
            await expect(page.locator("#refreshes")).to_have_text("0")
            await page.locator("#delay").click()
            await expect(page.locator("#refreshes")).to_have_text("1")
            await expect(page.locator("#lines tbody tr").first).to_be_visible()
            await expect(page.locator("#clock")).not_to_have_text(before)
            assert before < await page.locator("#clock").inner_text()


async def test_however_often_a_flight_is_delayed_the_statistics_are_refreshed_once(
    chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer than usual from click to click, and for all of them.
    monkeypatch.setattr(statistics, "BURST", 4.0)
    monkeypatch.setattr(statistics, "AT_LATEST", 60.0)
    async with site(chromium, tmp_path) as (page, _):
        delay = page.locator("#delay")
        await expect(delay).to_be_enabled()
        await expect(page.locator("#freshness")).to_have_text("Up to date")
        for _ in range(5):
            await delay.click()
        await page.evaluate("for (let n = 0; n < 35; n += 1) document.getElementById('delay').click()")
        await expect(page.locator("#clicks")).to_have_text("40")
        await expect(page.locator("#refreshes")).to_have_text("1", timeout=PATIENCE)
        await expect(page.locator("#freshness")).to_have_text("Up to date")
        await expect(page.locator("#lines tbody tr[data-status=delayed]").first).to_contain_text("Delayed")
        await expect(page.locator("#routes tr[data-delayed]").first).to_be_visible()

        async def age() -> float:
            return float((await page.locator("#age").inner_text()).removesuffix(" s"))

        while (at_first := await age()) >= statistics.BURST:  # noqa: ASYNC110  # that of the statistics before; a page tells nobody
            await asyncio.sleep(0.1)
        await asyncio.sleep(4.5)  # in which another refresh would come
        assert await age() > at_first
        await expect(page.locator("#refreshes")).to_have_text("1")


async def test_everything_can_be_reached_by_keyboard_and_shows_that_it_has_the_focus(
    chromium: str, tmp_path: Path
) -> None:
    async with site(chromium, tmp_path) as (page, _):
        await expect(page.locator("#delay")).to_be_enabled()
        reached: list[str] = []
        outlined = "(e => [e, e.nextElementSibling].some(x => x && getComputedStyle(x).outlineStyle !== 'none'))"
        while True:
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement === document.body"):
                break
            names = "(e => e.id || e.name || e.className || e.tagName)(document.activeElement)"
            reached.append(await page.evaluate(names))
            assert await page.evaluate(f"{outlined}(document.activeElement)"), reached
        for what in ("skip", "to-graphiql", "theme", "question", "run", "open", "origin", "speed", "delay"):
            assert what in reached, (what, reached)


async def test_it_is_light_or_dark_as_the_system_is_or_as_chosen_and_remembers_it(
    chromium: str, tmp_path: Path
) -> None:
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    light, dark = "rgb(246, 247, 249)", "rgb(20, 22, 27)"
    async with site(chromium, tmp_path, color_scheme="dark") as (page, _):
        assert await page.evaluate(colour) == dark
        await page.locator("#theme").click()
        assert await page.evaluate(colour) == light
        await page.reload()
        assert await page.evaluate(colour) == light
        await page.locator("#theme").click()
        await page.emulate_media(color_scheme="light")
        assert await page.evaluate(colour) == dark
        await page.locator("#theme").click()
        assert await page.evaluate(colour) == light


@pytest.mark.parametrize("width", [320, 390, 800])
async def test_on_small_screens_nothing_is_cut_off(
    chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(home, "QUESTIONS", [SMALL])
    async with site(chromium, tmp_path, viewport={"width": width, "height": 740}, has_touch=True) as (page, _):
        await page.locator("#run").tap()
        await expect(page.locator("#verdict")).to_have_attribute("data-state", "equal", timeout=RUN)
        await expect(page.locator("#lines tbody tr").first).to_be_visible()
        await expect(page.locator("#routes tbody tr").first).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") == width


async def test_without_graphiql_nothing_leads_there(chromium: str, tmp_path: Path) -> None:
    async with site(chromium, tmp_path, settings=Settings(log="off", graphiql=False)) as (page, _):
        await expect(page.locator("#run")).to_be_enabled()
        await expect(page.locator("#to-graphiql")).not_to_be_visible()
        await expect(page.locator("#open")).not_to_be_visible()
