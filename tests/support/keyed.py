"""Keyed jobs for tests: brought into a state, or past their timeout."""

import struct
from typing import Any
from uuid import UUID

import asyncpg

from joex import KeyedJobs
from joex.store import timeouts

T = "replication"
"""A type of jobs."""


def same(one: Any, other: Any) -> bool:
    """Equal and of the same type, all the way down."""
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return isinstance(other, float) and struct.pack(">d", one) == struct.pack(">d", other)
    return isinstance(other, type(one)) and one == other


async def let_time_out(connection: asyncpg.Connection, *ids: UUID) -> None:
    """Let all runs (or those of these jobs) be overdue."""
    await connection.execute(
        "UPDATE joex_private.job SET overdue_at = clock_timestamp() WHERE overdue_at IS NOT NULL "
        "AND ($1 OR id = ANY ($2))",
        not ids,
        ids,
    )


async def lose(connection: asyncpg.Connection, *ids: UUID) -> list[tuple[str, int]]:
    """Let runs be overdue, and recover them."""
    await let_time_out(connection, *ids)
    return await timeouts.recover_overdue(connection)


async def make_due(connection: asyncpg.Connection) -> None:
    """Let all delays be over."""
    await connection.execute("UPDATE joex_private.job SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")


async def run(keyed: KeyedJobs, job_type: Any = T, opts: dict[str, Any] | None = None, **more: Any) -> Any:
    """Accept the next job, and finish it; returns its id."""
    job = await keyed.accept(job_type)
    assert job is not None
    assert job.lock_id is not None
    assert await keyed.finish(job.type, job.id, opts or {}, job.lock_id, **more) == "ok"
    return job.id


async def state(keyed: KeyedJobs, job_id: Any, job_type: Any = T) -> str | None:
    """The state of a job; None: there is none."""
    job = await keyed.get_job(job_type, job_id)
    return None if job is None else job.state


async def in_work(keyed: KeyedJobs) -> Any:
    """The job 1, which runs: as it was accepted."""
    await keyed.add(T, 1)
    return await keyed.accept(T)


async def canceled(keyed: KeyedJobs) -> Any:
    """The job 1, which runs, and is to stop."""
    job = await in_work(keyed)
    await keyed.cancel(T, 1)
    return job


async def lose_once(keyed: KeyedJobs, connection: asyncpg.Connection) -> None:
    """Accept a job, and never report."""
    assert await keyed.accept(T) is not None
    await lose(connection)
