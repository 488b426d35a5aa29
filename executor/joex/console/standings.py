"""How the groups of a queue stand: the order of their turns, their fair shares, and what each does or waits for.

Pure: `queues_of` judges what `joex.console.snapshot` has read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter

from joex.console.pieces import in_order
from joex.console.shares import Want, fair_shares
from joex.core.access import Bounds
from joex.core.fairness import Cursor
from joex.store.executors import Executor
from joex.store.stats import GroupStats, PausedQueue

_PLACES = ("waiting", "deferred", "scheduled", "running", "stuck")
_JOBS = attrgetter(*_PLACES)
_FAR_BEHIND = 2
"""Levels: as joex.shares() counts the groups that are behind."""


class Standing(StrEnum):
    """What a group waits for, or does."""

    PAUSED = "paused"
    UNSERVED = "unserved"
    AT_LIMIT = "at limit"
    BEHIND = "behind"
    WAITS = "waits"
    NEXT = "next"
    RUNS = "runs"
    RESTS = "rests"


_HELD_UP = (Standing.PAUSED, Standing.AT_LIMIT)


@dataclass(frozen=True, slots=True)
class Group:
    """A group of a queue.

    Attributes:
        stats: its jobs and settings.
        place: its place on the ring.
        turn: its place in the order in which takes serve the groups next, from 1 on; None: they take no job of it now.
        share: the slots that it would hold if all were shared fairly.
        standing: what it does, or waits for.

    ``turn`` and ``share`` are None for viewers who may not see the other groups.
    """

    stats: GroupStats
    place: int
    turn: int | None
    share: float | None
    standing: Standing

    @property
    def held(self) -> int:
        """The slots that it holds."""
        return _held(self.stats)

    @property
    def level(self) -> float:
        """Its slots in units of its weight: a take serves the lowest level first."""
        return self.held / self.stats.weight

    def alone(self) -> Group:
        """As a viewer sees it who may not see the others."""
        standing = Standing.WAITS if self.standing in {Standing.BEHIND, Standing.NEXT} else self.standing
        return replace(self, place=0, turn=None, standing=standing)


@dataclass(frozen=True)
class Queue:
    """A queue with its groups in the order of the ring, from the cursor on.

    ``slots``, ``executors``: of those that serve it and do not drain; None for viewers who may not see them.
    ``paused``: None: it is not.
    ``sums``: the jobs of its groups by place: waiting, deferred, scheduled, running, stuck.
    ``oldest``: seconds that the oldest job has waited that nothing but its turn holds up; as in joex.queue_stats.
    ``standings``: how many groups stand how. ``unfinished``: how many have unfinished jobs. ``turns``: how many have a
    turn.
    """

    name: str
    groups: Sequence[Group]
    by_name: Mapping[str, Group]
    slots: int | None
    executors: int | None
    paused: PausedQueue | None
    sums: Mapping[str, int]
    oldest: float | None
    standings: Counter[Standing]
    unfinished: int
    turns: int

    @property
    def held(self) -> int:
        """The slots in use."""
        return self.sums["scheduled"] + self.sums["running"]

    def group(self, name: str) -> Group | None:
        """A group by its name."""
        return self.by_name.get(name)

    def with_settings(self, group: Group, weight: int, most: int | None, *, paused: bool) -> list[float]:
        """The fair shares of all groups, in their order, if this one had these settings."""
        changed = replace(group.stats, weight=weight, max_running=most, paused=paused)
        return fair_shares([_want_of(changed if one is group else one.stats) for one in self.groups], self.slots or 0)

    def within(self, bounds: Bounds) -> Queue | None:
        """What a viewer with these bounds sees of it; None: nothing."""
        groups = [replace(one, share=None) for one in self.groups if bounds.holds(self.name, one.stats.group)]
        if bounds.groups is not None:
            groups = sorted((one.alone() for one in groups), key=lambda one: one.stats.group)
        paused = None if self.paused is None else replace(self.paused, by=None)
        return _queue(self.name, groups, None, None, paused) if groups else None


def queues_of(
    groups: Sequence[GroupStats],
    living: Sequence[Executor],
    of_workers: set[str],
    paused: dict[str, PausedQueue],
    *,
    cursors: dict[str, Cursor],
    places: dict[str, int],
) -> dict[str, Queue]:
    """The queues by name, in order: those with groups, those that executors or workers serve, and paused ones.

    ``places``: of the groups on the ring; ``cursors``: of the queues.
    """
    of_queues: dict[str, list[GroupStats]] = {name: [] for one in living for name in one.queues}
    of_queues |= {name: [] for name in (*of_workers, *paused)}
    for one in groups:
        of_queues.setdefault(one.queue, []).append(one)
    found = {}
    for name in sorted(of_queues):
        serving = [one for one in living if name in one.queues and one.state != "draining"]
        slots = sum(one.pool_size for one in serving)
        members = _in_order(of_queues[name], places, cursors.get(name, Cursor(-(2**63), 0)))
        is_served = bool(serving) or name in of_workers
        judged = _judged(members, places, slots, is_served=is_served, is_paused=name in paused)
        found[name] = _queue(name, judged, slots, len(serving), paused.get(name))
    return found


def _queue(
    name: str, groups: Sequence[Group], slots: int | None, executors: int | None, paused: PausedQueue | None
) -> Queue:
    """A queue with what it has of all its groups: who makes it does so beside the event loop, where pages read it."""
    jobs = [_JOBS(one.stats) for one in groups]
    sums = {place: sum(one[nr] for one in jobs) for nr, place in enumerate(_PLACES)}
    waits = [one.stats.oldest_runnable_seconds for one in groups if one.standing not in _HELD_UP]
    oldest = max((wait for wait in waits if wait is not None), default=None)
    standings, by_name = Counter(one.standing for one in groups), {one.stats.group: one for one in groups}
    unfinished, turns = sum(any(one) for one in jobs), sum(one.turn is not None for one in groups)
    return Queue(name, groups, by_name, slots, executors, paused, sums, oldest, standings, unfinished, turns)


def _in_order(groups: list[GroupStats], places: dict[str, int], cursor: Cursor) -> list[GroupStats]:
    """The groups in the order of the ring, from the cursor on (see `joex.core.fairness.take`)."""
    here = next((one for one in groups if places[one.group] == cursor.place), None)
    has_left = here is not None and cursor.served < here.weight
    before = cursor.place - 1 if has_left else cursor.place
    return list(in_order(groups, lambda one: (places[one.group] <= before, places[one.group])))


def _judged(
    groups: list[GroupStats], places: dict[str, int], slots: int, *, is_served: bool, is_paused: bool
) -> list[Group]:
    shares = fair_shares([_want_of(one) for one in groups], slots)
    levels = [_held(one) // one.weight for one in groups]
    highest = max(levels, default=0)
    open_ones = [
        nr for nr, one in enumerate(groups) if one.waiting and not (one.paused or is_paused) and not _is_full(one)
    ]
    turns = {nr: turn for turn, nr in enumerate(in_order(open_ones, levels.__getitem__), start=1)}
    return [
        Group(one, places[one.group], turns.get(nr), shares[nr],
              _standing(one, turns.get(nr), highest - levels[nr], is_served=is_served, is_paused=is_paused))
        for nr, one in enumerate(groups)
    ]  # fmt: skip


def _is_full(one: GroupStats) -> bool:
    return one.max_running is not None and _held(one) >= one.max_running


def _standing(one: GroupStats, turn: int | None, levels_below: int, *, is_served: bool, is_paused: bool) -> Standing:
    if one.paused or is_paused:
        return Standing.PAUSED
    if one.waiting and not is_served:
        return Standing.UNSERVED
    if one.waiting and _is_full(one):
        return Standing.AT_LIMIT
    if turn is not None and levels_below >= _FAR_BEHIND:
        return Standing.BEHIND
    if turn is not None:
        return Standing.NEXT if turn == 1 else Standing.WAITS
    return Standing.RUNS if _held(one) else Standing.RESTS


def _held(one: GroupStats) -> int:
    return one.scheduled + one.running


def _want_of(one: GroupStats) -> Want:
    return Want(one.waiting + _held(one), one.weight, one.max_running, one.paused)
