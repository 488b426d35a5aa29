"""The programs for Joex in docs/how-to/coming-from.md do what the page says."""

import importlib
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from joex import NoResult, check_timer
from joex.config import load_settings
from joex.testing import drain
from tests.support.commands import running
from tests.support.pages import DOCS, Command, Foreign, Statements, files, steps

PAGE = DOCS / "how-to" / "coming-from.md"
FILES = files(PAGE)
[EXECUTOR] = [step.text.strip() for step in steps(PAGE) if isinstance(step, Command)]
[SQL] = [step.text for step in steps(PAGE) if isinstance(step, Statements)]
OTHERS = [step.text for step in steps(PAGE) if isinstance(step, Foreign) and step.language == "python"]
ORDERS = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, item text)"


@pytest.fixture
def folder(tmp_path):
    """A folder with the programs."""
    for name in ("shop.py", "habits.py"):
        (tmp_path / name).write_text(FILES[name])
    return tmp_path


@pytest.fixture
def shop(folder, monkeypatch):
    """The program."""
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("shop")
    del sys.modules["shop"]


@pytest.fixture
def habits(folder, monkeypatch):
    """The habits from Celery."""
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("habits")
    del sys.modules["habits"]


async def jobs(connection):
    return [tuple(row) for row in await connection.fetch("SELECT task, grp, args::text FROM joex_private.job")]


async def test_the_request_submits_in_its_transaction(shop, client, connection):
    await connection.execute(ORDERS)
    transaction = connection.transaction()
    await transaction.start()
    await shop.place_order(client, connection, "coffee")
    assert len(await jobs(connection)) == 1
    await transaction.rollback()
    assert await jobs(connection) == []

    await shop.place_order(client, connection, "tea")
    order = await connection.fetchval("SELECT id FROM orders")
    assert await jobs(connection) == [("orders.confirm", "acme", f'{{"order": {order}}}')]


async def test_another_driver_submits_the_same_in_sql(connection):
    await connection.execute(SQL)
    assert await jobs(connection) == [("orders.confirm", "acme", '{"order": 7}')]


async def test_one_comes_later_and_one_comes_first_and_its_end_is_waited_for(
    shop, client, connection, database_url, capsys
):
    async with running(EXECUTOR, Path(shop.__file__).parent, database_url, "registered"):
        await shop.confirm_more(client)
    assert "order 8 is confirmed" in capsys.readouterr().out
    later, first = [
        await client.get(row["id"]) for row in await connection.fetch("SELECT id FROM joex_private.job ORDER BY seq")
    ]
    assert (later.args, later.state, later.priority) == ({"order": 7}, "waiting", "low")
    assert later.due_at - datetime.now(UTC) > timedelta(minutes=5)
    assert (first.args, first.state, first.priority) == ({"order": 8}, "success", "high")


async def test_every_night_there_is_a_report(folder, client, database_url):
    async with running(EXECUTOR, folder, database_url, "registered"):
        [report] = await client.periodic.list("app:shop:app")
        normal = check_timer(report.timer, report.zone).normal
        assert (report.task, normal, report.zone) == ("orders.report", "*-*-* 03:00:00", "Europe/Zurich")
        _, job_id = await client.periodic.run_now(report.id)
        assert (await client.wait(job_id)).state == "success"


def test_a_failed_confirmation_is_tried_three_times_more(shop):
    assert (shop.confirm.retries, shop.confirm.retry_delay) == (3, timedelta(seconds=30))


@pytest.mark.parametrize("code", OTHERS, ids=["Celery", "Procrastinate", "PgQueuer"])
def test_the_programs_of_the_others_have_the_same_six_steps(code):
    assert sorted(re.findall(r"# ([1-6])\b", code)) == list("123456")


# ---- habits from Celery


