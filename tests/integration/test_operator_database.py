"""How the operator closes a database, and what it logs about outages."""

import asyncio
import logging
import threading
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from joex.core.lease import Mark
from joex.errors import ConfigError, DatabaseUnavailable, InvalidJob, JoexError, SchemaError
from joex.notifications import listener
from joex.store import executors, stats
from joex.store.database import connect
from joex.store.name_lookups import OWNER
from joex_operator.control import database
from joex_operator.control.controller import Controller
from joex_operator.control.database import Database, Databases, database_problem
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.control.queue_metrics import refresh_queue_metrics
from joex_operator.local.fleet import ProcessFleet
from joex_operator.metrics import OperatorMetrics
from tests.support.waiting import PATIENCE, eventually
from tests.unit.joex_operator.builders import manifest


async def test_a_close_that_is_cancelled_leaves_no_scheduler_and_no_connection_behind(database_url):
    """A reconcile that takes too long is cancelled, and no other one knows of the database any more."""
    schedulers: list[SchedulerService] = []

    def start_scheduler(pool, name):
        schedulers.append(SchedulerService(pool, name, worker="me", poll=1.0, metrics=OperatorMetrics()))
        return schedulers[0]

    database = Database(database_url, lambda *_: None, migrate=False, start_scheduler=start_scheduler)
    async with database.connection():
        pass
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0)
    assert not closing.done()
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled(), "a worker that lost the cancellation would wait for its next key for ever"
    await eventually(schedulers[0]._running.done, why="the scheduler has stopped")
    assert database._pool is not None
    assert database._pool.is_closing()


async def test_a_migration_goes_on_though_the_reconcile_that_began_it_takes_too_long(database_url, monkeypatch):
    """Cancelled with it, and begun again by the next one, it would never end."""
    begun, goes_on = asyncio.Semaphore(0), asyncio.Event()

    async def migrate(*_, **__):
        begun.release()
        await goes_on.wait()
        return []

    monkeypatch.setattr("joex_operator.control.database.migrate", migrate)
    start_scheduler = partial(SchedulerService, worker="me", poll=1.0, metrics=OperatorMetrics())
    database = Database(database_url, lambda *_: None, migrate=True, start_scheduler=start_scheduler)

    async def use():
        async with database.connection() as connection:
            return await connection.fetchval("SELECT 1")

    try:
        async with asyncio.timeout(PATIENCE):
            first = asyncio.create_task(use())
            await begun.acquire()
            first.cancel()
            await asyncio.wait([first])
            second = asyncio.create_task(use())
            goes_on.set()
            assert await second == 1
        assert begun.locked(), "it began once"
    finally:
        await database.close()


async def test_a_long_migration_is_told_and_the_pools_are_looked_at_when_it_has_ended(database_url, monkeypatch):
    goes_on = asyncio.Event()
    said: list[Any] = []

    async def migrate(*_, **__):
        await goes_on.wait()
        return ["0002"]

    monkeypatch.setattr("joex_operator.control.database.migrate", migrate)
    monkeypatch.setattr("joex_operator.control.database._MIGRATION_TOLD_AFTER", 0.01)
    start_scheduler = partial(SchedulerService, worker="me", poll=1.0, metrics=OperatorMetrics())
    database = Database(database_url, lambda *what: said.append(what), migrate=True, start_scheduler=start_scheduler)

    async def use():
        async with database.connection() as connection:
            return await connection.fetchval("SELECT 1")

    try:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(JoexError) as caught:
                await use()
            assert database_problem(caught.value).reason == "Migrating"
            await eventually(lambda: said == [("all", "")], why="it listens")
            goes_on.set()
            await eventually(lambda: said == 2 * [("all", "")], why="the migration has ended")
            assert await use() == 1
    finally:
        await database.close()


async def test_a_migration_ends_with_the_last_use_of_its_database(database_url, monkeypatch):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def migrate(*_, **__):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr("joex_operator.control.database.migrate", migrate)
    database = Database(database_url, lambda *_: None, migrate=True, start_scheduler=Mock())

    async def use():
        async with database.connection():
            pass

    using = asyncio.create_task(use())
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
        await database.close()
        assert ended.is_set()
        with pytest.raises(DatabaseUnavailable, match="no pool uses this database any more"):
            await using


