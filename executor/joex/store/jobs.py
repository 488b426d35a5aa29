"""Submitting, steering and reading jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic_core import from_json

from joex.core.job import Columns, NewJob, columns_of, priority_of
from joex.errors import InvalidJob
from joex.store.errors import translated
from joex.store.json_text import json_text, read_json
from joex.store.statement import Connection, column, columns, id_of, statement

_SUBMIT = statement("""
    SELECT joex.submit($1::text, $2::text::jsonb, $3::text, $4::text, $5::text, $6::text, $7::text, $8::timestamptz,
                       $9::text, $10::integer)
""")
_SUBMIT_ONCE = statement("""
    SELECT joex.submit($1::text, $2::text::jsonb, $3::text, $4::text, $5::text, $6::text, $7::text, $8::timestamptz,
                       $9::text, $10::integer, $11::uuid, $12::text)
""")
_SUBMIT_MANY = statement("""
    SELECT ARRAY(SELECT joex.submit_many($1::text[], $2::text[]::jsonb[], $3::text[], $4::text[], $5::text[],
                                         $6::text[], $7::text[], $8::timestamptz[], $9::text[], $10::integer[],
                                         $11::uuid, $12::text))
""")
_CANCEL = statement("SELECT joex.cancel($1::uuid)")
_SET_PRIORITY = statement("SELECT joex.set_priority($1::uuid, $2::text)")
_SET_ARGS = statement("SELECT joex.set_args($1::uuid, $2::text::jsonb)")
_RETRY = statement("SELECT joex.retry($1::uuid)")
_RETRY_FAILED = statement("SELECT joex.retry_failed($1::text, $2::text, $3::text, $4::integer)")
_BRING_FORWARD = statement("""
    UPDATE joex_private.job SET due_at = clock_timestamp() WHERE due_at > clock_timestamp() AND queue = ANY ($1::text[])
""")
_DELETE_FINISHED = statement("""
    SELECT jobs, upto FROM joex.delete_finished($1::text[], clock_timestamp() - $2::interval, $3::integer,
                                                coalesce($4::timestamptz, '-infinity'))
""")
_LOCK_ENDED = statement("SELECT true FROM joex_private.job WHERE id = $1::uuid AND finished_at IS NOT NULL FOR UPDATE")
_WHY = statement("SELECT reason, detail::text FROM joex.why($1::uuid)")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is stored. Times have a time zone; ``args`` and ``result`` are JSON values."""

    id: UUID
    queue: str
    group: str
    task: str
    args: dict[str, Any]
    subject: str
    submitter: str
    tracker: str | None
    priority: str
    state: str
    due_at: datetime | None
    app_id: str | None
    attempt: int
    failures: int
    losses: int
    retries: int | None
    cancel_requested: bool
    progress: int
    progress_message: str | None
    submitted_at: datetime
    scheduled_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    message: str | None
    result: Any
    error: str | None
    seq: int


PAYLOADS = {
    "args": "args::text",
    "progress_message": "progress_message",
    "message": "message",
    "result": "result::text",
    "error": "error",
}
"""The columns of a job that may be large, and are not for everyone."""
_AS_TEXT = {"group": "grp", "priority": "priority::text", "state": "state::text"}
COLUMNS = columns(Job, **_AS_TEXT, **PAYLOADS)
HEADS = columns(Job, PAYLOADS, **_AS_TEXT)
"""The other columns."""
_PLACE = statement("SELECT queue, grp FROM joex_private.job WHERE id = $1::uuid")
_GET = statement(f"SELECT {COLUMNS} FROM joex.jobs WHERE id = $1::uuid")  # noqa: S608 - put together of constants
_GET_HEAD = statement(f"SELECT {HEADS} FROM joex.jobs WHERE id = $1::uuid")  # noqa: S608 - likewise
_VALUES = ("args", "result")
_TEXTS = {name: expression for name, expression in PAYLOADS.items() if name not in _VALUES}
_SEEN = columns(Job, _VALUES, **_AS_TEXT, **_TEXTS)
_GET_TEXTS = statement(f"SELECT {_SEEN} FROM joex.jobs WHERE id = $1::uuid")  # noqa: S608 - likewise


async def submit(
    connection: Connection, job: NewJob, once: UUID | None = None, trace_context: str | None = None
) -> UUID | None:
    """Submit a job in the connection's transaction; returns its id, or None if its tracker has an unfinished job.

    ``once``: names this submission, so that a repetition with the same name stores nothing more. ``trace_context``:
    see `joex.core.trace_context`.
    """
    is_plain = once is None and trace_context is None
    with translated():
        found: UUID | None = id_of(
            await connection.fetchval(
                _SUBMIT if is_plain else _SUBMIT_ONCE,
                job.task,
                json_text("args", job.args),
                job.group,
                job.queue,
                str(job.priority),
                job.subject,
                job.submitter,
                job.not_before,
                job.tracker,
                job.retries,
                *(() if is_plain else (once, trace_context)),
            )
        )
    return found


async def submit_many(connection: Connection, jobs: Sequence[NewJob]) -> list[UUID | None]:
    """Submit jobs in the connection's transaction, all or none; an id per job, None where it was skipped."""
    return await submit_batches(connection, [columns_of(jobs)] if jobs else [])


