"""Floors skip entries that vacuum can't remove, and never a job: late commits, jobs that come back, undone takes.

tests/property/test_take_with_floors.py compares takes with the specification in any order of events.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from joex import NewJob
from joex.core.priority_turns import CountingScheme
from joex.errors import GroupFull, JoexError
from joex.runtime import read_floors as floor_keeper
from joex.store import executors, jobs, read_floors, runs, stats, worker_runs
from tests.support.waiting import EventLog, eventually

pytestmark = pytest.mark.postgres(16, 18)


@pytest.fixture
async def executor(bench):
    """An executor, in a database with floors."""
    await bench.connection.execute("SELECT joex_private.set_floors(true)")
    return await bench.executor()


async def place(bench, group="default"):
    """The group's place."""
    return "default", await bench.connection.fetchval("SELECT joex_private.ring($1)", group)


async def drawn_and_raised(bench, *groups):
    """Draw a number; returns whether the floors of these groups could be raised to it at once."""
    drawn = await read_floors.draw(bench.connection)
    places = [await place(bench, group) for group in groups or ["default"]]
    return await read_floors.raise_floors(bench.connection, drawn, places)


async def taken_and_finished(bench, executor, number):
    """Leave dead entries behind."""
    for job in await bench.take(executor, number):
        await bench.finish(job)


async def lowest(bench):
    """The floor of low priority in the default group, with its exceptions."""
    return await bench.connection.fetchval("SELECT lane2 FROM joex_private.floor_of($1, $2)", *await place(bench))


async def test_a_floor_is_where_the_first_runnable_job_is(bench, executor):
    for _ in range(5):
        await bench.submit()
    await taken_and_finished(bench, executor, 3)
    assert await drawn_and_raised(bench)
    [job] = await bench.take(executor, 1)
    assert await lowest(bench) == job.seq


async def test_a_floor_is_found_over_any_number_of_jobs_of_others(bench, executor):
    await bench.submit()
    await taken_and_finished(bench, executor, 1)
    await bench.connection.execute("SELECT setval('joex_private.job_seq_seq', 1234567)")
    assert await drawn_and_raised(bench)
    floor = await bench.connection.fetchrow("SELECT * FROM joex_private.floor_of($1, $2)", *await place(bench))
    assert {floor[name] for name in ("upto", "lane0", "lane1", "lane2", "held_upto")} == {1234568}


async def test_a_floor_that_takes_too_long_to_find_is_raised_by_and_by(bench, executor):
    await bench.connection.execute("SELECT setval('joex_private.job_seq_seq', 1234567)")
    job_id = await bench.submit()
    [held] = await bench.take(executor)
    await bench.submit()
    await bench.connection.execute(
        "SELECT joex_private.raise_floor($1, $2, nextval('joex_private.job_seq_seq'), clock_timestamp())",
        *await place(bench),
    )
    floor = await bench.connection.fetchrow("SELECT * FROM joex_private.floor_of($1, $2)", *await place(bench))
    assert {floor[name] for name in ("lane0", "lane1", "lane2", "held_upto")} == {100_000}
    assert (floor["upto"], floor["held"]) == (1234570, [])
    await stats.set_group(bench.connection, "default", "default", max_running=1)
    assert await bench.take(executor) == []
    assert await drawn_and_raised(bench)
    assert await bench.take(executor) == []
    await bench.finish(held)
    assert held.id == job_id
    assert len(await bench.take(executor)) == 1


async def test_groups_for_whose_floors_there_was_no_time_are_left_to_the_next_call(bench, executor):
    for group in "ab":
        await bench.submit(group)
    drawn = await read_floors.draw(bench.connection)
    queues, rings = zip(await place(bench, "a"), await place(bench, "b"), strict=True)
    arguments = drawn.upto, drawn.epoch, drawn.writers, queues, rings
    once = "SELECT joex_private.raise_floors($1, $2, $3, $4, $5, p_seconds => 0)"
    raised = "SELECT count(*) FROM joex_private.floor WHERE upto = $1"
    for is_done in (None, True):
        assert await bench.connection.fetchval(once, *arguments) is is_done
        assert await bench.connection.fetchval(raised, drawn.upto) == (2 if is_done else 1)


