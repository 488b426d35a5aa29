"""The slots of a pool as they were found, and which of them go first.

A slot is a Deployment of one executor, the pods it has made, and what the database knows of the executor's app-id. The
database has the last word on whether an executor may be stopped: it *retires* an app-id in one transaction, and from
then on nobody takes a job under that name, nor registers under it, until the name is forgotten again::

    PENDING --> IDLE <--> BUSY          its executor takes jobs, or will (CRASHING: not before it is started again)
       |          |         |
       |    (retired: no executor takes a job under this name any more)
       |          |         v
       |          |      DRAINING       it finishes what it runs
       v          v         v
    RETIRED  ------------------------>  GOING  ---------------------------->  (forgotten: the index is free)
             Deployment is deleted             its pods are gone

There is no way back from draining: what makes a deletion safe is just that a retired name stays so. New work goes to a
new slot, which starts in a moment.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count


class Phase(enum.StrEnum):
    """Where a slot stands in its life."""

    UNKNOWN = "unknown"  # the database is silent
    PENDING = "pending"  # nobody has registered, or not again
    IDLE = "idle"
    BUSY = "busy"
    CRASHING = "crashing"  # its executor dies again and again, and is started again only after a while
    DRAINING = "draining"  # it takes nothing more, and finishes what it runs
    RETIRED = "retired"  # no executor lives under its name, and none will: its Deployment may go
    LOST = "lost"  # its executor is dead, and its node is silent
    GOING = "going"  # it has no Deployment any more


_TAKERS = (Phase.UNKNOWN, Phase.PENDING, Phase.IDLE, Phase.BUSY)
_ORDER = {Phase.PENDING: 0, Phase.IDLE: 1, Phase.BUSY: 2}


@dataclass(frozen=True, slots=True)
class ObservedExecutor:
    """What the database knows of a slot's app-id.

    Attributes:
        alive: an incarnation is registered, and has not ended.
        held: jobs that it holds.
        draining: it takes nothing more, whoever asked it to.
        retired_at: since then nobody can register under the app-id; None: it is not retired.
        pod_uid: the pod it runs in.
    """

    alive: bool = False
    held: int = 0
    draining: bool = False
    retired_at: datetime | None = None
    pod_uid: str | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as it was found: by its Deployment, by a pod, or by what the database remembers.

    Attributes:
        name, index: which one it is.
        uid: of its Deployment; None: there is none, or it is being deleted.
        template: the template hash it was made with.
        replicas: of its Deployment; anything but 1 is somebody else's doing.
        problem: why its pod does not start, in a few words; None: nothing is wrong.
        lost: its pod's node is silent.
        crashing: its executor had registered and dies again and again: it waits to be started again, or to be ready.
        pods: uids of the pods that exist, terminating ones included.
        gone: uids of pods that certainly do not run any more (deleted or terminal, as the API server itself says).
        executor: what the database knows; None: it is silent.
        phase: where it stands, by all of this.
    """

    name: str
    index: int
    uid: str | None = None
    template: str = ""
    replicas: int = 1
    problem: str | None = None
    lost: bool = False
    crashing: bool = False
    pods: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    executor: ObservedExecutor | None = None
    phase: Phase = field(init=False)

    def __post_init__(self) -> None:
        # Once, because a decision about thousands of slots asks for it a dozen times.
        object.__setattr__(self, "phase", self._phase())

    def _phase(self) -> Phase:
        executor = self.executor
        if executor is None:
            return Phase.GOING if self.uid is None else Phase.UNKNOWN
        if self.uid is None:
            return Phase.DRAINING if executor.alive else Phase.GOING
        if executor.retired_at is not None or (executor.alive and executor.draining):
            return Phase.DRAINING if executor.alive else Phase.RETIRED
        if self.crashing and not self.lost:  # (the database may not have found out yet)
            return Phase.CRASHING
        if executor.alive:
            return Phase.BUSY if executor.held else Phase.IDLE
        return Phase.LOST if self.lost else Phase.PENDING

    @property
    def is_forgotten(self) -> bool:
        """Nothing of it is left, in the cluster nor in the database, but the memory of pods that ended."""
        return self.phase is Phase.GOING and self.executor == ObservedExecutor() and not self.pods

    @property
    def held(self) -> int:
        """Jobs that its executor holds, as far as is known."""
        return 0 if self.executor is None else self.executor.held


def takers(slots: Iterable[Slot]) -> list[Slot]:
    """The slots that take jobs, or will: those that start count as if they were there."""
    return [slot for slot in slots if slot.phase in _TAKERS]


def crashing(slots: Iterable[Slot]) -> list[Slot]:
    """The slots that are no capacity for now, and take up room: others are made beside them."""
    return [slot for slot in slots if slot.phase is Phase.CRASHING]


def draining(slots: Iterable[Slot]) -> list[Slot]:
    """The slots that finish what they run: they count against the most there may be, until they are gone."""
    return [slot for slot in slots if slot.phase is Phase.DRAINING]


def ready(slots: Iterable[Slot]) -> list[Slot]:
    """The slots that take jobs now."""
    return [slot for slot in slots if slot.phase in (Phase.IDLE, Phase.BUSY)]


def first_to_leave(slots: Iterable[Slot], template: str) -> list[Slot]:
    """The slots in the order in which they are let go.

    Pending before idle before busy; among these the outdated first, then who runs least, then the youngest.
    """
    known = [slot for slot in slots if slot.phase in _ORDER]
    return sorted(known, key=lambda slot: (_ORDER[slot.phase], slot.template == template, slot.held, -slot.index))


def free_indices(slots: Iterable[Slot]) -> Iterator[int]:
    """Indices that no slot has, the lowest first: a step that is repeated makes the same slots."""
    used = {slot.index for slot in slots if not slot.is_forgotten}
    return (index for index in count() if index not in used)
