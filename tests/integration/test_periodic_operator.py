"""PeriodicTask objects and their database, without a cluster: the operator's controller, with empty pools."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from joex.errors import DatabaseUnavailable
from joex.store import periodic
from joex_operator.api.objects import Pool, Ref
from joex_operator.control.controller import PERIODIC, POOL, Controller
from joex_operator.control.fleet import FleetError, UrlUnknown
from joex_operator.control.periodic_reconciler import PeriodicReconciler
from joex_operator.decide.events import Event
from joex_operator.local.fleet import ProcessFleet
from tests.support.waiting import eventually

EVERY_SECOND = "*:*:*"
SPACE = "here"
OURS = "SELECT {} FROM joex_private.periodic_task WHERE starts_with(owner, 'kubernetes:')"


class Output:
    """Keeps the events for people."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def event(self, kind: str, name: str, event: Event) -> None:
        self.events.append((f"{kind} {name}", event.reason))

    def log_line(self, replica: str, line: str) -> None:
        raise AssertionError(f"no executor is to be started: {replica} {line}")


class Fleet(ProcessFleet):
    """A fleet that can't store the statuses of some objects, nor read the secret ``unreadable``."""

    def __init__(self, url: str, output: Output, home: str) -> None:
        self.urls: dict[str, str] = {}
        super().__init__(self.urls, url, log_format="json", output=output, changed=lambda *_: None)
        self.refuses: set[str] = set()
        self.its_home = home
        self.refusals_of_home: asyncio.Queue[None] | None = None
        self.reads: asyncio.Queue[None] = asyncio.Queue()
        self.may_read = asyncio.Event()
        self.may_read.set()

    def home(self, namespace: str) -> str:
        assert namespace == SPACE
        if self.refusals_of_home is not None:
            self.refusals_of_home.put_nowait(None)
            raise FleetError(f"does not act in {namespace} any more")
        return self.its_home

    async def database_url(self, pool: Pool) -> str:
        if not self.may_read.is_set():
            self.reads.put_nowait(None)
            await self.may_read.wait()
        if pool.spec.database.secret_name == "unreadable":
            await _unreadable()
        return await super().database_url(pool)

    async def set_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        if ref.name in self.refuses:
            raise FleetError(f"{ref.name}: refused")
        await super().set_status(ref, status)


