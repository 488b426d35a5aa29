"""Fixtures of the tests of the store: connections, executors, and jobs in any state."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from joex import Client, KeyedJobs
from joex.core.job import NewJob, Priority, TakenJob
from joex.core.lease import Mark
from joex.core.priority_turns import CountingScheme
from joex.store import executors, jobs, migrate, runs
from joex.store.database import connect
from joex.store.executors import NewExecutor, Registered
from tests.support.waiting import eventually

FOUR_ONE = CountingScheme(4, 1)
MOST_LOSSES = 5
EVER = 1e9
"""Seconds: a judge that has observed for a long time."""
_AGES = [leases * lease + 0.5 for lease in (6, 3600) for leases in (1, 5)]  # of the leases that tests have


def marks(watched: float = EVER) -> list[Mark]:
    """The marks of a judge after this many seconds; beats are thousandths of a second before now (`silence`)."""
    return [Mark(age, round(-1000 * age)) for age in _AGES if age <= watched]


@pytest.fixture
async def another_connection(database_url: str) -> AsyncIterator[Callable[[], Awaitable[asyncpg.Connection]]]:
    """Makes more connections; they are closed after the test."""
    made: list[asyncpg.Connection] = []

    async def connect_again() -> asyncpg.Connection:
        made.append(await connect(database_url, name="joex test, another"))
        return made[-1]

    yield connect_again
    for connection in made:
        await connection.close(timeout=10)


@pytest.fixture
async def login(
    request: pytest.FixtureRequest, database_url: str, connection: asyncpg.Connection
) -> AsyncIterator[Callable[[str], Awaitable[asyncpg.Connection]]]:
    """Logs in as one of the roles in the test file's ``ROLES``, which are new and have no right.

    Each sets READ COMMITTED, as third-party executors and workers must.
    """
    async with AsyncExitStack() as stack:
        for role in request.module.ROLES:
            await connection.execute(f"CREATE ROLE {role} LOGIN")

        async def log_in(role: str) -> asyncpg.Connection:
            settings = {"default_transaction_isolation": "read committed"}
            made = await asyncpg.connect(database_url, user=role, server_settings=settings)
            stack.push_async_callback(made.close)
            return made

        yield log_in
    for role in request.module.ROLES:
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


class Bench:
    """A database with executors and jobs, driven by hand through one connection."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def register(
        self,
        app_id: str = "me",
        *,
        gone: int | None = None,
        beside: Sequence[int] = (),
        watched: float = EVER,
        **more: Any,
    ) -> Registered:
        """Register an executor; by default one with a long lease and without a session lock."""
        fields: dict[str, Any] = {
            "app_id": app_id,
            "pod_uid": None,
            "host": "host",
            "boot_id": "boot",
            "pid": 1,
            "process_start": "1",
            "version": "0",
            "queues": ["default"],
            "tasks": ["a"],
            "pool_size": 4,
            "most_losses": MOST_LOSSES,
            "http_address": None,
            "lease": timedelta(hours=1),
            "locks": False,
            **more,
        }
        me = NewExecutor(**fields)
        return await executors.register(self.connection, me, gone, beside=beside, marks=marks(watched))

    async def executor(self, app_id: str = "me", **more: Any) -> int:
        """The id of a new executor."""
        registered = await self.register(app_id, **more)
        assert registered.id is not None
        return registered.id

    async def submit(self, group: str = "default", priority: str = "low", **fields: Any) -> UUID:
        """The id of a new job."""
        job = NewJob(**{"task": "a", "group": group, "priority": Priority(priority), **fields})
        found = await jobs.submit(self.connection, job)
        assert found is not None
        return found

    async def take(
        self, executor: int, free: int = 1, scheme: CountingScheme = FOUR_ONE, *, give_back_nr: int = 0
    ) -> list[TakenJob]:
        """Take jobs of the default queue."""
        return await runs.take(self.connection, executor, ["default"], free, scheme, give_back_nr=give_back_nr)

    async def take_one(self, executor: int) -> TakenJob:
        """Take a job; there must be one."""
        [job] = await self.take(executor)
        return job

    async def start(self, *taken: TakenJob) -> None:
        """Mark runs as running."""
        await runs.start_many(self.connection, [(job.id, job.lock_id, 0.0) for job in taken])

    async def finish(self, job: TakenJob, state: str = "success", **more: Any) -> list[str]:
        """End a run; returns the answers, none if it ended as said."""
        ended = runs.EndedRun(job.id, job.lock_id, state, **more)
        return [answer for _, answer in await runs.finish_many(self.connection, [ended])]

    async def job(self, job_id: UUID) -> jobs.Job:
        """A job as it is stored."""
        found = await jobs.get_job(self.connection, job_id)
        assert found is not None
        return found

    async def state(self, job_id: UUID) -> str:
        """The state of a job."""
        return (await self.job(job_id)).state

    async def job_in(self, state: str, executor: int, **fields: Any) -> UUID:
        """The id of a new job that has reached a state in the usual way. No other job may be runnable meanwhile."""
        job_id = await self.submit(**fields)
        if state == "waiting":
            return job_id
        taken = await self.take_one(executor)
        assert taken.id == job_id
        if state != "scheduled":
            await self.start(taken)
        if state not in ("scheduled", "running"):
            assert await self.finish(taken, state, delay=3600.0, age=1.0) == []
        assert await self.state(job_id) == state
        return job_id

    async def silence(self, executor: int, leases: float) -> None:
        """Let an executor have been silent for this many of its leases."""
        await self.connection.execute(
            """
            UPDATE joex_private.lease l
            SET heartbeat_at = clock_timestamp() - e.lease * $2::float8, beat = -1000 * extract(epoch FROM e.lease) * $2
            FROM joex_private.executor e WHERE e.id = l.executor_id AND e.id = $1
            """,
            executor,
            leases,
        )

    async def rescue(
        self, *, watched: float = EVER, connection: asyncpg.Connection | None = None
    ) -> list[tuple[int, str, int]]:
        """Rescue once, as a judge that has observed this many seconds: (id, app-id, jobs put back) of each."""
        return await executors.rescue(connection or self.connection, marks(watched))

    async def held(self, executor: int) -> list[UUID]:
        """The jobs that an executor holds."""
        rows = await self.connection.fetch(
            "SELECT id FROM joex_private.job WHERE executor_id = $1 ORDER BY seq", executor
        )
        return [row["id"] for row in rows]


