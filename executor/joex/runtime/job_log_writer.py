"""Writes log lines and progress of runs to the database, in batches.

Adding to the buffer never waits, so a log never slows its job down.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from joex.core.events import Emit, LogLinesDropped
from joex.core.job import TakenJob
from joex.errors import DatabaseUnavailable, JoexError
from joex.runtime.log_buffer import Line, LogBuffer
from joex.runtime.text import storable
from joex.store import runs
from joex.store.database import borrowed
from joex.store.errors import is_about_the_statement
from joex.trouble import FIRST_RETRY, Trouble

if TYPE_CHECKING:
    import asyncpg

_BATCH = 1000
_BATCH_BYTES = 500_000
_TRIES = 3
_GATHER = 0.05  # seconds between two writes, so that a chatty job causes few of them
_LOCKED_RETRY_IN = 0.25
_LEFT = "the database could not be reached before the executor left"


@dataclass(frozen=True, slots=True)
class _Progress:
    job: TakenJob
    percent: int
    message: str | None


_Batch: TypeAlias = tuple[list[Line], dict[UUID, _Progress]]


class JobLogWriter:
    """The buffer, and the service that writes it. `log` and `progress` may be called from any thread."""

    def __init__(self, pool: asyncpg.Pool[Any], size: int, emit: Emit) -> None:
        self._pool = pool
        self._emit = emit
        self._lines = LogBuffer(size)
        self._lock = self._lines.lock  # (one for both: a finalizer may log or report where another thread does)
        self._progress: dict[UUID, _Progress] = {}
        self._locked: dict[UUID, _Progress] = {}  # progress that is not written yet: its row was locked
        self._next_try: asyncio.TimerHandle | None = None  # to write these
        self._budget = _BATCH_BYTES  # shrinks while batches do not get through
        self._tries = 0  # of a line that does not get through alone
        self._is_sent = False  # the last batch got a connection
        self._loop = asyncio.get_running_loop()
        self._writing: asyncio.Future[None] = self._loop.create_future()  # the write under way, or the last one
        self._writing.set_result(None)
        self._wakeup = asyncio.Event()

    def log(self, job: TakenJob, level: str, message: str) -> None:
        """Keep a line, or drop one."""
        self._lines.add(job, level, message)
        self._wake_up()

    def progress(self, job: TakenJob, percent: int, message: str | None) -> None:
        """Keep the latest progress of a run."""
        said = None if message is None else storable(message, 1000)
        with self._lock:
            self._progress[job.lock_id] = _Progress(job, percent, said)
        self._wake_up()

    async def run(self) -> None:
        """Write lines as they arrive, until cancelled."""
        trouble = Trouble("log writer", self._emit)
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            try:
                await self.flush()
                trouble.over()
            except (JoexError, OSError) as error:
                self._wakeup.set()
                await asyncio.sleep(trouble.failed(error))
            await asyncio.sleep(_GATHER)

    async def close(self, seconds: float) -> None:
        """Write the remaining lines, for at most this many seconds, and drop the others."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # A write that fails has not used this time up: it may have begun long before, or the database refuses
                # connections at once.
                is_written = False
                while not (is_written and self._lines.is_empty) or self._progress:
                    try:
                        await self.flush()
                        is_written = True
                    except (JoexError, OSError):
                        await asyncio.sleep(FIRST_RETRY)
        while not self._writing.done():  # (what waited for the one that is cancelled may begin another)
            self._writing.cancel()
            await asyncio.wait({self._writing})
        self._progress = {}
        self._report(len(self._lines.take()), _LEFT)
        self._report_dropped()

    async def flush(self) -> None:
        """Write all reports up to now, and return when they are written; progress whose row is locked stays behind.

        The write goes on if the caller is cancelled: to cancel it would write its lines twice, if the server is about
        to execute it.

        Raises:
            JoexError: the reports could not be written; they stay in the buffer, unless `close` drops them.
        """
        if not self._writing.done():
            await asyncio.wait({self._writing})  # which began with fewer reports
        if self._writing.done():
            self._writing = asyncio.create_task(self._write_present())
            self._writing.add_done_callback(lambda done: done.cancelled() or done.exception())  # (the caller may leave)
        writing = self._writing
        await asyncio.wait({writing})
        if writing.cancelled():
            raise DatabaseUnavailable(_LEFT)
        writing.result()

    async def flushed_within(self, seconds: float) -> bool:
        """Whether all reports up to now are written within this time.

        Raises:
            DatabaseUnavailable: there was no connection in this time.
        """
        with suppress(JoexError, OSError):
            async with asyncio.timeout(seconds):
                try:
                    await self.flush()
                except (JoexError, OSError):  # the first connection after an outage may be one from before it
                    await self.flush()
                return True
        if not self._is_sent:
            raise DatabaseUnavailable("no connection came for the log lines")
        return False

    @property
    def is_empty(self) -> bool:
        """Whether the buffer is empty, and no write is under way."""
        return self._lines.is_empty and not (self._progress or self._locked) and self._writing.done()

    async def _write_present(self) -> None:
        """Write what the buffer has now: a run can add to it for as long as it likes, and ends of others wait."""
        until = time.monotonic()
        with self._lock:  # (only here, between batches: a batch on its way may have later progress)
            latest, self._progress = self._progress, {}
        progress, self._locked = {**self._locked, **latest}, {}
        while (lines := self._lines.take(_BATCH, self._budget, until)) or progress:
            await self._write(lines, progress)
            progress = {}
        self._report_dropped()

    async def _write(self, lines: list[Line], progress: dict[UUID, _Progress]) -> None:
        """Write a batch. Halves a batch that the database refuses, until it finds the refused part, and drops that."""
        batches: list[_Batch] = [(lines, progress)]  # the last one is the first to be written
        while batches:
            lines, progress = batches[-1]
            try:
                lost = await self._send(lines, progress)
            except JoexError as error:
                is_refused = is_about_the_statement(error)
                if not (is_refused or self._is_hopeless(lines, error)):
                    self._put_back(batches)
                    raise
                batches.pop()
                half = len(lines) // 2
                if is_refused and lines and progress:
                    batches += [(lines, {}), ([], progress)]
                elif half:
                    batches += [(lines[half:], {}), (lines[:half], {})]
                else:
                    self._tries = 0
                    self._report(len(lines), str(error))
            except BaseException:
                self._put_back(batches)
                raise
            else:
                batches.pop()
                self._budget, self._tries = min(self._budget * 2, _BATCH_BYTES), 0
                self._report(lost, "their runs had lost their jobs")

    async def _send(self, lines: list[Line], progress: dict[UUID, _Progress]) -> int:
        now = time.monotonic()
        rows = [runs.LogLine(n.job.id, n.job.lock_id, n.job.attempt + 1, now - n.at, n.level, n.message) for n in lines]
        latest = [runs.Progress(p.job.id, p.job.lock_id, p.percent, p.message) for p in progress.values()]
        self._is_sent = False
        async with borrowed(self._pool) as connection:
            self._is_sent = True
            noted = await runs.note_many(connection, rows, latest)
        for lock_id in progress:
            self._locked.pop(lock_id, None)
        self._locked.update({lock_id: progress[lock_id] for lock_id in noted.locked})
        if self._next_try is not None:
            self._next_try.cancel()
        self._next_try = self._loop.call_later(_LOCKED_RETRY_IN, self._wakeup.set) if self._locked else None
        return noted.dropped

    def _is_hopeless(self, lines: list[Line], error: JoexError) -> bool:
        """Whether to give up a line that did not get through in its time: it was tried alone, and often enough.

        (A connection that did not come in time is no try: lines wait while the database is away.)
        """
        if not (lines and self._is_sent and isinstance(error.__cause__, TimeoutError)):
            return False
        self._budget = max(sum(line.size for line in lines) // 8, 1)
        self._tries = self._tries + 1 if len(lines) == 1 else 0
        return self._tries == _TRIES

    def _put_back(self, batches: list[_Batch]) -> None:
        for lines, progress in batches:
            self._lines.put_back(lines)
            with self._lock:
                for lock_id, one in progress.items():
                    self._progress.setdefault(lock_id, one)  # newer reports replace older ones

    def _report_dropped(self) -> None:
        self._report(self._lines.dropped(), "the buffer was full")

    def _report(self, lines: int, reason: str) -> None:
        if lines:
            self._emit(LogLinesDropped(lines, reason))

    def _wake_up(self) -> None:
        if not self._wakeup.is_set():
            self._loop.call_soon_threadsafe(self._wakeup.set)
