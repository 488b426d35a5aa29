"""A shop in the middle of its day, written by hand: executors, tenants and jobs in all states, for what shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from joex import Client
from joex.core.job import NewJob, Priority, TakenJob
from joex.core.priority_turns import CountingScheme
from joex.store import executors, jobs, pools, runs
from joex.store.executors import NewExecutor

LIBRARY, OTHERS = "acme", ("globex", "initech", "hooli", "umbrella")
TASKS = ["documents.parse", "mail.send", "report.make"]
FAILED = 8
"""Jobs of `LIBRARY` that have failed."""
SLOTS = 4
_ERROR = """Traceback (most recent call last):
  File "tasks.py", line 12, in parse
    raise ValueError("page 3 is empty")
ValueError: page 3 is empty"""


async def executor(connection: asyncpg.Connection, app_id: str, **more: Any) -> int:
    """Register an executor that lives for an hour; returns its id."""
    fields: dict[str, Any] = {
        "app_id": app_id, "pod_uid": None, "host": "node-1", "boot_id": "boot", "pid": 4711, "process_start": "1",
        "version": "0.1.0", "queues": ["default"], "tasks": TASKS, "pool_size": SLOTS, "most_losses": 5,
        "http_address": None, "lease": timedelta(hours=1), "locks": False, **more,
    }  # fmt: skip
    found = await executors.register(connection, NewExecutor(**fields))
    assert found.id is not None
    return found.id


async def take(
    connection: asyncpg.Connection, executor: int, most: int = SLOTS, *, queue: str = "default"
) -> list[TakenJob]:
    """Take jobs of a queue, and start them."""
    taken = await runs.take(connection, executor, [queue], most, CountingScheme(4, 1))
    await runs.start_many(connection, [(job.id, job.lock_id, 0.0) for job in taken])
    return taken


async def finish(connection: asyncpg.Connection, taken: list[TakenJob], state: str, **more: Any) -> None:
    """End runs."""
    await runs.finish_many(connection, [runs.EndedRun(job.id, job.lock_id, state, **more) for job in taken])


async def size_pool(
    connection: asyncpg.Connection, pool: str, sizes: Sequence[tuple[float, int, int, int]], namespace: str = "shop"
) -> None:
    """Let an operator have sized a pool: so many minutes ago, from so many executors to so many, for so many jobs."""
    for minutes, before, target, runnable in sizes:
        wanted = -(-runnable // SLOTS)
        why = f"{runnable} jobs wait or run, {SLOTS} slots each: {wanted} executors"
        capped = "maxReplicas" if wanted > target else None
        if capped:
            why = f"{why}; the maximum is {target}"
        step = pools.NewPoolStep(
            namespace,
            namespace,
            pool,
            before,
            target,
            before,
            0,
            "demand",
            why,
            wanted,
            capped,
            runnable,
            before * SLOTS,
            None,
        )
        assert await pools.note_step(connection, step)
        await connection.execute(
            """
            UPDATE joex_private.pool_step SET at = clock_timestamp() - make_interval(secs => $3)
            WHERE (namespace, pool) = ($1, $2) AND nr = (
                SELECT max(nr) FROM joex_private.pool_step WHERE (namespace, pool) = ($1, $2))
            """,
            namespace,
            pool,
            minutes * 60.0,
        )


async def open_the_shop(client: Client, connection: asyncpg.Connection) -> dict[str, UUID]:
    """Fill a database; returns the ids of some jobs by what they are.

    These are: failed, stuck, running and waiting, all of acme; "running globex" and deferred, of globex.

    Two executors of four slots are full. acme's many jobs wait behind their share; initech is paused; hooli is at its
    limit of one; umbrella has weight 3.
    """
    ids: dict[str, UUID] = {}
    first, second = [await executor(connection, f"shop/documents-{nr}") for nr in range(2)]
    await client.submit_many([
        NewJob("documents.parse", {"file": f"scan-{nr}.pdf"}, LIBRARY, subject=f"scan-{nr}.pdf", submitter="import")
        for nr in range(60)
    ])  # fmt: skip
    for _ in range(8):
        await finish(connection, await take(connection, first), "success", result=json.dumps({"pages": 3}))
    for _ in range(FAILED // SLOTS):
        taken = await take(connection, first)
        await finish(connection, taken, "failed", error=_ERROR)
        ids["failed"] = taken[0].id
    [stuck] = await take(connection, first, 1)
    await finish(connection, [stuck], "stuck", error=_ERROR, delay=600.0)
    ids["stuck"] = stuck.id
    for group in OTHERS:
        await client.submit_many([
            NewJob("mail.send", {"to": f"{nr}@{group}.example"}, group, subject=f"Invoice {nr} of {group}",
                   submitter="billing", priority=Priority.HIGH if nr == 0 else Priority.LOW)
            for nr in range(6)
        ])  # fmt: skip
    await client.groups.set("umbrella", weight=3)
    await client.groups.set("hooli", max_running=1)
    await client.groups.set("initech", paused=True)
    taken = [*await take(connection, first), *await take(connection, second)]
    # The order of the groups on the ring is random, so what runs is picked by its group.
    running = {job.group: job.id for job in taken}
    ids["running"], ids["running globex"] = running[LIBRARY], running["globex"]
    await connection.executemany(
        "INSERT INTO joex_private.job_log (job_id, attempt, at, level, message) VALUES ($1, 1, $2, $3, $4)",
        [(ids["running"], datetime.now(UTC), level, text)
         for level, text in (("info", "reads page 1 of 3"), ("warning", "page 2 is faint"), ("info", "reads page 3"))],
    )  # fmt: skip
    await connection.execute(
        "UPDATE joex_private.job SET progress = 66, progress_message = 'page 2 of 3' WHERE id = $1", ids["running"]
    )
    ids["deferred"] = await client.submit(
        "report.make", {"month": 10}, group="globex", subject="Report of October", not_before="1h"
    )
    ids["waiting"] = await client.submit("documents.parse", group=LIBRARY, subject="the last scan", submitter="ann")
    await client.periodic.put("nightly-report", "report.make", "Mon..Fri 08:00", zone="Europe/Zurich", group="globex")
    await size_pool(connection, "documents", [(50, 0, 1, 3), (40, 1, 2, 30), (12, 2, 2, 60)])
    job = await jobs.get_job(connection, ids["waiting"])
    assert job is not None
    assert job.state == "waiting"
    return ids
