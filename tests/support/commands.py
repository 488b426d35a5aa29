"""Commands of the documentation, run against the test's database."""

import asyncio
import os
import re
import shlex
import sys
import tempfile
from asyncio.subprocess import STDOUT, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.waiting import PATIENCE, eventually


async def done(
    command: str,
    folder: Path,
    url: str,
    *,
    python: str | Path = sys.executable,
    within: float = PATIENCE,
    **environment: str,
) -> None:
    """Run a command to its end; it must succeed."""
    async with started(command, folder, url, python=python, **environment) as (process, log):
        assert await asyncio.wait_for(process.wait(), within) == 0, log()


@asynccontextmanager
async def started(
    command: str, folder: Path, url: str, *, python: str | Path = sys.executable, **environment: str
) -> AsyncIterator[tuple[Process, Callable[[], str]]]:
    """A module of Python, in its own folder and process, and its output. At the end it gets a SIGTERM."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JOEX_", "PG", "DJANGO_", "PYTHONPATH"))
    }
    ours = {"JOEX_DATABASE_URL": url, "JOEX_HTTP_ADDRESS": "", **environment}
    module = shlex.split(command.removeprefix("python -m "))
    with tempfile.NamedTemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            *(python, "-u", "-m", *module), cwd=folder, env=clean | ours, stdout=output, stderr=STDOUT
        )

        def log() -> str:
            return Path(output.name).read_text()

        try:
            yield process, log
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE)
            print(f"{command}:\n{log()}")  # pytest shows it


@asynccontextmanager
async def running(
    command: str, folder: Path, url: str, ready: str, *, python: str | Path = sys.executable, **environment: str
) -> AsyncIterator[str]:
    """A command that keeps running; the block begins when its output matches ``ready``, and gets the match."""
    async with started(command, folder, url, python=python, **environment) as (process, log):
        await eventually(lambda: re.search(ready, log()) or process.returncode is not None, why=f"{command} is ready")
        found = re.search(ready, log())
        assert found, f"{command} ended with {process.returncode}:\n{log()}"
        yield found[0]
