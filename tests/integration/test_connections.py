"""Connections: their isolation, silent links, and addresses."""

import asyncio
import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import sys
import warnings
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import product

import asyncpg
import pytest

import joex
from joex import Client, places
from joex.core.events import DatabaseTrouble, RunStarted, TroubleOver
from joex.errors import ConfigError, DatabaseUnavailable
from joex.store.database import close_pool, connect, create_pool, lent
from joex.store.task_connections import TaskConnections
from tests.support.apps import AnyClient
from tests.support.cluster.pki import Authority
from tests.support.postgres import VERSIONS, free_port
from tests.support.processes_inside import LONG, executor_inside
from tests.support.tls import tls_in_front_of
from tests.support.waiting import PATIENCE, eventually

AT_MOST = 10.0
"""Seconds; without a timeout each of these calls would wait for ever."""
LEVELS = ["repeatable read", "serializable"]


@pytest.fixture(params=LEVELS)
async def strict_url(request, postgres, database_name):
    """A database with this default isolation level."""
    async with postgres.administrator() as administrator:
        await administrator.execute(
            f"ALTER DATABASE {database_name} SET default_transaction_isolation = '{request.param}'"
        )
        yield postgres.url(database_name)
        await administrator.execute(f"ALTER DATABASE {database_name} RESET ALL")


def client_of(database, **options) -> AnyClient:
    """A new client."""
    return Client(database, **options)


async def level(connection):
    return await connection.fetchval("SHOW transaction_isolation")


async def test_connections_of_our_own_are_read_committed_whatever_the_default_is(strict_url):
    raw = await asyncpg.connect(strict_url)
    assert await level(raw) in LEVELS
    await raw.close()
    connection = await connect(strict_url)
    assert await level(connection) == "read committed"
    async with connection.transaction():
        assert await level(connection) == "read committed"
    async with connection.transaction(isolation="serializable"):
        assert await level(connection) == "serializable"
    await connection.execute("SET default_transaction_isolation = 'serializable'; SET statement_timeout = '1h'")
    await connection.reset()
    assert await level(connection) == "read committed"
    assert await connection.fetchval("SHOW statement_timeout") == "0"
    await connection.close()


async def test_so_are_those_of_clients_and_of_tasks_however_often_they_are_given_back(strict_url):
    app, levels = joex.App(), []

    @app.task("look")
    async def look(ctx):
        for _ in range(2):
            async with ctx.connection() as connection:
                levels.append(await level(connection))
        async with ctx.transaction() as connection:
            levels.append(await level(connection))

    async with client_of(strict_url) as client:
        for _ in range(2):
            async with client.acquire() as connection:
                levels.append(await level(connection))
            async with client.using() as connection:
                levels.append(await level(connection))
        async with executor_inside(app, strict_url, lease=LONG) as inside:
            await inside.ended(await client.submit("look"))
    assert levels == ["read committed"] * 7


async def _codec(connection, _heard):
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


async def _builtin_codec(connection, _heard):
    await connection.set_builtin_type_codec("int8", schema="pg_catalog", codec_name="text", format="text")


async def _named_statement(connection, _heard=None):
    await connection.prepare("SELECT 1", name="mine")


async def _staging(connection, _heard=None, *, kind):
    async with connection.transaction():
        await connection.execute(f"CREATE TEMP TABLE staging (row {kind})")
        return await connection.fetch("SELECT row FROM staging")


async def _query_logger(connection, heard):
    connection.add_query_logger(heard.append)


async def _log_listener(connection, heard):
    connection.add_log_listener(lambda _connection, message: heard.append(message))


async def _termination_listener(connection, heard):
    connection.add_termination_listener(heard.append)


async def _listener(connection, heard):
    await connection.add_listener("left", lambda *given: heard.append(given))


def _sql(text):
    async def leave(connection, _heard):
        await connection.execute(text)

    return leave


