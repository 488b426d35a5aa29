"""Pools of executors, for operators: how much work there is, which executors are alive, and which may go."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from joex.store.errors import translated
from joex.store.statement import Connection, statement

CHANNEL = "joex_operator"
"""The channel for work for which no executor slept (``{"queue": name}``), and executors (``{"executor": app_id}``)."""

_PROMOTE = statement("SELECT joex_private.promote_due($1::text[])")
_DEMAND = statement("SELECT runnable, next_due FROM joex_private.demand($1::text[], $2::integer)")
_WORK = statement(
    "SELECT runnable, running FROM joex_private.work($1::text[], $2::bigint, $3::integer, $4::text::jsonb, $5::float8)"
)
_LATEST_RUNS = statement("SELECT task, grp, runs, seconds, last_at FROM joex_private.latest_runs($1::timestamptz)")
_REPLICAS = statement(
    "SELECT prefix, app_id, executor, pod_uid, held, draining, spare, retired_at, clock_timestamp() - retired_at "
    "FROM joex_private.replicas($1::text[])"
)
_REGISTERED_IN = statement("SELECT DISTINCT pod_uid FROM joex_private.executor WHERE pod_uid = ANY ($1::text[])")
_WATCH = statement("SELECT joex_private.watch($1::text, $2::text[], $3::interval)")
_RETIRE = statement("SELECT joex_private.retire($1::text, $2::boolean)")
_FORGET = statement("SELECT joex_private.forget_retired($1::text, $2::timestamptz)")
_MARK_SPARE = statement("SELECT joex_private.mark_spare($1::text, $2::boolean)")
_POD_GONE = statement("SELECT joex_private.pod_gone($1::text)")
_NOTE_STEP = statement("""
    SELECT joex_private.note_pool_step($1::text, $2::text, $3::text, $4::integer, $5::integer, $6::integer, $7::integer,
                                       $8::text, $9::text, $10::integer, $11::text, $12::integer, $13::integer,
                                       $14::float8)
""")
_FORGET_STEPS = statement("SELECT joex_private.forget_pool_steps($1::integer)")
_COLUMNS = (
    "namespace, home, pool, nr, at, before, target, ready, draining, mode, why, wanted, capped_by, runnable, held, "
    "next_due"
)
_POOLS = statement(f"""
    SELECT DISTINCT ON (home, pool) {_COLUMNS} FROM joex.pool_steps
    WHERE $1::text IS NULL OR pool = $1 ORDER BY home, pool, nr DESC LIMIT $2::integer
""")  # noqa: S608 - of constants
_STEPS = statement(f"""
    SELECT {_COLUMNS} FROM joex.pool_steps
    WHERE home = $1::text AND pool = $2::text AND ($3::timestamptz IS NULL OR at >= $3)
    ORDER BY nr DESC LIMIT $4::integer
