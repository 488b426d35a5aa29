"""Fleets whose slots are all held: of Joex, and of a plain first-in-first-out table of the same shape."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import asyncpg

from benchmarks.cpu import cpu_seconds
from benchmarks.shares import jain
from benchmarks.side_by_side import FINISH, REGISTER, TAKE

_SHORTER = 10  # times
_NEW_TENANT_EVERY = 0.25  # seconds

_HOLD = """
    INSERT INTO joex_private.job (queue, grp, task, state, executor_id, app_id, lock_id, scheduled_at, started_at)
    SELECT 'default', 'group ' || n % $2, 'bench.noop', 'running', ($1::int[])[1 + n % cardinality($1::int[])], 'bench',
           gen_random_uuid(), clock_timestamp(), clock_timestamp()
    FROM generate_series(1, $3::int) n RETURNING executor_id, id, lock_id, grp
"""
_STOCK = """
    INSERT INTO joex_private.job (queue, grp, task, lane)
    SELECT 'default', grp, 'bench.noop', 2 FROM unnest($1::text[]) grp
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
_PLAIN_STOCK = "INSERT INTO plain (grp) SELECT unnest($1::text[])"
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


class Held(NamedTuple):
    """A job that an executor holds."""

    id: Any
    lock_id: Any
    grp: str

    @property
    def is_of_new_tenant(self) -> bool:
        """Whether it is the first job of a tenant that has come meanwhile."""
        return not self.grp.startswith("group ")

    @property
    def is_short(self) -> bool:
        """Whether it ends soon: jobs of new tenants do, and those of every second group."""
        return self.is_of_new_tenant or int(self.grp.split()[1]) % 2 == 0


@dataclass(slots=True)
class Slice:
    """The figures of some seconds: the steps, their seconds and CPU time of the server, and each take.

    ``groups``: of the jobs taken, without those of new tenants. ``jain``: of the slots held at the end. ``waits``: of
    the first jobs of new tenants.
    """

    steps: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    takes: list[float] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
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
        await self._stock([f"group {number % self.shape.groups}" for number in range(backlog)])
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
        await self._stock(found.groups)  # each slice begins with the same backlog
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
            job = Held(*rows[0])
            held.append(job)
            if not job.is_of_new_tenant:
                found.groups.append(job.grp)

    @abstractmethod
    async def _bring_new_tenants(self, until: float) -> None: ...
    @abstractmethod
    async def _register(self) -> list[int]: ...
    @abstractmethod
    async def _hold(self, executors: list[int], jobs: int) -> list[asyncpg.Record]: ...
    @abstractmethod
    async def _stock(self, groups: Sequence[str]) -> None: ...
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

    async def _stock(self, groups: Sequence[str]) -> None:
        await self.visitor.execute(_STOCK, groups)

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

    async def _stock(self, groups: Sequence[str]) -> None:
        await self.visitor.execute(_PLAIN_STOCK, groups)

    async def _take(self, connection: asyncpg.Connection[Any], executor: int) -> list[asyncpg.Record]:
        return await connection.fetch(_PLAIN_TAKE, executor)

    async def _finish(self, connection: asyncpg.Connection[Any], job: Held) -> None:
        await connection.execute(_PLAIN_FINISH, job.id, job.lock_id)

    async def _shares(self) -> list[asyncpg.Record]:
        return []
