"""``joex dev`` starts its executor again when code changes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

import joex
from tests.support.commands import started
from tests.support.waiting import PATIENCE, eventually

SHOP = """
import asyncio
import joex

app = joex.App()


@app.task("answer")
async def answer(ctx: joex.Context) -> str:
    return {answer!r}


@app.task("hang")
async def hang(ctx: joex.Context) -> str:
    if {answer!r} == "one":
        await asyncio.Event().wait()
    return {answer!r}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], None]:
    """Write the app; it answers this."""

    def write(answer: str) -> None:
        save(tmp_path, SHOP.format(answer=answer))

    write("one")
    return write


def save(folder: Path, text: str) -> None:
    """Save the app as editors do: at once."""
    (folder / "shop.py.new").write_text(text)
    (folder / "shop.py.new").replace(folder / "shop.py")


class Dev:
    """``joex dev`` at work."""

    def __init__(self, process: asyncio.subprocess.Process, log: Callable[[], str], client: joex.Client) -> None:
        self.process = process
        self.log = log
        self._client = client

    async def says(self, text: str, times: int = 1) -> None:
        await eventually(lambda: self.log().count(text) >= times, why=f"{text!r} is {times} times in:\n{self.log()}")

    async def answers(self, expected: str) -> None:
        job_id = await self._client.submit("answer")
        job = await self._client.wait(job_id)
        assert job is not None
        assert job.result == expected, self.log()


@asynccontextmanager
async def dev(folder: Path, url: str, client: joex.Client, **environment: str) -> AsyncIterator[Dev]:
    async with started("joex dev --app shop:app", folder, url, JOEX_APP_ID="dev", **environment) as (process, log):
        yield Dev(process, log, client)


async def test_changed_code_runs_at_once_and_a_mistake_in_it_is_one_line(
    tmp_path: Path, write: Callable[[str], None], client: joex.Client, database_url: str
) -> None:
    async with dev(tmp_path, database_url, client) as it:
        await it.answers("one")
        write("two")
        await it.says("a file has changed", 1)
        await it.says("runs up to", 2)
        await it.answers("two")
        save(tmp_path, "x = (\n")
        await it.says("it starts again when a file changes")
        lines = {line for line in it.log().splitlines() if "shop.py" in line}
        assert lines == {f"joex: --app: {tmp_path}/shop.py, line 1: '(' was never closed"}
        write("three")
        await it.says("runs up to", 3)
        await it.answers("three")
        it.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(it.process.wait(), PATIENCE) == 0
        assert "Traceback" not in it.log()


async def test_a_run_that_a_change_interrupts_runs_again_with_the_new_code(
    tmp_path: Path, write: Callable[[str], None], client: joex.Client, database_url: str
) -> None:
    async with dev(tmp_path, database_url, client, JOEX_SIGNAL_TIMEOUT="1ms") as it:
        job_id = await client.submit("hang")
        await client.wait(job_id, states=["running"])
        write("two")
        job = await client.wait(job_id)
        assert job is not None
        assert (job.result, job.failures) == ("two", 0), it.log()


UNWATCHABLE = """
import asyncio, pathlib

def PythonFilter(**_): ...

async def awatch(folder, **_):
    while not (folder / "full").exists():
        await asyncio.sleep(0.01)
    raise ExceptionGroup("unhandled errors", [OSError("too many files")])
    yield
"""


@pytest.mark.parametrize("later", [False, True])
async def test_a_folder_that_can_not_be_watched_is_one_line_and_the_end(
    tmp_path: Path, write: Callable[[str], None], client: joex.Client, database_url: str, *, later: bool
) -> None:
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "watchfiles.py").write_text(UNWATCHABLE)
    if not later:
        (tmp_path / "full").touch()
    async with dev(tmp_path, database_url, client, PYTHONPATH=str(tmp_path / "fake")) as it:
        if later:
            await it.answers("one")
            (tmp_path / "full").touch()
        assert await asyncio.wait_for(it.process.wait(), PATIENCE) == 2
        assert [line for line in it.log().splitlines() if "watch" in line] == [
            "joex: can't watch the current folder: too many files (WATCHFILES_FORCE_POLLING=1 polls it instead)"
        ]
        assert "Traceback" not in it.log()


async def test_no_executor_outlives_it(
    tmp_path: Path, write: Callable[[str], None], client: joex.Client, database_url: str
) -> None:
    """Even where it is killed."""
    async with dev(tmp_path, database_url, client) as it:
        await it.answers("one")
        [child] = psutil.Process(it.process.pid).children()
        assert os.getsid(child.pid) == child.pid, "a Ctrl-C of the terminal does not reach it twice"
        it.process.kill()
        await eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
