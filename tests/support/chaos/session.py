"""A run: the world, the load and the faults together, for a time; then the world is mended, and judged."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tests.support.chaos import schedule
from tests.support.chaos.app import COMMITS, ORDERED, PERIODIC
from tests.support.chaos.checker import Breach, Database, Decision, End, Job, Rules, check, shares
from tests.support.chaos.faults import Faults
from tests.support.chaos.history import read
from tests.support.chaos.load import Load
from tests.support.chaos.schedule import EVEN, LIMITED, Fault
from tests.support.chaos.world import LEASE, World

EXECUTORS = 3
_RATE = 4.0
_RULES = Rules(commits=COMMITS, ordered=ORDERED, periodic=PERIODIC, limits=LIMITED, weights=EVEN, lease=LEASE)
_JOBS = """
    SELECT j.id::text, j.state::text, j.task, j.grp, CASE WHEN j.finished_at IS NULL THEN (
        SELECT string_agg(format('%s %s', w.reason, w.detail), '; ') FROM joex.why(j.id) w) END
    FROM joex_private.job j
"""


@dataclass(frozen=True)
class Plan:
    """A run.

    Attributes:
        seed: of the faults and the load.
        seconds: for how long they go on.
        is_synchronous: whether commits wait for the standby.
    """

    seed: int
    seconds: float
    is_synchronous: bool = True


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        plan: the run.
        seconds: how long it took, with start and end.
        breaches: of guarantees.
        faults: how many of each kind there were.
        acts: how many acts of clients of each kind were acknowledged; ``refused``: how many failed.
        jobs: how many have ended, by state; ``runs``: how many runs of them began.
        effects: how many there are.
        times: of periodic tasks that were decided.
        shares: of how many samples, and the slots that each even group held for its weight.
        exits: of processes, by name and exit code.
    """

    plan: Plan
    seconds: float
    breaches: list[Breach]
    faults: Mapping[str, int]
    acts: Mapping[str, int]
    refused: int
    jobs: Mapping[str, int]
    runs: int
    effects: int
    times: int
    shares: tuple[int, dict[str, float]]
    exits: Mapping[str, int]


async def run(plan: Plan, folder: Path, say: Callable[[str], None]) -> Result:
    """Run, and judge. ``folder`` gets the history and the logs."""
    began = time.monotonic()
    async with World(folder, executors=EXECUTORS, is_synchronous=plan.is_synchronous) as world:
        load = Load(world, plan.seed)
        await load.prepare()
        say("the servers and processes are there; faults and load begin")
        async with asyncio.TaskGroup() as background:
            keeping = background.create_task(_keep_running(world))
            await _let_loose(plan, world, load, say)
            say("faults and load are over; what is left runs")
            try:
                unsettled = await load.settle()
                database = await _read(world)
            finally:
                keeping.cancel()
                await load.close()
        exits = Counter(f"{member.name}: {code}" for member in world.members for code in member.exits)
    history = read(world.history_file.read_text().splitlines())
    say(f"judging {len(history.runs)} runs of {len(database.jobs)} jobs")
    return Result(
        plan=plan,
        seconds=time.monotonic() - began,
        breaches=[*check(history, database, _RULES), *(Breach("waits", what) for what in unsettled)],
        faults=history.faults,
        acts=load.acts,
        refused=load.refused,
        jobs=Counter(job.state for job in database.jobs.values()),
        runs=len(history.runs),
        effects=len(database.effects),
        times=len(database.decisions),
        shares=shares(history, _RULES.weights),
        exits=exits,
    )


async def _let_loose(plan: Plan, world: World, load: Load, say: Callable[[str], None]) -> None:
    """Break and load the world for as long as the plan says."""
    began = time.monotonic()
    # (The clients' link is the last target.)
    of_processes, of_servers = schedule.faults(plan.seed, plan.seconds, len(world.members) + 1)
    breaker = Faults(world)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(load.watch())
        async with asyncio.TaskGroup() as all_of_it:
            all_of_it.create_task(load.run(schedule.load(plan.seed, plan.seconds, _RATE), began))
            all_of_it.create_task(_break_processes(breaker, of_processes, began, say))
            all_of_it.create_task(_break_servers(breaker, of_servers, began, say))
            all_of_it.create_task(asyncio.sleep(plan.seconds))
        watching.cancel()


async def _keep_running(world: World) -> None:
    while True:
        for member in world.members:
            member.keep_running()
        await asyncio.sleep(0.1)


async def _break_processes(breaker: Faults, faults: Sequence[Fault], began: float, say: Callable[[str], None]) -> None:
    """Their faults overlap."""
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            await asyncio.sleep(began + fault.at - time.monotonic())
            say(f"{fault.kind} of process {fault.target} for {fault.seconds:.1f} s")
            group.create_task(breaker.do(fault))


async def _break_servers(breaker: Faults, faults: Sequence[Fault], began: float, say: Callable[[str], None]) -> None:
    """One after the other."""
    for fault in faults:
        await asyncio.sleep(began + fault.at - time.monotonic())
        say(f"{fault.kind}, for {fault.seconds:.1f} s")
        await breaker.do(fault)


async def _read(world: World) -> Database:
    """What the database has in the end."""
    async with world.administrator() as connection:
        await connection.execute("SET statement_timeout = 0")

        async def rows(query: str) -> list[asyncpg.Record]:
            return await connection.fetch(query)

        return Database(
            jobs={row[0]: Job(row[1], row[2], row[3], row[4] or "") for row in await rows(_JOBS)},
            ends=[End(*row) for row in await rows("SELECT job::text, state, lock::text, result FROM chaos.job_end")],
            effects=[(row[0], row[1]) for row in await rows("SELECT job::text, lock::text FROM chaos.effect")],
            orders={row[0]: row[1] for row in await rows("SELECT id::text, job::text FROM chaos.purchase")},
            decisions=[Decision(*row) for row in await rows("SELECT id, fire::text, job::text FROM decisions")],
            marks=[row[0] for row in await rows("SELECT args ->> 'mark' FROM joex_private.job WHERE args ? 'mark'")],
        )
