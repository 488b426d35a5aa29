"""Numbers and settings of queues and groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from joex.store.errors import translated
from joex.store.statement import Connection, statement

_QUEUES = statement("""
    SELECT queue, waiting, deferred, scheduled, running, stuck, oldest_runnable_seconds, groups FROM joex.queue_stats
    ORDER BY queue
""")
_SHARES = statement("""
    SELECT queue, active_groups, largest_group, largest_share, median_wait_seconds, longest_wait_seconds, groups_behind,
           behind_seconds
    FROM joex.shares() ORDER BY queue
""")
_GROUPS = statement("""
    SELECT queue, grp, waiting, deferred, scheduled, running, stuck, oldest_runnable_seconds, weight, paused,
           max_running, bucket
    FROM joex.group_stats WHERE $1::text IS NULL OR queue = $1
    ORDER BY waiting + running DESC, queue, grp LIMIT $2::integer
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
_SETTINGS = statement("""
    SELECT queue, grp, weight, paused, max_running FROM joex_private.group_setting
    WHERE $1::text IS NULL OR queue = $1 ORDER BY queue, grp LIMIT $2::integer
""")
_SET_GROUP = statement("SELECT joex.set_group($1::text, $2::text, $3::integer, $4::boolean, $5::integer)")


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

    ``shares``: None where no group is active, or they were not asked for.
    """

    queue: str
    waiting: int
    deferred: int
    scheduled: int
    running: int
    stuck: int
    oldest_runnable_seconds: float | None
    groups: int
    shares: Shares | None = None


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Unfinished jobs of a group in a queue, its settings, and its bucket (see `joex.core.group_bucket`)."""

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
    bucket: int


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """The settings of a group in a queue."""

    queue: str
    group: str
    weight: int
    paused: bool
    max_running: int | None


async def queue_stats(connection: Connection) -> list[QueueStats]:
    """The queues that have unfinished jobs."""
    with translated():
        return [QueueStats(*row) for row in await connection.fetch(_QUEUES)]


async def queue_shares(connection: Connection) -> list[Shares]:
    """How the slots of the queues are shared; its cost grows with the active groups, not with the jobs."""
    with translated():
        return [Shares(*row) for row in await connection.fetch(_SHARES)]


async def shared_queue_stats(connection: Connection) -> list[QueueStats]:
    """The queues that have unfinished jobs, and how their slots are shared."""
    shares = {one.queue: one for one in await queue_shares(connection)}
    return [replace(one, shares=shares.get(one.queue)) for one in await queue_stats(connection)]


async def now(connection: Connection) -> datetime:
    """The time of the database's clock, which gives jobs their times."""
    with translated():
        found: datetime = await connection.fetchval(_NOW)
    return found


async def finished_between(connection: Connection, after: datetime, until: datetime) -> dict[str, int]:
    """How many jobs of each queue have ended in this time; reads only these."""
    with translated():
        return {row[0]: row[1] for row in await connection.fetch(_FINISHED, after, until)}


async def group_stats(connection: Connection, queue: str | None = None, most: int = 100) -> list[GroupStats]:
    """The groups that have unfinished jobs, the largest first."""
    with translated():
        return [GroupStats(*row) for row in await connection.fetch(_GROUPS, queue, most)]


async def group_settings(connection: Connection, queue: str | None = None, most: int = 1000) -> list[GroupSetting]:
    """The groups that have settings of their own."""
    with translated():
        return [GroupSetting(*row) for row in await connection.fetch(_SETTINGS, queue, most)]


async def set_group(
    connection: Connection,
    group: str,
    queue: str,
    *,
    weight: int | None = None,
    paused: bool | None = None,
    max_running: int | None = None,
) -> None:
    """Change settings of a group; None leaves one as it is, a ``max_running`` of -1 removes the limit."""
    with translated():
        await connection.execute(_SET_GROUP, group, queue, weight, paused, max_running)
