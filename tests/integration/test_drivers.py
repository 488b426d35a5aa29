"""Calls of both clients in transactions of other libraries: psycopg, SQLAlchemy, Django."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from inspect import isawaitable
from operator import attrgetter
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg_pool import ConnectionPool
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import joex
import joex.sync
from joex.client.blocking import blocking
from joex.testing import drain
from tests.support.connections import (
    ASYNC,
    SYNC,
    Held,
    django_alias,
    engine,
    give_codecs,
    give_loaders,
    sqlalchemy_url,
)

UNUSED = "postgresql://nobody@localhost:1/nothing"
INSERT = "INSERT INTO orders VALUES ('tea')"
Open = Callable[[], AbstractAsyncContextManager[Held]]

app = joex.App()


class Mistake(Exception):
    """An error of the caller."""


@app.task("sums.add")
async def add(ctx: joex.Context, a: int, b: int) -> dict[str, int]:
    ctx.log.info("adding")
    return {"sum": a + b}


@asynccontextmanager
async def entered(block: Any) -> AsyncIterator[Any]:
    """A block, synchronous or not."""
    if hasattr(block, "__aenter__"):
        async with block as value:
            yield value
    else:
        with block as value:
            yield value


async def settled(value: Any) -> Any:
    return await value if isawaitable(value) else value


@pytest.fixture
async def url(connection: asyncpg.Connection, database_url: str) -> AsyncIterator[str]:
    """The URL of a database that has orders, and a finished job."""
    await connection.execute("CREATE TABLE orders (item text)")
    await connection.execute("SELECT joex.submit('sums.add', '{\"a\": 1, \"b\": 2}', subject => 'the finished one')")
    await connection.execute("SELECT joex.put_periodic_task('theirs', 'a', 'daily', owner => 'app:shop')")
    async with joex.Client(database_url) as client:
        await drain(app, client)
    yield database_url
    await connection.execute("DROP TABLE orders")  # so that the next test can have the database


def stored(url: str) -> tuple[set[str], int]:
    """The waiting jobs, by their tasks, and the number of orders."""
    with psycopg.connect(url) as connection:
        tasks = connection.execute("SELECT task FROM joex.jobs WHERE state = 'waiting'").fetchall()
        orders = connection.execute("SELECT FROM orders").rowcount
    return {task for [task] in tasks}, orders


# ---- a job is there if and only if its transaction commits


async def submit_in_transactions(client: Any, opened: Callable[[], Any]) -> None:
    """Commit and roll back, where the transaction begins with the submission and where it does not."""
    for end in ("commit", "rollback"):
        for begins in ("submission", "order"):
            async with entered(opened()) as held:
                if begins == "order":
                    await settled(held.execute(INSERT))
                await settled(client.submit(f"{end} {begins}", connection=held.connection))
                if begins == "submission":
                    await settled(held.execute(INSERT))
                await settled(getattr(held, end)())
    async with entered(opened()) as held:
        await settled(client.submit("before the savepoint", connection=held.connection))
        with suppress(Mistake):
            async with entered(held.savepoint()):
                await settled(client.submit("in the savepoint", connection=held.connection))
                raise Mistake
        await settled(client.submit_many([{"task": "after the savepoint"}] * 2, connection=held.connection))
        await settled(held.commit())
    async with entered(opened()) as held:  # more than fit into one statement
        many = [{"task": "of a large batch"}] * 1001
        await settled(client.submit_many(many, connection=held.connection))
        await settled(held.rollback())


COMMITTED = {"commit submission", "commit order", "before the savepoint", "after the savepoint"}


@pytest.mark.parametrize("kind", SYNC)
def test_a_job_is_there_if_and_only_if_the_transaction_of_a_synchronous_connection_commits(url: str, kind: str) -> None:
    blocking(submit_in_transactions(joex.sync.Client(UNUSED), lambda: SYNC[kind](url)))
    assert stored(url) == (COMMITTED, 2)


@pytest.mark.parametrize("kind", [*ASYNC, *(f"synchronous {kind}" for kind in SYNC if kind != "Django")])
async def test_a_job_is_there_if_and_only_if_the_transaction_of_the_other_clients_connection_commits(
    url: str, kind: str
) -> None:
    of_kind: dict[str, Any] = ASYNC | {f"synchronous {kind}": opened for kind, opened in SYNC.items()}
    await submit_in_transactions(joex.Client(UNUSED), lambda: of_kind[kind](url))
    assert stored(url) == (COMMITTED, 2)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_connection_that_commits_each_statement_takes_as_many_jobs_as_fit_into_one(url: str, driver: str) -> None:
    with engine(url, driver, isolation_level="AUTOCOMMIT") as made, made.connect() as connection:
        client = joex.sync.Client(connection)
        client.submit_many([{"task": "a"}, {"task": "b"}])
        with pytest.raises(joex.ConfigError, match="connection: expected one that does not commit each statement"):
            client.submit_many([{"task": "c"}] * 1001)
    assert stored(url) == ({"a", "b"}, 0)


def test_a_large_batch_is_one_transaction_where_the_connection_commits_each_statement(url: str) -> None:
    wrong: list[dict[str, Any]] = [*[{"task": "a"}] * 1000, {"task": "b", "args": {"x": "too large" * 4_000_000}}]
    with psycopg.connect(url, autocommit=True) as connection:
        client = joex.sync.Client(connection)
        with pytest.raises(joex.InvalidJob):
            client.submit_many(wrong)
        assert stored(url) == (set(), 0)
        assert len(set(client.submit_many([{"task": "a"}] * 1001))) == 1001
    assert stored(url) == ({"a"}, 0)


def test_a_client_of_a_connection_makes_all_its_calls_in_its_transaction(url: str) -> None:
    for kind in ("Django", "SQLAlchemy scoped session", "psycopg"):
        with SYNC[kind](url) as held:
            client = joex.sync.Client(held.connection)
            job_id = add.options(group="acme").submit(client, a=1, b=2)
            assert job_id is not None
            job = client.get(job_id)
            assert job is not None
            assert (job.group, job.args) == ("acme", {"a": 1, "b": 2})
            with pytest.raises(joex.InvalidJob, match=r"arguments of task 'sums\.add'"):
                add.submit(client, a="x", b=2)  # type: ignore[arg-type]
            held.rollback()
            assert client.wait(job_id, states=["waiting"]) is None
    assert stored(url) == (set(), 0)


# ---- the same answers whatever the client and the connection are


async def script(  # noqa: PLR0915 - each call is a line
    client: Any, among: dict[str, Any], savepoint: Callable[[], Any], finished: UUID
) -> list[Any]:
    """What the methods of a client answer, or raise; the second part of a call is in a savepoint, if it raises."""
    answers: list[Any] = []

    async def call(name: str, *args: Any, **more: Any) -> Any:
        try:
            async with entered(savepoint()):
                answer = await settled(attrgetter(name)(client)(*args, **among, **more))
        except joex.JoexError as error:
            answer = error
        answers.append((name, answer))
        return answer

    due = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    place = {"group": "acme", "queue": "mail"}
    more = {"subject": "a % of $1", "submitter": "web", "not_before": due, "tracker": "t", "retries": 3}
    args = {"to": ["ä@example.org"], "n": 2**40, "x": 1.5, "none": None, "deep": {"a": [True]}}
    first = await call("submit", "mail.send", args, priority="high", **place, **more)
    await call("submit", "mail.send", args, **place, tracker="t")
    second, _, third = await call(
        "submit_many", [{"task": "a", **place}, {"task": "b", "tracker": "t", **place}, joex.NewJob("c", {"x": 1})]
    )
    await call("submit_many", [])
    await call("submit", "mail.send", {"x": {1: 2}})
    await call("submit", "", {})
    await call("submit", "mail.send", {"x": "y" * 2**25})
    for job_id in (first, finished, uuid4()):
        await call("get", job_id)
        await call("log", job_id)
        await call("attempts", job_id)
        await call("why", job_id)
    await call("log", finished, after=2**62)
    await call("set_priority", second, "high")
    await call("set_priority", second, "higher")
    await call("set_args", second, {"y": [1]})
    await call("set_args", finished, {"y": [1]})
    await call("get", second)
    for job_id in (third, third, finished, uuid4()):
        await call("cancel", job_id)
    await call("retry", third)
    await call("retry", finished)
    await call("retry_failed", queue="mail", most=10)
    await call("notify", "mail")
    put = {"zone": "Europe/Zurich", "args": {"z": 1}, **place, "starting_deadline": "90m"}
    await call("periodic.put", "nightly", "mail.send", "Mon..Fri 8:00", **put)
    await call("periodic.put", "nightly", "mail.send", "Mon..Fri 8:00", **put)
    await call("periodic.put", "wrong", "mail.send", "never")
    await call("periodic.get", "nightly")
    await call("periodic.get", "missing")
    await call("periodic.list", "user", most=1)
    await call("periodic.run_now", "nightly")
    await call("periodic.disable", "nightly")
    await call("periodic.list")
    await call("periodic.remove", "theirs")
    await call("periodic.remove", "nightly")
    await call("groups.set", "acme", queue="mail", weight=3, max_running=4, max_waiting=2)
    await call("groups.set", "acme", weight=1000)
    await call("groups.set", "", weight=1)
    await call("submit", "mail.send", **place)
    await call("submit_many", [{"task": "mail.send", **place}])
    await call("groups.list")
    await call("groups.list", "mail", most=1)
    await call("groups.settings")
    await call("groups.set", "acme", queue="mail", weight=1, max_running=-1, max_waiting=-1)
    for job_id in (second, third, uuid4()):
        await call("remove", job_id)
    return answers


def plain(value: Any, known: dict[Any, int]) -> Any:  # noqa: PLR0911 - a line for each type
    """An answer, for comparison: its types, and whatever differs from one submission to the next by its place."""
    if isinstance(value, UUID):
        return "id", known.setdefault(value, len(known))
    if isinstance(value, str) and value.startswith("joex.testing-"):
        return "app-id", known.setdefault(value, len(known))
    if isinstance(value, datetime):
        return "time", str(value.tzinfo), value.year if value.year > 2099 else None
    if isinstance(value, joex.JoexError):
        return type(value), str(value)
    if is_dataclass(value):
        return type(value), {
            one.name: plain(getattr(value, one.name), known)
            for one in fields(value)
            if one.name not in ("seq", "oldest_runnable_seconds")
        }
    if isinstance(value, dict):
        return {name: plain(one, known) for name, one in value.items() if name not in ("at", "seconds", "since")}
    if isinstance(value, list | tuple):
        return type(value), [plain(one, known) for one in value]
    return type(value), value


def rolled_back(opened: Any, client: Any, finished: UUID) -> Any:
    """Run the script in a transaction, and roll that back."""

    async def run() -> Any:
        async with entered(opened) as held:
            answers = await script(client, {"connection": held.connection}, held.savepoint, finished)
            await settled(held.rollback())
        return answers

    return run()


@pytest.fixture
async def finished(url: str, connection: asyncpg.Connection) -> UUID:
    """The id of the finished job."""
    return UUID(str(await connection.fetchval("SELECT id FROM joex.jobs WHERE state = 'success'")))


_expected: list[Any] = []  # (the same in each database, and of long arguments: the tests of this file share it)


@pytest.fixture
async def expected(url: str, finished: UUID) -> list[Any]:
    """The answers to the script of a client with a connection of asyncpg."""
    if not _expected:
        answers: list[Any] = await rolled_back(ASYNC["asyncpg"](url), joex.Client(UNUSED), finished)
        known: dict[Any, int] = {}
        kinds = {type(answer).__name__ for _, answer in answers if isinstance(answer, joex.JoexError)}
        assert kinds == {"InvalidJob", "NotYours", "GroupFull"}
        _expected.extend(plain(one, known) for one in answers)
    return _expected


def compare(answers: list[Any], expected: list[Any]) -> None:
    known: dict[Any, int] = {}
    for answer, one in zip(answers, expected, strict=True):
        assert plain(answer, known) == one


@pytest.mark.parametrize("kind", SYNC)
def test_the_synchronous_client_gives_the_same_answers(url, finished, expected, kind):
    compare(blocking(rolled_back(SYNC[kind](url), joex.sync.Client(UNUSED), finished)), expected)


@pytest.mark.parametrize("kind", [one for one in ASYNC if one != "asyncpg"])
async def test_the_client_gives_the_same_answers_on_another_connection(url, finished, expected, kind):
    compare(await rolled_back(ASYNC[kind](url), joex.Client(UNUSED), finished), expected)


# ---- ids are of one type, whatever the connections of the caller's pool make of them


async def test_a_pool_whose_connections_have_ids_as_text_gives_ids(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=0, max_size=3, init=give_codecs) as pool, joex.Client(pool) as client:
        job_id = await add.submit(client, a=1, b=2)
        waiting = await client.wait(UUID(str(job_id)), states=["waiting"])
        assert waiting is not None
        assert (type(job_id), waiting.id) == (UUID, job_id)
        async with client.subscribe(UUID(str(job_id))) as changes:
            assert [(one, job and job.id) async for one, job in first(changes)] == [(job_id, job_id)]
        assert [job.id for job in await drain(app, client)] == [job_id]
        assert await add.result(client, job_id) == {"sum": 3}

        keyed = client.keyed
        added = await keyed.add("mail", 7)
        accepted = await keyed.accept("mail")
        assert accepted is not None
        assert accepted.job == added
        assert isinstance(accepted.lock_id, UUID)
        await keyed.finish("mail", 7, {}, accepted.lock_id)
        assert await keyed.wait("mail", 7)


def test_so_does_one_of_psycopg(url: str) -> None:
    with ConnectionPool(url, min_size=0, max_size=2, configure=give_loaders) as pool:
        client = joex.sync.Client(pool)
        job_id = client.submit("a")
        waiting = client.wait(UUID(str(job_id)), states=["waiting"])
        assert waiting is not None
        assert (type(job_id), waiting.id) == (UUID, job_id)


async def first(changes: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The first of them."""
    async for change in changes:
        yield change
        return