IN_THE_SESSION = {
    "a role": (_sql("SET ROLE left_role"), "SELECT current_user"),
    "a session authorization": (_sql("SET SESSION AUTHORIZATION left_role"), "SELECT session_user"),
    "a temporary table that hides another": (
        _sql("CREATE TEMP TABLE booking AS SELECT 7 AS id; SET default_transaction_read_only = on"),
        "SELECT count(*) FROM booking",
    ),
    "columns of a temporary table": (functools.partial(_staging, kind="int"), functools.partial(_staging, kind="text")),
    "numbers of a sequence": (_sql("SELECT nextval('numbers')"), "SELECT currval('numbers')"),
    "a prepared statement": (_sql("/* of mine */ prepare mine AS SELECT 1"), "PREPARE mine AS SELECT 2"),
    "a prepared statement with a name": (_named_statement, _named_statement),
}
IN_ASYNCPG = {
    "a codec": (_codec, "SELECT '{}'::jsonb"),
    "a builtin codec": (_builtin_codec, "SELECT 7::int8"),
    "a query logger": (_query_logger, "SELECT 1"),
    "a listener to the log": (_log_listener, "DO $$ BEGIN RAISE WARNING 'of another'; END $$"),
    "a listener to the end": (_termination_listener, "SELECT pg_terminate_backend(pg_backend_pid())"),
    "a listener": (_listener, "SELECT pg_notify('left', '')"),
}


@pytest.fixture
async def left_role(connection):
    await connection.execute("""
        CREATE ROLE left_role; CREATE ROLE its_default; CREATE ROLE its_login LOGIN IN ROLE left_role, its_default;
        CREATE TABLE booking (id bigint); CREATE SEQUENCE numbers
    """)
    yield
    await connection.execute("DROP ROLE left_role, its_default, its_login")


@asynccontextmanager
async def lender(kind, url):
    """Lends one connection after the other, the same one where it can: a context manager of a connection."""
    if kind == "a client":
        async with client_of(url) as client:
            yield client.acquire
    else:
        pool = await create_pool(url, most=1, for_tasks=True, pooled=kind == "runs behind a pooler")
        yield TaskConnections(pool, 1).of("q", "a").acquire
        await close_pool(pool)


async def seen(connection, look):
    """What a user of a connection sees: a value, or the kind of the error."""
    try:
        value = await (connection.fetchval(look) if isinstance(look, str) else look(connection))
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        value = type(error)
    await asyncio.sleep(0)  # asyncpg calls loggers and listeners in the next round of the loop
    return value


@pytest.mark.postgres(16, 18)
@pytest.mark.parametrize(
    ("kind", "left"),
    [
        *product(["runs", "a client"], {**IN_THE_SESSION, **IN_ASYNCPG}),
        *product(["runs behind a pooler"], [left for left in IN_ASYNCPG if left != "a listener"]),
    ],
)
async def test_what_a_run_leaves_in_its_connection_reaches_no_other(database_url, left_role, kind, left):
    leave, look = {**IN_THE_SESSION, **IN_ASYNCPG}[left]
    heard: list[object] = []
    async with lender(kind, database_url) as fresh, fresh() as connection:
        expected = await seen(connection, look)
    async with lender(kind, database_url) as lend:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", asyncpg.InterfaceWarning)  # a listener is left: that is the test
            async with lend() as connection:
                await leave(connection, heard)
        await asyncio.sleep(0)
        heard.clear()
        async with lend() as connection:
            assert await seen(connection, look) == expected
    assert heard == []


@pytest.mark.postgres(16, 18)
@pytest.mark.parametrize("did", ["SET ROLE left_role", "SET ROLE NONE", "RESET ROLE"])
@pytest.mark.parametrize("default", ["", "its_default"])
async def test_the_next_run_has_the_role_of_a_new_connection_also_where_the_login_is_no_superuser(
    database_url, connection, left_role, default, did
):
    if default:
        await connection.execute(f"ALTER ROLE its_login SET role = {default}")
    url = database_url.replace("postgres@", "its_login@")
    async with lender("runs", url) as lend:
        async with lend() as used:
            await used.execute(did)
        async with lend() as used:
            assert await used.fetchval("SELECT current_user") == (default or "its_login")


@pytest.mark.parametrize("left", ["nothing", *IN_THE_SESSION])
async def test_a_connection_whose_session_can_be_reset_serves_the_next_run_with_one_more_message(
    database_url, left_role, left
):
    leave, _ = IN_THE_SESSION.get(left, (_sql("SELECT 'attempt, prepared'"), ""))
    async with lender("runs", database_url) as lend:
        async with lend() as connection:
            with connection.query_logger(print):
                await leave(connection, [])
            pid, before = connection.get_server_pid(), connection._protocol.queries_count
        async with lend() as connection:
            assert (connection.get_server_pid(), connection._protocol.queries_count - before) == (pid, 1)


async def test_the_statements_of_a_run_stay_prepared_for_the_next_one(database_url):
    async with lender("runs", database_url) as lend:
        for _ in range(2):
            async with lend() as connection:
                await connection.fetchval("SELECT 'attempt, prepared', $1::int", 1)
        async with lend() as connection:
            assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") == 2  # this one, too