async def test_a_submission_that_commits_late_is_not_passed_over(bench, executor, another_connection, client):
    late = await another_connection()
    transaction = late.transaction()
    await transaction.start()
    job_id = await client.submit("a", connection=late)
    await bench.submit()
    await taken_and_finished(bench, executor, 1)
    drawn = await read_floors.draw(bench.connection)
    places = [await place(bench)]
    assert (
        await read_floors.raise_floors(bench.connection, drawn, places) is None
    )  # it waits for all writing transactions
    await transaction.commit()
    assert await read_floors.raise_floors(bench.connection, drawn, places)
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]


async def test_who_begins_to_write_after_the_draw_keeps_no_floor_down(bench, executor, another_connection, client):
    drawn = await read_floors.draw(bench.connection)
    late = await another_connection()
    async with late.transaction():
        job_id = await client.submit("a", connection=late)
        assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)])
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]


async def test_an_idle_transaction_that_has_written_no_job_keeps_no_floor_down(bench, executor, another_connection):
    idle = await another_connection()
    async with idle.transaction(isolation="repeatable_read"):
        await idle.execute("SELECT pg_current_xact_id(), count(*) FROM joex_private.job")
        await bench.submit()
        await taken_and_finished(bench, executor, 1)
        assert await drawn_and_raised(bench)


async def test_a_transaction_that_is_prepared_meanwhile_is_waited_for(bench, executor, another_connection, client):
    late = await another_connection()
    await late.execute("BEGIN")
    job_id = await client.submit("a", connection=late)
    drawn = await read_floors.draw(bench.connection)
    await late.execute("PREPARE TRANSACTION 'submission'")
    try:
        assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)]) is None
    finally:
        await late.execute("COMMIT PREPARED 'submission'")
    assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)])
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]


@pytest.mark.parametrize(
    "way", ["put back", "retried", "requeued", "resubmitted", "promoted", "of other priority", "raw"]
)
async def test_a_job_that_becomes_runnable_below_the_floor_is_not_passed_over(bench, executor, another_connection, way):
    state = {"put back": "running", "retried": "failed", "requeued": "failed", "resubmitted": "success",
             "promoted": "stuck", "raw": "cancelled", "of other priority": "waiting"}[way]  # fmt: skip
    job_id = await bench.job_in(state, executor)
    later = [await bench.submit() for _ in range(3)]
    other = await another_connection()
    drawn = await read_floors.draw(bench.connection)
    async with other.transaction():
        if way == "put back":
            await other.execute("SELECT joex_private.put_back(ARRAY[$1::uuid], 0, NULL, NULL)", job_id)
        elif way == "retried":
            await other.execute("SELECT joex.retry($1)", job_id)
        elif way == "requeued":
            await other.execute("SELECT joex.retry_failed()")
        elif way == "resubmitted":
            await other.execute("SELECT joex_client.resubmit($1)", job_id)
        elif way == "promoted":
            await other.execute("UPDATE joex_private.job SET due_at = clock_timestamp() WHERE id = $1", job_id)
            await other.execute("SELECT joex_private.promote('default')")
        elif way == "of other priority":
            await other.execute("SELECT joex.set_priority($1, 'high')", job_id)
        else:
            await other.execute(
                "UPDATE joex_private.job SET state = 'waiting', lane = 2, finished_at = NULL WHERE id = $1", job_id
            )
        # This transaction began to write after the draw, so the floor is raised above its job.
        assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)])
        assert {job.id for job in await bench.take(executor, 1)} <= {later[0]}
    assert job_id in {job.id for job in await bench.take(executor, 5)}


@pytest.mark.parametrize("to", ["group", "queue"])
async def test_a_job_that_is_moved_below_the_floor_of_another_group_or_queue_is_not_passed_over(bench, executor, to):
    """By a client's own UPDATE."""
    queue, group = ("default", "b") if to == "group" else ("other", "a")
    moved = await bench.submit("a")
    await stats.set_group(bench.connection, "a", "default", paused=True)
    for _ in range(3):
        await bench.submit(group, queue=queue)

    async def take(free):
        return await runs.take(bench.connection, executor, [queue], free, CountingScheme(4, 1))

    for job in await take(3):
        await bench.finish(job)
    _, ring = await place(bench, group)
    assert await read_floors.raise_floors(bench.connection, await read_floors.draw(bench.connection), [(queue, ring)])
    if to == "group":
        await bench.connection.execute("UPDATE joex_private.job SET grp = $2 WHERE id = $1", moved, group)
    else:
        await bench.connection.execute("UPDATE joex_private.job SET queue = $2 WHERE id = $1", moved, queue)
    assert [job.id for job in await take(5)] == [moved]


