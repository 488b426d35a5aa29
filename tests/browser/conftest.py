"""Fixtures of the tests in a browser: the console, and Chromium, which the tests of a file share.

Chromium belongs to the event loop in which it was started, so all tests of a file, and what they use, have one loop:
``pytestmark = pytest.mark.asyncio(loop_scope="module")``.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from fastapi import FastAPI
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from joex import Client
from joex.console.app import create_console
from joex.http.listening import listen
from joex.http.server import serve
from joex.store.database import connect, create_pool
from tests.support.shop import open_the_shop
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 800}

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium; fails if there is none, and none can be downloaded."""
    found = subprocess.run([ROOT / "scripts/get_program.sh", "chromium"], check=False, capture_output=True, text=True)
    if found.returncode != 0:
        pytest.fail(f"Chromium can't be had: {found.stderr}")
    return found.stdout.strip()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """Chromium."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the test's database."""
    connection = await connect(database_url, name="joex test")
    yield connection
    await connection.close()


@pytest_asyncio.fixture(loop_scope="module")
async def client(database_url: str) -> AsyncIterator[Client]:
    """A client on the test's database."""
    pool = await create_pool(database_url, most=10, name="joex test pool")
    client = Client(pool)
    yield client
    await client.close()
    await pool.close()


@asynccontextmanager
async def serving(console: FastAPI) -> AsyncIterator[str]:
    """Serves a console; yields its address."""
    listener = listen("127.0.0.1:0")
    task = asyncio.create_task(serve(console, listener))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest_asyncio.fixture(loop_scope="module")
async def console(client: Client) -> AsyncIterator[str]:
    """The address of a console on the test's database."""
    async with serving(create_console(client)) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def shop(client: Client, connection: asyncpg.Connection) -> dict[str, UUID]:
    """A shop in the middle of its day; the ids of some of its jobs."""
    return await open_the_shop(client, connection)


class Viewer:
    """Opens pages of the console, and watches them: no error, no violation of the policy, nothing asked of others."""

    def __init__(self, browser: Browser, console: str) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.console = console
        self.troubles: list[str] = []
        self.asked: list[str] = []

    async def open(self, path: str = "/", **options: Any) -> Page:
        """A page in a context of its own."""
        context = await self._browser.new_context(**{"viewport": DESK, "base_url": self.console, **options})
        context.set_default_timeout(PATIENCE * 1000)
        self._contexts.append(context)
        page = await context.new_page()
        page.on("console", lambda said: self.troubles.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: self.troubles.append(dialog.message))
        page.on("request", lambda request: self.asked.append(request.url))
        await page.goto(path)
        return page

    async def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            await context.close()


@pytest_asyncio.fixture(loop_scope="module")
async def viewer(browser: Browser, console: str) -> AsyncIterator[Viewer]:
    """A viewer of the console, whom nothing may trouble."""
    viewer = Viewer(browser, console)
    yield viewer
    await viewer.close()
    assert viewer.troubles == []
    assert [url for url in viewer.asked if not url.startswith(f"{console}/")] == []


@pytest.fixture
def pages(shop: dict[str, UUID]) -> Callable[[], list[str]]:
    """The paths of all pages, with something to see on each."""
    paths = [
        "/", "/fairness", "/group?queue=default&group=acme&weight=3", "/jobs", "/executors", "/simulate?hours=1",
        "/pools", "/pool?home=shop&pool=documents",
        "/periodic?timer=Mon..Fri+8:00&zone=Europe/Zurich", f"/jobs/{shop['running']}", f"/jobs/{shop['failed']}",
    ]  # fmt: skip
    return lambda: paths


async def live(page: Page, text: str) -> None:
    """Wait until a page shows a text without having been loaded again."""
    await expect(page.locator("main")).to_contain_text(text)
    assert await page.evaluate("window.isTheSame") is True


async def not_loaded_again(page: Page) -> None:
    """Mark a page, so that `live` would notice that it was loaded again."""
    await page.evaluate("window.isTheSame = true")
