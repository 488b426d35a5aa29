"""Numbers and settings of queues and groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from joex.core.access import EVERYTHING, Bounds
from joex.core.fairness import Cursor
from joex.store.errors import translated
from joex.store.statement import Connection, planned_anew, statement

_QUEUES = statement("""
    SELECT queue, waiting, deferred, scheduled, running, stuck, oldest_runnable_seconds, groups, paused
    FROM joex.queue_stats ORDER BY queue
""")
# (As the view joex.queue_stats, of the groups and queues that a caller may reach.)
_QUEUES_WITHIN = planned_anew("""
    SELECT queue, sum(waiting)::bigint, sum(deferred)::bigint, sum(scheduled)::bigint, sum(running)::bigint,
           sum(stuck)::bigint, max(oldest_runnable_seconds) FILTER (
               WHERE NOT paused AND (max_running IS NULL OR scheduled + running < max_running)
                     AND queue <> ALL (ARRAY(SELECT name FROM joex_private.queue WHERE paused_at IS NOT NULL))),
           count(*), queue = ANY (ARRAY(SELECT name FROM joex_private.queue WHERE paused_at IS NOT NULL))
    FROM joex.group_stats WHERE ($1::text[] IS NULL OR queue = ANY ($1)) AND ($2::text[] IS NULL OR grp = ANY ($2))
    GROUP BY queue ORDER BY queue
""")
_SHARES = statement("""
    SELECT queue, active_groups, largest_group, largest_share, median_wait_seconds, longest_wait_seconds, groups_behind,
           behind_seconds
    FROM joex.shares() ORDER BY queue
""")
_GROUPS = planned_anew("""
    SELECT queue, grp, waiting, deferred, scheduled, running, stuck, oldest_runnable_seconds, weight, paused,
           max_running, max_waiting
    FROM joex.group_stats
    WHERE ($1::text[] IS NULL OR queue = ANY ($1)) AND ($2::text[] IS NULL OR grp = ANY ($2))
    ORDER BY waiting + running DESC, queue, grp LIMIT $3::integer
""")
_NOW = statement("SELECT clock_timestamp()")
# Two parts, as there are two indexes; and with two ends, so that no planner takes this for a large part of the table.
_FINISHED = statement("""
    SELECT queue, count(*) FROM (
        SELECT queue FROM joex_private.job
        WHERE finished_at > $1::timestamptz AND finished_at <= $2::timestamptz AND key IS NULL
        UNION ALL
        SELECT queue FROM joex_private.job
        WHERE finished_at > $1::timestamptz AND finished_at <= $2::timestamptz AND key IS NOT NULL
    ) ended GROUP BY queue
""")
_ENDED = statement("""
    SELECT queue, state::text, date_trunc('minute', finished_at) AS minute, count(*) FROM (
        SELECT queue, state, finished_at FROM joex_private.job
        WHERE finished_at >= $1::timestamptz AND finished_at <= $2::timestamptz AND key IS NULL
        UNION ALL
        SELECT queue, state, finished_at FROM joex_private.job
        WHERE finished_at >= $1::timestamptz AND finished_at <= $2::timestamptz AND key IS NOT NULL
    ) ended GROUP BY 1, 2, 3
""")
_PLACES = statement("SELECT name, joex_private.ring(name) FROM unnest($1::text[]) AS given(name)")
# (Before the first take of an executor from a queue its role may not read the sequence.)
_CURSORS = statement("""
    SELECT name, CASE WHEN has_sequence_privilege(cursor, 'SELECT') THEN pg_sequence_last_value(cursor) END
    FROM joex_private.queue
""")
_QUEUES_OF_WORKERS = statement("""
    SELECT DISTINCT queue FROM joex_private.watch WHERE for_workers AND until > clock_timestamp()
""")
_SETTINGS = planned_anew("""
    SELECT queue, grp, weight, paused, max_running, max_waiting FROM joex_private.group_setting
    WHERE ($1::text[] IS NULL OR queue = ANY ($1)) AND ($2::text[] IS NULL OR grp = ANY ($2))
    ORDER BY queue, grp LIMIT $3::integer
