"""A limit of the jobs of a group that wait in line: submissions beyond it are refused, and store nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
import httpx
import pytest

import joex
from joex import App, Client
from joex.config import Settings
from joex.http.api import create_api
from joex.runtime.executor import Executor
from joex.store import stats
from joex.store.errors import translated
from joex.store.roles import RoleScopes, set_scopes
from tests.support.asgi import transport
from tests.support.cases import case
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres(16, 18)

ROLES = ("joex_test_tenant",)
CALLS = {
    "submit": "joex.submit('a', grp => 'acme')",
    "submit_many": "joex.submit_many('{a, a}', grps => '{other, acme}')",
    "submit with a tracker": "joex.submit('a', grp => 'acme', tracker => 't')",
    "add": r"joex_client.add('a', '\x02' || '\x61636d652f61'::bytea || '\x00', grp => 'acme', queue => 'default')",
}


@pytest.fixture
async def http(client: Client) -> AsyncIterator[httpx.AsyncClient]:
    api = create_api(Settings(), client, Executor(App(), Settings(), ""), lambda: (b"", "text/plain"))
    async with httpx.AsyncClient(transport=transport(api), base_url="http://127.0.0.1:7878") as http:
        yield http


@pytest.fixture
async def limited(bench):
    """The group acme may have three waiting jobs in the queue default, and has them."""
    await stats.set_group(bench.connection, "acme", "default", max_waiting=3)
    for _ in range(3):
        await bench.submit("acme")
    return bench


async def test_a_full_group_gets_no_more_jobs_and_a_refused_batch_stores_none(limited):
    told = 'group: "acme" has as many waiting jobs in queue "default" as it may: 3: submit again when some have run'
    for name, call in CALLS.items():
        with case(name):
            with pytest.raises(asyncpg.PostgresError) as refused:
                await limited.connection.execute(f"SELECT {call}")
            assert (refused.value.sqlstate, str(refused.value)) == ("JX004", told)
            assert await limited.connection.fetchval("SELECT count(*) FROM joex.jobs") == 3


async def test_a_batch_is_refused_that_would_fill_a_group_over_its_limit(bench):
    await stats.set_group(bench.connection, "acme", "default", max_waiting=3)
    batch = """
        SELECT count(*) FROM joex.submit_many(
            array_fill('a'::text, ARRAY[$1::integer]), grps => array_fill('acme'::text, ARRAY[$1::integer]))
    """
    with pytest.raises(asyncpg.PostgresError, match="as many waiting jobs"):
        await bench.connection.fetchval(batch, 4)
    assert await bench.connection.fetchval("SELECT count(*) FROM joex.jobs") == 0
    assert await bench.connection.fetchval(batch, 3) == 3


async def test_other_groups_and_queues_and_jobs_that_are_held_or_wait_for_their_time_do_not_count(limited):
    for call in (
        "joex.submit('a', grp => 'other')",
        "joex.submit('a', grp => 'acme', queue => 'mail')",
        "joex.submit_many('{a}', grps => '{other}')",
    ):
        await limited.connection.execute(f"SELECT {call}")
    with pytest.raises(joex.GroupFull, match="as many waiting jobs"):
        await limited.submit("acme")
    executor = await limited.executor()
    await limited.take(executor, 10)
    for _ in range(3):
        assert await limited.submit("acme") is not None


async def test_the_limit_can_be_changed_and_removed(limited):
    await stats.set_group(limited.connection, "acme", "default", max_waiting=4)
    assert await limited.submit("acme") is not None
    with pytest.raises(joex.GroupFull, match="as it may: 4"):
        await limited.submit("acme")
    await stats.set_group(limited.connection, "acme", "default", weight=2)
    [setting] = await stats.group_settings(limited.connection)
    assert (setting.weight, setting.max_waiting) == (2, 4)
    await stats.set_group(limited.connection, "acme", "default", max_waiting=-1)
    assert await limited.submit("acme") is not None


def limit(group: str, most: int) -> str:
    """A call that limits the waiting jobs of a group; -1: no limit."""
    return f"SELECT joex.set_group('{group}', max_waiting => {most})"


BIND = "SELECT joex_private.set_scopes('pg_monitor', '{view}', '{acme}')"


@pytest.mark.parametrize(
    ("second", "is_kept", "full"),
    [
        (limit("other", -1), True, ["acme"]),
        (limit("other", 0), True, ["acme", "other"]),
        (limit("other", 0), False, ["other"]),
        (limit("other", -1), False, []),
        (BIND, True, ["acme"]),
        (BIND, False, []),
    ],
)
async def test_of_two_changes_at_a_time_none_hides_a_limit(bench, another_connection, second, is_kept, full):
    """Submissions look for limits only where the database is marked to have some."""
    other = await another_connection()
    first = bench.connection.transaction(isolation="read_committed")
    await first.start()
    await bench.connection.execute(limit("acme", 0))
    async with other.transaction(isolation="read_committed"):
        await other.execute(second)
    await (first.commit() if is_kept else first.rollback())
    for group in ("acme", "other"):
        if group in full:
            with pytest.raises(joex.GroupFull):
                await bench.submit(group)
        else:
            assert await bench.submit(group) is not None


async def test_a_transaction_that_has_submitted_before_a_limit_was_set_is_refused_from_then_on(
    bench, another_connection
):
    other = await another_connection()
    async with other.transaction(isolation="read_committed"):
        await other.execute(f"SELECT {CALLS['submit']}")
        await bench.connection.execute(limit("acme", 1))  # (it waits for no submission)
        for call in CALLS.values():
            with pytest.raises(asyncpg.PostgresError, match="as many waiting jobs"):
                async with other.transaction():
                    await other.execute(f"SELECT {call}")


@pytest.fixture
async def tenant(login, connection):
    """A session of a role that is bound to the groups acme and other."""
    await set_scopes(connection, RoleScopes(ROLES[0], ["submit"], ["acme", "other"], None))
    return await login(ROLES[0])


@asynccontextmanager
async def snapshot_of(session: asyncpg.Connection) -> AsyncIterator[str]:
    """A snapshot that this session has exported."""
    async with session.transaction(isolation="repeatable_read"):
        yield await session.fetchval("SELECT pg_export_snapshot()")


async def call_beside(session: asyncpg.Connection, snapshot: str, call: str) -> None:
    """In a transaction of its own, which has this snapshot."""
    async with session.transaction(isolation="repeatable_read"):
        await session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        await session.execute(f"SELECT {call}")


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
async def test_by_a_snapshot_of_an_empty_line_a_bound_role_submits_once(connection, tenant, another_connection, call):
    await connection.execute(limit("acme", 3))
    async with snapshot_of(await another_connection()) as snapshot:
        await call_beside(tenant, snapshot, CALLS["submit"])
        with pytest.raises(asyncpg.SerializationError):
            await call_beside(tenant, snapshot, call)
        async with tenant.transaction(isolation="repeatable_read"):
            await tenant.execute(f"SELECT {call}")


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
async def test_a_limit_holds_bound_roles_with_a_snapshot_from_before_it_was_set(
    connection, tenant, another_connection, call
):
    async with snapshot_of(await another_connection()) as snapshot:
        await connection.execute(limit("acme", 0))
        with pytest.raises(joex.DatabaseUnavailable, match=r"^try again: limits of waiting jobs have"), translated():
            await call_beside(tenant, snapshot, call)
        with pytest.raises(asyncpg.PostgresError, match="as many waiting jobs"):
            async with tenant.transaction(isolation="repeatable_read"):
                await tenant.execute(f"SELECT {call}")


async def test_of_two_limits_at_a_time_a_bound_role_must_see_both(connection, tenant, another_connection):
    first, second, older = [await another_connection() for _ in range(3)]
    async with AsyncExitStack() as stack:
        async with first.transaction():
            await first.execute(limit("acme", 0))
            await second.execute(limit("other", 9))
            snapshot = await stack.enter_async_context(snapshot_of(older))
        with pytest.raises(asyncpg.SerializationError, match="limits of waiting jobs"):
            await call_beside(tenant, snapshot, CALLS["submit"])
    # (A transaction of the server itself may have had an id at that time.)
    await eventually(lambda: connection.fetchval("SELECT joex_private.sees_the_limits()"))
    async with snapshot_of(older) as snapshot:
        await call_beside(tenant, snapshot, "joex.submit('a', grp => 'other')")
        with pytest.raises(asyncpg.PostgresError, match="as many waiting jobs"):
            await call_beside(tenant, snapshot, CALLS["submit"])


async def test_snapshots_that_show_all_limits_and_roles_that_are_not_bound_submit_as_before(
    connection, tenant, another_connection
):
    first, older = await another_connection(), await another_connection()
    async with snapshot_of(older) as snapshot:
        for _ in range(2):
            await call_beside(tenant, snapshot, "joex.submit('a', grp => 'other')")
        changing = first.transaction()
        await changing.start()
        await first.execute(limit("acme", 9))
        await changing.rollback()
        await connection.execute(limit("acme", 9))
        for _ in range(2):
            await call_beside(connection, snapshot, "joex.submit('a', grp => 'other')")
    async with snapshot_of(older) as snapshot:
        for _ in range(2):
            await call_beside(connection, snapshot, CALLS["submit"])
            await call_beside(tenant, snapshot, "joex.submit('a', grp => 'other')")


async def test_a_limit_set_on_the_server_of_which_a_dump_was_restored_refuses_nobody(connection, tenant):
    """Its transaction ids may be far ahead."""
    for alone in (0, 1):
        await connection.execute("SELECT setval('joex_private.limits_waiting', 1000000000000000000 + $1)", alone)
        async with tenant.transaction(isolation="repeatable_read"):
            await tenant.execute(f"SELECT {CALLS['submit']}")


async def test_in_a_transaction_a_bound_role_submits_up_to_the_limit(connection, tenant):
    await connection.execute(limit("acme", 3))
    async with tenant.transaction(isolation="repeatable_read"):
        for _ in range(3):
            await tenant.execute(f"SELECT {CALLS['submit']}")
        with pytest.raises(asyncpg.PostgresError, match="as many waiting jobs"):
            await tenant.execute(f"SELECT {CALLS['submit']}")


@pytest.mark.parametrize("most", [-2, 100_001])
async def test_a_limit_that_is_none_is_refused(bench, most):
    with pytest.raises(joex.InvalidJob, match="max_waiting: 0 to 100000"):
        await stats.set_group(bench.connection, "acme", "default", max_waiting=most)


async def test_retries_and_jobs_that_come_back_are_never_refused(limited):
    executor = await limited.executor()
    [run] = await limited.take(executor, 1)
    assert await limited.submit("acme") is not None
    assert await limited.finish(run, "failed") == []
    assert await limited.connection.fetchval("SELECT joex.retry($1)", run.id)
    assert await limited.connection.fetchval("SELECT waiting FROM joex.group_stats") == 4


async def test_clients_get_an_error_of_its_own_and_http_callers_a_429(limited, client, http: httpx.AsyncClient):
    with pytest.raises(joex.GroupFull, match="submit again when some have run"):
        await client.submit("a", group="acme")
    answer = await http.post("/api/v1/jobs", json={"task": "a", "group": "acme"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert "as many waiting jobs" in answer.json()["detail"]
    answer = await http.post("/api/v1/groups/acme", json={"max_waiting": None})
    assert answer.status_code == 200, answer.text
    assert await client.submit("a", group="acme") is not None
    answer = await http.post("/api/v1/groups/acme", json={"max_waiting": 5})
    assert (await http.get("/api/v1/groups")).json()["settings"][0]["max_waiting"] == 5


async def test_reports_on_all_groups_leave_connections_to_others(client, http: httpx.AsyncClient, connection):
    """Ten of one caller, of which a lock keeps one from reading and the others from their turn, and a submission."""
    async with connection.transaction():
        await connection.execute("LOCK TABLE joex_private.group_setting IN ACCESS EXCLUSIVE MODE")
        reports = [asyncio.ensure_future(http.get("/api/v1/stats")) for _ in range(10)]
        waiting = (
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'joex_private.group_setting'::regclass"
        )

        async def is_full() -> bool:
            return bool(await connection.fetchval(waiting) == 1)

        await eventually(is_full, why="a report reads")
        check = asyncio.ensure_future(http.post("/api/v1/calevent/check", json={"event": "daily"}))
        assert (await http.post("/api/v1/jobs", json={"task": "a"})).status_code == 201
        assert await connection.fetchval(waiting) == 1
        assert not check.done()  # it takes the interpreter, and has its turn with them
    assert {answer.status_code for answer in await asyncio.gather(*reports, check)} == {200}