""")  # noqa: S608 - of constants
_BATCH = 1000


Shares = Mapping[Any, Mapping[Any, float]]
"""For which part of some time, 0 to 1, a job fills a slot: by task and by group, or for all other groups by ``""``."""


@dataclass(frozen=True, slots=True)
class LatestRuns:
    """Runs of a task in a group: how many, their seconds together, and when the last one ended."""

    task: str
    group: str
    runs: int
    seconds: float
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Waiting:
    """What an executor could take now of some queues, and when more is due.

    Attributes:
        runnable: jobs, as far as they were counted.
        next_due: seconds until the next job is due; None: no job has a time.
        work: if asked for: the slots that the runnable jobs would fill for a time, and the part of it for which a
            running job fills its slot; see `work` in sql/65_pools.sql.
    """

    runnable: int
    next_due: float | None
    work: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """An app-id, with the executor that lives under it (``executor``: its id), and its retirement.

    ``retired_for``: for how long, by the clock of the database; that of the reader may be another one.
    """

    app_id: str
    executor: int | None
    pod_uid: str | None
    held: int
    draining: bool
    spare: bool
    retired_at: datetime | None
    retired_for: timedelta | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NewPoolStep:
    """How an operator sizes a pool, and why: the view joex.pool_steps explains each field.

    Attributes:
        next_due: seconds until the next job is due; None: no job has a time.
    """

    namespace: str
    home: str
    pool: str
    before: int
    target: int
    ready: int
    draining: int
    mode: str
    why: str
    wanted: int | None
    capped_by: str | None
    runnable: int
    held: int
    next_due: float | None


@dataclass(frozen=True, slots=True)
class PoolStep:
    """How an operator has sized a pool at a time, and why: the view joex.pool_steps explains each field."""

    namespace: str
    home: str
    pool: str
    nr: int
    at: datetime
    before: int
    target: int
    ready: int
    draining: int
    mode: str
    why: str
    wanted: int | None
    capped_by: str | None
    runnable: int
    held: int
    next_due: datetime | None


async def demand_and_replicas(
    connection: Connection,
    queues: Sequence[str],
    most: int,
    prefixes: Sequence[str],
    shares: Shares | None = None,
    *,
    wait: float = math.inf,
) -> tuple[Waiting, list[list[Known]]]:
    """`demand` and `replicas`, as of one moment: a job that is taken then is runnable or held, not both."""
    with translated():
        await connection.execute(_PROMOTE, queues)
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            waiting = await demand(connection, queues, most, shares, wait=wait)
            return waiting, await replicas(connection, prefixes)


async def demand(
    connection: Connection, queues: Sequence[str], most: int, shares: Shares | None = None, *, wait: float = math.inf
) -> Waiting:
    """Jobs that could be taken now, counted up to ``most``. ``shares``: by which to measure their work, in ``wait``."""
    with translated():
        row: Any = await connection.fetchrow(_DEMAND, queues, most)
        runnable, next_due = row["runnable"], row["next_due"]
        if shares is None:
            return Waiting(runnable, next_due)
        work: Any = await connection.fetchrow(_WORK, queues, runnable, most, json.dumps(shares), wait)
        return Waiting(runnable, next_due, (work["runnable"], 1.0 if work["running"] is None else work["running"]))


async def latest_runs(connection: Connection, after: datetime | None) -> list[LatestRuns]:
    """The latest runs of jobs that have finished after this time; None: whenever."""
    with translated():
        return [LatestRuns(*row) for row in await connection.fetch(_LATEST_RUNS, after)]


async def replicas(connection: Connection, prefixes: Sequence[str]) -> list[list[Known]]:
    """The app-ids that begin with each of these prefixes, living or retired.

    In one statement: an operator asks for the replicas of all pools that share the work of a pool, hundreds of them.
    """
    found: dict[str, list[Known]] = {prefix: [] for prefix in prefixes}
    with translated():
        for prefix, *row in await connection.fetch(_REPLICAS, list(found)):
            found[prefix].append(Known(*row))
    return [found[prefix] for prefix in prefixes]


async def registered_in(connection: Connection, pod_uids: Sequence[str]) -> set[str]:
    """In which of these pods an executor had registered, whether it lives or not."""
    with translated():
        return {row[0] for row in await connection.fetch(_REGISTERED_IN, pod_uids)}


async def watch(connection: Connection, name: str, queues: Sequence[str], seconds: float) -> None:
    """Ask to be notified, for so long, of work that finds no executor asleep; see `watch` in sql/65_pools.sql."""
    with translated():
        await connection.execute(_WATCH, name, queues, timedelta(seconds=seconds))


async def retire(connection: Connection, app_id: str, *, only_if_idle: bool) -> str:
    """Bar an app-id from taking jobs; answers draining, retired, or busy (then nothing has changed)."""
    with translated():
        return str(await connection.fetchval(_RETIRE, app_id, only_if_idle))


async def forget_retired(connection: Connection, app_id: str, retired_at: datetime) -> bool:
    """Let a new executor register under an app-id that was retired then."""
    with translated():
        return bool(await connection.fetchval(_FORGET, app_id, retired_at))


async def mark_spare(connection: Connection, app_id: str, *, spare: bool) -> bool:
    """Mark an executor as one that leaves new jobs to others, or no longer; whether that changed anything."""
    with translated():
        return bool(await connection.fetchval(_MARK_SPARE, app_id, spare))


async def pod_gone(connection: Connection, pod_uid: str) -> int:
    """End the executor of a pod that has certainly stopped; returns how many jobs wait again."""
    with translated():
        return int(await connection.fetchval(_POD_GONE, pod_uid))


async def note_step(connection: Connection, step: NewPoolStep) -> bool:
    """Note a step, unless it is the pool's last one already; false: another operator came first, so try again."""
    with translated():
        return bool(await connection.fetchval(_NOTE_STEP, *(getattr(step, one.name) for one in fields(step))))


async def forget_steps(connection: Connection) -> None:
    """Delete the steps that are older than a day."""
    with translated():
        while await connection.fetchval(_FORGET_STEPS, _BATCH) == _BATCH:
            pass


async def list_pools(connection: Connection, name: str | None = None, *, most: int = 1000) -> list[PoolStep]:
    """The last step of each pool that had one within a day, or of those with this name."""
    with translated():
        return [PoolStep(*row) for row in await connection.fetch(_POOLS, name, most)]


async def list_steps(
    connection: Connection, home: str, pool: str, since: datetime | None = None, *, most: int
) -> list[PoolStep]:
    """The latest steps of a pool, the last one first."""
    with translated():
        return [PoolStep(*row) for row in await connection.fetch(_STEPS, home, pool, since, most)]
