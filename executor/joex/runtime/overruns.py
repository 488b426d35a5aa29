"""Has runs counted for their groups that keep their slots though they have no job any more.

The code of a run, or its cancel handler, may go on for long after its job has ended or has gone back. Takes count the
jobs that are held; without this a group would get one slot after the other by such runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from joex.core.events import Emit
from joex.core.job import TakenJob
from joex.errors import JoexError
from joex.store import executors
from joex.store.database import borrowed
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg


class Overruns:
    """The service that tells the database which runs of an executor have a slot and no job."""

    def __init__(self, pool: asyncpg.Pool[Any], executor_id: int, emit: Emit) -> None:
        self._pool = pool
        self._id = executor_id
        self._emit = emit
        self._counted: set[UUID] = set()  # the lock ids of those that are told, or about to be
        self._begun: list[TakenJob] = []
        self._over: list[UUID] = []
        self._some = asyncio.Event()

    def began(self, job: TakenJob) -> None:
        """The run of this job goes on without it."""
        # (Again with each heartbeat: an earlier check of runs, or a fail-over, may have deleted what was told.)
        self._counted.add(job.lock_id)
        self._begun.append(job)
        self._some.set()

    def over(self, jobs: Iterable[TakenJob]) -> None:
        """The slots of the runs of these jobs are free."""
        for job in jobs:
            if job.lock_id in self._counted:
                self._counted.discard(job.lock_id)
                self._over.append(job.lock_id)
                self._some.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        trouble = Trouble("overruns", self._emit)
        while True:
            await self._some.wait()
            self._some.clear()
            begun, self._begun = self._begun, []
            over, self._over = self._over, []
            try:
                async with borrowed(self._pool) as connection:
                    await executors.note_overruns(connection, self._id, begun, over)
                trouble.over()
            except (JoexError, OSError) as error:
                self._begun, self._over = begun + self._begun, over + self._over
                await asyncio.sleep(trouble.failed(error))
                self._some.set()