async def test_executors_share_and_recover_jobs_whatever_the_default_is(strict_url):
    app = joex.App()

    @app.task("write", retries=1, retry_delay="0s")
    async def write(ctx):
        if ctx.attempt == 1:
            raise ValueError("once")
        async with ctx.transaction():
            pass

    async with client_of(strict_url) as client:
        async with executor_inside(app, strict_url), executor_inside(app, strict_url):
            ids = await client.submit_many([{"task": "write", "group": f"g{n % 7}"} for n in range(100)])
            jobs = await client.wait_many(ids, timeout=2 * PATIENCE)
        assert {job.state for job in jobs} == {"success"}


async def test_a_link_is_watched_at_both_its_ends(postgres, database_name):
    connection = await connect(postgres.tcp_url(database_name))
    settings = (
        "SELECT name, setting FROM pg_settings WHERE name LIKE 'tcp_%' OR name = 'client_connection_check_interval'"
    )
    assert {row["name"]: int(row["setting"]) for row in await connection.fetch(settings)} == {
        "client_connection_check_interval": 1000,
        "tcp_keepalives_count": 3,
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 5,
        "tcp_user_timeout": 60_000,
    }
    ours = connection._transport.get_extra_info("socket")
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
    await connection.close()


@pytest.mark.parametrize("own", [True, False], ids=["a URL", "a pool of the caller's"])
async def test_a_call_that_is_cancelled_on_a_silent_link_returns_and_the_next_one_works(proxy, own):
    pool = None if own else await asyncpg.create_pool(proxy.url, min_size=0)
    client = client_of(proxy.url if pool is None else pool)
    async with client.using(), client.using(), client.using():
        pass
    proxy.freeze_links()

    async def call():
        async with asyncio.timeout(0.2):
            await client.submit("a")

    calls = [asyncio.create_task(call()) for _ in range(3)]
    done, _ = await asyncio.wait(calls, timeout=AT_MOST)
    assert [type(one.exception()) for one in done] == [TimeoutError] * 3
    assert await asyncio.wait_for(client.submit("a"), AT_MOST)
    await asyncio.wait_for(client.close(), AT_MOST)
    if pool is not None:
        pool.terminate()


async def test_a_call_on_a_silent_link_ends_by_itself(proxy):
    async with client_of(proxy.url, timeout="500ms") as client:
        await client.submit("a")
        proxy.freeze_links()
        with pytest.raises(DatabaseUnavailable, match="no answer in time"):
            await asyncio.wait_for(client.submit("a"), AT_MOST)
        assert await client.submit("a")


@pytest.mark.parametrize("wrong", ["soon", 0, -1])
def test_a_wrong_timeout_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"^timeout: "):
        client_of("postgresql://localhost/shop", timeout=wrong)


async def test_a_client_whose_links_are_silent_can_be_closed(proxy):
    client = client_of(proxy.url)
    async with client.using() as connection:
        await connection.fetchval("SELECT 1")
        proxy.freeze_links()
    await asyncio.wait_for(client.close(), AT_MOST)


async def test_a_block_that_is_cancelled_on_a_silent_link_ends_and_its_slot_is_free_again(proxy, database_url):
    app, silent = joex.App(), asyncio.Event()

    @app.task("talk", timeout="1s", retries=0)
    async def talk(ctx):
        async with ctx.transaction() as connection:
            await connection.execute("CREATE TABLE written ()")
            proxy.freeze_links()
            silent.set()
            await connection.fetchval("SELECT 1")

    @app.task("quick")
    async def quick(_ctx):
        pass

    async with client_of(database_url) as client, executor_inside(app, proxy.url, pool_size=1) as inside:
        job_id = await client.submit("talk")
        await asyncio.wait_for(silent.wait(), PATIENCE)
        await inside.ended(await client.submit("quick"))
        assert (await client.get(job_id)).state == "failed"
        async with client.using() as connection:
            assert await connection.fetchval("SELECT to_regclass('written')") is None


async def test_a_run_whose_statement_waits_for_a_silent_link_fails_and_is_tried_again(proxy, database_url, monkeypatch):
    monkeypatch.setattr("joex.store.task_connections._CHECK_EVERY", 0.2)
    app = joex.App()

    @app.task("talk", retries=1, retry_delay="0s")
    async def talk(ctx):
        async with ctx.transaction() as connection:
            if ctx.attempt == 1:
                proxy.freeze_links()
            await connection.fetchval("SELECT 1")

    async with client_of(database_url) as client, executor_inside(app, proxy.url, pool_size=1):
        job = await client.wait(await client.submit("talk"), timeout=PATIENCE)
        assert job.state == "success"


