"""The programs in examples/, run as their README says: separate processes, real HTTP, a real PostgreSQL."""

import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from tests.support.commands import running
from tests.support.shops import EXAMPLES, SHOPS, Shop, open_shop
from tests.support.waiting import eventually

IN_STOCK = 5
_SUBMITTED = "SELECT pg_sequence_last_value(pg_get_serial_sequence('joex_private.job', 'seq')::regclass)"


@pytest.fixture(params=SHOPS)
async def shop(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Shop]:
    async with open_shop(SHOPS[request.param], database_url) as shop:
        yield shop


async def test_an_order_and_its_job_are_stored_and_an_executor_confirms_the_order(shop, connection, database_url):
    answer = await shop.order(2)
    assert answer.status_code == 201, answer.text
    order = answer.json()["order"]
    assert await shop.show(order) == {"customer": "acme", "item": "tea", "pieces": 2, "confirmed": False}
    job = await connection.fetchrow("SELECT id, task, grp, args::text, state::text FROM joex_private.job")
    assert tuple(job)[1:] == (shop.example.task, "acme", f'{{"order": {order}}}', "waiting")

    async with running(shop.example.executor, EXAMPLES, database_url, "registered", **shop.example.environment):
        await eventually(
            lambda: connection.fetchval("SELECT finished_at FROM joex_private.job WHERE id = $1", job["id"]),
            why="the job is finished",
        )
    assert (await shop.show(order))["confirmed"] is True
    end = await connection.fetchrow("SELECT state::text, result::text FROM joex_private.job WHERE id = $1", job["id"])
    assert tuple(end) == ("success", f'{{"confirmed": {order}}}')


async def test_a_request_that_fails_after_it_has_submitted_leaves_neither_order_nor_job(shop, connection):
    refused = await shop.order(IN_STOCK + 1)
    assert (refused.status_code, refused.json()) == (409, {"detail": f"there are not {IN_STOCK + 1} pieces of tea"})
    assert await connection.fetchval(_SUBMITTED) == 1, "there was a job, until the transaction ended"
    assert await stored(connection) == (0, 0, IN_STOCK)

    accepted = await shop.order(IN_STOCK)
    assert accepted.status_code == 201, accepted.text
    assert await stored(connection) == (1, 1, 0)


@pytest.mark.parametrize("wrong", [{"pieces": 0}, {"pieces": 1, "item": "coffee"}], ids=str)
async def test_a_wrong_order_is_refused_and_nothing_is_stored(shop, connection, wrong):
    assert (await shop.order(**wrong)).status_code in (409, 422)
    assert await stored(connection) == (0, 0, IN_STOCK)


def test_the_readme_says_how_the_examples_are_run():
    told = (EXAMPLES / "README.md").read_text()
    for example in SHOPS.values():
        variables = [f"export {name}={value}" for name, value in example.environment.items()]
        for command in (*variables, example.migrate, example.executor, example.serve):
            assert f"$ {command}" in told


def test_one_import_gives_the_example_apps():
    code = "import joex.examples; print(*joex.examples.documents.app.names)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "documents.count\n"


async def stored(connection):
    """The numbers of orders, jobs, and pieces of tea."""
    row = await connection.fetchrow("""
        SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM joex_private.job),
               (SELECT pieces FROM stock WHERE item = 'tea')
    """)
    return tuple(row)