async def test_a_job_whose_take_is_undone_keeps_its_place(bench, executor, another_connection):
    first, second = await bench.submit(), await bench.submit()
    other = await another_connection()
    transaction = other.transaction()
    drawn = await read_floors.draw(bench.connection)
    await transaction.start()
    assert [job.id for job in await runs.take(other, executor, ["default"], 1, CountingScheme(4, 1))] == [first]
    assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)])
    await transaction.rollback()
    assert [job.id for job in await bench.take(executor, 5)] == [first, second]


async def test_an_old_snapshot_sees_floors_and_jobs_of_its_time(bench, executor, another_connection):
    ids = [await bench.submit() for _ in range(3)]
    assert await drawn_and_raised(bench)
    old = await another_connection()
    async with old.transaction(isolation="repeatable_read"):
        await old.execute("SELECT count(*) FROM joex_private.job")
        await taken_and_finished(bench, executor, 1)
        assert await drawn_and_raised(bench)
        before, floor = await old.fetchrow(
            "SELECT (SELECT min(seq) FROM joex_private.job WHERE lane = 2), "
            "(SELECT lane2 FROM joex_private.floor_of($1, $2))",
            *await place(bench),
        )
        assert floor <= before
        # It may raise no floor itself, because it does not see later changes.
        assert await read_floors.raise_floors(old, await read_floors.draw(old), [await place(bench)]) is None
    assert [job.id for job in await bench.take(executor, 5)] == ids[1:]


async def test_an_accept_in_an_old_snapshot_takes_by_the_floors_of_its_time(bench, executor, another_connection):
    first, second = await bench.submit(), await bench.submit()
    assert await drawn_and_raised(bench)
    old = await another_connection()
    async with old.transaction(isolation="repeatable_read"):
        await old.execute("SELECT count(*) FROM joex_private.job")
        drawn = await read_floors.draw(bench.connection)
        assert [row["id"] for row in await old.fetch("SELECT id FROM joex_client.accept('default', 1)")] == [first]
        assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)])
    assert (
        await bench.connection.fetchval(
            "SELECT running FROM joex_private.floor_of($1, $2) f, joex_private.running_of($1, $2, f.held_upto, f.held)",
            *await place(bench),
        )
        == 1
    )
    assert [job.id for job in await bench.take(executor, 5)] == [second]


async def test_who_holds_jobs_since_before_the_floor_is_counted(bench, executor):
    for _ in range(5):
        await bench.submit()
    held = await bench.take(executor, 2)
    await stats.set_group(bench.connection, "default", "default", max_running=3)
    assert await drawn_and_raised(bench)
    assert len(await bench.take(executor, 5)) == 1
    assert await drawn_and_raised(bench)
    assert await bench.take(executor, 5) == []
    for job in held:
        await bench.finish(job)
    assert len(await bench.take(executor, 5)) == 2


async def test_all_that_an_executor_holds_moves_on_when_it_ends_whatever_has_a_floor(bench, executor):
    other = await bench.executor("other")
    for group in ("a", "b", "c"):
        for _ in range(4):
            await bench.submit(group)
    held = [*await bench.take(executor, 3), *await bench.take(other, 3)]
    assert await drawn_and_raised(bench, "a", "b")
    held += [*await bench.take(executor, 3), *await bench.take(other, 3)]
    assert len(held) == 12
    assert await executors.give_back_unknown(bench.connection, other, 1, [held[3].lock_id]) == 5
    assert await executors.leave(bench.connection, executor) == 6
    assert await bench.held(executor) == []
    assert await bench.held(other) == [held[3].id]


@pytest.mark.parametrize("queues", [None, ["default"]])
async def test_runs_that_are_overdue_are_put_back_whatever_has_a_floor(bench, executor, another_connection, queues):
    for group in ("a", "b", "c"):
        await bench.submit(group)
    accepted = await worker_runs.accept(bench.connection, "default", 3, "worker", None)
    assert await drawn_and_raised(bench, "a", "b")
    overdue_in, _ = await worker_runs.accept_state(bench.connection, "default")
    assert overdue_in is not None
    assert 0 < overdue_in <= 60
    await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now()")
    other = await another_connection()
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", accepted[0].id)
        found = await bench.connection.fetch("SELECT * FROM joex_private.recover_overdue($1)", queues)
        assert [tuple(row) for row in found] == [("worker", 2)]
    again = await worker_runs.accept(bench.connection, "default", 3, "worker", None)
    assert {job.id for job in again} == {job.id for job in accepted}


