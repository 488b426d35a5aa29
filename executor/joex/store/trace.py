"""The history of finished jobs, for the simulator."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime

from joex.core.trace import TracedJob
from joex.store.errors import translated
from joex.store.statement import Connection, statement

_BATCH = 2000

# If a job was put back or retried, runnable_since is later than its arrival, and submitted_at is nearer to it.
_COLUMNS = """
    CASE WHEN failures = 0 AND losses = 0 THEN runnable_since ELSE submitted_at END AS at,
    grp AS "group", extract(epoch FROM finished_at - scheduled_at)::float8 AS seconds, queue, task, priority::text,
    state::text, attempt AS attempts, failures, retries, seq,
    CASE WHEN runnable_since <= scheduled_at
         THEN extract(epoch FROM scheduled_at - runnable_since)::float8 END AS waited
"""
_WANTED = "finished_at >= $1::timestamptz AND ($2::text IS NULL OR queue = $2) AND scheduled_at IS NOT NULL"
# Two parts, as there are two indexes. In no order, because ten million rows would have to be sorted first. The
# settings are looked up for each job (OFFSET 0), because the server might put all jobs in a hash table before the first
# comes, and a client might have the settings of a hundred thousand groups in one piece.
_TRACE = statement(f"""
    SELECT ended.*, coalesce(settings.weight, 1) AS weight, settings.max_running
    FROM (
        SELECT {_COLUMNS} FROM joex_private.job WHERE {_WANTED} AND key IS NULL
        UNION ALL SELECT {_COLUMNS} FROM joex_private.job WHERE {_WANTED} AND key IS NOT NULL
    ) ended
    LEFT JOIN LATERAL (
        SELECT weight, max_running FROM joex_private.group_setting
        WHERE queue = ended.queue AND grp = ended."group" OFFSET 0
    ) settings ON true
""")  # noqa: S608 - put together of constants


async def traced(
    connection: Connection, since: datetime, queue: str | None = None
) -> AsyncGenerator[list[TracedJob], None]:
    """The jobs that have run and ended since then, a batch at a time, in no order.

    All as of one moment, in a transaction of its own; the server keeps the rest meanwhile.
    """
    with translated():
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            cursor = await connection.cursor(_TRACE, since, queue)
            while rows := await cursor.fetch(_BATCH):
                yield [TracedJob(**row) for row in rows]
