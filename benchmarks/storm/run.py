"""The course of one storm: what the benchmark does to the executors, and what it sees."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg

from benchmarks.storm.observed import MIB, Sample, connections, sample
from benchmarks.storm.processes import Processes
from benchmarks.support import say, until
from joex.client.client import Client
from joex.store.executors import drain
from tests.support.pgbouncer import PgBouncer

SLOTS = 2
"""Of each executor."""
GROUPS = 200
"""Those that have a backlog."""

_BACKLOG = 8  # jobs of each group that wait
_AT_ONCE = 70  # jobs at most that are submitted for them in a second
_SHORTEST = 0.1  # seconds: of a job
_QUIET = 35.0  # seconds: executors close the connections of their start after thirty
_EVERY = 1.0
_COUNT_EVERY = 10.0
_SAMPLES = 20
_GIVE_UP = 150.0  # seconds: ten leases
_WORK_OFF = 300.0  # seconds at most for the jobs that are left when the storm is over

_EFFECTS = "CREATE TABLE effect (job_id uuid NOT NULL, grp text NOT NULL)"
_REGISTERED = "(SELECT count(*) = $1 FROM joex_private.executor WHERE left_at IS NULL)"
_WAITING = "SELECT grp, count(*) FROM joex_private.job WHERE lane IS NOT NULL GROUP BY grp"
_IDS = """
    SELECT coalesce(array_agg(id), '{}') FROM joex_private.executor
    WHERE starts_with(app_id, $1) AND left_at IS NULL
"""
_HOLD_NOTHING = "NOT EXISTS (SELECT FROM joex_private.job WHERE executor_id = ANY ($1::int[]))"
_ALL_FINISHED = "NOT EXISTS (SELECT FROM joex_private.job WHERE finished_at IS NULL)"
_SLOT_TIMES = """
    SELECT sum(extract(epoch FROM coalesce(finished_at, now()) - greatest(scheduled_at, $1)))::float8
    FROM joex_private.job
    WHERE grp LIKE 'group %' AND (executor_id IS NOT NULL OR finished_at > $1) GROUP BY grp
"""
_WAITS = """
    SELECT extract(epoch FROM scheduled_at - submitted_at)::float8 * 1000
    FROM joex_private.job WHERE starts_with(grp, $1) AND losses = 0 AND scheduled_at IS NOT NULL
"""
_DONE = """
    SELECT count(*) FROM joex_private.job j
    WHERE j.state = 'success' AND EXISTS (SELECT FROM effect e WHERE e.job_id = j.id)
"""
_FAILED = """
    SELECT format('%s: %s', state, error), count(*) FROM joex_private.job
    WHERE finished_at IS NOT NULL AND state <> 'success' GROUP BY 1
"""
_TWICE = "SELECT count(*) - count(DISTINCT job_id) FROM effect"
_LOSSES = "SELECT coalesce(sum(losses), 0) FROM joex_private.job"
_DECLARED_DEAD = """
    SELECT count(*) FROM joex_private.executor
    WHERE ending IN ('dead', 'replaced') AND substring(app_id FROM '^storm-[0-9]+') <> ALL ($1::text[])
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a storm.

    Attributes:
        processes: those of executors.
        each: executors of a process.
        seconds: how long it lasts.
        together: processes that are killed, or stopped, at once.
        longest: seconds of a job.
        every: seconds from the end of one disturbance to the next.
    """

    processes: int
    each: int
    together: int
    seconds: float
    longest: float
    every: float

    @property
    def executors(self) -> int:
        """All of them."""
        return self.processes * self.each

    @property
    def warm_up(self) -> float:
        """Seconds that don't count for the shares and the growth, and without disturbances."""
        return self.seconds * 0.3


