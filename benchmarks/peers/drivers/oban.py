"""Oban for Python, after its guides: https://oban.pro/docs/py.

- Driver: psycopg 3 with its C part (the only one it has), uvloop, a pool of ten connections, its default.
- Submission: `enqueue_many` for a batch, `enqueue` for one. It sends a statement for each job of a batch.
- Work: one `Oban` with one queue, whose limit is the slots. It fetches what is missing in one statement, at most each
  5 ms (`debounce_interval`), and writes each end with a statement of its own.
- --fair: the free version knows queues and priorities, not groups. Ten queues, groups dealt over them by number, with
  a tenth of the slots each. Slots of an idle queue stay idle. (Oban Pro has limits for partitions of a queue.)
- History: finished jobs stay for a day, its default.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

import psycopg
from oban import Oban, job
from oban.schema import install

from benchmarks.peers.drivers.protocol import Submission, Tasks, main, stop_signal, tell
from benchmarks.peers.drivers.sharing import PARTS, part_of

_tasks = Tasks()


@job()
async def noop() -> None:
    """Do nothing."""
    await _tasks.noop()


@job()
async def stamp(sent: float) -> None:
    """Tell how long ago the job was submitted."""
    await _tasks.stamp(sent)


@job()
async def sleep(group: str, ms: float, sent: float) -> None:
    """Hold a slot."""
    await _tasks.sleep(group, ms, sent)


_BY_NAME = {"noop": noop, "stamp": stamp, "sleep": sleep}


@dataclass(frozen=True, slots=True)
class _Producer:
    oban: Oban
    fair: bool

    async def submit(self, jobs: Sequence[Submission]) -> None:
        new = []
        for one in jobs:
            made = _BY_NAME[one.task].new(**one.args)
            made.queue = f"part_{part_of(one.group)}" if self.fair else "default"
            new.append(made)
        if len(new) == 1:
            await self.oban.enqueue(new[0])
        else:
            await self.oban.enqueue_many(new)


class _Oban:
    async def version(self) -> str:
        return version("oban")

    async def setup(self, url: str) -> None:
        pool = await Oban.create_pool(url, max_size=1)
        await install(pool)
        await pool.close()

    @asynccontextmanager
    async def producer(self, url: str, *, fair: bool) -> AsyncIterator[_Producer]:
        pool = await Oban.create_pool(url, max_size=1)
        # (It is not started: only what works through queues listens, leads and prunes.)
        yield _Producer(Oban(pool=pool), fair)
        await pool.close()

    async def work(self, url: str, slots: int, *, fair: bool) -> None:
        stop = stop_signal()
        pool = await Oban.create_pool(url)
        queues = {f"part_{part}": max(1, slots // PARTS) for part in range(PARTS)} if fair else {"default": slots}
        async with Oban(pool=pool, queues=queues):
            tell(ready=True)
            await stop.wait()
        await pool.close()

    async def pending(self, url: str) -> int:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled')"
            )
            [found] = await cursor.fetchone() or [0]
        return int(found)


if __name__ == "__main__":
    main(_Oban())
