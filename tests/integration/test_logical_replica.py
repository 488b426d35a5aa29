"""A major release without a long pause: a logical replica, to which Joex is switched over."""

import subprocess
from contextlib import AsyncExitStack

import pytest

from joex import Client
from joex.store import worker_runs
from joex.store.database import connect
from joex.store.migrate import migrate
from tests.support.postgres import TestServer
from tests.support.waiting import eventually


@pytest.mark.postgres(16, 18)
async def test_a_logical_replica_follows_though_queues_are_made_and_serves_them_after_a_switch(pg_version):
    server = TestServer(pg_version, settings="wal_level = logical\n")
    async with AsyncExitStack() as stack:
        stack.callback(server.close)
        old, new = [server.url(await server.create_database(migrated=False)) for _ in range(2)]
        before, after = await connect(old), await connect(new)
        stack.push_async_callback(before.close)
        stack.push_async_callback(after.close)
        await migrate(before)
        client = await stack.enter_async_context(Client(old))
        await client.submit("a", queue="first")
        await before.execute("SELECT joex_private.serve_queue('first')")
        await before.execute("CREATE ROLE acme; SELECT joex_private.set_scopes('acme', '{view}', '{acme}')")
        command = [str(server.binaries / "pg_dump"), "--schema-only", old]
        schema = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: ASYNC221
        await after.execute("\n".join(line for line in schema.splitlines() if not line.startswith("\\")))
        await before.execute("CREATE PUBLICATION joex FOR ALL TABLES")
        await before.execute("SELECT pg_create_logical_replication_slot('joex', 'pgoutput')")
        await after.execute(f"CREATE SUBSCRIPTION joex CONNECTION '{old}' PUBLICATION joex WITH (create_slot = false)")
        copied = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
        await eventually(lambda: after.fetchval(copied), why="the replica has copied all tables")
        await client.submit("a", queue="second")
        await before.execute("SELECT joex_private.serve_queue('second')")
        found = "SELECT (SELECT count(*) FROM joex_private.job) = 2 AND (SELECT count(*) FROM joex_private.queue) = 2"
        await eventually(lambda: after.fetchval(found), why="the replica has followed")
        await after.execute("DROP SUBSCRIPTION joex")
        await after.execute("SET SESSION AUTHORIZATION acme")  # (who is bound, also before the sequences are copied)
        assert await after.fetchval("SELECT count(*) FROM joex.jobs") == 0
        await after.execute("RESET SESSION AUTHORIZATION")
        for queue in ("first", "second"):
            assert len(await worker_runs.accept(after, queue, 1, "worker", None)) == 1
