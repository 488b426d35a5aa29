"""Programs of one version on the schema of the next, to which a migration has added, or from which it took something.

The programs of these tests are this version's. The schema of the next one is made by a numbered file that only the
migration sees.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import joex
from joex.cli import call
from joex.config import Settings
from joex.core.events import DatabaseTrouble, Registered
from joex.errors import SchemaError
from joex.runtime.executor import Executor
from joex.store import migrate as module
from joex.store import pools
from joex.store.database import connect
from joex.store.migrate import check_schema, migrate, migrations, schema_version
from joex.store.refused_migrations import LOCK_OUT
from joex_operator.control.database import Database, database_problem
from tests.support.apps import AnyClient
from tests.support.commands import started
from tests.support.processes_inside import LONG, Inside, executor_inside
from tests.support.waiting import PATIENCE, EventLog, eventually

pytestmark = pytest.mark.postgres(16, 18)

KNOWN = migrations()[-1].number
NEXT = KNOWN + 1
ADDS = """
    CREATE TABLE joex_private.added (id integer PRIMARY KEY);
    DO $$ DECLARE t regclass; BEGIN
        FOR t IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'joex_private'::regnamespace
                                                    AND c.relkind IN ('r', 'p') AND NOT c.relispartition LOOP
            EXECUTE format('ALTER TABLE %s ADD COLUMN added text', t);
        END LOOP;
    END $$;
"""
SILENT = "UPDATE joex_private.executor SET lease = '1us'"
TAKES_AWAY = f"-- min_reader: {NEXT}\nSELECT 1"
TOO_NEW = rf"version {NEXT} .* needs programs that know version {NEXT}; this joex knows version {KNOWN}: use a newer"


@pytest.fixture
def upgrade(monkeypatch, another_connection):
    """Migrates the database as the next version does, whose numbered file has this SQL."""

    async def run(sql: str, **how: Any) -> list[str]:
        connection = await another_connection()
        with next_version(monkeypatch, sql):
            return await migrate(connection, **how)

    return run


@contextmanager
def next_version(monkeypatch: pytest.MonkeyPatch, sql: str) -> Iterator[None]:
    """The next version, for the time of a block."""
    files, further = module._files, [(f"{NEXT:04}_next.sql", sql)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_files", lambda folder: files(folder) + (further if folder == "migrations" else []))
        yield


@pytest.fixture
async def operator_database(database_url):
    """Opens the database as an operator does, which migrates it."""
    opened: list[Database] = []

    def make() -> Database:
        nothing: Any = _Nothing()
        opened.append(
            Database(database_url, lambda *_: None, migrate=True, start_scheduler=lambda _pool, _name: nothing)
        )
        return opened[-1]

    yield make
    for database in opened:
        await database.close()


class _Nothing:
    def wake(self) -> None:
        """Called for each message on the channel of periodic tasks."""

    def stop(self) -> asyncio.Task[None]:
        """Stop nothing; returns a task that ends."""
        return asyncio.create_task(asyncio.sleep(0))


def adding() -> joex.App:
    app = joex.App()

    @app.task("add")
    async def add(ctx: joex.Context, a: int, b: int) -> int:
        ctx.log.info("adding")
        return a + b

    return app


async def adds(client: AnyClient, executor: Inside) -> None:
    """Check that a client submits a job, an executor runs it, and the client gets its result."""
    job_id = await client.submit("add", {"a": 2, "b": 3})
    await executor.ended(job_id)
    assert (await client.get(job_id)).result == 5


async def refused(url: str, said: str) -> str:
    """The reason for which an executor ends that may wait for long at its start."""
    with pytest.raises(SchemaError, match=said) as caught:
        await asyncio.wait_for(Executor(adding(), Settings(http_address="", startup_wait=LONG), url).run(), PATIENCE)
    return caught.value.reason


async def test_programs_of_the_version_before_run_on_a_schema_to_which_a_migration_has_added(
    client, connection, database_url, upgrade, operator_database
):
    async with executor_inside(adding(), database_url) as running:
        await adds(client, running)
        assert await upgrade(ADDS) == [f"{NEXT:04}_next"]
        await adds(client, running)
    async with executor_inside(adding(), database_url) as restarted:
        await adds(client, restarted)
    assert await migrate(connection) == []  # a rollback may run it
    assert await schema_version(connection) == NEXT
    async with operator_database().connection() as asked:
        await client.submit("add", {"a": 1, "b": 1})
        assert (await pools.demand_and_replicas(asked, ["default"], 10, ["p/a-"]))[0].runnable == 1


async def test_programs_that_are_too_old_for_a_schema_say_so_and_change_nothing(
    connection, database_url, upgrade, operator_database
):
    await upgrade(TAKES_AWAY)
    for use in (check_schema, migrate):
        with pytest.raises(SchemaError, match=TOO_NEW) as caught:
            await use(connection)
        assert caught.value.reason == "SchemaTooNew"
    with pytest.raises(SchemaError, match=TOO_NEW) as caught:
        async with operator_database().connection():
            pass
    assert database_problem(caught.value).reason == "SchemaTooNew"


async def test_an_executor_that_finds_another_schema_than_it_needs_ends_at_once_and_says_why(
    connection, database_url, upgrade, monkeypatch
):
    """A pool shows the last words of a pod that has ended; of one that waits it can only say that it starts."""
    with monkeypatch.context() as patch:
        patch.setattr("joex.store.migrate.known_version", lambda: NEXT)
        older = (
            rf"the database has version {KNOWN} of the Joex schema, this joex needs version {NEXT}: run 'joex migrate'"
        )
        assert await refused(database_url, older) == "SchemaTooOld"
    await upgrade(TAKES_AWAY)
    assert await refused(database_url, TOO_NEW) == "SchemaTooNew"


async def test_the_last_words_of_an_executor_in_a_pod_say_that_it_is_too_old(database_url, upgrade, tmp_path):
    """The kubelet keeps the last line of the log, and the pool's condition shows it."""
    await upgrade(TAKES_AWAY)
    (tmp_path / "tasks.py").write_text("import joex\n\napp = joex.App()\n")
    in_pod = {"JOEX_STARTUP_WAIT": "4m", "JOEX_LOG_FORMAT": "json"}
    async with started("joex executor --app tasks:app", tmp_path, database_url, **in_pod) as (process, log):
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 2
        assert re.match(TOO_NEW, log().splitlines()[-1].removeprefix("joex: the database has "))