""")
_SET_GROUP = statement(
    "SELECT joex.set_group($1::text, $2::text, $3::integer, $4::boolean, $5::integer, max_waiting => $6::integer)"
)
_PAUSED = planned_anew("""
    SELECT name, paused_at, paused_by FROM joex_private.queue
    WHERE paused_at IS NOT NULL AND ($1::text[] IS NULL OR name = ANY ($1))
          AND ($2::text[] IS NULL OR name IN (SELECT queue FROM joex.group_stats WHERE grp = ANY ($2))) ORDER BY name
""")
_SET_QUEUE = statement("SELECT joex.set_queue($1::text, $2::boolean)")
_EVERY_GROUP = 2**31 - 1
_PIECE = 1_000
"""Rows that are read before others have the event loop."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How the slots of a queue are shared between its groups.

    Attributes:
        active_groups: groups that hold slots, or of which a job could be taken now.
        largest_group, largest_share: the group that holds the most slots, and its part of those held, 0 to 1;
            None: no group holds any.
        median_wait_seconds, longest_wait_seconds: over the groups of which a job could be taken now, the median and the
            longest time that the group's next job has waited; None: there is no such group.
        groups_behind, behind_seconds: how many of these are two levels or more below another group, and the longest
            time that the next job of one of them has waited.
    """

    queue: str
    active_groups: int
    largest_group: str | None
    largest_share: float | None
    median_wait_seconds: float | None
    longest_wait_seconds: float | None
    groups_behind: int
    behind_seconds: float | None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Unfinished jobs of a queue. ``waiting`` may run now, ``deferred`` not before a time.

    ``paused``: no job of it begins. ``shares``: None where no group is active, or they were not asked for.
    """

    queue: str
    waiting: int
    deferred: int
    scheduled: int
    running: int
    stuck: int
    oldest_runnable_seconds: float | None
    groups: int
    paused: bool = False
    shares: Shares | None = None


@dataclass(frozen=True, slots=True)
class PausedQueue:
    """A queue that is paused, since when, and the role or token that has paused it; None: the caller may not know."""

    queue: str
    since: datetime
    by: str | None


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Unfinished jobs of a group in a queue, and its settings."""

    queue: str
    group: str
    waiting: int
    deferred: int
    scheduled: int
    running: int
    stuck: int
    oldest_runnable_seconds: float | None
    weight: int
    paused: bool
    max_running: int | None
    max_waiting: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    """How many jobs of a queue have ended in a state within a minute, which begins at ``minute``."""

    queue: str
    state: str
    minute: datetime
    jobs: int


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """The settings of a group in a queue."""

    queue: str
    group: str
    weight: int
    paused: bool
    max_running: int | None
    max_waiting: int | None


async def queue_stats(connection: Connection) -> list[QueueStats]:
    """The queues that have unfinished jobs."""
    with translated():
        return [QueueStats(*row) for row in await connection.fetch(_QUEUES)]


async def queue_shares(connection: Connection) -> list[Shares]:
    """How the slots of the queues are shared; its cost grows with the active groups, not with the jobs."""
    with translated():
        return [Shares(*row) for row in await connection.fetch(_SHARES)]


async def shared_queue_stats(connection: Connection, bounds: Bounds = EVERYTHING) -> list[QueueStats]:
    """The queues that have unfinished jobs, and how their slots are shared; not within groups, as others have slots."""
    if not bounds.are_set:
        queues = await queue_stats(connection)
    else:
        with translated():
            rows = await connection.fetch(_QUEUES_WITHIN, bounds.queues, bounds.groups)
        queues = [QueueStats(*row) for row in rows]
    if bounds.groups is not None:
        return queues
    shares = {one.queue: one for one in await queue_shares(connection)}
    return [replace(one, shares=shares.get(one.queue)) for one in queues]


async def now(connection: Connection) -> datetime:
    """The time of the database's clock, which gives jobs their times."""
    with translated():
        found: datetime = await connection.fetchval(_NOW)
    return found


async def finished_between(connection: Connection, after: datetime, until: datetime) -> dict[str, int]:
    """How many jobs of each queue have ended in this time; reads only these."""
    with translated():
        return {row[0]: row[1] for row in await connection.fetch(_FINISHED, after, until)}


