"""The logs of jobs: reading them, and deleting the lines of jobs that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from joex.store.bounded import UNLIMITED
from joex.store.errors import translated
from joex.store.statement import Connection, id_of, statement

_FORGET_LINES = statement("SELECT joex_private.forget_lines($1::uuid, $2::integer)")
_ATTEMPTS = statement("""
    SELECT attempt, outcome, app_id, started_at, ended_at, CASE WHEN $3::boolean THEN error END, retry_at
    FROM joex.attempts($1::uuid, $2::integer)
""")
# (To learn the length of a text does not unpack it.)
_LOG = statement("""
    SELECT seq, attempt, at, level, message FROM (
        SELECT *, sum(octet_length(message)) OVER (ORDER BY seq) AS bytes
        FROM joex.log($1::uuid, $2::bigint, $3::integer)) counted
    WHERE bytes <= greatest($4::bigint, octet_length(message)) ORDER BY seq
""")
# (Row after row, as they are read: a window with an order would sort all lines of all jobs.)
_LATEST_LOG = statement("""
    SELECT id, seq, attempt, at, level, message FROM (
        SELECT j.id, l.*, sum(octet_length(l.message)) OVER (ROWS UNBOUNDED PRECEDING) AS bytes
        FROM unnest($1::uuid[]) AS j(id) CROSS JOIN LATERAL (
            SELECT * FROM joex_private.log_of_success(j.id)
            UNION ALL
            (SELECT seq, attempt, at, level, message FROM joex_private.job_log
             WHERE job_id = j.id ORDER BY seq DESC LIMIT $2::integer)) l) counted
    WHERE bytes <= $3::bigint
""")


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of a job's log; ``seq`` orders the lines of all attempts."""

    seq: int
    attempt: int
    at: datetime
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A run of a job. Times have a time zone.

    Attributes:
        attempt: 1 for the first run; a run that was given back does not count, and the next one has its number.
        outcome: ``running``, ``success``, ``failed``, ``cancelled``, ``lost`` (its executor has died, or it has not
            reported in time) or ``given_back``.
        app_id: the executor or worker that ran it.
        started_at: None: it ended before its code ran.
        ended_at: None: it runs.
        error: the first line of why it failed or was lost.
        retry_at: when the job may run again after a failure; None: there is no retry.
    """

    attempt: int
    outcome: str
    app_id: str | None
    started_at: datetime | None
    ended_at: datetime | None
    error: str | None
    retry_at: datetime | None


async def forget_lines(connection: Connection, after: UUID, most: int = 10_000) -> UUID | None:
    """Delete the log lines whose jobs are gone, of the next jobs after this one; returns the last, None: no more."""
    with translated():
        found: UUID | None = await connection.fetchval(_FORGET_LINES, after, most)
    return found


async def job_log(
    connection: Connection, job_id: UUID, *, after: int = 0, most: int = 10_000, most_bytes: int = UNLIMITED
) -> list[LogEntry]:
    """The log of all attempts of a job, in order; ``after`` is the seq of the last line that is known.

    At most ``most`` lines, of ``most_bytes``; but one at least.
    """
    with translated():
        rows = await connection.fetch(_LOG, job_id, after, most, most_bytes)
    return [LogEntry(*row) for row in rows]


async def attempts(connection: Connection, job_id: UUID, *, most: int = 100, payloads: bool = True) -> list[Attempt]:
    """The attempts of a job, in order, at most the last ``most`` ones; errors only with ``payloads``."""
    with translated():
        return [Attempt(*row) for row in await connection.fetch(_ATTEMPTS, job_id, most, payloads)]


async def latest_log(
    connection: Connection, job_ids: Sequence[UUID], most: int, most_bytes: int = UNLIMITED
) -> dict[UUID, list[LogEntry]]:
    """The latest lines, at most ``most``, of each of these jobs, in order; a job that has none is left out.

    When they have ``most_bytes`` together, it leaves out the older lines of that job, and the jobs after it.
    """
    with translated():
        rows = await connection.fetch(_LATEST_LOG, job_ids, most, most_bytes)
    logs: dict[UUID, list[LogEntry]] = {}
    for job_id, *entry in rows:
        logs.setdefault(id_of(job_id), []).append(LogEntry(*entry))
    return {job_id: sorted(log, key=lambda line: line.seq)[-most:] for job_id, log in logs.items()}
