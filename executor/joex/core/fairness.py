"""The choice of the next job: the executable specification of ``store/sql/30_take.sql``.

This code is short and slow on purpose: one job at a time, over all groups. The statement in the database takes a whole
batch in a few index probes, and `joex.core.fair_queue`, for the simulator, takes a job in the logarithm of the groups;
property tests hold both to this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from joex.core.priority_turns import CountingScheme


@dataclass(slots=True)
class Group:
    """The runnable work of a group, and its state.

    Attributes:
        place: its place on the ring.
        due: due retries (any values that stand for jobs), in order: by rank, then first submitted first; ``high`` and
            ``low`` likewise.
        running: how many of its jobs executors hold.
        weight: its share of the slots, against the weights of others.
        paused: executors take none of its jobs.
        max_running: executors take none of its jobs while they hold this many; None: no limit.
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
    ring after the cursor. A visit that is under way there goes on before all others, on the lowest level of all, until
    the group has had as many services as its weight; from then on it comes after all others.
    """
    here = next((group for group in groups if group.place == cursor.place), Group(cursor.place))
    left = max(here.weight - cursor.served, 0)  # services that the group under the cursor has left in this visit
    lowest = min((group.level for group in groups if group.is_runnable), default=0)
    before = cursor.place - 1 if left else cursor.place  # the ring begins after this place
    jobs: list[int] = []
    turns: list[_Turn] = []

    def turn(group: Group) -> _Turn:
        services = sum(place == group.place for *_, place in turns)
        is_over = group is here and left > 0 and (services >= left or group.level > lowest)
        return group.level, is_over, group.place <= before, group.place

    while len(jobs) < free and (runnable := [group for group in groups if group.is_runnable]):
        group = min(runnable, key=turn)
        turns.append(turn(group))
        jobs.append(_next_job(group, scheme))
        group.running += 1
    return jobs, _moved(cursor, left, turns)


_Turn: TypeAlias = tuple[int, bool, bool, int]
"""The sort key of a group: the smallest is served next; the last number is the group's place."""


def _next_job(group: Group, scheme: CountingScheme) -> int:
    """The next job within a group. The counting scheme is followed, and moves on, while both priorities wait."""
    if group.due:
        return group.due.pop(0)
    if not (group.high and group.low):
        return (group.high or group.low).pop(0)
    lane = group.high if scheme.wants_high(group.turn) else group.low
    group.turn = (group.turn + 1) % scheme.cycle
    return lane.pop(0)


def _moved(cursor: Cursor, left: int, turns: list[_Turn]) -> Cursor:
    """The cursor after a call: at the last group served, with the services of this visit: those on its last level."""
    if not turns:
        return cursor
    _, is_over, _, place = turns[-1]
    if left and not is_over and all(other == cursor.place for *_, other in turns):
        return Cursor(place, cursor.served + len(turns))
    return Cursor(place, min(turns.count(turns[-1]), 255))
