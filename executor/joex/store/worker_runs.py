"""Runs of workers, which accept jobs, report and finish them without an executor."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from joex.core.json_values import Written
from joex.store.errors import translated
from joex.store.keyed import COLUMNS, KeyedRow, row_of
from joex.store.statement import Connection, id_of, statement

_ACCEPT = statement(f"""
    SELECT {COLUMNS}
    FROM joex_client.accept($1::text, $2::integer, $3::text, coalesce($4::bytea, joex_client.highest_rank()))
""")  # noqa: S608 - likewise
_FIND = statement("SELECT id, failures, retries FROM joex_client.run_of($1::text, $2::bytea, $3::uuid)")
_UPDATE = statement("""
    SELECT u.answer, u.answer = 'ok' AND joex_client.goes_round($1::uuid) AS resubmit
    FROM joex.update($1::uuid, $2::uuid, $3::text::jsonb, $4::text::jsonb, $5::bytea, $6::integer, $7::text,
                     $8::boolean) AS u(answer)
""")
_FINISH = statement("""
    SELECT joex.finish($1::uuid, $2::uuid, $3::text::jsonb, $4::text, $5::text, $6::text, $7::interval,
                       $8::boolean)
""")
_ACCEPT_STATE = statement("SELECT next_due, oldest_xid FROM joex_client.accept_state($1::text)")
_WATCH = statement("SELECT joex_client.watch_for_workers($1::text, $2::text, $3::interval)")


@dataclass(frozen=True, slots=True)
class Report:
    """What a run changes of its job; None leaves a field as it is."""

    data: str | None = None
    opts: str | None = None
    rank: bytes | None = None
    progress: int | None = None
    message: str | None = None
    resubmit: bool = False


class Run(NamedTuple):
    """The job of a run, and what decides about its retry: past failures, and the retries allowed if the job says it."""

    job_id: UUID
    failures: int
    retries: int | None


async def find(connection: Connection, job_type: str, key: bytes, lock_id: UUID) -> Run | None:
    """The latest run of a job, if it has this lock id."""
    with translated():
        row: Any = await connection.fetchrow(_FIND, job_type, key, lock_id)
    return None if row is None else Run(id_of(row["id"]), row["failures"], row["retries"])


async def accept(connection: Connection, queue: str, most: int, worker: str, max_rank: bytes | None) -> list[KeyedRow]:
    """Take the next jobs of a queue for a worker; none whose rank is above ``max_rank``. Their payloads are unread."""
    with translated():
        rows = await connection.fetch(_ACCEPT, queue, most, worker, max_rank)
    return [row_of(row, Written) for row in rows]


async def update(connection: Connection, job_id: UUID, lock_id: UUID, report: Report) -> tuple[str, bool]:
    """Report for a run; answers ok, worker_conflict or canceled, and whether the job goes round once more after it."""
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