async def test_workers_leave_overdue_runs_to_executors_that_look_for_them_while_floors_are_on(bench, executor):
    """Each accept would read all held jobs, whatever their queues."""
    for _ in range(200):
        await bench.submit()
    assert await drawn_and_raised(bench)
    await bench.take(executor, 200)

    async def read():
        async with bench.connection.transaction():
            before = await bench.connection.fetchval("SELECT joex_private.entries_walked()")
            assert await worker_runs.accept(bench.connection, "other", 1, "worker", None) == []
            overdue_in, _ = await worker_runs.accept_state(bench.connection, "other")
            return await bench.connection.fetchval("SELECT joex_private.entries_walked()") - before, overdue_in

    assert await executors.claim(bench.connection, "joex_private.overdue_searches", 0.0)
    few, overdue_in = await read()
    assert few < 50
    assert 0 < overdue_in <= 60
    await bench.connection.execute(
        "SELECT setval('joex_private.overdue_searches', last_value - 60000000) FROM joex_private.overdue_searches"
    )
    assert await executors.claim(bench.connection, "joex_private.overdue_claims", 2.0)
    many, overdue_in = await read()
    assert many >= 400, "no executor may be left, or the searches that they begin fail"
    assert overdue_in is None


async def test_all_that_is_unfinished_is_counted_whatever_has_a_floor(bench, executor):
    """In groups with a floor, in groups between these, and in other queues."""
    for group in ("a", "b", "c", "d"):
        for _ in range(3):
            await bench.submit(group)
        await bench.submit(group, queue="another")
    await bench.submit("a", "high")
    counts = "SELECT queue, grp, waiting, scheduled FROM joex.group_stats ORDER BY queue, grp"
    await bench.take(executor, 3)
    before = await bench.connection.fetch(counts)
    shares = "SELECT queue, active_groups, held, largest_group, groups_behind FROM joex.shares() ORDER BY queue"
    shared = await bench.connection.fetch(shares)
    assert sum(row["waiting"] for row in before) == 14
    assert sum(row["scheduled"] for row in before) == 3
    assert await drawn_and_raised(bench, "b", "d")
    assert await bench.connection.fetch(counts) == before
    assert await drawn_and_raised(bench, "a", "b", "c", "d")
    assert await bench.connection.fetch(counts) == before
    assert await bench.connection.fetch(shares) == shared
    assert [found.held for found in await executors.list_executors(bench.connection)] == [3]


async def test_a_submission_to_a_group_with_a_limit_counts_from_its_floor(bench, executor, another_connection):
    """It meets few of the dead entries, and counts the jobs of each lane."""
    await bench.connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")
    idle = await another_connection()
    async with idle.transaction(isolation="repeatable_read"):
        await idle.execute("SELECT count(*) FROM joex_private.job")
        returns = await bench.job_in("failed", executor, priority="high")
        await jobs.submit_many(bench.connection, [NewJob("a") for _ in range(500)])
        await taken_and_finished(bench, executor, 500)
        await bench.submit()
        assert await drawn_and_raised(bench)
        await jobs.retry(bench.connection, returns)
        await stats.set_group(bench.connection, "default", "default", max_waiting=3)
        async with bench.connection.transaction():
            before = await bench.connection.fetchval("SELECT joex_private.entries_walked()")
            assert await bench.submit() is not None
            assert await bench.connection.fetchval("SELECT joex_private.entries_walked()") - before < 100
        with pytest.raises(GroupFull):
            await bench.submit()
    await bench.connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")


async def test_floors_end_when_they_are_not_needed_any_more_and_nothing_is_passed_over_meanwhile(
    bench, executor, another_connection
):
    job_id = await bench.job_in("failed", executor)
    await bench.submit()
    await taken_and_finished(bench, executor, 1)
    assert await drawn_and_raised(bench)
    drawn = await read_floors.draw(bench.connection)
    old = await another_connection()
    async with old.transaction(isolation="repeatable_read"):
        await old.execute("SELECT count(*) FROM joex_private.floor")
        assert not await read_floors.switch(bench.connection)
        assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.floor") == 0
        assert await bench.connection.fetchval(
            "SELECT joex_private.is_crowded()"
        )  # floors still record jobs that come back
        assert not await read_floors.switch(bench.connection)
        assert not await bench.connection.fetchval("SELECT joex_private.is_crowded()")
        await jobs.retry(bench.connection, job_id)
        assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.floor_exception") == 0
        # A transaction that still sees floors sees no such job.
        assert await old.fetchval("SELECT count(*) FROM joex_private.floor_of($1, $2)", *await place(bench)) == 1
        assert await old.fetchval("SELECT state::text FROM joex_private.job WHERE id = $1", job_id) == "failed"
    await bench.connection.execute("SELECT joex_private.set_floors(true)")
    # An earlier number says nothing about later writers.
    assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)]) is False
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]


