"""Takes jobs while there are free slots, and sleeps while there is nothing to take.

An executor that falls asleep announces it, so that submissions wake it; transactions that are open at that moment may
not see it, so the executor goes on taking until they have ended (`joex.core.recheck`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from joex.core.events import Emit, FellAsleep, Taken
from joex.core.job import TakenJob
from joex.core.priority_turns import CountingScheme
from joex.core.recheck import Recheck
from joex.errors import JoexError, LeaseLost
from joex.runtime.runner import Runner
from joex.runtime.waits import wait_for
from joex.store import executors, runs
from joex.store.database import borrowed
from joex.store.horizon import announce
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg

_LOCKED_RETRY_IN = 0.2  # seconds, the first time
_SLOW = 1.0  # seconds: for so long a take waits for a session that holds the lock of its queue
_LOOK_AGAIN_IN = 5.0  # seconds
_DOUBT_AFTER = (0.0, 5.0, 60.0)  # seconds
_OVERLAP_FROM = 16  # slots


class Taker:
    """The service that fills free slots."""

    def __init__(
        self,
        pool: asyncpg.Pool[Any],
        runner: Runner,
        *,
        executor: int,
        queues: Sequence[str],
        scheme: CountingScheme,
        wakeup_period: float,
        poll_interval: float | None,
        is_trusted: Callable[[], bool],
        emit: Emit,
    ) -> None:
        self._pool = pool
        self._runner = runner
        self._executor = executor
        self._queues = list(queues)
        self._scheme = scheme
        self._longest_sleep = min(wakeup_period, poll_interval or wakeup_period)
        self._listens = poll_interval is None
        self._is_trusted = is_trusted
        self._emit = emit
        self._wakeup = asyncio.Event()
        self._is_declared = False  # the database knows that this executor sleeps
        self._recheck: Recheck | None = None  # for jobs of transactions that may not have seen that
        # The database may believe that we run jobs of which we know nothing: the answer to a take was lost, or a
        # standby was promoted that lacks the ends of our runs. Take nothing until a give-back of these was answered.
        self._is_in_doubt = False
        # The number of the latest attempt to give back. What was sent before it, and is carried out after it, has a
        # lower one, and does nothing: see give_back_unknown in sql/.
        self._give_back_nr = 0
        self._next_look: asyncio.Handle | None = None
        self._locked_retry_in = _LOCKED_RETRY_IN
        self._take_lock = asyncio.Lock()  # held during a take
        self._is_stopped = False
        self._is_slow = False
        self.holders: list[int | None] = []
        """The sessions that hold up each take from a queue of this executor; None: a prepared transaction does."""

    def wake(self) -> None:
        """Take again soon: a slot is free, a job came, or the lease is trusted again."""
        self._wakeup.set()

    def fall_asleep_anew(self) -> None:
        """Take again soon, and announce it if there is nothing: this executor is on the list of sleepers no longer."""
        self._is_declared = False
        self.wake()

    def doubt(self) -> None:
        """Look for jobs that the database believes to run here without our knowing, and give them back.

        A server that lacks the ends of runs may answer already, while those to the last one are on their way still (a
        task may block the loop), and more are sent to it by connections that are not broken yet. So look again later.
        """
        for seconds in _DOUBT_AFTER:
            asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._is_in_doubt = True
        self.wake()

    async def stop(self) -> None:
        """Take no more. Returns when a take that is under way has ended; its jobs are started or given back.

        `run` goes on: the answer to that take may be lost, and a standby may be promoted, while the runs end.
        """
        self._is_stopped = True
        async with self._take_lock:
            pass

    async def run(self) -> None:
        """Take until stopped, and give back unknown jobs until cancelled.

        Raises:
            LeaseLost: this registration has ended.
        """
        trouble = Trouble("taker", self._emit)
        while True:
            self._wakeup.clear()
            if self._wanted() == 0 and not (self._is_in_doubt and self._is_trusted()):
                await self._wakeup.wait()
                continue
            try:
                async with self._take_lock:
                    sleep = await self._take()
                trouble.over()
            except LeaseLost:
                raise
            except (JoexError, OSError) as error:
                self._is_declared = False
                self._is_in_doubt = True
                sleep = trouble.failed(error)
            if sleep:
                await wait_for(self._wakeup, sleep)

    def _wanted(self, unstarted: int = 0) -> int:
        """How many jobs to take now, while this many taken ones have not started.

        With many slots, at most half of them at once: one half runs while the other is taken and written.
        """
        if self._is_stopped or not self._is_trusted():
            return 0
        free = self._runner.free - unstarted
        slots = self._runner.free + len(self._runner.runs)
        return min(free, (slots + 1) // 2) if slots >= _OVERLAP_FROM else free

    async def _take(self) -> float:
        """Take as long as slots are free; returns for how long to sleep, 0 for not at all.

        Before that, give back unknown jobs: also without a free slot, because one may have a run that has lost its job
        and does not stop.
        """
        taken: list[TakenJob] = []  # from the last take, not started yet
        async with borrowed(self._pool) as connection:
            if self._is_slow:
                self.holders = await executors.queue_holders(connection, self._queues)
                self._is_slow = bool(self.holders)
            while True:
                if self._is_in_doubt:
                    self._start(taken)
                    taken = []
                    await self._give_back_unknown(connection)
                asked = self._wanted(len(taken))
                if not asked:
                    break
                begin = time.perf_counter()
                # Takes overlap with starts: the loop starts the jobs of the last take while the server works on this
                # one. (It starts them even if this take fails.)
                asyncio.get_running_loop().call_soon(self._start, taken)
                taken = await runs.take(
                    connection,
                    self._executor,
                    self._next_order(),
                    asked,
                    self._scheme,
                    give_back_nr=self._give_back_nr,
                )
                seconds = time.perf_counter() - begin
                self._emit(Taken(asked, len(taken), seconds, taken))
                self._is_slow = self._is_slow or seconds >= _SLOW
                if any(job.suspect for job in taken):
                    # A suspect keeps slots free until it has ended: other executors must wake for new jobs.
                    self._is_declared = False
                    try:
                        await executors.stand_aside(
                            connection, self._executor, self._queues, give_back_nr=self._give_back_nr
                        )
                    finally:
                        self._start(taken)
                    return 0
                if len(taken) < asked:
                    self._start(taken)
                    await asyncio.sleep(0)  # let the jobs begin: the rest can wait
                    return await self._found_less(connection)
                self._is_declared = False  # the take has removed this executor from the list of sleepers
            self._start(taken)
            return 0

    def _start(self, jobs: list[TakenJob]) -> None:
        for job in jobs:
            self._runner.start(job)

    async def _give_back_unknown(self, connection: Any) -> None:
        self._is_in_doubt = False  # (first: there may be a new doubt before the answer is here)
        self._give_back_nr += 1
        known = list(self._runner.runs)
        if await executors.give_back_unknown(connection, self._executor, self._give_back_nr, known):
            # Another transaction may have locked some. (One more look, however many have found some since the last.)
            if self._next_look is not None:
                self._next_look.cancel()
            self._next_look = asyncio.get_running_loop().call_later(_LOOK_AGAIN_IN, self._look)

    async def _found_less(self, connection: Any) -> float:
        """There was less work than free slots; returns for how long to sleep."""
        if self._listens and not self._is_declared:
            self._is_declared = True  # (first: it may be off the list again before the answer is here)
            asleep = executors.fall_asleep(connection, self._executor, give_back_nr=self._give_back_nr)
            self._recheck = await announce(connection, asleep)
            return 0  # and take once more
        return await self._until_due(connection)

    def _next_order(self) -> list[str]:
        """The queues, each time with another one first, so that none can starve the others."""
        self._queues.append(self._queues.pop(0))
        return self._queues

    async def _until_due(self, connection: Any) -> float:
        state = await executors.sleep_state(connection, self._executor, self._queues)
        if self._is_declared and not state.is_asleep:
            self._is_declared = False  # the list of sleepers begins behind our place: see fall_asleep in sql/
            return await self._found_less(connection)
        sleep = self._longest_sleep
        if state.next_due is not None and state.next_due <= 0:
            # Due and not taken: another session has locked the row. Take again after a pause, ever longer: that one may
            # stay open, and all executors of the queue see the job. (A heartbeat looks for due jobs anyway.)
            sleep = min(sleep, self._locked_retry_in)
            self._locked_retry_in *= 2
        else:
            self._locked_retry_in = _LOCKED_RETRY_IN
            sleep = min(sleep, state.next_due or sleep)
        if self._is_slow:
            sleep = min(sleep, _LOOK_AGAIN_IN)
        if self._recheck is not None:
            now = asyncio.get_running_loop().time()
            if not self._recheck.settles(state.oldest_xid, now):
                return min(sleep, self._recheck.due_at - now)
            self._recheck = None
            return 0  # they have ended, maybe only since the take: take once more
        if not self._runner.runs:
            self._emit(FellAsleep(state.next_due))
        return sleep
