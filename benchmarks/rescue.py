"""Mass death: how long one survivor needs to put back the jobs of very many executors that die together."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import asyncpg

from benchmarks.report import Figure
from benchmarks.support import executor, fresh_database, load, say, until
from joex.core.priority_turns import CountingScheme
from joex.store.database import connect
from joex.store.executors import NewExecutor, register, serve
from joex.store.runs import take

_JOBS = 50  # that each holds
_LEASE = timedelta(seconds=6)  # the default
_ALL_DEAD = "NOT EXISTS (SELECT FROM joex_private.executor WHERE app_id LIKE 'victim-%' AND left_at IS NULL)"
_ALL_BACK = f"{_ALL_DEAD} AND NOT EXISTS (SELECT FROM joex_private.executor WHERE orphans)"


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """Seconds from the end of the victims' leases until all are declared dead, and until all their jobs wait again."""
    victims = 200 if quick else 1000
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        say(f"rescue: {victims:,} executors take {_JOBS} jobs each")
        await load(connection, victims * _JOBS, 100)
        await _take_all(connection, victims)
        await connection.execute("VACUUM (ANALYZE) joex_private.job")
        with executor(url, "survivor", "--queues", "another", "--log-level", "error"):
            await until(connection, "EXISTS (SELECT FROM joex_private.executor WHERE app_id = 'survivor')")
            say("rescue: all of them renew their leases, and die")
            await connection.execute(
                "SELECT joex_private.heartbeat(id) FROM joex_private.executor WHERE app_id LIKE 'victim-%'"
            )
            ends_at = time.perf_counter() + _LEASE.total_seconds()
            await until(connection, _ALL_DEAD)
            dead = time.perf_counter() - ends_at
            await until(connection, _ALL_BACK)
            back = time.perf_counter() - ends_at
        waiting = await connection.fetchval(
            "SELECT count(*) FROM joex_private.job WHERE state = 'waiting' AND losses = 1"
        )
        await connection.close()
    if waiting != victims * _JOBS:
        raise RuntimeError(f"rescue: {victims * _JOBS:,} jobs were to wait again; {waiting:,} do")
    what = f"mass death, {victims:,} executors with {_JOBS} jobs each, one survivor"
    return [
        Figure(f"{what}: all declared dead, after the end of their leases", dead, "s"),
        Figure(f"{what}: all jobs wait again", back, "s", "below 10", back < 10),
    ]


async def _take_all(connection: asyncpg.Connection[Any], victims: int) -> None:
    await serve(connection, "default")
    for number in range(victims):
        me = NewExecutor(
            app_id=f"victim-{number}",
            pod_uid=None,
            host="another host",
            boot_id="unknown",
            pid=1,
            process_start="0",
            version="0",
            queues=["default"],
            tasks=["bench.noop"],
            pool_size=_JOBS,
            most_losses=5,
            http_address=None,
            lease=_LEASE,
            locks=True,
        )
        registered = await register(connection, me)
        if registered.id is None:
            raise RuntimeError(f"rescue: {me.app_id} could not register")
        taken = await take(connection, registered.id, me.queues, _JOBS, CountingScheme(4, 1))
        if len(taken) != _JOBS:
            raise RuntimeError(f"rescue: {me.app_id} was to take {_JOBS} jobs; it got {len(taken)}")
