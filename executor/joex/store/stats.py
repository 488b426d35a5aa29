"""Numbers and settings of queues and groups."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from joex.store.errors import translated
from joex.store.statement import Connection, statement

_QUEUES = statement("""
    SELECT queue, waiting, deferred, scheduled, running, stuck, oldest_runnable_seconds, groups FROM joex.queue_stats
    ORDER BY queue
""")
_GROUPS = statement("""
    SELECT queue, grp, waiting, deferred, scheduled, running, stuck, oldest_runnable_seconds, weight, paused,
           max_running
    FROM joex.group_stats WHERE $1::text IS NULL OR queue = $1
    ORDER BY waiting + running DESC, queue, grp LIMIT $2::integer
""")
_NOW = statement("SELECT clock_timestamp()")
# Two parts, as there are two indexes; and with two ends, so that no planner takes this for a large part of the table.
_FINISHED = statement("""
    SELECT queue, count(*) FROM (
        SELECT queue FROM joex.job
        WHERE finished_at > $1::timestamptz AND finished_at <= $2::timestamptz AND key IS NULL
        UNION ALL
        SELECT queue FROM joex.job
        WHERE finished_at > $1::timestamptz AND finished_at <= $2::timestamptz AND key IS NOT NULL
    ) ended GROUP BY queue
""")
_SETTINGS = statement("""
    SELECT queue, grp, weight, paused, max_running FROM joex.group_setting
    WHERE $1::text IS NULL OR queue = $1 ORDER BY queue, grp LIMIT $2::integer
""")
_SET_GROUP = statement("SELECT joex.set_group($1::text, $2::text, $3::integer, $4::boolean, $5::integer)")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Unfinished jobs of a queue. ``waiting`` may run now, ``deferred`` not before a time."""

    queue: str
    waiting: int
    deferred: int
    scheduled: int
    running: int
    stuck: int
    oldest_runnable_seconds: float | None
    groups: int


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


async def now(connection: Connection) -> datetime:
    """The time of the database's clock, which gives jobs their times."""
    with translated():
        found: datetime = await connection.fetchval(_NOW)
    return found


async def finished_between(connection: Connection, after: datetime, until: datetime) -> dict[str, int]:
    """How many jobs of each queue have ended in this time; reads these alone."""
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
    """Change settings of a group; None leaves one as it is, a ``max_running`` of -1 takes the limit away."""
    with translated():
        await connection.execute(_SET_GROUP, group, queue, weight, paused, max_running)
