"""Takes of a fleet that holds many jobs: one chooses ahead, others draw from its plan (see sql/35_plans.sql)."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import pytest

from joex.core.priority_turns import CountingScheme
from joex.store import executors, runs, stats, worker_runs
from tests.support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.postgres(16, 18)

FOUR_ONE = CountingScheme(4, 1)
HELD = 1280
AHEAD = HELD // 64
GROUPS = [f"group {n}" for n in range(10)]

_HOLD = """
    INSERT INTO joex_private.job (grp, task, state, executor_id, app_id, lock_id, scheduled_at, started_at)
    SELECT grp, 'a', 'running', $1, 'fleet', gen_random_uuid(), now(), now() FROM unnest($2::text[]) AS grp
    RETURNING id, lock_id
"""
_STOCK = """
    INSERT INTO joex_private.job (grp, task, lane)
    SELECT grp, 'a', 2 FROM unnest($1::text[]) AS grp, generate_series(1, $2)
"""
_JOBS = """
    SELECT j.id, j.grp FROM joex_private.plan p CROSS JOIN unnest(p.tids) WITH ORDINALITY AS e(tid, nr)
    JOIN joex_private.job j ON j.ctid = e.tid ORDER BY e.nr
"""
_HELD_BY_GROUP = "SELECT queue, grp, count(*) FROM joex_private.job WHERE executor_id IS NOT NULL GROUP BY 1, 2"
_IN_ANOTHER_QUEUE = """
    INSERT INTO joex_private.job (queue, grp, task, state, lane, executor_id, app_id, lock_id, scheduled_at, started_at)
    SELECT 'other', grp, task, state, lane, executor_id, app_id, CASE WHEN lane IS NULL THEN gen_random_uuid() END,
           scheduled_at, started_at
    FROM joex_private.job
"""
_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)"
_WAITING = "SELECT EXISTS (SELECT FROM joex_private.job WHERE lane IS NOT NULL)"
_LEFT = """
    SELECT p.first + cardinality(p.tids) - 1 - coalesce(pg_sequence_last_value(q.drawn), 0)
    FROM joex_private.plan p JOIN joex_private.queue q ON q.name = p.queue