async def test_floors_that_were_left_behind_are_gone_before_floors_are_on(bench, executor):
    """A fail-over with logical replication may lose sequences."""
    job_id = await bench.job_in("failed", executor)
    await bench.submit()
    await taken_and_finished(bench, executor, 1)
    assert await drawn_and_raised(bench)
    await bench.connection.execute("SELECT setval('joex_private.floor_epoch', 1, false)")
    await jobs.retry(bench.connection, job_id)
    taken = bench.connection.transaction()
    await taken.start()
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]
    await taken.rollback()
    on = [await bench.connection.fetchval("SELECT joex_private.set_floors(true)") for _ in range(2)]
    assert on == [False, True]
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]


async def test_floors_are_switched_on_where_takes_walk_over_dead_rows(bench, another_connection):
    executor = await bench.executor()
    await bench.connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")
    idle = await another_connection()
    async with idle.transaction(isolation="repeatable_read"):
        await idle.execute("SELECT count(*) FROM joex_private.job")
        assert not (await executors.check_runs(bench.connection, executor, [])).crowded
        await jobs.submit_many(bench.connection, [NewJob("a") for _ in range(6001)])
        await bench.connection.execute("""
            UPDATE joex_private.job SET lane = NULL, state = 'success', finished_at = clock_timestamp()
            WHERE seq <= (SELECT max(seq) - 1 FROM joex_private.job)""")
        await bench.connection.execute("SELECT pg_stat_force_next_flush()")
        assert len(await bench.take(executor, 2)) == 1
        assert (await executors.check_runs(bench.connection, executor, [])).crowded
        assert await read_floors.switch(bench.connection)
    await bench.connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")


@pytest.fixture
def keeper(pool, executor, monkeypatch):
    """The keeper of floors of an executor, which are on, and stay on for fewer dead rows than usual."""

    async def still_needed(_connection):
        return True

    monkeypatch.setattr(floor_keeper, "_EVERY", 0.0)
    monkeypatch.setattr(read_floors, "switch", still_needed)
    return floor_keeper.ReadFloorKeeper(pool, EventLog())


