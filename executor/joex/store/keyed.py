"""Jobs whose ids their callers name themselves, and runs of workers that are no executors.

Ids and priorities come here packed (`joex.core.tuples`), types as names. A submitted job is found by its UUID.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from joex.store.errors import translated
from joex.store.jobs import read_json
from joex.store.statement import Connection, columns, statement


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """A job as its caller, or a worker, sees it. ``key``: None for a submitted job; ``lock_id``: of the latest run."""

    id: UUID
    type: str
    queue: str
    group: str
    key: bytes | None
    rank: bytes
    data: dict[str, Any]
    opts: dict[str, Any]
    state: str
    attempt: int
    failures: int
    retries: int | None
    cancel_requested: bool
    resubmit_requested: bool
    lock_id: UUID | None


_ADD = statement("""
    SELECT joex_private.add($1::text, $2::bytea, $3::text::jsonb, $4::text::jsonb, $5::bytea, $6::text, $7::text,
                            subject => $8::text, submitter => $9::text, cancel => $10::boolean,
                            resubmit => $11::boolean)
""")
_FIND = statement("SELECT joex_private.find($1::text, $2::bytea)")
_REMOVE = statement("SELECT joex.remove($1::uuid)")
_RESUBMIT = statement("SELECT joex_private.resubmit($1::uuid)")
_COLUMNS = columns(KeyedRow, type="task", group="grp", data="args::text", opts="opts::text", state="state::text")
_GET = statement(f"SELECT {_COLUMNS} FROM joex_private.job WHERE id = $1::uuid")  # noqa: S608 - put together of constants
_FIND_MANY = statement("""
    SELECT joex_private.find($1::text, k.key) FROM unnest($2::bytea[]) WITH ORDINALITY AS k(key, nr) ORDER BY k.nr
""")
_READ = statement(f"SELECT {_COLUMNS} FROM joex_private.job WHERE id = ANY ($1::uuid[])")  # noqa: S608 - likewise
_ACCEPT = statement(f"""
    SELECT {_COLUMNS}
    FROM joex_private.accept($1::text, $2::integer, $3::text, coalesce($4::bytea, joex_private.highest_rank()))
""")  # noqa: S608 - likewise
_UPDATE = statement("""
    SELECT u.answer, u.answer = 'ok' AND joex_private.goes_round($1::uuid) AS resubmit
    FROM joex.update($1::uuid, $2::uuid, $3::text::jsonb, $4::text::jsonb, $5::bytea, $6::integer, $7::text,
                     $8::boolean) AS u(answer)
""")
_FINISH = statement("""
    SELECT joex.finish($1::uuid, $2::uuid, $3::text::jsonb, $4::text, $5::text, $6::text, $7::interval,
                       $8::boolean)
""")
_LIST = statement(f"""
    SELECT {_COLUMNS} FROM joex_private.job
    WHERE task = $1::text AND key IS NOT NULL AND ($2::bytea IS NULL OR key > $2::bytea)
      AND ($3::text[] IS NULL OR state::text = ANY ($3))
    ORDER BY key LIMIT $4::integer
""")  # noqa: S608 - likewise
_COUNT = statement("""
    SELECT count(*) FILTER (WHERE finished_at IS NULL AND state <> 'running') AS pending,
           count(*) FILTER (WHERE state = 'running') AS running,
           count(*) FILTER (WHERE finished_at IS NOT NULL) AS finished
    FROM joex_private.job WHERE task = $1::text AND key IS NOT NULL AND ($2::bytea IS NULL OR rank <= $2)
""")
_ACTIVE = statement("""
    SELECT key FROM joex_private.held WHERE state = 'running' AND task = $1::text AND key IS NOT NULL
""")
_SET_TIMEOUT = statement("SELECT joex_private.set_timeout($1::text, $2::interval, $3::boolean)")
_TIMEOUTS = statement("SELECT task, timeout, renewable FROM joex_private.task_timeout ORDER BY task")
_RECOVER = statement("SELECT app_id, jobs FROM joex_private.recover_overdue($1::integer)")
_ACCEPT_STATE = statement("SELECT next_due, oldest_xid FROM joex_private.accept_state($1::text)")
_WATCH = statement("SELECT joex_private.watch_for_workers($1::text, $2::text, $3::interval)")


@dataclass(frozen=True, slots=True)
class NewKeyedJob:
    """A job to add. ``data`` and ``opts`` are JSON texts; group and queue are the type where they are None."""

    type: str
    key: bytes
    data: str
    opts: str
    rank: bytes
    group: str | None
    queue: str | None
    subject: str
    submitter: str
    cancel: bool
    resubmit: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What a run changes of its job; None leaves a thing as it is."""

    data: str | None = None
    opts: str | None = None
    rank: bytes | None = None
    progress: int | None = None
    message: str | None = None
    resubmit: bool = False


@dataclass(frozen=True, slots=True)
class TaskTimeout:
    """How long a run of a task may go without a report; where it is not ``renewable``, how long it may take."""

    task: str
    timeout: timedelta
    renewable: bool


async def add(connection: Connection, job: NewKeyedJob) -> UUID | None:
    """Add a job; None where its type has one with this key already."""
    with translated():
        found: UUID | None = await connection.fetchval(
            _ADD,
            job.type,
            job.key,
            job.data,
            job.opts,
            job.rank,
            job.group,
            job.queue,
            job.subject,
            job.submitter,
            job.cancel,
            job.resubmit,
        )
    return found


