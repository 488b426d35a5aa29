"""Executors: registration, lease, sleep, drain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from joex.core.job import TakenJob
from joex.core.lease import Beat, Mark, ServerStart
from joex.store.errors import translated
from joex.store.migrate import known_version
from joex.store.statement import Connection, columns, statement

EXECUTOR_LIVES = 1785685001
"""The first key of the session lock that a living executor holds on its id (`executor_alive_lock` in SQL)."""

# (Functions of PostgreSQL that each role may call.)
SERVER_START = "pg_postmaster_start_time() AS started_at, pg_stat_get_bgwriter_stat_reset_time() AS statistics_since"
"""The columns of a `joex.core.lease.ServerStart`."""
_REGISTER = statement(f"""
    SELECT {SERVER_START}, r.id, r.reclaimed, r.retired, (r.other).id AS other_id, (r.other).host AS other_host,
           (r.other).pod_uid AS other_pod_uid, (r.other).boot_id AS other_boot_id,
           (r.other).pid AS other_pid, (r.other).process_start AS other_process_start,
           (r.other).draining AS other_draining,
           extract(epoch FROM r.silent)::float8 AS other_silent, r.mark
    FROM joex_private.register($1::text, $2::text, $3::text, $4::text, $5::integer, $6::text, $7::text, $8::text[],
                               $9::text[], $10::integer, $11::text, $12::interval, $13::boolean, $14::integer,
                               $15::integer, $16::float8[], $17::bigint[], $18::integer, $19::integer[]) r
""")  # noqa: S608 - put together of constants
_SERVE = statement("SELECT joex_private.serve_queue($1::text)")
_QUEUE_HOLDERS = statement("""
    SELECT DISTINCT h.session FROM unnest($1::text[]) q(queue) CROSS JOIN LATERAL joex_private.queue_holder(q.queue) h
    ORDER BY 1
""")
_HOLD = statement("SELECT pg_try_advisory_lock($1::integer, $2::integer)")
_HEARTBEAT = statement(f"SELECT joex_private.heartbeat($1::integer) AS mark, {SERVER_START}")
_OBSERVE = statement(f"SELECT joex.horizon() AS mark, {SERVER_START}")
_CHECK_RUNS = statement(
    "SELECT draining, lost, ended, cancel, crowded FROM joex_private.check_runs($1::integer, $2::uuid[], $3::uuid[])"
)
_NOTE_OVERRUNS = statement("""
    SELECT joex_private.note_overruns($1::integer, $2::uuid[], $3::text[], $4::text[], $5::uuid[])
""")
_HAS_WORK = statement("SELECT joex_private.has_work($1::text[])")
_CLAIM = statement("SELECT joex_private.claim($1::text::regclass, $2::float8, $3::bigint)")
_RESCUE = statement("SELECT executor, app_id, jobs FROM joex_private.rescue($1::float8[], $2::bigint[])")
_END = statement("SELECT joex_private.end_executor($1::integer, $2::text)")
_GIVE_BACK_UNKNOWN = statement("SELECT joex_private.give_back_unknown($1::integer, $2::integer, $3::uuid[])")
_FALL_ASLEEP = statement("SELECT joex_private.fall_asleep($1::integer, $2::integer)")
_STAND_ASIDE = statement("SELECT joex_private.stand_aside($1::integer, $2::text[], $3::integer)")
_SLEEP_STATE = statement("""
    SELECT next_due, oldest_xid,
           EXISTS (SELECT FROM joex_private.asleep a WHERE a.executor_id = $2::integer) AS is_asleep
    FROM joex_private.sleep_state($1::text[])
""")
_SHOW_DRAIN = statement("UPDATE joex_private.executor SET draining = true WHERE id = $1::integer")
_DRAIN = statement("SELECT joex_client.drain($1::text)")
_NOTIFY = statement("SELECT joex_client.wake_all($1::text)")
_FORGET = statement("""
    DELETE FROM joex_private.executor WHERE left_at < clock_timestamp() - $1::interval AND NOT orphans
