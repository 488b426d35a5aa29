"""The history of finished jobs, for the simulator."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any

from joex.core.trace import TracedJob
from joex.store.errors import translated
from joex.store.statement import Connection, statement
from joex.store.stats import group_settings

_BATCH = 2000
_EVERY_GROUP = 2**31 - 1

# If a job was put back or retried, runnable_since is later than its arrival, and submitted_at is nearer to it.
_COLUMNS = """
    CASE WHEN failures = 0 AND losses = 0 THEN runnable_since ELSE submitted_at END AS at,
    grp AS "group", extract(epoch FROM finished_at - scheduled_at)::float8 AS seconds, queue, task, priority::text,
    state::text, attempt AS attempts, failures, retries, seq,
    CASE WHEN runnable_since <= scheduled_at
         THEN extract(epoch FROM scheduled_at - runnable_since)::float8 END AS waited
"""
_WANTED = "finished_at >= $1::timestamptz AND ($2::text IS NULL OR queue = $2) AND scheduled_at IS NOT NULL"
# Two parts, as there are two indexes. In no order, because ten million rows would have to be sorted first.
_TRACE = statement(f"""
    SELECT {_COLUMNS} FROM joex_private.job WHERE {_WANTED} AND key IS NULL
    UNION ALL SELECT {_COLUMNS} FROM joex_private.job WHERE {_WANTED} AND key IS NOT NULL
""")  # noqa: S608 - put together of constants


async def traced(
    connection: Connection, since: datetime, queue: str | None = None
) -> AsyncGenerator[list[TracedJob], None]:
    """The jobs that have run and ended since then, a batch at a time, in no order.

    All as of one moment, in a transaction of its own; the server keeps the rest meanwhile.
    """
    with translated():
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            of_groups = {(s.queue, s.group): s for s in await group_settings(connection, queue, _EVERY_GROUP)}
            cursor = await connection.cursor(_TRACE, since, queue)
            while rows := await cursor.fetch(_BATCH):
                yield [_traced(row, of_groups.get((row["queue"], row["group"]))) for row in rows]


def _traced(row: Any, of_group: Any) -> TracedJob:
    values = dict(row)
    if of_group is not None:
        values |= {"weight": of_group.weight, "max_running": of_group.max_running}
    return TracedJob(**values)
