"""Periodic tasks: the load on an idle database, and the delay of jobs when very many are due at once."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import ExitStack
from typing import Any

import asyncpg

from benchmarks.report import Figure, quantile
from benchmarks.support import executor, fresh_database, say, until
from joex.store.database import connect
from tests.support.schedulers import RepeaterProcesses

_SCHEDULERS, _DAILY = 10, 100
_TASKS, _REPEATERS = 1000, 20
_KILL_EVERY = 5.0  # seconds
_FINISH_EVERY = 0.1
_COUNTED_WITHIN = 15.0  # seconds: an idle session of the server flushes its statistics after ten

_PUT = "SELECT joex.put_periodic_task('task ' || n, 'bench.noop', $1) FROM generate_series(1, $2::int) n"
_SETTLED = "NOT EXISTS (SELECT FROM joex_private.periodic_task WHERE nextrun = '-infinity' AND enabled)"
_ASLEEP = "(SELECT count(*) = $1 FROM joex_private.asleep)"
_LISTENING = "(SELECT count(*) = $1 FROM pg_stat_activity WHERE application_name = 'joex scheduler listens')"
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1"
_RECORD = """
    CREATE TABLE decisions (id text, fire timestamptz, outcome text, at timestamptz);
    CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO decisions VALUES (NEW.id, NEW.last_run, NEW.last_outcome, NEW.marked);
        RETURN NULL;
    END $$;
    CREATE TRIGGER record AFTER UPDATE OF marked ON joex_private.periodic_task
        FOR EACH ROW WHEN (OLD.nextrun > '-infinity') EXECUTE FUNCTION record();
"""
_FINISH = (
    "UPDATE joex_private.job SET state = 'success', lane = NULL, finished_at = clock_timestamp() WHERE lane IS NOT NULL"
)
_RESULT = """
    SELECT count(*) AS times, count(*) FILTER (WHERE outcome = 'submitted') AS submitted,
           count(*) - count(DISTINCT (id, fire)) AS twice,
           coalesce(sum(extract(epoch FROM fire - before) - 1), 0)::int AS missed
    FROM (SELECT *, lag(fire) OVER (PARTITION BY id ORDER BY at) AS before FROM decisions) d
"""


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """The load of an idle database, and a thousand tasks that are due in each second."""
    return [
        *await _measure_idle(server_url, 20.0 if quick else 60.0),
        *await _measure_busy(server_url, 20 if quick else 60),
    ]


async def _measure_idle(server_url: str, window: float) -> list[Figure]:
    """Transactions per minute while no task is due; each is one statement."""
    found = []
    for tasks in (0, _DAILY):
        say(f"periodic: {_SCHEDULERS} schedulers, {tasks} tasks that are due once a day, for {window:.0f} s")
        async with fresh_database(server_url) as url:
            with RepeaterProcesses(url) as schedulers:
                for _ in range(_SCHEDULERS):
                    schedulers.start()
                found.append(await _transactions(server_url, url, _LISTENING, tasks, window))
    say(f"periodic: {_SCHEDULERS} executors, {_DAILY} tasks that are due once a day, for {window:.0f} s")
    async with fresh_database(server_url) as url:
        with ExitStack() as stack:
            for number in range(_SCHEDULERS):
                stack.enter_context(executor(url, f"idle-{number}"))
            whole = await _transactions(server_url, url, _ASLEEP, _DAILY, window)
    few = f"{_DAILY} tasks that are due once a day"
    return [
        Figure(f"{_SCHEDULERS} schedulers without a task", found[0], "statements/min", "below 60", found[0] < 60),
        Figure(f"{_SCHEDULERS} schedulers, {few}", found[1], "statements/min", "below 60", found[1] < 60),
        Figure(f"{_SCHEDULERS} executors, {few}, with their heartbeats", whole, "statements/min"),
    ]


async def _transactions(server_url: str, url: str, are_there: str, tasks: int, window: float) -> float:
    """Transactions of a database per minute, once these processes run and the tasks have their next times."""
    connection = await connect(url)
    await until(connection, are_there, _SCHEDULERS)
    await connection.execute("UPDATE joex_private.periodic_task SET enabled = false")  # maintenance
    await connection.execute(_PUT, "daily", tasks)
    await until(connection, _SETTLED)
    name = await connection.fetchval("SELECT current_database()")
    await connection.close()
    observer = await connect(server_url)
    await asyncio.sleep(_COUNTED_WITHIN)
    begin, before = time.perf_counter(), await observer.fetchval(_TRANSACTIONS, name)
    await asyncio.sleep(window)
    after = await observer.fetchval(_TRANSACTIONS, name)
    await observer.close()
    return float((after - before) * 60 / (time.perf_counter() - begin))


async def _measure_busy(server_url: str, seconds: int) -> list[Figure]:
    """A thousand one-second timers and twenty processes, one of which is killed every five seconds.

    A statement finishes the jobs, because this measures only their submission.
    """
    say(f"periodic: {_TASKS:,} one-second timers, {_REPEATERS} processes, some of them killed, for {seconds} s")
    async with fresh_database(server_url) as url:
        connection = await connect(url)
        await connection.execute(_RECORD)
        with RepeaterProcesses(url) as schedulers:
            for _ in range(_REPEATERS):
                schedulers.start()
            await until(connection, _LISTENING, _REPEATERS)
            await connection.execute(_PUT, "*:*:*", _TASKS)
            await until(connection, _SETTLED)
            await _work(connection, schedulers, seconds)
        [result] = await connection.fetch(_RESULT)
        waits = await connection.fetch("SELECT extract(epoch FROM at - fire)::float8 * 1000 AS ms FROM decisions")
        await connection.close()
    milliseconds = [row["ms"] for row in waits]
    what = f"{_TASKS:,} one-second timers, {_REPEATERS} processes:"
    return [
        Figure(f"{what} times decided", result["times"], f"in {seconds} s"),
        Figure(f"{what} of these, jobs made", result["submitted"], f"in {seconds} s"),
        Figure(f"{what} decided twice", result["twice"], "times", "0", result["twice"] == 0),
        Figure(f"{what} missed (caught up by a later one)", result["missed"], "times"),
        Figure(f"{what} due to submitted, p50", quantile(milliseconds, 0.5), "ms"),
        Figure(f"{what} due to submitted, p95", quantile(milliseconds, 0.95), "ms"),
    ]


async def _work(connection: asyncpg.Connection[Any], schedulers: RepeaterProcesses, seconds: int) -> None:
    chance = random.Random(1)
    begin = killed_at = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        await connection.execute(_FINISH)
        if now > killed_at + _KILL_EVERY:
            killed_at = now
            schedulers.kill(chance.randrange(len(schedulers.alive)))
            schedulers.start()
        await asyncio.sleep(_FINISH_EVERY)
