"""Twenty processes submit the jobs of a thousand tasks that are due each second, while some are killed (kill -9).

`make bench ARGS=periodic` measures the delays.
"""

import random
from datetime import timedelta

import asyncpg
import pytest

from tests.support.apps import Effects
from tests.support.processes import ExecutorProcesses
from tests.support.schedulers import RECORD, RepeaterProcesses
from tests.support.soak import examples
from tests.support.waiting import eventually

TASKS, PROCESSES, EXECUTORS = 1000, 20, 2
PERIOD = timedelta(seconds=1)
TIMES, KILLS = examples(9), examples(18)  # the least numbers of times of each task, and of kills

_SET = """
    SELECT joex.put_periodic_task('task ' || n, 'quick', '*:*:*', grp => 'group ' || n % 20)
    FROM generate_series(1, $1::int) n
"""
_LEAST = "SELECT count(*) = $1 AND min(times) >= $2 FROM (SELECT count(*) AS times FROM decisions GROUP BY id) d"
_TWICE = "SELECT id, fire FROM decisions GROUP BY 1, 2 HAVING count(*) > 1"
_TWO_FOR_ONE_JOB = "SELECT job FROM decisions WHERE job IS NOT NULL GROUP BY 1 HAVING count(*) > 1"
_OVERLAPPING = """
    SELECT tracker FROM (SELECT tracker, submitted_at, lag(coalesce(finished_at, 'infinity'))
                         OVER (PARTITION BY tracker ORDER BY submitted_at) AS before FROM joex_private.job) j
    WHERE before > submitted_at
"""
# A time was left out which had not passed when the one before was decided; or one was decided that was not to come.
_MISSED = """
    SELECT * FROM (SELECT *, lead(fire) OVER (PARTITION BY id ORDER BY at) AS following FROM decisions) d
    WHERE next - $1::interval > at OR following <> next
"""
_WITHOUT_A_JOB = """
    SELECT count(*) FROM decisions d FULL JOIN joex_private.job j ON j.id = d.job
    WHERE (d.outcome = 'submitted' OR d.id IS NULL) AND (d.id IS NULL OR j.id IS NULL)
"""


@pytest.mark.heavy
async def test_each_time_of_a_thousand_tasks_is_decided_once_while_processes_are_killed(
    connection: asyncpg.Connection, executors: ExecutorProcesses, effects: Effects, database_url: str
) -> None:
    chance = random.Random(11)
    await connection.execute(RECORD)
    with RepeaterProcesses(database_url) as schedulers:
        for _ in range(PROCESSES - EXECUTORS):
            schedulers.start()
        await executors.start_all(*(f"executor {number}" for number in range(EXECUTORS)), pool_size=50)
        await eventually(lambda: _schedulers(connection, PROCESSES - EXECUTORS), why="all schedulers are connected")
        await connection.execute(_SET, TASKS)
        decided, kills = 0, 0
        while kills < KILLS or not await connection.fetchval(_LEAST, TASKS, TIMES):
            decided = await _more_decisions(connection, decided + TASKS // 2)
            schedulers.kill(chance.randrange(len(schedulers.alive)))
            schedulers.start()
            kills += 1
        await connection.execute("UPDATE joex_private.periodic_task SET enabled = false")
    assert await connection.fetch(_TWICE) == []
    assert await connection.fetch(_TWO_FOR_ONE_JOB) == []
    assert await connection.fetch(_MISSED, PERIOD) == []
    assert await connection.fetchval(_WITHOUT_A_JOB) == 0
    assert await connection.fetchval("SELECT count(DISTINCT worker) FROM decisions") > EXECUTORS
    await eventually(lambda: _all_finished(connection), why="the jobs are finished")
    assert await connection.fetch(_OVERLAPPING) == []


async def _schedulers(connection: asyncpg.Connection, enough: int) -> bool:
    listening = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'joex scheduler listens'"""
    return bool(await connection.fetchval(listening) >= enough)


async def _more_decisions(connection: asyncpg.Connection, enough: int) -> int:
    async def decisions() -> int:
        found = await connection.fetchval("SELECT count(*) FROM decisions")
        return int(found) if found >= enough else 0

    return int(await eventually(decisions, why=f"{enough} times are decided"))


async def _all_finished(connection: asyncpg.Connection) -> bool:
    return not await connection.fetchval("SELECT EXISTS (SELECT FROM joex_private.job WHERE finished_at IS NULL)")
