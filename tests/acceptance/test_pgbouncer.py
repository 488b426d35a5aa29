"""Behind PgBouncer in transaction mode, by its defaults: each transaction has another session of the server.

There are fewer sessions than connections, and each test has several clients at work at once. Joex has no setting
for a pooler. The tests also pass if the database's default isolation is SERIALIZABLE.
"""

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import joex
import joex.sync
from joex import Client
from joex.core.events import LeaseEnded, TrustEnded
from joex.errors import ConfigError
from joex.store.database import connect
from joex.store.migrate import check_schema, migrate
from tests.integration.test_periodic_operator import running_operator
from tests.support.apps import AnyClient, Effects
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import TestServer
from tests.support.processes import SHORT, ExecutorProcesses
from tests.support.processes_inside import executor_inside
from tests.support.waiting import PATIENCE, eventually

SESSIONS = 3
_LATER = "SELECT heartbeat_at > $2::timestamptz + interval '7 s' FROM joex_private.lease WHERE executor_id = $1"


@pytest.fixture
async def pgbouncer(postgres: TestServer) -> AsyncIterator[PgBouncer]:
    """PgBouncer in front of the server."""
    async with PgBouncer(postgres, sessions=SESSIONS) as pgbouncer:
        yield pgbouncer


@pytest.fixture(params=["read committed", "serializable"])
async def url(
    request: pytest.FixtureRequest, postgres: TestServer, database_name: str, pgbouncer: PgBouncer
) -> AsyncIterator[str]:
    """The test's database through PgBouncer, with each default isolation."""
    async with postgres.administrator() as administrator:
        await administrator.execute(
            f"ALTER DATABASE {database_name} SET default_transaction_isolation = '{request.param}'"
        )
    yield pgbouncer.url(database_name)
    async with postgres.administrator() as administrator:
        await administrator.execute(f"ALTER DATABASE {database_name} RESET ALL")
        await administrator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database_name
        )


@pytest.fixture
async def clients(url: str) -> AsyncIterator[list[AnyClient]]:
    """Several clients, each with its own connections."""
    clients = [Client(url) for _ in range(4)]
    yield clients
    for client in clients:
        await client.close()


def _app() -> joex.App:
    app = joex.App()

    @app.task("plain")
    async def plain(ctx: joex.Context, number: int = 0) -> int:
        ctx.log.info("number %s", number)
        ctx.progress(50)
        return number

    @app.task("fail", retries=0)
    async def fail(_ctx: joex.Context) -> None:
        raise ValueError("as asked")

    @app.task("transaction")
    async def transaction(ctx: joex.Context) -> None:
        async with ctx.transaction() as connection:
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
            await connection.execute("INSERT INTO written VALUES ($1)", ctx.job_id)

    @app.task("connection")
    async def connection(ctx: joex.Context) -> str:
        async with ctx.connection() as connection:
            await connection.executemany("INSERT INTO written VALUES ($1)", [(ctx.job_id,)])
            return str(await connection.fetchval("SHOW transaction_isolation"))

    return app


async def test_a_connection_that_is_pooled_finds_out_and_keeps_to_transactions(url: str) -> None:
    connection, other = await connect(url, synchronous_commit="off"), await connect(url)
    try:
        assert connection.is_pooled
        async with other.transaction(), connection.transaction():
            pass  # there are two sessions
        sessions = {await connection.fetchval("SELECT pg_backend_pid()") for _ in range(10)}
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
        async with connection.transaction():
            inside = {await connection.fetchval("SELECT pg_backend_pid()") for _ in range(5)}
        await connection.execute("VACUUM joex_private.job")
    finally:
        await connection.close()
        await other.close()
    assert len(inside) == 1
    assert len(sessions) == 2


async def test_threads_with_a_synchronous_client_all_succeed(url: str) -> None:
    def work(number: int) -> None:
        job_id = client.submit("plain", {"number": number}, group=f"g{number % 3}")
        assert len(client.submit_many([{"task": "plain"}] * 1001)) == 1001  # in two statements
        job = client.get(job_id)
        assert job is not None
        assert job.args == {"number": number}
        assert client.cancel(job_id) == "cancelled"
        assert client.wait(job_id) == client.get(job_id)
        assert client.retry(job_id)

    with joex.sync.Client(url) as client:
        await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(20)))
        with client._connections._pool.connection() as one, client._connections._pool.connection() as other:
            assert one.is_pooled
            with one.limited(), other.limited():
                settings = [
                    one.execute(f"SHOW {name}").fetchone() for name in ("statement_timeout", "transaction_isolation")
                ]
            sessions = {one.execute("SELECT pg_backend_pid()").fetchone() for _ in range(10)}
    assert settings == [("30s",), ("read committed",)]
    assert len(sessions) > 1


