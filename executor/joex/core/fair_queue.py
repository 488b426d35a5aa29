"""A queue whose takes cost the logarithm of the number of its groups.

The simulator takes jobs from it. `joex.core.fairness.take` specifies which job is next, and property tests hold this
implementation to it. Each level has a sorted list of the groups with runnable work, and bisection finds the next group
after the cursor. (An insertion moves the rest of the list: for ten thousand groups in less than a microsecond.)
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from joex.core.fairness import Cursor, Group
from joex.core.priority_turns import CountingScheme


class Lane(enum.IntEnum):
    """The lane of a runnable job within its group."""

    DUE = 0
    HIGH = 1
    LOW = 2


class FairQueue:
    """The groups of a queue, each at its own place, and the cursor.

    Jobs are numbers: the smaller one comes first. The three lanes of each group are heaps. Callers may change a group
    (its weight, its limit, its pause), and must call `settle` afterwards.
    """

    def __init__(self, groups: Iterable[Group], cursor: Cursor) -> None:
        self.cursor = cursor
        self._groups = {group.place: group for group in groups}
        self._rows: dict[int, list[int]] = {}  # by level: the places of runnable groups, sorted
        self._levels: list[int] = []  # a heap of the levels that have a row
        self._level_of: dict[int, int] = {}  # of the groups in a row
        self._waiting = sum(map(_waiting, self._groups.values()))
        self._restricted: set[int] = set()  # groups that were once paused or limited
        for group in self._groups.values():
            self.settle(group)

    @property
    def groups(self) -> Iterable[Group]:
        """All groups."""
        return self._groups.values()

    def group(self, place: int) -> Group:
        """The group at a place."""
        return self._groups[place]

    @property
    def has_work(self) -> bool:
        """Whether there is a runnable job."""
        return self._lowest() is not None

    @property
    def runnable(self) -> int:
        """The number of runnable jobs: without those of paused groups, and within each group's limit."""
        restricted = [self._groups[place] for place in self._restricted]
        return self._waiting - sum(_waiting(group) - runnable(group) for group in restricted)

    def submit(self, place: int, lane: Lane, job: int) -> None:
        """Add a runnable job to a group."""
        group = self._groups[place]
        heappush((group.due, group.high, group.low)[lane], job)
        self._waiting += 1
        self.settle(group)

    def ended(self, place: int) -> None:
        """An executor has finished a job of a group, or given it back."""
        group = self._groups[place]
        group.running -= 1
        self.settle(group)

    def settle(self, group: Group) -> None:
        """Move a changed group to the row of its level."""
        place = group.place
        if group.paused or group.max_running is not None:
            self._restricted.add(place)
        before = self._level_of.get(place)
        now = group.level if group.is_runnable else None
        if now == before:
            return
        if before is not None:
            row = self._rows[before]
            del row[bisect_left(row, place)]
        if now is None:
            del self._level_of[place]
            return
        self._level_of[place] = now
        if now not in self._rows:
            self._rows[now] = []
            heappush(self._levels, now)
        insort(self._rows[now], place)

    def take(self, free: int, scheme: CountingScheme) -> list[int]:
        """Take up to ``free`` jobs in the order of service, and update the cursor and the groups.

        It has the names and the rule of `joex.core.fairness.take`.
        """
        cursor, jobs = self.cursor, list[int]()
        here = self._groups.get(cursor.place)
        left = max((1 if here is None else here.weight) - cursor.served, 0)
        lowest, services, visit, last = self._lowest(), 0, 0, None
        while len(jobs) < free and (level := self._lowest()) is not None:
            goes_on = services < left and level == lowest
            place = self._next(level, cursor.place - 1 if goes_on else cursor.place)
            turn = level, place, goes_on
            visit = visit + 1 if turn == last else 1
            services += place == cursor.place
            last = turn
            group = self._groups[place]
            jobs.append(_next_job(group, scheme))
            group.running += 1
            self.settle(group)
        self._waiting -= len(jobs)
        if last is not None:
            is_same_visit = last[2] and services == len(jobs)
            served = cursor.served + services if is_same_visit else min(visit, 255)
            self.cursor = Cursor(last[1], served)
        return jobs

    def _lowest(self) -> int | None:
        """The lowest level with a runnable group; None: there is none."""
        while self._levels:
            level = self._levels[0]
            if self._rows[level]:
                return level
            heappop(self._levels)
            del self._rows[level]
        return None

    def _next(self, level: int, before: int) -> int:
        """The place of the next group on a level after this place, in a circle."""
        row = self._rows[level]
        nr = bisect_right(row, before)
        return row[nr] if nr < len(row) else row[0]


def _next_job(group: Group, scheme: CountingScheme) -> int:
    """The next job within a group, as in `joex.core.fairness`, from heaps."""
    if group.due:
        return heappop(group.due)
    if not (group.high and group.low):
        return heappop(group.high or group.low)
    lane = group.high if scheme.wants_high(group.turn) else group.low
    group.turn = (group.turn + 1) % scheme.cycle
    return heappop(lane)


def _waiting(group: Group) -> int:
    return len(group.due) + len(group.high) + len(group.low)


def runnable(group: Group) -> int:
    """The number of runnable jobs of a group."""
    return int(min(_waiting(group), room(group))) if group.is_runnable else 0


def room(group: Group) -> float:
    """How many jobs more of a group may run; infinity: it has no limit."""
    return inf if group.max_running is None else max(group.max_running - group.running, 0)
