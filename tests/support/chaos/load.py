"""Does the load of a schedule: submissions, cancels, pauses and the like, waits, and jobs that always wait."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from uuid import UUID, uuid4

import asyncpg

import joex
from joex.runtime.identity import is_certainly_gone
from joex.store.executors import Other
from tests.support.apps import TROUBLE
from tests.support.chaos.app import ORDERED, PATIENT, PERIODIC, TYPE
from tests.support.chaos.schedule import EVEN, LIMITED, LONG, LONG_WEIGHT, PAUSED, Step
from tests.support.chaos.world import World
from tests.support.waiting import eventually

_FINAL = frozenset({"success", "failed", "cancelled"})
# Groups whose jobs always wait: at least this many, which take this many seconds.
_BACKLOGS = {
    "even short": (12, 0.2, 0.4),
    "even long": (12, 0.6, 1.2),
    "even double": (12, 0.4, 0.8),
    LONG: (2, 10, 20),
}
_PERIODIC = {"tick one": ("*:*:*", 0.2), "tick two": ("*:*:0/2", 2.5)}
_SAMPLE_EVERY = 0.25
_SAMPLE = """
    SELECT grp, sum(held), sum(waiting) FROM (
        SELECT grp, count(*) AS held, 0 AS waiting FROM joex_private.job WHERE executor_id IS NOT NULL GROUP BY grp
        UNION ALL
        SELECT grp, 0, count(*) FROM joex_private.job WHERE lane IS NOT NULL GROUP BY grp
    ) counts GROUP BY grp
"""
_HEARD_OF = """
    SELECT e.id FROM joex_private.executor e JOIN joex_private.lease l ON l.executor_id = e.id
    WHERE l.heartbeat_at > e.started_at + interval '0.1 s'
"""
_DEAD = """
    SELECT id, pod_uid, host, boot_id, pid, process_start, NULL::float AS silent, draining
    FROM joex_private.executor
    WHERE ending IN ('dead', 'replaced') AND id = ANY ($1)
