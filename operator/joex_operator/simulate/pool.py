"""The executors of a simulated pool: `joex_operator.decide.plan` decides how many there are, and which of them go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from math import inf

from joex.core import outcome
from joex.core.fairness import Cursor, Group
from joex.core.job import State
from joex.core.outcome import Ending, Outcome, Verdict
from joex_operator.api.names import slot_index, slot_name
from joex_operator.api.objects import Pool
from joex_operator.decide.actions import AskDrain, CreateSlot
from joex_operator.decide.history import History
from joex_operator.decide.plan import ObservedPool, decide
from joex_operator.decide.scaling import Demand, Load, can_grow, most_counted, size
from joex_operator.decide.slots import ObservedExecutor, Slot
from joex_operator.simulate.fair_queue import FairQueue
from joex_operator.simulate.jobs import Jobs, SimulatedJob
from joex_operator.simulate.totals import Sizes

_ENDINGS = {State.SUCCESS: Ending.RETURNED, State.FAILED: Ending.FAILED, State.CANCELLED: Ending.CANCELLED}


@dataclass(slots=True, eq=False)
class SimulatedExecutor:
    """An executor of a pool.

    Attributes:
        free: its free slots.
        held: the jobs it holds, and since when.
        turn: which of its queues it looks at first, the next time.
        asleep: set while it has free slots, and found nothing: the larger, the later it fell asleep.
        is_woken: it will look for work in a moment.
        slot: as the operator finds it; None: it has changed since the operator has looked.
    """

    pool: SimulatedPool
    index: int
    free: int
    held: dict[int, float] = field(default_factory=dict)
    turn: int = 0
    asleep: int = 0
    is_woken: bool = False
    is_ready: bool = False
    is_gone: bool = False
    retired_at: datetime | None = None
    slot: Slot | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a look has changed: executors that start, and busy ones that drain. ``again_in``: seconds to the next."""

    started: Sequence[SimulatedExecutor] = ()
    draining: Sequence[SimulatedExecutor] = ()
    again_in: float | None = None