async def ended_by_minute(connection: Connection, since: datetime, until: datetime) -> list[Ended]:
    """How many jobs of each queue have ended, minute by minute, in this time; reads only these."""
    with translated():
        rows = await connection.fetch(_ENDED, since, until)
    return [Ended(*row) async for row in _in_pieces(rows)]


async def places(connection: Connection, groups: Sequence[str]) -> dict[str, int]:
    """The places of groups on the rings of all queues. They never change."""
    with translated():
        rows = await connection.fetch(_PLACES, groups)
    return {row[0]: row[1] async for row in _in_pieces(rows)}


async def queues_of_workers(connection: Connection) -> set[str]:
    """The queues for whose jobs workers wait in an accept."""
    with translated():
        return {row[0] for row in await connection.fetch(_QUEUES_OF_WORKERS)}


async def cursors(connection: Connection) -> dict[str, Cursor]:
    """The ring cursors of the queues; a queue from which no executor has taken anything yet has none."""
    with translated():
        rows = await connection.fetch(_CURSORS)
    return {name: Cursor(value >> 8, value & 255) for name, value in rows if value is not None}


async def group_stats(
    connection: Connection, queue: str | None = None, most: int = 100, bounds: Bounds = EVERYTHING
) -> list[GroupStats]:
    """The groups that have unfinished jobs, the largest first."""
    within = bounds.narrowed(queue)
    with translated():
        rows = await connection.fetch(_GROUPS, within.queues, within.groups, most)
    return [GroupStats(*row) for row in rows]


async def group_settings(
    connection: Connection, queue: str | None = None, most: int = 1000, bounds: Bounds = EVERYTHING
) -> list[GroupSetting]:
    """The groups that have settings of their own."""
    within = bounds.narrowed(queue)
    with translated():
        rows = await connection.fetch(_SETTINGS, within.queues, within.groups, most)
    return [GroupSetting(*row) for row in rows]


async def every_group(connection: Connection) -> list[GroupStats]:
    """All groups that have unfinished jobs, the largest first; other tasks go on meanwhile."""
    with translated():
        rows = await connection.fetch(_GROUPS, None, None, _EVERY_GROUP)
    return [GroupStats(*row) async for row in _in_pieces(rows)]


async def every_group_setting(connection: Connection) -> list[GroupSetting]:
    """All groups that have settings of their own; other tasks go on meanwhile."""
    with translated():
        rows = await connection.fetch(_SETTINGS, None, None, _EVERY_GROUP)
    return [GroupSetting(*row) async for row in _in_pieces(rows)]


async def paused_queues(connection: Connection, bounds: Bounds = EVERYTHING) -> list[PausedQueue]:
    """The queues that are paused, with jobs or without.

    A bounded caller does not learn which role or token has paused them. A caller that is bound to groups sees only
    queues in which these have unfinished jobs, because the names of others are no concern of it.
    """
    with translated():
        rows = await connection.fetch(_PAUSED, bounds.queues, bounds.groups)
    return [PausedQueue(name, since, None if bounds.are_set else by) for name, since, by in rows]


async def set_queue(connection: Connection, queue: str, *, paused: bool) -> None:
    """Pause a queue, or resume it."""
    with translated():
        await connection.execute(_SET_QUEUE, queue, paused)


async def set_group(
    connection: Connection,
    group: str,
    queue: str,
    *,
    weight: int | None = None,
    paused: bool | None = None,
    max_running: int | None = None,
    max_waiting: int | None = None,
) -> None:
    """Change settings of a group; None leaves one as it is, and -1 removes a limit."""
    with translated():
        await connection.execute(_SET_GROUP, group, queue, weight, paused, max_running, max_waiting)


async def _in_pieces(rows: Sequence[Any]) -> AsyncIterator[Any]:
    """The rows; others have the event loop between pieces of them: those of 100,000 groups take a fifth of a second."""
    for nr, row in enumerate(rows, start=1):
        yield row
        if nr % _PIECE == 0:
            await asyncio.sleep(0)