async def test_calls_of_several_clients_at_once_all_succeed(clients: list[AnyClient]) -> None:
    async def work(client: AnyClient, number: int) -> None:
        job_id = await client.submit("plain", {"number": number}, group=f"g{number % 3}")
        assert job_id is not None
        ids = await client.submit_many([{"task": "plain"}] * 3)
        job, *_ = await asyncio.gather(client.get(job_id), client.log(job_id), client.why(job_id))
        assert job is not None
        assert job.args == {"number": number}
        assert await client.cancel(job_id) == "cancelled"
        assert await client.retry(job_id)
        assert await client.set_priority(job_id, "high")
        async with client.acquire() as connection, connection.transaction():
            assert await client.submit("plain", connection=connection)
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
        assert len(ids) == 3

    await asyncio.gather(*(work(client, number) for number in range(20) for client in clients))
    async with clients[0].using() as connection:
        assert await connection.fetchval("SELECT count(*) FROM joex_private.job") == 20 * 4 * 5


async def test_executors_run_jobs_and_keep_their_leases(
    clients: list[AnyClient], url: str, connection: asyncpg.Connection
) -> None:
    await connection.execute("CREATE TABLE written (job_id uuid PRIMARY KEY)")
    try:
        async with (
            executor_inside(_app(), url, app_id="one") as one,
            executor_inside(_app(), url, app_id="two") as two,
        ):
            tasks = ["plain", "fail", "transaction", "connection"]
            ids: list[Any] = []
            for _ in range(10):
                for client in clients:
                    ids += await client.submit_many([{"task": task} for task in tasks])
            jobs = await asyncio.wait_for(clients[0].wait_many(ids), 3 * PATIENCE)
            states = [job.state for job in jobs if job is not None]
            assert states == ["success", "failed", "success", "success"] * 40
            assert {job.result for job in jobs if job is not None and job.task == "connection"} == {"read committed"}
            # They stay for longer than a lease without work.
            seen = await connection.fetch("SELECT executor_id, heartbeat_at FROM joex_private.lease ORDER BY 1")
            assert len(seen) == 2
            for executor, at in seen:
                await eventually(functools.partial(connection.fetchval, _LATER, executor, at), 60)
            last = await clients[1].submit("plain")
            assert last is not None
            job = await clients[1].wait(last, timeout=PATIENCE)
            assert job is not None
            assert job.state == "success"
            assert [line.message for line in await clients[2].log(last)] == ["number 0", "succeeded"]
            for inside in (one, two):
                assert not inside.log.of(LeaseEnded)
                assert not inside.log.of(TrustEnded)
        assert await connection.fetchval("SELECT count(*) FROM written") == 80
        left = await connection.fetch("SELECT left_at IS NOT NULL FROM joex_private.executor")
        assert [row[0] for row in left] == [True, True]
    finally:
        await connection.execute("DROP TABLE written")


async def test_a_job_that_runs_is_cancelled(clients: list[AnyClient], url: str) -> None:
    app, begun = joex.App(), asyncio.Event()

    @app.task("long")
    async def long(_ctx: joex.Context) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with executor_inside(app, url):
        job_id = await clients[0].submit("long")
        assert job_id is not None
        await asyncio.wait_for(begun.wait(), PATIENCE)
        assert await clients[1].cancel(job_id) == "requested"
        job = await clients[2].wait(job_id, timeout=PATIENCE)
        assert job is not None
        assert job.state == "cancelled"


async def test_who_waits_and_who_subscribes_is_told_and_who_wants_events_is_refused(
    clients: list[AnyClient], client: AnyClient
) -> None:
    ids = [job_id for job_id in await client.submit_many([{"task": "plain"}] * 4) if job_id]
    waits = [asyncio.create_task(one.wait(job_id)) for one, job_id in zip(clients, ids, strict=True)]
    async with clients[0].subscribe(*ids) as changes:
        assert {(await anext(changes))[0] for _ in ids} == set(ids)
        for job_id in ids:
            await client.cancel(job_id)
        heard = [await asyncio.wait_for(anext(changes), PATIENCE) for _ in ids]
        assert {(job_id, job and job.state) for job_id, job in heard} == {(job_id, "cancelled") for job_id in ids}
    for wait in waits:
        job = await asyncio.wait_for(wait, PATIENCE)
        assert job is not None
        assert job.state == "cancelled"
    with pytest.raises(ConfigError, match=r"events don't come through a pooler .* leads straight to the server"):
        async with clients[1].events():
            pass


