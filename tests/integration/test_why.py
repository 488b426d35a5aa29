"""Why a job is not running: each reason, exactly when it is so."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from joex.client.explain import Reason
from joex.store import executors, jobs
from tests.integration.conftest import FOUR_ONE
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres(16, 18)


async def reasons(bench, job_id: UUID) -> dict[str, dict[str, Any]]:
    found = [Reason(*reason) for reason in await jobs.why(bench.connection, job_id)]
    for reason in found:
        assert reason.message
        assert "\n" not in reason.message
    return {reason.reason: dict(reason.detail) for reason in found}


async def set_group(bench, group: str, **settings: Any) -> None:
    named = ", ".join(f"{name} => ${number}" for number, name in enumerate(settings, 2))
    await bench.connection.execute(f"SELECT joex.set_group($1, {named})", group, *settings.values())


@pytest.fixture
async def executor(bench) -> int:
    """An executor that serves the default queue, knows the task, and has four slots."""
    registered = await bench.register()
    assert registered.id is not None
    return int(registered.id)


async def test_a_job_that_is_not_there(bench) -> None:
    assert await reasons(bench, uuid4()) == {"not_found": {}}


async def test_a_job_in_whose_way_nothing_stands_is_next(bench, executor) -> None:
    job_id = await bench.submit()
    assert await reasons(bench, job_id) == {"next": {}}
    assert [job.id for job in await bench.take(executor)] == [job_id]


async def test_a_suspect_that_is_held_runs_alone_and_what_waits_finds_all_slots_busy(bench, executor) -> None:
    suspect = await bench.submit()
    await bench.connection.execute("UPDATE joex_private.job SET suspect = true")
    await bench.take(executor)
    (reason,) = [Reason(*one) for one in await jobs.why(bench.connection, suspect)]
    assert reason.detail["alone"]
    assert set(await reasons(bench, await bench.submit())) == {"slots_busy"}
    await bench.connection.execute(
        "UPDATE joex_private.job SET scheduled_at = clock_timestamp() - interval '61 seconds' WHERE suspect"
    )
    assert "slots_busy" not in await reasons(bench, await bench.submit())
    await bench.connection.execute(  # as of one that has started while its row was locked
        "INSERT INTO joex_private.noted_start SELECT lock_id, executor_id, now() FROM joex_private.job WHERE suspect"
    )
    assert "slots_busy" in await reasons(bench, await bench.submit())
    await bench.connection.execute(
        "UPDATE joex_private.job SET state = 'running', started_at = clock_timestamp() - interval '61 seconds' "
        "WHERE suspect"
    )
    (reason,) = [Reason(*one) for one in await jobs.why(bench.connection, suspect)]
    assert not reason.detail["alone"]
    assert "slots_busy" not in await reasons(bench, await bench.submit())


async def test_a_job_that_is_held_and_one_that_is_finished(bench, executor) -> None:
    job_id = await bench.submit()
    await bench.take(executor)
    found = await reasons(bench, job_id)
    assert found["scheduled"]["app_id"] == "me"
    assert found["scheduled"]["cancel_requested"] is False
    await bench.connection.execute("UPDATE joex_private.job SET state = 'running', started_at = now()")
    await bench.connection.execute("SELECT joex.cancel($1)", job_id)
    assert (await reasons(bench, job_id))["running"]["cancel_requested"] is True
    await bench.connection.execute(
        "UPDATE joex_private.job SET state = 'failed', executor_id = NULL, finished_at = now(), error = 'boom'"
    )
    (reason,) = [Reason(*one) for one in await jobs.why(bench.connection, job_id)]
    assert (reason.reason, reason.detail["state"]) == ("finished", "failed")
    assert reason.message.endswith(": boom")


async def test_a_job_that_is_not_due_and_a_retry(bench, executor) -> None:
    later = await bench.submit(not_before=datetime.now(UTC) + timedelta(hours=1))
    found = await reasons(bench, later)
    assert list(found) == ["not_due"]
    assert found["not_due"]["retry"] is False
    assert found["not_due"]["seconds"] == pytest.approx(3600, abs=60)
    await bench.connection.execute("UPDATE joex_private.job SET state = 'stuck', failures = 2")
    (reason,) = [Reason(*one) for one in await jobs.why(bench.connection, later)]
    assert reason.message.startswith("its retry after failure 2 is not due before ")


async def test_nobody_serves_its_queue(bench, executor) -> None:
    job_id = await bench.submit(queue="mail")
    assert await reasons(bench, job_id) == {"no_executor": {"queue": "mail", "draining": 0}}
    job_id = await bench.submit()
    await executors.drain(bench.connection, "me")
    assert (await reasons(bench, job_id))["no_executor"] == {"queue": "default", "draining": 1}


async def test_nobody_knows_its_task(bench, executor) -> None:
    job_id = await bench.submit(task="nobody.knows")
    assert await reasons(bench, job_id) == {"unknown_task": {"task": "nobody.knows", "executors": 1}}
    await bench.executor("another", tasks=["nobody.knows"])
    assert await reasons(bench, job_id) == {"next": {}}


async def test_all_slots_are_busy(bench, executor) -> None:
    ids = [await bench.submit() for _ in range(5)]
    last = ids[-1]
    await bench.take(executor, 4)
    assert await reasons(bench, last) == {"slots_busy": {"slots": 4, "executors": 1}}
    await bench.executor("another", queues=["mail"])
    assert "slots_busy" in await reasons(bench, last)
    await bench.executor("a third")
    assert await reasons(bench, last) == {"next": {}}


async def test_its_group_is_paused_or_at_its_limit(bench, executor) -> None:
    job_id = await bench.submit("acme")
    await set_group(bench, "acme", paused=True)
    assert await reasons(bench, job_id) == {"group_paused": {"group": "acme", "queue": "default"}}
    await set_group(bench, "acme", paused=False, max_running=1)
    assert await reasons(bench, job_id) == {"next": {}}
    second = await bench.submit("acme")
    await bench.take(executor)
    assert await reasons(bench, second) == {"group_at_limit": {"group": "acme", "limit": 1, "running": 1}}


async def test_jobs_of_its_group_come_before_it(bench, executor) -> None:
    first = await bench.submit("acme")
    high = await bench.submit("acme", "high")
    last = await bench.submit("acme")
    await bench.submit("acme")
    stuck = await bench.submit("acme")
    await bench.connection.execute("UPDATE joex_private.job SET lane = 0, state = 'stuck' WHERE id = $1", stuck)
    assert (await reasons(bench, last))["behind"] == {"retries": 1, "same": 1, "other": 1}
    assert (await reasons(bench, first))["behind"] == {"retries": 1, "same": 0, "other": 1}
    assert (await reasons(bench, high))["behind"] == {"retries": 1, "same": 0, "other": 3}
    assert await reasons(bench, stuck) == {"next": {}}


async def test_its_groups_turn_comes_after_just_so_many_others(bench, executor) -> None:
    """For each waiting group: the places before it are the takes before it."""
    waiting = {await bench.submit(f"group {number}"): number for number in range(6)}
    await set_group(bench, "group 3", paused=True)
    for _ in range(2):
        await bench.take(executor)
    left = [job_id for job_id, number in waiting.items() if number != 3]
    unfinished = await bench.connection.fetch("SELECT id FROM joex_private.job WHERE lane IS NOT NULL")
    left = [job_id for job_id in left if job_id in {row["id"] for row in unfinished}]
    places = {}
    for job_id in left:
        found = await reasons(bench, job_id)
        places[job_id] = found["turn"]["places"] if "turn" in found else 0
    assert sorted(places.values()) == list(range(len(left)))
    order = [(await bench.take(executor, 1, FOUR_ONE))[0].id for _ in range(2)]
    assert order == sorted(left, key=lambda job_id: places[job_id])[:2]


async def test_a_group_that_holds_jobs_comes_after_those_that_hold_none(bench, executor) -> None:
    await bench.submit("busy")
    await bench.take(executor)
    second = await bench.submit("busy")
    for number in range(3):
        await bench.submit(f"idle {number}")
    assert (await reasons(bench, second))["turn"] == {"places": 3, "at_least": False}


async def test_of_very_many_groups_it_says_at_least(bench, executor) -> None:
    await bench.connection.execute(
        "SELECT count(*) FROM joex.submit_many(array_fill('a'::text, ARRAY[300]), "
        "grps => ARRAY(SELECT 'group ' || n FROM generate_series(1, 300) n))"
    )
    rows = await bench.connection.fetch("SELECT id FROM joex_private.job ORDER BY ring")
    found = (await reasons(bench, rows[-1]["id"]))["turn"]
    assert found == {"places": 100, "at_least": True}


async def test_several_reasons_come_together_and_what_stands_in_the_way_comes_first(bench) -> None:
    await bench.submit("acme")
    job_id = await bench.submit("acme")
    await set_group(bench, "acme", paused=True)
    assert list(await reasons(bench, job_id)) == ["no_executor", "group_paused", "behind"]


async def make_due(bench, *job_ids: UUID) -> None:
    """Let the time of these jobs come. No take has moved them to their lanes yet."""
    await bench.connection.execute(
        "UPDATE joex_private.job SET due_at = now() - interval '1 minute' WHERE id = ANY ($1::uuid[])", job_ids
    )


async def waiting_and_due(bench) -> list[UUID]:
    """Jobs of several groups: in line, due, and retries that are due."""
    later = datetime.now(UTC) + timedelta(hours=1)
    found = [await bench.submit("a"), await bench.submit("c")]
    due = [await bench.submit(group, not_before=later) for group in ("a", "b", "b", "d", "e", "e")]
    await make_due(bench, *due)
    await bench.connection.execute("UPDATE joex_private.job SET state = 'stuck' WHERE id = $1", due[-1])
    return found + due


async def test_it_writes_nothing_though_jobs_are_due(bench, executor) -> None:
    """Reading must change nothing, and a standby, which can't write, must give the same reasons."""
    rows = "SELECT id, xmin::text, ctid::text FROM joex_private.job ORDER BY id"
    job_ids = await waiting_and_due(bench)
    before = await bench.connection.fetch(rows)
    found = [await reasons(bench, job_id) for job_id in job_ids]
    assert await bench.connection.fetch(rows) == before
    async with bench.connection.transaction(readonly=True):
        assert [await reasons(bench, job_id) for job_id in job_ids] == found


