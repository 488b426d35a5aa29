"""PgQueuer, after its guide "Performance Tuning".

- Driver: asyncpg (twice as fast as psycopg in its own benchmark); a single connection for the worker ("always use a
  direct asyncpg connection for the QueueManager"), uvloop, as in its own command; autovacuum tuned (`pgq autovac`).
- Submission: `Queries.enqueue`, with lists for a batch.
- Work: batches of half the slots, at most 500 (a batch may be no larger than half of what may run at a time).
  For no-op jobs the race gives it so many slots that this limit never applies.
- --fair: it knows entry points, not groups. Ten entry points, groups dealt over them by number, each with a share of
  the slots that it may not exceed (`concurrency_limit`, in the database, over all workers). Slots of an idle entry
  point stay idle. Without it: one entry point, first in, first out.
- Durability: `durable`, its default. History: the queue row is deleted; its log keeps a line for each change of state.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.drivers.protocol import Submission, Tasks, main, stop_signal, tell
from benchmarks.peers.drivers.sharing import PARTS, part_of

_LARGEST_BATCH = 500


@dataclass(frozen=True, slots=True)
class _Producer:
    queries: Queries
    fair: bool

    async def submit(self, jobs: Sequence[Submission]) -> None:
        names = [f"{job.task} {part_of(job.group)}" if self.fair else job.task for job in jobs]
        payloads: list[bytes | None] = [json.dumps(job.args).encode() if job.args else None for job in jobs]
        if len(jobs) == 1:
            await self.queries.enqueue(names[0], payloads[0])
        else:
            await self.queries.enqueue(names, payloads, [0] * len(jobs))


class _PgQueuer:
    async def version(self) -> str:
        return version("pgqueuer")

    async def setup(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    @asynccontextmanager
    async def producer(self, url: str, *, fair: bool) -> AsyncIterator[_Producer]:
        connection = await asyncpg.connect(url)
        yield _Producer(Queries(AsyncpgDriver(connection)), fair)
        await connection.close()

    async def work(self, url: str, slots: int, *, fair: bool) -> None:
        connection = await asyncpg.connect(url)
        queue = PgQueuer(AsyncpgDriver(connection))
        tasks = Tasks()

        @queue.entrypoint("noop")
        async def noop(job: Job) -> None:
            await tasks.noop()

        @queue.entrypoint("stamp")
        async def stamp(job: Job) -> None:
            await tasks.stamp(**json.loads(job.payload or b""))

        async def sleep(job: Job) -> None:
            await tasks.sleep(**json.loads(job.payload or b""))

        if fair:
            for part in range(PARTS):
                queue.entrypoint(f"sleep {part}", concurrency_limit=max(1, slots // PARTS))(sleep)
        else:
            queue.entrypoint("sleep")(sleep)
        stop = stop_signal()
        running = asyncio.create_task(queue.run(batch_size=min(slots // 2, _LARGEST_BATCH), max_concurrent_tasks=slots))
        tell(ready=True)
        await asyncio.wait((running, asyncio.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
        queue.shutdown.set()
        await running
        await connection.close()

    async def pending(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        found = await Queries(AsyncpgDriver(connection)).queue_size()
        await connection.close()
        return sum(one.count for one in found)


if __name__ == "__main__":
    main(_PgQueuer())
