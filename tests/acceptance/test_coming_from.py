"""The program for Joex in docs/how-to/coming-from.md does what the page says."""

import importlib
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from joex import check_timer
from tests.support.commands import running
from tests.support.pages import DOCS, Command, Foreign, Statements, files, steps

PAGE = DOCS / "how-to" / "coming-from.md"
CODE = files(PAGE)["shop.py"]
[EXECUTOR] = [step.text.strip() for step in steps(PAGE) if isinstance(step, Command)]
[SQL] = [step.text for step in steps(PAGE) if isinstance(step, Statements)]
OTHERS = [step.text for step in steps(PAGE) if isinstance(step, Foreign) and step.language == "python"]
ORDERS = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, item text)"


@pytest.fixture
def folder(tmp_path):
    """A folder with the program."""
    (tmp_path / "shop.py").write_text(CODE)
    return tmp_path


@pytest.fixture
def shop(folder, monkeypatch):
    """The program."""
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("shop")
    del sys.modules["shop"]


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
    assert "success order 8 is confirmed" in capsys.readouterr().out
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