async def find(connection: Connection, job_type: str, key: bytes) -> UUID | None:
    """The UUID of a job, or None."""
    with translated():
        found: UUID | None = await connection.fetchval(_FIND, job_type, key)
    return found


async def find_many(connection: Connection, job_type: str, keys: Sequence[bytes]) -> list[UUID | None]:
    """The UUIDs of jobs of a type, in the order given; None: there is no such job."""
    with translated():
        return [row[0] for row in await connection.fetch(_FIND_MANY, job_type, keys)]


async def read(connection: Connection, ids: Collection[UUID]) -> list[KeyedRow]:
    """Jobs; one that is gone is left out."""
    with translated():
        return [_job_of(row) for row in await connection.fetch(_READ, list(ids))]


async def remove(connection: Connection, job_id: UUID) -> Literal["ok", "not_found"]:
    """Remove a job, when its run has stopped where it runs."""
    with translated():
        return "ok" if await connection.fetchval(_REMOVE, job_id) == "ok" else "not_found"


async def resubmit(connection: Connection, job_id: UUID) -> str:
    """Run a job once more, whatever its state; answers ok or not_found."""
    with translated():
        return str(await connection.fetchval(_RESUBMIT, job_id))


async def get(connection: Connection, job_id: UUID) -> KeyedRow | None:
    """A job, or None."""
    with translated():
        row = await connection.fetchrow(_GET, job_id)
    return None if row is None else _job_of(row)


async def accept(connection: Connection, queue: str, most: int, worker: str, max_rank: bytes | None) -> list[KeyedRow]:
    """Take the next jobs of a queue for a worker; none whose rank is above ``max_rank``."""
    with translated():
        rows = await connection.fetch(_ACCEPT, queue, most, worker, max_rank)
    return [_job_of(row) for row in rows]


async def update(connection: Connection, job_id: UUID, lock_id: UUID, report: Report) -> tuple[str, bool]:
    """A run reports; answers ok, worker_conflict or canceled, and whether the job goes round once more after it."""
    r = report
    with translated():
        [(answer, resubmit)] = await connection.fetch(
            _UPDATE, job_id, lock_id, r.data, r.opts, r.rank, r.progress, r.message, r.resubmit
        )
    return answer, resubmit


async def finish(
    connection: Connection,
    job_id: UUID,
    lock_id: UUID,
    state: str,
    *,
    result: str | None = None,
    message: str | None = None,
    error: str | None = None,
    delay: timedelta | None = None,
    exhausted: bool = False,
) -> str:
    """End a run; answers ok, worker_conflict or canceled."""
    with translated():
        return str(await connection.fetchval(_FINISH, job_id, lock_id, result, message, state, error, delay, exhausted))


async def list_keyed(
    connection: Connection, job_type: str, after: bytes | None, states: Sequence[str] | None, most: int
) -> list[KeyedRow]:
    """The jobs of a type in the order of their ids, after one of them."""
    with translated():
        rows = await connection.fetch(_LIST, job_type, after, states, most)
    return [_job_of(row) for row in rows]


async def count(connection: Connection, job_type: str, max_rank: bytes | None = None) -> dict[str, int]:
    """How many jobs of a type are pending, running, finished; none whose rank is above ``max_rank``."""
    with translated():
        return dict(await connection.fetchrow(_COUNT, job_type, max_rank) or {})


async def active(connection: Connection, job_type: str) -> list[bytes]:
    """The keys of the jobs of a type that run."""
    with translated():
        return sorted(row["key"] for row in await connection.fetch(_ACTIVE, job_type))


async def set_timeout(connection: Connection, task: str, limit: timedelta | None, *, renewable: bool) -> None:
    """Set how long a run of a task may go without a report (or, not renewable, at all); None: no limit."""
    with translated():
        await connection.execute(_SET_TIMEOUT, task, limit, renewable)


async def timeouts(connection: Connection) -> list[TaskTimeout]:
    """The tasks that have a timeout."""
    with translated():
        return [TaskTimeout(*row) for row in await connection.fetch(_TIMEOUTS)]


async def recover_overdue(connection: Connection, most_losses: int) -> list[tuple[str, int]]:
    """Put back a batch of runs that did not report in time; returns their number for each executor or worker."""
    with translated():
        return [(row["app_id"], row["jobs"]) for row in await connection.fetch(_RECOVER, most_losses)]


async def accept_state(connection: Connection, queue: str) -> tuple[float | None, int]:
    """Seconds until a job of the queue is due or a run overdue (None: none is), and the oldest open transaction."""
    with translated():
        row = await connection.fetchrow(_ACCEPT_STATE, queue)
    if row is None:
        raise RuntimeError("accept_state gave no row")
    return row["next_due"], row["oldest_xid"]


async def watch(connection: Connection, name: str, queue: str, seconds: float) -> None:
    """Subscribe to new jobs of the queue, for this long."""
    with translated():
        await connection.execute(_WATCH, name, queue, timedelta(seconds=seconds))


async def watch_no_more(connection: Connection, name: str) -> None:
    """End the subscription."""
    with translated():
        await connection.execute(_WATCH, name, "", timedelta(0))


def _job_of(row: Any) -> KeyedRow:
    values = dict(row)
    values["data"] = read_json(values["data"])
    opts = values["opts"]
    values["opts"] = {} if opts is None else read_json(opts)
    return KeyedRow(**values)