async def test_a_run_whose_link_goes_silent_after_its_last_statement_fails_and_is_tried_again(
    proxy, database_url, monkeypatch
):
    """The reset of the session waits for an answer, too."""
    monkeypatch.setattr("joex.store.task_connections._CHECK_EVERY", 0.2)
    app = joex.App()

    @app.task("talk", retries=1, retry_delay="0s")
    async def talk(ctx):
        async with ctx.connection() as connection:
            await connection.fetchval("SELECT 1")
            if ctx.attempt == 1:
                proxy.freeze_links()

    async with client_of(database_url) as client, executor_inside(app, proxy.url, pool_size=1):
        job = await client.wait(await client.submit("talk"), timeout=PATIENCE)
        assert job.state == "success"


async def test_a_run_that_is_cancelled_while_its_silent_link_is_reset_leaves_its_slot_to_others(proxy, database_url):
    app = joex.App()

    @app.task("talk", timeout="1s", retries=0)
    async def talk(ctx):
        async with ctx.connection() as connection:
            await connection.fetchval("SELECT 1")
            proxy.freeze_links()

    @app.task("quick", retries=0)
    async def quick(ctx):
        async with ctx.connection() as connection:
            await connection.fetchval("SELECT 1")

    async with client_of(database_url) as client, executor_inside(app, proxy.url, pool_size=1) as inside:
        await inside.ended(await client.submit("talk"))
        job = await client.wait(await client.submit("quick"), timeout=PATIENCE)
        assert job.state == "success"


@pytest.mark.parametrize("where", ["in the block", "in a task that was made there"])
async def test_a_block_inside_of_another_one_of_its_run_fails(database_url, where):
    """A run has one connection at a time. Those who waited for a second one would wait for each other."""
    app = joex.App()

    @app.task("nested", retries=0)
    async def nested(ctx):
        async def finish():
            async with ctx.transaction():
                pass

        async with ctx.connection():
            await (finish() if where == "in the block" else asyncio.create_task(finish()))

    async with client_of(database_url) as client, executor_inside(app, database_url, pool_size=2):
        job = await client.wait(await client.submit("nested"), timeout=PATIENCE)
        assert job.state == "failed"
        assert "is in a block that has the connection of its run" in job.error


async def test_a_block_that_waits_for_long_for_another_one_of_its_run_says_so_in_the_log(database_url, monkeypatch):
    """For ever, perhaps: a producer in one may wait for its consumer, which wants another one."""
    monkeypatch.setattr("joex.context._TOLD_AFTER", 0.05)
    app, go_on = joex.App(), asyncio.Event()

    @app.task("together", retries=0)
    async def together(ctx):
        async def produce():
            async with ctx.connection():
                await go_on.wait()

        async def consume():
            async with ctx.transaction():
                pass

        await asyncio.gather(produce(), consume())

    async with client_of(database_url) as client, executor_inside(app, database_url):
        job = await client.submit("together")

        async def is_told():
            return any("waits for the connection of its run" in line.message for line in await client.log(job))

        await eventually(is_told, why="it says so")
        go_on.set()
        assert (await client.wait(job, timeout=PATIENCE)).state == "success"


@pytest.fixture
async def six(database_url, monkeypatch):
    """Six connections for the tasks of more slots, of them one for groups that have none."""
    monkeypatch.setattr(places, "_FOR_NEW", 1)
    tasks = await create_pool(database_url, most=6, for_tasks=True)
    yield TaskConnections(tasks, 10)
    await close_pool(tasks)


class Blocks:
    """Blocks of tasks, each with its connection, or waiting for one."""

    def __init__(self, connections):
        self._connections = connections
        self._begun = []
        self.having = []

    async def begin(self, groups):
        """Begin a block for each of these groups."""
        for group in groups:
            end = asyncio.Event()
            self._begun.append((group, end, asyncio.create_task(self._block(group, end))))
            await asyncio.sleep(0)

    async def _block(self, group, end):
        async with self._connections.of("q", group).acquire():
            self.having.append(group)
            await end.wait()
            self.having.remove(group)

    async def end(self, group):
        """End the first block of this group."""
        found = next(one for one in self._begun if one[0] == group)
        self._begun.remove(found)
        found[1].set()
        await asyncio.wait_for(found[2], AT_MOST)


