"""An executor that has what Python has on Windows: no signals of Unix, no uvloop, no watchdog, no clock of Linux."""

import asyncio
from pathlib import Path

from joex import Client
from tests.support.commands import started
from tests.support.waiting import PATIENCE, eventually
from tests.support.windows import AS_ON_WINDOWS

EXECUTOR = "as_on_windows executor --app joex.examples.documents:app"


async def test_an_executor_runs_jobs_and_leaves_in_order_where_linux_is_missing(
    tmp_path: Path, client: Client, database_url: str
) -> None:
    (tmp_path / "as_on_windows.py").write_text(f"{AS_ON_WINDOWS}\nfrom joex.cli import main\nmain()\n")
    async with started(EXECUTOR, tmp_path, database_url) as (process, log):
        await eventually(lambda: "registered" in log() or process.returncode is not None, why="it is registered")
        assert "no watchdog on Windows" in log()
        job_id = await client.submit("documents.count", {"path": __file__})
        assert job_id is not None
        job = await client.wait(job_id, timeout="90s")
        assert job is not None
        assert job.state == "success", job
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0, log()
        # (The database knows of the end of a job a moment before the executor does: its run may still be named here.)
        assert "SIGTERM: waiting for the runs: " in log()
