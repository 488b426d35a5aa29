"""The mark of a start before the code of a run begins: that of a job that was lost twice, and of a suspect.

A suspect, a job that executors died with, keeps its slot unstarted until all other runs here have ended, and the
executor takes no jobs until the suspect has ended: if this executor dies too, that job is the cause
(docs/why/adr/0030). Both waits have a time limit, because runs may wait for each other's jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from uuid import UUID

from joex.core.job import TakenJob
from joex.runtime.run import Run

_ALONE_FOR = 60.0  # seconds that a suspect waits for other runs, and others for it once it has started


class Marks:
    """Marks the starts of runs, and keeps one suspect at a time.

    Args:
        runs: those in the slots of the executor.
        mark_start: marks one in the database; False: it has lost the job.
        on_room: called when others may be taken beside the suspect.
    """

    def __init__(
        self, runs: Mapping[UUID, Run], mark_start: Callable[[TakenJob], Awaitable[bool]], on_room: Callable[[], None]
    ) -> None:
        self._runs = runs
        self._mark_start = mark_start
        self._on_room = on_room
        self._suspect: Run | None = None  # runs alone, or waits to do so
        self._is_alone = asyncio.Event()

    @property
    def is_room(self) -> bool:
        """Whether other jobs may be taken: no suspect runs alone, or waits to do so."""
        return self._suspect is None

    def keep(self, run: Run) -> bool:
        """Keep a suspect. False: there is one already."""
        if self._suspect is not None:
            return False
        self._suspect = run
        return True

    def released(self, run: Run) -> None:
        """The slot of a run is free."""
        if run is self._suspect:
            self._suspect = None
        if len(self._runs) == 1:
            self._is_alone.set()

    async def mark(self, job: TakenJob) -> bool | None:
        """Mark the start of a run, that of a suspect when no other one is left here; None: it has lost its job.

        Raises:
            JoexError: it could not be marked.
        """
        if job.suspect:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ALONE_FOR):
                    while len(self._runs) > 1:
                        self._is_alone.clear()
                        await self._is_alone.wait()
        if not await self._mark_start(job):
            return None
        if job.suspect:
            asyncio.get_running_loop().call_later(_ALONE_FOR, self.let_others_in, job)
        return True

    def let_others_in(self, job: TakenJob) -> None:
        """Take jobs beside this one, if it is the suspect."""
        if self._suspect is not None and self._suspect.job is job:
            self._suspect = None
            self._on_room()
