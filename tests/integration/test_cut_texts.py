"""Texts for people are cut where they are written: one line of 9 MB harms no page, terminal or list that shows it."""

from typing import Any

import pytest

from joex.core.text import cut
from joex.store import job_logs, runs, worker_runs
from joex.store.runs import LogLine, Progress
from tests.support.keyed import T

HUGE = "é" * 9_000_000
CUT = "é" * 99_960 + "… (cut, 9,000,000 characters)"


@pytest.mark.parametrize("length", [0, 1, 50_001, 100_000, 100_001, 123_456])
async def test_sql_and_python_cut_alike(connection, length):
    assert await connection.fetchval("SELECT joex_private.cut($1)", "é" * length) == cut("é" * length)


async def test_the_planner_inlines_the_function(connection):
    plan = await connection.fetch("EXPLAIN VERBOSE SELECT joex_private.cut(error) FROM joex_private.job")
    assert "length(" in str(plan)
    assert "cut(" not in str(plan)
    assert await connection.fetchval("SELECT joex_private.cut(NULL)") is None


async def test_what_any_program_writes_by_sql_is_cut(bench):
    executor = await bench.executor()
    job_id = await bench.submit()
    job = await bench.take_one(executor)
    line = LogLine(job.id, job.lock_id, 1, 0.0, "info", HUGE)
    await runs.note_many(bench.connection, [line], [Progress(job.id, job.lock_id, 50, HUGE)])
    assert (await bench.job(job_id)).progress_message == CUT
    update = "SELECT joex.update($1, $2, message => $3)"
    assert await bench.connection.fetchval(update, job.id, job.lock_id, f"{HUGE}!") == "ok"
    assert (await bench.job(job_id)).progress_message == CUT.replace("9,000,000", "9,000,001")
    finish = "SELECT joex.finish($1, $2, message => $3, state => 'failed', error => $3, exhausted => true)"
    assert await bench.connection.fetchval(finish, job.id, job.lock_id, HUGE) == "ok"
    ended = await bench.job(job_id)
    assert (ended.state, ended.message, ended.error) == ("failed", CUT, CUT)
    said = [line.message for line in await job_logs.job_log(bench.connection, job_id)]
    assert said == [CUT, f"failed: {CUT}; no retries left"]


async def test_what_a_worker_says_is_cut_before_it_is_sent(keyed, client, monkeypatch):
    sent: list[str | None] = []
    update, finish = worker_runs.update, worker_runs.finish

    async def seen_update(connection: Any, job_id: Any, lock_id: Any, report: worker_runs.Report) -> Any:
        sent.append(report.message)
        return await update(connection, job_id, lock_id, report)

    async def seen_finish(*given: Any, message: str | None, error: str | None, **more: Any) -> Any:
        sent.extend((message, error))
        return await finish(*given, message=message, error=error, **more)

    monkeypatch.setattr(worker_runs, "update", seen_update)
    monkeypatch.setattr(worker_runs, "finish", seen_finish)
    await keyed.add(T, 1)
    job = await keyed.accept(T)
    assert await keyed.update(T, 1, {}, job.lock_id, message=HUGE) == "ok"
    assert await keyed.finish(T, 1, {}, job.lock_id, message=HUGE, error=HUGE, retry=False) == "ok"
    assert sent == [CUT, CUT, CUT]
    stored = await client.get(job.job)
    assert (stored.progress_message, stored.message, stored.error) == (CUT, CUT, CUT)