""")


@dataclass(frozen=True, slots=True)
class NewExecutor:
    """What an executor reports about itself when it starts.

    Attributes:
        app_id: its stable name; of the live executors that share one, all but one drain.
        pod_uid: the pod it runs in; None: none.
        boot_id, pid, process_start: which process it is, on which boot of its host; so that a successor on the same
            host can see whether it still exists.
        most_losses: a job that it held fails when it has been lost more often.
        lease: how long others believe it alive without a heartbeat.
        locks: it holds a session lock (False behind a transaction pooler, where only heartbeats show that it lives).
    """

    app_id: str
    pod_uid: str | None
    host: str
    boot_id: str
    pid: int
    process_start: str
    version: str
    queues: Sequence[str]
    tasks: Sequence[str]
    pool_size: int
    most_losses: int
    http_address: str | None
    lease: timedelta
    locks: bool


@dataclass(frozen=True, slots=True)
class Other:
    """The executor that has the app-id. ``silent``: seconds, by the database's clock; None: unknown."""

    id: int
    pod_uid: str | None
    host: str
    boot_id: str
    pid: int
    process_start: str
    silent: float | None
    draining: bool


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration: the new id; or the live executor with this app-id, or that the app-id is retired.

    ``reclaimed``: the jobs of executors that this has ended, also where another one is in the way.
    ``beat``: what a judge learns of it (`joex.core.lease.Observation`).
    """

    id: int | None
    reclaimed: int
    other: Other | None
    retired: bool
    beat: Beat


@dataclass(frozen=True, slots=True)
class Checked:
    """What an executor may have missed: see check_runs in sql/60_executors.sql. ``lost``, ``ended``: lock ids."""

    draining: bool
    lost: list[UUID]
    ended: list[UUID]
    cancel: list[UUID]
    crowded: bool


@dataclass(frozen=True, slots=True)
class SleepState:
    """What an executor must know before it sleeps: see `sleep_state` in sql/60_executors.sql."""

    next_due: float | None
    oldest_xid: int
    is_asleep: bool


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor as it is stored."""

    id: int
    app_id: str
    state: str
    held: int
    pool_size: int
    queues: list[str]
    host: str
    pid: int
    pod_uid: str | None
    http_address: str | None
    version: str
    started_at: datetime
    heartbeat_at: datetime
    left_at: datetime | None
    silent_seconds: float


_LIST = statement(f"""
    SELECT {columns(Executor)}
    FROM joex.executors WHERE $1::boolean OR left_at IS NULL
    ORDER BY left_at IS NOT NULL, app_id, started_at LIMIT $2::integer
""")  # noqa: S608 - put together of constants


async def register(
    connection: Connection,
    me: NewExecutor,
    gone: int | None = None,
    *,
    beside: Sequence[int] = (),
    marks: Sequence[Mark] = (),
) -> Registered:
    """Register an executor.

    ``gone``: the id of an earlier executor that is certainly over, which this replaces; ``beside``: the ids of those
    that drain, and whose processes may exist; ``marks``: what the caller has observed of them.

    Raises:
        SchemaError: a migration has made the schema too new for this version.
    """
    with translated():
        row: Any = await connection.fetchrow(
            _REGISTER,
            me.app_id,
            me.pod_uid,
            me.host,
            me.boot_id,
            me.pid,
            me.process_start,
            me.version,
            me.queues,
            me.tasks,
            me.pool_size,
            me.http_address,
            me.lease,
            me.locks,
            me.most_losses,
            gone,
            [mark.age for mark in marks],
            [mark.id for mark in marks],
            known_version(),
            beside,
        )
    other = None
    if row["other_id"] is not None:
        fields = ("id", "pod_uid", "host", "boot_id", "pid", "process_start", "silent", "draining")
        other = Other(*(row[f"other_{name}"] for name in fields))
    return Registered(row["id"], row["reclaimed"], other, row["retired"], _beat(row))


async def serve(connection: Connection, queue: str) -> None:
    """Prepare the database for takes from this queue; once is enough."""
    with translated():
        await connection.execute(_SERVE, queue)


async def queue_holders(connection: Connection, queues: Sequence[str]) -> list[int | None]:
    """The sessions (the ids of their server processes) that hold up each take from one of these queues.

    None: a prepared transaction, which has no session, does.
    """
    with translated():
        return [row["session"] for row in await connection.fetch(_QUEUE_HOLDERS, queues)]


async def hold_lock(connection: Connection, executor: int) -> bool:
    """Hold the session lock that shows that an executor lives. False: an earlier session of its own still has it."""
    with translated():
        return bool(await connection.fetchval(_HOLD, EXECUTOR_LIVES, executor))


async def heartbeat(connection: Connection, executor: int) -> Beat | None:
    """Renew the lease; returns what a judge learns of it (`joex.core.lease.Observation`). None: the lease is over."""
    with translated():
        row: Any = await connection.fetchrow(_HEARTBEAT, executor)
    return None if row["mark"] is None else _beat(row)


async def observe(connection: Connection) -> Beat:
    """What a judge without a lease learns instead of that."""
    with translated():
        return _beat(await connection.fetchrow(_OBSERVE))


def _beat(row: Any) -> Beat:
    return Beat(row["mark"], ServerStart(row["started_at"], row["statistics_since"]))