async def test_a_group_whose_tasks_keep_connections_leaves_some_to_others_and_gets_more_when_they_are_free(six):
    """For as long as it likes: in transactions of an hour, or that wait for a row which its tenant has locked."""
    blocks = Blocks(six)
    await blocks.begin("aaaaaabbb")
    await eventually(lambda: sorted(blocks.having) == [*"aaaab"], why="one stays free, for a third group")
    await blocks.begin("c")
    await eventually(lambda: sorted(blocks.having) == [*"aaaabc"], why="it has come")
    for group in "ca":
        await blocks.end(group)
    await eventually(lambda: sorted(blocks.having) == [*"aaabb"], why="the group with the fewest is next")
    for _ in range(2):
        await blocks.end("b")
    await eventually(lambda: sorted(blocks.having) == [*"aaaab"], why="others go on")
    await blocks.end("b")
    await eventually(lambda: sorted(blocks.having) == [*"aaaa"], why="more than that is for others")
    for _ in range(5):
        await blocks.end("a")


async def test_blocks_of_one_run_have_its_connection_one_after_the_other(database_url):
    """So a run that asks for many at once leaves each other run its own."""
    app, sessions = joex.App(), []

    @app.task("together", retries=0)
    async def together(ctx):
        async def one():
            async with ctx.connection() as connection:
                sessions.append(await connection.fetchval("SELECT pg_backend_pid()"))

        await asyncio.gather(one(), one(), one())

    async with client_of(database_url) as client, executor_inside(app, database_url, pool_size=3):
        job = await client.wait(await client.submit("together"), timeout=PATIENCE)
        assert job.state == "success"
        assert len(sessions) == 3
        assert len(set(sessions)) == 1


async def test_a_statement_that_takes_long_is_left_alone(database_url, monkeypatch):
    monkeypatch.setattr("joex.store.task_connections._CHECK_EVERY", 0.05)
    app = joex.App()

    @app.task("work", retries=0)
    async def work(ctx):
        async with ctx.transaction() as connection:
            await connection.execute("SELECT pg_sleep(1)")
            await connection.fetchval("SELECT pg_sleep($1)", 0.5)

    async with client_of(database_url) as client, executor_inside(app, database_url):
        job = await client.wait(await client.submit("work"), timeout=PATIENCE)
        assert job.state == "success"


async def test_a_statement_whose_argument_takes_long_to_the_server_is_left_alone(proxy, database_url, monkeypatch):
    """While the server reads the argument of a prepared statement, it reports the session as idle."""
    monkeypatch.setattr("joex.store.task_connections._CHECK_EVERY", 0.3)
    app, length = joex.App(), 16 * 2**20

    @app.task("upload", retries=0)
    async def upload(ctx):
        async with ctx.transaction() as connection:
            await connection.fetchval("SELECT length($1::bytea)", b"")
            proxy.slowness = 0.02  # five seconds in all
            assert await connection.fetchval("SELECT length($1::bytea)", b"x" * length) == length

    async with client_of(database_url) as client, executor_inside(app, proxy.url):
        job = await client.wait(await client.submit("upload"), timeout=PATIENCE)
        assert job.state == "success"


async def test_a_statement_that_was_given_up_ends_on_the_server_too(database_url, connection):
    pool = await create_pool(database_url, most=1)

    async def forever():
        async with lent(pool) as lent_one, lent_one.transaction():
            await lent_one.fetchval("SELECT pg_sleep(3600)")

    async def sleepers():
        return await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3600)' AND pid <> pg_backend_pid()"
        )

    call = asyncio.create_task(forever())
    await eventually(sleepers)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    await eventually(lambda: _none(sleepers()))
    async with lent(pool) as again:
        assert await again.fetchval("SELECT 1") == 1
    await pool.close()


async def _none(count):
    return await count == 0


@pytest.mark.parametrize("first", ["refuses", "says nothing"])
async def test_of_several_hosts_one_may_be_dead(postgres, database_name, monkeypatch, first):
    monkeypatch.setattr("joex.store.connector.CONNECT_WITHIN", 4.0)
    monkeypatch.setattr("joex.store.connector._latest", {})
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if first == "says nothing":
            silent.listen()
            dead = silent.getsockname()[1]
        else:
            dead = free_port()
        url = (
            f"postgresql://postgres:secret@127.0.0.1:{dead},127.0.0.1:{postgres.port}/{database_name}"
            "?target_session_attrs=read-write"
        )
        app = joex.App()

        @app.task("a")
        async def a(_ctx):
            pass

        async with client_of(url) as client, executor_inside(app, url):
            job = await client.wait(await client.submit("a"), timeout=PATIENCE)
            assert job.state == "success"


