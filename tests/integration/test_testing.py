"""``joex.testing``: jobs run inside a user's own test."""

import asyncio

import asyncpg
import pytest

import joex
from joex.testing import RunFailed, drain


@pytest.fixture
def app(connection):
    app = joex.App()

    @app.task("add")
    async def add(ctx: joex.Context, a: int, b: int) -> int:
        ctx.log.info("%d and %d", a, b)
        ctx.progress(50, "half")
        return a + b

    @app.task("blocking")
    def blocking(ctx: joex.Context) -> str:
        return "from a thread"

    @app.task("fan out")
    async def fan_out(ctx: joex.Context, jobs: int) -> None:
        async with ctx.connection() as used:
            client = joex.Client("postgresql://unused")
            for nr in range(jobs):
                await client.submit("add", {"a": nr, "b": nr}, queue="others", connection=used)

    @app.task("store", retries=2)
    async def store(ctx: joex.Context, value: int) -> None:
        async with ctx.transaction(result={"stored": value}) as used:
            await used.execute("INSERT INTO stored VALUES ($1)", value)

    @app.task("break", retries=2, retry_delay="1h")
    async def broken(ctx: joex.Context) -> None:
        async with ctx.connection() as used:
            await used.execute("SELECT 1 / 0")

    @app.task("store in process", process=True)
    def store_in_process(ctx: joex.Context, value: int) -> None:
        with ctx.transaction(result={"stored": value}) as used:
            used.execute("INSERT INTO stored VALUES (%s)", (value,))

    @app.task("sleepy")
    async def sleepy(ctx: joex.Context) -> None:
        raise joex.Retry("not yet", after="1h") if ctx.attempt == 1 else joex.Fail("never")

    return app


@pytest.fixture
async def client(database_url):
    async with joex.Client(database_url) as client:
        yield client


async def test_jobs_run_in_their_order_and_come_back_as_they_are_stored(app, client):
    await client.submit("add", {"a": 1, "b": 2})
    await client.submit("blocking", priority="high")
    jobs = await drain(app, client)
    assert [(job.task, job.state, job.result) for job in jobs] == [
        ("blocking", "success", "from a thread"),
        ("add", "success", 3),
    ]
    assert (jobs[1].progress, jobs[1].progress_message, jobs[1].attempt) == (100, "half", 1)
    assert [line.message for line in await client.log(jobs[1].id)] == ["1 and 2", "succeeded"]
    assert await drain(app, client) == []


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_pool_of_ones_own_may_have_any_default_isolation(app, database_url, isolation):
    settings = {"default_transaction_isolation": isolation}
    async with asyncpg.create_pool(database_url, min_size=0, server_settings=settings) as pool:
        client = joex.Client(pool)
        async with pool.acquire() as connection:
            for database in (client, connection):
                await client.submit("add", {"a": 1, "b": 2})
                assert [job.result for job in await drain(app, database)] == [3]
            assert await connection.fetchval("SHOW transaction_isolation") == isolation
        assert await pool.fetchval("SELECT count(*) FROM joex_private.executor WHERE left_at IS NULL") == 0


async def test_groups_take_turns_as_in_an_executor(app, client):
    for group in ("acme", "acme", "globex"):
        await client.submit("add", {"a": 1, "b": 2}, group=group)
    jobs = await drain(app, client)
    assert [job.group for job in jobs] in (["acme", "globex", "acme"], ["globex", "acme", "acme"])


async def test_all_of_it_happens_in_the_tests_own_transaction(app, connection, client):
    await connection.execute("CREATE TABLE stored (value integer)")
    transaction = connection.transaction()
    await transaction.start()
    job_id = await client.submit("store", {"value": 7}, connection=connection)
    [job] = await drain(app, connection)
    assert (job.id, job.state, job.result) == (job_id, "success", {"stored": 7})
    assert await connection.fetchval("SELECT value FROM stored") == 7
    await transaction.rollback()
    assert await connection.fetchval("SELECT count(*) FROM stored") == 0
    assert await client.get(job_id) is None
    assert await connection.fetchval("SELECT count(*) FROM joex_private.executor") == 0


async def test_jobs_that_jobs_submit_run_too_whatever_their_queue(app, connection):
    await joex.Client("postgresql://unused").submit("fan out", {"jobs": 3}, connection=connection)
    jobs = await drain(app, connection)
    assert [(job.task, job.queue) for job in jobs] == [("fan out", "default")] + [("add", "others")] * 3


