"""The statistics of all queues as of one moment, which all viewers of a console share.

A snapshot is read when a viewer asks for one and the last one is old enough: without viewers the console reads nothing.
The pause between two grows with how long the server took for the last one, so that it spends at most a hundredth of the
time on them, however large the queues are and however many viewers there are. (`joex.console.pace` has the rest.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property

from joex.client.client import Client
from joex.console.shares import Want, fair_shares
from joex.core.access import Bounds
from joex.core.fairness import Cursor
from joex.errors import ConfigError, DatabaseUnavailable
from joex.store import executors, stats
from joex.store.executors import Executor
from joex.store.statement import Connection
from joex.store.stats import GroupStats, PausedQueue

_log = logging.getLogger("joex")

SHORTEST_PAUSE = 2.0
"""Seconds from the end of a reading to the beginning of the next one, at least."""
SHARE = 0.01
"""The part of the time that the server reads, at most."""
PATIENCE = 0.2
"""Seconds for which a viewer waits for a new snapshot; one that takes longer is for the next viewers."""
OVERDUE = 10.0
"""Seconds after which a reading is overdue, or three times as long as the last one: a silent link fails much later."""
HISTORY = timedelta(hours=1)
_EVERY_GROUP = 2**31 - 1
_MOST_EXECUTORS = 10_000
_MINUTE = timedelta(minutes=1)


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


@dataclass(frozen=True)
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
        return self.stats.scheduled + self.stats.running

    @property
    def level(self) -> float:
        """Its slots in units of its weight: a take serves the lowest level first."""
        return self.held / self.stats.weight


@dataclass(frozen=True)
class Queue:
    """A queue with its groups in the order of the ring, from the cursor on.

    ``slots``, ``executors``: of those that serve it and do not drain; None for viewers who may not see them.
    ``paused``: None: it is not.
    """

    name: str
    groups: Sequence[Group]
    slots: int | None
    executors: int | None
    paused: PausedQueue | None = None

    @cached_property
    def sums(self) -> Counter[str]:
        """The jobs of its groups by place: waiting, deferred, scheduled, running, stuck."""
        sums: Counter[str] = Counter()
        for one in self.groups:
            found = one.stats
            sums.update(
                waiting=found.waiting, deferred=found.deferred, scheduled=found.scheduled, running=found.running,
                stuck=found.stuck,
            )  # fmt: skip
        return sums

    @property
    def held(self) -> int:
        """The slots in use."""
        return self.sums["scheduled"] + self.sums["running"]

    @cached_property
    def oldest(self) -> float | None:
        """Seconds that the oldest job has waited that nothing but its turn holds up; as in joex.queue_stats."""
        open_ones = [one for one in self.groups if one.standing not in {Standing.PAUSED, Standing.AT_LIMIT}]
        return max((wait for one in open_ones if (wait := one.stats.oldest_runnable_seconds) is not None), default=None)

    @cached_property
    def standings(self) -> Counter[Standing]:
        """How many groups stand how."""
        return Counter(one.standing for one in self.groups)

    def group(self, name: str) -> Group | None:
        """A group by its name."""
        return next((one for one in self.groups if one.stats.group == name), None)

    @cached_property
    def wants(self) -> Sequence[Want]:
        """What each of its groups could use."""
        return [want_of(one.stats) for one in self.groups]

    def with_settings(self, name: str, weight: int, most: int | None, *, paused: bool) -> dict[str, float]:
        """The fair shares of all groups if this one had these settings."""
        wants = [
            Want(want.jobs, weight, most, paused) if one.stats.group == name else want
            for one, want in zip(self.groups, self.wants, strict=True)
        ]
        shares = fair_shares(wants, self.slots or 0)
        return {one.stats.group: share for one, share in zip(self.groups, shares, strict=True)}


@dataclass(frozen=True)
class Snapshot:
    """The statistics.

    Attributes:
        number: grows by one with each snapshot of this process.
        at: the time, by the database's clock.
        queues: by name, in order.
        executors: those that live; empty for viewers who may not see them.
        ended: the jobs that ended within the last hour, by queue, state and minute.
    """

    number: int
    at: datetime
    queues: dict[str, Queue]
    executors: Sequence[Executor] = ()
    ended: Counter[tuple[str, str, datetime]] = field(default_factory=Counter)

    def within(self, bounds: Bounds) -> Snapshot:
        """What a viewer with these bounds sees of it."""
        if not bounds.are_set:
            return self
        queues = {}
        for name, queue in self.queues.items():
            groups = [replace(one, share=None) for one in queue.groups if bounds.holds(name, one.stats.group)]
            if bounds.groups is not None:
                groups = sorted(map(_alone, groups), key=lambda one: one.stats.group)
            if groups:
                paused = None if queue.paused is None else replace(queue.paused, by=None)
                queues[name] = Queue(name, groups, None, None, paused)
        sees_ends = bounds.groups is None
        ended = Counter({key: jobs for key, jobs in self.ended.items() if sees_ends and bounds.holds(key[0], "")})
        return Snapshot(self.number, self.at, queues, (), ended)


_TELL_OF_OTHERS = frozenset({Standing.BEHIND, Standing.NEXT})


def _alone(one: Group) -> Group:
    """A group as a viewer sees it who may not see the others."""
    standing = Standing.WAITS if one.standing in _TELL_OF_OTHERS else one.standing
    return replace(one, place=0, turn=None, standing=standing)


class Snapshots:
    """Reads snapshots, one at a time.

    Args:
        client: reads them.
        clock: seconds that never go back.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._reading: asyncio.Task[None] | None = None
        self._current: Snapshot | None = None
        self._next_at = self._begun = self._cost = 0.0
        self._changes = self._seen = 0
        self._places: dict[str, int] = {}
        self._trouble: Exception | None = None

    async def get(self) -> Snapshot:
        """The latest snapshot. While the database is away, it is the last one that could be read.

        Raises:
            DatabaseUnavailable, ConfigError: none could be read yet.
        """
        changes = self._changes
        while self._current is None or self._seen < changes:
            await asyncio.shield(self._read_again())
            if self._trouble is not None:
                break
        if self._current is None:
            assert self._trouble is not None  # noqa: S101 - there is one or the other
            raise self._trouble
        if self._clock() >= self._next_at:
            await asyncio.wait({self._read_again()}, timeout=PATIENCE)
        return self._current

    @property
    def why_old(self) -> str | None:
        """Why the latest snapshot is older than it should be; None: it is not."""
        if self._trouble is not None:
            return "The database is away"
        is_reading = self._reading is not None and not self._reading.done()
        if is_reading and self._clock() - self._begun >= max(OVERDUE, 3 * self._cost):
            return "The database has not answered for a while"
        return None

    def expire(self) -> None:
        """From now on, viewers see a snapshot that is younger than this: something was changed."""
        self._changes += 1

    def _read_again(self) -> asyncio.Task[None]:
        """The reading that is under way, or a new one."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_now(), name="joex console snapshot")
            self._reading.add_done_callback(_retrieve)
        return self._reading

    async def _read_now(self) -> None:
        self._begun, changes = self._clock(), self._changes
        try:
            async with self._client.using() as connection:
                self._current, self._trouble = await self._read(connection), None
            self._seen = changes
        except (DatabaseUnavailable, ConfigError) as error:
            self._trouble, self._cost = error, self._clock() - self._begun
        self._next_at = self._begun + max(SHORTEST_PAUSE, self._cost / SHARE)

    async def _read(self, connection: Connection) -> Snapshot:
        last = self._current
        now = await stats.now(connection)
        # (A job's end is visible after its commit: read the last minute again.)
        since = now - HISTORY if last is None else max(_minute(last.at) - _MINUTE, now - HISTORY)
        ended = await stats.ended_by_minute(connection, _minute(since), now)
        groups = await stats.group_stats(connection, most=_EVERY_GROUP)
        settings = await stats.group_settings(connection, most=_EVERY_GROUP)
        known = {(one.queue, one.group) for one in groups}
        groups += [
            GroupStats(one.queue, one.group, 0, 0, 0, 0, 0, None, one.weight, one.paused, one.max_running,
                       one.max_waiting)
            for one in settings if (one.queue, one.group) not in known
        ]  # fmt: skip
        names = {one.group for one in groups}
        if missing := names - self._places.keys():
            self._places |= await stats.places(connection, sorted(missing))
        self._places = {name: place for name, place in self._places.items() if name in names}
        cursors = await stats.cursors(connection)
        living = await executors.list_executors(connection, most=_MOST_EXECUTORS)
        of_workers = await stats.queues_of_workers(connection)
        paused = {one.queue: one for one in await stats.paused_queues(connection)}
        self._cost = self._clock() - self._begun  # of the server; what follows is this process's own
        return Snapshot(
            1 if last is None else last.number + 1,
            now,
            _queues(groups, living, of_workers, paused, cursors=cursors, places=self._places),
            living,
            _merged(last, ended, _minute(since), _minute(now - HISTORY)),
        )


def _retrieve(reading: asyncio.Task[None]) -> None:
    """Log what went wrong that is not the database's trouble: perhaps nobody waits for the reading any more."""
    if not reading.cancelled() and (error := reading.exception()) is not None:
        _log.error("the statistics can't be read", exc_info=error)


