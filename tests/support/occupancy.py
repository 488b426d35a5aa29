"""Occupancy of slots: jobs that last until the test ends them, run by real executors, one step at a time.

No job ends by itself, so the content of the slots does not depend on the speed of the machine: once all slots are full,
nothing changes until the next step.
"""

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tests.support.apps import AnyClient, Effects
from tests.support.processes import ExecutorProcesses
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Held:
    """A job that an executor holds."""

    id: UUID
    group: str
    flag: str
    executor: str


class Stage:
    """Groups with jobs, and executors that share them."""

    def __init__(
        self, client: AnyClient, connection: asyncpg.Connection, effects: Effects, executors: ExecutorProcesses
    ) -> None:
        self.executors = executors
        self._client = client
        self._connection = connection
        self._effects = effects
        self._flags = map("end {}".format, itertools.count(1))

    async def submit(self, **jobs: int) -> None:
        """Submit this many jobs of each group, in one transaction."""
        await self._client.submit_many(
            [
                {"task": "hold", "args": {"flag": next(self._flags)}, "group": group}
                for group, count in jobs.items()
                for _ in range(count)
            ]
        )

    async def start(self, *slots: int) -> None:
        """Start executors with this many slots each, called ``0``, ``1`` and so on."""
        await asyncio.gather(*(self.executors.start(str(number), pool_size=size) for number, size in enumerate(slots)))

    async def held(self) -> list[Held]:
        """The jobs that executors hold now, the longest held first."""
        rows = await self._connection.fetch("""
            SELECT id, grp, args::jsonb ->> 'flag', app_id FROM joex_private.job WHERE executor_id IS NOT NULL
            ORDER BY scheduled_at, seq
        """)
        return [Held(*row) for row in rows]

    async def full(self, slots: int, *, without: frozenset[UUID] = frozenset()) -> list[Held]:
        """Wait until this many slots are full, with other jobs than these. There is work, so no slot may stay free."""

        async def enough() -> list[Held] | None:
            held = await self.held()
            return held if len(held) == slots and not without & {job.id for job in held} else None

        found: list[Held] = await eventually(enough, why=f"{slots} slots are full")
        return found

    async def shares(self, slots: int) -> dict[str, int]:
        """Wait until this many slots are full; returns how many each group holds."""
        return by_group(await self.full(slots))

    async def end(self, *jobs: Held) -> None:
        """Let these jobs end, at the same time; returns at once."""
        await self._effects.flag(*(job.flag for job in jobs))

    async def step(self, ends: str | Held, *, slots: int) -> dict[str, int]:
        """Let a job (of a group: its oldest) end, and wait until its slot is full again; returns the shares then."""
        job = ends if isinstance(ends, Held) else next(job for job in await self.full(slots) if job.group == ends)
        await self.end(job)
        return by_group(await self.full(slots, without=frozenset([job.id])))

    async def most_at_a_time(self, group: str) -> int:
        """How many jobs of a group executors have ever held at the same time, by the times in the table."""
        found: int = await self._connection.fetchval(
            """
            SELECT max(count) FROM (
                SELECT count(*) FROM joex_private.job a JOIN joex_private.job b USING (grp)
                WHERE grp = $1 AND b.scheduled_at <= a.scheduled_at
                      AND a.scheduled_at < coalesce(b.finished_at, 'infinity')
                GROUP BY a.id) at_a_time
            """,
            group,
        )
        return found


def by_group(held: list[Held]) -> dict[str, int]:
    """How many of these jobs each group has."""
    return dict(Counter(job.group for job in held))