async def claim(connection: Connection, claims: str, seconds: float, mine: int | None = None) -> int | None:
    """Claim for so many seconds what one executor does for all; None: another one has claimed it.

    ``claims``: the sequence of the claims; ``mine``: the claim of this executor until now, which this renews.
    """
    with translated():
        made: int | None = await connection.fetchval(_CLAIM, claims, seconds, mine)
    return made


async def check_runs(connection: Connection, executor: int, runs: Sequence[tuple[UUID, UUID]]) -> Checked:
    """Ask what this executor may have missed; ``runs`` (job id, lock id) are the runs that it believes to hold."""
    with translated():
        row: Any = await connection.fetchrow(_CHECK_RUNS, executor, [r[0] for r in runs], [r[1] for r in runs])
    return Checked(row["draining"], row["lost"] or [], row["ended"] or [], row["cancel"] or [], row["crowded"])


async def note_overruns(connection: Connection, executor: int, begun: Sequence[TakenJob], over: Sequence[UUID]) -> None:
    """Count these runs, which go on after their jobs, for their groups, and those of ``over`` (lock ids) no more."""
    locks, queues, groups = [job.lock_id for job in begun], [job.queue for job in begun], [job.group for job in begun]
    with translated():
        await connection.execute(_NOTE_OVERRUNS, executor, locks, queues, groups, over)


async def has_work(connection: Connection, queues: Sequence[str]) -> bool:
    """Whether a job of these queues may run now."""
    with translated():
        return bool(await connection.fetchval(_HAS_WORK, queues))


async def rescue(connection: Connection, marks: Sequence[Mark]) -> list[tuple[int, str, int]]:
    """End some executors that are dead; returns (id, app-id, jobs put back) of each; empty: there are no more.

    ``marks``: what the caller has observed.
    """
    ages, ids = [mark.age for mark in marks], [mark.id for mark in marks]
    with translated():
        return [tuple(row) for row in await connection.fetch(_RESCUE, ages, ids)]


async def leave(connection: Connection, executor: int) -> int:
    """End this registration; returns how many jobs it still held, which are waiting again."""
    with translated():
        return int(await connection.fetchval(_END, executor, "left"))


async def give_back_unknown(connection: Connection, executor: int, nr: int, known: Sequence[UUID]) -> int:
    """Give back the jobs that an executor holds without knowing it (``known``: lock ids); returns how many it found.

    Those whose rows another transaction has locked are left: call it again. ``nr``: each attempt has a higher one.
    """
    with translated():
        return int(await connection.fetchval(_GIVE_BACK_UNKNOWN, executor, nr, known))


async def fall_asleep(connection: Connection, executor: int, *, give_back_nr: int = 0) -> None:
    """Announce that this executor sleeps, so that submissions wake it (``give_back_nr``: as of a take)."""
    with translated():
        await connection.execute(_FALL_ASLEEP, executor, give_back_nr)


async def stand_aside(
    connection: Connection, executor: int, queues: Sequence[str], *, give_back_nr: int | None = None
) -> None:
    """Announce that this executor takes nothing for a while, and wake others (``give_back_nr``: as of a take)."""
    with translated():
        await connection.execute(_STAND_ASIDE, executor, queues, give_back_nr)


async def sleep_state(connection: Connection, executor: int, queues: Sequence[str]) -> SleepState:
    """When the next job is due, the oldest open transaction, and whether submissions wake this executor."""
    with translated():
        row: Any = await connection.fetchrow(_SLEEP_STATE, queues, executor)
    return SleepState(row["next_due"], row["oldest_xid"], row["is_asleep"])


async def drain(connection: Connection, app_id: str | None) -> list[str]:
    """Ask the executor with this app-id (None: all) to drain; returns the app-ids that were asked."""
    with translated():
        return [row[0] for row in await connection.fetch(_DRAIN, app_id)]


async def show_drain(connection: Connection, executor: int) -> None:
    """Mark this executor as draining: submissions do not wake it, and others leave no job to it."""
    with translated():
        await connection.execute(_SHOW_DRAIN, executor)


async def notify(connection: Connection, queue: str) -> int:
    """Ask all executors of a queue to look for work now; returns how many take jobs from it."""
    with translated():
        return int(await connection.fetchval(_NOTIFY, queue))


async def list_executors(connection: Connection, *, ended: bool = False, most: int = 1000) -> list[Executor]:
    """The live executors; with ``ended``, also those that have exited."""
    with translated():
        return [Executor(*row) for row in await connection.fetch(_LIST, ended, most)]


async def forget_ended(connection: Connection, age: timedelta) -> None:
    """Delete the rows of executors that have ended longer ago than ``age``."""
    with translated():
        await connection.execute(_FORGET, age)