@dataclass(slots=True)
class Seen:
    """What was seen.

    Attributes:
        rest, busy: connections of executors before the first job, and at several moments of the storm.
        samples: sizes.
        happened: numbers of disturbances.
        moved_on: seconds from each kill until its executors held no job any more.
        failures: processes that ended by themselves, or not well at SIGTERM.
        exited: numbers of executors that ended with an error, by the error.
        disowned: living executors that others declared dead.
        submitted, done, twice: jobs; those that succeeded and have an effect; effects that a job has beyond one.
        failed: numbers of jobs that failed, by state and error.
        losses: of jobs with their executors.
        shares: seconds of slots that each group with a backlog had, after the warm-up.
        waits, others_waits: milliseconds until the jobs of new tenants, and those of a backlog, were taken.
    """

    rest: dict[str, int] = field(default_factory=dict)
    busy: list[dict[str, int]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    moved_on: list[float] = field(default_factory=list)
    failures: int = 0
    exited: Counter[str] = field(default_factory=Counter)
    disowned: int = 0
    submitted: int = 0
    done: int = 0
    twice: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    losses: int = 0
    shares: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    others_waits: list[float] = field(default_factory=list)


class Storm:
    """A storm on a new database.

    Args:
        size: its size.
        fleet: starts processes of executors.
        watcher: connections straight to the server.
        client: submits.
        pgbouncer: through which executors reach the server, if they do.
    """

    def __init__(
        self,
        size: Size,
        fleet: Processes,
        watcher: asyncpg.Pool[Any],
        client: Client,
        pgbouncer: PgBouncer | None,
    ) -> None:
        self.seen = Seen()
        self._size = size
        self._fleet = fleet
        self._watcher = watcher
        self._client = client
        self._pgbouncer = pgbouncer
        self._begin = 0.0
        self._dead: list[str] = []  # processes

    async def run(self) -> None:
        """Start the executors, let them rest, and let the storm pass over them."""
        await self._watcher.execute(_EFFECTS)
        for _ in range(self._size.processes):
            self._fleet.start()
        say(f"storm: {self._size.executors} executors start")
        await until(self._watcher, _REGISTERED, self._size.executors)
        await asyncio.sleep(_QUIET)
        self.seen.rest = await connections(self._watcher, self._pgbouncer)
        say(f"storm: connections at rest: {self.seen.rest}; the storm of {self._size.seconds:.0f} s begins")
        self._begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for part in (
                self._feed,
                self._bring_new_tenants,
                self._count,
                self._sample,
                self._share,
                self._restart,
                self._disturb,
            ):
                group.create_task(part())
        await self._end()

    @property
    def _at(self) -> float:
        """Seconds since the storm began."""
        return time.monotonic() - self._begin

    @property
    def _is_over(self) -> bool:
        return self._at >= self._size.seconds

    async def _sample(self) -> None:
        for number in range(1, _SAMPLES + 1):
            await asyncio.sleep(number * self._size.seconds / _SAMPLES - self._at)
            one = await sample(self._watcher, self._fleet.living[self._fleet.oldest].pid, self._at)
            self.seen.samples.append(one)
            say(
                f"storm: {one.at:.0f} s: {one.finished:,} jobs finished; MiB: {one.jobs / MIB:.1f} of jobs, "
                f"{one.others / MIB:.2f} of other tables ({one.largest}), {one.process / MIB:.0f} of a process, "
                f"{one.session / MIB:.2f} of a session; {one.dead:,} dead rows"
            )

    async def _share(self) -> None:
        await asyncio.sleep(self._size.warm_up)
        since: datetime = await self._watcher.fetchval("SELECT now()")
        await asyncio.sleep(self._size.seconds - self._at)
        self.seen.shares = [row[0] for row in await self._watcher.fetch(_SLOT_TIMES, since)]

    async def _feed(self) -> None:
        """Keep the backlog of each group; build it up slowly, because new sessions of the server are expensive."""
        names = [f"group {number}" for number in range(GROUPS)]
        while not self._is_over:
            waiting = dict(await self._watcher.fetch(_WAITING))
            missing = Counter({name: max(_BACKLOG - waiting.get(name, 0), 0) for name in names})
            most = round(_AT_ONCE * min(self._at / self._size.warm_up, 1))
            await self._submit(random.sample(list(missing.elements()), min(missing.total(), most)))
            await asyncio.sleep(_EVERY)

    async def _bring_new_tenants(self) -> None:
        for number in itertools.count():
            if self._is_over:
                return
            await self._submit([f"new {number}"])
            await asyncio.sleep(_EVERY)

    async def _submit(self, groups: list[str]) -> None:
        await self._client.submit_many(
            {"task": "storm.work", "group": group, "args": {"seconds": self._seconds()}} for group in groups
        )
        self.seen.submitted += len(groups)

    def _seconds(self) -> float:
        return random.uniform(_SHORTEST, self._size.longest)

    async def _count(self) -> None:
        """Count the connections."""
        while not self._is_over:
            self.seen.busy.append(await connections(self._watcher, self._pgbouncer))
            await asyncio.sleep(_COUNT_EVERY)

    async def _restart(self) -> None:
        """Start processes for those that exit by themselves, as an orchestrator would do."""
        while not self._is_over:
            exited = self._fleet.restart()
            self.seen.failures += len(exited)
            self._dead += exited
            await asyncio.sleep(_EVERY)

    async def _disturb(self) -> None:
        """Kill and stop processes, except the oldest, and drain executors; in turns."""
        await asyncio.sleep(self._size.warm_up)
        for act in itertools.cycle((self._kill, self._drain, self._stop)):
            await asyncio.sleep(self._size.every)
            if self._is_over:
                return
            others = [name for name in self._fleet.living if name != self._fleet.oldest]
            await act(random.sample(others, self._size.together))

    async def _kill(self, names: list[str]) -> None:
        self._dead += names
        begin = time.monotonic()
        await asyncio.gather(*(self._fleet.end(name, signal.SIGKILL) for name in names))
        victims = [one for name in names for one in await self._watcher.fetchval(_IDS, f"{name}-")]
        for _ in names:
            self._fleet.start()
        with suppress(TimeoutError):  # the figure is a lower bound then, and misses its goal
            await until(self._watcher, _HOLD_NOTHING, victims, patience=_GIVE_UP)
        self.seen.moved_on.append(time.monotonic() - begin)
        self.seen.happened["killed"] += len(victims)
        say(f"storm: {len(victims)} executors killed; their jobs moved on after {self.seen.moved_on[-1]:.1f} s")

    async def _drain(self, names: list[str]) -> None:
        app_ids = [f"{name}-{number}" for name in names for number in range(self._size.each)]
        async with self._watcher.acquire() as connection:
            for app_id in random.sample(app_ids, len(app_ids) // 2):
                self.seen.happened["drained"] += len(await drain(connection, app_id))

    async def _stop(self, names: list[str]) -> None:
        codes = await asyncio.gather(*(self._fleet.end(name, signal.SIGTERM) for name in names))
        self.seen.failures += sum(code != 0 for code in codes)
        for _ in names:
            self._fleet.start()
        self.seen.happened["stopped"] += self._size.each * len(names)

    async def _end(self) -> None:
        """Let all that is left end, and look what has become of the jobs."""
        with suppress(TimeoutError):  # what is left then counts as lost
            await until(self._watcher, _ALL_FINISHED, patience=_WORK_OFF)
        seen, value = self.seen, self._watcher.fetchval
        seen.done, seen.twice, seen.losses = await value(_DONE), await value(_TWICE), await value(_LOSSES)
        seen.failed = Counter(dict(await self._watcher.fetch(_FAILED)))
        seen.waits = [row[0] for row in await self._watcher.fetch(_WAITS, "new ")]
        seen.others_waits = [row[0] for row in await self._watcher.fetch(_WAITS, "group ")]
        codes = await asyncio.gather(*(self._fleet.end(name, signal.SIGTERM) for name in list(self._fleet.living)))
        seen.failures += sum(code != 0 for code in codes)
        seen.disowned = await value(_DECLARED_DEAD, self._dead)
        seen.exited = Counter(self._fleet.lines)
        for what, told in (("executors ended", seen.exited), ("jobs failed", seen.failed)):
            for error, times in told.items():
                say(f"storm: {times} {what}: {error}")