async def test_jobs_are_submitted_for_later_with_an_end_and_to_other_queues(habits, client):
    last = await habits.submit(client, "ann@example.org")
    ran = await drain(habits.app, client)
    assert [(job.queue, job.state, job.result) for job in ran].count(("mail", "success", "ann@example.org")) == 2
    assert [(job.queue, job.priority) for job in ran if job.id == last] == [("bulk", "high")]
    assert len(ran) == 3, "two come later"
    assert len(await drain(habits.app, client, early=True)) == 2
    assert await habits.send.result(client, last, timeout="1m") == "ann@example.org"
    [job] = [job for job in ran if job.id == last]
    assert job.progress_message == f"attempt 1 of job {last}"
    assert "it took" in "".join(line.message for line in await client.log(last))


async def test_a_task_decides_about_its_end(habits, client):
    late = await habits.send.submit(client, to="a@b", expires=datetime.now(UTC) - timedelta(hours=1))
    wrong = await habits.send.submit(client, to="ann")
    busy = await habits.send.submit(client, to="ann@busy.example")
    failing = await habits.send.options(retries=0).submit(client, to="ann@busy.example")
    await drain(habits.app, client, raise_failures=False)
    states = [(await client.get(job)).state for job in (late, wrong, busy, failing)]
    assert states == ["cancelled", "failed", "stuck", "failed"]
    with pytest.raises(NoResult, match="no address: ann"):
        await habits.send.result(client, wrong)
    assert (await client.get(busy)).due_at - datetime.now(UTC) > timedelta(minutes=4)
    assert (habits.send.retries, habits.send.retry_delay, habits.send.timeout) == (
        3, timedelta(seconds=30), timedelta(minutes=1),
    )  # fmt: skip


async def test_a_group_has_a_limit_and_a_job_is_cancelled(habits, client):
    job = await habits.send.submit(client, to="ann@example.org")
    assert await habits.steer(client, job) == "cancelled"
    assert [(one.group, one.max_running) for one in await client.groups.settings()] == [("acme", 2)]


async def test_the_last_part_submits_what_comes_after_all_of_them(habits, client, connection):
    await connection.execute("CREATE TABLE reports (id integer GENERATED ALWAYS AS IDENTITY, parts_left integer)")
    parts = await habits.make_report(client, connection, 3)
    ran = await drain(habits.app, client)
    assert [(job.task, job.group) for job in ran] == [("report.part", "acme")] * 3 + [("report.join", "acme")]
    assert [job.result for job in await client.wait_many(parts)] == [0, 1, 2]
    assert ran[-1].result == "report 1 is whole"


def test_the_schedule_and_the_settings_are_valid(habits, monkeypatch, folder):
    [news] = habits.app.periodic_tasks
    assert (news.task, news.timer, news.args) == ("mail.news", "Mon..Fri 07:30", {"to": "ann@example.org"})
    (folder / "joex.toml").write_text(FILES["joex.toml"])
    monkeypatch.chdir(folder)
    settings = load_settings({})
    assert (settings.pool_size, settings.queues) == (4, ["default", "mail", "bulk"])
    assert (settings.timeout, settings.retention) == (timedelta(minutes=10), timedelta(days=1))


def test_each_habit_has_its_counterpart_and_none_is_copied(habits):
    habits_of_celery = (
        "delay(", "send_task", "countdown", "eta=", "expires", "delay_on_commit", "on_commit", "autoretry_for",
        "retry_backoff", "max_retries", "self.retry", "acks_late", "chain", "group", "chord", "beat_schedule",
        "crontab", "rate_limit", "task_routes", "AsyncResult", "update_state", "self.request", "revoke", "time_limit",
        "task_always_eager", "task_prerun", "task_failure", "celery.conf",
    )  # fmt: skip
    [table] = re.findall(r"## Habits from Celery\n.*?\n\n(\| Celery .*?)\n\n", PAGE.read_text(), re.DOTALL)
    assert [habit for habit in habits_of_celery if habit not in table] == []
    assert not hasattr(habits.send, "delay")
    assert not hasattr(habits.send, "apply_async")