async def test_keyed_workers_wait_for_work_and_end_it(clients: list[AnyClient]) -> None:
    done: list[Any] = []

    async def worker(client: AnyClient) -> None:
        while job := await client.keyed.accept("index", wait="1h"):
            assert await client.keyed.update("index", job.id, {"data": {"seen": True}}, job.lock_id) == "ok"
            assert await client.keyed.finish("index", job.id, {}, job.lock_id) == "ok"
            done.append(job.id)

    workers = [asyncio.create_task(worker(client)) for client in clients for _ in range(2)]
    for number in range(20):
        await clients[number % 4].keyed.add("index", number)
    finished = await asyncio.wait_for(clients[0].keyed.wait_many("index", range(20)), 2 * PATIENCE)
    assert [job.state for job in finished if job is not None] == ["finished"] * 20
    await eventually(lambda: sorted(done) == list(range(20)))
    await clients[0].keyed.add("index", "late")
    await eventually(lambda: "late" in done)
    for working in workers:
        working.cancel()
    await asyncio.wait(workers)


async def test_the_operator_measures_and_makes_the_jobs_of_periodic_tasks(
    url: str, connection: asyncpg.Connection
) -> None:
    async with running_operator(url, poll=0.2) as operator:
        operator.pool()
        operator.task("ticks")
        await eventually(lambda: operator.status("ticks").get("lastOutcome") == "overlapping", why="it was due twice")
        (job,) = await connection.fetch("SELECT id, queue FROM joex_private.job")
        assert operator.status("ticks")["lastJob"] == {"id": str(job["id"]), "state": "waiting"}
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        assert await connection.fetchval(listening) == 0


async def test_the_operator_finds_the_only_executor_dead_and_its_jobs_move_on(
    url: str, client: AnyClient, connection: asyncpg.Connection, pool: asyncpg.Pool, database_url: str
) -> None:
    """No executor is left that could rescue its jobs."""
    effects = Effects(pool, database_url)
    await effects.prepare()
    async with running_operator(url, poll=0.2) as operator:
        operator.pool()
        with ExecutorProcesses(effects, url) as executors:
            executor = await executors.start("the only one", lease=SHORT)
            job_id = await client.submit("hold", {"flag": "go"})
            await effects.begun(job_id)
            await executor.kill()
            waits = "SELECT state = 'waiting' AND losses = 1 FROM joex_private.job WHERE id = $1"
            await eventually(lambda: connection.fetchval(waits, job_id), why="the job waits again")


async def test_the_schema_is_brought_up_to_date(
    pgbouncer: PgBouncer, postgres: TestServer, empty_database_url: str
) -> None:
    del empty_database_url
    name = await postgres.create_database(migrated=False)
    connections = [await connect(pgbouncer.url(name)) for _ in range(3)]
    try:
        applied = await asyncio.gather(*map(migrate, connections))
        assert sorted(map(bool, applied)) == [False, False, True]
        await check_schema(connections[0])
    finally:
        for connection in connections:
            await connection.close()
        await postgres.drop_database(name)


async def test_a_pool_of_the_callers_own_works_where_it_prepares_nothing_and_else_says_what_to_do(url: str) -> None:
    async with asyncpg.create_pool(url, statement_cache_size=0, min_size=0) as pool:
        client = Client(pool)
        job_id = await client.submit("plain")
        assert isinstance(job_id, UUID)
        waiting = asyncio.create_task(client.wait(job_id))
        await client.cancel(job_id)
        job = await asyncio.wait_for(waiting, PATIENCE)
        assert job is not None
        assert job.state == "cancelled"
        await client.close()
    async with asyncpg.create_pool(url, min_size=0) as pool:
        client = Client(pool)

        async def refused() -> bool:
            calls = [client.submit("plain") for _ in range(20)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            return any(isinstance(a, ConfigError) and "statement_cache_size=0" in str(a) for a in answers)

        await eventually(refused)
        await client.close()
