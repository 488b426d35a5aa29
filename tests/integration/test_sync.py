"""The synchronous client with connections of its own: threads, forks, waits, patience, errors."""

import asyncio
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest

import joex
import joex.sync
from joex.client.sync_connections import SyncConnections
from joex.testing import drain
from tests.support.postgres import TestServer
from tests.support.proxy import At
from tests.support.waiting import PATIENCE, eventually

OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'joex client' AND datname = current_database()"

app = joex.App()


@app.task("sums.add")
def add(ctx: joex.Context, a: int, b: int) -> int:
    return a + b


@pytest.fixture
def sync(database_url: str) -> Iterator[joex.sync.Client]:
    """A client of the test's database."""
    with joex.sync.Client(database_url) as client:
        yield client


def test_jobs_are_submitted_read_and_changed_without_an_event_loop(sync: joex.sync.Client) -> None:
    job_id = add.options(group="acme", tracker="t").submit(sync, a=1, b=2)
    assert job_id is not None
    assert add.options(group="acme", tracker="t").submit(sync, a=1, b=2) is None
    job = sync.get(job_id)
    assert job is not None
    assert (job.group, job.args, job.state) == ("acme", {"a": 1, "b": 2}, "waiting")
    assert [reason.reason for reason in sync.why(job_id)] == ["no_executor"]
    assert len(set(sync.submit_many([{"task": "a"}] * 1001))) == 1001, "two statements"
    assert sync.cancel(job_id) == "cancelled"
    assert sync.retry(job_id)
    assert (sync.log(job_id), sync.attempts(job_id)) == ([], [])
    assert sync.periodic.put("nightly", "sums.add", "daily")
    assert [one.id for one in sync.periodic.list("user")] == ["nightly"]
    sync.groups.set("acme", weight=3)
    assert [(one.group, one.weight) for one in sync.groups.settings()] == [("acme", 3)]
    sync.queues.set("mail", paused=True)
    assert [one.queue for one in sync.queues.paused()] == ["mail"]
    with pytest.raises(joex.InvalidJob, match=r"arguments of task 'sums\.add'"):
        add.submit(sync, a="x", b=2)  # type: ignore[arg-type]


async def test_a_call_may_be_made_beside_an_event_loop_too(sync: joex.sync.Client, client: joex.Client) -> None:
    job_id = add.submit(sync, a=1, b=2)
    assert await client.get(job_id) == sync.get(job_id)


def test_a_call_ends_though_the_server_has_stopped(postgres: TestServer, database_url: str) -> None:
    with joex.sync.Client(database_url, timeout="5s") as client:
        job_id = client.submit("a")
        assert job_id is not None
        postgres.pause()
        try:
            with pytest.raises(joex.DatabaseUnavailable, match="the server has not answered within 5 s"):
                client.get(job_id)
        finally:
            postgres.resume()
        assert client.get(job_id) is not None


# ---- waits