@pytest.fixture
def bench(connection: asyncpg.Connection) -> Bench:
    """A database with executors and jobs, driven by hand."""
    return Bench(connection)


@pytest.fixture
def waiting_for_a_lock() -> Callable[..., Any]:
    """A block that begins when a call waits for a lock: ``async with waiting_for_a_lock(observer, call) as task``."""
    return _waiting_for_a_lock


@pytest.fixture
async def heard(another_connection):
    """The wake-ups so far, each as the list of executors that it names; `flush` waits for all that were sent."""
    listener = await another_connection()
    messages: list = []
    flushed = asyncio.Event()

    def hear(_connection, _pid, channel, payload):
        flushed.set() if channel == "flush" else messages.append(json.loads(payload))

    for channel in ("joex_wake", "flush"):
        await listener.add_listener(channel, hear)

    async def flush():
        flushed.clear()
        await (await another_connection()).execute("NOTIFY flush")
        await asyncio.wait_for(flushed.wait(), 30)
        return messages

    return flush


@asynccontextmanager
async def _waiting_for_a_lock(observer: asyncpg.Connection, blocked: Awaitable[Any]) -> AsyncIterator[asyncio.Task]:
    """Start a call; the block begins when it waits for a lock, or is done."""
    task = asyncio.ensure_future(blocked)
    assert isinstance(task, asyncio.Task)

    async def waits_or_is_done() -> bool:
        waits = "SELECT count(*) > 0 FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                 WHERE NOT l.granted AND a.datname = current_database()"
        return task.done() or bool(await observer.fetchval(waits))

    try:
        await eventually(waits_or_is_done)
        yield task
        await asyncio.wait_for(asyncio.shield(task), 30)
    finally:
        if not task.done():
            task.cancel()


@pytest.fixture
def keyed(client: Client) -> KeyedJobs:
    """The API of keyed jobs."""
    return client.keyed


@pytest.fixture
def rows(connection: asyncpg.Connection) -> Callable[[], Awaitable[Any]]:
    """Reads all rows of jobs, for comparison."""

    async def read() -> Any:
        tables = [await connection.fetch(f"TABLE joex_private.{name}") for name in ("job", "task_timeout", "job_log")]
        return [sorted(str(tuple(row)) for row in table) for table in tables]

    return read


@pytest.fixture
def upgrade(monkeypatch):
    """Make a version of Joex that is newer by one number, in which the statements with this beginning differ."""
    files = migrate._files

    def make(*beginnings, sql="SELECT 1"):
        def newer(folder):
            found = files(folder)
            for beginning in beginnings:
                found = [(name, text.replace(f"\n{beginning}", f"\n{beginning} ")) for name, text in found]
            return [*found, ("9999_next.sql", sql)] if folder == "migrations" else found

        monkeypatch.setattr(migrate, "_files", newer)

    return make
