"""Which job is next: the executable specification of ``store/sql/30_take.sql``.

This code is short and slow on purpose: one job at a time, over all groups. The statement in the database takes a whole
batch in a few index probes; property tests hold it to this, and the simulator runs on this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from joex.core.counting import CountingScheme


@dataclass(slots=True)
class Group:
    """The runnable work of a group, and what is known of it.

    Attributes:
        place: its place on the ring.
        due: due retries (any values that stand for jobs), first submitted first; ``high`` and ``low`` likewise.
        running: how many of its jobs executors hold.
        weight: its share of the slots, against the weights of others.
        paused: nothing of it is taken.
        max_running: nothing of it is taken while that many are held; None: no limit.
        turn: where it stands in the counting scheme.
    """

    place: int
    due: list[int] = field(default_factory=list)
    high: list[int] = field(default_factory=list)
    low: list[int] = field(default_factory=list)
    running: int = 0
    weight: int = 1
    paused: bool = False
    max_running: int | None = None
    turn: int = 0

    @property
    def is_runnable(self) -> bool:
        """Whether a job may be taken from it now."""
        below_limit = self.max_running is None or self.running < self.max_running
        return bool(self.due or self.high or self.low) and not self.paused and below_limit

    @property
    def level(self) -> int:
        """How full the group is, in whole shares: the lowest level is served first."""
        return self.running // self.weight


@dataclass(frozen=True, slots=True)
class Cursor:
    """The group that was served last, and how many services it had in this visit."""

    place: int
    served: int


def take(groups: list[Group], cursor: Cursor, free: int, scheme: CountingScheme) -> tuple[list[int], Cursor]:
    """Take up to ``free`` jobs from the groups, in the order of service; the groups are changed accordingly.

    Each job comes from the runnable group on the lowest level; on equal levels, from the one that comes first on the
    ring after the cursor. The group under the cursor comes before all others for as many services as its weight.
    """
    left = {g.place: g.weight - cursor.served for g in groups if g.place == cursor.place}
    visit_left = max(left.get(cursor.place, 1 - cursor.served), 0)
    first_place = cursor.place - 1 if visit_left else cursor.place
    mixed = {g.place: _Mixed(scheme, g.turn) for g in groups if g.high and g.low}
    taken: list[tuple[int, Group, int]] = []  # job, group, the level it was taken on
    services: dict[int, int] = {}

    def order(group: Group) -> tuple[int, bool, bool, int]:
        used_up = bool(visit_left) and group.place == cursor.place and services.get(group.place, 0) >= visit_left
        return group.level, used_up, group.place <= first_place, group.place

    while len(taken) < free:
        runnable = [g for g in groups if g.is_runnable]
        if not runnable:
            break
        group = min(runnable, key=order)
        level = group.level
        taken.append((_next_job(group, mixed.get(group.place)), group, level))
        group.running += 1
        services[group.place] = services.get(group.place, 0) + 1
    for group in groups:
        if group.place in mixed:
            group.turn = mixed[group.place].turn
    return [job for job, _, _ in taken], _moved(cursor, visit_left, taken)


class _Mixed:
    """The counting scheme at work in a group where, when the call began, both priorities waited."""

    def __init__(self, scheme: CountingScheme, turn: int) -> None:
        self.scheme = scheme
        self.turn = turn % scheme.cycle
        self._followed = True

    def lane(self, group: Group) -> list[int]:
        """The lane that the scheme wants or, where that is empty, the other one."""
        wanted, other = (group.high, group.low) if self.scheme.wants_high(self.turn) else (group.low, group.high)
        # Once a priority is used up there is nothing left to count.
        self._followed = self._followed and bool(wanted)
        if self._followed:
            self.turn = (self.turn + 1) % self.scheme.cycle
        return wanted or other


def _next_job(group: Group, mixed: _Mixed | None) -> int:
    if group.due:
        return group.due.pop(0)
    if mixed is not None:
        return mixed.lane(group).pop(0)
    return (group.high or group.low).pop(0)


def _moved(cursor: Cursor, visit_left: int, taken: list[tuple[int, Group, int]]) -> Cursor:
    """The cursor after a call: at the last group served, with its services on the level it was served on last."""
    if not taken:
        return cursor
    _, last, level = taken[-1]
    served = sum(1 for _ in _visit(taken, last, level))
    if visit_left and all(g is last for _, g, _ in taken) and last.place == cursor.place and len(taken) <= visit_left:
        served += cursor.served
    return Cursor(last.place, min(served, 255))


def _visit(taken: list[tuple[int, Group, int]], last: Group, level: int) -> Iterator[int]:
    return (job for job, group, on in taken if group is last and on == level)
