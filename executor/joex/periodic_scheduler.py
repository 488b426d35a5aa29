"""The scheduler of periodic tasks. Each executor and each operator has one; any number of them may run.

No scheduler is in charge. Each sleeps until the next task is due, or one has changed. Then it reads the tasks that are
due, works out when each is due next, and hands both to `fire_periodic` in SQL, which decides in one transaction which
scheduler was first. The server holds the locks of that decision, for as long as the one statement takes, so a process
that dies, hangs, or loses its connection meanwhile leaves nothing behind.

The database's clock decides which tasks are due, and how long it is until the next; the process's own clock only
measures how long the scheduler sleeps. If the database's clock is set forward, the scheduler finds newly due tasks
when its longest sleep ends, at the latest. If it is set back, no decided time of a timer comes again, and the scheduler
computes next times again that were computed in what is the future now. To find these it reads all tasks: when it
starts, and when it sees that the clock was set back.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from joex.core.events import Emit, Repeated
from joex.core.periodic import Decision, decide
from joex.errors import JoexError
from joex.store import periodic_due
from joex.store.database import borrowed
from joex.store.periodic import TaskKey
from joex.store.statement import Connection
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg

_BATCH = 200
_SLICE = 0.005  # seconds of decisions until all else in the process has its turn: each may take milliseconds
_DECIDE_FOR = 0.25  # seconds of decisions until those are fired that are made, as `fire_periodic` submits for so long
_LONGEST_SLEEP = 60.0
_SET_BACK = 30.0  # seconds by which a clock may seem to go back because an answer was late: _AHEAD forgives more
_JITTER = 0.02  # seconds: of many schedulers that wake together, most then find the work done
_BUSY_RETRY_IN, _BUSY_RETRY_LATEST = 0.1, 0.5
_ASIDE_FOR, _LONGEST_ASIDE = 0.5, 300.0
_MOST_ASIDE = 10_000
_REST_AHEAD = 60.0  # seconds of rest that a scheduler with a share may put off: ten thousand tasks may be due at once


class Aside:
    """Tasks that could not be submitted.

    They must not hold up the others, so each trouble doubles the time until the next try. Of too many the latest count:
    whoever owns a database may name any number to an operator.
    """

    def __init__(self) -> None:
        self._tasks: dict[TaskKey, tuple[float, float]] = {}  # when each is tried again, and after how long

    def put(self, task: TaskKey, now: float) -> None:
        """Set a task aside: there was trouble with it."""
        _, last = self._tasks.pop(task, (now, _ASIDE_FOR / 2))
        if len(self._tasks) >= _MOST_ASIDE:
            del self._tasks[next(iter(self._tasks))]
        seconds = min(last * 2, _LONGEST_ASIDE)
        self._tasks[task] = (now + seconds, seconds)

    def forget(self, task: TaskKey) -> None:
        """A task is out of trouble."""
        self._tasks.pop(task, None)

    def until(self, now: float) -> dict[TaskKey, float]:
        """The tasks that are aside, and until when."""
        # (A task that was due for so long without a new trouble is gone, or another scheduler has decided about it.)
        self._tasks = {task: one for task, one in self._tasks.items() if one[0] + _LONGEST_ASIDE > now}
        return {task: at for task, (at, _) in self._tasks.items() if at > now}


class PeriodicScheduler:
    """The service that creates the jobs of periodic tasks.

    Args:
        pool: lends connections.
        worker: the name of this process; Joex only shows it.
        emit: receives events.
        maintain: called when Joex's own work is due, which the caller then does; None: other schedulers do this work.
        poll_every: seconds between two rounds if the caller never calls `wake`; None: the caller does.
        share: of the time, which rounds take at most in the long run: a database in which something is always due, or
            which says so, would occupy a process that serves others too.
    """

    def __init__(
        self,
        pool: asyncpg.Pool[Any],
        worker: str,
        emit: Emit,
        *,
        maintain: Callable[[], None] | None = None,
        poll_every: float | None = None,
        share: float = 1.0,
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._emit = emit
        self._maintain = maintain
        self._share = share
        self._longest_sleep = min(_LONGEST_SLEEP, poll_every or _LONGEST_SLEEP)
        self._wakeup = asyncio.Event()
        self._busy_for = _BUSY_RETRY_IN
        self._aside = Aside()
        self._after = periodic_due.FIRST_TURN  # the group after which the next turns begin
        self._clock_checked_at = float("-inf")
        self._ahead = float("inf")  # seconds that the database's clock was before that of this process, at most
        self._decided_for = 0.0  # seconds of this round

    def wake(self) -> None:
        """Decide again soon: a periodic task may have changed."""
        self._wakeup.set()

    async def run(self) -> None:
        """Create jobs, until cancelled."""
        trouble = Trouble("scheduler", self._emit)
        clock = asyncio.get_running_loop().time
        rested = clock()
        while True:
            began, self._decided_for = clock(), 0.0
            self._wakeup.clear()
            try:
                sleep = await self._round()
                trouble.over()
                worked = clock() - began
            except (JoexError, OSError) as error:
                sleep = trouble.failed(error)  # (a rest of its own, which a wake ends: the database is back)
                worked = self._decided_for  # (it may only have waited)
            rested = max(rested, began) + worked / self._share
            await asyncio.sleep(rested - clock() - _REST_AHEAD)
            with suppress(TimeoutError):
                async with asyncio.timeout(sleep):
                    await self._wakeup.wait()

    async def _round(self) -> float:
        """Decide what is due now; returns for how long to sleep."""
        now = asyncio.get_running_loop().time()
        aside = self._aside.until(now)
        async with borrowed(self._pool) as connection:
            if now >= self._clock_checked_at + _LONGEST_SLEEP:
                await self._check_clock(connection, now)
            which: Any = {"system": self._maintain is not None, "aside": list(aside)}
            seconds = await periodic_due.next_in(connection, **which)
            if seconds is None or seconds > 0:
                self._busy_for = _BUSY_RETRY_IN
                return self._until([*([] if seconds is None else [seconds]), *(at - now for at in aside.values())])
            tasks, self._after = await periodic_due.due(connection, _BATCH, after=self._after, **which)
            read_at = asyncio.get_running_loop().time()
            decided = await _decide(tasks)
            self._decided_for = asyncio.get_running_loop().time() - read_at
            fired = await periodic_due.fire(connection, self._worker, decided) if decided else []
        self._tell(fired, {task.key: decision.error for task, decision in decided})
        if all(one.outcome == "stale" for one in fired):
            return self._until_free()
        self._busy_for = _BUSY_RETRY_IN
        for one in fired:
            if one.outcome == "trouble":
                self._aside.put(one.key, now)
            elif one.outcome != "stale":
                self._aside.forget(one.key)
        return 0.0

    async def _check_clock(self, connection: Connection, now: float) -> None:
        ahead = await periodic_due.clock(connection) - now
        if ahead >= self._ahead - _SET_BACK:
            self._ahead = max(self._ahead, ahead)
        elif await periodic_due.recompute(connection):
            self._ahead = ahead
        self._clock_checked_at = now

    def _tell(self, fired: Iterable[periodic_due.Fired], errors: dict[TaskKey, str | None]) -> None:
        for one in fired:
            if one.outcome not in ("set", "stale"):
                self._emit(Repeated(*one.key, one.outcome, one.job, errors[one.key]))
            if one.outcome == "started" and self._maintain is not None:
                self._maintain()

    def _until(self, seconds: list[float]) -> float:
        """How long to sleep until the first of these."""
        return min([*seconds, self._longest_sleep]) + random.random() * _JITTER  # noqa: S311 - there is no secret

    def _until_free(self) -> float:
        """How long to sleep if another scheduler works on what is due, or another transaction has locked it."""
        self._busy_for, sleep = min(self._busy_for * 2, _BUSY_RETRY_LATEST), self._busy_for
        return sleep


async def _decide(tasks: Sequence[periodic_due.Due]) -> list[tuple[periodic_due.Due, Decision]]:
    """Decide about tasks for a while, with turns for all else in the process, and where the scheduler can be stopped.

    The first task of each group of a queue comes before the second one of any; groups at random, so that none is the
    last one each time. A next pass decides about the others.

    What changes meanwhile stays as it is: `fire_periodic` fires only the version of a task that was read.
    """
    decided: list[tuple[periodic_due.Due, Decision]] = []
    clock = asyncio.get_running_loop().time
    end, until = clock() + _DECIDE_FOR, clock() + _SLICE
    seen: Counter[tuple[str, str]] = Counter()
    order = []
    for nr, task in enumerate(tasks):
        place = task.key.queue, task.key.group
        order.append((seen[place], random.random(), nr))  # noqa: S311 - there is no secret
        seen[place] += 1
    for _, _, nr in sorted(order):
        task = tasks[nr]
        if decided and clock() >= end:
            break
        if clock() >= until:
            await asyncio.sleep(0)
            until = clock() + _SLICE
        decided.append((task, decide(task.schedule, task.now)))
    return decided