"""


class Fleet:
    """A fleet that holds many jobs, most of them in an executor that never ends them; another one takes."""

    def __init__(self, bench: Any, taker: int, held: list[asyncpg.Record]) -> None:
        self.bench, self.taker, self.held = bench, taker, held

    async def take(self, free: int = 1) -> list[str]:
        """Take jobs; returns their groups."""
        return [job.group for job in await self.bench.take(self.taker, free)]

    async def renew(self) -> None:
        """Let the next take make a plan."""
        await self.bench.connection.execute("UPDATE joex_private.plan SET renew_at = now()")

    async def entries(self) -> list[str]:
        """The groups of the services in the plan."""
        return [row[1] for row in await self.bench.connection.fetch(_JOBS)]

    async def left(self) -> int:
        """How many entries of the plan have not been drawn."""
        return int(await self.bench.connection.fetchval(_LEFT))

    async def fill(self) -> None:
        """No group has room, though all have a backlog, and takes wait for each other as long as it takes."""
        for queue, group, held in await self.bench.connection.fetch(_HELD_BY_GROUP):
            await stats.set_group(self.bench.connection, group, queue, max_running=held)
        await self.bench.connection.execute("ALTER FUNCTION joex_private.wait_for_ring SET lock_timeout = 0")
        await self.bench.connection.execute("CREATE TABLE other_than_new ()")  # this database serves no other test
        await self.renew()

    async def make_room(self, group: int) -> None:
        """End a run of this group."""
        job_id, lock_id = self.held[group]
        assert await runs.finish_many(self.bench.connection, [runs.EndedRun(job_id, lock_id, "success")]) == []

    async def set_group(self, group: str, *, paused: bool = False, max_running: int | None = None) -> None:
        """Change a group just after a take has read the plan, which `joex.set_group` discards."""
        await self.bench.connection.execute(
            "INSERT INTO joex_private.group_setting (queue, grp, ring, paused, max_running) "
            "VALUES ('default', $1, joex_private.ring($1), $2, $3)",
            group,
            paused,
            max_running,
        )

    async def settle(self) -> None:
        """Plans live on until they are used up, so that a slow machine tests the same."""
        await self.bench.connection.execute("UPDATE joex_private.plan SET renew_at = 'infinity'")


@pytest.fixture
async def fleet(bench) -> Fleet:
    return await _fleet_of(bench, GROUPS, stock=40)


async def _fleet_of(bench: Any, groups: list[str], *, stock: int) -> Fleet:
    others = await bench.executor("others")
    held = await bench.connection.fetch(_HOLD, others, list(itertools.islice(itertools.cycle(groups), HELD)))
    await bench.connection.execute(_STOCK, groups, stock)
    fleet = Fleet(bench, await bench.executor("taker", pool_size=1000), held)
    await fleet.take()  # learns how many are held
    await fleet.take()  # makes the first plan
    await fleet.settle()
    return fleet


async def test_a_fleet_that_holds_few_jobs_makes_no_plan(bench):
    taker = await bench.executor()
    await bench.connection.execute(_STOCK, GROUPS, 40)
    for _ in range(12):
        assert len(await bench.take(taker, 20)) == 20
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.plan") == 0


async def test_a_small_part_of_the_held_jobs_is_chosen_ahead_and_others_draw_it_in_order(fleet):
    entries = await fleet.entries()
    assert len(entries) == await fleet.left() == AHEAD - 1
    assert max(Counter(entries).values()) <= 2
    assert [group for _ in entries for group in await fleet.take()] == entries
    assert await fleet.left() == 0
    assert len(await fleet.take()) == 1
    assert len(await fleet.entries()) == AHEAD - 1


@pytest.mark.parametrize(("slots_each", "ahead"), [(4, HELD // 64), (2, HELD // 128)])
async def test_a_smaller_part_is_chosen_ahead_where_groups_hold_few_jobs_each(bench, slots_each, ahead):
    fleet = await _fleet_of(bench, [f"group {n}" for n in range(HELD // slots_each)], stock=1)
    assert len(await fleet.entries()) == ahead - 1


async def test_why_counts_turns_from_where_the_draws_have_come_to(fleet):
    few = [f"few {n}" for n in range(3 * AHEAD)]
    await fleet.bench.connection.execute(_HOLD, fleet.taker, few)
    await fleet.bench.connection.execute(_STOCK, few, 1)
    await fleet.renew()
    await fleet.take()
    await fleet.settle()
    await fleet.take(2)
    planned = [job["id"] for job in await fleet.bench.connection.fetch(_JOBS)]  # (without what was taken)
    turns = [
        await fleet.bench.connection.fetchval("SELECT detail FROM joex.why($1) WHERE reason = 'turn'", job_id)
        for job_id in planned
    ]
    assert len(planned) == AHEAD - 3
    assert [0 if turn is None else json.loads(turn)["places"] for turn in turns] == list(range(AHEAD - 3))


async def test_a_take_that_wants_more_than_the_plan_has_gets_the_rest_from_the_next_one(fleet):
    assert len(await fleet.take(AHEAD + 5)) == AHEAD + 5
    assert len(await fleet.take(370)) == 370
    assert len(await fleet.take(100)) == 400 - 2 - (AHEAD + 5) - 370


async def test_a_new_group_is_served_first_by_the_next_plan(fleet):
    await fleet.bench.submit("new")
    assert await fleet.take() != ["new"]
    await fleet.renew()
    assert await fleet.take() == ["new"]


async def test_a_plan_that_was_published_before_its_queue_was_paused_gives_nothing(fleet, client):
    left = await fleet.left()
    await client.queues.set("default", paused=True)
    assert (await fleet.take(), await fleet.left()) == ([], left)
    await client.queues.set("default", paused=False)
    assert len(await fleet.take(left)) == left


async def test_the_next_choice_goes_on_where_the_draws_have_ended(fleet):
    await fleet.bench.connection.execute("DELETE FROM joex_private.job WHERE executor_id = $1", fleet.taker)
    served: Counter[str] = Counter()  # all groups hold the same number
    for _ in range(3 * len(GROUPS)):
        await fleet.renew()
        [job] = await fleet.bench.take(fleet.taker)
        assert await fleet.bench.finish(job) == []
        served[job.group] += 1
    assert served == dict.fromkeys(GROUPS, 3)


async def test_so_does_the_counting_scheme_of_a_group_in_which_both_priorities_wait(fleet):
    connection = fleet.bench.connection
    await connection.execute("DELETE FROM joex_private.job WHERE lane IS NOT NULL AND grp <> $1", GROUPS[0])
    for _ in range(40):
        await fleet.bench.submit(GROUPS[0], "high")
    priorities: Counter[str] = Counter()
    for _ in range(40):
        await fleet.renew()
        [job] = await fleet.bench.take(fleet.taker)
        assert await fleet.bench.finish(job) == []
        priorities[job.priority] += 1
    assert priorities == {"high": 32, "low": 8}


async def test_a_fleet_that_holds_few_jobs_by_now_makes_no_plan(fleet):
    assert (
        await fleet.bench.connection.execute(
            "UPDATE joex_private.job SET executor_id = NULL, state = 'success', finished_at = now() "
            "WHERE id = ANY (SELECT id FROM joex_private.job WHERE executor_id IS NOT NULL LIMIT 1100)"
        )
        == "UPDATE 1100"
    )
    await fleet.renew()
    await fleet.take()  # as long as was held before
    await fleet.renew()
    await fleet.take()
    assert await fleet.left() == 0


async def test_jobs_that_have_gone_or_changed_since_are_passed_over(fleet, client):
    connection = fleet.bench.connection
    first, second, *_ = await connection.fetch(_JOBS)
    _, _, third, *_ = await fleet.entries()
    assert await client.cancel(first[0])
    assert await client.set_priority(second[0], "high")
    assert await fleet.take() == [third]
    assert await fleet.left() == AHEAD - 1 - 3


async def test_a_place_where_another_job_lies_by_now_gives_only_a_waiting_job_of_the_queue(fleet):
    connection = fleet.bench.connection
    await connection.execute("UPDATE joex_private.job SET queue = 'another' WHERE lane IS NOT NULL")
    await fleet.bench.submit("new")
    # Each place of the plan, as if vacuum had made room there for these.
    await connection.execute(
        "UPDATE joex_private.plan SET tids = ARRAY(SELECT (array_agg(ctid))[1] FROM joex_private.job "
        "WHERE grp <> 'new' GROUP BY queue, grp)"
    )
    assert await fleet.take() == ["new"]
    assert await fleet.take() == []


async def test_a_group_that_was_paused_since_is_passed_over(fleet):
    paused, *_ = entries = await fleet.entries()
    await fleet.set_group(paused, paused=True)
    served = [group for _ in range(len(entries) - entries.count(paused)) for group in await fleet.take()]
    assert served == [group for group in entries if group != paused]


async def test_a_limit_that_was_set_since_holds(fleet, client):
    limited, *_ = entries = await fleet.entries()
    held = await fleet.bench.connection.fetchval(
        "SELECT count(*) FROM joex_private.job WHERE grp = $1 AND executor_id IS NOT NULL", limited
    )
    await fleet.set_group(limited, max_running=held + 1)
    # (Jobs that have gone make a draw draw again.)
    for job_id in [row[0] for row in await fleet.bench.connection.fetch(_JOBS)][1:4]:
        assert await client.cancel(job_id)
    assert Counter(await fleet.take(len(entries)))[limited] <= 1
    while taken := await fleet.take(20):
        assert limited not in taken
        await fleet.renew()


async def test_a_change_of_weight_holds_from_the_next_choice_on(fleet):
    favoured = GROUPS[5]
    await stats.set_group(fleet.bench.connection, favoured, "default", weight=100)
    await fleet.renew()
    assert {group for _ in range(30) for group in await fleet.take()} == {favoured}


async def test_takes_side_by_side_take_each_job_once_and_keep_the_limits(fleet, another_connection):
    """Executors end jobs, take, roll back; a client cancels. Nothing is lost, nothing twice, no limit exceeded."""
    await stats.set_group(fleet.bench.connection, GROUPS[0], "default", max_running=HELD // len(GROUPS) + 2)
    await stats.set_group(fleet.bench.connection, GROUPS[1], "default", weight=3)
    runs_of: Counter[Any] = Counter()

    async def executor(number: int) -> None:
        connection = await another_connection()
        for turn in itertools.count():
            transaction = connection.transaction()
            await transaction.start()
            taken = await runs.take(connection, fleet.taker, ["default"], 1 + (turn + number) % 3, FOUR_ONE)
            running = await connection.fetchval(
                "SELECT count(*) FROM joex_private.job WHERE grp = $1 AND executor_id IS NOT NULL", GROUPS[0]
            )
            assert running <= HELD // len(GROUPS) + 2
            if turn % 7 == number:
                await transaction.rollback()
                continue
            await transaction.commit()
            runs_of.update(job.id for job in taken)
            ended = [runs.EndedRun(job.id, job.lock_id, "success") for job in taken]
            assert await runs.finish_many(connection, ended) == []
            # (A take may get nothing only because another one has just looked at the group with the limit.)
            if not taken and not await connection.fetchval(_WAITING):
                return

    await asyncio.gather(*(executor(number) for number in range(6)))
    assert (len(runs_of), set(runs_of.values())) == (400 - 2, {1})


async def test_a_take_waits_for_the_plan_of_another_one_which_has_locked_all_jobs(fleet, another_connection):
    connection, planner, other = fleet.bench.connection, await another_connection(), await another_connection()
    assert len(await fleet.take(390)) == 390
    await connection.execute("ALTER FUNCTION joex_private.wait_for_ring SET lock_timeout = 0")
    await connection.execute("CREATE TABLE other_than_new ()")  # this database serves no other test
    await connection.execute("DELETE FROM joex_private.plan")
    await connection.execute(
        "INSERT INTO joex_private.plan (queue, first, tids, cursors, turns, ahead, renew_at) "
        "VALUES ('default', 1, '{}', '{}', '{}', 10, now())"
    )
    transaction = planner.transaction()
    await transaction.start()
    assert len(await runs.take(planner, fleet.taker, ["default"], 1, FOUR_ONE)) == 1
    waits = asyncio.ensure_future(runs.take(other, fleet.taker, ["default"], 1, FOUR_ONE))
    await eventually(lambda: waits.done() or connection.fetchval(_WAITS, other.get_server_pid()))
    await transaction.commit()
    assert len(await waits) == 1


async def test_a_session_that_hangs_with_a_plan_stops_no_other_take(fleet, another_connection):
    other = await another_connection()
    await fleet.renew()
    async with other.transaction():
        assert len(await runs.take(other, fleet.taker, ["default"], 1, FOUR_ONE)) == 1
        assert len(await fleet.take(3)) == 3  # after a second
    assert len(await fleet.take(3)) == 3


async def test_the_plan_of_a_transaction_that_is_rolled_back_was_never_there(fleet, another_connection):
    other = await another_connection()
    await fleet.renew()
    transaction = other.transaction()
    await transaction.start()
    await runs.take(other, fleet.taker, ["default"], 1, FOUR_ONE)
    await transaction.rollback()
    assert len(await fleet.take(390)) == 390


@asynccontextmanager
async def two_takes_in_line(fleet: Fleet, connect: Any, *, writes: bool = False) -> AsyncIterator[list[Any]]:
    """Two takes wait for the ring while a group has room for one job; after the block, the list has what they found.

    These are the groups of their jobs, and how often the second one has chosen.
    """
    await fleet.fill()
    await fleet.make_room(0)
    connection, first, second = fleet.bench.connection, await connect(), await connect()
    other = await fleet.bench.executor("another")
    found: list[Any] = []
    async with second.transaction():
        await second.execute("SET LOCAL track_functions = 'pl'")
        if writes:
            await second.execute("SELECT pg_current_xact_id()")
        await connection.execute("SELECT pg_advisory_lock(joex_private.ring_lock(), hashtext('default'))")
        takes = []
        for session, taker in (first, fleet.taker), (second, other):
            takes.append(asyncio.ensure_future(runs.take(session, taker, ["default"], 2, FOUR_ONE)))
            await eventually(partial(connection.fetchval, _WAITS, session.get_server_pid()))
        yield found
        await connection.execute("SELECT pg_advisory_unlock(joex_private.ring_lock(), hashtext('default'))")
        found += [[job.group for job in await take] for take in takes]
        choices = "SELECT pg_stat_get_xact_function_calls('joex_private.choose'::regproc)"
        found.append(await second.fetchval(choices) or 0)


async def test_a_take_that_waited_while_another_one_took_all_that_could_run_does_not_choose(fleet, another_connection):
    async with two_takes_in_line(fleet, another_connection) as found:
        pass
    assert found == [[GROUPS[0]], [], 0]


async def test_one_that_has_written_does(fleet, another_connection):
    """What it has written, the other one did not see: it may have made room for a job."""
    async with two_takes_in_line(fleet, another_connection, writes=True) as found:
        pass
    assert found == [[GROUPS[0]], [], 1]


async def test_so_does_one_that_waited_while_the_executor_of_the_other_one_began_to_drain(fleet, another_connection):
    async with two_takes_in_line(fleet, another_connection) as found:
        await fleet.bench.connection.execute("SELECT joex_client.drain('taker')")
    assert found == [[], [GROUPS[0]], 1]


async def test_so_does_one_that_waited_while_a_job_was_locked(fleet, another_connection):
    """The other one passed over the job, and its transaction may have rolled back since."""
    connection = await another_connection()
    async with connection.transaction():
        await connection.execute(
            "SELECT FROM joex_private.job WHERE lane IS NOT NULL AND grp = $1 FOR UPDATE", GROUPS[0]
        )
        async with two_takes_in_line(fleet, another_connection) as found:
            await fleet.make_room(1)
    assert found[:2] == [[GROUPS[1]], []]
    assert found[2] > 0


async def test_so_does_one_that_has_begun_to_wait_since_the_other_one_chose(fleet, another_connection):
    """The room that its run has left came after that choice, though before the end of that take."""
    await fleet.fill()
    await fleet.bench.connection.execute("""
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN new; END $$;
        CREATE TRIGGER wait BEFORE INSERT ON joex_private.plan FOR EACH ROW EXECUTE FUNCTION wait()
    """)
    other = await fleet.bench.executor("another")
    takes = []
    lock = await another_connection()
    async with lock.transaction():
        await lock.execute("SELECT pg_advisory_xact_lock(1)")
        for group, taker in enumerate((fleet.taker, other)):
            await fleet.make_room(group)
            session = await another_connection()
            takes.append(asyncio.ensure_future(runs.take(session, taker, ["default"], 2, FOUR_ONE)))
            await eventually(partial(fleet.bench.connection.fetchval, _WAITS, session.get_server_pid()))
    assert [[job.group for job in await take] for take in takes] == [[GROUPS[0]], [GROUPS[1]]]


async def test_a_take_that_waits_for_its_executor_holds_up_no_other(fleet, another_connection):
    """Whoever asks an executor to drain may leave this transaction open."""
    await fleet.fill()
    drain, first = await another_connection(), await another_connection()
    async with drain.transaction():
        await drain.execute("SELECT joex_client.drain('taker')")
        await fleet.make_room(0)
        waits = asyncio.ensure_future(runs.take(first, fleet.taker, ["default"], 2, FOUR_ONE))
        await eventually(lambda: fleet.bench.connection.fetchval(_WAITS, first.get_server_pid()))
        await fleet.make_room(1)
        other = await fleet.bench.executor("another")
        async with asyncio.timeout(PATIENCE):
            assert [job.group for job in await fleet.bench.take(other, 2)] == [GROUPS[1]]
        assert not waits.done()
    assert await waits == []


async def test_takes_of_the_same_queues_in_another_order_do_not_wait_for_each_other(fleet, another_connection):
    """Each finds no job in its first queue, and goes on to the next one."""
    connection, queues = fleet.bench.connection, ["default", "other"]
    await connection.execute(_IN_ANOTHER_QUEUE)
    for _ in range(2):  # learn how many are held
        await runs.take(connection, fleet.taker, ["other"], 1, FOUR_ONE)
    await fleet.fill()
    rings = "lock(joex_private.ring_lock(), hashtext(q.name)) FROM unnest($1::text[]) q(name)"
    await connection.execute("SELECT pg_advisory_" + rings, queues)
    takes = []
    for order in (queues, queues[::-1]):
        session = await another_connection()
        takes.append(asyncio.ensure_future(runs.take(session, fleet.taker, order, 2, FOUR_ONE)))
        await eventually(partial(connection.fetchval, _WAITS, session.get_server_pid()))
    await connection.execute("SELECT pg_advisory_un" + rings, queues)
    assert [await take for take in takes] == [[], []]


async def test_executors_look_for_no_work_just_after_a_take_that_took_all_that_could_run(fleet):
    connection = fleet.bench.connection
    await fleet.fill()
    assert await executors.has_work(connection, ["default"])
    assert await fleet.take(5) == []
    await connection.execute("UPDATE joex_private.plan SET made_at = clock_timestamp(), renew_at = 'infinity'")
    assert not await executors.has_work(connection, ["default"])
    await fleet.renew()
    assert await executors.has_work(connection, ["default"])


async def test_a_worker_draws_from_the_plan_and_makes_none(fleet):
    entries = await fleet.entries()
    accepted = await worker_runs.accept(fleet.bench.connection, "default", 1, "worker", None)
    assert [job.group for job in accepted] == entries[:1]
    await fleet.renew()
    assert len(await worker_runs.accept(fleet.bench.connection, "default", 1, "worker", None)) == 1
    assert await fleet.left() == 0


async def test_a_worker_whose_snapshot_is_old_draws_nothing(fleet):
    async with fleet.bench.connection.transaction(isolation="repeatable_read"):
        assert len(await worker_runs.accept(fleet.bench.connection, "default", 1, "worker", None)) == 1
        assert await fleet.left() == AHEAD - 1


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM joex_private.plan",
        "SELECT setval('joex_private.drawn_1', 1, false)",
        "SELECT setval('joex_private.drawn_1', 1000000)",
        "UPDATE joex_private.plan SET made_at = now() + interval '1 hour'",  # the clock was set back
    ],
)
async def test_a_plan_that_is_lost_in_part_stops_no_take(fleet, lost):
    await fleet.bench.connection.execute(lost)
    assert len(await fleet.take(3)) == 3
    await fleet.renew()
    assert len(await fleet.take(390)) == 390


async def test_plans_leave_one_row_for_each_queue(fleet):
    for _ in range(20):
        await fleet.take()
        await fleet.renew()
    assert await fleet.bench.connection.fetchval("SELECT count(*) FROM joex_private.plan") == 1
