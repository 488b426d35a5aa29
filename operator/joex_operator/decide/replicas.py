"""The observed replicas of a pool, their phases, and the order in which they leave.

A replica is a Deployment of one executor, the Deployment's pods, and what the database knows of the executor's app-id.
The database has the last word on whether an executor may be stopped: it *retires* an app-id in one transaction. From
then on no executor takes a job or registers under that app-id, until the operator forgets it::

    PENDING --> IDLE <--> BUSY          its executor takes jobs, or will (CRASHING: after its restart; UNSCHEDULED:
       |          |         |           when the cluster has room). PENDING again, while that of an evicted pod drains
       |    (retired: no executor takes a job under this app-id any more)
       |          |         v
       |          |      DRAINING       it finishes its jobs
       v          v         v
    RETIRED  ------------------------>  GOING  ---------------------------->  (forgotten: the index is free)
             Deployment is deleted             its pods are gone

An executor that works in another database than the pool's (the secret has changed) drains too. Only the old database
knows what it runs, and no secret has its URL any more: so its app-id is retired in the pool's database, where a restart
would register, its Deployment is deleted, and it finishes its jobs within the grace period of its pod.

There is no way back from draining: a deletion is safe only because a retired app-id stays retired. New work goes to a
new replica, which starts in a moment.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count


class Phase(enum.StrEnum):
    """The phase of a replica."""

    UNKNOWN = "unknown"  # the database is down
    PENDING = "pending"  # no executor has registered, or not again
    UNSCHEDULED = "unscheduled"  # nor will it soon: for minutes its pod has been refused, or no node has had room
    IDLE = "idle"
    BUSY = "busy"
    CRASHING = "crashing"  # its executor dies again and again, and waits for its restart
    DRAINING = "draining"  # it takes no more jobs, and finishes those it has
    RETIRED = "retired"  # no executor runs under its app-id, and none will: its Deployment may go
    LOST = "lost"  # its executor is dead, and its node is lost
    GOING = "going"  # its Deployment is gone


_TAKERS = (Phase.UNKNOWN, Phase.PENDING, Phase.IDLE, Phase.BUSY)
_ORDER = {Phase.UNSCHEDULED: 0, Phase.PENDING: 1, Phase.IDLE: 2, Phase.BUSY: 3}


@dataclass(frozen=True, slots=True)
class ObservedExecutor:
    """What the database knows of a replica's app-id.

    Attributes:
        alive: an executor is registered, and has not ended.
        held: jobs that it holds, and those that its predecessors hold.
        left: of these, the jobs of predecessors: they drain, as after the eviction of their pods, and it takes jobs.
        draining: it takes no more jobs, whether this operator drains it or an administrator does, or its pod ends.
        spare: it leaves new jobs to other executors that have free slots.
        retired_at: since when no executor can register under the app-id; None: it is not retired.
        retired_for: for how long, by the clock of the database, which wrote ``retired_at``.
        pods: uids of the pods in which it and its predecessors run.
        database: the name of the database.
    """

    alive: bool = False
    held: int = 0
    left: int = 0
    draining: bool = False
    spare: bool = False
    retired_at: datetime | None = None
    retired_for: timedelta | None = field(default=None, compare=False)
    pods: tuple[str, ...] = ()
    database: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Replica:
    """An observed replica: it has a Deployment or a pod, or the database remembers its app-id.

    Attributes:
        name, index: of the replica.
        uid: of its Deployment; None: there is none, or it is being deleted.
        template: the hash of the template that it was made of.
        database: the name of the database that it was made for; empty: not known.
        pods_wanted: the `spec.replicas` of its Deployment; anything but 1 was set by a user.
        problem: why its pod does not start, in a few words; None: nothing is wrong.
        lost: the node of its pod does not answer.
        crashing: its executor registered once, dies again and again, and waits for its restart or to become ready.
        unready_since: since when its executor, which has started, says that it takes no jobs.
        unready: it has said so for a while.
        ready_since: since when its pod is ready, or its process runs.
        fresh: it has been ready for less than `rollout.minReadySeconds`, and may crash yet.
        unscheduled_since: since when no node has room for its pod, or the API server refuses to create it.
        refused: it is the latter, as by a quota or an admission webhook.
        unscheduled: it has been so for minutes.
        pods: uids of the pods that exist, terminating ones included.
        terminating: uids of those that are being deleted, as by an eviction.
        gone: uids of pods that certainly run no more (deleted or terminal, as the API server says).
        executor: what the database knows; None: it is down.
        phase: derived from all of these.
    """

    name: str
    index: int
    uid: str | None = None
    template: str = ""
    database: str = ""
    pods_wanted: int = 1
    problem: str | None = None
    lost: bool = False
    crashing: bool = False
    unready_since: datetime | None = None
    unready: bool = False
    ready_since: datetime | None = None
    fresh: bool = False
    unscheduled_since: datetime | None = None
    refused: bool = False
    unscheduled: bool = False
    pods: tuple[str, ...] = ()
    terminating: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    executor: ObservedExecutor | None = None
    phase: Phase = field(init=False)

    def __post_init__(self) -> None:
        # Computed once, because a plan for thousands of replicas reads it a dozen times.
        object.__setattr__(self, "phase", self._phase())

    def _phase(self) -> Phase:
        executor = self.executor
        if executor is None:
            return Phase.GOING if self.uid is None else Phase.UNKNOWN
        works = executor.alive or self.is_elsewhere
        if self.uid is None:
            return Phase.DRAINING if works else Phase.GOING
        leaves = executor.alive and executor.draining and not self._has_successor
        if leaves or self.is_elsewhere or executor.retired_at is not None:
            return Phase.DRAINING if works else Phase.RETIRED
        if self.crashing and not self.lost:  # (the database may not know it yet)
            return Phase.CRASHING
        if executor.alive and not executor.draining:
            return Phase.BUSY if executor.held else Phase.IDLE
        return Phase.LOST if self.lost else self._waiting()

    @property
    def _has_successor(self) -> bool:
        """Whether its Deployment has another pod, or will in a moment, because those of its executors end."""
        ends = {*self.terminating, *self.gone}
        return self.executor is not None and bool(self.executor.pods) and ends.issuperset(self.executor.pods)

    def _waiting(self) -> Phase:
        return Phase.UNSCHEDULED if self.unscheduled else Phase.PENDING

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing of it is left in the fleet and in the database but the uids of pods that ended."""
        return self.phase is Phase.GOING and self.executor == ObservedExecutor() and not self.pods

    @property
    def is_elsewhere(self) -> bool:
        """Whether it was made for another database than the pool's, and the pool's knows no executor of it.

        (It knows one when the container was restarted, and when both names mean one database.) On a lost node it may
        have ended, and its pod may stay for ever: it is `LOST`, whatever its database, and makes room for another.
        """
        there, executor = (self.uid is not None or bool(self.pods)) and not self.lost, self.executor
        return there and executor is not None and not executor.alive and self.database not in ("", executor.database)

    @property
    def is_stuck(self) -> bool:
        """Whether something keeps its executor from starting. For minutes, the want of room does not count."""
        has_failed = self.phase is Phase.PENDING and self.problem is not None and self.unscheduled_since is None
        return has_failed or self.phase is Phase.UNSCHEDULED

    @property
    def is_deaf(self) -> bool:
        """Whether its executor is registered and idle, and takes no jobs, as when the database refuses its login.

        (A busy one may only be too busy to answer a probe.)
        """
        return self.phase is Phase.IDLE and self.unready

    @property
    def is_spare(self) -> bool:
        """Whether its executor leaves new jobs to others."""
        return self.executor is not None and self.executor.spare

    @property
    def held(self) -> int:
        """Jobs that its executor and its predecessors hold, as far as the database says."""
        return 0 if self.executor is None else self.executor.held

    @property
    def left(self) -> int:
        """Of these, the jobs of executors that drain: no slot of the pool has them."""
        if self.executor is None:
            return 0
        return self.executor.held if self.executor.draining else self.executor.left


