"""The simulation: jobs arrive, start, end and retry; pools are reconciled; executors start and leave.

Each later step is an event on a heap; the functions that decide in production decide its outcome. Nothing is random:
the same jobs and pools give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from heapq import nlargest
from itertools import count
from math import inf

from joex.core.fair_queue import FairQueue, Lane
from joex.core.job import State
from joex_operator.api.objects import Pool
from joex_operator.decide.growth_watch import REST
from joex_operator.simulate.backlog import Backlog
from joex_operator.simulate.clock import Clock, Timing
from joex_operator.simulate.jobs import Jobs
from joex_operator.simulate.pool import SimulatedExecutor, SimulatedPool, fair_queues
from joex_operator.simulate.totals import ShareTotals, Totals

_STILL = 2 * 3600.0
"""Seconds without a change after which the simulation ends: no window or policy of a pool is longer."""
_SAMPLES = 250
"""The number of samples of the groups' shares while jobs arrive."""
_SHORTEST = 1.0
_WOKEN_NEXT = 2
"""The number of executors that one wakes which fills its slots and leaves runnable jobs."""
_REPORTED_EACH = 10_000


class Simulation:
    """Simulates pools on jobs. ``jobs_per_executor``: KEDA's formula sizes them; None: Joex does."""

    def __init__(self, jobs: Jobs, pools: Sequence[Pool], timing: Timing, jobs_per_executor: int | None = None) -> None:
        self._jobs = jobs
        self._timing = timing
        self._queues = queues = fair_queues(jobs)
        self._queue_of = [queues[group.queue] for group in jobs.groups]
        self._backlog = backlog = Backlog(jobs, queues.values())
        self._pools = [
            SimulatedPool(pool, [queues[q] for q in pool.spec.queues if q in queues], backlog, jobs_per_executor)
            for pool in pools
        ]
        self._pools_of = {queue: [pool for pool in self._pools if queue in pool.queues] for queue in queues.values()}
        self._clock = Clock()
        self._falls = count(1)  # orders the executors by when they fell asleep
        self._moved = 0.0
        self._to_come = len(jobs)
        self._unfinished = len(jobs)
        self._pending = 0  # jobs that run, or wait for their retry
        self._since: dict[int, float] = {}  # since when waiting jobs are runnable
        self._failures: dict[int, int] = {}
        self._totals = Totals(
            slot_seconds=[0.0] * len(jobs.groups),
            shares={queue: ShareTotals() for queue in queues},
            sizes=[pool.sizes for pool in self._pools],
        )

    def run(self, progress: Callable[[int], None] = lambda _: None) -> Totals:
        """Simulate until the jobs' period is over and all have ended, or until nothing changes any more.

        Args:
            progress: is called at intervals with the number of jobs that have arrived.
        """
        period, at, clock = self._jobs.period, self._jobs.at, self._clock
        for pool in self._pools:
            self._reconcile(pool, pool.next_reconcile, is_first=True)
        longest = max(self._jobs.seconds, default=0.0)
        self._sample_shares(max(period, *at[-1:], longest, _SHORTEST) / _SAMPLES)
        while self._unfinished or clock.next < period:
            come = len(at) - self._to_come
            if self._to_come and at[come] <= clock.next:
                clock.now = at[come]
                self._to_come -= 1
                self._becomes_runnable(come)
                if come % _REPORTED_EACH == 0:
                    progress(come)
            elif clock.next < inf:
                clock.step()
            else:
                break
        self._totals.end = max(period, self._moved)
        return self._totals

    # Jobs.

    def _becomes_runnable(self, job: int, lane: Lane | None = None) -> None:
        """A job arrives, or returns to the queue. ``lane`` None: that of its priority."""
        group = self._jobs.group[job]
        queue = self._queue_of[group]
        self._since[job] = self._clock.now
        self._backlog.waits(queue, job)
        queue.submit(group, lane if lane is not None else Lane.HIGH if self._jobs.is_high[job] else Lane.LOW, job)
        self._wake(queue)

    def _wake(self, queue: FairQueue, most: int = 1) -> None:
        """Wake sleeping executors if there is work, spare ones last; if none sleeps, notify the pools.

        As `wake` in the database does: an executor that is awake already counts, and takes all it can.
        """
        if not queue.has_work:
            return
        pools = self._pools_of[queue]
        sleepers = [sleeper for pool in pools for sleeper in pool.sleepers(most)]
        if len(pools) > 1:
            sleepers = nlargest(most, sleepers, key=_by_turn)
        for executor in sleepers:
            if not executor.is_woken:
                executor.is_woken = True
                self._clock.plan(self._clock.now + self._timing.overhead, self._wakes, executor)
        if not sleepers:
            for pool in pools:
                self._notify(pool)

    def _wakes(self, executor: SimulatedExecutor) -> None:
        executor.is_woken = False
        if executor.asleep:
            self._take(executor)

    def _take(self, executor: SimulatedExecutor) -> None:
        """An executor fills its free slots and wakes others, or falls asleep.

        Each time it begins with another queue.
        """
        queues, scheme = executor.pool.queues, executor.pool.spec.counting_scheme
        for nr in range(len(queues)):
            if executor.free and not self._leaves_to_others(executor, queues[(executor.turn + nr) % len(queues)]):
                for job in queues[(executor.turn + nr) % len(queues)].take(executor.free, scheme):
                    self._start(executor, job)
        executor.turn += 1
        if not executor.free:
            executor.asleep = 0
            for queue in queues:
                self._wake(queue, _WOKEN_NEXT)
        elif not executor.asleep:
            executor.pool.sleeps(executor, next(self._falls))

    def _leaves_to_others(self, executor: SimulatedExecutor, queue: FairQueue) -> bool:
        """Whether another executor takes what waits; see `another_can_take` in the database."""
        return executor.is_spare and any(not one.is_spare for pool in self._pools_of[queue] for one in pool.sleepers(1))

    def _start(self, executor: SimulatedExecutor, job: int) -> None:
        group, now, limit = self._jobs.group[job], self._clock.now, executor.pool.timeout
        self._moved = now
        self._pending += 1
        self._totals.taken.add(now, group, now - self._since.pop(job))
        executor.pool.take(executor, job, now)
        self._backlog.starts(self._queue_of[group], job, now)
        seconds = self._jobs.seconds[job]
        is_late = seconds > limit
        self._clock.plan(now + min(seconds, limit) + self._timing.overhead, self._end, executor, job, is_late)

    def _end(self, executor: SimulatedExecutor, job: int, is_late: bool) -> None:  # noqa: FBT001 - as it is called
        """A run ends."""
        self._release(executor, job)
        self._settle(executor.pool, job, is_late=is_late)
        self._take(executor)
        self._wake(self._queue_of[self._jobs.group[job]])  # a group may have been at its limit

    def _settle(self, pool: SimulatedPool, job: int, *, is_late: bool) -> None:
        """Finish or retry a job whose run has ended."""
        failures = self._failures.get(job, 0)
        verdict = pool.verdict(self._jobs[job], failures, is_late=is_late)
        if verdict.state is State.STUCK and verdict.delay is not None:
            self._failures[job] = failures + 1
            self._pending += 1
            self._clock.plan(self._clock.now + verdict.delay.total_seconds(), self._due, job)
        else:
            self._failures.pop(job, None)
            self._unfinished -= 1
            self._totals.ended[verdict.state] += 1

    def _due(self, job: int) -> None:
        """The retry of a failed job is due."""
        self._pending -= 1
        self._becomes_runnable(job, Lane.DUE)

    def _release(self, executor: SimulatedExecutor, job: int) -> None:
        group = self._jobs.group[job]
        self._moved = self._clock.now
        self._pending -= 1
        seconds = self._clock.now - executor.held[job]
        self._totals.slot_seconds[group] += seconds
        self._backlog.ends(self._queue_of[group], job, seconds)
        executor.pool.end(executor, job, self._clock.now)
        self._queue_of[group].ended(group)

    # Pools.

    def _notify(self, pool: SimulatedPool) -> None:
        """Notify a pool that could grow of work: it is reconciled at once, and again a moment later."""
        if pool.can_grow and self._clock.now >= pool.resting_until:
            pool.resting_until = self._clock.now + REST
            self._plan_reconcile(pool, self._clock.now)

    def _plan_reconcile(self, pool: SimulatedPool, time: float) -> None:
        if time < pool.next_reconcile:
            pool.next_reconcile = time
            self._clock.plan(time, self._reconcile, pool, time)

    def _reconcile(self, pool: SimulatedPool, planned: float, *, is_first: bool = False) -> None:
        if planned != pool.next_reconcile:
            return  # the pool was reconciled sooner
        pool.next_reconcile = inf
        now = self._jobs.begin + timedelta(seconds=self._clock.now)
        change = pool.reconcile(now, self._clock.now)
        for executor in change.started:
            if is_first:  # the executors that a pool always has are ready at the beginning
                self._ready(executor)
            else:
                self._clock.plan(self._clock.now + self._timing.start_up, self._ready, executor)
        if change.started:
            self._moved = self._clock.now
        if change.leaves_work:
            for queue in pool.queues:
                self._wake(queue)
        if not self._is_still():
            again_in = self._timing.poll if change.again_in is None else min(change.again_in, self._timing.poll)
            self._plan_reconcile(
                pool,
                min(self._clock.now + again_in, pool.resting_until if pool.resting_until > self._clock.now else inf),
            )

    def _sample_shares(self, every: float) -> None:
        """Sample how evenly the groups hold the slots; less often when the simulation lasts longer than expected."""
        seconds = max(every, self._clock.now / _SAMPLES)
        for name, queue in self._queues.items():
            if not any(pool.sleepers(1) for pool in self._pools_of[queue]):  # else all groups have enough
                self._totals.shares[name].sample(queue.groups, seconds)
        if not self._is_still():
            self._clock.plan(self._clock.now + seconds, self._sample_shares, every)

    def _is_still(self) -> bool:
        return not (self._to_come or self._pending) and self._clock.now > max(self._moved + _STILL, self._jobs.period)

    def _ready(self, executor: SimulatedExecutor) -> None:
        """An executor has started, unless it has left again."""
        if not executor.is_gone:
            executor.pool.starts(executor)
            self._take(executor)


def _by_turn(sleeper: SimulatedExecutor) -> tuple[bool, int]:
    return not sleeper.is_spare, sleeper.asleep
