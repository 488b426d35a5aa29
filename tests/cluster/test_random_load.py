"""Bursts of jobs from several groups, while two pools grow and shrink all the time: no busy executor ends."""

import asyncio
import random
import urllib.request
from uuid import UUID

import pytest

from joex import NewJob
from tests.support.cluster.connection import Object
from tests.support.cluster.system import DEPLOYMENTS, System
from tests.support.cluster.terminations import Terminations

BURSTS = 15
GROUPS = ("blue", "green", "red")
MOST = 40


@pytest.mark.heavy
@pytest.mark.soak
async def test_random_load(system: System) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    operator = system.operator(poll_interval="200ms")
    await system.pool("small", scaling={"maxReplicas": 3})
    await system.pool("large", poolSize=4, scaling={"maxReplicas": 2})

    jobs: list[UUID | None] = []
    async with Terminations(system) as terminations:
        pauses = [number % 5 for number in range(BURSTS)]
        dice.shuffle(pauses)
        for pause in pauses:
            jobs += await system.client.submit_many(burst(dice))
            await until_next(pause, system, jobs)
        assert await system.effects.all_finished(jobs) == {"success": len(jobs)}
        await system.until_replicas()
        ended = terminations.pods
        assert terminations.too_early == []
    print(f"{len(jobs)} jobs; {len(ended)} pods ended")
    assert len(ended) > 5, "the pools have not shrunk between the bursts"
    assert await terminated_while_busy(operator.address) == 0.0

    lives = await system.db.fetch("SELECT DISTINCT attempt, losses FROM joex_private.job WHERE id = ANY ($1)", jobs)
    assert [tuple(row) for row in lives] == [(1, 0)]
    runs = await system.db.fetch("SELECT job_id, count(*) FROM effects GROUP BY 1")
    assert {row[0]: row[1] for row in runs} == dict.fromkeys(jobs, 1)
    endings = await system.db.fetch("SELECT DISTINCT ending FROM joex_private.executor")
    assert [row[0] for row in endings] == ["left"]
    await system.check()


def burst(dice: random.Random) -> list[NewJob]:
    """Jobs of a group or of several: most are short, a few are long."""
    groups = dice.sample(GROUPS, dice.randrange(1, 4))
    return [
        NewJob("sleep", {"milliseconds": dice.choice((1, 20, 200, dice.randrange(1500)))}, group=dice.choice(groups))
        for _ in range(dice.randrange(1, MOST))
    ]


async def until_next(pause: int, system: System, jobs: list[UUID | None]) -> None:
    """Return at once, or wait until half of the jobs, or all, are finished, or the pools shrink, or they are empty."""
    match pause:
        case 0:
            return
        case 1:
            await system.effects.all_finished(jobs[: len(jobs) // 2])
        case 2:
            await system.effects.all_finished(jobs)
        case 3:
            await until_fewer(system, len(await system.replicas()))
        case _:
            await system.until_replicas()


async def until_fewer(system: System, replicas: int) -> None:
    """Wait until there are fewer Deployments than this, or none."""

    def fewer(found: list[Object]) -> bool:
        return len(found) < max(replicas, 1)

    await system.api.until_all(DEPLOYMENTS, fewer, system.namespace)


async def terminated_while_busy(address: str) -> float:
    """The operator's count of executors that were terminated while busy."""
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{address}/metrics").read().decode())  # noqa: S310
    lines = [line for line in answer.splitlines() if line.startswith("joex_busy_executor_terminations_total")]
    assert lines
    return sum(float(line.rpartition(" ")[2]) for line in lines)
