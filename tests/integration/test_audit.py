"""The audit: each act of steering, who did it, and nothing else."""

import json
from datetime import timedelta

import pytest

from joex.store import audit, jobs, tokens
from joex.store.audit import Act
from tests.support.cases import case

pytestmark = pytest.mark.postgres(16, 18)

JOB = "(SELECT id FROM joex.jobs LIMIT 1)"
ACTS = {
    "joex.cancel": f"joex.cancel({JOB})",
    "joex.set_priority": f"joex.set_priority({JOB}, 'high')",
    "joex.set_args": f"joex.set_args({JOB}, '{{\"secret\": 1}}')",
    "joex.remove": f"joex.remove({JOB})",
    "joex.set_group": "joex.set_group('mine', weight => 3)",
    "joex.set_queue": "joex.set_queue('default', true)",
    "joex.put_periodic_task": "joex.put_periodic_task('p', 'a', 'daily', grp => 'mine')",
    "joex.enable_periodic_task": "joex.enable_periodic_task('old', false)",
    "joex.remove_periodic_task": "joex.remove_periodic_task('old')",
    "joex.run_periodic_task": "joex.run_periodic_task('old')",
    "joex.set_largest": "joex.set_largest('args', 9000)",
    "joex_client.set_timeout": "joex_client.set_timeout('a', '1 minute')",
    "joex_client.drain": "joex_client.drain('me')",
    "joex_private.set_scopes": "joex_private.set_scopes('pg_monitor', '{view}')",
}
# Functions with the scope operate that leave no act, and why.
NO_ACT = {
    "joex_client.find",  # reads
    "joex_client.resubmit",  # what programs with keyed jobs do all day
    "joex_client.wake_all",  # changes nothing
    "joex.retry",  # below, with jobs that have failed
    "joex.retry_failed",
}


async def test_each_function_that_steers_is_here(connection):
    query = "SELECT unnest(functions) FROM joex_private.functions_of_scopes() WHERE scope = 'operate'"
    steering = {row[0] for row in await connection.fetch(query)}
    assert steering <= ACTS.keys() | NO_ACT


async def test_an_act_is_noted_with_role_and_caller_if_it_was_done_and_names_no_payload(bench):
    connection = bench.connection
    await bench.submit("mine")
    await bench.executor("me")
    await connection.execute("SELECT joex.put_periodic_task('old', 'a', 'daily', grp => 'mine')")
    await connection.execute("DELETE FROM joex_private.act")
    for name, call in ACTS.items():
        with case(name):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(f"SELECT set_config('joex.caller', 'the shop', true), {call}")
            [act] = await audit.list_acts(connection, None, 10)
            assert (act.act, act.role, act.caller) == (name.partition(".")[2], "postgres", "the shop")
            assert act.subject is not None
            assert "secret" not in json.dumps(act.detail)
            await transaction.rollback()
            assert await audit.list_acts(connection, None, 10) == []


async def test_an_act_that_changes_nothing_is_none(bench):
    await bench.connection.execute("SELECT joex.put_periodic_task('p', 'a', 'daily')")
    await bench.connection.execute("DELETE FROM joex_private.act")
    for call in (
        "joex.cancel(gen_random_uuid())",
        "joex.retry(gen_random_uuid())",
        "joex.retry_failed()",
        "joex.remove(gen_random_uuid())",
        "joex.put_periodic_task('p', 'a', 'daily')",
        "joex.remove_periodic_task('q')",
        "joex_client.drain('nobody')",
    ):
        await bench.connection.execute(f"SELECT {call}")
    assert await audit.list_acts(bench.connection, None, 10) == []


async def test_retries_are_one_act_each_or_one_for_all(bench):
    executor = await bench.executor()
    for _ in range(3):
        await bench.submit("mine")
        await bench.finish(await bench.take_one(executor), "failed")
    failed = await bench.connection.fetchval("SELECT id FROM joex.jobs LIMIT 1")
    assert await jobs.retry(bench.connection, failed)
    assert await jobs.retry_failed(bench.connection, "default", "mine", None, 10) == 2
    acts = await audit.list_acts(bench.connection, None, 10)
    assert [(act.act, act.subject, act.group, act.detail) for act in acts] == [
        ("retry_failed", None, "mine", {"jobs": 2}),
        ("retry", str(failed), "mine", None),
    ]


async def test_tokens_are_created_and_revoked_in_the_audit_and_not_shown_there(bench):
    token = await tokens.create(bench.connection, "shop", ["submit"], groups=["acme"])
    assert token is not None
    assert await tokens.create(bench.connection, "shop", ["submit"]) is None
    assert await tokens.revoke(bench.connection, "shop")
    assert not await tokens.revoke(bench.connection, "shop")
    acts = await audit.list_acts(bench.connection, None, 10)
    assert [(act.act, act.subject) for act in acts] == [("revoke_token", "shop"), ("create_token", "shop")]
    assert acts[1].detail == {"scopes": ["submit"], "groups": ["acme"], "queues": None}
    assert token not in str(await bench.connection.fetch("TABLE joex_private.act"))


async def test_acts_are_forgotten_when_they_are_old_a_batch_at_a_time(bench):
    for group in ("a", "b", "a"):
        await bench.connection.execute("SELECT joex.set_group($1, weight => 2)", group)
    await bench.connection.execute("UPDATE joex_private.act SET at = at - interval '91 days' WHERE subject = 'a'")
    since = None
    for left in (2, 1):
        since = await audit.forget(bench.connection, timedelta(days=90), 1, since=since)
        assert (since is not None, len(await audit.list_acts(bench.connection, None, 10))) == (True, left)
    assert await audit.forget(bench.connection, timedelta(days=90), 1, since=since) is None
    [act] = await audit.list_acts(bench.connection, None, 10)
    assert isinstance(act, Act)
    assert act.subject == "b"
