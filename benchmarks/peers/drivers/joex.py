"""Joex, by its public interface.

- Submission: `Client.submit_many` (one statement per 1,000 jobs), and `Client.submit` for one. Groups are always given.
- Work: `joex executor` with the pool size asked for and without the HTTP interface, which the peers lack.
- Fairness is always on and has no setting, so --fair changes nothing.
- History: finished jobs stay (7 days by default), with their times, results and attempts.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

import joex
from benchmarks.peers.drivers.protocol import Submission, main, stop_signal, tell

_READY = "SELECT EXISTS (SELECT FROM joex_private.executor WHERE pid = $1 AND left_at IS NULL)"


@dataclass(frozen=True, slots=True)
class _Producer:
    client: joex.Client

    async def submit(self, jobs: Sequence[Submission]) -> None:
        if len(jobs) == 1:
            [job] = jobs
            await self.client.submit(job.task, job.args, group=job.group)
        else:
            await self.client.submit_many({"task": job.task, "args": job.args, "group": job.group} for job in jobs)


class _Joex:
    async def version(self) -> str:
        return joex.__version__

    async def setup(self, url: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "joex", "migrate", env=_environment(url), stdout=asyncio.subprocess.DEVNULL
        )
        if await process.wait():
            raise RuntimeError("joex migrate failed")

    @asynccontextmanager
    async def producer(self, url: str, *, fair: bool) -> AsyncIterator[_Producer]:  # noqa: ARG002 - nothing to set
        async with joex.Client(url) as client:
            async with client.acquire():
                pass  # it is connected now, and reuses this connection
            yield _Producer(client)

    async def work(self, url: str, slots: int, *, fair: bool) -> None:  # noqa: ARG002 - likewise
        """Run an executor, whose tasks print the lines about the jobs to the same stdout."""
        stop = stop_signal()
        flags = ["--pool-size", str(slots), "--http-address", ""]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "joex", "executor", "--app", "benchmarks.peers.drivers.joex_tasks:app", *flags,
            env={**_environment(url), "JOEX_APP_ID": f"racer-{os.getpid()}", "JOEX_LOG_LEVEL": "warning"},
        )  # fmt: skip
        ended, stopped = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
        connection = await asyncpg.connect(url)
        while not ended.done() and not await connection.fetchval(_READY, process.pid):  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.02)
        await connection.close()
        tell(ready=True)
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            process.terminate()
            await ended

    async def pending(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        found = await connection.fetchval("SELECT count(*) FROM joex_private.job WHERE finished_at IS NULL")
        await connection.close()
        return int(found)


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "JOEX_DATABASE_URL": url}


if __name__ == "__main__":
    main(_Joex())
