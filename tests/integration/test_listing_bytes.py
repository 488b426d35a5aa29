"""Lists of jobs with large payloads: a caller that may not see them reads none, and a page has a limit in bytes."""

import os
from datetime import UTC, datetime

import pytest

from joex.client.keyed_model import pack
from joex.core.periodic import NewPeriodicTask
from joex.store import job_logs, jobs, keyed, periodic
from joex.store.bounded import NOTHING
from joex.store.json_text import json_text
from joex.store.listing import Filter, list_held, list_jobs, list_queued
from joex.store.runs import LogLine, note_many

LIMIT = 1_000_000
LATER = datetime(2100, 1, 1, tzinfo=UTC)
SENT = """
    SELECT coalesce(sum(pg_stat_get_xact_blocks_fetched(r)), 0) FROM (
        SELECT reltoastrelid AS r FROM pg_class WHERE oid IN ('joex_private.job'::regclass,
                                                              'joex_private.periodic_task'::regclass)
        UNION ALL SELECT i.indexrelid FROM pg_index i JOIN pg_class c ON c.reltoastrelid = i.indrelid
                  WHERE c.oid IN ('joex_private.job'::regclass, 'joex_private.periodic_task'::regclass)) x
"""


def large(size):
    """Arguments that PostgreSQL can't compress."""
    return {"x": os.urandom(size // 2).hex()}


@pytest.fixture
async def me(bench):
    """An executor."""
    return await bench.executor("me")


@pytest.fixture
async def many(bench, me):
    """Jobs in all parts of a list, with payloads of very different sizes."""
    held = [await bench.job_in(state, me, args=large(400_000)) for state in ("running", "scheduled")]
    finished = [await bench.job_in(state, me, args=large(size)) for state, size in
                (("success", 900_000), ("failed", 10), ("cancelled", 10), ("success", 400_000))]  # fmt: skip
    args = [large(size) for size in (700_000, 900_000, 5, 5, 400_000)] + [{"x": "y" * 900_000}] * 3
    waiting = [await bench.submit(f"g{nr % 3}", args=one) for nr, one in enumerate(args)]
    later = [await bench.submit(not_before=LATER, args=large(600_000)) for _ in range(2)]
    for nr in range(3):  # among the finished jobs that are listed by another index
        await keyed_job(bench, nr, 300_000)
        await bench.connection.execute("SELECT joex.cancel(id) FROM joex_private.job WHERE key IS NOT NULL")
    return [*held, *finished, *waiting, *later]


async def keyed_job(bench, nr, size):
    """Add a keyed job."""
    data = json_text("data", large(size))
    new = keyed.NewKeyedJob(
        "t", pack("id", nr), data, '{"free": 1}', pack("priority", nr), None, None, "", "", cancel=False, resubmit=False
    )
    assert await keyed.add(bench.connection, new) is not None


def size_of(job):
    return sum(len(json_text("", one)) for one in (job.args, job.result) if one is not None)


@pytest.mark.parametrize("most", [3, 100])
@pytest.mark.parametrize("wanted", [Filter(), Filter(states=["success", "cancelled", "waiting"])])
async def test_a_page_ends_where_its_payloads_reach_the_limit_and_no_job_is_lost_or_doubled(bench, many, most, wanted):
    whole = (await list_jobs(bench.connection, wanted)).jobs
    assert len(whole) > 10
    found, cursor, pages = [], None, 0
    while True:
        page = await list_jobs(bench.connection, wanted, cursor, most, LIMIT)
        assert 0 < len(page.jobs) <= most
        assert len(page.jobs) == 1 or sum(map(size_of, page.jobs)) <= LIMIT
        found += page.jobs
        pages += 1
        cursor = page.next
        if cursor is None:
            break
    assert found == whole
    assert pages < len(whole)


async def test_a_job_larger_than_the_limit_is_alone_on_its_page(bench):
    ids = [await bench.submit(args=large(size)) for size in (50_000, 900_000, 50_000)]
    cursor, seen = None, []
    for _ in ids:
        page = await list_jobs(bench.connection, Filter(), cursor, 10, 100_000)
        seen.append([job.id for job in page.jobs])
        cursor = page.next
    assert (seen, cursor) == ([[job_id] for job_id in ids], None)


async def test_what_does_not_fit_is_not_sent_however_well_it_is_compressed(bench, monkeypatch):
    for _ in range(20):
        await bench.submit(args={"x": "y" * 900_000})
    read = []
    monkeypatch.setattr(jobs, "read_json", lambda text: read.append(len(text)))
    async with bench.connection.transaction():
        assert len((await list_jobs(bench.connection, Filter(), None, 20, LIMIT)).jobs) == 1
        assert len(await list_queued(bench.connection, None, None, 20, most_bytes=LIMIT)) == 1
    assert len(read) == 2


async def test_without_payloads_none_is_read(bench, me, many):
    await periodic.put(bench.connection, NewPeriodicTask("x", "t", "yearly", args=large(500_000)), "me")
    async with bench.connection.transaction():
        before = await bench.connection.fetchval(SENT)
        page = await list_jobs(bench.connection, Filter(), None, 100, NOTHING)
        held = await list_held(bench.connection, None, None, 100, most_bytes=NOTHING)
        queued = await list_queued(bench.connection, None, None, 100, most_bytes=NOTHING)
        of_type, more = await keyed.list_keyed(bench.connection, "t", None, None, 100, most_bytes=NOTHING)
        tasks, _ = await periodic.page_of_tasks(bench.connection, most_bytes=NOTHING)
        one = await jobs.get_job(bench.connection, many[0], payloads=False)
        of_key = await keyed.get(bench.connection, of_type[0].id, payloads=False)
        assert await bench.connection.fetchval(SENT) == before
        full = await jobs.get_job(bench.connection, many[0])
        assert await bench.connection.fetchval(SENT) > before
    assert one is not None
    assert full is not None
    assert of_key is not None
    hidden = ("args", "progress_message", "message", "result", "error")
    for job in (*page.jobs, *held, *queued, one):
        assert [getattr(job, name) for name in hidden] == [None] * len(hidden)
    assert (len(page.jobs), len(held), len(queued), len(of_type), more) == (len(many) + 3, 2, 10, 3, False)
    assert [row.data for row in (*of_type, of_key)] == [None] * 4
    assert [row.opts for row in (*of_type, of_key)] == [{}] * 4
    assert [task.args for task in tasks] == [None] * len(tasks)
    assert full.args
    assert {name: getattr(full, name) for name in ("id", "state", "seq", "app_id")} == {
        name: getattr(one, name) for name in ("id", "state", "seq", "app_id")
    }


async def test_a_page_of_keyed_jobs_or_of_periodic_tasks_ends_at_the_limit_and_the_next_one_goes_on(bench):
    for nr, size in enumerate((600_000, 300_000, 300_000, 5, 900_000)):
        await keyed_job(bench, nr, size)
        await periodic.put(bench.connection, NewPeriodicTask(str(nr), "t", "yearly", args=large(size)), "me")
    pages, after, more = [], None, True
    while more:
        rows, more = await keyed.list_keyed(bench.connection, "t", after, None, 100, most_bytes=LIMIT)
        after = rows[-1].key
        pages.append(len(rows))
    assert pages == [2, 2, 1]
    pages, last, more = [], None, True
    while more:
        tasks, more = await periodic.page_of_tasks(bench.connection, owners=["me"], after=last, most_bytes=LIMIT)
        last = tasks[-1].key
        pages.append(len(tasks))
    assert pages == [2, 2, 1]


async def test_a_log_is_read_up_to_a_limit_in_bytes_and_on_from_there(bench, me):
    job_id = await bench.submit()
    taken = await bench.take_one(me)
    await note_many(bench.connection, [LogLine(job_id, taken.lock_id, 1, 0.0, "info", "y" * 1000)] * 25, [])
    whole = await job_logs.job_log(bench.connection, job_id)
    first = await job_logs.job_log(bench.connection, job_id, most_bytes=10_000)
    assert (len(whole), first) == (25, whole[:10])
    assert await job_logs.job_log(bench.connection, job_id, after=first[-1].seq, most_bytes=1) == whole[10:11]
    assert (await job_logs.latest_log(bench.connection, [job_id], 50, 10_000))[job_id] == whole[15:]