NAME = "database.test"


@pytest.fixture
def resolver(monkeypatch):
    """The addresses of names."""
    addresses = {NAME: ["127.0.0.2", "127.0.0.1"]}
    monkeypatch.setattr("joex.store.name_lookups.resolve", lambda name: addresses.get(name, [name]))
    monkeypatch.setattr("joex.store.connector.CONNECT_WITHIN", 4.0)
    monkeypatch.setattr("joex.store.connector._latest", {})
    return addresses


@contextlib.contextmanager
def dead_address(port, how):
    """127.0.0.2, where the same port belongs to a server that does not answer."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.2", port))
        if how != "refuses":
            server.listen(0)
        for _ in range(8 if how == "is unreachable" else 0):  # the kernel has no room for one more, and drops it
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)  # noqa: FBT003 - that is its signature
            filler.connect_ex(("127.0.0.2", port))
        yield


@pytest.mark.parametrize("how", ["refuses", "says nothing", "is unreachable"])
async def test_of_several_addresses_of_a_host_one_may_be_dead(postgres, database_name, resolver, how):
    url = f"postgresql://postgres@{NAME}:{postgres.port}/{database_name}"
    app = joex.App()

    @app.task("a")
    async def a(_ctx):
        pass

    with dead_address(postgres.port, how):
        async with client_of(url) as client, executor_inside(app, url, lease=LONG):
            job = await client.wait(await client.submit("a"), timeout=PATIENCE)
            assert job.state == "success"


async def test_a_host_after_the_question_mark_is_looked_up_as_any_other(postgres, database_name, resolver):
    """asyncpg alone reads it there, and would look it up in the few threads of asyncio."""
    url = f"postgresql://postgres@/{database_name}?host={NAME}&port={postgres.port}"
    with dead_address(postgres.port, "refuses"):
        connection = await connect(url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()


async def test_of_several_addresses_the_next_is_tried_where_the_first_starts_up(postgres, database_name, resolver):
    """The first address answers, but refuses connections."""

    async def start_up(reader, writer):
        await reader.read(8)  # may it be TLS?
        writer.write(b"N")
        await reader.read(1024)
        fields = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0"
        writer.write(b"E" + (len(fields) + 4).to_bytes(4) + fields)
        writer.close()

    async with await asyncio.start_server(start_up, "127.0.0.2", postgres.port):
        connection = await connect(f"postgresql://postgres@{NAME}:{postgres.port}/{database_name}")
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()


async def test_a_statement_is_cancelled_at_the_address_where_it_runs(postgres, database_name, resolver):
    """The time limit sends a cancel request; until the server ends the statement, the transaction can't continue."""
    with dead_address(postgres.port, "says nothing"):
        connection = await connect(f"postgresql://postgres@{NAME}:{postgres.port}/{database_name}")
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT pg_sleep(3600)", timeout=0.1)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(asyncpg.InFailedSQLTransactionError):
                await connection.fetchval("SELECT 1")
            await transaction.rollback()
            assert await connection.fetchval("SELECT 1") == 1
        await connection.close()


async def test_tls_verifies_the_name_of_the_host_whatever_its_address_is(postgres, database_name, resolver, tmp_path):
    authority = Authority(tmp_path)
    verified = f"sslmode=verify-full&sslrootcert={authority.own.certificate}"
    async with (
        tls_in_front_of(postgres, authority.server("right", f"DNS:{NAME}")) as right,
        tls_in_front_of(postgres, authority.server("wrong", "IP:127.0.0.1", "IP:127.0.0.2")) as wrong,
    ):
        with dead_address(right, "says nothing"):
            connection = await connect(f"postgresql://postgres@{NAME}:{right}/{database_name}?{verified}")
            assert await connection.fetchval("SELECT 1") == 1
            await connection.close()
        with pytest.raises(DatabaseUnavailable, match=f"Hostname mismatch.*'{NAME}'"):
            await connect(f"postgresql://postgres@{NAME}:{wrong}/{database_name}?{verified}")