async def submit_batches(
    connection: Connection,
    batches: Sequence[Columns],
    onces: Sequence[UUID | None] = (),
    trace_context: str | None = None,
) -> list[UUID | None]:
    """Submit the jobs of all batches, or none; answers as `submit_many`. ``onces``: as for `submit`, of each batch."""
    names = onces or [None] * len(batches)
    with translated():
        if len(batches) == 1 and not connection.is_in_transaction():
            return await _submit_batch(connection, batches[0], names[0], trace_context)  # a statement is a transaction
        ids: list[UUID | None] = []
        if batches:
            async with connection.transaction():
                for batch, once in zip(batches, names, strict=True):
                    ids += await _submit_batch(connection, batch, once, trace_context, len(ids))
    return ids


async def _submit_batch(
    connection: Connection, batch: Columns, once: UUID | None, trace_context: str | None, first: int = 0
) -> list[UUID | None]:
    args: list[str | None] = []
    try:
        for each in batch.args:
            args.append(json_text("args", each) if each else None)  # noqa: PERF401 - its length says which one is wrong
    except InvalidJob as error:
        raise InvalidJob(f"jobs[{first + len(args)}].{error}") from error
    ids: Any = await connection.fetchval(
        _SUBMIT_MANY,
        batch.tasks,
        column(args),
        batch.groups,
        column(batch.queues),
        column(batch.priorities),
        column(batch.subjects),
        column(batch.submitters),
        column(batch.not_before),
        column(batch.trackers),
        column(batch.retries),
        once,
        trace_context,
    )
    return [id_of(one) for one in ids]


async def cancel(connection: Connection, job_id: UUID) -> str:
    """Cancel a job; answers cancelled, requested (its run is asked to end), finished or not_found."""
    with translated():
        return str(await connection.fetchval(_CANCEL, job_id))


async def set_priority(connection: Connection, job_id: UUID, priority: str) -> bool:
    """Change the priority of a waiting job; False if it is not waiting."""
    try:
        known = priority_of(priority)
    except ValueError as error:
        raise InvalidJob(str(error)) from error
    with translated():
        return bool(await connection.fetchval(_SET_PRIORITY, job_id, str(known)))


async def set_args(connection: Connection, job_id: UUID, args: Mapping[str, Any]) -> bool:
    """Replace the arguments of a waiting job; False if it is not waiting."""
    if not isinstance(args, Mapping):
        raise InvalidJob(f"args: expected an object (names and values); got {type(args).__name__}")
    text = json_text("args", args)
    with translated():
        return bool(await connection.fetchval(_SET_ARGS, job_id, text))


async def retry(connection: Connection, job_id: UUID) -> bool:
    """Run a failed, cancelled or stuck job again, or one that is not due, now; False if it is none of these."""
    with translated():
        return bool(await connection.fetchval(_RETRY, job_id))


async def retry_failed(
    connection: Connection, queue: str | None, group: str | None, task: str | None, most: int
) -> int:
    """Run the failed jobs that match again, the oldest first; returns how many."""
    with translated():
        return int(await connection.fetchval(_RETRY_FAILED, queue, group, task, most))


async def bring_forward(connection: Connection, queues: Sequence[str]) -> bool:
    """Make all jobs of these queues that wait for their time due now; False if there were none."""
    with translated():
        return await connection.execute(_BRING_FORWARD, queues) != "UPDATE 0"


async def delete_finished(
    connection: Connection, states: Sequence[str], age: timedelta, most: int, *, since: datetime | None = None
) -> tuple[int, datetime | None]:
    """Delete a batch of the jobs, and their logs, that ended longer ago than ``age``, the oldest first.

    Returns:
        The number of deleted jobs; and ``since`` for the next batch, None: there was nothing to delete.
    """
    with translated():
        row: Any = await connection.fetchrow(_DELETE_FINISHED, states, age, most, since)
    return row["jobs"], row["upto"]


async def get_job(connection: Connection, job_id: UUID, *, payloads: bool = True, values: bool = True) -> Job | None:
    """A job, or None. Without ``payloads`` these are not read, and are None; without ``values``, args and result."""
    with translated():
        row = await connection.fetchrow((_GET if values else _GET_TEXTS) if payloads else _GET_HEAD, job_id)
    return None if row is None else job_of(row)


async def lock_ended(connection: Connection, job_id: UUID) -> bool:
    """Lock a job that has ended until the end of the transaction, so that it stays so; False: it has not ended."""
    with translated():
        return bool(await connection.fetchval(_LOCK_ENDED, job_id))


async def place_of(connection: Connection, job_id: UUID) -> tuple[str, str] | None:
    """The queue and the group of a job, which never change; None: there is no such job."""
    with translated():
        row = await connection.fetchrow(_PLACE, job_id)
    return None if row is None else (row["queue"], row["grp"])


async def why(connection: Connection, job_id: UUID) -> list[tuple[str, dict[str, Any]]]:
    """The reasons why a job is not running, the blocking ones first: words and details as in sql/75_why.sql."""
    with translated():
        rows = await connection.fetch(_WHY, job_id)
    return [(row["reason"], from_json(row["detail"])) for row in rows]


def job_of(row: Any) -> Job:
    """A job from a row of `COLUMNS`, or of `HEADS`: its payloads are None."""
    values: dict[str, Any] = {**dict.fromkeys(PAYLOADS), **row}
    for name in ("args", "result"):
        values[name] = None if values[name] is None else read_json(values[name])
    values["id"] = id_of(values["id"])
    return Job(**values)
