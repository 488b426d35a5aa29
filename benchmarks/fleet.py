"""The take in the state of production: all slots are held, and all groups have a backlog.

E executors of S slots hold a job in each slot. In each step one executor ends one job and takes one, over eight
connections. Jobs of every second group are ten times shorter: they end ten times as often. Meanwhile new tenants submit
their first job. A plain first-in-first-out take of the same shape runs in turns with Joex on the same server: the price
of fairness is the extra cost of Joex.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import asyncpg

from benchmarks.cpu import cpu_seconds, server_process
from benchmarks.report import Figure, quantile
from benchmarks.shares import jain
from benchmarks.side_by_side import FINISH, REGISTER, TAKE, by_turns, ratio
from benchmarks.support import fresh_database, say
from joex.store.database import connect

_CONNECTIONS = 8
_SHORTER = 10  # times
_NEW_TENANT_EVERY = 0.25  # seconds
_ROUNDS = 5

_HOLD = """
    INSERT INTO joex_private.job (queue, grp, task, state, executor_id, app_id, lock_id, scheduled_at, started_at)
    SELECT 'default', 'group ' || n % $2, 'bench.noop', 'running', ($1::int[])[1 + n % cardinality($1::int[])], 'bench',
           gen_random_uuid(), clock_timestamp(), clock_timestamp()
    FROM generate_series(1, $3::int) n RETURNING executor_id, id, lock_id, grp
"""
_STOCK = """
    INSERT INTO joex_private.job (queue, grp, task, lane)
    SELECT 'default', 'group ' || n % $2, 'bench.noop', 2 FROM generate_series(1, $1::int) n
"""
_SHARES = """
    SELECT grp, count(*) FROM joex_private.job WHERE executor_id IS NOT NULL AND grp LIKE 'group %' GROUP BY grp
"""
_WAITS = """
    SELECT extract(epoch FROM coalesce(scheduled_at, clock_timestamp()) - runnable_since)::float8
    FROM joex_private.job WHERE grp = ANY ($1::text[])
"""
_FORGET = "DELETE FROM joex_private.job WHERE grp = ANY ($1::text[]) AND lane IS NOT NULL"

_PLAIN = """
    CREATE TABLE plain (
        id bigserial PRIMARY KEY, grp text NOT NULL,
        task text NOT NULL DEFAULT 'bench.noop', args jsonb NOT NULL DEFAULT '{}',
        state text NOT NULL DEFAULT 'waiting', executor_id integer, lock_id uuid,
        submitted_at timestamptz NOT NULL DEFAULT now(), scheduled_at timestamptz, finished_at timestamptz
    ) WITH (
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
    );
    CREATE INDEX plain_waiting ON plain (id) WHERE state = 'waiting';
    CREATE INDEX plain_held ON plain (executor_id) WHERE executor_id IS NOT NULL;
    CREATE INDEX plain_finished ON plain (finished_at) WHERE finished_at IS NOT NULL;
"""
_PLAIN_HOLD = """
    INSERT INTO plain (grp, state, executor_id, lock_id, scheduled_at)
    SELECT 'group ' || n % $2, 'running', ($1::int[])[1 + n % cardinality($1::int[])], gen_random_uuid(), now()
    FROM generate_series(1, $3::int) n RETURNING executor_id, id, lock_id, grp
