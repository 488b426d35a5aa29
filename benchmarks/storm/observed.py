"""Connections, and the sizes of tables and processes, at a moment."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
import psutil

from tests.support.pgbouncer import PgBouncer

SESSIONS, CLIENTS = "sessions", "clients"
MIB = 2**20

_CONNECTIONS = """
    SELECT coalesce(substring(application_name FROM '^joex (lease|chores|tasks|bulk|maintenance) '), 'services'),
           count(*)
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'joex %' AND application_name <> 'joex client'
    GROUP BY 1 ORDER BY 1
"""
_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'joex %'"
)
_OLDEST = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'joex %'
    ORDER BY backend_start LIMIT 50
"""
_TABLES = """
    SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class c
    WHERE c.relnamespace = 'joex_private'::regnamespace AND c.relkind = 'r'
"""
_DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'joex_private.job'::regclass"
_FINISHED = "SELECT count(*) FROM joex_private.job WHERE finished_at IS NOT NULL"
_KEEP = ("job", "job_log", "executor", "act")
"""Tables that keep a row for each job, run, registration or act until it is old."""


async def connections(watcher: asyncpg.Pool[Any], pgbouncer: PgBouncer | None) -> dict[str, int]:
    """The connections of executors by what they are for; or both sides of the pooler, with those of the client."""
    if pgbouncer is None:
        return dict(await watcher.fetch(_CONNECTIONS))
    return {SESSIONS: await watcher.fetchval(_SESSIONS), CLIENTS: await asyncio.to_thread(pgbouncer.clients)}


@dataclass(frozen=True, slots=True)
class Sample:
    """Sizes at a moment, in bytes.

    Attributes:
        at: seconds since the storm began.
        finished: jobs.
        jobs: the table of jobs with its indexes.
        others: the tables that keep nothing, with theirs.
        largest: the largest of these.
        dead: versions of rows of the table of jobs that vacuum has not removed.
        process: memory of a process of executors.
        session: memory of a session of the server: the median of the fifty oldest.
    """

    at: float
    finished: int
    jobs: int
    others: int
    largest: str
    dead: int
    process: int
    session: int


async def sample(watcher: asyncpg.Pool[Any], process: int, at: float) -> Sample:
    """The sizes now; ``process``: the id of the process of executors."""
    tables = dict(await watcher.fetch(_TABLES))
    memory = []
    for row in await watcher.fetch(_OLDEST):
        with suppress(psutil.Error):  # it has just ended
            memory.append(psutil.Process(row[0]).memory_full_info().uss)
    others = {name: size for name, size in tables.items() if name not in _KEEP}
    return Sample(
        at=at,
        finished=await watcher.fetchval(_FINISHED),
        jobs=tables["job"],
        others=sum(others.values()),
        largest=max(others, key=others.__getitem__),
        dead=await watcher.fetchval(_DEAD),
        process=psutil.Process(process).memory_info().rss,
        session=round(statistics.median(memory)),
    )