async def test_a_wait_ends_with_the_job_and_gives_its_result(
    sync: joex.sync.Client, client: joex.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_polls = set[int]()
    sleep = SyncConnections._sleep

    async def noted(self: SyncConnections, seconds: float) -> None:
        between_polls.add(threading.get_ident())
        await sleep(self, seconds)

    monkeypatch.setattr(SyncConnections, "_sleep", noted)
    one, two = sync.submit_many([{"task": "sums.add", "args": {"a": 1, "b": 2}}] * 2)
    assert one is not None
    assert two is not None
    results = asyncio.to_thread(add.result, sync, one, timeout=PATIENCE)
    both = asyncio.to_thread(sync.wait_many, [two, uuid4(), one], timeout=PATIENCE)
    waits = asyncio.gather(results, both)
    await eventually(lambda: len(between_polls) == 2, why="both have looked once")
    await drain(app, client)
    result, found = await waits
    assert result == 3
    assert [job and (job.id, job.state) for job in found] == [(two, "success"), None, (one, "success")]


def test_a_wait_takes_any_states_and_has_a_limit(sync: joex.sync.Client) -> None:
    job_id = sync.submit("a")
    job = sync.wait(job_id, states=["waiting", "running"])
    assert job is not None
    assert job.state == "waiting"
    with pytest.raises(TimeoutError, match=r"^1 of 2 jobs are not cancelled or failed or success after 10ms$"):
        sync.wait_many([job_id, uuid4()], timeout="10ms")
    for wrong, field in (({"states": ["done"]}, "states"), ({"timeout": "soon"}, "timeout")):
        with pytest.raises(joex.ConfigError, match=rf"^{field}: expected"):
            sync.wait(job_id, **wrong)
    assert sync.wait(uuid4()) is None


async def test_a_wait_goes_on_while_the_database_is_away(proxy: Any, client: joex.Client) -> None:
    with joex.sync.Client(proxy.url) as sync:
        job_id = await asyncio.to_thread(sync.submit, "sums.add", {"a": 1, "b": 2})
        await proxy.refuse()
        waiting = asyncio.ensure_future(asyncio.to_thread(sync.wait, job_id, timeout=PATIENCE))
        await drain(app, client)
        await proxy.accept()
        job = await waiting
    assert job is not None
    assert job.state == "success"


# ---- connections


def test_threads_share_at_most_ten_connections(sync: joex.sync.Client, database_url: str) -> None:
    with ThreadPoolExecutor(30) as threads:
        ids = set(threads.map(lambda n: sync.submit("a", {"n": n}), range(300)))
    assert len(ids) == 300
    with psycopg.connect(database_url) as connection:
        assert 1 <= connection.execute(OURS).fetchone()[0] <= 10  # type: ignore[index]
        ended = connection.execute(f"SELECT pg_terminate_backend(pid, 30000) {OURS[15:]}").fetchall()
    assert set(ended) == {(True,)}
    sync.submit("a")  # replaces the connections that the server has ended
    sync.close()
    sync.submit("a")  # opens new ones, as the other client does


def test_a_connection_that_comes_back_in_a_transaction_is_closed(sync: joex.sync.Client) -> None:
    with sync._connections._pool.connection() as own:
        own.execute("BEGIN")
        own.execute("SELECT joex.submit('a')")
    assert own.closed
    sync.submit("b")
    assert sync.groups.list()[0].waiting == 1


async def test_a_closed_client_has_no_connections(sync: joex.sync.Client, connection: asyncpg.Connection) -> None:
    sync.submit("a")
    assert await connection.fetchval(OURS) == 1
    sync.close()
    await eventually(lambda: connection.fetchval(f"SELECT ({OURS}) = 0"), why="the connection is closed")


FORKS = """
import os, sys, joex.sync
client = joex.sync.Client(sys.argv[1])
first = client.submit("parent")
child = os.fork()
job = client.submit("child" if child == 0 else "parent")
if child == 0:
    client.close()
    sys.exit()  # ends the interpreter, with all its objects
assert os.waitpid(child, 0)[1] == 0
assert client.get(job).task == client.get(first).task == "parent"
own = client._connections._own._own()
assert len(own._idle) == 1, "the connection of before the fork"
"""


def test_a_forked_process_has_connections_of_its_own(database_url: str, sync: joex.sync.Client) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, database_url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sync.groups.list()[0].waiting == 3


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_its_transactions_are_read_committed_whatever_the_default_is(
    database_url: str, connection: asyncpg.Connection, level: str
) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    try:
        with joex.sync.Client(database_url) as sync, sync._connections._pool.connection() as own:
            assert own.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
            with own.limited():
                assert own.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
    finally:
        await connection.execute(f"ALTER DATABASE {name} RESET ALL")


async def test_a_statement_that_takes_too_long_ends_and_its_connection_goes_on(
    database_url: str, connection: asyncpg.Connection
) -> None:
    with joex.sync.Client(database_url, timeout="200ms") as sync:
        job_id = sync.submit("a")
        async with connection.transaction():
            await connection.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", job_id)
            with pytest.raises(joex.DatabaseUnavailable, match="statement timeout"):
                await asyncio.to_thread(sync.cancel, job_id)
        assert sync.cancel(job_id) == "cancelled"
        assert await connection.fetchval(OURS) == 1


INTERRUPTED = """
import sys, joex.sync
with joex.sync.Client(sys.argv[1], timeout="1h") as client:
    try:
        client.cancel(sys.argv[2])
    except KeyboardInterrupt:
        print("interrupted")
"""


async def test_ctrl_c_in_a_call_ends_its_statement_on_the_server(
    database_url: str, sync: joex.sync.Client, connection: asyncpg.Connection
) -> None:
    job_id = sync.submit("a")
    waits = f"{OURS} AND wait_event_type = 'Lock'"
    async with await psycopg.AsyncConnection.connect(database_url) as holder:
        await holder.execute("SELECT FROM joex_private.job WHERE id = %s FOR UPDATE", (job_id,))
        caller = await asyncio.create_subprocess_exec(
            sys.executable, "-c", INTERRUPTED, database_url, str(job_id), stdout=asyncio.subprocess.PIPE
        )
        await eventually(lambda: connection.fetchval(waits), why="the call waits for the job")
        caller.send_signal(signal.SIGINT)
        assert (await caller.communicate())[0] == b"interrupted\n"
        assert await connection.fetchval(waits) == 0
    job = sync.get(job_id)
    assert job is not None
    assert job.state == "waiting"


def test_a_call_needs_no_file_descriptor(sync: joex.sync.Client) -> None:
    """At the limit, a submission that succeeded on the server would look as if it had failed."""
    sync.submit("a")  # it makes the connection
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # those of the standard streams are in use
    try:
        job_id = sync.submit("b")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert job_id is not None
    assert sync.get(job_id) is not None


# ---- patience


async def submit_one(sync: joex.sync.Client) -> set[UUID | None]:
    return {await asyncio.to_thread(sync.submit, "a")}


async def submit_very_many(sync: joex.sync.Client) -> set[UUID | None]:
    return set(await asyncio.to_thread(sync.submit_many, [{"task": "a"}] * 1001))


@pytest.mark.parametrize("at", [At.CUT, At.CUT_ANSWER])
@pytest.mark.parametrize(
    ("submit", "statement"), [(submit_one, "joex.submit("), (submit_very_many, "COMMIT")], ids=["one", "very many"]
)
async def test_a_patient_submission_whose_link_breaks_is_stored_once(
    proxy: Any, connection: asyncpg.Connection, submit: Any, statement: str, at: At
) -> None:
    with joex.sync.Client(proxy.url, patience=PATIENCE) as sync:
        await asyncio.to_thread(sync.get, uuid4())
        trap = proxy.trap(statement, at)
        given = await submit(sync)
    assert trap.sprung.is_set()
    assert given == {row["id"] for row in await connection.fetch("SELECT id FROM joex_private.job")}


async def test_calls_wait_until_the_database_is_there(proxy: Any, connection: asyncpg.Connection) -> None:
    await proxy.refuse()
    with joex.sync.Client(proxy.url) as hasty, pytest.raises(joex.DatabaseUnavailable, match="Connection refused"):
        await asyncio.to_thread(hasty.submit, "a")
    with joex.sync.Client(proxy.url, patience=PATIENCE) as sync:
        calls = [asyncio.to_thread(sync.submit, "a"), asyncio.to_thread(sync.groups.list)]
        waiting = asyncio.gather(*calls)
        await asyncio.wait([waiting], timeout=0.3)
        assert not waiting.done()
        await proxy.accept()
        assert (await waiting)[0] == await connection.fetchval("SELECT id FROM joex_private.job")


async def test_a_client_that_is_closed_waits_no_longer(proxy: Any) -> None:
    await proxy.refuse()
    sync = joex.sync.Client(proxy.url, patience="1h")
    call = asyncio.ensure_future(asyncio.to_thread(sync.submit, "a"))
    await asyncio.wait([call], timeout=0.3)
    sync.close()
    with pytest.raises(joex.DatabaseUnavailable):
        await call


async def test_a_wait_ends_when_its_client_is_closed_and_opens_no_connection(
    sync: joex.sync.Client, connection: asyncpg.Connection
) -> None:
    call = asyncio.ensure_future(asyncio.to_thread(sync.wait, sync.submit("a")))
    await eventually(lambda: connection.fetchval(f"SELECT ({OURS}) = 1"), why="it waits")
    sync.close()
    with pytest.raises(joex.DatabaseUnavailable, match="this client is closed"):
        await call
    assert await connection.fetchval(f"SELECT ({OURS}) = 0")


# ---- errors


def said(error: type[joex.JoexError], start: str, call: Any, *args: Any, **more: Any) -> None:
    """A call raises this error, in one line that begins so."""
    with pytest.raises(error) as caught:
        call(*args, **more)
    assert str(caught.value).startswith(start)
    assert len(str(caught.value).splitlines()) == 1


def test_each_error_is_one_line_of_joex(postgres: Any, database_name: str, empty_database_url: str) -> None:
    url = postgres.url(database_name)
    for wrong, error, start in (
        (postgres.url("nowhere"), joex.ConfigError, "database URL: "),
        (url.replace("postgres@", "who@"), joex.ConfigError, "database URL: "),
        (empty_database_url, joex.SchemaError, "the database has no Joex schema"),
        ("postgresql://postgres@127.0.0.1:1/a", joex.DatabaseUnavailable, "the database is not available: "),
        ("postgresql://postgres@nowhere.invalid/a", joex.DatabaseUnavailable, "the database is not available: "),
    ):
        with joex.sync.Client(wrong, patience="1h" if error is not joex.DatabaseUnavailable else 0) as client:
            said(error, start, client.submit, "a")
            said(error, start, client.groups.list)
            if error is not joex.DatabaseUnavailable:
                said(error, start, client.wait, uuid4())


@pytest.mark.parametrize(
    ("database", "options", "start"),
    [
        ("mysql://localhost/a", {}, "database URL: expected postgresql://"),
        ("postgresql://localhost/a?work_mem=8MB", {}, "database URL: invalid URI query parameter: "),
        ("postgresql://localhost/a?password=x&work_mem=8MB", {}, "database URL: libpq can't read it"),
        (7, {}, "database: expected a PostgreSQL URL, a psycopg_pool.ConnectionPool, or a synchronous connection; got"),
        ("postgresql://localhost/a", {"timeout": 0}, "timeout: expected more than 0"),
        ("postgresql://localhost/a", {"patience": "soon"}, "patience: expected"),
    ],
)
def test_a_wrong_option_is_refused_at_once(database: Any, options: dict[str, Any], start: str) -> None:
    said(joex.ConfigError, start, joex.sync.Client, database, **options)


async def test_a_connection_of_the_other_kind_is_refused(
    sync: joex.sync.Client, connection: asyncpg.Connection, database_url: str
) -> None:
    start = "connection: expected a synchronous one of psycopg, SQLAlchemy or Django; got "
    said(
        joex.ConfigError,
        start + "joex.store.connection.OwnConnection, which needs an event loop",
        sync.submit,
        "a",
        connection=connection,
    )
    async with await psycopg.AsyncConnection.connect(database_url) as own:
        for wrong in (own, 7):
            said(joex.ConfigError, start, sync.submit, "a", connection=wrong)
        said(joex.ConfigError, "database: expected", joex.sync.Client, own)
    with psycopg.connect(database_url) as held:
        said(joex.ConfigError, "patience: expected none", joex.sync.Client, held, patience=1)
    async with joex.Client(database_url) as client:
        with pytest.raises(joex.ConfigError, match=r"^connection: expected one of asyncpg, psycopg, SQLAlchemy or"):
            await client.submit("a", connection=7)  # type: ignore[call-overload]


def test_an_error_in_the_callers_transaction_is_joexs_too(sync: joex.sync.Client, database_url: str) -> None:
    with psycopg.connect(database_url) as held:
        said(joex.InvalidJob, "priority: expected", sync.set_priority, uuid4(), "higher", connection=held)
    said(joex.DatabaseUnavailable, "the database is not available: ", sync.submit, "a", connection=held)  # closed