"""
_PLAIN_STOCK = "INSERT INTO plain (grp) SELECT 'group ' || n % $2 FROM generate_series(1, $1::int) n"
_PLAIN_TAKE = """
    UPDATE plain SET state = 'running', executor_id = $1, lock_id = gen_random_uuid(), scheduled_at = clock_timestamp()
    WHERE id = (SELECT id FROM plain WHERE state = 'waiting' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, lock_id, grp
"""
_PLAIN_FINISH = """
    UPDATE plain SET state = 'success', executor_id = NULL, finished_at = clock_timestamp()
    WHERE id = $1 AND lock_id = $2
"""


class Shape(NamedTuple):
    """The numbers of executors, of slots of each, and of groups with a backlog."""

    executors: int
    slots: int
    groups: int

    def __str__(self) -> str:
        return f"{self.executors} x {self.slots} slots, {_groups(self.groups)}"


def _groups(number: int) -> str:
    return "one group" if number == 1 else f"{number:,} groups"


_BASE = Shape(1, 20, 10)
_ALONE = Shape(500, 20, 1)
_THOUSAND = Shape(500, 20, 1000)
_LARGE = (Shape(500, 20, 100), _THOUSAND, Shape(500, 20, 5000))
_SHAPES = (_BASE, Shape(50, 20, 100), *_LARGE, Shape(50, 20, 1), _ALONE)


class Held(NamedTuple):
    """A job that an executor holds."""

    id: Any
    lock_id: Any
    grp: str

    @property
    def is_short(self) -> bool:
        """Whether it ends soon: jobs of new tenants do, and those of every second group."""
        return not self.grp.startswith("group ") or int(self.grp.split()[1]) % 2 == 0


@dataclass(slots=True)
class Slice:
    """The figures of some seconds: the steps, their seconds and CPU time of the server, and each take.

    ``jain``: of the slots held at the end. ``waits``: of the first jobs of new tenants.
    """

    steps: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    takes: list[float] = field(default_factory=list)
    jain: float = 0.0
    waits: list[float] = field(default_factory=list)

    @property
    def cpu_per_job(self) -> float:
        """In seconds."""
        return self.cpu / self.steps

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.steps / self.wall


class Fleet(ABC):
    """A fleet whose slots are all held, on its own database."""

    def __init__(self, shape: Shape, connections: Sequence[asyncpg.Connection[Any]], pids: list[int]) -> None:
        self.shape = shape
        self.visitor, *self._connections = connections
        self._pids = pids
        self._held: dict[int, list[Held]] = {}
        self._executors: Iterator[int] = iter(())

    async def fill(self, backlog: int) -> None:
        """Make executors, the jobs that they hold, and the backlog."""
        executors = await self._register()
        rows = await self._hold(executors, self.shape.executors * self.shape.slots)
        for executor, *job in rows:
            self._held.setdefault(executor, []).append(Held(*job))
        random.shuffle(executors)
        self._executors = itertools.cycle(executors)
        await self._stock(backlog)
        await self.visitor.execute("VACUUM (ANALYZE)")
        await self.visitor.execute("CHECKPOINT")

    async def measure(self, seconds: float) -> Slice:
        """Measure steps for this many seconds."""
        found = Slice()
        cpu, begin = sum(map(cpu_seconds, self._pids)), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for connection in self._connections:
                group.create_task(self._work(connection, begin + seconds, found))
            group.create_task(self._bring_new_tenants(begin + seconds))
        found.wall, found.cpu = time.perf_counter() - begin, sum(map(cpu_seconds, self._pids)) - cpu
        shares = [count for _, count in await self._shares()]
        found.jain = jain(shares + [0] * (self.shape.groups - len(shares)))
        return found

    async def _work(self, connection: asyncpg.Connection[Any], until: float, found: Slice) -> None:
        while time.perf_counter() < until:
            executor = next(self._executors)
            held = self._held[executor]
            ends = random.choices(range(len(held)), [_SHORTER if one.is_short else 1 for one in held])[0]
            await self._finish(connection, held.pop(ends))
            begin = time.perf_counter()
            rows = await self._take(connection, executor)
            found.takes.append(time.perf_counter() - begin)
            found.steps += 1
            if len(rows) != 1:
                raise RuntimeError(f"fleet: a take of one job has brought {len(rows)}")
            held.append(Held(*rows[0]))

    @abstractmethod
    async def _bring_new_tenants(self, until: float) -> None: ...
    @abstractmethod
    async def _register(self) -> list[int]: ...
    @abstractmethod
    async def _hold(self, executors: list[int], jobs: int) -> list[asyncpg.Record]: ...
    @abstractmethod
    async def _stock(self, jobs: int) -> None: ...
    @abstractmethod
    async def _take(self, connection: asyncpg.Connection[Any], executor: int) -> list[asyncpg.Record]: ...
    @abstractmethod
    async def _finish(self, connection: asyncpg.Connection[Any], job: Held) -> None: ...
    @abstractmethod
    async def _shares(self) -> list[asyncpg.Record]: ...


class JoexFleet(Fleet):
    """Executors of Joex."""

    _tenants = itertools.count()

    async def measure(self, seconds: float) -> Slice:
        """The same, with the waits of new tenants; a tenant whose job is not taken by the end has waited until then."""
        self._new: list[str] = []
        found = await super().measure(seconds)
        found.waits = [row[0] for row in await self.visitor.fetch(_WAITS, self._new)]
        await self.visitor.execute(_FORGET, self._new)
        return found

    async def _bring_new_tenants(self, until: float) -> None:
        while time.perf_counter() < until:
            self._new.append(f"new {next(self._tenants)}")
            await self.visitor.execute("SELECT joex.submit('bench.noop', grp => $1)", self._new[-1])
            await asyncio.sleep(_NEW_TENANT_EVERY)

    async def _register(self) -> list[int]:
        names = [f"executor {number}" for number in range(self.shape.executors)]
        return [await self.visitor.fetchval(REGISTER, name, "default") for name in names]

    async def _hold(self, executors: list[int], jobs: int) -> list[asyncpg.Record]:
        return await self.visitor.fetch(_HOLD, executors, self.shape.groups, jobs)

    async def _stock(self, jobs: int) -> None:
        await self.visitor.execute(_STOCK, jobs, self.shape.groups)

    async def _take(self, connection: asyncpg.Connection[Any], executor: int) -> list[asyncpg.Record]:
        return await connection.fetch(TAKE, executor, "default", 1)

    async def _finish(self, connection: asyncpg.Connection[Any], job: Held) -> None:
        await connection.execute(FINISH, [job.id], [job.lock_id], 1)

    async def _shares(self) -> list[asyncpg.Record]:
        return await self.visitor.fetch(_SHARES)


class PlainFleet(Fleet):
    """The same with a table, one update to take and one to finish: first in, first out."""

    async def _bring_new_tenants(self, until: float) -> None:
        """Bring none: the first job of a new tenant would wait for the whole backlog."""

    async def _register(self) -> list[int]:
        await self.visitor.execute(_PLAIN)
        return list(range(1, self.shape.executors + 1))

    async def _hold(self, executors: list[int], jobs: int) -> list[asyncpg.Record]:
        return await self.visitor.fetch(_PLAIN_HOLD, executors, self.shape.groups, jobs)

    async def _stock(self, jobs: int) -> None:
        await self.visitor.execute(_PLAIN_STOCK, jobs, self.shape.groups)

    async def _take(self, connection: asyncpg.Connection[Any], executor: int) -> list[asyncpg.Record]:
        return await connection.fetch(_PLAIN_TAKE, executor)

    async def _finish(self, connection: asyncpg.Connection[Any], job: Held) -> None:
        await connection.execute(_PLAIN_FINISH, job.id, job.lock_id)

    async def _shares(self) -> list[asyncpg.Record]:
        return []


async def measure(server_url: str, *, quick: bool) -> list[Figure]:
    """The cost and the length of a take by the size of the fleet, and their comparison."""
    seconds, backlog = (1.0, 20_000) if quick else (3.0, 80_000)
    async with AsyncExitStack() as stack:
        fleets: list[Fleet] = []
        for shape, kind in itertools.product(_SHAPES, (JoexFleet, PlainFleet)):
            connections, pids = await stack.enter_async_context(_connections(server_url))
            fleets.append(kind(shape, connections, pids))
            if kind is JoexFleet:
                say(f"fleet: {shape} take what they can")
            await fleets[-1].fill(backlog)
        say(f"fleet: {_ROUNDS} rounds of {seconds:.0f} s for each, beside first in, first out")
        await by_turns(fleets, 1, lambda fleet: fleet.measure(1.0))  # the first takes make their plans
        slices = dict(zip(fleets, await by_turns(fleets, _ROUNDS, lambda one: one.measure(seconds)), strict=True))
        joex = {fleet.shape: slices[fleet] for fleet in fleets if isinstance(fleet, JoexFleet)}
        plain = {fleet.shape: slices[fleet] for fleet in fleets if isinstance(fleet, PlainFleet)}
    figures = [figure for shape in _SHAPES for figure in _of_shape(shape, joex[shape], plain[shape])]
    return figures + _verdicts(joex, plain)


@asynccontextmanager
async def _connections(server_url: str) -> AsyncIterator[tuple[Sequence[asyncpg.Connection[Any]], list[int]]]:
    """A connection for visitors and eight for takes, and the server's processes of these."""
    async with fresh_database(server_url) as url:
        connections = [await connect(url) for _ in range(_CONNECTIONS + 1)]
        found = [await server_process(connection) for connection in connections[1:]]
        try:
            yield connections, [pid for pid in found if pid is not None]
        finally:
            for connection in connections:
                await connection.close()


def _of_shape(shape: Shape, joex: Sequence[Slice], plain: Sequence[Slice]) -> list[Figure]:
    waits = [wait for one in joex for wait in one.waits]
    takes = [take for one in joex for take in one.takes]
    return [
        Figure(f"fleet of {shape}: server's CPU per job", _cpu(joex) * 1000, "ms"),
        Figure(f"fleet of {shape}: the same, first in, first out", _cpu(plain) * 1000, "ms"),
        Figure(f"fleet of {shape}: through {_CONNECTIONS} connections", _rate(joex), "jobs/s"),
        Figure(f"fleet of {shape}: take of 1, p50", quantile(takes, 0.5) * 1000, "ms"),
        Figure(f"fleet of {shape}: take of 1, p95", quantile(takes, 0.95) * 1000, "ms"),
        Figure(f"fleet of {shape}: wait of a new tenant's first job, p95", quantile(waits, 0.95) * 1000, "ms"),
    ]


def _cpu(slices: Sequence[Slice]) -> float:
    return statistics.median(one.cpu_per_job for one in slices)


def _rate(slices: Sequence[Slice]) -> float:
    return statistics.median(one.rate for one in slices)


def _verdicts(joex: dict[Shape, list[Slice]], plain: dict[Shape, list[Slice]]) -> list[Figure]:
    def cpu(of: list[Slice], to: list[Slice]) -> float:
        return ratio([one.cpu_per_job for one in of], [one.cpu_per_job for one in to])

    def rate(of: list[Slice], to: list[Slice]) -> float:
        return ratio([one.rate for one in of], [one.rate for one in to])

    longest = max(wait for one in joex[_THOUSAND] for wait in one.waits)
    figures = []
    for shape in _LARGE:
        figures += [
            _below(f"server's CPU per job, {shape} against {_BASE}", cpu(joex[shape], joex[_BASE]), 1.5),
            _below(f"server's CPU per job, {shape}, against first in, first out", cpu(joex[shape], plain[shape]), 2.0),
        ]
    return [
        *figures,
        _above(f"jobs/s, {_THOUSAND} against {_BASE}", rate(joex[_THOUSAND], joex[_BASE]), 0.8),
        _above(f"jobs/s, {_ALONE} against {_groups(_THOUSAND.groups)}", rate(joex[_ALONE], joex[_THOUSAND]), 1.0),
        *(
            _above(f"Jain's index of slots held, {shape}", min(one.jain for one in joex[shape]), 0.99, "")
            for shape in _LARGE
        ),
        _below(f"a new tenant's first job, {_THOUSAND}, the longest wait", longest * 1000, 300, "ms"),
    ]


def _below(what: str, value: float, aim: float, unit: str = "x") -> Figure:
    return Figure(f"fleet: {what}", value, unit, f"at most {aim:g}", value <= aim)


def _above(what: str, value: float, aim: float, unit: str = "x") -> Figure:
    return Figure(f"fleet: {what}", value, unit, f"at least {aim:g}", value >= aim)