async def test_a_statement_that_takes_long_is_left_alone_where_the_others_go_to_another_host(
    database_name, postgres, postgres_servers, monkeypatch
):
    """The server of the rest of the executor may be another one than that of a task."""
    monkeypatch.setattr("joex.store.task_connections._CHECK_EVERY", 0.05)
    elsewhere = next(postgres_servers[version] for version in VERSIONS if version != postgres.version)
    url = postgres.tcp_url(database_name)
    tasks, others = await create_pool(url, most=1, for_tasks=True), await create_pool(elsewhere.url("postgres"), most=1)
    connections = TaskConnections(tasks, 1)
    watch = asyncio.create_task(connections.watch(others, url))
    try:
        async with connections.of("q", "a").acquire() as connection:
            await connection.fetchval("SELECT pg_sleep($1)", 1)
    finally:
        watch.cancel()
        await close_pool(tasks)
        await close_pool(others)


async def test_an_executor_that_is_asked_to_drain_before_it_has_reached_its_database_leaves_in_order(proxy):
    proxy.freeze()
    async with executor_inside(joex.App(), proxy.url, registered=False) as inside:
        inside.executor.drain()
        await inside.work
    assert inside.executor.phase == "left"


def of(service):
    """Whether an event is about this service."""
    return lambda event: event.service == service


async def test_each_service_tells_of_its_trouble_once_and_of_its_end_once(proxy, database_url, monkeypatch):
    """Hundreds of executors lose their database together: their reports must not flood the log."""
    monkeypatch.setattr("joex.trouble._AGAIN_AFTER", 3600.0)
    monkeypatch.setattr("joex.trouble._NEXT_AFTER", 3600.0)
    app, go_on = joex.App(), asyncio.Event()

    @app.task("chat")
    async def chat(ctx):
        ctx.log.info("begun")
        await go_on.wait()
        ctx.log.info("going on")

    async with executor_inside(app, proxy.url, lease=timedelta(seconds=6)) as inside, client_of(database_url) as client:
        job = await client.submit("chat")
        await inside.log.wait_for(RunStarted)
        await proxy.refuse()
        go_on.set()
        services = ("lease", "chores", "listener", "finisher", "log writer")
        for service in services:  # each has tried several times
            await inside.log.wait_for(DatabaseTrouble, of(service), count=3)
        await proxy.accept()
        for service in services:
            await inside.log.wait_for(TroubleOver, of(service))
        await inside.ended(job)
        told = [(event.service, event.error) for event in inside.log.of(DatabaseTrouble) if event.is_news]
        assert len(told) == len(set(told))
        over = [event.service for event in inside.log.of(TroubleOver)]
        assert len(over) == len(set(over))


async def test_an_attempt_to_connect_for_a_lease_leaves_time_in_the_lease(proxy, monkeypatch):
    """It began before a fail-over, and waits for the old server: the new one is to hear of the executor in time."""
    monkeypatch.setattr("joex.store.connector.CONNECT_WITHIN", 3600.0)
    monkeypatch.setattr(asyncpg, "connect", functools.partial(asyncpg.connect, timeout=3600.0))
    async with executor_inside(joex.App(), proxy.url, lease=timedelta(seconds=3)) as inside:
        proxy.freeze()
        await inside.log.wait_for(
            DatabaseTrouble, lambda trouble: trouble.service == "lease" and f":{proxy.port}: no answer" in trouble.error
        )
        proxy.thaw()


async def test_where_all_hosts_are_dead_each_is_told_with_its_reason_and_no_password():
    first, second = free_port(), free_port()
    url = f"postgresql://u:secret@127.0.0.1:{first},nowhere.invalid:{second}/shop"
    async with client_of(url) as client:
        with pytest.raises(DatabaseUnavailable) as caught:
            await client.submit("a")
    told = str(caught.value)
    assert told.startswith(f"the database is not available: 127.0.0.1:{first}: Connection refused; nowhere.invalid:")
    assert f"; nowhere.invalid:{second}: " in told
    assert "\n" not in told
    assert "Errno" not in told
    assert "secret" not in told + repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u@[::1]:1/d", "[::1]:1"),
        ("postgresql://u@/d?host=127.0.0.1&port=1", "127.0.0.1:1"),
        ("postgresql://u@/d?host=/nowhere", "/nowhere"),
    ],
)
async def test_a_server_that_does_not_answer_is_named_however_the_url_names_it(url, place):
    with pytest.raises(DatabaseUnavailable, match=f"^the database is not available: {re.escape(place)}: "):
        await connect(url)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sslmod=require", "there is no parameter 'sslmod'"),
        ("statement_timeout=soon", 'invalid value for parameter "statement_timeout": "soon"'),
        ("max_connections=3", 'parameter "max_connections" cannot be changed without restarting the server'),
    ],
)
async def test_a_parameter_of_the_url_that_the_server_does_not_take_is_a_wrong_url(
    postgres, database_name, query, said
):
    with pytest.raises(ConfigError, match=f"^database URL: {said}"):
        await connect(f"{postgres.tcp_url(database_name)}?{query}")
    connection = await connect(f"{postgres.tcp_url(database_name)}?work_mem=5MB")
    assert await connection.fetchval("SHOW work_mem") == "5MB"
    await connection.close()


