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
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from joex.client.client import Client
from joex.console.standings import Queue, queues_of
from joex.core.access import Bounds
from joex.errors import ConfigError, DatabaseUnavailable
from joex.http.connection_shares import holding_as
from joex.store import executors, stats
from joex.store.executors import Executor
from joex.store.statement import Connection
from joex.store.stats import GroupSetting, GroupStats

Found = TypeVar("Found")
_log = logging.getLogger("joex")

SHORTEST_PAUSE = 2.0
"""Seconds from the end of a reading to the beginning of the next one, at least."""
SHARE = 0.01
"""The part of the time that the server reads, at most."""
SHARE_AFTER_ACTS = 0.2
"""The part of the time that readings take while they fail, or while users change something.

Each of these users waits, up to `CHANGE_WITHIN`, for what it has changed.
"""
PATIENCE = 0.2
"""Seconds for which a viewer waits for a new snapshot; one that takes longer is for the next viewers."""
CHANGE_WITHIN = 0.75
"""Seconds for which a user waits at most for a snapshot with what it has changed.

The tenants with the most groups set what a snapshot costs: no page of others may take a second longer for that.
"""
OVERDUE = 10.0
"""Seconds after which a reading is overdue, or three times as long as the last one: a silent link fails much later."""
HISTORY = timedelta(hours=1)
_MOST_EXECUTORS = 10_000
_MINUTE = timedelta(minutes=1)


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
    _found: dict[Hashable, asyncio.Task[Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    async def within(self, bounds: Bounds) -> Snapshot:
        """What viewers with these bounds see of it."""
        return await self._once(bounds, partial(self._within, bounds)) if bounds.are_set else self

    async def once(self, find: Callable[[Snapshot], Found]) -> Found:
        """What this function finds in it, which is sought once for all who ask."""
        return await self._once(find, partial(find, self))

    async def _once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        if key not in self._found:  # (In a thread: of 100,000 queues it takes a second.)
            self._found[key] = asyncio.create_task(asyncio.to_thread(find))
            self._found[key].add_done_callback(_retrieve)
        found: Found = await asyncio.shield(self._found[key])
        return found

    def _within(self, bounds: Bounds) -> Snapshot:
        seen = {name: queue.within(bounds) for name, queue in self.queues.items()}
        queues = {name: queue for name, queue in seen.items() if queue is not None}
        sees_ends = bounds.groups is None
        ended = Counter({key: jobs for key, jobs in self.ended.items() if sees_ends and bounds.holds(key[0], "")})
        return Snapshot(self.number, self.at, queues, (), ended)


class Snapshots:
    """Reads snapshots, one at a time.

    Args:
        client: reads them.
        clock: seconds that never go back.
        closing: set when the console closes.
    """

    def __init__(
        self, client: Client, clock: Callable[[], float] = time.monotonic, closing: asyncio.Event | None = None
    ) -> None:
        self._client = client
        self._clock = clock
        self._closing = closing or asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._current: Snapshot | None = None
        self._next_at = self._begun = self._cost = 0.0
        self._may_read_at = 0.0
        self._changes = self._seen = 0
        self._changes_of: dict[str, int] = {}  # the last one of each caller that no snapshot has
        self._places: dict[str, int] = {}
        self._trouble: Exception | None = None

    async def get(self, caller: str = "") -> Snapshot:
        """The latest snapshot. While the database is away, it is the last one that could be read.

        Args:
            caller: the key of the user who sees it: it has what this user has changed, if that is soon, or `why_old`
                says that it has not.

        Raises:
            DatabaseUnavailable, ConfigError: none could be read yet.
        """
        changes, until = self._changes_of.get(caller, 0), self._clock() + CHANGE_WITHIN
        if self._current is None:
            await asyncio.shield(self._read_again())
        if self._current is None:
            assert self._trouble is not None  # noqa: S101 - there is one or the other
            raise self._trouble
        while self._seen < changes:
            left = until - self._clock()
            pause = 0.0 if self._is_reading else max(0.0, self._may_read_at - self._clock())
            if pause >= left:
                break
            with suppress(TimeoutError):
                if pause:
                    await asyncio.wait_for(self._closing.wait(), pause)
                    break
                await asyncio.wait_for(asyncio.shield(self._read_again()), left)
                if self._trouble is not None:
                    break
        if self._clock() >= (self._next_at if self._seen == self._changes else self._may_read_at):
            await asyncio.wait({self._read_again()}, timeout=max(0.0, min(PATIENCE, until - self._clock())))
        return self._current

    def why_old(self, caller: str) -> str | None:
        """Why the latest snapshot is older than it should be for this user; None: it is not."""
        if self._trouble is not None:
            is_away = isinstance(self._trouble, DatabaseUnavailable)
            return f"The database {'is away' if is_away else 'can not be used'}: reconnecting"
        if self._is_reading and self._clock() - self._begun >= max(OVERDUE, 3 * self._cost):
            return "The database has not answered for a while: reconnecting"
        return "Your last change does not show yet" if self._seen < self._changes_of.get(caller, 0) else None

    def expire(self, caller: str) -> None:
        """This user has changed something, and waits for a snapshot that is younger than this."""
        self._changes += 1
        self._changes_of[caller] = self._changes

    @property
    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    def _read_again(self) -> asyncio.Task[None]:
        """The reading that is under way, or a new one."""
        if self._reading is None or not self._is_reading:
            self._reading = asyncio.create_task(self._read_now(), name="joex console snapshot")
            self._reading.add_done_callback(_retrieve)
        return self._reading

    async def _read_now(self) -> None:
        self._begun, changes = self._clock(), self._changes
        try:
            # (It is for all viewers: one that waited for the turn of the one who asks would keep it from others.)
            with holding_as(None):
                async with self._client.using() as connection:
                    self._current, self._trouble = await self._read(connection), None
            self._seen = changes
            self._changes_of = {one: change for one, change in self._changes_of.items() if change > changes}
        except (DatabaseUnavailable, ConfigError) as error:
            self._trouble = error
        self._may_read_at = self._begun + (self._clock() - self._begun) / SHARE_AFTER_ACTS
        # (A reading that fails after half a minute may have met a silent link, and have cost the server nothing.)
        next_at = self._begun + self._cost / SHARE if self._trouble is None else self._may_read_at
        self._next_at = max(next_at, self._begun + SHORTEST_PAUSE)

    async def _read(self, connection: Connection) -> Snapshot:
        last = self._current
        now = await stats.now(connection)
        # (A job's end is visible after its commit: read the last minute again.)
        since = now - HISTORY if last is None else max(_minute(last.at) - _MINUTE, now - HISTORY)
        ended = await stats.ended_by_minute(connection, _minute(since), now)
        groups = await stats.every_group(connection)
        settings = await stats.every_group_setting(connection)
        # (In threads: of 100,000 groups or queues it takes a second, in which other viewers are served.)
        groups, self._places, missing = await asyncio.to_thread(_all_groups, groups, settings, self._places)
        if missing:
            self._places |= await stats.places(connection, missing)
        cursors = await stats.cursors(connection)
        living = await executors.list_executors(connection, most=_MOST_EXECUTORS)
        of_workers = await stats.queues_of_workers(connection)
        paused = {one.queue: one for one in await stats.paused_queues(connection)}
        self._cost = self._clock() - self._begun  # of the server; what follows is this process's own
        queues = await asyncio.to_thread(
            queues_of, groups, living, of_workers, paused, cursors=cursors, places=self._places
        )
        merged = await asyncio.to_thread(_merged, last, ended, _minute(since), _minute(now - HISTORY))
        return Snapshot(1 if last is None else last.number + 1, now, queues, living, merged)


def _retrieve(reading: asyncio.Task[Any]) -> None:
    """Log what went wrong that is not the database's trouble: perhaps nobody waits for it any more."""
    if not reading.cancelled() and (error := reading.exception()) is not None:
        _log.error("the statistics can't be read", exc_info=error)


def _all_groups(
    groups: Sequence[GroupStats], settings: Sequence[GroupSetting], places: dict[str, int]
) -> tuple[list[GroupStats], dict[str, int], list[str]]:
    """The groups, with those that only have settings; which of their places are known; and the names of the others."""
    known = {(one.queue, one.group) for one in groups}
    without_jobs = [
        GroupStats(one.queue, one.group, 0, 0, 0, 0, 0, None, one.weight, one.paused, one.max_running, one.max_waiting)
        for one in settings
        if (one.queue, one.group) not in known
    ]
    names = {one.group for one in (*groups, *without_jobs)}
    kept = {name: places[name] for name in names if name in places}
    return [*groups, *without_jobs], kept, [name for name in names if name not in kept]


def _merged(
    last: Snapshot | None, ended: Sequence[stats.Ended], since: datetime, first: datetime
) -> Counter[tuple[str, str, datetime]]:
    """What was known of the minutes before ``since``, from ``first`` on, and what was read of those after."""
    known = Counter() if last is None else last.ended
    kept = {key: jobs for key, jobs in known.items() if first <= key[2] < since}
    return Counter(kept | {(one.queue, one.state, one.minute): one.jobs for one in ended})


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)
