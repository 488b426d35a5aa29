"""The statements of an executor about runs: take, start, finish, note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from joex.core.job import TakenJob
from joex.core.priority_turns import CountingScheme
from joex.store.errors import translated
from joex.store.statement import Connection, column, columns, id_of, statement

_TAKE = statement(f"""
    SELECT {columns(TakenJob, group="grp", priority="priority::text")}
    FROM joex_private.take($1::integer, $2::text[], $3::integer, $4::integer, $5::integer,
                           p_give_back_nr => $6::integer)
""")  # noqa: S608 - put together of constants
_MARK_START = statement("SELECT joex_private.mark_start($1::uuid, $2::uuid)")
_START = statement("SELECT * FROM joex_private.start_many($1::uuid[], $2::uuid[], $3::float8[])")
_FINISH_MANY = statement("""
    SELECT nr, answer
    FROM joex_private.finish_many($1::uuid[], $2::uuid[], $3::text[], $4::text[]::jsonb[], $5::text[], $6::text[],
                                  $7::float8[], $8::float8[], $9::boolean, $10::boolean[])
""")
_FINISH = statement("SELECT joex.finish($1::uuid, $2::uuid, $3::text::jsonb, $4::text)")
_ENDED_AS = statement("""
    SELECT id, state::text, error FROM joex_private.job
    WHERE id = ANY ($1::uuid[]) AND lock_id = ANY ($2::uuid[]) AND executor_id IS NULL
""")
_NOTE = statement("""
    SELECT * FROM joex_private.note_many($1::uuid[], $2::uuid[], $3::integer[], $4::float8[], $5::text[], $6::text[],
                                         $7::uuid[], $8::uuid[], $9::smallint[], $10::text[])
""")
_ARGUMENTS = statement("SELECT joex_client.arguments($1::uuid, $2::uuid)::text")
_SIZE_LIMITS = statement("SELECT joex_private.largest('args'), joex_private.largest('result')")
_FORGET_TURNS = statement("SELECT joex_private.forget_turns()")


@dataclass(slots=True)
class EndedRun:
    """A run that has ended, as it is written.

    Attributes:
        state: success, failed, cancelled, stuck or waiting (given back).
        delay: seconds until the next try of a stuck job.
        age: seconds since its code started; None: it has not started.
        exhausted: True: it has failed because its retries are used up.
    """

    id: UUID
    lock_id: UUID
    state: str
    result: str | None = None
    message: str | None = None
    error: str | None = None
    delay: float | None = None
    age: float | None = None
    exhausted: bool | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a run logged, ``age`` seconds ago."""

    job_id: UUID
    lock_id: UUID
    attempt: int
    age: float
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """How many bytes the arguments and the result of a job may have."""

    args: int
    result: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: 0 to 100, and in words."""

    job_id: UUID
    lock_id: UUID
    percent: int
    message: str | None


async def take(
    connection: Connection,
    executor: int,
    queues: Sequence[str],
    free: int,
    scheme: CountingScheme,
    *,
    give_back_nr: int = 0,
) -> list[TakenJob]:
    """Take up to ``free`` jobs for an executor. They are scheduled when this returns, and durable.

    ``give_back_nr``: of its latest give-back of unknown jobs; 0: there was none.
    """
    with translated():
        rows = await connection.fetch(_TAKE, executor, queues, free, scheme.high, scheme.low, give_back_nr)
    return [TakenJob(id_of(row[0]), id_of(row[1]), *row[2:]) for row in rows]


async def arguments(connection: Connection, job_id: UUID, lock_id: UUID) -> str | None:
    """The arguments of a run that did not come with its take, as JSON text; None: the run has lost its job."""
    with translated():
        found: str | None = await connection.fetchval(_ARGUMENTS, job_id, lock_id)
    return found


async def size_limits(connection: Connection) -> SizeLimits:
    """How large jobs may be in this database."""
    with translated():
        [row] = await connection.fetch(_SIZE_LIMITS)
    return SizeLimits(*row)


async def forget_turns(connection: Connection) -> None:
    """Remove rows of counting schemes that takes no longer need, such as surplus rows of concurrent takes."""
    with translated():
        await connection.execute(_FORGET_TURNS)


async def mark_start(connection: Connection, job_id: UUID, lock_id: UUID) -> bool:
    """Mark the run of a job that was lost twice as running, before its code starts. False: it has lost the job."""
    with translated():
        return bool(await connection.fetchval(_MARK_START, job_id, lock_id))


async def start_many(connection: Connection, runs: Sequence[tuple[UUID, UUID, float]]) -> set[UUID]:
    """Mark runs (id, lock id, seconds since its code started) as running.

    Returns:
        The lock ids of those that are not marked, because another transaction has locked their rows.
    """
    ids, locks, ages = zip(*runs, strict=True)
    with translated():
        return {lock_id for (lock_id,) in await connection.fetch(_START, ids, locks, ages)}


async def finish_many(
    connection: Connection, runs: Sequence[EndedRun], *, skip_locked: bool = False
) -> list[tuple[EndedRun, str]]:
    """End runs; returns those that did not end as given, with the answer of `finish_many` in sql/40_run.sql."""
    with translated():
        rows = await connection.fetch(
            _FINISH_MANY,
            [r.id for r in runs],
            [r.lock_id for r in runs],
            [r.state for r in runs],
            column([r.result for r in runs]),
            column([r.message for r in runs]),
            column([r.error for r in runs]),
            column([r.delay for r in runs]),
            column([r.age for r in runs]),
            skip_locked,
            column([r.exhausted for r in runs]),
        )
    return [(runs[nr - 1], answer) for nr, answer in rows]


async def ended_as(connection: Connection, runs: Sequence[EndedRun]) -> dict[UUID, tuple[str, str | None]]:
    """The states and errors of the jobs that these runs have ended, by their ids."""
    with translated():
        rows = await connection.fetch(_ENDED_AS, [r.id for r in runs], [r.lock_id for r in runs])
    return {row[0]: (row[1], row[2]) for row in rows}


async def finish(connection: Connection, job_id: UUID, lock_id: UUID, result: str | None, message: str | None) -> str:
    """End a run with success in the caller's transaction; answers ok, worker_conflict or canceled."""
    with translated():
        return str(await connection.fetchval(_FINISH, job_id, lock_id, result, message))


class Noted(NamedTuple):
    """What was not written.

    Attributes:
        dropped: how many lines, because their runs had lost their jobs.
        locked: the lock ids of runs whose progress must be written later, because another transaction has locked
            their rows.
    """

    dropped: int
    locked: frozenset[UUID]


async def note_many(connection: Connection, lines: Sequence[LogLine], progress: Sequence[Progress]) -> Noted:
    """Write log lines and progress."""
    with translated():
        [(dropped, locked)] = await connection.fetch(
            _NOTE,
            [line.job_id for line in lines],
            [line.lock_id for line in lines],
            [line.attempt for line in lines],
            [line.age for line in lines],
            [line.level for line in lines],
            [line.message for line in lines],
            [p.job_id for p in progress],
            [p.lock_id for p in progress],
            [p.percent for p in progress],
            [p.message for p in progress],
        )
        return Noted(dropped, frozenset(locked or ()))
