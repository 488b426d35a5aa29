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
from joex.errors import JoexError
from joex.runtime.run import Run

_ALONE_FOR = 60.0  # seconds that a suspect waits for other runs, and others for it once it has started
_WRITTEN_WITHIN = 2.0  # seconds that both wait for the end of a run to be written: its row may stay locked


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
        self._loop = asyncio.get_running_loop()
        self._suspect: Run | None = None  # runs alone, or waits to do so
        self._changed = asyncio.Event()  # a run has ended, or its end is written

    @property
    def is_room(self) -> bool:
        """Whether other jobs may be taken: no suspect runs alone, or waits to do so."""
        return self._suspect is None

    def keep(self, run: Run) -> bool:
        """Keep a suspect, which closes the executor. False: there is one."""
        if self._suspect is not None:
            return False
        self._suspect = run
        return True

    def ended(self, run: Run) -> None:
        """The end of a run is handed over, to be written."""
        self._changed.set()
        if run is self._suspect:
            self._loop.call_later(_WRITTEN_WITHIN, self._let_others_in_if_over, run)

    def _let_others_in_if_over(self, run: Run) -> None:
        if not run.is_cleaning_up:
            self.let_others_in(run)

    def released(self, run: Run) -> None:
        """The slot of a run is free."""
        if run is self._suspect:
            self._suspect = None
        self._changed.set()

    async def mark(self, run: Run) -> bool | None:
        """Mark the start of a run, that of a suspect when no other one is left here; None: it has lost its job.

        Raises:
            JoexError: it could not be marked.
        """
        job = run.job
        if not job.suspect:
            return True if await self._mark_start(job) else None
        try:
            await self._until_alone(run)
            if not await self._mark_start(job):
                return None
        except JoexError:
            self.let_others_in(run)
            raise
        self._loop.call_later(_ALONE_FOR, self.let_others_in, run)
        return True

    async def _until_alone(self, run: Run) -> None:
        until = self._loop.time() + _ALONE_FOR
        # (A run may turn out to be cancelled when its end is written, and clean up.)
        for within, is_in_the_way in (
            (_ALONE_FOR, _may_run),
            (_WRITTEN_WITHIN, _is_there),
            (_ALONE_FOR, _may_run),
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, self._loop.time() + within)):
                    while any(is_in_the_way(other) for other in self._runs.values() if other is not run):
                        self._changed.clear()
                        await self._changed.wait()

    def let_others_in(self, run: Run) -> None:
        """Take jobs beside this run, if it is the suspect."""
        if run is self._suspect:
            self._suspect = None
            self._on_room()


def _may_run(run: Run) -> bool:
    return not run.has_ended or run.is_cleaning_up


def _is_there(_: Run) -> bool:
    return True