async def test_an_executor_waits_for_the_schema_of_an_empty_database(empty_database_url):
    async with executor_inside(adding(), empty_database_url, registered=False, startup_wait=LONG) as inside:
        await inside.log.wait_for(DatabaseTrouble, lambda event: event.service == "start")
        made = await connect(empty_database_url)
        await migrate(made)
        await made.close()
        await inside.log.wait_for(Registered)


async def test_a_migration_that_would_lock_out_executors_names_them_and_waits_until_they_have_left(
    bench, connection, upgrade, operator_database
):
    ids = [await bench.executor(f"p/a-{number}") for number in range(5)]
    said = rf"to version {NEXT} would lock out living executors.*: p/a-0, p/a-1, p/a-2 and 2 more; nothing was done"
    with pytest.raises(SchemaError, match=said) as caught:
        await upgrade(TAKES_AWAY)
    assert database_problem(caught.value).reason == "MigrationLocksOut"
    assert await schema_version(connection) == KNOWN
    for executor in ids:
        await connection.execute("SELECT joex_private.end_executor($1, 'left')", executor)
    assert await upgrade(TAKES_AWAY) == [f"{NEXT:04}_next"]


async def test_a_migration_does_not_wait_for_executors_that_nobody_has_found_dead(bench, connection, upgrade):
    """Who finds them dead may be an executor, or an operator, that waits for this migration."""
    await bench.executor("p/a-0")
    await connection.execute(SILENT)
    assert await upgrade(TAKES_AWAY) == [f"{NEXT:04}_next"]


