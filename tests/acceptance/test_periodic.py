"""Periodic tasks in a program, and as on docs/how-to/periodic.md."""

import importlib
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from joex import App
from joex.config import Settings
from joex.http.api import create_api
from joex.runtime.executor import Executor
from tests.support.asgi import transport
from tests.support.commands import done, running, started
from tests.support.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "periodic.md").read_text()
EXECUTOR = "joex executor --app {}:app"
MAINTENANCE = "joex.retention"  # each of the tests' databases has this row
PROGRAM = """
import asyncio
import joex

app = joex.App()


{periodic}
@app.task("tick")
async def tick(ctx) -> None: ...
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


APP, CLIENT = blocks("python")
PEOPLE, RETENTION = ([line[2:].partition("   ")[0] for line in one.splitlines()] for one in blocks("console"))
[SQL], [HTTP] = blocks("sql"), blocks("text")


@asynccontextmanager
async def executor(folder: Path, database_url: str, name: str, periodic: str = "") -> AsyncIterator[None]:
    """An executor of a program of this name."""
    (folder / f"{name}.py").write_text(PROGRAM.format(periodic=periodic))
    async with running(EXECUTOR.format(name), folder, database_url, "registered", JOEX_APP_ID=name):
        yield


async def ids(client, owner=None):
    return [task.id for task in await client.periodic.list(owner)]


async def printed(command, folder, database_url):
    """Run a command that succeeds; returns its output."""
    async with started(command, folder, database_url) as (process, log):
        await eventually(lambda: process.returncode is not None, why=f"{command} has ended")
        assert process.returncode == 0, log()
        return log()


async def test_an_app_brings_its_periodic_tasks_and_takes_them_away_again(tmp_path, client, database_url):
    two = '@app.periodic("daily")\n@app.periodic("hourly", id="often", group="acme")'
    async with executor(tmp_path, database_url, "shop", two):
        assert await ids(client) == [MAINTENANCE, "shop:app/often", "shop:app/tick"]
        assert [task.group for task in await client.periodic.list("app:shop:app")] == ["acme", "default"]
    async with executor(tmp_path, database_url, "shop", '@app.periodic("daily")'):
        assert await ids(client) == [MAINTENANCE, "shop:app/tick"]
    async with executor(tmp_path, database_url, "shop"):
        assert await ids(client) == [MAINTENANCE]


async def test_two_apps_and_people_leave_each_others_periodic_tasks_alone(tmp_path, client, database_url):
    await client.periodic.put("a", "tick", "daily")
    await client.periodic.put("garden:app/tick", "tick", "daily", zone="Asia/Tokyo")  # a user has set this one first
    async with executor(tmp_path, database_url, "shop", '@app.periodic("daily")'):
        mine = ["a", "garden:app/tick"]
        assert await ids(client) == [*mine, MAINTENANCE, "shop:app/tick"]
        async with executor(
            tmp_path, database_url, "garden", '@app.periodic("daily")\n@app.periodic("hourly", id="b")'
        ):
            assert await ids(client) == ["a", "garden:app/b", "garden:app/tick", MAINTENANCE, "shop:app/tick"]
            assert await ids(client, "user") == mine
            assert (await client.periodic.get("garden:app/tick")).zone == "Asia/Tokyo"
        async with executor(tmp_path, database_url, "garden"):
            assert await ids(client) == [*mine, MAINTENANCE, "shop:app/tick"]


@pytest.mark.parametrize(
    ("periodic", "complaint"),
    [
        ('@app.periodic("Mon 25:00")', "periodic task 'tick': timer 'Mon 25:00': hour: expected 0 to 23; got '25'"),
        ('@app.periodic("daily", zone="Moon")', "periodic task 'tick': time zone: expected a name like "),
        ('@app.periodic("daily", args={"a": 1})', "arguments of task 'tick': a: "),
        (
            '@app.periodic("daily")\n@app.periodic("hourly")',
            "periodic task 'tick': the app already has one with this id; give each its own",
        ),
    ],
    ids=["timer", "zone", "argument", "id"],
)
async def test_a_wrong_periodic_task_of_an_app_is_a_line_at_its_start(
    tmp_path, client, database_url, periodic, complaint
):
    (tmp_path / "shop.py").write_text(PROGRAM.format(periodic=periodic))
    async with started(EXECUTOR.format("shop"), tmp_path, database_url) as (process, log):
        await eventually(lambda: process.returncode is not None, why="it has ended")
        assert process.returncode == 2
        assert re.fullmatch(rf"joex: {re.escape(complaint)}[^\n]*\n", log()), log()
    assert await ids(client) == [MAINTENANCE]


async def test_the_jobs_of_a_periodic_task_come_and_the_list_shows_it(tmp_path, client, connection, database_url):
    async def come():
        return await connection.fetchval("SELECT count(*) >= 2 FROM joex_private.job WHERE subject = 'shop:app/tick'")

    async with executor(tmp_path, database_url, "shop", '@app.periodic("*:*:*")'):
        await eventually(come, why="there are two jobs")
        assert await client.periodic.disable("shop:app/tick", any_owner=True)
        listed = await printed("joex periodic list", tmp_path, database_url)
    columns = (
        *(
            "shop:app/tick",
            "default",
            "default",
            "tick",
            r"\*:\*:\*",
            "UTC",
            "-",
            r"(submitted|overlapping) \w+ ago",
            r"\w+",
        ),
        *("app:shop:app", "disabled"),
    )
    assert re.search(rf"^{' +'.join(columns)}$", listed, re.MULTILINE), listed
    async with executor(tmp_path, database_url, "shop", '@app.periodic("*:*:*")'):  # and so it stays
        assert (await client.periodic.get("shop:app/tick")).enabled is False


# The page


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the programs of the page, as importable modules."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "monday.py").write_text(CLIENT)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("monday", None)


async def test_the_program_of_the_page_runs(folder, client, database_url):
    names = ["shop/mail.fetch/ann", "shop/mail.fetch/bob", "shop/orders.report"]
    async with running(EXECUTOR.format("shop"), folder, database_url, "registered"):
        assert await ids(client, "app:shop") == names
        for name in names:
            _, job_id = await client.periodic.run_now(name)
            assert (await client.wait(job_id)).state == "success"


async def test_the_commands_of_the_page_do_what_it_says(folder, client, database_url):
    said = [await printed(command, folder, database_url) for command in PEOPLE]
    assert [one.split()[-1] for one in said[-3:]] == ["disabled", "enabled", "removed"]
    assert await ids(client) == [MAINTENANCE]


async def test_the_client_of_the_page_does_what_it_says(folder, client, capsys):
    await importlib.import_module("monday").every_monday(client)
    task = await client.periodic.get("reports/weekly")
    assert (task.enabled, task.last_job_state) == (False, "waiting")
    assert "reports/weekly user None None waiting\n" in capsys.readouterr().out


async def test_the_sql_of_the_page_does_what_it_says(connection, client):
    answers = [await connection.fetch(statement) for statement in SQL.split(";\n")[:-1]]
    assert [answers[0][0][0], answers[1][0][0], answers[2][0][0]] == ["set", "submitted", "set"]
    assert {row["id"]: row["last_job_state"] for row in answers[3]}["reports/weekly"] == "waiting"
    assert answers[4][0][0] == "removed"
    assert await ids(client) == [MAINTENANCE]


async def test_the_calls_of_the_page_do_what_it_says(client):
    api = create_api(Settings(), client, Executor(App(), Settings(), ""), lambda: (b"", "text/plain"))
    answers = []
    async with httpx.AsyncClient(transport=transport(api), base_url="http://127.0.0.1:7878") as http:
        for call in HTTP.splitlines():
            method, path, body = [*call.split(" ", 2), ""][:3]
            headers = {"Content-Type": "application/json"} if body else {}
            answers.append(await http.request(method, path, content=body, headers=headers))
    assert [answer.status_code for answer in answers] == [200, 200, 201, 200, 200, 200, 200]
    assert answers[-2].json()["tasks"] == []
    assert answers[-1].json().keys() == {"success", "message", "event", "next"}


async def test_the_maintenance_of_the_page_is_disabled_and_done_by_hand(folder, client, database_url, connection):
    await client.periodic.enable(MAINTENANCE, any_owner=True)  # as it is in any other database
    for command in RETENTION:
        await done(command, folder, database_url)
    async with running(EXECUTOR.format("shop"), folder, database_url, "registered"):
        assert (await client.periodic.get(MAINTENANCE)).enabled is False
    await client.cancel(await client.submit("tick"))
    call = "SELECT jobs FROM joex.delete_finished('{cancelled}', now())"
    assert [await connection.fetchval(call) for _ in range(2)] == [1, 0]