def takers(replicas: Iterable[Replica]) -> list[Replica]:
    """The replicas that take jobs, or will: starting ones count."""
    return [replica for replica in replicas if replica.phase in _TAKERS]


def unscheduled(replicas: Iterable[Replica]) -> list[Replica]:
    """The replicas that are no capacity, because the cluster has had no room for their pods for minutes."""
    return [replica for replica in replicas if replica.phase is Phase.UNSCHEDULED]


def asked_for(replicas: Iterable[Replica]) -> list[Replica]:
    """The replicas that make up the size of a pool: they take jobs, or will if the cluster has room for them."""
    return [replica for replica in replicas if replica.phase in (*_TAKERS, Phase.UNSCHEDULED)]


def crashing(replicas: Iterable[Replica]) -> list[Replica]:
    """The replicas that are no capacity for now, and count against the maximum: new replicas do their work."""
    return [replica for replica in replicas if replica.phase is Phase.CRASHING]


def draining(replicas: Iterable[Replica]) -> list[Replica]:
    """The replicas that finish their jobs, and count against no maximum: others do the work."""
    return [replica for replica in replicas if replica.phase is Phase.DRAINING]


def ready(replicas: Iterable[Replica]) -> list[Replica]:
    """The replicas that take jobs now."""
    return [one for one in replicas if one.phase in (Phase.IDLE, Phase.BUSY) and not one.is_deaf]


def first_to_leave(
    replicas: Iterable[Replica], template: str, *, rolling: bool = False, paused: bool = False
) -> list[Replica]:
    """The replicas in the order in which they leave.

    Unscheduled before pending before idle before busy; among these the outdated first, then those that have been told
    to leave new jobs to others, then those with fewest jobs, then the youngest. During a rollout (``rolling``) the busy
    outdated ones go before the idle ones that have replaced others. While a rollout is ``paused`` the outdated go last.
    """

    def rank(replica: Replica) -> tuple[int, bool, int, bool, bool, int, int]:
        # (A starting one may have a predecessor that drains.)
        order, is_present = _ORDER[Phase.BUSY if replica.held else replica.phase], replica.template == template
        first = min(order, _ORDER[Phase.IDLE])
        return (
            first,
            rolling and is_present,
            order,
            is_present is not paused,
            not replica.is_spare,
            replica.held,
            -replica.index,
        )

    return sorted((replica for replica in replicas if replica.phase in _ORDER), key=rank)


def free_indices(replicas: Iterable[Replica], taken: frozenset[int] = frozenset()) -> Iterator[int]:
    """Indices that nothing has, the lowest first, so that a repeated plan creates the same replicas.

    ``taken``: by something that is no replica.
    """
    used = {replica.index for replica in replicas if not replica.is_forgotten} | taken
    return (index for index in count() if index not in used)