def want_of(one: GroupStats) -> Want:
    """What a group could use."""
    return Want(one.waiting + one.scheduled + one.running, one.weight, one.max_running, one.paused)


def _queues(
    groups: Sequence[GroupStats],
    living: Sequence[Executor],
    of_workers: set[str],
    paused: dict[str, PausedQueue],
    *,
    cursors: dict[str, Cursor],
    places: dict[str, int],
) -> dict[str, Queue]:
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
        found[name] = Queue(name, judged, slots, len(serving), paused.get(name))
    return found


def _in_order(groups: list[GroupStats], places: dict[str, int], cursor: Cursor) -> list[GroupStats]:
    """The groups in the order of the ring, from the cursor on (see `joex.core.fairness.take`)."""
    here = next((one for one in groups if places[one.group] == cursor.place), None)
    has_left = here is not None and cursor.served < here.weight
    before = cursor.place - 1 if has_left else cursor.place
    return sorted(groups, key=lambda one: (places[one.group] <= before, places[one.group]))


def _judged(
    groups: list[GroupStats], places: dict[str, int], slots: int, *, is_served: bool, is_paused: bool
) -> list[Group]:
    shares = fair_shares([want_of(one) for one in groups], slots)
    levels = [(one.scheduled + one.running) // one.weight for one in groups]
    highest = max(levels, default=0)
    open_ones = [
        nr for nr, one in enumerate(groups) if one.waiting and not (one.paused or is_paused) and not _is_full(one)
    ]
    turns = {nr: turn for turn, nr in enumerate(sorted(open_ones, key=lambda nr: (levels[nr], nr)), start=1)}
    return [
        Group(one, places[one.group], turns.get(nr), shares[nr],
              _standing(one, turns.get(nr), highest - levels[nr], is_served=is_served, is_paused=is_paused))
        for nr, one in enumerate(groups)
    ]  # fmt: skip


def _is_full(one: GroupStats) -> bool:
    return one.max_running is not None and one.scheduled + one.running >= one.max_running


_FAR_BEHIND = 2
"""Levels: as joex.shares() counts the groups that are behind."""


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
    return Standing.RUNS if one.scheduled + one.running else Standing.RESTS


def _merged(
    last: Snapshot | None, ended: Sequence[stats.Ended], since: datetime, first: datetime
) -> Counter[tuple[str, str, datetime]]:
    """What was known of the minutes before ``since``, from ``first`` on, and what was read of those after."""
    known = Counter() if last is None else last.ended
    kept = {key: jobs for key, jobs in known.items() if first <= key[2] < since}
    return Counter(kept | {(one.queue, one.state, one.minute): one.jobs for one in ended})


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
