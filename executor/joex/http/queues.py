"""Routes about queues, groups, executors and pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query

from joex.core.access import Scope
from joex.core.job import State
from joex.http.caller import TheCaller, needs
from joex.http.dependencies import Done, GroupFilter, Limit, QueueFilter, TheClient, TheReport, TheTurn, refusals
from joex.http.errors import problems
from joex.http.models import GroupBody, Name, QueueBody
from joex.http.route import Route
from joex.http.visible import MOST_BYTES, VisibleJob, most_bytes, visible
from joex.store import executors, pools, stats
from joex.store.executors import Executor
from joex.store.job_logs import LogEntry, latest_log
from joex.store.jobs import Job
from joex.store.listing import Filter, list_held, list_jobs, list_queued
from joex.store.pools import PoolStep
from joex.store.stats import GroupSetting, GroupStats, PausedQueue, QueueStats

routes = APIRouter(route_class=Route, tags=["queues"], responses=problems(503))

_ENDED = (State.SUCCESS, State.FAILED, State.CANCELLED)
_LINES = 50
"""The log lines of each job in the state of the queue."""


@dataclass(frozen=True, slots=True)
class JobWithLog(VisibleJob):
    """A job, and the latest lines of its log, at most 50; without the scope payloads, none."""

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
class Queues:
    """The queues that are paused."""

    paused: list[PausedQueue]


@dataclass(frozen=True, slots=True)
class Executors:
    """The executors."""

    executors: list[Executor]


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools, each with its last step."""

    pools: list[PoolStep]


@dataclass(frozen=True, slots=True)
class PoolSteps:
    """The steps of a pool, the latest first."""

    steps: list[PoolStep]


@dataclass(frozen=True, slots=True)
class Stats:
    """The queues that have unfinished jobs."""

    queues: list[QueueStats]


@routes.get("/api/v1/queue/state", dependencies=[needs(Scope.VIEW)])
async def queue_state(
    client: TheClient,
    caller: TheCaller,
    report: TheReport,
    *,
    queue: QueueFilter = None,
    group: GroupFilter = None,
    limit: Limit = 50,
) -> QueueState:
    """Read the state of the queue, at most ``limit`` jobs of each kind, and fewer where they are large.

    The jobs of a kind have at most 4 MB of arguments, results and texts, and the lines of all logs as much.
    """
    most = most_bytes(caller)
    async with report, client.using() as connection:
        held = await list_held(connection, queue, group, limit, caller.bounds, most_bytes=most)
        queued = await list_queued(connection, queue, group, limit, caller.bounds, most_bytes=most)
        wanted = Filter(queue, group, states=_ENDED, bounds=caller.bounds)
        ended = (await list_jobs(connection, wanted, most=limit, most_bytes=most)).jobs
        ids = [job.id for job in (*held, *queued, *ended)] if caller.sees_payloads else []
        logs = await latest_log(connection, ids, _LINES, MOST_BYTES)
        now = await stats.now(connection)
    progress, waiting, completed = ([_with_log(job, logs) for job in jobs] for jobs in (held, queued, ended))
    return QueueState(now, progress, waiting, completed)


@routes.get("/api/v1/stats", dependencies=[needs(Scope.VIEW)])
async def queue_stats(client: TheClient, caller: TheCaller, report: TheReport) -> Stats:
    """Count the unfinished jobs of each queue, and show how its groups share the slots.

    For a token that is bound to groups, it counts their jobs alone, and shows no shares.
    """
    async with report, client.using() as connection:
        return Stats(await stats.shared_queue_stats(connection, caller.bounds))


@routes.get("/api/v1/queues", dependencies=[needs(Scope.VIEW)])
async def list_paused_queues(client: TheClient, caller: TheCaller, report: TheReport) -> Queues:
    """List the queues that are paused. A bound token does not see which caller has paused them.

    A token that is bound to groups sees only queues in which these have unfinished jobs.
    """
    async with report, client.using() as connection:
        return Queues(await stats.paused_queues(connection, caller.bounds))


@routes.post("/api/v1/queues/{queue:name}", responses=refusals(), dependencies=[needs(Scope.OPERATE)])
async def set_queue(caller: TheCaller, turn: TheTurn, queue: Annotated[Name, Path()], body: QueueBody) -> Done:
    """Pause a queue, or resume it, for all takes that begin from now on. Runs go on, and submissions are accepted.

    A token that is bound to groups may not, because that concerns others too.
    """
    caller.check_all_groups("queue: a pause")
    caller.check_place(queue, "default")
    async with turn as connection:
        await stats.set_queue(connection, queue, paused=body.paused)
    return Done(f"the queue {queue!r} is {'paused' if body.paused else 'resumed'}")


@routes.get("/api/v1/groups", dependencies=[needs(Scope.VIEW)])
async def list_groups(
    client: TheClient, caller: TheCaller, report: TheReport, queue: QueueFilter = None, limit: Limit = 100
) -> Groups:
    """List groups: their unfinished jobs and their settings."""
    async with report, client.using() as connection:
        return Groups(
            await stats.group_stats(connection, queue, limit, caller.bounds),
            await stats.group_settings(connection, queue, limit, caller.bounds),
        )


@routes.post("/api/v1/groups/{group:name}", responses=refusals(), dependencies=[needs(Scope.OPERATE)])
async def set_group(caller: TheCaller, turn: TheTurn, group: Annotated[Name, Path()], body: GroupBody) -> Done:
    """Change the settings of a group in a queue; they apply at once.

    A token that is bound to groups may pause and resume them; weights and limits concern the others too.
    """
    caller.check_place(body.queue, group)
    for name in ("weight", "max_running", "max_waiting"):
        if name in body.model_fields_set:
            caller.check_all_groups(f"{name}: it")
    async with turn as connection:
        await stats.set_group(connection, group, body.queue, weight=body.weight, paused=body.paused, **body.limits)
    return Done(f"the settings of group {group!r} in queue {body.queue!r} are changed")


@routes.get("/api/v1/executors", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def list_executors(
    client: TheClient,
    *,
    ended: Annotated[bool, Query(description="include executors that have exited")] = False,
    limit: Limit = 1000,
) -> Executors:
    """List the executors."""
    async with client.using() as connection:
        return Executors(await executors.list_executors(connection, ended=ended, most=limit))


@routes.get("/api/v1/pools", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def list_pools(client: TheClient, limit: Limit = 1000) -> Pools:
    """List the pools of the operator and of joex up that had a step within a day, each with its last one."""
    async with client.using() as connection:
        return Pools(await pools.list_pools(connection, most=limit))


@routes.get("/api/v1/pools/{home}/{pool}/steps", dependencies=[needs(Scope.VIEW, whole_system=True)])
async def list_pool_steps(
    client: TheClient, home: Annotated[Name, Path()], pool: Annotated[Name, Path()], limit: Limit = 100
) -> PoolSteps:
    """List how the operator, or joex up, has sized a pool within the last day, and why."""
    async with client.using() as connection:
        return PoolSteps(await pools.list_steps(connection, home, pool, most=limit))


def _with_log(job: Job, logs: Mapping[UUID, list[LogEntry]]) -> JobWithLog:
    shown = visible(job)
    return JobWithLog(**{one.name: getattr(shown, one.name) for one in fields(shown)}, log=logs.get(job.id, []))