# ---- where a connection is none for Joex


def test_a_pool_of_psycopg_lends_its_connections(url: str) -> None:
    with ConnectionPool(url, min_size=0, max_size=2) as pool:
        client = joex.sync.Client(pool)
        assert client.get(client.submit("a")) is not None
        client.close()
        client.submit("b")
    assert stored(url) == ({"a", "b"}, 0)
    with pytest.raises(joex.DatabaseUnavailable, match=r"^the database is not available: the pool"):
        client.submit("c")
    with (
        ConnectionPool(UNUSED, min_size=0, max_size=1, timeout=0.1) as pool,
        pytest.raises(joex.DatabaseUnavailable, match=r"^the database is not available: couldn't get a connection"),
    ):
        joex.sync.Client(pool).submit("d")


@pytest.mark.parametrize("kind", ["SQLAlchemy session", "SQLAlchemy scoped session", "Django"])
@pytest.mark.parametrize("jobs", [1, 1001])
def test_a_connection_that_is_opened_for_the_job_may_find_no_database(kind: str, jobs: int) -> None:
    with lazily(kind) as connection, pytest.raises(joex.DatabaseUnavailable, match=r"^the database is not available: "):
        joex.sync.Client(connection).submit_many([{"task": "a"}] * jobs)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_nor_may_one_of_an_async_session(driver: str) -> None:
    made = create_async_engine(sqlalchemy_url(UNUSED, driver))
    async with AsyncSession(made) as session:
        with pytest.raises(joex.DatabaseUnavailable, match=r"^the database is not available: "):
            await joex.Client(UNUSED).submit("a", connection=session)


