"""The time that passes: jobs come, are taken, end and are tried again; pools are looked at, executors start and leave.

Everything that happens at a later time is an event on a heap; what comes of it is decided by the functions that decide
in production. Nothing here is by chance: the same jobs and pools give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from heapq import nlargest
from itertools import count
from math import inf

from joex.core.job import State
from joex.core.ring import Lane, Ring
from joex_operator.objects import Pool
from joex_operator.simulate.clock import Clock, Timing
from joex_operator.simulate.jobs import Jobs
from joex_operator.simulate.pool import Executor, SimulatedPool, rings_of
from joex_operator.simulate.tally import Shares, Tally
from joex_operator.watch import REST

_STILL = 2 * 3600.0
"""Seconds. Nothing that a pool remembers lasts longer: if nothing has moved for so long, nothing will."""
_COMPARED = 250
"""How often, while jobs come, it is looked how evenly the slots are held."""
_SHORTEST = 1.0
_WOKEN_NEXT = 2
"""How many others an executor wakes that has filled its slots, and leaves work."""
_TOLD_EACH = 10_000


class Simulation:
    """Jobs, and the pools that run them."""

    def __init__(self, jobs: Jobs, pools: Sequence[Pool], timing: Timing) -> None:
        self._jobs = jobs
        self._timing = timing
        self._rings = rings = rings_of(jobs)
        self._ring_of = [rings[group.queue] for group in jobs.groups]
        self._pools = [SimulatedPool(pool, [rings[q] for q in pool.spec.queues if q in rings]) for pool in pools]
        self._pools_of = {ring: [pool for pool in self._pools if ring in pool.rings] for ring in rings.values()}
        self._clock = Clock()
        self._falls = count(1)  # of executors asleep
        self._moved = 0.0
        self._to_come = len(jobs)
        self._unfinished = len(jobs)
        self._pending = 0  # jobs that run, or wait for their next try
        self._since: dict[int, float] = {}  # since when those that wait can be taken
        self._failures: dict[int, int] = {}
        self._tally = Tally(
            slot_seconds=[0.0] * len(jobs.groups),
            shares={queue: Shares() for queue in rings},
            sizes=[pool.sizes for pool in self._pools],
        )

    def run(self, progress: Callable[[int], None] = lambda _: None) -> Tally:
        """Simulate until the jobs' period is over and all have ended, or nothing moves any more.

        Args:
            progress: is told now and then how many jobs have come.
        """
        period, at, clock = self._jobs.period, self._jobs.at, self._clock
        for pool in self._pools:
            self._look(pool, pool.next_look, is_first=True)
        longest = max(self._jobs.seconds, default=0.0)
        self._compare_shares(max(period, *at[-1:], longest, _SHORTEST) / _COMPARED)
        while self._unfinished or clock.next < period:
            come = len(at) - self._to_come
            if self._to_come and at[come] <= clock.next:
                clock.now = at[come]
                self._to_come -= 1
                self._can_be_taken(come)
                if come % _TOLD_EACH == 0:
                    progress(come)
            elif clock.next < inf:
                clock.step()
            else:
                break
        self._tally.end = max(period, self._moved)
        return self._tally

    # Jobs.

    def _can_be_taken(self, job: int, lane: Lane | None = None) -> None:
        """A job came, or came back; ``lane`` None: that of its priority."""
        group = self._jobs.group[job]
        ring = self._ring_of[group]
        self._since[job] = self._clock.now
        ring.submit(group, lane if lane is not None else Lane.HIGH if self._jobs.is_high[job] else Lane.LOW, job)
        self._wake(ring)

    def _wake(self, ring: Ring, most: int = 1) -> None:
        """Wake executors that sleep, if there is work, the latest first; where nobody sleeps, pools hear of it.

        As `wake` in the database does: one that was woken already is not counted again, and takes all it can.
        """
        if not ring.has_work:
            return
        pools = self._pools_of[ring]
        sleepers = [sleeper for pool in pools for sleeper in pool.sleepers(most)]
        if len(pools) > 1:
            sleepers = nlargest(most, sleepers, key=_fell_asleep)
        for executor in sleepers:
            if not executor.is_woken:
                executor.is_woken = True
                self._clock.plan(self._clock.now + self._timing.overhead, self._wakes, executor)
        if not sleepers:
            for pool in pools:
                self._hear(pool)

    def _wakes(self, executor: Executor) -> None:
        executor.is_woken = False
        if executor.asleep:
            self._take(executor)

    def _take(self, executor: Executor) -> None:
        """An executor fills its free slots, and passes the wake-up on; or it falls asleep.

        Each time it begins with another queue.
        """
        rings, scheme = executor.pool.rings, executor.pool.spec.counting_scheme
        for nr in range(len(rings)):
            if executor.free:
                for job in rings[(executor.turn + nr) % len(rings)].take(executor.free, scheme):
                    self._start(executor, job)
        executor.turn += 1
        if not executor.free:
            executor.asleep = 0
            for ring in rings:
                self._wake(ring, _WOKEN_NEXT)
        elif not executor.asleep:
            executor.pool.sleeps(executor, next(self._falls))

    def _start(self, executor: Executor, job: int) -> None:
        group, now, limit = self._jobs.group[job], self._clock.now, executor.pool.timeout
        self._moved = now
        self._pending += 1
        self._tally.taken.add(now, group, now - self._since.pop(job))
        executor.pool.take(executor, job, now)
        seconds = self._jobs.seconds[job]
        is_late = seconds > limit
        self._clock.plan(now + min(seconds, limit) + self._timing.overhead, self._end, executor, job, is_late)

    def _end(self, executor: Executor, job: int, is_late: bool) -> None:  # noqa: FBT001 - as it is called
        """A run ends, unless it was interrupted."""
        if job not in executor.held:
            return
        self._release(executor, job)
        self._settle(executor.pool, job, is_late=is_late)
        if executor.retired_at is None:
            self._take(executor)
        elif not executor.held:
            self._leave(executor)
        self._wake(self._ring_of[self._jobs.group[job]])  # a group may have been at its limit

    def _settle(self, pool: SimulatedPool, job: int, *, is_late: bool) -> None:
        """What becomes of a job whose run has ended."""
        failures = self._failures.get(job, 0)
        verdict = pool.verdict(self._jobs[job], failures, is_late=is_late)
        if verdict.state is State.STUCK and verdict.delay is not None:
            self._failures[job] = failures + 1
            self._pending += 1
            self._clock.plan(self._clock.now + verdict.delay.total_seconds(), self._due, job)
        else:
            self._failures.pop(job, None)
            self._unfinished -= 1
            self._tally.ended[verdict.state] += 1

    def _due(self, job: int) -> None:
        """A job that has failed can be tried again."""
        self._pending -= 1
        self._can_be_taken(job, Lane.DUE)

    def _release(self, executor: Executor, job: int) -> None:
        group = self._jobs.group[job]
        self._moved = self._clock.now
        self._pending -= 1
        self._tally.slot_seconds[group] += self._clock.now - executor.held[job]
        executor.pool.end(executor, job, self._clock.now)
        self._ring_of[group].ended(group)

    # Pools.

    def _hear(self, pool: SimulatedPool) -> None:
        """There is work for which nobody is awake: a pool that could grow looks at once, and again a moment later."""
        if pool.can_grow and self._clock.now >= pool.deaf_until:
            pool.deaf_until = self._clock.now + REST
            self._plan_look(pool, self._clock.now)

    def _plan_look(self, pool: SimulatedPool, time: float) -> None:
        if time < pool.next_look:
            pool.next_look = time
            self._clock.plan(time, self._look, pool, time)

    def _look(self, pool: SimulatedPool, planned: float, *, is_first: bool = False) -> None:
        if planned != pool.next_look:
            return  # it was looked at sooner
        pool.next_look = inf
        now = self._jobs.begin + timedelta(seconds=self._clock.now)
        change = pool.look(now, self._clock.now)
        for executor in change.started:
            if is_first:  # what is there in any case is there at the beginning
                self._ready(executor)
            else:
                self._clock.plan(self._clock.now + self._timing.start_up, self._ready, executor)
        for executor in change.draining:
            if pool.spec.drain.on_timeout == "Terminate":
                self._clock.plan(self._clock.now + pool.spec.drain.timeout.total_seconds(), self._interrupt, executor)
        if change.started or change.draining:
            self._moved = self._clock.now
        if not self._is_still():
            again_in = self._timing.poll if change.again_in is None else min(change.again_in, self._timing.poll)
            self._plan_look(
                pool, min(self._clock.now + again_in, pool.deaf_until if pool.deaf_until > self._clock.now else inf)
            )

    def _compare_shares(self, every: float) -> None:
        """Look how evenly the slots are held, ever more seldom when that lasts longer than was to be expected."""
        seconds = max(every, self._clock.now / _COMPARED)
        for queue, ring in self._rings.items():
            if not any(pool.sleepers(1) for pool in self._pools_of[ring]):  # else there is enough for all
                self._tally.shares[queue].look(ring.groups, seconds)
        if not self._is_still():
            self._clock.plan(self._clock.now + seconds, self._compare_shares, every)

    def _is_still(self) -> bool:
        return not (self._to_come or self._pending) and self._clock.now > max(self._moved + _STILL, self._jobs.period)

    def _ready(self, executor: Executor) -> None:
        """An executor has started, if it is wanted still."""
        if not executor.is_gone:
            executor.pool.starts(executor)
            self._take(executor)

    def _interrupt(self, executor: Executor) -> None:
        """An executor drains for too long: it gives back what it holds."""
        jobs = list(executor.held)
        for job in jobs:
            self._release(executor, job)
        if not executor.is_gone:
            self._leave(executor)
        for job in jobs:
            self._can_be_taken(job)

    def _leave(self, executor: Executor) -> None:
        executor.pool.leave(executor, self._clock.now)
        self._plan_look(executor.pool, self._clock.now)  # there may be room for another one


def _fell_asleep(executor: Executor) -> int:
    return executor.asleep
