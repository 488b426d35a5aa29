"""Lists of jobs, page by page: every job once, in a known order, at the same cost wherever a page begins."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest

from joex import InvalidJob, NewJob
from joex.core.access import EVERYTHING, Bounds
from joex.core.job import LONGEST_NAME
from joex.core.tuples import LONGEST
from joex.store import jobs, keyed, periodic, runs, stats
from joex.store.job_pages import LONGEST_CURSOR, check_cursor
from joex.store.listing import Filter, list_held, list_jobs, list_queued
from joex.store.search import Search, count_jobs, search_jobs
from tests.support.cases import case

pytestmark = pytest.mark.postgres(16, 18)

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


@pytest.fixture
def listed(bench):
    """The ids of all jobs of a filter, collected from pages of this size."""

    async def gather(size=100, **wanted):
        ids, cursor = [], None
        while True:
            page = await list_jobs(bench.connection, Filter(**wanted), cursor, size)
            assert len(page.jobs) <= size
            ids += [job.id for job in page.jobs]
            cursor = page.next
            if cursor is None:
                return ids

    return gather


async def test_held_jobs_come_first_then_runnable_ones_then_later_ones_then_the_latest_finished(bench, me, listed):
    held = [await bench.job_in(state, me) for state in ("running", "scheduled")]
    success, failed = [await bench.job_in(state, me) for state in ("success", "failed")]
    stuck = await bench.job_in("stuck", me)
    later = [await bench.submit(not_before=LATER + timedelta(days=days)) for days in (1, 0)]
    low, high = await bench.submit(), await bench.submit(priority="high")
    for size in (1, 2, 3, 100):
        with case(size):
            assert await listed(size) == [*held, high, low, stuck, *reversed(later), failed, success]


async def test_jobs_are_listed_by_what_is_asked(bench, me, listed):
    held = await bench.job_in("running", me, group="x")
    stuck = await bench.job_in("stuck", me)
    done = await bench.job_in("success", me, group="x")
    waiting = await bench.submit("x")
    mail = await bench.submit(task="b", queue="mail")
    assert await listed(group="x") == [held, waiting, done]
    assert await listed(queue="mail") == await listed(task="b") == [mail]
    assert await listed(states=["running", "stuck"]) == [held, stuck]
    assert await listed(states=["success"], group="x") == [done]
    assert await listed(states=["failed"]) == await listed(group="nobody") == await listed(states=[]) == []


async def test_pages_of_jobs_that_are_alike_in_all_but_their_number_miss_none_and_repeat_none(bench, me, listed):
    await jobs.submit_many(bench.connection, [NewJob("a", not_before=LATER) for _ in range(7)])
    await jobs.submit_many(bench.connection, [NewJob("a", group=f"g{nr % 3}") for nr in range(14)])
    taken = await bench.take(me, 7)
    await runs.finish_many(bench.connection, [runs.EndedRun(job.id, job.lock_id, "success") for job in taken])
    for size in (1, 3, 7):
        with case(size):
            seen = await listed(size)
            assert len(seen) == len(set(seen)) == 21


async def test_a_page_says_whether_there_is_another(bench):
    for _ in range(4):
        await bench.submit()
    first = await list_jobs(bench.connection, Filter(), None, 2)
    assert first.next is not None
    second = await list_jobs(bench.connection, Filter(), first.next, 2)
    assert second.next is None
    assert len({job.id for job in first.jobs + second.jobs}) == 4


def cursor_of(*parts):
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


@pytest.mark.postgres(18)
async def test_a_cursor_that_no_page_has_given_is_refused(bench):
    for cursor in (
        "",
        "x",
        "näh",
        "[]",
        cursor_of(),
        cursor_of("nowhere", 1),
        cursor_of("held"),
        cursor_of("held", "x"),
        cursor_of("held", 1, 2),
        cursor_of("held", None),
        cursor_of("finished", "soon", 1),
        cursor_of("held", {}),
    ):
        with case(cursor):
            with pytest.raises(InvalidJob, match=r"^cursor: expected the cursor of a previous page"):
                check_cursor(cursor)
            with pytest.raises(InvalidJob, match=r"^cursor: "):
                await list_jobs(bench.connection, Filter(), cursor)


async def test_a_cursor_is_no_longer_than_a_call_may_bring_it_back_whatever_names_jobs_have(bench):
    add = "SELECT joex_client.add('t', $1, rank => $2, queue => $3)"
    for number in range(2):
        await bench.connection.execute(add, bytes([number]), b"\xf0" * LONGEST, "\x01" * LONGEST_NAME)
    first = await list_jobs(bench.connection, Filter(), None, 1)
    assert first.next is not None
    assert len(first.next) <= LONGEST_CURSOR
    assert len((await list_jobs(bench.connection, Filter(), first.next, 1)).jobs) == 1


@pytest.mark.parametrize("cursor", [cursor_of("held", 10**30), cursor_of("runnable", "a\0b", 1, 1, 1)], ids=repr)
async def test_a_cursor_with_a_value_that_the_database_cannot_hold_is_refused(bench, cursor):
    with pytest.raises(InvalidJob):
        await list_jobs(bench.connection, Filter(), cursor)


async def test_a_list_is_planned_for_its_own_arguments_whatever_others_have_asked(connection):
    """The server would keep one plan for all, once those of a few calls have made it seem as cheap."""
    asked = Bounds(queues=("default", "other"), groups=("x", "y"))
    for _ in range(10):
        for bounds in (asked, EVERYTHING):
            await list_jobs(connection, Filter(bounds=bounds))
            await list_held(connection, None, None, 1, bounds)
            await list_queued(connection, None, None, 1, bounds)
            await search_jobs(connection, Search(bounds=bounds))
            await count_jobs(connection, Search(bounds=bounds), most_read=10)
            await stats.group_stats(connection, bounds=bounds)
            await stats.group_settings(connection, bounds=bounds)
            await stats.shared_queue_stats(connection, bounds)
            await stats.paused_queues(connection, bounds)
            await keyed.list_keyed(connection, "a", None, None, 1, bounds=bounds)
            await keyed.count(connection, "a", bounds=bounds)
            await keyed.active(connection, "a", bounds)
            await periodic.page_of_tasks(connection, bounds=bounds)
    kept = await connection.fetch("SELECT statement FROM pg_prepared_statements WHERE generic_plans > 0")
    assert [row[0] for row in kept if " IS NULL OR " in row[0]] == []
