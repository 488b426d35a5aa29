"""The executors of a simulated pool: `joex_operator.decide` decides how many there are and which leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from operator import attrgetter

from joex.core import outcome
from joex.core.fair_queue import FairQueue
from joex.core.fairness import Cursor, Group
from joex.core.job import State
from joex.core.outcome import Ending, Outcome, Verdict
from joex_operator.api.names import replica_index, replica_name
from joex_operator.api.objects import Pool
from joex_operator.decide.actions import AskDrain, CreateReplica, MarkSpare
from joex_operator.decide.history import History
from joex_operator.decide.plan import ObservedPool, decide
from joex_operator.decide.replicas import ObservedExecutor, Replica
from joex_operator.decide.scaling import Demand, Load, Sizing, can_grow, most_counted, size
from joex_operator.simulate.backlog import Backlog
from joex_operator.simulate.jobs import Jobs, SimulatedJob
from joex_operator.simulate.totals import Sizes

_ENDINGS = {State.SUCCESS: Ending.RETURNED, State.FAILED: Ending.FAILED, State.CANCELLED: Ending.CANCELLED}


@dataclass(slots=True, eq=False)
class SimulatedExecutor:
    """An executor of a pool.

    Attributes:
        free: its free slots.
        held: the jobs it holds, and since when.
        turn: decides which of its queues comes first at its next take.
        asleep: 0 while it is awake; else the larger, the later it fell asleep.
        is_woken: it is asleep, and wakes up in a moment.
        is_spare: its pool could do without it.
        replica: as the operator observes it; None: it has changed since the latest reconcile.
    """

    pool: SimulatedPool
    index: int
    free: int
    held: dict[int, float] = field(default_factory=dict)
    turn: int = 0
    asleep: int = 0
    is_woken: bool = False
    is_spare: bool = False
    is_ready: bool = False
    is_gone: bool = False
    replica: Replica | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a reconcile.

    Attributes:
        started: executors that start.
        leaves_work: what was for an executor that has left, or for others than a spare one, may wait.
        again_in: seconds until the next reconcile.
    """

    started: Sequence[SimulatedExecutor] = ()
    leaves_work: bool = False
    again_in: float | None = None


