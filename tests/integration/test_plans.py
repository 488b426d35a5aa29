"""The hot statements read no more at 200,000 jobs in ten thousand groups (`make soak`: a million) than at a thousand.

PostgreSQL counts the reads, which say more than the text of a plan, and include those of functions. No sequential scan
of the table of jobs is allowed, and no more index entries and pages than a small multiple of the batch.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

import joex.store
from joex import NewJob
from joex.core import tuples
from joex.core.access import Bounds
from joex.core.priority_turns import CountingScheme
from joex.store import executors, job_logs, jobs, listing, pools, runs, stats, timeouts, worker_runs
from joex.store import keyed as keyed_store
from joex.store.bounded import NOTHING, UNLIMITED
from joex.store.database import connect
from joex.store.listing import Filter, list_jobs
from joex.store.runs import EndedRun, LogLine, Progress
from joex.store.search import Search, count_jobs, search_jobs
from joex.store.statement import STATEMENTS
from tests.integration.conftest import Bench
from tests.support import soak
from tests.support.postgres import TestServer, TestServers

pytestmark = [pytest.mark.plans, pytest.mark.heavy, pytest.mark.postgres(18)]

JOBS, GROUPS = 1_000_000 if soak.SOAK else 200_000, 10_000
DUE = JOBS // 100
FOUR_ONE = CountingScheme(4, 1)
NOW = 1_000_000  # a time, as a priority
# Index entries, and pages of table and indexes, that a job of a batch may cost, over those of the call itself. A page
# is counted each time it is visited; an index of a million entries is three pages high.
ENTRIES, PAGES = (100, 12), (400, 80)


async def load(connection: asyncpg.Connection, *, is_backlog_known: bool) -> None:
    """A fifth is finished; of the rest a fifth has high priority; one group has a tenth of all jobs.

    There is also a separate type, with a tenth as many jobs that finished long ago, and 10,000 in each lane whose
    priorities are future times. In the default queue more jobs wait for their times (due_at).

    Beside much history the server analyzes the table rarely: a newer backlog is not in its statistics
    (``is_backlog_known``), and if the server believes that no job waits, reading all waiting jobs seems cheap to it.

    The jobs name their places on the ring, as the rows of `joex.submit` do: the trigger costs a quarter of a row.
    """
    await connection.execute("SET synchronous_commit = off")
    await connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")  # its reads would count too
    if not is_backlog_known:
        await connection.execute("""
            INSERT INTO joex_private.job (grp, task, state, finished_at)
            SELECT 'group ' || nr % 100, 'a', 'success', now() - make_interval(days => 90, secs => -nr)
            FROM generate_series(1, 1000) nr
        """)
        await connection.execute("ANALYZE joex_private.job")
    await connection.execute(
        """
        INSERT INTO joex_private.job (grp, ring, task, priority, state, lane, finished_at)
        SELECT grp, joex_private.place((SELECT ring_key FROM joex_private.this_database), grp), 'a', priority, state,
               CASE WHEN state = 'waiting' THEN joex_private.lane(priority) END,
               CASE WHEN state = 'success' THEN now() - make_interval(days => 30, secs => nr) END
        FROM (SELECT nr, CASE WHEN nr > $1 * 9 / 10 THEN 'giant' ELSE 'group ' || nr % $2 END AS grp,
                     CASE WHEN nr / $2 % 10 < 2 THEN 'success' ELSE 'waiting' END::joex_private.job_state AS state,
                     CASE WHEN nr / $2 % 5 = 3 THEN 'high' ELSE 'low' END::joex_private.job_priority AS priority
              FROM generate_series(1, $1::integer) nr) jobs
        """,
        JOBS,
        GROUPS,
    )
    await connection.execute(
        r"""
        INSERT INTO joex_private.job (task, queue, grp, key, rank, priority, state, lane, finished_at)
        SELECT 'keyed', 'keyed', 'keyed', '\x02'::bytea || convert_to('job ' || nr, 'UTF8') || '\x00', rank,
               CASE lane WHEN 1 THEN 'high' ELSE 'low' END::joex_private.job_priority,
               CASE WHEN lane IS NULL THEN 'success' WHEN lane = 0 THEN 'stuck' ELSE 'waiting' END
                   ::joex_private.job_state,
               lane, CASE WHEN lane IS NULL THEN now() - make_interval(days => 60, secs => nr) END
        FROM (SELECT nr, '\x17'::bytea || substr(int4send($1 + nr), 2) AS rank,
                     CASE WHEN nr <= 30000 THEN nr % 3 END AS lane
              FROM generate_series(1, 30000 + $2::integer) nr) jobs
        """,
        NOW,
        JOBS // 10,
    )
    await connection.execute(
        """
        INSERT INTO joex_private.job (grp, task, due_at)
        SELECT 'group ' || nr, 'a', now() + make_interval(days => 1, secs => nr) FROM generate_series(1, $1::integer) nr
        """,
        DUE,
    )
    # If a vacuum, which may come at any time, found the log empty, the server would read all of it.
    await connection.execute("ALTER TABLE joex_private.job_log SET (autovacuum_enabled = off)")
    await connection.execute("""
        INSERT INTO joex_private.job_log (job_id, attempt, at, level, message)
        SELECT j.id, 1, now(), 'info', 'line ' || nr
        FROM (SELECT id FROM joex_private.job WHERE finished_at IS NOT NULL LIMIT 10000) j, generate_series(1, 10) nr
    """)
    await connection.execute("VACUUM ANALYZE joex_private.job" if is_backlog_known else "VACUUM joex_private.job")
    await connection.execute("VACUUM ANALYZE joex_private.job_log")


def database_with(
    server: TestServer, fill: Callable[[asyncpg.Connection], Awaitable[None]], empty: str = "SELECT"
) -> Iterator[str]:
    """The URL of a database with jobs."""

    async def make() -> str:
        name = await server.create_database()
        connection = await connect(server.url(name))
        try:
            await fill(connection)
        finally:
            await connection.close()
        return name

    async def drop(name: str) -> None:
        async with server.administrator(name) as administrator:
            await administrator.execute(empty)
        await server.drop_database(name)

    with ThreadPoolExecutor(1) as thread:  # a thread has no event loop of a test
        name = thread.submit(asyncio.run, make()).result()
        yield server.url(name)
        thread.submit(asyncio.run, drop(name)).result()


SOAK = pytest.mark.soak  # `make test` loads two databases: this one with statistics, the one below without
BACKLOGS = [True, pytest.param(False, marks=SOAK)]


@pytest.fixture(scope="module", params=BACKLOGS, ids=["known backlog", "unknown backlog"])
def large_database_url(request: pytest.FixtureRequest, postgres_servers: TestServers) -> Iterator[str]:
    """A database with many jobs."""
    yield from database_with(postgres_servers[18], partial(load, is_backlog_known=request.param))


@asynccontextmanager
async def undone(url: str) -> AsyncIterator[Bench]:
    """A database in which the changes of a test are rolled back."""
    connection = await connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield Bench(connection)
    await transaction.rollback()
    # Index entries of the versions that were rolled back would count in a later test that meets the same jobs.
    await connection.execute("VACUUM (INDEX_CLEANUP ON) joex_private.job")
    await connection.close()


@pytest.fixture
async def bench(large_database_url: str) -> AsyncIterator[Bench]:
    """The large database."""
    async with undone(large_database_url) as bench:
        yield bench


@pytest.fixture
async def executor(bench: Bench) -> int:
    """An executor of the default queue."""
    return await bench.executor("me")


@dataclass(frozen=True)
class Reading:
    """The reads of the table of jobs."""

    scans: int
    entries: int
    pages: int


async def read_by(bench: Bench, call: Awaitable[Any]) -> tuple[Any, Reading]:
    """The answer of a call, and its reads."""

    async def so_far() -> Any:
        # The counts of the running transaction come on top of those that were flushed before it.
        return await bench.connection.fetchrow("""
            SELECT pg_stat_get_xact_numscans('joex_private.job'::regclass) AS scans,
                   (SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index
                    WHERE indrelid = 'joex_private.job'::regclass)::bigint AS entries,
                   (SELECT sum(pg_stat_get_xact_blocks_fetched(r)) FROM (
                        SELECT indexrelid AS r FROM pg_index WHERE indrelid = 'joex_private.job'::regclass
                        UNION ALL SELECT 'joex_private.job'::regclass) x)::bigint AS pages
        """)

    before = await so_far()
    answer = await call
    after = await so_far()
    return answer, Reading(*(after[name] - before[name] for name in ("scans", "entries", "pages")))


def assert_bounded(reading: Reading, batch: int) -> None:
    """No scan of the table, and index entries and pages in proportion to the batch."""
    assert reading.scans == 0, reading
    assert reading.entries <= ENTRIES[0] + ENTRIES[1] * batch, reading
    assert reading.pages <= PAGES[0] + PAGES[1] * batch, reading


async def some(bench: Bench, number: int) -> list[Any]:
    """The ids of jobs that wait, of different groups."""
    rows = await bench.connection.fetch(
        "SELECT id FROM joex_private.job WHERE queue = 'default' AND lane IS NOT NULL AND grp <> 'giant' LIMIT $1",
        number,
    )
    return [row["id"] for row in rows]


@pytest.mark.parametrize("free", [1, 20, 500])
async def test_a_take_costs_as_much_as_it_takes(bench, executor, free):
    taken, reading = await read_by(bench, bench.take(executor, free))
    assert len(taken) == free
    assert_bounded(reading, free)


async def test_a_take_costs_the_same_again_and_again(bench, executor):
    """The take skips groups that run a job until all run as many; it does not read finished jobs again."""
    for _ in range(20):
        taken, reading = await read_by(bench, bench.take(executor, 20))
        assert len({job.group for job in taken}) == 20
        assert_bounded(reading, 20)
        await runs.finish_many(bench.connection, [EndedRun(job.id, job.lock_id, "success") for job in taken])


async def test_a_take_passes_over_the_groups_that_run_something_and_reads_nothing_else_of_them(bench, executor):
    await bench.take(executor, 500)
    await bench.connection.execute("SELECT setval(cursor, -9223372036854775808) FROM joex_private.queue")
    taken, reading = await read_by(bench, bench.take(executor, 20))
    assert len(taken) == 20
    assert_bounded(reading, 500)


async def test_a_take_from_a_giant_group_costs_as_much_as_it_takes(bench, executor):
    await bench.connection.execute("""
        INSERT INTO joex_private.group_setting (queue, grp, ring, paused)
        SELECT 'default', 'group ' || nr, joex_private.ring('group ' || nr), nr % 10 > 0
        FROM generate_series(0, 19) nr""")
    await stats.set_group(bench.connection, "giant", "default", weight=100)
    place = await bench.connection.fetchval("SELECT joex_private.ring('giant')")
    await bench.connection.execute("SELECT setval(cursor, $1::bigint * 256 + 1) FROM joex_private.queue", place)
    taken, reading = await read_by(bench, bench.take(executor, 50))
    assert {job.group for job in taken} == {"giant"}
    assert {job.priority for job in taken} == {"high", "low"}
    assert_bounded(reading, 150)  # as many of each lane are counted


async def test_a_take_that_finds_nothing_costs_next_to_nothing(bench, executor):
    await bench.register("other", queues=["empty"])
    taken, reading = await read_by(bench, runs.take(bench.connection, executor, ["empty"], 20, FOUR_ONE))
    assert taken == []
    assert_bounded(reading, 0)


async def test_promoting_due_jobs_costs_as_much_as_there_are(bench):
    await bench.connection.execute(
        "UPDATE joex_private.job SET lane = NULL, due_at = now() - interval '1 second' WHERE id = ANY ($1)",
        await some(bench, 300),
    )
    _, reading = await read_by(bench, bench.connection.execute("SELECT joex_private.promote('default')"))
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.job WHERE due_at < now()") == 0
    assert_bounded(reading, 300)


async def test_starting_noting_and_finishing_runs_cost_as_much_as_there_are(bench, executor):
    taken = await bench.take(executor, 200)
    _, reading = await read_by(bench, bench.start(*taken))
    assert_bounded(reading, 200)
    lines = [LogLine(job.id, job.lock_id, 1, 0.0, "info", "x") for job in taken]
    progress = [Progress(job.id, job.lock_id, 5, None) for job in taken]
    _, reading = await read_by(bench, runs.note_many(bench.connection, lines, progress))
    assert_bounded(reading, 200)
    ended = [EndedRun(job.id, job.lock_id, "success") for job in taken]
    for part, skip_locked in ((ended[:100], False), (ended[100:], True)):
        answers, reading = await read_by(bench, runs.finish_many(bench.connection, part, skip_locked=skip_locked))
        assert answers == []
        assert_bounded(reading, 100)


async def test_a_finish_in_the_callers_transaction_costs_what_one_job_costs(bench, executor):
    job = await bench.take_one(executor)
    answer, reading = await read_by(bench, runs.finish(bench.connection, job.id, job.lock_id, None, None))
    assert answer == "ok"
    assert_bounded(reading, 1)


async def test_a_check_of_runs_costs_as_much_as_there_are(bench, executor):
    taken = await bench.take(executor, 200)
    held = [(job.id, job.lock_id) for job in taken]
    found, reading = await read_by(bench, executors.check_runs(bench.connection, executor, held))
    assert found.lost == []
    assert_bounded(reading, 200)


async def test_a_heartbeat_reads_no_jobs(bench, executor):
    await bench.take(executor, 200)
    beat, reading = await read_by(bench, executors.heartbeat(bench.connection, executor))
    assert beat is not None
    assert_bounded(reading, 0)


async def test_a_look_before_sleep_costs_next_to_nothing(bench):
    _, reading = await read_by(bench, executors.sleep_state(bench.connection, 1, ["default", "empty"]))
    assert_bounded(reading, 0)


async def test_ending_an_executor_costs_as_much_as_is_held(bench, executor):
    await bench.take(executor, 100)
    other = await bench.executor("other")
    await bench.take(other, 100)
    given_back, reading = await read_by(bench, executors.leave(bench.connection, executor))
    assert given_back == 100
    assert_bounded(reading, 200)


async def test_a_rescue_that_finds_nobody_dead_reads_no_jobs(bench, executor):
    await bench.take(executor, 100)
    found, reading = await read_by(bench, bench.rescue())
    assert found == []
    assert_bounded(reading, 0)


async def test_submissions_cost_what_they_are(bench):
    _, reading = await read_by(bench, bench.submit("a new group", tracker="one"))
    assert_bounded(reading, 1)
    new = [NewJob("a", group=f"group {nr}") for nr in range(200)]
    _, reading = await read_by(bench, jobs.submit_many(bench.connection, new))
    assert_bounded(reading, 200)


async def test_steering_a_job_costs_what_one_job_costs(bench):
    [job_id] = await some(bench, 1)
    for call in (
        lambda: jobs.set_priority(bench.connection, job_id, "high"),
        lambda: jobs.set_args(bench.connection, job_id, {"x": 1}),
        lambda: jobs.cancel(bench.connection, job_id),
        lambda: jobs.retry(bench.connection, job_id),
        lambda: jobs.get_job(bench.connection, job_id),
        lambda: job_logs.job_log(bench.connection, job_id),
    ):
        answer, reading = await read_by(bench, call())
        assert answer is not None
        assert answer is not False
        assert_bounded(reading, 1)


async def test_steering_a_job_that_was_planned_beside_few_jobs_reads_few_of_many(connection, another_connection):
    """They are of a transaction that stays open: nothing tells the server to plan anew."""
    few, other = Bench(connection), await another_connection()
    for nr in range(20):
        await few.submit(tracker=f"{nr}")
    await connection.execute("ANALYZE joex_private.job")

    async def steer(job_id: UUID) -> None:
        assert await jobs.set_priority(connection, job_id, "high")
        assert await jobs.set_args(connection, job_id, {"x": 1})
        assert await jobs.cancel(connection, job_id) == "cancelled"
        assert await jobs.retry(connection, job_id)
        assert await connection.fetchval("SELECT joex.remove($1)", job_id) == "ok"

    for nr in range(8):
        await steer(await few.submit(tracker=f"before {nr}"))
    async with other.transaction():
        await other.execute("SELECT joex.submit_many(array_fill('a'::text, ARRAY[5000]))")
        job_id, reading = await read_by(few, few.submit(tracker="one"))
        assert_bounded(reading, 1)
        _, reading = await read_by(few, steer(job_id))
        assert_bounded(reading, 5)


async def test_deleting_old_jobs_costs_as_much_as_are_deleted(bench):
    week = timedelta(days=7)
    (deleted, _), reading = await read_by(bench, jobs.delete_finished(bench.connection, ["success"], week, 200))
    assert deleted == 200
    assert_bounded(reading, 200)


async def test_a_retry_of_some_failed_jobs_costs_as_much_as_are_retried(bench):
    await bench.connection.execute("""
        INSERT INTO joex_private.job (task, state, finished_at, key)
        SELECT 'a', 'failed', '2000-01-01'::timestamptz + make_interval(secs => nr),
               CASE WHEN nr % 2 = 0 THEN convert_to(nr::text, 'UTF8') END
        FROM generate_series(1, 20000) nr
    """)
    retried, reading = await read_by(bench, jobs.retry_failed(bench.connection, None, None, None, 200))
    assert retried == 200
    assert_bounded(reading, 200)


async def test_deleting_old_jobs_walks_over_those_that_are_kept_once(bench):
    """And not again for each batch: failed jobs are kept for longer, so they come before the others in the index."""
    kept = 20_000
    await bench.connection.execute(
        """
        INSERT INTO joex_private.job (task, state, finished_at)
        SELECT 'a', 'failed', '2000-01-01'::timestamptz + make_interval(secs => nr)
        FROM generate_series(1, $1::integer) nr
        """,
        kept,
    )
    since, entries = None, 0
    for _ in range(20):
        (deleted, since), reading = await read_by(
            bench, jobs.delete_finished(bench.connection, ["success"], timedelta(days=7), 200, since=since)
        )
        assert (deleted, reading.scans) == (200, 0)
        entries += reading.entries
    assert entries <= kept + ENTRIES[0] + ENTRIES[1] * 20 * 200


@pytest.mark.parametrize("is_analyzed", [False, True], ids=["no statistics", "statistics of an empty table"])
async def test_forgetting_turns_and_lines_costs_as_much_as_is_looked_at(bench, executor, is_analyzed):
    if is_analyzed:  # as autovacuum does at any time
        await bench.connection.execute("ANALYZE joex_private.priority_turns")
    await bench.take(executor, 200)  # of groups in which both priorities wait
    await bench.connection.execute("""
        INSERT INTO joex_private.priority_turns (queue, ring, position)
        SELECT 'default', joex_private.ring('gone ' || nr), 1 FROM generate_series(1, 100) nr
    """)
    _, reading = await read_by(bench, runs.forget_turns(bench.connection))
    assert_bounded(reading, 300)
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.priority_turns") == 200
    last, reading = await read_by(bench, job_logs.forget_lines(bench.connection, UUID(int=0), 200))
    assert last is not None
    assert_bounded(reading, 200)


async def test_noting_turns_costs_as_much_as_there_are_groups_though_statistics_are_of_an_empty_table(bench):
    groups, entries = 50, "SELECT pg_stat_get_xact_tuples_returned('joex_private.priority_turns_pkey'::regclass)"
    fill = (
        "INSERT INTO joex_private.priority_turns (queue, ring, position) SELECT 'default', nr, 1 "
        "FROM generate_series(1, 20000) nr"
    )
    for statement in (fill, "DELETE FROM joex_private.priority_turns", "ANALYZE joex_private.priority_turns", fill):
        await bench.connection.execute(statement)
    before = await bench.connection.fetchval(entries)
    await bench.connection.execute(
        "SELECT joex_private.count_turns('default', array_agg(nr), array_agg(2)) "
        "FROM generate_series(1, $1::bigint) nr",
        groups,
    )
    assert await bench.connection.fetchval(entries) - before <= 4 * groups
    assert await bench.connection.fetchval("SELECT count(*) FROM joex_private.priority_turns") == 20_000


# (If the backlog is unknown, the server makes one plan for all pages, and each reads those before it again.)
@pytest.mark.parametrize("large_database_url", [True], ids=["known backlog"], indirect=True)
async def test_any_page_of_the_list_of_all_jobs_costs_as_much_as_it_shows(bench, executor):
    await bench.take(executor, 50)
    cursor, seen = None, 0
    for _ in range(30):
        page, reading = await read_by(bench, list_jobs(bench.connection, Filter(), cursor, 20))
        assert_bounded(reading, 50)
        seen += len(page.jobs)
        cursor = page.next
    assert seen == 600


async def test_a_page_of_a_queue_of_finished_jobs_or_of_a_late_cursor_costs_as_much_as_it_shows(bench):
    finished = await list_jobs(bench.connection, Filter(states=["success"]), None, 20)
    for wanted, cursor in (
        (Filter(queue="default"), None),
        (Filter(states=["success"]), finished.next),
        (Filter(queue="default", states=["waiting"]), None),
    ):
        await list_jobs(bench.connection, wanted, cursor, 20)  # dead entries of other tests' undone takes are read once
        for most_bytes in (NOTHING, 10**6, UNLIMITED):
            page, reading = await read_by(bench, list_jobs(bench.connection, wanted, cursor, 20, most_bytes))
            assert len(page.jobs) == 20
            assert_bounded(reading, 20)


async def test_the_first_submitted_of_the_jobs_that_wait_cost_as_much_as_there_are_groups_and_queues(bench):
    shown = 10
    # (Of one group the jobs that wait for their time have no index of their own: those of the queue are read.)
    for queue, group, entries in (
        (None, None, 2 * GROUPS),
        ("default", None, 2 * GROUPS),
        ("default", "group 7", DUE),
    ):
        found, reading = await read_by(bench, listing.list_queued(bench.connection, queue, group, shown))
        assert len(found) == shown
        assert group is None or {job.group for job in found} == {group}
        assert found == sorted(found, key=lambda job: (job.submitted_at, job.seq))
        assert reading.scans == 0
        # An entry for each lane of a group, and the entries of the shown jobs, of as many groups at worst.
        assert reading.entries <= 2 * (entries + shown * shown)
        assert reading.pages <= 8 * (entries + shown * shown)


async def test_the_executors_of_a_pool_cost_nothing_that_is_held_in_other_queues(bench, executor):
    await bench.take(executor, 100)
    await bench.executor("p/a-0", queues=["mail"])
    [[known]], reading = await read_by(bench, pools.replicas(bench.connection, ["p/a-"]))
    assert (known.app_id, known.held) == ("p/a-0", 0)
    assert (reading.scans, reading.entries) == (0, 0)


async def test_the_list_of_executors_costs_as_much_as_is_held(bench, executor):
    await bench.take(executor, 100)
    shown, reading = await read_by(bench, executors.list_executors(bench.connection))
    assert [found.held for found in shown] == [100]
    assert_bounded(reading, 100)


async def test_counting_the_jobs_that_have_ended_costs_as_much_as_have_ended(bench):
    until = await bench.connection.fetchval(
        "SELECT max(finished_at) FROM joex_private.job WHERE finished_at IS NOT NULL"
    )
    counted, reading = await read_by(
        bench, stats.finished_between(bench.connection, until - timedelta(seconds=200), until)
    )
    assert counted == {"default": 200}
    assert_bounded(reading, 200)


async def test_how_slots_are_shared_costs_as_much_as_there_are_active_groups(bench, executor):
    await bench.take(executor, 100)
    [default, keyed], reading = await read_by(bench, stats.queue_shares(bench.connection))
    assert (default.queue, default.active_groups, default.largest_share) == ("default", GROUPS + 1, 0.01)
    assert (keyed.queue, keyed.active_groups, keyed.largest_share) == ("keyed", 1, None)
    assert reading.scans == 0
    # An entry for each group, the entries of held jobs, and dead entries that vacuum has not removed.
    assert reading.entries <= 2 * GROUPS
    assert reading.pages <= 8 * GROUPS


async def test_the_latest_lines_of_logs_cost_as_much_as_are_shown(bench, executor):
    taken = await bench.take(executor, 20)
    lines = [LogLine(job.id, job.lock_id, 1, 0.0, "info", "x") for job in taken for _ in range(100)]
    await runs.note_many(bench.connection, lines, [])
    logs, reading = await read_by(bench, job_logs.latest_log(bench.connection, [job.id for job in taken], 5))
    assert {job_id: len(log) for job_id, log in logs.items()} == {job.id: 5 for job in taken}
    assert_bounded(reading, 20)


# Keyed jobs.


async def accepted(bench: Bench, number: int, queue: str = "keyed") -> list[keyed_store.KeyedRow]:
    """Jobs that a worker has accepted."""
    return await worker_runs.accept(bench.connection, queue, number, "worker", None)


@pytest.mark.parametrize("is_any_due", [False, True], ids=["nothing is due", "one is due"])
async def test_an_accept_up_to_a_priority_passes_over_nothing_that_is_above_it(bench, is_any_due):
    if is_any_due:
        await bench.connection.execute(
            "SELECT joex_client.add('keyed', '\\x01', rank => $1)", tuples.pack("priority", NOW)
        )
    limit = tuples.pack("priority", NOW)
    taken, reading = await read_by(bench, worker_runs.accept(bench.connection, "keyed", 1, "worker", limit))
    assert [job.rank for job in taken] == [limit] * is_any_due
    assert_bounded(reading, 1)


async def test_an_accept_costs_as_much_as_it_takes(bench):
    taken, reading = await read_by(bench, accepted(bench, 20))
    assert len(taken) == 20
    assert_bounded(reading, 20)


async def test_an_accept_reads_nothing_of_runs_that_are_overdue_in_other_queues(bench):
    await accepted(bench, 1000)
    await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now() WHERE overdue_at IS NOT NULL")
    taken, reading = await read_by(bench, accepted(bench, 1, "default"))
    assert len(taken) == 1
    assert_bounded(reading, 1)


@pytest.mark.parametrize("queues", [None, ["keyed"]], ids=["all", "of a queue"])
async def test_putting_back_what_is_overdue_costs_as_much_as_there_is(bench, queues, large_database_url):
    vacuum = await connect(large_database_url)  # the ids of these jobs have dead entries of other tests
    await vacuum.execute("VACUUM joex_private.job")
    await vacuum.close()
    taken = await accepted(bench, 1000)
    assert await timeouts.recover_overdue(bench.connection) == []  # dead entries of other tests are read once
    for batch in ([], taken[::4]):
        ids = [job.id for job in batch]
        await bench.connection.execute("UPDATE joex_private.job SET overdue_at = now() WHERE id = ANY ($1)", ids)
        found, reading = await read_by(
            bench, bench.connection.fetch("SELECT * FROM joex_private.recover_overdue($1)", queues)
        )
        assert [tuple(row) for row in found] == ([("worker", 250)] if batch else [])
        assert_bounded(reading, len(batch))


async def test_each_word_of_a_worker_costs_what_one_job_costs(bench):
    [job, _] = await accepted(bench, 2)
    assert job.key is not None
    assert job.lock_id is not None
    report = worker_runs.Report(data="{}", opts="{}", rank=b"\x00", progress=50)
    for call in (
        keyed_store.find(bench.connection, "keyed", job.key),
        keyed_store.get(bench.connection, job.id),
        worker_runs.update(bench.connection, job.id, job.lock_id, report),
        keyed_store.resubmit(bench.connection, job.id),
        worker_runs.finish(bench.connection, job.id, job.lock_id, "success"),
        keyed_store.remove(bench.connection, job.id),
    ):
        answer, reading = await read_by(bench, call)
        assert answer not in (None, "worker_conflict", "not_found")
        assert_bounded(reading, 1)


async def test_a_job_that_is_removed_while_it_runs_costs_what_one_job_costs(bench):
    [job] = await accepted(bench, 1)
    assert job.lock_id is not None
    _, reading = await read_by(bench, keyed_store.remove(bench.connection, job.id))
    assert_bounded(reading, 1)
    _, reading = await read_by(bench, worker_runs.finish(bench.connection, job.id, job.lock_id, "cancelled"))
    assert await keyed_store.get(bench.connection, job.id) is None
    assert_bounded(reading, 1)


async def test_any_page_of_the_jobs_of_a_type_costs_as_much_as_it_shows(bench):
    page: list[keyed_store.KeyedRow] = []
    for _ in range(5):
        after = page[-1].key if page else None
        (page, _), reading = await read_by(bench, keyed_store.list_keyed(bench.connection, "keyed", after, None, 50))
        assert len(page) == 50
        assert_bounded(reading, 50)


async def test_the_active_ones_of_a_type_cost_as_much_as_run(bench, executor):
    await bench.take(executor, 100)
    taken = await accepted(bench, 50)
    found, reading = await read_by(bench, keyed_store.active(bench.connection, "keyed"))
    assert set(found) == {job.key for job in taken}
    assert_bounded(reading, 150)


async def test_a_look_before_a_worker_waits_costs_next_to_nothing(bench):
    await accepted(bench, 100)
    _, reading = await read_by(bench, worker_runs.accept_state(bench.connection, "default"))
    assert_bounded(reading, 0)


# Jobs that have finished while vacuum could not remove their dead entries.

PINNED, PINNED_GROUPS = 100_000, 50


async def load_pinned(connection: asyncpg.Connection, *, is_backlog_known: bool) -> None:
    """Jobs that have all finished while an old transaction was open; then 5,000 more in half of the groups."""
    await connection.execute("SET synchronous_commit = off")
    await connection.execute("ALTER TABLE joex_private.job SET (autovacuum_enabled = off)")
    await connection.execute("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'pin'")
    submit = """
        INSERT INTO joex_private.job (grp, task, lane)
        SELECT 'group ' || nr % $2::integer, 'a', 2 FROM generate_series(1, $1::integer) nr
    """
    await connection.execute(submit, PINNED, PINNED_GROUPS)
    await connection.execute(
        "UPDATE joex_private.job SET lane = NULL, state = 'running', executor_id = 0, lock_id = id, held_since = seq"
    )
    await connection.execute(
        "UPDATE joex_private.job SET executor_id = NULL, state = 'success', finished_at = clock_timestamp()"
    )
    if not is_backlog_known:
        await connection.execute("ANALYZE joex_private.job")
    await connection.execute(submit, 5000, PINNED_GROUPS // 2)
    if is_backlog_known:
        await connection.execute("ANALYZE joex_private.job")
    await connection.execute("SELECT joex_private.set_floors(true)")
    await connection.execute(
        """
        SELECT joex_private.raise_floors(d.upto, d.epoch, d.writers, array_fill('default'::text, ARRAY[$1::integer]),
                                         (SELECT array_agg(joex_private.ring('group ' || nr % $1))
                                          FROM generate_series(1, $1) nr), 60)
        FROM joex_private.draw_floor() d
        """,
        PINNED_GROUPS,
    )


PINS = [pytest.param((16, True), marks=SOAK), pytest.param((18, True), marks=SOAK), (18, False)]


@pytest.fixture(scope="module", params=PINS, ids=["pg16", "pg18", "unknown backlog"])
def pinned_database_url(request: pytest.FixtureRequest, postgres_servers: TestServers) -> Iterator[str]:
    """A database in which vacuum can clear nothing."""
    version, is_known = request.param
    fill = partial(load_pinned, is_backlog_known=is_known)
    yield from database_with(postgres_servers[version], fill, "ROLLBACK PREPARED 'pin'")


@pytest.fixture
async def pinned(pinned_database_url: str) -> AsyncIterator[Bench]:
    """A database in which vacuum can remove nothing, with an executor of the id 1."""
    async with undone(pinned_database_url) as pinned:
        yield pinned


@pytest.mark.parametrize("free", [1, 20, 500])
async def test_a_take_walks_over_nothing_that_has_finished_though_vacuum_is_pinned(pinned, free):
    executor = await pinned.executor()
    for _ in range(3):
        taken, reading = await read_by(pinned, pinned.take(executor, free))
        assert len(taken) == free
        assert_bounded(reading, free + PINNED_GROUPS)  # half of the groups have no job, and are skipped
        await runs.finish_many(pinned.connection, [EndedRun(job.id, job.lock_id, "success") for job in taken])


async def test_ending_an_executor_walks_over_nothing_that_has_finished_though_vacuum_is_pinned(pinned):
    executor = await pinned.executor()
    await pinned.take(executor, 100)
    given_back, reading = await read_by(pinned, executors.leave(pinned.connection, executor))
    assert given_back == 100
    assert_bounded(reading, 200 + PINNED_GROUPS)


async def test_an_accept_walks_over_nothing_that_has_finished_though_vacuum_is_pinned(pinned):
    await pinned.executor()
    for _ in range(3):
        taken, reading = await read_by(pinned, accepted(pinned, 20, "default"))
        assert len(taken) == 20
        assert_bounded(reading, 100 + PINNED_GROUPS)
    _, reading = await read_by(pinned, worker_runs.accept_state(pinned.connection, "default"))
    assert_bounded(reading, 100 + PINNED_GROUPS)


async def test_statistics_walk_over_nothing_that_has_finished_though_vacuum_is_pinned(pinned):
    await pinned.take(await pinned.executor(), 100)
    shown, reading = await read_by(pinned, executors.list_executors(pinned.connection))
    assert [found.held for found in shown] == [100]
    assert_bounded(reading, 100 + PINNED_GROUPS)
    _, reading = await read_by(pinned, pinned.connection.fetch("SELECT * FROM joex.shares()"))
    assert_bounded(reading, 5000)
    groups, reading = await read_by(pinned, stats.group_stats(pinned.connection))
    assert sum(group.waiting for group in groups) == 4900
    assert_bounded(reading, 5000)


async def test_a_look_for_work_walks_over_nothing_that_has_finished_though_vacuum_is_pinned(pinned):
    found, reading = await read_by(pinned, executors.has_work(pinned.connection, ["default"]))
    assert found
    assert_bounded(reading, PINNED_GROUPS)


def plain(sql: str) -> bool:
    """Whether a statement reads jobs itself; the others call functions, which are measured above, or read no jobs."""
    return bool(re.search(r"\bFROM joex(_private)?\.(job|jobs|job_log)\b", sql))


async def test_no_plain_statement_is_planned_with_a_scan_of_all_jobs_or_a_sort_of_them(bench):
    assert listing in vars(joex.store).values()  # imported, so that its statements are registered
    bounds = Bounds(queues=("default", "other"), groups=("g1", "g2"))
    # (These are registered when they are needed first.)
    for wanted in (Search(), Search(queue="default", group="g1"), Search(bounds=bounds)):
        page = await search_jobs(bench.connection, wanted, None, 1, most_read=10)
        await search_jobs(bench.connection, wanted, page.next, 1, most_read=10)
        await count_jobs(bench.connection, wanted, most_read=10)
    found = [sql for sql in STATEMENTS if plain(sql)]
    assert len(found) >= 6
    await bench.connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    for nr, sql in enumerate(found):
        await bench.connection.execute(f"PREPARE plain_{nr} AS {sql}")
        arguments = ", ".join(["NULL"] * max(int(number) for number in re.findall(r"\$(\d+)", sql)))
        assert not re.search(r"LIKE \$", sql), f"its time is the product of the lengths of text and pattern: {sql}"
        rows = await bench.connection.fetch(f"EXPLAIN EXECUTE plain_{nr} ({arguments})")
        plan = "\n".join(row[0] for row in rows)
        # (The one row of this database, a sequence, and the roles with scopes.)
        assert not re.search("Seq Scan on (?!this_database|roles_bound|role_scope)", plan), f"{sql}\n{plan}"
        if "WHERE executor_id IS NOT NULL" not in sql:  # no more jobs are held than there are slots
            # (The rows of a page have numbers, and are sorted by them: store/bounded.py.)
            sort = r"^ *(-> *)?Sort +\(.*\n *Sort Key: (?!\w+\.nr$)"
            assert not re.search(sort, plan, re.MULTILINE), f"{sql}\n{plan}"