EVERY_JOB = "FROM joex_private.job j WHERE j.grp = 'a' ORDER BY j.seq"
CHANGES = {
    "of other priority": f"PERFORM joex.set_priority(j.id, (ARRAY['low', 'high'])[nr % 2 + 1]) {EVERY_JOB}",
    "removed": f"""
        PERFORM joex.submit('a', grp => 'a') FROM generate_series(1, 20);
        PERFORM joex.remove(j.id) {EVERY_JOB}""",
    "taken and put back": """
        UPDATE joex_private.job j SET lane = NULL, state = 'running', executor_id = 0, lock_id = id WHERE j.grp = 'a';
        UPDATE joex_private.job j SET lane = 2, state = 'waiting', executor_id = NULL WHERE j.grp = 'a'""",
    "due later": """
        UPDATE joex_private.job j SET lane = NULL, due_at = '2000-01-01' WHERE j.grp = 'a';
        PERFORM joex_private.promote('default');
        UPDATE joex_private.job j SET lane = NULL, due_at = 'tomorrow' WHERE j.grp = 'a'""",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_group_whose_jobs_change_and_never_end_has_a_floor(bench, executor, another_connection, keeper, change):
    """Of hundreds of dead entries a take meets few, once the keeper of floors has found where they are."""
    await bench.connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")
    await bench.submit("b")
    await taken_and_finished(bench, executor, 1)
    for _ in range(20):
        await bench.submit("a")

    async def walked():
        async with bench.connection.transaction():
            before = await bench.connection.fetchval("SELECT joex_private.entries_walked()")
            assert await bench.take(executor, 5) == []
            return await bench.connection.fetchval("SELECT joex_private.entries_walked()") - before

    idle = await another_connection()
    async with idle.transaction(isolation="repeatable_read"):
        await idle.execute("SELECT count(*) FROM joex_private.job")
        await bench.connection.execute(f"DO $$ BEGIN FOR nr IN 1..50 LOOP {CHANGES[change]}; END LOOP; END $$")
        await stats.set_group(bench.connection, "a", "default", paused=True)
        assert await walked() > 500
        keeper.wake()
        keeping = asyncio.create_task(keeper.run())
        await eventually(lambda: bench.connection.fetchval("SELECT EXISTS (SELECT FROM joex_private.floor)"))
        keeping.cancel()
        await asyncio.wait([keeping])
        assert await walked() < 100
    await bench.connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")


async def test_floors_rise_though_the_search_for_crowded_groups_fails(bench, executor, keeper, monkeypatch):
    """As when it is longer than the server's `statement_timeout`."""

    async def fails(*_):
        raise JoexError("canceling statement due to statement timeout")

    monkeypatch.setattr(read_floors, "crowded_places", fails)
    await bench.connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")
    for _ in range(60):
        await bench.submit()
    await taken_and_finished(bench, executor, 60)
    keeper.wake()
    keeping = asyncio.create_task(keeper.run())
    await eventually(lambda: bench.connection.fetchval("SELECT EXISTS (SELECT FROM joex_private.floor)"))
    keeping.cancel()
    await asyncio.wait([keeping])
    await bench.connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")


async def test_the_first_check_reads_what_has_finished_in_the_last_hour_by_the_servers_clock(bench, executor):
    for group in ("new", "old"):
        await bench.submit(group)
    await taken_and_finished(bench, executor, 2)
    await bench.connection.execute(
        "UPDATE joex_private.job SET finished_at = finished_at - interval '61 min' WHERE grp = 'old'"
    )
    assert (await read_floors.finished_since(bench.connection, None, 10))[0] == {await place(bench, "new"): 1}


async def test_what_finishes_counts_at_once_by_a_clock_that_is_behind_what_has_finished(bench, executor):
    """As that of a promoted standby may be, or one that was set back."""
    for group in ("new", "ahead"):
        await bench.submit(group)
    await taken_and_finished(bench, executor, 2)
    ahead = await bench.connection.fetchval("""
        UPDATE joex_private.job SET finished_at = finished_at + interval '1 hour' WHERE grp = 'ahead'
        RETURNING finished_at
    """)
    found, until = await read_floors.finished_since(bench.connection, ahead, 10)
    assert found == {await place(bench, "new"): 1}
    assert until is not None
    assert until < ahead


async def test_of_several_claims_one_holds_until_it_ends_and_its_owner_can_renew_it(bench):
    async def claim(mine=None):
        longest = 59.0  # (so no two statements of this test are too far apart)
        return await executors.claim(bench.connection, "joex_private.floor_claims", longest, mine)

    first = await claim()
    assert first is not None
    assert await claim() is None
    renewed = await claim(first)
    assert renewed > first
    assert await claim(first) is None
    await bench.connection.execute("SELECT setval('joex_private.floor_claims', $1)", renewed - 60_000_000)
    taken_over = await claim()
    assert taken_over is not None
    assert await claim(renewed) is None
    await bench.connection.execute("SELECT setval('joex_private.floor_claims', $1)", taken_over + 600_000_000)
    assert await claim() is not None, "the server's clock was set back after the latest claim"


async def test_a_claim_waits_for_no_standby(bench):
    """While the synchronous one is away, all that an executor does for others would wait with it."""
    async with bench.connection.transaction():
        assert await executors.claim(bench.connection, "joex_private.floor_claims", 30.0)
        assert await bench.connection.fetchval("SHOW synchronous_commit") == "off"


async def test_one_executor_of_a_fleet_raises_floors_and_another_one_goes_on_when_its_claim_has_ended(
    bench, executor, pool, keeper, monkeypatch
):
    checks: list[asyncio.Task] = []

    async def counted(connection, after, most, read=read_floors.finished_since):
        task = asyncio.current_task()
        assert task is not None
        checks.append(task)
        return await read(connection, after, most)

    monkeypatch.setattr(read_floors, "finished_since", counted)
    monkeypatch.setattr(floor_keeper, "_CLAIMED_FOR", 59.0)
    await bench.connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")
    for _ in range(60):
        await bench.submit()
    await taken_and_finished(bench, executor, 60)
    keepers = [keeper, *(floor_keeper.ReadFloorKeeper(pool, EventLog()) for _ in range(3))]
    fleet = [asyncio.create_task(one.run()) for one in keepers]
    for one in keepers:
        one.wake()
    await eventually(lambda: len(checks) >= 50)
    assert len(set(checks[20:])) == 1
    checks[-1].cancel()
    await asyncio.wait([checks[-1]])
    await bench.connection.execute("SELECT setval('joex_private.floor_claims', 1)")
    await bench.connection.execute("DELETE FROM joex_private.floor")
    await eventually(lambda: bench.connection.fetchval("SELECT EXISTS (SELECT FROM joex_private.floor)"))
    for one in fleet:
        one.cancel()
    await asyncio.wait(fleet)
    await bench.connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")


async def test_a_search_for_crowded_groups_that_has_no_time_reads_one_and_goes_on_from_there(
    bench, executor, another_connection
):
    """However many groups are paused, or drained of jobs that were removed."""
    await bench.connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")
    await bench.submit()
    await taken_and_finished(bench, executor, 1)
    names = [f"group {nr}" for nr in range(30)]
    for name in names:
        await bench.submit(name)
    crowded, removed = {names[7], names[20]}, {"removed", "removed too"}
    idle = await another_connection()
    async with idle.transaction(isolation="repeatable_read"):
        await idle.execute("SELECT count(*) FROM joex_private.job")
        await bench.connection.execute(
            """DO $$ BEGIN FOR nr IN 1..200 LOOP
                PERFORM joex.submit('a', grp => name) FROM unnest(ARRAY['removed', 'removed too']) name;
                PERFORM joex.remove(j.id) FROM joex_private.job j WHERE j.grp LIKE 'removed%';
                PERFORM joex.set_priority(j.id, (ARRAY['low', 'high'])[nr % 2 + 1])
                FROM joex_private.job j WHERE j.grp IN ('group 7', 'group 20');
            END LOOP; END $$"""
        )
        after, found, calls = ("", 0), [], 0
        while calls == 0 or after[0]:
            places, after = await read_floors.crowded_places(bench.connection, after, 50, 0.0)
            assert len(places) <= 2
            found += places
            calls += 1
    assert sorted(found) == sorted([await place(bench, name) for name in crowded | removed])
    assert calls >= len(names)
    await bench.connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")


async def test_a_search_finds_many_of_the_groups_that_have_no_job_before_it_walks_over_the_others_again(
    bench, executor, another_connection
):
    """However little time it has."""
    await bench.connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")
    idle = await another_connection()
    async with idle.transaction(isolation="repeatable_read"):
        await idle.execute("SELECT count(*) FROM joex_private.job")
        await bench.connection.execute(
            "SELECT joex.submit('a', grp => 'group ' || g) FROM generate_series(1, 60) g, generate_series(1, 60) nr"
        )
        await bench.connection.execute("SELECT joex.remove(id) FROM joex_private.job")
        after, found, calls = ("", 0), [], 0
        while calls == 0 or after[0]:
            places, after = await read_floors.crowded_places(bench.connection, after, 50, 0.0)
            found += places
            calls += 1
    assert sorted(found) == sorted([await place(bench, f"group {nr}") for nr in range(1, 61)])
    assert calls <= 30
    await bench.connection.execute("ALTER TABLE joex_private.job RESET (autovacuum_enabled)")


async def test_a_search_for_crowded_groups_may_be_longer_than_other_statements_of_the_role(bench, monkeypatch):
    """One that failed would begin at the same place again, and find nothing as long as vacuum is pinned."""
    monkeypatch.setattr(read_floors, "_CROWDED", f"{read_floors._CROWDED}, pg_sleep(0.6)")
    await bench.connection.execute("SET statement_timeout = '500ms'")
    assert (await read_floors.crowded_places(bench.connection, ("", 0), 50, 0.0))[0] == []
    assert await bench.connection.fetchval("SHOW statement_timeout") == "500ms"


@pytest.mark.parametrize("way", ["RESTART IDENTITY", "CONTINUE IDENTITY"])
async def test_a_truncate_after_which_seqs_begin_anew_hides_no_new_job(bench, executor, way):
    for _ in range(20):
        await bench.submit()
    await taken_and_finished(bench, executor, 10)
    assert await drawn_and_raised(bench)
    drawn = await read_floors.draw(bench.connection)
    await bench.connection.execute(f"TRUNCATE joex_private.job {way}")
    assert await bench.connection.fetchval("SELECT joex_private.floors_are_on()")
    job_id = await bench.submit()
    # An earlier number is invalid: it would be above all new jobs.
    assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)]) is False
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]
    assert await drawn_and_raised(bench)