@pytest.mark.parametrize(
    "url", ["postgresql://u:p/secret@h/d", "postgresql://u:p#secret@h/d", "host=h password=secret"]
)
async def test_a_wrong_url_is_refused_without_a_part_of_its_password(url):
    with pytest.raises(ConfigError, match=r"^database URL: expected postgresql://") as caught:
        async with client_of(url) as client:
            await client.submit("a")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("parameter", ["sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile"])
async def test_a_url_that_names_a_pipe_or_a_device_as_a_file_does_not_stop_the_event_loop(
    postgres, database_name, tmp_path, parameter
):
    """To read one may take for ever: the owner of one secret would stop the operator for all namespaces."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=f"^database URL: {parameter}: expected a file .* and no pipe or device$"):
        await connect(f"{postgres.tcp_url(database_name)}?sslmode=verify-full&{parameter}={tmp_path / 'pipe'}")


@pytest.mark.parametrize("parameter", ["secret=1", "statement_timeout=secret", "ssl_min_protocol_version=secret"])
async def test_what_may_be_a_part_of_a_password_among_the_parameters_is_not_shown(postgres, database_name, parameter):
    with pytest.raises(ConfigError, match=r"^database URL: a parameter after the \? is unknown or has a") as caught:
        await connect(f"{postgres.tcp_url(database_name)}?password=my&{parameter}")
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


async def test_a_worker_and_a_wait_go_on_while_the_database_is_away(proxy, database_url):
    async with client_of(database_url) as other, client_of(proxy.url) as client:
        await other.keyed.add("index", 1)
        await proxy.refuse()
        waiting = asyncio.create_task(client.keyed.wait("index", 1))
        working = asyncio.create_task(client.keyed.accept("index", wait=timedelta(hours=1)))
        with pytest.raises(TimeoutError):
            await client.keyed.wait("index", 1, timeout="100ms")
        assert await client.keyed.accept("index", wait="100ms") is None
        with pytest.raises(DatabaseUnavailable):
            await client.keyed.accept("index")
        assert not waiting.done()
        assert not working.done()
        await proxy.accept()
        job = await asyncio.wait_for(working, PATIENCE)
        assert (await client.keyed.finish("index", 1, {}, job.lock_id)) == "ok"
        assert (await asyncio.wait_for(waiting, PATIENCE)).state == "finished"


FORKS = """
import asyncio, os, sys, uuid
import joex

async def session():
    async with client.using() as connection:
        return await connection.fetchval("SELECT pg_backend_pid()")

client, loop = joex.Client(sys.argv[1]), asyncio.new_event_loop()
loop.run_until_complete(client.wait(uuid.uuid4()))  # its listener lingers
before = loop.run_until_complete(session())
child = os.fork()
if child == 0:
    for call in (session, lambda: client.submit("a"), lambda: client.wait(uuid.uuid4()), client.close):
        for run in (asyncio.run, loop.run_until_complete):
            try:
                run(call())
            except joex.ConfigError as error:
                assert str(error).startswith("client: expected the process and the event loop that used it first: ")
            else:
                sys.exit("no error")
    sys.exit()  # ends the interpreter, with all its objects
assert os.waitpid(child, 0)[1] == 0
assert loop.run_until_complete(session()) == before
loop.run_until_complete(client.wait(uuid.uuid4()))
loop.run_until_complete(client.close())
"""


def test_a_forked_process_leaves_the_connections_of_its_parent_alone(database_url):
    done = subprocess.run([sys.executable, "-c", FORKS, database_url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # (asyncio warns there of the listener that lingered at the fork)


async def test_another_event_loop_leaves_them_alone_too_until_the_client_is_closed(database_url):
    client = Client(database_url)
    await client.submit("a")
    for call in (client.submit("b"), client.close()):
        with pytest.raises(ConfigError, match=r"^client: expected the process and the event loop that used it first: "):
            await asyncio.to_thread(asyncio.run, call)
    await client.submit("c")
    await client.close()
    await asyncio.to_thread(asyncio.run, _submit_and_close(client))


async def _submit_and_close(client):
    async with client:
        await client.submit("d")
