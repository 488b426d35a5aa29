"""Routes about queues, groups and executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query

from joex.core.job import State
from joex.http.dependencies import Done, GroupFilter, Limit, QueueFilter, TheClient, refusals
from joex.http.errors import problems
from joex.http.models import GroupBody, Name
from joex.store import executors, stats
from joex.store.executors import Executor
from joex.store.jobs import Job, LogEntry, latest_log
from joex.store.listing import Filter, list_held, list_jobs, list_queued
from joex.store.stats import GroupSetting, GroupStats, QueueStats

routes = APIRouter(tags=["queues"], responses=problems(503))

_ENDED = (State.SUCCESS, State.FAILED, State.CANCELLED)
_LINES = 50
"""The log lines of each job in the state of the queue."""


@dataclass(frozen=True, slots=True)
class JobWithLog(Job):
    """A job, and the latest lines of its log, at most 50."""

    log: list[LogEntry] = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of the queue at a time, ``now``, as Docspell orders it.

    ``progress``: the jobs that executors hold, in the order in which they started, and then jobs about to start;
    ``queued``: waiting jobs, the oldest first; ``completed``: finished jobs, the latest first.
    """

    now: datetime
    progress: list[JobWithLog]
    queued: list[JobWithLog]
    completed: list[JobWithLog]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups with unfinished jobs, the largest first, and groups that have settings."""

    groups: list[GroupStats]
    settings: list[GroupSetting]


@dataclass(frozen=True, slots=True)
class Executors:
    """The executors."""

    executors: list[Executor]


@dataclass(frozen=True, slots=True)
class Stats:
    """The queues that have unfinished jobs."""

    queues: list[QueueStats]


@routes.get("/api/v1/queue/state")
async def queue_state(
    client: TheClient, queue: QueueFilter = None, group: GroupFilter = None, limit: Limit = 50
) -> QueueState:
    """Read the state of the queue, at most ``limit`` jobs of each kind."""
    async with client.using() as connection:
        held = await list_held(connection, queue, group, limit)
        queued = await list_queued(connection, queue, group, limit)
        ended = (await list_jobs(connection, Filter(queue, group, states=_ENDED), most=limit)).jobs
        logs = await latest_log(connection, [job.id for job in (*held, *queued, *ended)], _LINES)
        now = await stats.now(connection)
    progress, waiting, completed = ([_with_log(job, logs) for job in jobs] for jobs in (held, queued, ended))
    return QueueState(now, progress, waiting, completed)


@routes.get("/api/v1/stats")
async def queue_stats(client: TheClient) -> Stats:
    """Count the unfinished jobs of each queue, and show how its groups share the slots."""
    async with client.using() as connection:
        return Stats(await stats.shared_queue_stats(connection))


@routes.get("/api/v1/groups")
async def list_groups(client: TheClient, queue: QueueFilter = None, limit: Limit = 100) -> Groups:
    """List groups: their unfinished jobs and their settings."""
    async with client.using() as connection:
        return Groups(
            await stats.group_stats(connection, queue, limit), await stats.group_settings(connection, queue, limit)
        )


@routes.post("/api/v1/groups/{group:name}", responses=refusals())
async def set_group(client: TheClient, group: Annotated[Name, Path()], body: GroupBody) -> Done:
    """Change the settings of a group in a queue; they apply at once."""
    async with client.using() as connection:
        await stats.set_group(
            connection, group, body.queue, weight=body.weight, paused=body.paused, max_running=body.limit
        )
    return Done(f"the settings of group {group!r} in queue {body.queue!r} are changed")


@routes.get("/api/v1/executors")
async def list_executors(
    client: TheClient,
    *,
    ended: Annotated[bool, Query(description="include executors that have exited")] = False,
    limit: Limit = 1000,
) -> Executors:
    """List the executors."""
    async with client.using() as connection:
        return Executors(await executors.list_executors(connection, ended=ended, most=limit))


def _with_log(job: Job, logs: Mapping[UUID, list[LogEntry]]) -> JobWithLog:
    return JobWithLog(**{one.name: getattr(job, one.name) for one in fields(job)}, log=logs.get(job.id, []))