@contextmanager
def lazily(kind: str) -> Iterator[Any]:
    """A connection to no server, not opened yet."""
    if kind == "Django":
        with django_alias(UNUSED) as connection:
            yield connection
        return
    with engine(UNUSED, "psycopg") as made:
        session: Any = Session(made) if kind == "SQLAlchemy session" else scoped_session(sessionmaker(made))
        yield session
        session.close()


POOL = "QueuePool limit of size 1 overflow 0 reached, connection timed out, timeout 0.01"


@pytest.mark.parametrize("jobs", [1, 2, 1001])
def test_what_sqlalchemy_refuses_by_itself_is_an_error_of_joex(url: str, jobs: int) -> None:
    made = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"), pool_size=1, max_overflow=0, pool_timeout=0.01)
    with made.connect() as held, Session(made) as waiting:
        refused(waiting, jobs, f"the database is not available: {POOL}: expected a pool with a free connection: ")
        held.exec_driver_sql("SELECT")
        held.invalidate()
        refused(held, jobs, "connection: Can't reconnect until invalid transaction is rolled back.")
    refused(held, jobs, "connection: expected an open one; this one is closed: ")
    refused(Session(), jobs, "connection: expected a session that has an engine, ")
    with Session(made, autobegin=False) as unbegun:
        refused(unbegun, jobs, "connection: Autobegin is disabled on this Session; please call session.begin()")
    made.dispose()