class Observed:
    """An observation that is as a test says."""

    def __init__(self):
        self.marks = []

    def answered(self, *_):
        return False

    def break_off(self):
        pass


async def test_the_next_free_connection_is_for_the_namespace_that_has_fewest(database_url):
    """Hundreds of pools of one namespace would hold up all others that use the database."""
    start_scheduler = partial(SchedulerService, worker="me", poll=1.0, metrics=OperatorMetrics())
    database = Database(database_url, lambda *_: None, migrate=False, start_scheduler=start_scheduler)
    had: list[str] = []
    may_end = asyncio.Semaphore(0)

    async def use(namespace):
        OWNER.set(namespace)
        async with database.connection():
            had.append(namespace)
            await may_end.acquire()

    uses = [asyncio.create_task(use("many")) for _ in range(20)]
    try:
        await eventually(lambda: len(had) == 4)
        uses.append(asyncio.create_task(use("another")))
        await asyncio.sleep(0)  # it waits behind the others
        may_end.release()
        await eventually(lambda: len(had) == 5)
        assert had[-1] == "another"
    finally:
        for one in uses:
            one.cancel()
        await asyncio.wait(uses)
        await database.close()


async def test_the_many_pools_of_a_database_share_the_rescue_of_an_observation(database_url, monkeypatch):
    """A rescue looks at each executor of the database."""
    rescues = []

    async def rescue(_connection, marks):
        rescues.append(list(marks))
        return []

    monkeypatch.setattr("joex.store.executors.rescue", rescue)
    start_scheduler = partial(SchedulerService, worker="me", poll=1.0, metrics=OperatorMetrics())
    database = Database(database_url, lambda *_: None, migrate=False, start_scheduler=start_scheduler)
    observed = Observed()
    monkeypatch.setattr(database, "_observed", observed)
    first, second = [Mark(1.0, 5)], [Mark(0.5, 7), Mark(2.5, 5)]
    try:
        async with database.connection() as connection:
            for marks in ([], first, second, []):
                observed.marks = marks
                for _ in range(2):
                    await database.rescue(connection)
    finally:
        await database.close()
    assert rescues == [[], [], first, second, [], []]


async def test_a_database_in_which_a_rescue_always_finds_somebody_holds_up_no_reconcile(connection, database_url):
    """Whoever owns the database may replace its functions."""
    arguments = await connection.fetchval(
        "SELECT pg_get_function_arguments(p.oid) FROM pg_proc p WHERE p.oid = 'joex_private.rescue'::regproc"
    )
    await connection.execute(f"""
        CREATE OR REPLACE FUNCTION joex_private.rescue({arguments})
        RETURNS TABLE (executor integer, app_id text, jobs bigint) LANGUAGE sql AS $$ SELECT 1, 'x'::text, 0::bigint $$
    """)
    start_scheduler = partial(SchedulerService, worker="me", poll=1.0, metrics=OperatorMetrics())
    database = Database(database_url, lambda *_: None, migrate=False, start_scheduler=start_scheduler)
    try:
        async with asyncio.timeout(PATIENCE), database.connection() as used:
            await database.rescue(used)
    finally:
        await database.close()


async def test_a_database_that_answers_each_statement_late_is_used_for_a_limited_time(database_url):
    """The other pools of the database go on: some of them may need less."""
    start_scheduler = partial(SchedulerService, worker="me", poll=1.0, metrics=OperatorMetrics())
    database = Database(database_url, lambda *_: None, migrate=False, start_scheduler=start_scheduler)

    async def ask_on_and_on():
        async with asyncio.timeout(PATIENCE), database.connection(within=0.2) as connection:
            while True:
                await connection.execute("SELECT pg_sleep(0.05)")

    try:
        with pytest.raises(JoexError, match="not done within"):
            await ask_on_and_on()
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await database.close()


@pytest.mark.parametrize("migrates", [False, True])
async def test_a_database_that_answers_the_check_of_its_schema_late_is_asked_for_a_limited_time(
    database_url, monkeypatch, migrates
):
    async def ask_on_and_on(connection):
        while True:
            await connection.execute("SELECT pg_sleep(0.05)")

    monkeypatch.setattr("joex_operator.control.database._USED_FOR", 0.2)
    monkeypatch.setattr("joex_operator.control.database.check_schema", ask_on_and_on)
    database = Database(database_url, lambda *_: None, migrate=migrates, start_scheduler=Mock())
    try:
        with pytest.raises(DatabaseUnavailable, match="no answer in time"):
            async with asyncio.timeout(PATIENCE), database.connection():
                pass
    finally:
        await database.close()


