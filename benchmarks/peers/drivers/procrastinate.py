"""Procrastinate, after its guides on concurrency and production.

- Driver: psycopg 3 (its default connector), uvloop.
- Submission: `Task.batch_defer_async` for a batch, `defer_async` for one.
- Work: one `run_worker_async` with `concurrency` = slots, LISTEN and NOTIFY on, a pool that lets it write the ends of
  several jobs at once. It fetches jobs one by one.
- --fair: it knows queues and locks, not groups. Ten queues, groups dealt over them by number, and one worker per queue
  with a tenth of the slots in the same process, as its guide suggests for kinds of jobs that must not delay each
  other. Slots of an idle queue stay idle. (A lock per group would let each group run one job at a time; the fetch
  then reads each waiting job of a locked group in turn, which takes too long with thousands of them.)
- History: finished jobs stay, with their events (`delete_jobs="never"`, its default).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import procrastinate
import psycopg

from benchmarks.peers.drivers.protocol import Submission, Tasks, main, stop_signal, tell
from benchmarks.peers.drivers.sharing import PARTS, part_of

_MOST_CONNECTIONS = 20


@dataclass(frozen=True, slots=True)
class _Producer:
    app: procrastinate.App
    fair: bool

    async def submit(self, jobs: Sequence[Submission]) -> None:
        [(task, queue)] = {(job.task, self._queue(job)) for job in jobs}
        deferrer = self.app.configure_task(task, queue=queue)
        if len(jobs) == 1:
            await deferrer.defer_async(**jobs[0].args)
        else:
            await deferrer.batch_defer_async(*(job.args for job in jobs))

    def _queue(self, job: Submission) -> str:
        return f"part {part_of(job.group)}" if self.fair else "default"


# It warns of an app in the main module, because other processes can't import its tasks; here each makes its own.
logging.getLogger("procrastinate").setLevel(logging.ERROR)


def _app(url: str, connections: int) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=connections)
    return procrastinate.App(connector=connector)


class _Procrastinate:
    async def version(self) -> str:
        return version("procrastinate")

    async def setup(self, url: str) -> None:
        async with _app(url, 1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self, url: str, *, fair: bool) -> AsyncIterator[_Producer]:
        app = _app(url, 1)
        _register(app, Tasks())
        async with app.open_async():
            yield _Producer(app, fair)

    async def work(self, url: str, slots: int, *, fair: bool) -> None:
        app = _app(url, _MOST_CONNECTIONS)
        _register(app, Tasks())
        stop = stop_signal()
        queues = [[f"part {part}"] for part in range(PARTS)] if fair else [None]
        async with app.open_async():
            workers = [
                asyncio.create_task(
                    app.run_worker_async(
                        queues=names, concurrency=max(1, slots // len(queues)), install_signal_handlers=False
                    )
                )
                for names in queues
            ]
            tell(ready=True)
            await asyncio.wait([*workers, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def pending(self, url: str) -> int:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
            )
            [found] = await cursor.fetchone() or [0]
        return int(found)


def _register(app: procrastinate.App, tasks: Tasks) -> None:
    @app.task(name="noop")
    async def noop() -> None:
        await tasks.noop()

    @app.task(name="stamp")
    async def stamp(sent: float) -> None:
        await tasks.stamp(sent)

    @app.task(name="sleep")
    async def sleep(**args: Any) -> None:
        await tasks.sleep(**args)


if __name__ == "__main__":
    main(_Procrastinate())
