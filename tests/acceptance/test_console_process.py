"""`joex console`, as its user starts it."""

import asyncio
import re
import signal
from pathlib import Path

import httpx

from joex import Client
from tests.support.commands import started
from tests.support.waiting import PATIENCE, eventually

COMMAND = "python -m joex console --http-address 127.0.0.1:0"
READY = re.compile(r"http://127\.0\.0\.1:\d+/")


async def test_it_serves_until_sigterm_and_asks_for_the_owners_token(
    client: Client, database_url: str, tmp_path: Path
) -> None:
    await client.submit("a", group="acme")
    token = "an-owners-token-of-32-characters"
    async with (
        started(COMMAND, tmp_path, database_url, JOEX_API_TOKEN=token) as (process, log),
        httpx.AsyncClient(timeout=PATIENCE) as browser,
    ):
        await eventually(lambda: READY.search(log()), why="it has started")
        found = READY.search(log())
        assert found is not None
        assert (await browser.get(f"{found[0]}fairness")).status_code == 303
        page = await browser.get(f"{found[0]}fairness", headers={"Cookie": f"__Host-joex-console={token}"})
        assert "acme" in page.text
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0, log()