async def test_an_executor_that_registers_during_a_migration_that_locks_it_out_is_refused(
    connection, database_url, another_connection, monkeypatch
):
    """It has seen the schema as it was, and the migration has looked for living executors before it registers."""
    migrating, checked, go_on = await another_connection(), asyncio.Event(), asyncio.Event()
    spare_or_drain = module._spare_or_drain

    async def slowly(*args: Any, **how: Any) -> None:
        await spare_or_drain(*args, **how)
        checked.set()
        await go_on.wait()

    monkeypatch.setattr(module, "_spare_or_drain", slowly)
    with next_version(monkeypatch, TAKES_AWAY):
        migration = asyncio.create_task(migrate(migrating))
        await checked.wait()
    work = asyncio.create_task(Executor(adding(), Settings(http_address=""), database_url).run())
    there = (
        "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'joex_private.executor'::regclass AND NOT granted"
        " UNION SELECT true FROM joex_private.executor ORDER BY 1 DESC LIMIT 1"
    )
    await eventually(lambda: connection.fetchval(there))
    with next_version(monkeypatch, TAKES_AWAY):
        go_on.set()
        assert await migration == [f"{NEXT:04}_next"]
    with pytest.raises(SchemaError, match=f"needs programs that know version {NEXT}"):
        await asyncio.wait_for(work, PATIENCE)


async def test_a_migration_waits_for_no_executor_that_knows_enough_of_the_schema(bench, upgrade, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("joex.store.executors.known_version", lambda: NEXT)
        await bench.executor("p/a-0")
    assert await upgrade(TAKES_AWAY) == [f"{NEXT:04}_next"]


async def test_executors_that_a_migration_locks_out_by_order_finish_their_jobs_and_can_not_come_back(
    client, connection, database_url, upgrade
):
    begun, go_on = asyncio.Event(), asyncio.Event()
    app = joex.App()

    @app.task("wait")
    async def wait(ctx: joex.Context) -> str:
        begun.set()
        await go_on.wait()
        return "done"

    async with executor_inside(app, database_url) as inside:
        job_id = await client.submit("wait")
        await begun.wait()
        await upgrade(TAKES_AWAY, lock_out=True)
        go_on.set()
        await inside.work
    assert (await client.get(job_id)).result == "done"
    assert await connection.fetchval("SELECT state FROM joex.executors") == "left"
    assert await connection.fetchval("SELECT act FROM joex.audit ORDER BY nr DESC LIMIT 1") == "drain"
    assert await refused(database_url, TOO_NEW) == "SchemaTooNew"


async def test_a_migration_by_order_drains_no_successor_that_knows_enough_of_the_schema(
    bench, connection, upgrade, monkeypatch
):
    """It takes jobs beside its predecessor, which has the same app-id, is too old, and drains already."""
    predecessor = await bench.executor("p/a-0")
    await connection.execute("SELECT joex_client.drain('p/a-0')")
    with monkeypatch.context() as patch:
        patch.setattr("joex.store.executors.known_version", lambda: NEXT)
        successor = await bench.executor("p/a-0", beside=[predecessor])
    with pytest.raises(SchemaError, match=r"would lock out living executors.*: p/a-0; nothing was done"):
        await upgrade(TAKES_AWAY)
    await upgrade(TAKES_AWAY, lock_out=True)
    found = {row["id"]: row["draining"] for row in await connection.fetch("SELECT * FROM joex_private.executor")}
    assert found == {predecessor: True, successor: False}


async def test_the_command_locks_out_executors_only_with_a_flag_that_says_so(
    bench, connection, database_url, monkeypatch, capsys
):
    await bench.executor("p/a-0")
    command = ["migrate", "--database-url", database_url]
    with next_version(monkeypatch, TAKES_AWAY):
        assert await asyncio.to_thread(call, "joex", command) == 2
        assert f"or let them drain with 'joex migrate {LOCK_OUT}'" in capsys.readouterr().err
        assert await schema_version(connection) == KNOWN
        assert await asyncio.to_thread(call, "joex", [*command, LOCK_OUT]) == 0
    assert await connection.fetchval("SELECT state FROM joex.executors") == "draining"


async def test_an_executor_that_a_migration_has_locked_out_does_not_register_again_after_the_end_of_its_lease(
    client, connection, database_url, upgrade
):
    log = EventLog()
    executor = Executor(adding(), Settings(http_address="", lease=LONG), database_url, emit=log)
    work = asyncio.create_task(executor.run())
    await log.wait_for(Registered)
    await connection.execute(SILENT)  # as if it had been cut off from the database during the migration
    await upgrade(TAKES_AWAY)
    await connection.execute("SELECT joex_private.end_executor($1, 'dead')", executor.id)
    await client.submit("add", {"a": 2, "b": 3})
    with pytest.raises(SchemaError, match=rf"needs programs that know version {NEXT}; this executor knows") as caught:
        await asyncio.wait_for(work, PATIENCE)
    assert caught.value.reason == "SchemaTooNew"
