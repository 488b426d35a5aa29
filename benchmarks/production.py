"""The database of a large system in production: many jobs have ended, and the others are everywhere they can be."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg

from benchmarks.support import say
from joex.client.client import Client
from joex.core.priority_turns import CountingScheme
from joex.store import executors, runs
from joex.store.executors import NewExecutor

QUEUES = ("documents", "mail", "reports")
POOL = ("shop", "documents-0")
_EXECUTORS, _SLOTS = 100, 10
_SETTINGS, _POOLS, _STEPS, _PERIODIC, _LINES = 300, 20, 200, 100, 20
_TASKS = [f"{queue}.task-{nr}" for queue in QUEUES for nr in range(5)]

# Whose job n is. All groups use the first queue, which has nine of ten jobs, and a few the others; the smaller the
# number of a group, the more jobs it has. Below 0: one for each group.
_WHOSE = """
    CROSS JOIN LATERAL (SELECT CASE n % 20 WHEN 9 THEN 'mail' WHEN 19 THEN 'reports' ELSE 'documents' END) q(queue)
    CROSS JOIN LATERAL (SELECT CASE q.queue WHEN 'documents' THEN $2::int ELSE 500 END) m(most)
    CROSS JOIN LATERAL (SELECT 'tenant-' || CASE WHEN n < 0 THEN -n - 1 ELSE
        floor(power((hashint4(n) & 2147483647) / 2147483648.0, 3) * m.most) END) g(grp)
"""
_COLUMNS = "queue, grp, ring, task, args, subject, submitter"
_VALUES = """
    queue, grp, joex_private.ring(grp), queue || '.task-' || abs(n) % 5,
    jsonb_build_object('file', 'scan-' || n || '.pdf'), 'scan-' || n || '.pdf', 'user-' || abs(n) % 1000
"""
# Within the last week: so long Joex keeps them, unless told otherwise.
_ENDED = f"""
    INSERT INTO joex_private.job ({_COLUMNS}, state, attempt, failures, progress, app_id, result, error, submitted_at,
                                  runnable_since, scheduled_at, started_at, finished_at)
    SELECT {_VALUES}, state, 1, (state = 'failed')::int, 100, 'shop/documents-' || n % 100,
           CASE state WHEN 'success' THEN '{{"pages": 3}}'::jsonb END,
           CASE state WHEN 'failed' THEN 'page 3 is empty' END,
           at - interval '1 minute', at - interval '1 minute', at - interval '9 seconds', at - interval '8 seconds', at
    FROM generate_series(0, $1::int - 1) n {_WHOSE}
    CROSS JOIN LATERAL (SELECT now() - interval '7 days' * (1 - n / $1::float8)) a(at)
    CROSS JOIN LATERAL (SELECT (CASE WHEN n % 25 = 0 THEN 'failed' WHEN n % 100 = 1 THEN 'cancelled' ELSE 'success' END
                               )::joex_private.job_state) s(state)
"""  # noqa: S608 - put together of constants
_WAITING = f"""
    INSERT INTO joex_private.job ({_COLUMNS}, priority, lane, tracker, submitted_at, runnable_since)
    SELECT {_VALUES}, (ARRAY['high', 'low']::joex_private.job_priority[])[lane], lane,
           CASE WHEN n % 10 = 3 THEN 'order-' || n END, at, at
    FROM generate_series(-$2::int, $1::int - $2::int - 1) n {_WHOSE}
    CROSS JOIN LATERAL (SELECT CASE WHEN n % 20 = 0 THEN 1 ELSE 2 END) l(lane)
    CROSS JOIN LATERAL (SELECT now() - interval '1 hour' * (1 - (n + $2) / $1::float8)) a(at)
"""  # noqa: S608 - likewise
_LATER = f"""
    INSERT INTO joex_private.job ({_COLUMNS}, state, attempt, failures, due_at, runnable_since, error)
    SELECT {_VALUES}, (CASE is_retry WHEN 1 THEN 'stuck' ELSE 'waiting' END)::joex_private.job_state, is_retry,
           is_retry, at, at, CASE is_retry WHEN 1 THEN 'page 3 is empty' END
    FROM generate_series(0, $1::int - 1) n {_WHOSE}
    CROSS JOIN LATERAL (SELECT (n % 5 = 0)::int) r(is_retry)
    CROSS JOIN LATERAL (SELECT now() + interval '1 hour' + n * interval '3 seconds') a(at)
"""  # noqa: S608 - likewise
_LOG = """
    INSERT INTO joex_private.job_log (job_id, attempt, at, level, message)
    SELECT j.id, 1, now(), 'info', 'reads page ' || nr FROM joex_private.job j, generate_series(1, $1::int) nr
    WHERE j.executor_id IS NOT NULL
"""
_STEPS_OF_POOLS = """
    INSERT INTO joex_private.pool_step (namespace, home, pool, nr, at, before, target, ready, draining, mode, why,
                                        runnable, held)
    SELECT 'shop', 'shop', 'documents-' || pool, nr, now() - interval '1 day' * (1 - nr / $2::float8), nr % 9,
           (nr + 1) % 9, nr % 9, 0, 'demand', '38 jobs wait or run, 10 slots each: 4 executors', nr, nr
    FROM generate_series(0, $1::int - 1) pool, generate_series(1, $2::int) nr
"""


async def fill(client: Client, connection: asyncpg.Connection[Any], jobs: int, groups: int) -> None:
    """Fill a new database: 85 % of the jobs have ended, 12 % wait, and most others have a time."""
    say(f"making {jobs:,} jobs in {groups:,} groups")
    await connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")  # vacuumed at the end
    await connection.execute(_ENDED, jobs * 85 // 100, groups)
    await connection.execute(_LATER, jobs * 3 // 100, groups)
    await connection.execute(_WAITING, jobs * 12 // 100, groups)
    for nr in range(_SETTINGS):
        limit = 1 if nr % 3 == 1 else None
        await client.groups.set(
            f"tenant-{nr * groups // _SETTINGS}",
            queue=QUEUES[0],
            weight=1 + nr % 4,
            paused=nr % 3 == 2,
            max_running=limit,
        )
    for nr in range(_PERIODIC):
        await client.periodic.put(f"nightly-{nr}", _TASKS[0], "Mon..Fri 04:00", group=f"tenant-{nr}", queue=QUEUES[0])
    await connection.execute("VACUUM (ANALYZE)")
    for nr in range(_EXECUTORS):
        await _hold(connection, nr)
    await connection.execute(_LOG, _LINES)
    await connection.execute(_STEPS_OF_POOLS, _POOLS, _STEPS)
    await connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")
    await connection.execute("VACUUM (ANALYZE)")
    await connection.execute("CHECKPOINT")


async def _hold(connection: asyncpg.Connection[Any], nr: int) -> None:
    """Let an executor fill its slots; its lease is longer than a measurement, so it needs no heartbeat."""
    registered = await executors.register(
        connection,
        NewExecutor(
            f"shop/documents-{nr}", None, f"node-{nr % 10}", "boot", 4711 + nr, "1", "0.1.0", QUEUES, _TASKS, _SLOTS,
            5, None, timedelta(hours=1), locks=False,
        ),
    )  # fmt: skip
    if registered.id is None:
        raise RuntimeError("the benchmark's executor can't register")
    taken = await runs.take(connection, registered.id, QUEUES, _SLOTS, CountingScheme(4, 1))
    await runs.start_many(connection, [(job.id, job.lock_id, 0.0) for job in taken[1:]])