@pytest.mark.parametrize(("name", "error"), [("postgres", SchemaError), ("there_is_no_such_database", ConfigError)])
async def test_the_many_pools_of_a_database_that_can_not_be_used_share_a_try(postgres, monkeypatch, name, error):
    """Each try connects, one after the other: a thousand pools would do little else."""
    tries = []

    async def connect_once(url, **more):
        tries.append(more["name"])
        return await connect(url, **more)

    monkeypatch.setattr("joex_operator.control.database.connect", connect_once)
    monkeypatch.setattr("joex_operator.control.database._TRY_AGAIN_IN", 3600.0)
    database = Database(postgres.url(name), lambda *_: None, migrate=False, start_scheduler=Mock())
    told = set()
    try:
        for _ in range(5):
            with pytest.raises(error) as raised:
                async with database.connection():
                    pass
            told.add(database_problem(raised.value))
    finally:
        await database.close()
    assert tries.count("joex operator") == 1
    assert len(told) == 1


async def test_who_can_not_listen_says_not_each_time_that_pools_may_have_missed_something(postgres, monkeypatch):
    """Without the schema, all pools of a database would be reconciled whenever the operator tries to listen again."""
    tries, observe, said = asyncio.Semaphore(0), executors.observe, []

    async def observe_once(connection):
        tries.release()
        return await observe(connection)

    monkeypatch.setattr(executors, "observe", observe_once)
    database = Database(
        postgres.url("postgres"), lambda *what: said.append(what), migrate=False, start_scheduler=Mock()
    )
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):
                await tries.acquire()
    finally:
        await database.close()
    assert said == []


async def test_a_database_whose_answers_confuse_the_driver_is_used_again_when_they_are_right(database_url, monkeypatch):
    """asyncpg raises an IndexError, for example, where a message is shorter than it may be."""
    observe, count, said, metrics = executors.observe, stats.queue_stats, [], OperatorMetrics()
    confused = {"observe": 1, "count": 1}

    async def observe_later(connection):
        if confused.pop("observe", None):
            raise IndexError("deque index out of range")
        return await observe(connection)

    async def count_later(connection):
        if confused.pop("count", None):
            raise BufferError("buffer overread")
        return await count(connection)

    monkeypatch.setattr(executors, "observe", observe_later)
    monkeypatch.setattr(stats, "queue_stats", count_later)
    databases = Databases(lambda *what: said.append(what), migrate=False, start_scheduler=Mock())
    databases.get(database_url)
    counting = asyncio.create_task(refresh_queue_metrics(databases, metrics.databases, 0.05))
    try:
        await eventually(lambda: said and "joex_operator_database_reachable{" in _page(metrics))
    finally:
        counting.cancel()
        await asyncio.wait([counting])
        await databases.close()


async def test_thousands_of_notifications_are_one_for_the_pools(connection, database_url):
    """Whoever may connect can send any number, and the operator looks at all of its pools for each."""
    said = []
    database = Database(database_url, lambda *what: said.append(what), migrate=False, start_scheduler=Mock())
    send = "SELECT pg_notify('joex_operator', json_build_object('queue', 'q' || n)::text) FROM generate_series(1, {}) n"
    try:
        await eventually(lambda: said == [("all", "")])
        said.clear()
        await connection.execute(send.format(3))
        await eventually(lambda: said == [("queue", "q1"), ("queue", "q2"), ("queue", "q3")])
        await connection.execute(send.format(5000))
        await eventually(lambda: ("all", "") in said)
        assert len(said) < 1000  # of the first that came, some may have been told one by one
    finally:
        await database.close()