@pytest.mark.parametrize("seen", ["started_at", "statistics_since"])
async def test_a_number_that_was_drawn_on_a_lost_primary_or_before_a_crash_hides_no_job(bench, executor, seen):
    """A standby that is promoted gives the numbers after its last one to later jobs."""
    await bench.submit()
    await taken_and_finished(bench, executor, 1)
    drawn = await read_floors.draw(bench.connection)
    server = drawn.server._replace(**{seen: getattr(drawn.server, seen) - timedelta(days=1)})
    lost = replace(drawn, upto=drawn.upto + 1000, server=server)
    assert await read_floors.raise_floors(bench.connection, lost, [await place(bench)]) is False
    job_id = await bench.submit()
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]
    assert await read_floors.raise_floors(bench.connection, drawn, [await place(bench)])


async def test_a_floor_that_is_just_raised_while_the_table_is_truncated_is_not_above_new_jobs(
    bench, executor, another_connection, waiting_for_a_lock
):
    """It waits for the table before it checks whether its number is still valid."""
    for _ in range(20):
        await bench.submit()
    await bench.connection.execute("SELECT joex_private.set_floors(true)")
    drawn, other = await read_floors.draw(bench.connection), await another_connection()
    where = await place(bench)
    transaction = bench.connection.transaction()
    await transaction.start()
    await bench.connection.execute("TRUNCATE joex_private.job RESTART IDENTITY")
    observer = await another_connection()
    async with waiting_for_a_lock(observer, read_floors.raise_floors(other, drawn, [where])) as raising:
        await transaction.commit()
    assert await raising is False
    job_id = await bench.submit()
    assert [job.id for job in await bench.take(executor, 5)] == [job_id]