@pytest.mark.parametrize("jobs", [1, 2, 1001])
async def test_so_is_what_it_refuses_of_an_async_engine(url: str, jobs: int) -> None:
    made = create_async_engine(sqlalchemy_url(url, "asyncpg"), pool_size=1, max_overflow=0, pool_timeout=0.01)
    many = [{"task": "a"}] * jobs
    client = joex.Client(UNUSED)
    async with made.connect() as held, AsyncSession(made) as waiting:
        with pytest.raises(joex.DatabaseUnavailable, match=f"^the database is not available: {POOL}: expected a pool "):
            await client.submit_many(many, connection=waiting)
        for inner in (held.sync_connection, waiting.sync_session):
            refused(inner, jobs, "connection: expected a synchronous one; this one is of an async engine: ")
    for connection, why in ((held, "expected an open one; "), (made.connect(), "AsyncConnection context has not been")):
        with pytest.raises(joex.ConfigError, match=f"^connection: {why}"):
            await client.submit_many(many, connection=connection)
    await made.dispose()


def refused(connection: Any, jobs: int, beginning: str) -> None:
    with pytest.raises((joex.ConfigError, joex.DatabaseUnavailable), match=f"^{re.escape(beginning)}") as raised:
        joex.sync.Client(connection).submit_many([{"task": "a"}] * jobs)
    assert "\n" not in str(raised.value)
    assert "sqlalche.me" not in str(raised.value)