async def test_during_a_flood_of_notifications_the_operator_observes_and_does_not_listen(
    connection, database_url, monkeypatch, caplog
):
    monkeypatch.setattr(database, "_ASK_EVERY", 0.05)
    monkeypatch.setattr(listener, "_HEARD_AT_ONCE", 0)
    said, looks, observe = [], [], executors.observe

    async def count(connection):
        looks.append(connection)
        return await observe(connection)

    monkeypatch.setattr(executors, "observe", count)
    used = Database(database_url, lambda *what: said.append(what), migrate=False, start_scheduler=Mock())
    try:
        await eventually(lambda: said == [("all", "")])
        await connection.execute("NOTIFY joex_operator, 'x'")
        await eventually(lambda: said == [("all", "")] * 2, why="it has another connection")
        await connection.execute("""NOTIFY joex_operator, '{"queue": "mail"}'""")
        so_far = len(looks)
        await eventually(lambda: len(looks) > so_far + 2)
        assert said == [("all", "")] * 2
        assert "a flood of notifications on the channel joex_operator" in caplog.text
    finally:
        await used.close()


async def test_each_outage_has_a_line_when_it_begins_and_one_when_it_is_over_though_it_reads_as_the_last(
    proxy, monkeypatch, caplog
):
    monkeypatch.setattr("joex.trouble._AGAIN_AFTER", 3600.0)
    monkeypatch.setattr("joex.trouble._NEXT_AFTER", 0.0)
    caplog.set_level(logging.INFO, "joex.operator")
    database = Database(
        proxy.url,
        lambda *_: None,
        migrate=False,
        start_scheduler=partial(SchedulerService, worker="me", poll=0.1, metrics=OperatorMetrics()),
    )

    def has(service, outages, *, over):
        """Whether so many lines about a service tell of the begin, or of the end, of an outage."""
        found = [line for line in caplog.messages if line.startswith(f"{service} in {database.name}")]
        return len([line for line in found if ("works again" in line) == over]) >= outages

    try:
        await eventually(lambda: _is_reached(database), why="the scheduler runs")
        for outages in (1, 2):
            for over, step in ((False, proxy.refuse), (True, proxy.accept)):
                await step()
                for service in ("listening for work", "periodic tasks"):
                    await eventually(partial(has, service, outages, over=over), why=f"{service}: outage {outages}")
    finally:
        await database.close()


async def _is_reached(database):
    with suppress(DatabaseUnavailable):
        async with database.connection():
            return True
    return False


async def test_an_outage_is_over_when_the_database_answers_with_an_error(database_url):
    """The error concerns one pool: all others would fail for ten seconds without a try."""
    start_scheduler = partial(SchedulerService, worker="me", poll=1.0, metrics=OperatorMetrics())
    database = Database(database_url, lambda *_: None, migrate=False, start_scheduler=start_scheduler)
    database._outage = DatabaseUnavailable("it is away")
    try:
        with pytest.raises(InvalidJob):
            async with database.connection():
                raise InvalidJob("by a check of the database")
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await database.close()


class Named(ProcessFleet):
    """A fleet whose pools have their databases on hosts of their names."""

    def __init__(self, port):
        nothing: Any = None  # no executor is started, and no Event recorded
        super().__init__({}, "postgresql:///x", log_format="json", output=nothing, changed=lambda *_: None)
        self._port = port

    async def database_url(self, pool):
        return f"postgresql://joex@{pool.name}:{self._port}/shop"

    async def record_events(self, *_):
        pass


async def test_hosts_whose_names_no_server_resolves_hold_up_no_database_of_another_namespace(monkeypatch):
    """They hold up its listener, its pool and its statistics as little as each other."""
    answers, reached = threading.Event(), asyncio.Event()

    def resolve(name):
        if name.startswith("bad"):
            answers.wait()
        return ["127.0.0.1"]

    async def serve(_reader, writer):
        reached.set()
        writer.close()

    monkeypatch.setattr("joex.store.name_lookups.resolve", resolve)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    controller = Controller(Named(port), worker="the operator")
    metrics = controller.metrics
    running = [
        asyncio.create_task(controller.run()),
        asyncio.create_task(refresh_queue_metrics(controller.databases, metrics.databases, 0.05)),
    ]
    try:
        for number in range(5):
            controller.put(manifest(f"bad-{number}", {"namespace": "broken"}))
        await eventually(lambda: len(controller.databases.opened()) == 5)
        controller.put(manifest("good"))
        async with asyncio.timeout(PATIENCE):
            await reached.wait()
        await eventually(lambda: f'reachable{{database="good:{port}/shop"}}' in _page(metrics))
    finally:
        answers.set()
        for one in running:
            one.cancel()
        await asyncio.wait(running)
        server.close()


def _page(metrics):
    return metrics.render()[0].decode()