async def test_a_truncate_that_is_rolled_back_leaves_floors_that_hold(bench, executor):
    ids = [await bench.submit() for _ in range(5)]
    await taken_and_finished(bench, executor, 2)
    assert await drawn_and_raised(bench)
    transaction = bench.connection.transaction()
    await transaction.start()
    await bench.connection.execute("TRUNCATE joex_private.job RESTART IDENTITY")
    await transaction.rollback()
    assert [job.id for job in await bench.take(executor, 5)] == ids[2:]


async def switched_whenever_asked(bench, first):
    """Let another session switch floors whenever this one asks whether they are on; 1: they are off at first, 2: on."""
    await bench.connection.execute(f"""
        CREATE SEQUENCE public.asked START {first};
        CREATE OR REPLACE FUNCTION joex_private.floors_are_on() RETURNS boolean LANGUAGE sql STABLE AS
            $$ SELECT nextval('public.asked') % 2 = 0 $$""")


@pytest.mark.parametrize("first", [1, 2], ids=["off", "on"])
async def test_floors_that_are_switched_meanwhile_change_no_count_of_jobs(bench, first):
    executor = await bench.executor()
    for _ in range(3):
        await bench.submit()
    await bench.take(executor)
    await switched_whenever_asked(bench, first)
    counts = "SELECT waiting, scheduled FROM joex.group_stats", "SELECT waiting, scheduled FROM joex.queue_stats"
    for query in counts:
        assert [tuple(row) for row in await bench.connection.fetch(query)] == [(2, 1)]
    shares = "SELECT active_groups, held, longest_wait_seconds >= 0 FROM joex.shares()"
    assert [tuple(row) for row in await bench.connection.fetch(shares)] == [(1, 1, True)]


@pytest.mark.parametrize("first", [1, 2], ids=["off", "on"])
async def test_floors_that_are_switched_while_an_executor_ends_leave_no_job_with_it(bench, another_connection, first):
    """Another session switches them: this one sees each held job once."""
    executor, other = await bench.executor(), await another_connection()
    locked, free = await bench.job_in("running", executor), await bench.job_in("running", executor)
    await switched_whenever_asked(bench, first)
    for _ in range(2):
        assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.held") == 2
        await bench.connection.execute("SELECT nextval('public.asked')")
    async with other.transaction():
        await other.execute("SELECT FROM joex_private.job WHERE id = $1 FOR UPDATE", locked)
        assert await executors.leave(bench.connection, executor) == 1
        assert await bench.connection.fetchval("SELECT orphans FROM joex_private.executor")
    await bench.rescue()
    assert [await bench.state(job_id) for job_id in (locked, free)] == ["waiting", "waiting"]
    assert not await bench.connection.fetchval("SELECT orphans FROM joex_private.executor")
