"""The periodic chores of an executor, beside its heartbeats, on their own connection.

They find what the database wants of the executor, with a notification or without, and rescue the jobs of dead
executors and overdue runs. None of them is urgent, but all must continue whatever a task does to the executor's loop,
so they run in the thread of the lease. Heartbeats use another connection, so that no chore delays a heartbeat.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Never
from uuid import UUID

from joex.core.events import Overdue, Rescued
from joex.core.lease import Lease, Observation
from joex.errors import JoexError
from joex.runtime.clock import clock
from joex.runtime.lease_callbacks import Notifier
from joex.runtime.waits import wait_for
from joex.store import executors, timeouts
from joex.store.database import borrowed, create_pool
from joex.trouble import Trouble

if TYPE_CHECKING:
    import asyncpg

_REST = 10  # a chore rests for this many times as long as it took,
_LONGEST_REST = 30.0  # but no more seconds than this
_LONGEST_CLAIM = 2.0  # what one does for all rests in all for no more than this: deaths must be found in time


class Chores:
    """The chores of one executor.

    Args:
        url: the database.
        executor: the id of the registration.
        queues: the queues that it serves.
        lease: the times of its lease.
        pooled: the connection leads through a transaction pooler.
        held: the runs at this moment.
        observed: what heartbeats have observed of other executors.
        notifier: notifies the executor of the findings.
    """

    def __init__(
        self,
        url: str,
        *,
        executor: int,
        queues: Collection[str],
        lease: Lease,
        pooled: bool,
        held: Callable[[], list[tuple[UUID, UUID]]],
        observed: Observation,
        notifier: Notifier,
    ) -> None:
        self._url = url
        self._executor = executor
        self._queues = queues
        self._lease = lease
        self._pooled = pooled
        self._held = held
        self._observed = observed
        self._notifier = notifier
        self._callbacks = notifier.callbacks
        self._trouble = Trouble("chores", notifier.emit)
        self._failing: set[Callable[[Any], Awaitable[bool]]] = set()  # the chores whose last try failed
        self._beaten = asyncio.Event()
        self._to_check = asyncio.Event()
        self._unheard = 0  # looks that found work, of which the executor's loop has yet to hear
        # What one executor at a time does for all: the sequences of the claims, and for how many seconds they hold.
        self._claims = {
            self._rescue: "joex_private.rescue_claims",
            self._recover_overdue: "joex_private.overdue_claims",
        }
        self._rests = dict.fromkeys(self._claims, _LONGEST_CLAIM)
        self._rescued: Counter[tuple[str, int]] = Counter()  # each call rescues a part; one event sums up an executor

    def has_beaten(self) -> None:
        """Do the due chores now, after an answered heartbeat: its observation is fresh."""
        self._beaten.set()

    def check_soon(self) -> None:
        """Ask the database what it wants of this executor and its runs: a notification says that there is something."""
        self._to_check.set()

    async def do(self) -> Never:
        """Do all chores, with each heartbeat and also without, until cancelled.

        Each chore has the time limit of services, and its failure does not disturb the others. It repeats at once while
        there may be more; then the less often, the longer it takes to find nothing (over dead rows, for example). What
        is for all executors rests in all of them: hundreds that each did it would take the server's CPU time.
        """
        pool = await create_pool(
            self._url, most=1, pooled=self._pooled, name=f"joex chores {self._executor}", for_services=True
        )
        not_before = dict.fromkeys((self._check_runs, self._look_for_work, self._rescue, self._recover_overdue), 0.0)
        told = asyncio.create_task(self._check_when_told(pool))
        try:
            while not told.done():
                for chore in [chore for chore, due in not_before.items() if clock() >= due]:
                    took = await self._do(chore, pool)
                    not_before[chore] = clock() + min(_REST * took, _LONGEST_REST)
                await wait_for(self._beaten, 2 * self._lease.heartbeat_every)
                self._beaten.clear()
            told.result()
        finally:
            told.cancel()
            pool.terminate()

    async def _check_when_told(self, pool: asyncpg.Pool[Any]) -> Never:
        while True:
            await self._to_check.wait()
            self._to_check.clear()
            # (Half of the time at most: any role that can connect can notify, as often as it likes.)
            await asyncio.sleep(await self._do(self._check_runs, pool))

    async def _do(self, chore: Callable[[Any], Awaitable[bool]], pool: asyncpg.Pool[Any]) -> float:
        """Do a chore while there may be more; returns how many seconds the last part took (0: others do it)."""
        begin = clock()
        try:
            async with borrowed(pool) as connection:
                if chore in self._claims and not await executors.claim(
                    connection, self._claims[chore], self._rests[chore]
                ):
                    return 0.0
                begin = clock()
                while await chore(connection):
                    begin = clock()
        except (JoexError, OSError) as error:
            self._failing.add(chore)
            self._trouble.failed(error, self._lease.heartbeat_every)
        else:
            self._failing.discard(chore)
            if not self._failing:
                self._trouble.over()
        took = clock() - begin
        if chore in self._rests:
            self._rests[chore] = min(_REST * took, _LONGEST_CLAIM)
        return took

    async def _check_runs(self, connection: Any) -> bool:
        found = await executors.check_runs(connection, self._executor, self._held())
        if found.lost:
            self._notifier.notify_executor(self._callbacks.on_lost, found.lost)
        if found.ended:
            self._notifier.notify_executor(self._callbacks.on_job_ended, found.ended)
        for job_id in found.cancel:
            self._notifier.notify_executor(self._callbacks.on_cancel, job_id)
        if found.draining:
            self._notifier.notify_executor(self._callbacks.on_drain)
        if found.crowded:
            self._notifier.notify_executor(self._callbacks.on_crowd)
        return False

    async def _look_for_work(self, connection: Any) -> bool:
        if await executors.has_work(connection, list(self._queues)):
            if self._unheard == 1:
                # A task blocks the executor's loop, maybe for long: spare executors must not leave jobs to this one.
                try:
                    await executors.stand_aside(connection, self._executor, list(self._queues))
                finally:
                    self._notifier.notify_executor(self._callbacks.on_aside)
            self._unheard += 1
            self._notifier.notify_executor(self._hear_of_work)
        return False

    def _hear_of_work(self) -> None:
        self._unheard = 0
        self._callbacks.on_wake()

    async def _rescue(self, connection: Any) -> bool:
        found = await executors.rescue(connection, self._observed.marks)
        for executor, app_id, jobs in found:
            self._rescued[app_id, executor] += jobs
        if not found:
            for (app_id, executor), jobs in self._rescued.items():
                self._notifier.emit(Rescued(app_id, executor, jobs))
            self._rescued.clear()
        return bool(found)

    async def _recover_overdue(self, connection: Any) -> bool:
        found = await timeouts.recover_overdue(connection)
        for app_id, jobs in found:
            self._notifier.emit(Overdue(app_id, jobs))
        await executors.claim(connection, "joex_private.overdue_searches", 0.0)  # (of no time: workers rely on it)
        return bool(found)
