"""Writes the ends of runs in batches: all runs that ended while the previous batch was being written.

A run keeps its slot until its end is written, so that an executor never holds more jobs than it has slots. The finisher
keeps and retries an end until the database takes it, or answers that the run has lost its job.

A batch has a budget in bytes, which shrinks after each failure: otherwise the finisher would send a batch that is too
slow again forever. It writes an end apart (see `bulk`) if it is large, or does not get through alone, or if it makes
the database refuse its statement, which the finisher finds out by halving the batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from joex.core.events import Emit, RunEnded, RunNotWritten, WorkerConflict
from joex.core.job import State, TakenJob
from joex.core.outcome import Verdict, written
from joex.errors import JoexError
from joex.runtime.bulk import Bulk, TooSlow
from joex.runtime.job_log_writer import JobLogWriter
from joex.runtime.start_marks import StartMarks
from joex.runtime.text import storable
from joex.store import runs
from joex.store.database import borrowed
from joex.store.errors import is_about_the_statement
from joex.store.runs import EndedRun
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")

_START_RETRY_IN = 0.25  # seconds, where another transaction locks the row
_FIRST_RETRY_IN, _LONGEST_RETRY_IN = 0.01, 1.0  # the same for an end, doubled each time: it may be large
_NOTES_WITHIN = 2.0  # seconds; a server that is just back answers many executors at once, and slowly
_BATCH_BYTES = 1_000_000
_LARGE = 250_000  # bytes; a larger end is written apart
_ROW_BYTES = 500  # the overhead of an end
_BLAMED = 10_000  # bytes: a smaller end does not make its statement slow
_LONGEST_REASON = 2000


class End(EndedRun):
    """The end of a run as the finisher writes it, and the decision about it.

    ``has_committed``: the task's own transaction has; ``retry_in``: seconds until the next try, if another transaction
    locks the job's row. (This object is the row too: one for each run instead of two.)
    """

    __slots__ = ("has_committed", "is_refused", "is_settled", "job", "retry_in", "said", "size", "verdict")

    def __init__(
        self,
        job: TakenJob,
        verdict: Verdict,
        result: str | None,
        message: str | None,
        age: float | None,
        *,
        has_committed: bool,
    ) -> None:
        # (Sets all fields here: a call of the row's own __init__ for each of thousands of runs would double the cost.)
        self.said = verdict
        if has_committed:
            # The database has this end, and answers so; unless a promoted standby, or a server that has crashed, lacks
            # the commit: then the task's own writes are lost with it, and the job must run again.
            verdict, result, message = Verdict(State.WAITING), None, None
        self.id = job.id
        self.lock_id = job.lock_id
        self.state, delay, self.error, exhausted = verdict
        self.exhausted = exhausted or None
        self.result = result
        self.message = message
        self.delay = None if delay is None else delay.total_seconds()
        self.age = age
        self.job = job
        self.verdict = verdict
        self.has_committed = has_committed
        self.is_settled = False
        self.is_refused = False
        self.retry_in = _FIRST_RETRY_IN
        self.size = _ROW_BYTES + (0 if result is None else len(result)) + (0 if message is None else len(message))

    def fail(self, why: str) -> None:
        """Let the job fail with this reason, because the end can't be written."""
        self.is_refused = True
        self.verdict = Verdict(State.FAILED, error=why)
        self.state, self.error, self.exhausted, self.delay = State.FAILED, why, None, None
        self.result = self.message = None
        self.size = _ROW_BYTES


class Ends(Protocol):
    """Receives the starts and ends of runs."""

    def started(self, job: TakenJob, at: float) -> None:
        """The code of a run has started, at this time of the monotonic clock."""

    def ended(self, end: End) -> None:
        """A run has ended."""

    def forget(self, job: TakenJob) -> None:
        """A run has lost its job: write nothing about it."""