async def test_other_queues_are_left_alone(app, client):
    await client.submit("blocking", queue="others")
    assert await drain(app, client, queues=["default"]) == []
    assert len(await drain(app, client, queues=["others"])) == 1


async def test_a_run_that_fails_is_raised_with_what_went_wrong(app, connection, client):
    job_id = await client.submit("break")
    told = r"task 'break' is stuck: asyncpg\.exceptions\.DivisionByZeroError[\s\S]*SELECT 1 / 0"
    with pytest.raises(RunFailed, match=told) as raised:
        await drain(app, client)
    assert raised.value.job.id == job_id
    assert (await client.get(job_id)).state == "stuck"


async def test_a_failure_in_an_open_transaction_does_not_end_that(app, connection):
    async with connection.transaction():
        await joex.Client("postgresql://unused").submit("break", connection=connection)
        jobs = await drain(app, connection, raise_failures=False)
        assert [job.state for job in jobs] == ["stuck"]
        assert await connection.fetchval("SELECT state::text FROM joex.jobs") == "stuck"


async def test_retries_wait_for_their_time(app, client):
    await client.submit("break")
    assert [job.state for job in await drain(app, client, raise_failures=False)] == ["stuck"]
    assert await drain(app, client, raise_failures=False) == []


async def test_early_runs_what_is_due_later_until_its_end(app, client):
    await client.submit("break")
    await client.submit("sleepy", not_before="1h")
    jobs = await drain(app, client, early=True, raise_failures=False)
    assert [job.state for job in jobs if job.task == "break"] == ["stuck", "stuck", "failed"]
    assert [job.state for job in jobs if job.task == "sleepy"] == ["stuck", "failed"]


async def test_a_task_that_the_app_does_not_know_fails_loudly(app, client):
    await client.submit("unheard of")
    with pytest.raises(RunFailed, match=r"unheard of.*is unknown to this executor"):
        await drain(app, client)


async def test_jobs_without_end_are_noticed(app, client):
    @app.task("again")
    async def again(ctx: joex.Context) -> None:
        await client.submit("again")

    await client.submit("again")
    with pytest.raises(RuntimeError, match="still work after 5 runs: next is task 'again'"):
        await drain(app, client, most=5)


async def test_nothing_is_left_running(app, client, connection):
    await client.submit("add", {"a": 1, "b": 2})
    await drain(app, client)
    assert await connection.fetchval("SELECT count(*) FROM joex.executors WHERE left_at IS NULL") == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_run_that_returns_though_its_job_was_cancelled_is_cleaned_up(client):
    app, cleaned = joex.App(), []

    @app.task("task")
    async def task(ctx: joex.Context) -> str:
        assert await client.cancel(ctx.job_id) == "requested"
        return "done"

    @task.on_cancel
    async def clean_up(ctx: joex.Context) -> None:
        cleaned.append(ctx.job_id)

    job_id = await client.submit("task")
    [job] = await drain(app, client)
    assert (job.state, cleaned) == ("cancelled", [job_id])


async def test_a_job_that_its_run_removes_is_left_out(app, client):
    @app.task("remove itself")
    async def remove_itself(ctx: joex.Context) -> None:
        await client.remove(ctx.job_id)

    await client.submit("remove itself")
    await client.submit("add", {"a": 1, "b": 2})
    assert [job.task for job in await drain(app, client)] == ["add"]


async def test_a_plain_function_of_a_process_has_its_connections(app, client, connection):
    await connection.execute("CREATE TABLE stored (value integer)")
    await client.submit("store in process", {"value": 7})
    assert [job.result for job in await drain(app, client)] == [{"stored": 7}]
    assert await connection.fetchval("SELECT value FROM stored") == 7


async def test_so_has_one_that_is_of_processes_by_the_setting(client):
    app = joex.App()

    @app.task("by setting")
    def by_setting(ctx: joex.Context) -> None:
        with ctx.transaction(result="stored"):
            pass

    await client.submit("by setting", retries=0)
    with pytest.raises(RunFailed, match="processes=True, if executors have that setting"):
        await drain(app, client)
    await client.submit("by setting")
    assert [job.result for job in await drain(app, client, processes=True)] == ["stored"]


async def test_in_a_transaction_of_the_test_it_is_told_that_it_needs_a_client(app, connection):
    async with connection.transaction():
        await joex.Client("postgresql://unused").submit("store in process", {"value": 7}, connection=connection)
        with pytest.raises(RunFailed, match="give drain a client"):
            await drain(app, connection)
