"""A small model of a cluster and its database, which executes the operator's decisions.

Deployments make pods, pods start and register, executors take jobs and finish them; anything may die at any time. A
second is one `tick`. An executor behaves like the real one: it takes no job when it drains or its name is retired, and
its container restarts after each exit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from joex_operator.api.names import replica_name
from joex_operator.api.objects import Pool
from joex_operator.decide.actions import (
    Action,
    AskDrain,
    CreateReplica,
    DeleteReplica,
    ForgetReplica,
    MarkSpare,
    ReportGone,
    UpdateReplica,
    Why,
)
from joex_operator.decide.plan import ObservedPool
from joex_operator.decide.replicas import ObservedExecutor, Replica
from joex_operator.decide.scaling import Demand
from tests.unit.joex_operator.builders import NOW, SILENT

LEASE = 6
START_UP = 2
UNSCHEDULED_AFTER = 4


@dataclass
class Pod:
    """A pod of a replica: its container starts, then it registers."""

    uid: str
    replica: str
    starts_in: int = START_UP
    has_node: bool = False
    waits_for: int = 0
    terminating: bool = False
    node_is_silent: bool = False


@dataclass
class Made:
    """A Deployment."""

    uid: str
    template: str
    replicas: int = 1


@dataclass
class Living:
    """A registered executor: its jobs, as the remaining seconds of each."""

    replica: str
    held: list[int] = field(default_factory=list)
    draining: bool = False
    spare: bool = False
    silent_for: int = 0
    is_dead: bool = False


class World:
    """The cluster and the database of one pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.template = "1"
        self.time = 0
        self.database_is_up = True
        self.room: int | None = None
        self.queue: list[int] = []
        self.submitted = 0
        self.finished = 0
        self.deployments: dict[str, Made] = {}
        self.pods: dict[str, Pod] = {}
        self.gone: dict[str, list[str]] = {}
        self.living: dict[str, Living] = {}
        self.retired: dict[str, datetime] = {}
        self._uids = map(str, count())

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.time)

    @property
    def held(self) -> int:
        return sum(len(executor.held) for executor in self.living.values())

    def submit(self, jobs: Iterable[int]) -> None:
        new = list(jobs)
        self.submitted += len(new)
        self.queue += new

    # Events without a cause.

    def tick(self) -> None:
        """One second passes."""
        self.time += 1
        for name, made in self.deployments.items():  # a pod that terminates has a successor at once
            if made.replicas and not any(pod.replica == name and not pod.terminating for pod in self.pods.values()):
                self._start_pod(name)
        for pod in list(self.pods.values()):
            self._run_pod(pod)
        if self.database_is_up:
            for uid, executor in list(self.living.items()):
                self._run_executor(uid, executor)

    def _start_pod(self, replica: str) -> None:
        uid = f"pod-{next(self._uids)}"
        self.pods[uid] = Pod(uid, replica)

    def _run_pod(self, pod: Pod) -> None:
        if pod.node_is_silent:
            return
        executor = self.living.get(pod.uid)
        if pod.terminating and executor is not None:
            executor.draining = True  # SIGTERM; it has all the time that its jobs need
        elif pod.terminating:
            self._remove_pod(pod)
        elif not pod.has_node:
            pod.has_node = self.room is None or sum(one.has_node for one in self.pods.values()) < self.room
            pod.waits_for += 1
        elif pod.starts_in > 0:
            pod.starts_in -= 1
        elif self.database_is_up and (executor is None or executor.is_dead):
            self._register(pod)

    def _register(self, pod: Pod) -> None:
        others = [one for uid, one in self.living.items() if one.replica == pod.replica and uid != pod.uid]
        if pod.replica in self.retired or not all(other.draining for other in others):
            return
        if pod.uid in self.living:
            self._end(pod.uid)  # the same pod: its former process is certainly gone
        self.living[pod.uid] = Living(pod.replica)

    def _run_executor(self, uid: str, executor: Living) -> None:
        if executor.is_dead:
            executor.silent_for += 1
            if executor.silent_for > LEASE:
                self._end(uid)
            return
        executor.held = [left - 1 for left in executor.held]
        self.finished += executor.held.count(0)
        executor.held = [left for left in executor.held if left]
        if executor.draining and not executor.held:
            self._end(uid)
            self.pods[uid].starts_in = START_UP  # its container starts again
        elif not executor.draining and not (executor.spare and self._another_has_room()):
            free = self.pool.spec.pool_size - len(executor.held)
            executor.held += self.queue[:free]
            del self.queue[:free]

    def _another_has_room(self) -> bool:
        return any(
            len(one.held) < self.pool.spec.pool_size and not (one.spare or one.draining or one.is_dead)
            for one in self.living.values()
        )

    def _end(self, uid: str) -> None:
        self.queue[:0] = self.living.pop(uid).held

    def _remove_pod(self, pod: Pod) -> None:
        del self.pods[pod.uid]
        self.gone.setdefault(pod.replica, []).append(pod.uid)

    # Faults.

    def kill_process(self, pod: Pod) -> None:
        """kill -9: the container starts again in the same pod."""
        pod.starts_in = START_UP
        if executor := self.living.get(pod.uid):
            executor.is_dead = True

    def evict_pod(self, pod: Pod) -> None:
        """The pod terminates, as when its node is drained."""
        pod.terminating = True

    def delete_pod(self, pod: Pod) -> None:
        """The pod is gone at once, and its process with it."""
        if executor := self.living.get(pod.uid):
            executor.is_dead = True
        self._remove_pod(pod)

    def silence_node(self, pod: Pod) -> None:
        """The pod's node becomes silent."""
        pod.node_is_silent = True
        if executor := self.living.get(pod.uid):
            executor.is_dead = True

    def return_nodes(self) -> None:
        """Silent nodes are back: their pods' containers start again."""
        for pod in self.pods.values():
            if pod.node_is_silent:
                pod.node_is_silent, pod.starts_in = False, START_UP

    # Observations and actions of the operator.

    def observe(self) -> ObservedPool:
        """The operator's observation of this moment."""
        names = {*self.deployments, *(pod.replica for pod in self.pods.values())}
        if self.database_is_up:
            names |= {*(executor.replica for executor in self.living.values()), *self.retired}
        replicas = tuple(self._replica(name) for name in sorted(names))
        if not self.database_is_up:
            return ObservedPool(replicas, None, self.template, SILENT)
        return ObservedPool(replicas, Demand(len(self.queue)), self.template)

    def _replica(self, name: str) -> Replica:
        made, pods = self.deployments.get(name), [pod for pod in self.pods.values() if pod.replica == name]
        return Replica(
            name,
            int(name.rpartition("-")[2]),
            uid=made.uid if made else None,
            template=made.template if made else "",
            pods_wanted=made.replicas if made else 1,
            lost=any(pod.node_is_silent for pod in pods),
            unscheduled=any(not pod.has_node and pod.waits_for > UNSCHEDULED_AFTER for pod in pods),
            pods=tuple(pod.uid for pod in pods),
            terminating=tuple(pod.uid for pod in pods if pod.terminating),
            gone=tuple(self.gone.get(name, ())),
            executor=self._executor(name) if self.database_is_up else None,
        )

    def _executor(self, name: str) -> ObservedExecutor:
        living = {uid: executor for uid, executor in self.living.items() if executor.replica == name}
        drain = sum(len(executor.held) for executor in living.values() if executor.draining)
        takes = [executor for executor in living.values() if not executor.draining]
        assert len(takes) <= 1, "of the executors of an app-id one takes jobs"
        return ObservedExecutor(
            alive=bool(living),
            held=sum(len(executor.held) for executor in living.values()),
            left=drain if takes else 0,
            draining=bool(living) and not takes,
            spare=any(executor.spare for executor in takes),
            retired_at=self.retired.get(name),
            retired_for=self.now - self.retired[name] if name in self.retired else None,
            pods=tuple(living),
        )

    def apply(self, action: Action) -> None:
        """Execute an action, in the present state of the world."""
        match action:
            case CreateReplica(index):
                name = replica_name(self.pool.name, index)
                self.deployments.setdefault(name, Made(f"made-{next(self._uids)}", self.template))
            case UpdateReplica(replica, uid):
                if (made := self.deployments.get(replica)) and made.uid == uid:
                    made.replicas = 1
            case DeleteReplica(replica, uid, why):
                self._delete(replica, uid, why)
            case _ if self.database_is_up:  # else the action fails
                self._tell(action)

    def _tell(self, action: Action) -> None:
        match action:
            case AskDrain(replica, only_if_idle):
                self._retire(replica, only_if_idle=only_if_idle)
            case MarkSpare(replica, spare):
                for executor in self._living(replica):
                    executor.spare = spare and not executor.draining
            case ForgetReplica(replica, retired_at):
                if self.retired.get(replica) == retired_at:
                    del self.retired[replica]
            case ReportGone(uid):
                if uid in self.living:
                    self._end(uid)

    def _retire(self, replica: str, *, only_if_idle: bool) -> None:
        living = self._living(replica)
        if only_if_idle and any(executor.held for executor in living):
            return
        self.retired.setdefault(replica, self.now)
        for executor in living:
            executor.draining = True

    def _living(self, replica: str) -> list[Living]:
        return [executor for executor in self.living.values() if executor.replica == replica]

    def _delete(self, replica: str, uid: str, why: Why) -> None:
        made = self.deployments.get(replica)
        if made is None or made.uid != uid:
            return
        if why is Why.RETIRED:
            assert replica in self.retired, "only what is retired is deleted"
            assert not self._living(replica), "an executor that may be busy is never deleted"
        del self.deployments[replica]
        for pod in self.pods.values():
            pod.terminating |= pod.replica == replica
