"""Clients with patience: they submit once, whenever the link breaks, and wait for no other error."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import asyncpg
import pytest

from joex.client import calls
from joex.client.calls import new_name
from joex.core.job import id_once
from joex.errors import ConfigError, DatabaseUnavailable, GroupFull, InvalidJob
from tests.integration.test_connections import client_of
from tests.support.apps import AnyClient
from tests.support.proxy import At, Proxy
from tests.support.waiting import PATIENCE, eventually


@pytest.fixture
async def patient(proxy) -> AsyncIterator[AnyClient]:
    """A client that waits; its link leads through the proxy."""
    async with client_of(proxy.url, timeout="500ms", patience=PATIENCE) as client:
        async with client.using() as connection:
            # asyncpg looks up the types of arrays at their first use, which a trap would take for the execution.
            await connection.fetchrow(
                "SELECT $1::text[], $2::timestamptz[], $3::integer[], ARRAY[]::uuid[]", [], [], [], timeout=PATIENCE
            )
        yield client


async def submit_one(client, **fields):
    return [await client.submit("a", {"n": 1}, **fields)]


async def submit_few(client, **fields):
    return await client.submit_many([{"task": "a", **fields}, {"task": "b"}])


async def submit_very_many(client, **fields):
    """In two statements of one transaction."""
    return await client.submit_many([{"task": "a"}, {"task": "a", **fields}] * 501)


SUBMISSIONS = pytest.mark.parametrize(
    "submission",
    [(submit_one, "joex.submit("), (submit_few, "joex.submit_many("), (submit_very_many, "COMMIT")],
    ids=["one", "few", "very many"],
)
"""Each with the statement that stores it."""

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def ids(connection) -> set[UUID]:
    return {row["id"] for row in await connection.fetch("SELECT id FROM joex_private.job")}


@pytest.mark.parametrize("at", [At.CUT, At.FREEZE, At.CUT_ANSWER, At.FREEZE_ANSWER])
@SUBMISSIONS
@pytest.mark.parametrize("tracker", [None, "t"], ids=["plain", "tracker"])
async def test_a_submission_whose_link_breaks_is_stored_once(proxy, patient, connection, *, submission, at, tracker):
    submit, statement = submission
    trap = proxy.trap(statement, at)
    call = asyncio.create_task(submit(patient, tracker=tracker))
    await trap.sprung.wait()
    if (statement, at) == ("COMMIT", At.FREEZE):
        # The server can't know that this transaction is lost, and the repetition waits for its end.
        await eventually(lambda: connection.fetchval(WAITING), why="the repetition waits for the rows")
        proxy.thaw()
    given = await call
    assert {job_id for job_id in given if job_id} == await ids(connection)
    assert given[0] is not None


@SUBMISSIONS
async def test_nor_is_it_stored_again_when_its_job_has_ended_before_the_repetition(
    proxy, patient, connection, submission
):
    """Its tracker is free again by then."""
    submit, statement = submission
    trap = proxy.trap(statement, At.CUT_ANSWER)
    call = asyncio.create_task(submit(patient, tracker="t"))
    await trap.sprung.wait()
    await proxy.refuse()
    stored = await eventually(lambda: ids(connection), why="the first attempt is stored")
    for job_id in stored:
        await connection.execute("SELECT joex.cancel($1)", job_id)
    await proxy.accept()
    assert {job_id for job_id in await call if job_id} == stored == await ids(connection)


@pytest.mark.parametrize("submit", [submit_one, submit_few], ids=["one", "few"])
async def test_an_attempt_that_arrives_after_its_repetition_stores_nothing(proxy, patient, connection, submit):
    trap = proxy.trap("joex.submit", At.DELAY)
    given = await submit(patient)
    assert trap.sprung.is_set()
    proxy.thaw()
    done = """SELECT count(*) = 0 FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'joex client' AND state = 'active'"""
    await eventually(lambda: connection.fetchval(done), why="the first attempt is over")
    assert set(given) == await ids(connection)


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
async def test_a_repetition_waits_for_an_attempt_that_is_under_way(patient, pool, connection, monkeypatch, ends):
    name = uuid4()
    monkeypatch.setattr(calls, "new_name", lambda: name)
    async with pool.acquire() as other:
        await other.execute("BEGIN")
        first = await other.fetchval("SELECT joex.submit('a', once => $1)", name)
        submission = asyncio.create_task(patient.submit("a"))
        await eventually(lambda: connection.fetchval(WAITING), why="the repetition waits for the row")
        await other.execute(ends)
    assert await submission == first, "its id depends on nothing but its name and place"
    assert await ids(connection) == {first}


async def test_a_group_that_is_full_meanwhile_refuses_no_repetition(patient, proxy, connection):
    await connection.execute("SELECT joex.set_group('default', max_waiting => 1)")
    proxy.trap("joex.submit(", At.CUT_ANSWER)
    assert {await patient.submit("a")} == await ids(connection)
    with pytest.raises(GroupFull):
        await patient.submit("a")


async def test_who_names_submissions_finds_out_nothing_about_those_of_other_groups(connection):
    submit = "SELECT joex.submit('a', grp => $2, queue => $3, once => $1)"
    name = uuid4()
    places = [("mine", "default"), ("theirs", "default"), ("mine", "other"), ("mine,theirs", "default")]
    first = [await connection.fetchval(submit, name, *place) for place in places]
    assert len(set(first)) == len(places)
    assert [await connection.fetchval(submit, name, *place) for place in places] == first
    assert await connection.fetchval(submit, first[0], "theirs", "default") not in first, "an id is no name"


async def test_calls_wait_until_the_database_is_there(proxy, patient, connection):
    job_id = await patient.submit("a")
    await proxy.refuse()
    with pytest.raises(DatabaseUnavailable):
        async with client_of(proxy.url) as hasty:
            await hasty.submit("a")
    calls = [
        asyncio.create_task(call)
        for call in (
            patient.submit("b"),
            patient.submit_many([{"task": "b"}]),
            patient.get(job_id),
            patient.set_priority(job_id, "high"),
            patient.retry_failed(),
            patient.keyed.add("t", 1),
            patient.periodic.put("p", "a", "daily"),
        )
    ]
    done, _ = await asyncio.wait(calls, timeout=1.0)
    assert not done
    await proxy.accept()
    await asyncio.gather(*calls)
    assert (await patient.get(job_id)).priority == "high"
    assert len(await ids(connection)) == 4


async def test_a_call_that_may_not_be_repeated_says_that_its_link_was_lost(proxy, patient, connection):
    job_id = await patient.submit("a")
    await patient.cancel(job_id)
    proxy.trap("joex.retry(", At.CUT_ANSWER)
    with pytest.raises(DatabaseUnavailable):
        await patient.retry(job_id)
    assert await connection.fetchval("SELECT state FROM joex.jobs") == "waiting"


async def test_a_call_that_may_be_repeated_is(proxy, patient):
    job_id = await patient.submit("a")
    proxy.trap("joex.cancel(", At.CUT_ANSWER)
    assert await patient.cancel(job_id) == "finished", "the first attempt has cancelled it"
    proxy.trap("FROM joex.jobs", At.FREEZE)
    assert (await patient.get(job_id)).state == "cancelled"


async def test_a_call_in_the_callers_transaction_waits_for_nothing(proxy, patient):
    connection = await asyncpg.connect(proxy.url)
    await connection.execute("BEGIN")
    await proxy.refuse()
    with pytest.raises(DatabaseUnavailable):
        await patient.submit("a", connection=connection)


@pytest.mark.parametrize("broken", ["refused", "silent"])
async def test_when_the_patience_is_over_the_call_raises(proxy, broken):
    async with client_of(proxy.url, timeout="500ms", patience="1s") as client:
        await client.submit("a")
        if broken == "refused":
            await proxy.refuse()
        else:
            proxy.freeze()
        with pytest.raises(DatabaseUnavailable):
            await client.submit("a")


async def test_no_other_error_is_waited_for(postgres, database_name, empty_database_url):
    async with client_of(postgres.url(database_name), patience="1h") as client:
        for wrong in ({"task": ""}, {"task": "a", "group": 7}, {"task": "a", "args": {"x": object()}}):
            with pytest.raises(InvalidJob):
                await client.submit(**wrong)
    for url in (postgres.url("nowhere"), empty_database_url, postgres.url(database_name).replace("postgres@", "who@")):
        async with client_of(url, patience="1h") as client:
            for call in (client.submit("a"), client.submit_many([{"task": "a"}]), client.keyed.active("t")):
                with pytest.raises(ConfigError):
                    await call
    closed = await asyncpg.create_pool(postgres.url(database_name), min_size=0)
    await closed.close()
    with pytest.raises(DatabaseUnavailable):
        await client_of(closed, patience="1h").submit("a")
    for patience in ("soon", -1):
        with pytest.raises(ConfigError, match="patience: expected"):
            client_of(postgres.url(database_name), patience=patience)


async def test_a_client_that_is_closed_waits_no_longer(proxy: Proxy):
    await proxy.refuse()
    client = client_of(proxy.url, patience="1h")
    call = asyncio.create_task(client.submit("a"))
    await asyncio.wait([call], timeout=0.5)
    await client.close()
    with pytest.raises(DatabaseUnavailable):
        await call


async def test_a_wait_for_work_ends_in_its_own_time(proxy):
    async with client_of(proxy.url, patience="1h") as client:
        await proxy.refuse()
        assert await client.keyed.accept("a", wait=0.2) is None


async def test_the_id_of_a_job_that_is_stored_once_is_known_before(connection):
    odd = [f"a{chr(number)}b" for number in range(1, 0x3100)] + ['"', "\\", "a,b (c)", "null", ""]
    names = [(new_name(), queue, group) for queue, group in zip(odd, reversed(odd), strict=True)]
    found = await connection.fetch(
        "SELECT joex_private.id_once(n, 1, q, g) AS id FROM unnest($1::uuid[], $2::text[], $3::text[]) AS u(n, q, g)",
        *map(list, zip(*names, strict=True)),
    )
    assert [row["id"] for row in found] == [id_once(*each) for each in names]
    once, queue, group = names[40]
    submit = "SELECT joex.submit('a', queue => $2, grp => $3, once => $1)"
    assert await connection.fetchval(submit, once, queue, group) == id_once(once, queue, group)