class Operator:
    """An operator on the test's database, which reconciles every ``poll`` seconds even without a notification."""

    def __init__(self, url: str, poll: float, home: str = SPACE) -> None:
        self.output = Output()
        self.fleet = Fleet(url, self.output, home)
        self.controller = Controller(self.fleet, worker="the operator", poll=poll)
        self._generation = 0

    def pool(self, name: str = "pool", **spec: Any) -> None:
        given = {"app": "shop:app", "database": {"secretName": "db"}, "replicas": 0, "queues": [name]}
        self._put(POOL, name, {**given, **spec})

    def task(self, name: str, timer: str = EVERY_SECOND, pool: str = "pool", **spec: Any) -> None:
        self._put(PERIODIC, name, {"pool": pool, "task": "a", "timer": timer, **spec})

    def remove(self, kind: str, name: str) -> None:
        self.controller.remove(kind, SPACE, name)

    def status(self, name: str) -> Mapping[str, Any]:
        return self.fleet.status(Ref(PERIODIC, SPACE, name))

    def ready(self, name: str) -> str | None:
        """The reason of a task's condition."""
        conditions = self.status(name).get("conditions") or [{}]
        reason: str | None = conditions[0].get("reason")
        return reason

    async def until_ready(self, name: str, reason: str = "Stored") -> None:
        await eventually(lambda: self.ready(name) == reason, why=f"{name} is {reason}")

    async def until_at_rest(self) -> None:
        """Wait until no reconcile is under way or due at once."""
        queue = self.controller._queue
        await eventually(
            lambda: not queue._busy and all(due > asyncio.get_running_loop().time() for due in queue._due.values()),
            why="the operator is at rest",
        )

    def _put(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self._generation += 1
        metadata = {"name": name, "namespace": SPACE, "uid": f"{kind} {name}", "generation": self._generation}
        self.controller.put({"apiVersion": "joex.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})

    async def until_marked(self, connection: asyncpg.Connection, task_id: str) -> None:
        """Wait until a scheduler has decided about a task."""
        marked = "SELECT marked FROM joex_private.periodic_task WHERE id = $1"
        await eventually(lambda: connection.fetchval(marked, task_id), why=f"{task_id} is decided about")


@asynccontextmanager
async def running_operator(url: str, poll: float, home: str = SPACE) -> AsyncIterator[Operator]:
    operator = Operator(url, poll, home)
    running = asyncio.create_task(operator.controller.run())
    try:
        yield operator
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert running.cancelled()


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Operator]:
    async with running_operator(database_url, poll=0.2) as operator:
        yield operator


async def test_an_operator_makes_jobs_where_there_is_no_executor_and_counts_them(
    operator: Operator, connection: asyncpg.Connection
) -> None:
    operator.pool()
    operator.task("ticks")
    await eventually(lambda: operator.status("ticks").get("lastOutcome") == "overlapping", why="it was due twice")
    (job,) = await connection.fetch("SELECT id, queue FROM joex_private.job")
    assert operator.status("ticks")["lastJob"] == {"id": str(job["id"]), "state": "waiting"}
    assert job["queue"] == "pool"
    assert await connection.fetchval(OURS.format("worker")) == "the operator"
    page = operator.controller.metrics.render()[0].decode()
    assert 'joex_periodic_decisions_total{outcome="submitted"} 1.0' in page


async def test_a_status_follows_the_job(operator: Operator, connection: asyncpg.Connection) -> None:
    operator.pool()
    operator.task("ticks")
    await eventually(lambda: operator.status("ticks").get("lastJob"), why="there is a job")
    operator.task("ticks", suspend=True)
    await operator.until_ready("ticks", "Suspended")
    job = operator.status("ticks")["lastJob"]["id"]
    await connection.execute("SELECT joex.cancel($1)", job)
    await eventually(lambda: operator.status("ticks")["lastJob"].get("state") == "cancelled")
    await connection.execute("DELETE FROM joex_private.job")
    await eventually(lambda: operator.status("ticks")["lastJob"] == {"id": job}, why="it says that it is deleted")


async def test_an_operator_leaves_the_tasks_of_joex_itself_to_executors(
    operator: Operator, connection: asyncpg.Connection
) -> None:
    await connection.execute("""
        INSERT INTO joex_private.periodic_task (id, owner, task, timer) VALUES ('joex.a', 'joex', 'a', '*:*:*')
    """)
    operator.pool()
    operator.task("ticks")
    await eventually(lambda: operator.status("ticks").get("lastOutcome") == "overlapping")
    assert await connection.fetchval("SELECT marked FROM joex_private.periodic_task WHERE id = 'joex.a'") is None


@pytest.mark.parametrize("hears", [True, False], ids=["heard of", "found by looking"])
async def test_an_operator_makes_the_jobs_of_every_owner(
    database_url: str, connection: asyncpg.Connection, *, hears: bool
) -> None:
    async with running_operator(database_url, poll=1000.0 if hears else 0.2) as operator:
        operator.pool()
        operator.task("nightly", "03:00")
        await operator.until_marked(connection, f"{SPACE}/nightly")
        if not hears:
            await connection.execute(
                "ALTER TABLE joex_private.periodic_task DISABLE TRIGGER changes"
            )  # as through a pooler
        await connection.execute("SELECT joex.put_periodic_task('mine', 'a', '*:*:*')")
        await operator.until_marked(connection, "mine")


async def test_jobs_go_on_when_all_connections_were_cut(operator: Operator, connection: asyncpg.Connection) -> None:
    operator.pool()
    operator.task("ticks")
    await eventually(lambda: operator.status("ticks").get("lastOutcome"))
    await connection.execute("""
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND starts_with(application_name, 'joex operator')
    """)
    last_run = operator.status("ticks")["lastRun"]
    await eventually(lambda: operator.status("ticks")["lastRun"] > last_run, why="it goes on")


async def test_a_cluster_leaves_the_rows_of_another_one_with_the_same_names_alone(
    database_url: str, connection: asyncpg.Connection
) -> None:
    one, other = (running_operator(database_url, 0.2, f"{SPACE}.{uid}") for uid in ("aaaaaaaa", "bbbbbbbb"))
    async with one as first, other as second:
        for operator, timer in ((first, "03:00"), (second, "04:00")):
            operator.pool()
            operator.task("nightly", timer)
            await operator.until_ready("nightly", "Stored" if operator is first else "OwnedByOther")
        second.remove(PERIODIC, "nightly")
        second.task("hourly", "hourly")
        await second.until_ready("hourly")
        rows = await connection.fetch(OURS.format("id, owner, timer"))
        assert sorted(map(tuple, rows)) == [
            (f"{SPACE}/hourly", f"kubernetes:{SPACE}.bbbbbbbb/pool", "hourly"),
            (f"{SPACE}/nightly", f"kubernetes:{SPACE}.aaaaaaaa/pool", "03:00"),
        ]


async def test_the_rows_of_a_namespace_that_is_made_again_are_those_of_the_new_one(
    operator: Operator, connection: asyncpg.Connection
) -> None:
    operator.fleet.its_home = f"{SPACE}.aaaaaaaa"
    operator.pool()
    for name in ("nightly", "gone"):
        operator.task(name, "03:00")
        await operator.until_ready(name)
    operator.controller.remove_all(SPACE)
    operator.fleet.its_home = f"{SPACE}.bbbbbbbb"
    operator.pool()
    operator.task("nightly", "04:00")

    async def has_moved() -> bool:
        rows = await connection.fetch(OURS.format("id, owner, timer"))
        return [tuple(row) for row in rows] == [(f"{SPACE}/nightly", f"kubernetes:{SPACE}.bbbbbbbb/pool", "04:00")]

    await eventually(has_moved)
    await operator.until_ready("nightly")


async def test_the_rows_of_all_pools_of_a_database_are_read_together(
    operator: Operator, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    list_tasks = periodic.list_tasks

    def counted(*args: Any, owners: list[str], **more: Any) -> Any:
        asked.append(len(owners))
        return list_tasks(*args, owners=owners, **more)

    for pool in ("one", "two", "three"):
        operator.pool(pool)
        operator.task(f"of-{pool}", "03:00", pool)
    for pool in ("one", "two", "three"):
        await operator.until_ready(f"of-{pool}")
    monkeypatch.setattr(periodic, "list_tasks", counted)
    operator.task("last", "03:00", "one")
    await operator.until_ready("last")
    assert set(asked) == {3}
    owners = await connection.fetch(OURS.format("DISTINCT owner"))
    assert {row[0] for row in owners} == {f"kubernetes:{SPACE}/{pool}" for pool in ("one", "two", "three")}


async def test_a_database_that_no_pool_uses_any_more_is_left_without_rows_and_connections(
    operator: Operator, connection: asyncpg.Connection
) -> None:
    operator.pool("one")
    operator.pool("two")
    operator.task("a", pool="one")
    operator.task("b", pool="two")
    await operator.until_ready("a")
    await operator.until_ready("b")
    operator.remove(POOL, "one")
    await operator.until_ready("a", "UnknownPool")
    assert [row["id"] for row in await connection.fetch(OURS.format("id"))] == [f"{SPACE}/b"]
    assert len(operator.controller.databases.opened()) == 1

    operator.remove(POOL, "two")
    await operator.until_ready("b", "UnknownPool")
    await eventually(lambda: not operator.controller.databases.opened(), why="it is closed")
    assert await connection.fetch(OURS.format("id")) == []
    assert "nextRun" not in operator.status("b")

    async def nobody_is_there() -> bool:
        return bool(
            await connection.fetchval("""
                SELECT count(*) = 0 FROM pg_stat_activity
                WHERE datname = current_database() AND starts_with(application_name, 'joex operator')
            """)
        )

    await eventually(nobody_is_there, why="its connections are closed")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [({"database": {"secretName": "unreadable"}}, "SecretNotFound"), ({"poolSize": 0}, "InvalidPool")],
)
async def test_a_pool_that_is_made_again_has_its_rows_while_its_database_is_not_known(
    operator: Operator, connection: asyncpg.Connection, spec: dict[str, Any], reason: str
) -> None:
    operator.pool()
    for name in ("goes", "stays"):
        operator.task(name, "03:00")
        await operator.until_ready(name)
    made = OURS.format("id, created_at") + " ORDER BY id"
    rows = await connection.fetch(made)
    operator.remove(POOL, "pool")
    operator.pool(**spec)
    await operator.until_ready("stays", reason)
    assert await connection.fetch(made) == rows
    operator.remove(PERIODIC, "goes")
    operator.pool()
    await operator.until_ready("stays")
    assert [row["id"] for row in await connection.fetch(OURS.format("id"))] == [f"{SPACE}/stays"]


async def test_a_pool_that_is_made_again_leaves_no_rows_in_its_databases_of_before(
    empty_database_url: str, operator: Operator, connection: asyncpg.Connection
) -> None:
    operator.fleet.urls["other"] = empty_database_url
    operator.pool()
    operator.task("nightly", "03:00")
    await operator.until_ready("nightly")
    operator.remove(POOL, "pool")
    operator.pool(database={"secretName": "unreadable"})
    await operator.until_ready("nightly", "SecretNotFound")
    operator.pool(database={"secretName": "other"})
    await operator.until_ready("nightly")
    await eventually(lambda: _is_empty(connection))


async def test_a_pool_that_is_made_again_with_another_url_of_its_database_has_its_rows(
    database_url: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = periodic.remove

    async def late(*args: Any, **more: Any) -> str:
        await asyncio.sleep(0.5)  # so that what does not wait for it comes before
        return await remove(*args, **more)

    monkeypatch.setattr(periodic, "remove", late)
    async with running_operator(database_url, poll=1000.0) as operator:
        operator.fleet.urls["other"] = database_url.replace("postgresql://", "postgres://")
        operator.pool()
        operator.pool("stays")
        operator.task("nightly", "03:00")
        await operator.until_ready("nightly")
        operator.remove(POOL, "pool")
        operator.pool(database={"secretName": "other"})
        await eventually(lambda: not operator.controller._left, why="the rows that the pool left have gone")
        await operator.until_at_rest()
        assert [row["id"] for row in await connection.fetch(OURS.format("id"))] == [f"{SPACE}/nightly"]


@pytest.mark.parametrize("fails", ["a status is refused", "a row is held"])
async def test_a_pool_that_is_made_again_with_another_url_of_its_database_has_new_rows_once(
    operator: Operator, connection: asyncpg.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    tries: asyncio.Queue[None] = asyncio.Queue()
    reconcile = PeriodicReconciler.reconcile

    async def noted(*args: Any) -> float | None:
        tries.put_nowait(None)
        return await reconcile(*args)

    operator.fleet.urls["other"] = database_url.replace("postgresql://", "postgres://")
    operator.pool()
    for name in ("held", "nightly"):
        operator.task(name, "03:00")
        await operator.until_ready(name)
    await operator.until_marked(connection, f"{SPACE}/nightly")
    made = OURS.format("created_at") + f" AND id = '{SPACE}/nightly'"
    first = await connection.fetchval(made)
    async with connection.transaction():
        if fails == "a row is held":
            await connection.execute(f"SELECT FROM joex_private.periodic_task WHERE id = '{SPACE}/held' FOR UPDATE")
        else:
            operator.fleet.refuses.add("held")
        operator.remove(POOL, "pool")
        operator.pool(database={"secretName": "other"})
        operator.task("held", "04:00")
        await eventually(lambda: _is_another(connection, made, {None, first}), why="nightly has another row")
        second = await connection.fetchval(made)
        monkeypatch.setattr(PeriodicReconciler, "reconcile", noted)
        for _ in range(3):
            await tries.get()
        assert await connection.fetchval(made) == second
    operator.fleet.refuses.clear()

    async def are_there() -> bool:
        rows = await connection.fetch(OURS.format("timer") + " ORDER BY id")
        return [row["timer"] for row in rows] == ["04:00", "03:00"]

    await eventually(are_there, why="held has its row, too")
    await operator.until_ready("held")
    await eventually(lambda: not operator.controller._left, why="nothing is left")
    assert await connection.fetchval(made) == second


@pytest.mark.parametrize("holder", ["lets it go", "removes it"])
async def test_a_row_that_was_held_when_its_pool_was_made_again_keeps_its_last_times(
    operator: Operator, connection: asyncpg.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    """The operator had put the row for the new pool, and then removed it as one that the old pool had left."""
    is_held, may_go_on = asyncio.Event(), asyncio.Event()
    reconcile = PeriodicReconciler.reconcile

    async def late(*args: Any) -> float | None:
        if any(one.row is not None for one in operator.controller._left.get(SPACE, ())):
            is_held.set()
            await may_go_on.wait()
        return await reconcile(*args)

    operator.fleet.urls["other"] = database_url.replace("postgresql://", "postgres://")
    operator.pool()
    operator.task("nightly", "03:00")
    await operator.until_ready("nightly")
    await operator.until_marked(connection, f"{SPACE}/nightly")
    monkeypatch.setattr(PeriodicReconciler, "reconcile", late)
    row = OURS.format("created_at, last_run")
    await connection.execute("UPDATE joex_private.periodic_task SET last_run = '2026-01-01 03:00Z'")
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.periodic_task FOR UPDATE")
        operator.remove(POOL, "pool")
        operator.pool(database={"secretName": "other"})
        await is_held.wait()
        if holder == "removes it":
            await connection.execute("DELETE FROM joex_private.periodic_task")
        before = await connection.fetch(row)
    may_go_on.set()
    if holder == "removes it":
        before = await eventually(lambda: connection.fetch(row), why="the new pool has its row")
    await eventually(lambda: not operator.controller._left, why="nothing is left")
    await operator.until_at_rest()
    assert await connection.fetch(row) == before


async def test_the_rows_of_a_pool_go_though_the_operator_lost_the_namespace_for_a_moment(
    operator: Operator, connection: asyncpg.Connection
) -> None:
    operator.pool("one")
    operator.pool("two")
    operator.task("a", "03:00", pool="one")
    await operator.until_ready("a")
    operator.remove(POOL, "one")
    operator.fleet.refusals_of_home = asyncio.Queue()
    await operator.fleet.refusals_of_home.get()
    operator.fleet.refusals_of_home = None
    await eventually(lambda: _is_empty(connection))


async def test_the_rows_of_a_pool_stay_where_another_release_has_taken_the_namespace_during_the_reconcile(
    database_url: str, connection: asyncpg.Connection
) -> None:
    async with running_operator(database_url, poll=1000.0) as operator:
        for pool in ("one", "two"):
            operator.pool(pool)
            operator.task(f"of-{pool}", "03:00", pool)
            await operator.until_ready(f"of-{pool}")
        operator.fleet.may_read.clear()
        operator.remove(POOL, "one")
        await operator.fleet.reads.get()
        operator.controller.abandon(SPACE)
        operator.fleet.may_read.set()
        await eventually(lambda: not operator.controller.databases.opened(), why="the reconcile is over")
    rows = await connection.fetch(OURS.format("id"))
    assert sorted(row["id"] for row in rows) == [f"{SPACE}/of-one", f"{SPACE}/of-two"]


async def test_the_rows_of_a_pool_that_goes_during_the_reconcile_go_too(
    database_url: str, connection: asyncpg.Connection
) -> None:
    async with running_operator(database_url, poll=1000.0) as operator:
        operator.pool()
        operator.task("nightly", "03:00")
        await operator.until_ready("nightly")
        operator.fleet.may_read.clear()
        operator.task("nightly", "04:00")
        await operator.fleet.reads.get()
        operator.remove(POOL, "pool")
        operator.fleet.may_read.set()
        await operator.until_ready("nightly", "UnknownPool")
        await eventually(lambda: _is_empty(connection))


async def test_the_rows_of_a_pool_that_is_made_again_during_the_reconcile_go_from_its_database_of_before(
    empty_database_url: str, database_url: str, connection: asyncpg.Connection
) -> None:
    async with running_operator(database_url, poll=1000.0) as operator:
        operator.fleet.urls["other"] = empty_database_url
        operator.pool()
        operator.task("nightly", "03:00")
        await operator.until_ready("nightly")
        operator.fleet.may_read.clear()
        operator.task("nightly", "04:00")
        await operator.fleet.reads.get()
        operator.remove(POOL, "pool")
        operator.pool(database={"secretName": "other"})
        operator.fleet.may_read.set()
        await eventually(lambda: _is_empty(connection))


@pytest.mark.parametrize("kind", [POOL, PERIODIC])
async def test_a_row_that_a_transaction_holds_while_its_object_is_removed_goes_afterwards(
    operator: Operator, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    operator.pool("pool")
    operator.task("pool", "03:00")
    await operator.until_ready("pool")
    answers: asyncio.Queue[str] = asyncio.Queue()
    remove = periodic.remove

    async def noted(*args: Any, **more: Any) -> str:
        answer = await remove(*args, **more)
        answers.put_nowait(answer)
        return answer

    monkeypatch.setattr(periodic, "remove", noted)
    async with connection.transaction():
        await connection.execute("SELECT FROM joex_private.periodic_task FOR UPDATE")
        operator.remove(kind, "pool")
        assert await answers.get() == "locked"
    await eventually(lambda: _is_empty(connection))


async def test_a_task_that_moves_to_another_pool_is_there_all_the_time(
    operator: Operator, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.pool("one")
    operator.pool("two")
    operator.task("a", "03:00", pool="one")
    await operator.until_ready("a")

    async def cut(*_: Any, **__: Any) -> str:
        raise DatabaseUnavailable("the connection was cut")

    with monkeypatch.context() as patched:
        patched.setattr(periodic, "put", cut)
        operator.task("a", "03:00", pool="two")
        await operator.until_ready("a", "Unreachable")
        assert await connection.fetchval(OURS.format("queue")) == "one"
    await operator.until_ready("a")
    assert [row["queue"] for row in await connection.fetch(OURS.format("queue"))] == ["two"]


async def test_the_row_of_a_pool_that_can_not_be_worked_with_stays_as_it_is(
    operator: Operator, connection: asyncpg.Connection
) -> None:
    operator.pool()
    operator.task("nightly", "03:00")
    await operator.until_ready("nightly")
    operator.pool(poolSize=0)
    await operator.until_ready("nightly", "InvalidPool")
    assert "nextRun" in operator.status("nightly"), "it is due all the same"
    assert await connection.fetchval(OURS.format("enabled"))
    operator.pool()
    await operator.until_ready("nightly")


async def test_a_task_that_the_database_refuses_says_so_and_stops_no_other(
    operator: Operator, connection: asyncpg.Connection
) -> None:
    await connection.execute("SELECT joex.set_largest('args', 8192)")
    operator.pool()
    operator.task("large", args={"x": "y" * 9000})
    operator.task("small")
    await eventually(lambda: operator.ready("large") == "Refused")
    [condition] = operator.status("large")["conditions"]
    assert condition["message"].startswith("args: at most 8192 bytes; got 90")
    await eventually(lambda: connection.fetchval(OURS.format("count(*)")))
    assert await connection.fetchval(OURS.format("string_agg(task, ' ')")) == "a"


async def test_a_task_that_is_gone_goes_from_the_database(operator: Operator, connection: asyncpg.Connection) -> None:
    operator.pool()
    operator.task("goes")
    operator.task("stays", "03:00")
    await operator.until_ready("goes")
    await operator.until_ready("stays")
    operator.remove(PERIODIC, "goes")

    async def has_gone() -> bool:
        return [row["id"] for row in await connection.fetch(OURS.format("id"))] == [f"{SPACE}/stays"]

    await eventually(has_gone)


async def test_the_last_task_goes_from_the_database_though_the_secret_of_its_pool_could_not_be_read(
    operator: Operator, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.pool()
    operator.task("nightly", "03:00")
    await operator.until_ready("nightly")
    found: asyncio.Queue[Any] = asyncio.Queue()
    reconcile = PeriodicReconciler.reconcile

    async def noted(*args: Any) -> float | None:
        after = await reconcile(*args)
        found.put_nowait(args[4])
        return after

    monkeypatch.setattr(PeriodicReconciler, "reconcile", noted)
    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "database_url", _unreadable)
        operator.remove(PERIODIC, "nightly")
        while isinstance((await found.get())["pool"], str):
            pass
    await eventually(lambda: _is_empty(connection))


async def test_a_status_that_can_not_be_stored_keeps_no_other_from_being_told(operator: Operator) -> None:
    operator.fleet.refuses.add("a")
    operator.pool()
    operator.task("a")
    operator.task("b")
    await operator.until_ready("b")
    assert operator.ready("a") is None
    operator.fleet.refuses.clear()
    await operator.until_ready("a")


async def test_nothing_is_said_twice(operator: Operator) -> None:
    operator.pool()
    operator.task("wrong", "whenever")
    operator.task("ticks")
    await eventually(lambda: operator.status("ticks").get("lastOutcome") == "overlapping")
    assert [said for said in operator.output.events if said[0].startswith(PERIODIC)] == [
        ("PeriodicTask wrong", "InvalidTimer")
    ]


async def test_a_row_that_a_tenant_holds_keeps_the_operator_from_nothing_else(
    operator: Operator, connection: asyncpg.Connection
) -> None:
    """A role that may operate in a group can name any owner there, and leave its transaction open."""
    operator.pool()
    operator.task("held", "03:00")
    operator.task("gone", "03:00")
    await operator.until_ready("held")
    await operator.until_ready("gone")
    async with connection.transaction():
        await connection.execute(
            "SELECT joex.enable_periodic_task(id, false, any_owner => true) FROM joex.periodic_tasks "
            "WHERE owner <> 'joex'"
        )
        operator.remove(PERIODIC, "gone")
        operator.task("held", "04:00")
        operator.task("free", "04:00")
        await operator.until_ready("free")
        await operator.until_ready("held", "Locked")
    await operator.until_ready("held")
    await eventually(lambda: _timers(connection), why="the rows are as asked")


async def _unreadable(*_: Any) -> str:
    raise UrlUnknown("SecretNotFound", "there is no such secret", is_withdrawn=True)


async def _timers(connection: asyncpg.Connection) -> bool:
    rows = await connection.fetch(OURS.format("id, timer"))
    return {tuple(row) for row in rows} == {(f"{SPACE}/held", "04:00"), (f"{SPACE}/free", "04:00")}


async def _is_another(connection: asyncpg.Connection, query: str, known: set[Any]) -> bool:
    return await connection.fetchval(query) not in known


async def _is_empty(connection: asyncpg.Connection) -> bool:
    return not await connection.fetch(OURS.format("id"))