"""
_LEFT = "SELECT count(*) FROM joex_private.job WHERE finished_at IS NULL"


class Load:
    """The clients of a run.

    Attributes:
        acts: how many acts of each kind were acknowledged.
        refused: how many acts failed because the database was not available.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.acts: dict[str, int] = {}
        self.refused = 0
        self._world = world
        self._client = joex.Client(world.clients.url, timeout="10s")
        self._patient = joex.Client(world.clients.url, timeout="10s", patience="60s")
        self._dice = random.Random(f"backlog {seed}")
        self._recent: deque[UUID] = deque(maxlen=40)
        self._waiting: dict[str, int] = {}
        self._living: set[int] = set()
        self._waits: list[asyncio.Task[None]] = []
        self._acts: dict[str, Callable[[Step], Awaitable[None]]] = {
            "submit": self._submit,
            "transaction": self._submit_order,
            "keyed": self._add,
            "patient": self._submit_patiently,
            "cancel": self._cancel,
            "pause": self._pause,
            "resume": self._resume,
            "weight": self._set_weight,
            "retry": self._retry,
            "priority": self._set_priority,
        }

    async def prepare(self) -> None:
        """Set limits, weights, timeouts and periodic tasks."""
        async with self._world.administrator() as connection:
            for group, limit in LIMITED.items():
                await connection.execute("SELECT joex.set_group($1, max_running => $2)", group, limit)
            for group, weight in {**EVEN, LONG: LONG_WEIGHT}.items():
                await connection.execute("SELECT joex.set_group($1, weight => $2)", group, weight)
            await self._client.keyed.set_timeout(TYPE, activity="8s", connection=connection)
            for name, (timer, seconds) in _PERIODIC.items():
                await self._client.periodic.put(
                    name, PERIODIC, timer, args={"seconds": seconds}, group=name, connection=connection
                )

    async def run(self, steps: Iterable[Step], began: float) -> None:
        """Do each step at its time, beside the ones before that have not returned."""
        async with asyncio.TaskGroup() as group:
            for step in steps:
                await asyncio.sleep(began + step.at - time.monotonic())
                group.create_task(self._do(step))

    async def watch(self) -> None:
        """Take samples, and keep jobs of the even groups waiting, until cancelled."""
        while True:
            with suppress(*TROUBLE):
                async with self._world.administrator() as connection:
                    while True:
                        rows = await connection.fetch(_SAMPLE)
                        held = {row[0]: int(row[1]) for row in rows}
                        self._waiting = {row[0]: int(row[2]) for row in rows}
                        self._world.history.note("sample", held=held, waiting=self._waiting)
                        await self._find_dead(connection)
                        await self._refill()
                        await asyncio.sleep(_SAMPLE_EVERY)
            await asyncio.sleep(_SAMPLE_EVERY)

    async def _find_dead(self, connection: asyncpg.Connection) -> None:
        """Write down which processes are there although their executors were declared dead.

        Of executors that have sent a heartbeat: a process does not know of a registration whose answer was lost, and
        registers again.
        """
        self._living.update(row["id"] for row in await connection.fetch(_HEARD_OF))
        for row in await connection.fetch(_DEAD, list(self._living)):
            executor = Other(*row)
            self._living.discard(executor.id)
            if not is_certainly_gone(executor):  # (in an hour, another process may get its pid)
                self._world.history.note("dead", pid=executor.pid)

    async def settle(self) -> list[str]:
        """Let all jobs run that wait, and wait for them; then for the answers to waits. Returns what went wrong.

        The checker tells of the jobs that have not ended, and of the waits that were not answered.
        """
        async with self._world.administrator() as connection:
            await connection.execute("SELECT joex.enable_periodic_task(id, false) FROM joex.periodic_tasks")
            await connection.execute("SELECT joex.set_group($1, paused => false)", PAUSED)
            with suppress(AssertionError):
                left = await connection.fetchval(_LEFT)
                while left:  # (however many there are, as long as some end)
                    (left,) = await eventually(partial(_fewer, connection, left), why="jobs end")
                await eventually(lambda: all(task.done() for task in self._waits), why="all waits are answered")
        failed = [task.exception() for task in self._waits if task.done() and not task.cancelled()]
        return [f"a wait failed: {error!r}" for error in failed if error is not None]

    async def close(self) -> None:
        """End the waits that were not answered."""
        for task in self._waits:
            task.cancel()
        await asyncio.gather(*self._waits, return_exceptions=True)
        await self._client.close()
        await self._patient.close()

    async def _do(self, step: Step) -> None:
        try:
            await self._acts[step.act](step)
        except joex.JoexError:
            self.refused += 1
        else:
            self.acts[step.act] = self.acts.get(step.act, 0) + 1

    async def _refill(self) -> None:
        new = [
            {
                # (Exclusive runs that are longer than leases are the ones that must end in time.)
                "task": "exclusive" if group == LONG else self._dice.choice(("work", "commit")),
                "args": {"seconds": self._dice.uniform(shortest, longest)},
                "group": group,
            }
            for group, (least, shortest, longest) in _BACKLOGS.items()
            if self._waiting.get(group, 0) < least
            for _ in range(least)
        ]
        if new:
            async with asyncio.timeout(10):
                with suppress(joex.JoexError):
                    for job in await self._client.submit_many(new):
                        self._note_submitted(job)

    def _note_submitted(self, job: UUID | None) -> None:
        assert job is not None
        self._world.history.note("submitted", id=job)

    async def _submit(self, step: Step) -> None:
        job = await self._client.submit(
            step.task,
            {"seconds": step.seconds},
            group=step.group,
            priority=step.priority,
            not_before=f"{step.chance}s" if step.chance < 0.1 else None,
        )
        assert job is not None
        self._note_submitted(job)
        self._recent.append(job)
        if step.chance > 0.7:
            self._world.history.note("asked", id=job)
            wait = self._wait(job) if step.chance > 0.85 else self._subscribe(job)
            self._waits.append(asyncio.create_task(wait))

    async def _wait(self, job_id: UUID) -> None:
        job = await self._client.wait(job_id)
        if job is not None:
            self._world.history.note("ended", id=job_id, state=job.state)

    async def _subscribe(self, job_id: UUID) -> None:
        async with self._client.subscribe(job_id) as changes:
            async for _, job in changes:
                if job is not None and job.state in _FINAL:
                    self._world.history.note("ended", id=job_id, state=job.state)
                    return

    async def _submit_order(self, step: Step) -> None:
        order = uuid4()
        try:
            async with self._client.acquire() as connection, connection.transaction():
                job = await self._client.submit(
                    ORDERED, {"seconds": step.seconds / 4}, group=step.group, connection=connection
                )
                await connection.execute("INSERT INTO chaos.purchase VALUES ($1, $2)", order, job)
                if step.chance < 0.3:
                    raise _Undo  # noqa: TRY301 - as the transaction must see it
        except _Undo:
            self._world.history.note("undone", id=order)
        except TROUBLE as error:
            raise joex.DatabaseUnavailable(str(error)) from error
        else:
            self._world.history.note("ordered", id=order)
            self._note_submitted(job)

    async def _add(self, step: Step) -> None:
        job = await self._client.keyed.add(
            TYPE, uuid4(), {"data": {"seconds": min(step.seconds, 2)}, "priority": step.chance}
        )
        self._note_submitted(job)

    async def _submit_patiently(self, step: Step) -> None:
        self._note_submitted(
            await self._patient.submit(
                PATIENT,
                {"seconds": min(step.seconds, 2), "mark": str(uuid4())},
                group=step.group,
                priority=step.priority,
            )
        )

    async def _cancel(self, step: Step) -> None:
        await self._client.cancel(self._some(step))

    async def _set_priority(self, step: Step) -> None:
        await self._client.set_priority(self._some(step), step.priority)

    async def _retry(self, step: Step) -> None:
        job = self._some(step)
        self._world.history.note("retried", id=job)
        await self._client.retry(job)

    async def _pause(self, _step: Step) -> None:
        await self._set_group("paused => true", PAUSED)

    async def _resume(self, _step: Step) -> None:
        await self._set_group("paused => false", PAUSED)

    async def _set_weight(self, step: Step) -> None:
        await self._set_group(f"weight => {1 + int(3 * step.chance)}", PAUSED)

    async def _set_group(self, change: str, group: str) -> None:
        try:
            async with self._client.acquire() as connection:
                await connection.execute(f"SELECT joex.set_group($1, {change})", group)
        except TROUBLE as error:
            raise joex.DatabaseUnavailable(str(error)) from error

    def _some(self, step: Step) -> UUID:
        if not self._recent:
            raise joex.DatabaseUnavailable("there is no job yet")
        return self._recent[int(step.chance * len(self._recent))]


class _Undo(Exception):
    """Not an error: rolls back."""


async def _fewer(connection: asyncpg.Connection, before: int) -> tuple[int] | None:
    left = await connection.fetchval(_LEFT)
    return (left,) if left < before else None