async def test_a_connection_of_django_says_that_it_can_do_nothing_beside_an_event_loop(url: str) -> None:
    with django_alias(url) as connection:
        for call in (joex.Client(UNUSED).submit("a", connection=connection), _many(connection)):
            with pytest.raises(joex.ConfigError, match=r"^connection: Django's works only in threads without an event"):
                await call


def _many(connection: Any) -> Any:
    return joex.Client(UNUSED).submit_many([{"task": "a"}], connection=connection)


def test_a_connection_to_another_database_is_refused() -> None:
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        client = joex.sync.Client(connection)
        with pytest.raises(joex.ConfigError, match=r"^connection: expected one to PostgreSQL; got one to sqlite$"):
            client.submit("a")


def test_a_connection_in_pipeline_mode_is_refused_and_may_leave_it_within_its_transaction(url: str) -> None:
    with psycopg.connect(url) as held:
        client = joex.sync.Client(held)
        with held.pipeline():
            held.execute(INSERT)
            with pytest.raises(joex.ConfigError, match=r"^connection: expected one that is not in pipeline mode, "):
                client.submit("a")
        client.submit("b")
    assert stored(url) == ({"b"}, 1)


async def test_so_is_an_asynchronous_one(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url) as held, held.pipeline():
        with pytest.raises(joex.ConfigError, match=r"^connection: expected one that is not in pipeline mode, "):
            await joex.Client(UNUSED).submit("a", connection=held)


@pytest.mark.parametrize("kind", SYNC)
def test_an_error_of_the_server_leaves_the_transaction_to_its_owner(url: str, kind: str) -> None:
    client = joex.sync.Client(UNUSED)
    with SYNC[kind](url) as held:
        held.execute(INSERT)
        client.groups.set("acme", max_waiting=0, connection=held.connection)
        with pytest.raises(joex.GroupFull):
            client.submit("a", group="acme", connection=held.connection)
        with pytest.raises(joex.JoexError, match="current transaction is aborted"):
            client.submit("a", connection=held.connection)
        held.rollback()
    assert stored(url) == (set(), 0)