class SimulatedPool:
    """A pool, with the rings of its queues. Executors that hold nothing leave in no time."""

    def __init__(self, pool: Pool, rings: Sequence[FairQueue]) -> None:
        self.spec = pool.spec
        self.rings = rings
        self.sizes = Sizes()
        self.can_grow = True
        self.next_reconcile = 0.0
        self.deaf_until = -inf  # so long it does not hear of work: it looks then anyway
        self.timeout = inf if pool.spec.timeout is None else pool.spec.timeout.total_seconds()
        self._pool = pool
        self._executors: dict[int, SimulatedExecutor] = {}
        self._history = History()
        self._held = 0  # jobs, on executors that take more
        self._leaving = 0  # jobs, on those that drain
        self._draining = 0  # executors
        self._asleep: list[tuple[int, SimulatedExecutor]] = []

    def look(self, now: datetime, at: float) -> Change:
        """Decide on the size, and do what is decided. ``at``: the same time, in seconds after the beginning."""
        takers = len(self._executors) - self._draining
        demand = Demand(min(sum(ring.runnable for ring in self.rings), most_counted(self.spec)))
        sizing = size(self._pool, Load(demand, takers, self._held, self._leaving), self._history, now.timestamp())
        if sizing.target != takers:
            return self._decide(demand, now, at)
        # Then `decide` would come to the same, after a look at each executor; none is outdated or lost here.
        self._history, self.can_grow = sizing.history, can_grow(self.spec, sizing)
        return Change(again_in=sizing.again_in)

    def starts(self, executor: SimulatedExecutor) -> None:
        """An executor takes jobs from now on."""
        executor.is_ready, executor.slot = True, None

    def take(self, executor: SimulatedExecutor, job: int, now: float) -> None:
        """An executor takes a job."""
        executor.free -= 1
        executor.held[job] = now
        executor.slot = None
        self._held += 1

    def end(self, executor: SimulatedExecutor, job: int, now: float) -> None:
        """An executor holds a job no more."""
        executor.free += 1
        executor.slot = None
        self.sizes.slot_seconds += now - executor.held.pop(job)
        if executor.retired_at is None:
            self._held -= 1
        else:
            self._leaving -= 1

    def leave(self, executor: SimulatedExecutor, at: float) -> None:
        """An executor that holds nothing, and takes nothing more, is gone."""
        if executor.retired_at is not None:
            self._draining -= 1
        executor.is_gone, executor.asleep = True, 0
        del self._executors[executor.index]
        self.sizes.changed(at, -1)

    def sleeps(self, executor: SimulatedExecutor, nth: int) -> None:
        """An executor falls asleep."""
        executor.asleep = nth
        self._asleep.append((nth, executor))

    def sleepers(self, most: int) -> list[SimulatedExecutor]:
        """Up to so many that sleep, the last to fall asleep first, so that the longest idle can be let go."""
        asleep = self._asleep
        while asleep and asleep[-1][1].asleep != asleep[-1][0]:
            asleep.pop()
        return list(islice((one for nth, one in reversed(asleep) if one.asleep == nth), most))

    def verdict(self, job: SimulatedJob, failures: int, *, is_late: bool) -> Verdict:
        """What becomes of a job whose run has ended, after so many that failed; ``is_late``: it was cut."""
        raises = is_late or failures < job.failures
        return outcome.decide(
            Outcome(Ending.RAISED if raises else _ENDINGS[job.state]),
            failures=failures,
            retries=self.spec.retries if job.retries is None else job.retries,
            first_delay=self.spec.retry_delay if job.retry_delay is None else timedelta(seconds=job.retry_delay),
        )

    def _decide(self, demand: Demand, now: datetime, at: float) -> Change:
        seen = ObservedPool(tuple(map(self._slot, self._executors.values())), demand, template="")
        decision = decide(self._pool, seen, self._history, now)
        self._history, self.can_grow = decision.sizing.history, can_grow(self.spec, decision.sizing)
        started, draining = list[SimulatedExecutor](), list[SimulatedExecutor]()
        for action in decision.actions:
            match action:
                case CreateSlot(index):
                    started.append(SimulatedExecutor(self, index, self.spec.pool_size))
                case AskDrain(slot) if (leaving := slot_index(self._pool.name, slot)) is not None:
                    draining += self._retire(self._executors[leaving], now, at)
                case _:
                    raise AssertionError(f"nothing here calls for {action}")
        self._executors |= {executor.index: executor for executor in started}
        self.sizes.changed(at, len(started))
        return Change(started, draining, decision.requeue_after)

    def _retire(self, executor: SimulatedExecutor, now: datetime, at: float) -> list[SimulatedExecutor]:
        """Let an executor take nothing more; it is given back where it has something to finish."""
        if not executor.held:
            self.leave(executor, at)
            return []
        executor.retired_at, executor.asleep, executor.slot = now, 0, None
        self._draining += 1
        self._held -= len(executor.held)
        self._leaving += len(executor.held)
        return [executor]

    def _slot(self, executor: SimulatedExecutor) -> Slot:
        if executor.slot is None:
            known = ObservedExecutor(
                executor.is_ready, len(executor.held), executor.retired_at is not None, executor.retired_at
            )
            name = slot_name(self._pool.name, executor.index)
            executor.slot = Slot(name, executor.index, uid="", executor=known)
        return executor.slot


def fair_queues(jobs: Jobs) -> dict[str, FairQueue]:
    """By queue: its groups, in the order in which they are given."""
    groups: dict[str, list[Group]] = {group.queue: [] for group in jobs.groups}
    for nr, group in enumerate(jobs.groups):
        groups[group.queue].append(Group(nr, weight=group.weight, max_running=group.max_running))
    return {queue: FairQueue(some, Cursor(-1, 0)) for queue, some in groups.items()}
