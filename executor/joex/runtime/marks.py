"""The mark of a start before the code of a run begins: that of a job that was lost twice, and of a suspect.

A suspect, a job that executors died with, keeps its slot unstarted until all other runs here have ended, and the
executor takes no jobs until the suspect has ended: if this executor dies too, that job is the cause
(docs/why/adr/0030). Both waits have a time limit, because runs may wait for each other's jobs.

A tenant may keep the rows of its suspects locked, so that none can be marked. So when that has kept one from its mark,
the next ones of its group wait, each in its slot and beside others, and are given back: the pause until the executor is
closed for one again is longer each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from uuid import UUID

from joex.core.job import TakenJob
from joex.errors import JoexError
from joex.runtime.run import Run
from joex.store.errors import Locked

_ALONE_FOR = 60.0  # seconds that a suspect waits for other runs, and others for it once it has started
_WRITTEN_WITHIN = 2.0  # seconds that both wait for the end of a run to be written: its row may stay locked
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 960.0  # seconds from a row that was locked until the next suspect of its group


class NotAlone(JoexError):
    """A suspect has waited beside others, and is given back: a later take may keep it."""


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
        # When the next suspect of a group in a queue may close the executor, and the pause after the next locked row.
        self._pauses: dict[tuple[str, str], tuple[float, float]] = {}

    @property
    def is_room(self) -> bool:
        """Whether other jobs may be taken: no suspect runs alone, or waits to do so."""
        return self._suspect is None

    def keep(self, run: Run) -> bool:
        """Keep a suspect, which closes the executor unless one of its group was locked lately. False: there is one."""
        if self._suspect is not None:
            return False
        if self._left(run.job) <= 0:
            self._suspect = run
        return True

    def _left(self, job: TakenJob) -> float:
        not_before, _ = self._pauses.get(job.tenant, (0.0, 0.0))
        return not_before - self._loop.time()

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
        if self._suspect is not run:
            # (Only a take closes the executor: it tells the database, so that no submission wakes this one.)
            while (left := self._left(job)) > 0:  # noqa: ASYNC110 - time passes
                await asyncio.sleep(left)
            raise NotAlone(f"job {job.id} has waited for its turn to run alone")
        try:
            await self._until_alone(run)
            if not await self._mark_start(job):
                return None
        except JoexError as error:
            if isinstance(error, Locked):
                _, pause = self._pauses.get(job.tenant, (0.0, _FIRST_PAUSE))
                self._pauses[job.tenant] = self._loop.time() + pause, min(2 * pause, _LONGEST_PAUSE)
            self.let_others_in(run)
            raise
        self._pauses.pop(job.tenant, None)
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