class Finisher:
    """The service that writes starts and ends of runs.

    Args:
        pool: lends connections.
        reports: writes log lines and progress of runs, before their ends.
        emit: receives events.
        written: called with jobs whose runs have ended in the database, or have lost them: their slots are free.
        bulk: moves large ends.
        canceled: called, before ``written``, with the job of a run that ended as cancelled though it said otherwise.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any],
        reports: JobLogWriter,
        emit: Emit,
        written: Callable[[list[TakenJob]], None],
        *,
        bulk: Bulk,
        canceled: Callable[[TakenJob], None],
    ) -> None:
        self._pool = pool
        self._bulk = bulk
        self._canceled = canceled
        self._reports = reports
        self._emit = emit
        self._written = written
        self._ends: list[End] = []
        self._apart: list[End] = []
        self._budget = _BATCH_BYTES
        self._some = asyncio.Event()
        self._trouble_apart = Trouble("bulk", emit)
        self._starts = StartMarks(self._some.set)
        self._loop = asyncio.get_running_loop()
        self._notes_lag = False

    def started(self, job: TakenJob, at: float) -> None:
        """The code of a run has started, at this time of the monotonic clock."""
        self._starts.add(job, at)

    def ended(self, end: End) -> None:
        """A run has ended."""
        self._starts.forget(end.job)
        (self._ends if end.size <= _LARGE else self._apart).append(end)
        self._some.set()

    def forget(self, job: TakenJob) -> None:
        """A run has lost its job: write nothing about it."""
        self._starts.forget(job)
        self._emit(WorkerConflict(job.id, job.task))
        self._written([job])

    async def run(self) -> None:
        """Write starts and ends as they come, until cancelled."""
        trouble = Trouble("finisher", self._emit)
        try:
            async with asyncio.TaskGroup() as apart:
                while True:
                    await self._some.wait()
                    self._some.clear()
                    try:
                        await self._write(apart)
                        trouble.over()
                    except (JoexError, OSError) as error:
                        self._notes_lag = False  # the ends lag too: when the database is back, the lines come first
                        await asyncio.sleep(trouble.failed(error))
                        self._some.set()
        finally:
            self._starts.close()

    async def _write(self, group: asyncio.TaskGroup) -> None:
        ends, starts = self._cut_ends(), self._starts.take_due()
        apart, self._apart = self._apart, []
        try:
            if ends or apart:
                await self._flush_reports()
            for end in apart:
                group.create_task(self._write_apart(end))
            apart = []
            async with borrowed(self._pool) as connection:
                if starts:
                    await _halved(starts, lambda part: self._write_starts(connection, part), self._give_up_start)
                    starts = []
                if ends:
                    await _halved(ends, lambda part: self._write_ends(connection, part), self._refused)
                    self._budget = min(self._budget * 2, _BATCH_BYTES)
        except BaseException as error:
            self._apart += apart
            self._put_back(ends, starts, is_late=isinstance(error.__cause__, TimeoutError))
            raise
        if self._ends or self._apart:
            self._some.set()

    def _put_back(self, ends: list[End], starts: Sequence[tuple[TakenJob, float]], *, is_late: bool) -> None:
        left = [end for end in ends if not end.is_settled]
        if is_late and len(ends) == 1:
            self._apart += left  # the other ends do not wait for them
        else:
            self._ends = left + self._ends
        if is_late and ends:
            self._budget = max(sum(end.size for end in ends) // 4, 1)
        over = {end.job.lock_id for end in left + self._ends}
        for job, at in starts:
            if job.lock_id not in over:
                self._starts.add(job, at)

    def _cut_ends(self) -> list[End]:
        """As many ends as fit into one statement, and one in any case."""
        size = 0
        for nr, end in enumerate(self._ends):
            size += end.size
            if size > self._budget and nr:
                ends, self._ends = self._ends[:nr], self._ends[nr:]
                return ends
        ends, self._ends = self._ends, []
        return ends

    async def _write_apart(self, end: End) -> None:
        """Write an end alone, with as much time as its size needs; if that fails for good, write a failure instead."""
        end.is_settled = False
        while not end.is_settled:
            try:
                await self._bulk.moved(
                    end.job, end.size, lambda used: self._write_ends(used, [end]), self._trouble_apart
                )
            except TooSlow as error:
                if end.size > _BLAMED:
                    end.fail(f"result: {error} ({end.size} bytes)")
            except JoexError as error:
                if end.is_refused or end.state == State.WAITING:  # the run's values are not the cause
                    end.is_settled = True
                    self._emit(RunNotWritten(end.job.id, end.job.task, "end", str(error)))
                    self._written([end.job])
                else:
                    end.fail(storable(f"the end of the run could not be written: {error}", _LONGEST_REASON))

    def _refused(self, end: End, _: JoexError) -> None:
        """Write this end apart, so that the others do not wait for it: the database does not take it."""
        end.is_settled = True
        self._apart.append(end)

    async def _write_starts(self, connection: Any, starts: Sequence[tuple[TakenJob, float]]) -> None:
        now = time.monotonic()
        locked = await runs.start_many(connection, [(job.id, job.lock_id, now - at) for job, at in starts])
        for job, at in starts:
            if job.lock_id in locked:  # (if the run ends before that, its end marks it, and this changes nothing)
                self._starts.add(job, at, now + _START_RETRY_IN)

    def _give_up_start(self, start: tuple[TakenJob, float], error: JoexError) -> None:
        """Give up a mark that the database does not take; the end of the run says it all."""
        job, _ = start
        self._emit(RunNotWritten(job.id, job.task, "start", str(error)))

    async def _flush_reports(self) -> None:
        """Write the log lines of the runs first: a client that waits for a job then sees its whole log.

        But a log that can't be written keeps no job waiting for long: the finisher waits once, and then goes on without
        the log until it has caught up.

        Raises:
            DatabaseUnavailable: the database is away, and the ends wait too: if it came back just now, they would be
                first.
        """
        if self._reports.is_empty:
            self._notes_lag = False
        elif not self._notes_lag:
            self._notes_lag = not await self._reports.flushed_within(_NOTES_WITHIN)

    async def _write_ends(self, connection: Any, ends: Sequence[End]) -> None:
        # (The whole batch would wait for a row that another transaction locks: a tenant can lock one anew each time.)
        answers = await runs.finish_many(connection, ends, skip_locked=True)
        unusual = {id(row): answer for row, answer in answers}
        # The answer to a statement got lost, or came too late: report what the statement has written.
        unheard = [end for end in ends if unusual.get(id(end)) == "already" and not end.has_committed]
        found = await runs.ended_as(connection, unheard) if unheard else {}
        self._written([end.job for end in ends if self._settle(end, unusual.get(id(end)), found.get(end.id))])

    def _settle(self, end: End, answer: str | None, found: tuple[str, str | None] | None) -> bool:
        """Report a written end; False: it is not written."""
        end.is_settled = True  # (not retried, even if the rest of its batch is)
        if answer == "locked":
            self._loop.call_later(end.retry_in, self._again, end)
            end.retry_in = min(2 * end.retry_in, _LONGEST_RETRY_IN)
            return False
        if answer == "worker_conflict" and end.has_committed:
            answer = "already"  # and the job has been resubmitted since
        if answer == "worker_conflict":
            self._emit(WorkerConflict(end.job.id, end.job.task))
        else:
            verdict = written(end.verdict, end.said, answer, found)
            self._emit(RunEnded(end.job, verdict, end.age))
            if verdict.state is State.CANCELLED and end.said.state is not State.CANCELLED:
                self._canceled(end.job)
        return True

    def _again(self, end: End) -> None:
        end.is_settled = False
        self.ended(end)


async def _halved(
    rows: Sequence[T], write: Callable[[Sequence[T]], Awaitable[None]], refused: Callable[[T, JoexError], None]
) -> None:
    """Write rows in one statement, or in several, to find out which of them the database refuses."""
    try:
        await write(rows)
    except JoexError as error:
        if not is_about_the_statement(error):
            raise
        half = len(rows) // 2
        if half:
            for part in (rows[:half], rows[half:]):
                await _halved(part, write, refused)
        else:
            refused(rows[0], error)