async def test_jobs_that_are_due_have_their_places_before_a_take_moves_them_to_their_lanes(bench, executor) -> None:
    job_ids = await waiting_and_due(bench)
    by_reading = [await reasons(bench, job_id) for job_id in job_ids]
    await bench.connection.execute("SELECT joex_private.promote_due('{default}')")
    assert [await reasons(bench, job_id) for job_id in job_ids] == by_reading
    order = [(await bench.take(executor))[0].id for _ in range(4)]
    places = {
        job_id: found.get("turn", {"places": 0})["places"] for job_id, found in zip(job_ids, by_reading, strict=True)
    }
    first_of_group = [job_id for job_id, found in zip(job_ids, by_reading, strict=True) if "behind" not in found]
    assert order == sorted(first_of_group, key=lambda job_id: places[job_id])[:4]


@pytest.mark.parametrize("lock", ["pg_advisory_lock", "pg_advisory_lock_shared"])
async def test_a_session_that_holds_the_lock_of_its_queue_is_named(bench, another_connection, lock):
    await bench.executor()
    job_id = await bench.submit()
    other = await another_connection()
    await other.execute(f"SELECT {lock}(joex_private.ring_lock(), hashtext('default'))")
    named = {"queue": "default", "session": other.get_server_pid(), "role": "postgres"}

    async def is_named() -> bool:
        return await reasons(bench, job_id) == {"queue_held": named}

    await eventually(is_named, why="it has held the lock for a second")
    await other.execute("SELECT pg_advisory_unlock_all()")
    assert await reasons(bench, job_id) == {"next": {}}