class SimulatedPool:
    """A pool and its queues. Its executors leave when they are idle, at once: the demand drains no busy one."""

    def __init__(
        self, pool: Pool, queues: Sequence[FairQueue], backlog: Backlog, jobs_per_executor: int | None = None
    ) -> None:
        self.spec = pool.spec
        self.queues = queues
        self.sizes = Sizes()
        self.can_grow = jobs_per_executor is None
        self.next_reconcile = 0.0
        self.resting_until = -inf  # until then notifications do not count: it is reconciled then anyway
        self.timeout = inf if pool.spec.timeout is None else pool.spec.timeout.total_seconds()
        self._pool = pool
        self._backlog = backlog
        self._jobs_per_executor = jobs_per_executor
        self._executors: dict[int, SimulatedExecutor] = {}
        self._history = History()
        self._held = 0  # jobs of its executors
        self._asleep: list[tuple[int, SimulatedExecutor]] = []
        self._has_spare = False

    def reconcile(self, now: datetime, at: float) -> Change:
        """Plan the size and carry the plan out. ``at``: the same time, in seconds after the beginning."""
        takers = len(self._executors)
        demand = self._demand(at)
        sizing = size(self._pool, Load(demand, takers, self._held), self._history, now.timestamp())
        if sizing.target != takers or self._has_spare:
            return self._decide(demand, now, at)
        # The shortcut of a plan without actions: no executor here is outdated or lost.
        self._sized(sizing)
        return Change(again_in=sizing.again_in)

    def starts(self, executor: SimulatedExecutor) -> None:
        """An executor has started, and takes jobs."""
        executor.is_ready, executor.replica = True, None

    def take(self, executor: SimulatedExecutor, job: int, now: float) -> None:
        """An executor takes a job."""
        executor.free -= 1
        executor.held[job] = now
        executor.replica = None
        self._held += 1

    def end(self, executor: SimulatedExecutor, job: int, now: float) -> None:
        """An executor has finished a job, or given it back."""
        executor.free += 1
        executor.replica = None
        self.sizes.slot_seconds += now - executor.held.pop(job)
        self._held -= 1

    def leave(self, executor: SimulatedExecutor, at: float) -> None:
        """An idle executor is gone."""
        if executor.held:
            raise AssertionError("the demand drains no busy executor")
        executor.is_gone, executor.asleep = True, 0
        del self._executors[executor.index]
        self.sizes.changed(at, -1)

    def sleeps(self, executor: SimulatedExecutor, nth: int) -> None:
        """An executor falls asleep."""
        executor.asleep = nth
        self._asleep.append((nth, executor))

    def sleepers(self, most: int) -> list[SimulatedExecutor]:
        """Up to so many sleeping executors, the last to fall asleep first, so that those idle longest can leave.

        Spare ones come after all others.
        """
        asleep = self._asleep
        while asleep and asleep[-1][1].asleep != asleep[-1][0]:
            asleep.pop()
        in_turn = (one for nth, one in reversed(asleep) if one.asleep == nth)
        return list(islice(sorted(in_turn, key=attrgetter("is_spare")) if self._has_spare else in_turn, most))

    def verdict(self, job: SimulatedJob, failures: int, *, is_late: bool) -> Verdict:
        """The verdict on a run, after so many failed ones. ``is_late``: the timeout has cut it off."""
        raises = is_late or failures < job.failures
        return outcome.decide(
            Outcome(Ending.RAISED if raises else _ENDINGS[job.state]),
            failures=failures,
            retries=self.spec.retries if job.retries is None else job.retries,
            first_delay=self.spec.retry_delay if job.retry_delay is None else timedelta(seconds=job.retry_delay),
        )

    def _demand(self, at: float) -> Demand:
        runnable, target = sum(queue.runnable for queue in self.queues), self.spec.scaling.target
        if self._jobs_per_executor is not None:  # KEDA's formula knows no slots: what runs counts as what waits
            executors = -(-(runnable + self._held) // self._jobs_per_executor)
            return Demand(executors * self.spec.pool_size - self._held)
        work = None if target is None else self._backlog.work(self.queues, target.wait.total_seconds(), at)
        return Demand(min(runnable, most_counted(self.spec)), work=work)

    def _sized(self, sizing: Sizing) -> None:
        self._history = sizing.history
        self.can_grow = self._jobs_per_executor is None and can_grow(self.spec, sizing)  # (KEDA polls)

    def _decide(self, demand: Demand, now: datetime, at: float) -> Change:
        observed = ObservedPool(tuple(map(self._replica, self._executors.values())), demand, template="")
        plan = decide(self._pool, observed, self._history, now)
        self._sized(plan.sizing)
        started, leaves_work = list[SimulatedExecutor](), False
        for action in plan.actions:
            match action:
                case CreateReplica(index):
                    started.append(SimulatedExecutor(self, index, self.spec.pool_size))
                case AskDrain(replica) if (leaving := replica_index(self._pool.name, replica)) is not None:
                    self.leave(self._executors[leaving], at)
                    leaves_work = True
                case MarkSpare(replica, spare) if (marked := replica_index(self._pool.name, replica)) is not None:
                    self._executors[marked].is_spare, self._executors[marked].replica = spare, None
                    leaves_work |= not spare
                case _:
                    raise AssertionError(f"no plan of a simulated pool has {action}")
        self._has_spare = any(executor.is_spare for executor in self._executors.values())
        self._executors |= {executor.index: executor for executor in started}
        if started:
            self.sizes.changed(at, len(started))
        return Change(started, leaves_work, plan.requeue_after)

    def _replica(self, executor: SimulatedExecutor) -> Replica:
        if executor.replica is None:
            known = ObservedExecutor(executor.is_ready, len(executor.held), spare=executor.is_spare)
            name = replica_name(self._pool.name, executor.index)
            executor.replica = Replica(name, executor.index, uid="", executor=known)
        return executor.replica


def fair_queues(jobs: Jobs) -> dict[str, FairQueue]:
    """The queues by name, with their groups in the given order."""
    groups: dict[str, list[Group]] = {group.queue: [] for group in jobs.groups}
    for nr, group in enumerate(jobs.groups):
        groups[group.queue].append(Group(nr, weight=group.weight, max_running=group.max_running))
    return {queue: FairQueue(some, Cursor(-1, 0)) for queue, some in groups.items()}
