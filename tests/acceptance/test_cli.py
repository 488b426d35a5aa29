"""The command line, in separate processes, against a real PostgreSQL.

Executors that stay, and commands to which nobody listens, are started; others are forked with Joex loaded
(tests/support/loaded).
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from joex import Client
from joex.cli import call
from joex.cli.output import iso
from joex.config import Settings
from joex.store import roles
from joex.store.database import connect
from joex.store.embedded import EmbeddedServer
from joex.store.executors import NewExecutor, register
from joex.store.pools import NewPoolStep, note_step
from joex.store.roles import RoleScopes
from tests.support import loaded
from tests.support.proxy import Proxy
from tests.support.shop import executor, finish, take
from tests.support.waiting import PATIENCE, eventually

NOWHERE = "019f0000-0000-7000-8000-000000000000"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
TASKS = """
import asyncio
import joex

app = joex.App()
not_an_app = "text"


@app.task("echo")
async def echo(ctx, text: str, times: int = 1) -> str:
    ctx.log.info("%s", text)
    return text * times


@app.task("wait")
async def wait(ctx) -> None:
    ctx.log.info("waiting")
    await asyncio.Event().wait()


@app.task("open")
async def open_(ctx) -> None:
    ctx.log.info("opened")
    while not ctx.cancelled:
        await asyncio.sleep(0.01)


@app.task("boom", retries=0)
def boom(ctx) -> None:
    raise ValueError("broken")


@app.task("second", retries=1, retry_delay="1h")
def second(ctx) -> int:
    if ctx.attempt == 1:
        raise ValueError("not at the first time")
    return ctx.attempt
"""


@dataclass(frozen=True)
class Answer:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on stderr."""
        assert self.err.startswith("joex: "), self.err
        assert self.err.endswith("\n"), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("joex: ").rstrip()


class Joex:
    """The command ``joex`` in its own folder and environment."""

    def __init__(self, folder: Path, database_url: str | None) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("JOEX_", "PG"))}
        self.environment = {**clean, "COLUMNS": "200"}
        if database_url is not None:
            self.environment["JOEX_DATABASE_URL"] = database_url
        self._turns = asyncio.Semaphore(3)

    async def start(self, *arguments: str, stdout: Any = PIPE, ends: bool = False, **environment: str) -> Process:
        """Start a command: an executor that stays with a pid and imports of its own, the others with Joex loaded."""
        is_executor = arguments[:1] == ("executor",) and not ends
        return await asyncio.create_subprocess_exec(
            *([sys.executable, "-m", "joex"] if is_executor else loaded.command("joex")),
            *arguments,
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=PIPE,
            stdout=stdout,
            stderr=PIPE,
        )

    @asynccontextmanager
    async def started(self, *arguments: str, stdout: int = PIPE) -> AsyncIterator[Process]:
        """A command that keeps running; killed at the end, if it still runs."""
        process = await self.start(*arguments, stdout=stdout)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def __call__(self, *arguments: str, given: str = "", **environment: str) -> Answer:
        """Run a command to its end. No command may show a traceback of Joex."""
        async with self._turns:
            process = await self.start(*arguments, ends=True, **environment)
            out, err = await asyncio.wait_for(process.communicate(given.encode()), PATIENCE)
        assert b"Traceback" not in err, err.decode()
        assert process.returncode is not None
        return Answer(process.returncode, out.decode(), err.decode())

    async def done(self, *arguments: str, **options: str) -> str:
        """Run a command that succeeds without output on stderr; returns its output."""
        answer = await self(*arguments, **options)
        assert (answer.code, answer.err) == (0, ""), answer
        return answer.out.strip()

    @asynccontextmanager
    async def executor(self, *arguments: str) -> AsyncIterator["RunningExecutor"]:
        """An executor that has registered; killed at the end, if it still runs."""
        process = await self.start(
            *("executor", "--app", "tasks:app", "--app-id", "it", "--http-address", "127.0.0.1:0", *arguments)
        )
        executor = RunningExecutor(process)
        try:
            await executor.line("registered")
            yield executor
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


class RunningExecutor:
    """An executor's process, and the lines that it has logged so far."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, part: str) -> str:
        """Read until a line contains this."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line)
                if part in line:
                    return line
        raise AssertionError(f"no line has {part!r}:\n{''.join(self.lines)}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def joex(folder: Path, database_url: str) -> Joex:
    return Joex(folder, database_url)


@pytest.fixture
def folder_for_a_server() -> Iterator[Path]:
    """A folder that the server, which does not run as root, can reach."""
    folder = Path(tempfile.mkdtemp(prefix="joex-tests-cli-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def line_of(process: Process) -> str:
    """The next line that a command prints."""
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    assert line, await process.communicate()
    return line.decode()


async def interrupted(process: Process) -> tuple[int | None, str]:
    """Press Ctrl-C; returns the exit code, and the output on stderr from now on."""
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    return process.returncode, err.decode()


async def test_a_job_is_submitted_and_listed_and_shown_and_steered(joex):
    job_id = await joex.done(
        *("submit", "mail.send", "--arg", "to=a@example.org", "--arg", "copies:=3", "--group", "acme"),
        *("--subject", "[b]hello[/b] \x1b[2J", "--retries", "2", "--priority", "High", "--tracker", "one"),
    )
    listed, shown, skipped = await asyncio.gather(
        joex.done("jobs", "--state", "waiting", "--task", "mail.send", "--group", "acme", "--queue", "default"),
        joex.done("show", job_id),
        joex("submit", "mail.send", "--tracker", "one", "--group", "acme"),
    )
    assert job_id in listed
    assert "[b]hello[/b] \\x1b[2J" in listed  # no markup, and no control characters
    assert '{"to": "a@example.org", "copies": 3}' in shown
    assert (skipped.code, skipped.out) == (0, "")
    assert skipped.complaint == "skipped: an unfinished job of its group has the tracker 'one'"

    assert await joex.done("priority", job_id, "LOW") == f"{job_id} low priority"
    assert await joex.done("args", job_id, '{"to": "b@example.org"}') == f"{job_id} new arguments"
    assert '{"to": "b@example.org"}' in await joex.done("show", job_id)
    assert await joex.done("cancel", job_id) == f"{job_id} cancelled"
    again, log, none_waits = await asyncio.gather(
        joex("cancel", job_id), joex("logs", "--follow", job_id), joex.done("jobs", "--state", "waiting")
    )
    assert again.code == 1
    assert again.complaint == f"job {job_id}: can't be cancelled: cancelled already"
    assert (log.code, log.out, log.complaint) == (0, "", "the job is finished: cancelled")
    assert none_waits == "no jobs"
    assert await joex.done("retry", job_id) == f"{job_id} waits again"
    assert (await joex("retry", job_id)).complaint == (
        f"job {job_id}: it is waiting; only jobs that failed, were cancelled, are stuck or not due can be retried"
    )
    assert await joex.done("remove", job_id) == f"{job_id} removed now, or when its run has ended"
    assert await joex.done("jobs") == "no jobs"


async def test_arguments_come_as_json_from_a_file_from_stdin_or_one_by_one(joex, folder, client):
    (folder / "args.json").write_text('{"a": [1, null]}')
    ids = await asyncio.gather(
        joex.done("submit", "t", "--args", '{"a": 1, "b": 2}', "--arg", "b=text", "--arg", "c:={}"),
        joex.done("submit", "t", "--args-file", "args.json"),
        joex.done("submit", "t", "--args-file", "-", given='{"a": "ü"}'),
        joex.done("submit", "t", "--not-before", "1h"),
        joex.done("submit", "t", "--not-before", "2100-01-01T00:00:00+01:00"),
    )
    jobs = [await client.get(job_id) for job_id in ids]
    assert [job.args for job in jobs] == [{"a": 1, "b": "text", "c": {}}, {"a": [1, None]}, {"a": "ü"}, {}, {}]
    assert jobs[3].due_at - jobs[3].submitted_at < timedelta(hours=1, seconds=1)
    assert jobs[4].due_at.isoformat() == "2099-12-31T23:00:00+00:00"


async def test_reading_commands_print_json_and_nothing_else_on_stdout(joex, client, pool):
    job_id = await client.submit("t", {"a": "ü"}, group="acme")
    await _log_a_line(pool, job_id, "hello")
    await _register_somebody(pool)
    names = ("jobs", "stats", "groups", "executors", "version")
    commands = [[name] for name in names] + [["show", str(job_id)], ["logs", str(job_id)]]
    answers = await asyncio.gather(*(joex(*command, "--json") for command in commands))
    assert [(answer.code, answer.err) for answer in answers] == [(0, "")] * len(commands)
    (job,), (queue,), (group,), (executor,), version, shown, (line,) = (answer.json for answer in answers)
    assert job["id"] == str(job_id)
    assert job["args"] == {"a": "ü"}
    assert TIME.fullmatch(job["submitted_at"])
    assert job["finished_at"] is None
    assert shown == {**job, "attempts": [], "log": [line]}
    assert (line["level"], line["message"], bool(TIME.fullmatch(line["at"]))) == ("info", "hello", True)
    assert (queue["queue"], queue["waiting"], queue["groups"]) == ("default", 1, 1)
    assert (group["group"], group["weight"], group["paused"]) == ("acme", 1, False)
    assert (executor["app_id"], executor["state"], executor["queues"]) == ("somebody", "awake", ["default"])
    assert version == {"version": (await joex.done("version")).removeprefix("joex ")}
    tables = await asyncio.gather(*(joex.done(*command) for command in commands))
    expected = (str(job_id), "default", "acme", "somebody", "joex", "acme", "hello")
    assert [part for part, table in zip(expected, tables, strict=True) if part not in table] == []


async def test_it_lists_pools_and_how_they_were_sized_and_why(joex, pool):
    assert await joex.done("pools") == "no pool had a step within a day"
    async with pool.acquire() as connection:
        for namespace, target, why in (("prod", 1, "9 jobs"), ("prod", 2, "38 jobs"), ("test", 0, "\x1b[2Jno jobs")):
            made = NewPoolStep(
                namespace, f"{namespace}.1", "docs", 0, target, 0, 0, "demand", why, target, None, 9, 0, None
            )
            await note_step(connection, made)
    rows = [line.split() for line in (await joex.done("pools")).splitlines()]
    assert rows[0] == ["POOL", "AT", "BEFORE", "TARGET", "READY", "DRAINING", "MODE", "WHY"]
    assert [(row[0], row[2:]) for row in rows[1:]] == [
        ("prod/docs", ["0", "2", "0", "0", "demand", "38", "jobs"]),
        ("test/docs", ["0", "0", "0", "0", "demand", "\\x1b[2Jno", "jobs"]),
    ]
    rows = [line.split() for line in (await joex.done("pools", "--steps", "prod/docs", "--since", "1h")).splitlines()]
    assert [row[1:] for row in rows[1:]] == [f"0 {n} 0 0 demand {why} jobs".split() for n, why in ((2, 38), (1, 9))]
    assert [(one["nr"], one["target"]) for one in (await joex("pools", "--steps", "prod/docs", "--json")).json] == [
        (2, 2), (1, 1),
    ]  # fmt: skip
    assert [one["namespace"] for one in (await joex("pools", "--json")).json] == ["prod", "test"]
    one = await joex("pools", "--steps", "prod/docs", "--limit", "1")
    assert (len(one.out.splitlines()), one.complaint) == (2, "there are more: raise --limit")
    several = await joex("pools", "--steps", "docs")
    assert (several.code, several.complaint) == (
        1, "--steps: several pools have this name: give one of prod.1/docs, test.1/docs",
    )  # fmt: skip
    assert await joex.done("pools", "--steps", "prod.1/docs") == await joex.done("pools", "--steps", "prod/docs")
    none = "the pool test/docs had no step since then"
    assert await joex.done("pools", "--steps", "test/docs", "--since", "2100-01-01T00:00:00Z") == none


async def test_it_says_why_a_job_is_not_running(joex, client):
    await client.submit("t", group="acme")
    job_id = await client.submit("t", group="acme")
    nobody, behind = "no executor serves the queue 'default'", "jobs of its group come before it: 1 of its own priority"
    assert (await joex.done("why", str(job_id))).splitlines() == [nobody, behind]
    first, second = (await joex("why", str(job_id), "--json")).json
    assert first == {"reason": "no_executor", "detail": {"queue": "default", "draining": 0}, "message": nobody}
    assert (second["reason"], second["message"]) == ("behind", behind)


async def test_a_page_of_jobs_says_how_to_go_on(joex, client):
    unfinished = [await client.submit("t") for _ in range(3)]
    finished = [await client.submit("t", queue="other") for _ in range(3)]
    for job_id in finished:
        await client.cancel(job_id)
    listed, hint = [], ""
    while True:
        answer = await joex("jobs", "--json", "--limit", "2", *hint.split())
        listed += [job["id"] for job in answer.json]
        if not answer.err:
            break
        hint = answer.complaint.removeprefix("there are more: add ")
    assert listed == [str(job_id) for job_id in [*unfinished, *reversed(finished)]]
    only = await joex("jobs", "--json", "--queue", "other", "--state", "cancelled", "--limit", "1")
    assert [job["id"] for job in only.json] == [str(finished[-1])]


async def test_a_page_of_json_ends_after_4_mb_of_arguments_and_a_table_reads_none(joex, client):
    ids = [str(await client.submit("t", {"x": "x" * 900_000})) for _ in range(5)]
    for number in range(5):
        await client.periodic.put(str(number), "t", "daily", args={"x": "x" * 900_000})
    for command, expected in ((["jobs"], ids), (["periodic", "list", "--owner", "user"], [*"01234"])):
        page = await joex(*command, "--json")
        assert [one["id"] for one in page.json] == expected[:4]
        assert page.complaint.startswith("there are more: add --after ")
        table = await joex(*command)
        assert ([line.split()[0] for line in table.out.splitlines()[1:]], table.err) == (expected, "")


async def test_show_has_each_attempt_with_its_end(joex, client, pool):
    job_id = await client.submit("mail.send", queue="mails")
    async with pool.acquire() as connection:
        taken = await take(connection, await executor(connection, "shop/mails-0", queues=["mails"]), 1, queue="mails")
        await finish(connection, taken, "stuck", error="ValueError: no page", delay=600.0)
    [attempt] = await client.attempts(job_id)
    shown = await joex.done("show", str(job_id))
    assert "\nattempt 1: failed on shop/mails-0 from " in shown
    assert f"; retry at {iso(attempt.retry_at)}: ValueError: no page\n" in shown
    assert [one["outcome"] for one in (await joex("show", str(job_id), "--json")).json["attempts"]] == ["failed"]


async def test_failed_jobs_are_retried_by_id_or_by_filter(joex, client, pool):
    ids = [await client.submit("t", group=group) for group in ("a", "a", "b")]
    async with pool.acquire() as connection:
        await connection.execute(
            "UPDATE joex_private.job SET state = 'failed', lane = NULL, finished_at = now(), error = 'x\ny'"
        )
    assert "error         x\ny" in await joex.done("show", str(ids[0]))
    assert await joex.done("retry", str(ids[2])) == f"{ids[2]} waits again"
    assert await joex.done("retry", "--failed", "--group", "a", "--most", "1") == "1 job waits again"
    assert await joex.done("retry", "--failed", "--task", "t", "--queue", "default") == "1 job waits again"
    assert [(await client.get(job_id)).state for job_id in ids] == ["waiting"] * 3


async def test_stats_say_who_holds_the_slots_and_who_is_behind(joex, client, pool):
    await client.submit_many([{"task": "t", "group": "acme"}] * 3)
    await client.submit("t", queue="mail", not_before="1h")
    await _register_somebody(pool)
    await pool.fetch("SELECT joex_private.take(id, '{default}', 3) FROM joex_private.executor")
    await client.submit("t", group="globex")
    default, mail = (await joex("stats", "--json")).json
    assert (default["groups"], default["scheduled"], mail["shares"]) == (2, 3, None)
    shares = default["shares"]
    assert (shares["active_groups"], shares["groups_behind"]) == (2, 1)
    assert (shares["largest_group"], shares["largest_share"]) == ("acme", 1.0)
    assert shares["longest_wait_seconds"] >= shares["median_wait_seconds"] > 0
    assert shares["behind_seconds"] > 0
    lines = (await joex.done("stats")).splitlines()
    assert lines[4].split() == ["QUEUE", "ACTIVE", "BEHIND", "MEDIAN", "WAIT", "LONGEST", "WAIT", "LARGEST"]
    assert re.fullmatch(r"default +2 +1 +\S+ +\S+ +100% acme", lines[5].rstrip())
    assert len(lines) == 6


async def test_groups_are_listed_with_their_settings_which_can_be_set(joex, client):
    await client.submit("t", group="acme")
    assert await joex.done("groups", "set", "acme", "--weight", "3", "--max-running", "2", "--pause") == (
        "group acme in queue default: weight 3, at most 2 running, paused"
    )
    await joex.done("groups", "set", "idle", "--queue", "other", "--weight", "2")
    busy, idle = (await joex("groups", "--json")).json
    assert (busy["group"], busy["waiting"], busy["weight"], busy["max_running"]) == ("acme", 1, 3, 2)
    assert busy["paused"] is True
    assert (idle["group"], idle["queue"], idle["waiting"], idle["weight"]) == ("idle", "other", 0, 2)
    assert await joex.done("groups", "set", "acme", "--no-limit", "--resume") == (
        "group acme in queue default: weight 3, no limit, not paused"
    )
    limited = await joex("groups", "--limit", "1")
    assert limited.complaint == "there are more: raise --limit"
    assert "other" not in limited.out


async def test_periodic_tasks_are_added_listed_shown_and_steered(joex, client):
    task = ("prod/nightly", "report", "Mon..Fri 3:00", "--zone", "Europe/Zurich")
    add = ("periodic", "add", *task, "--group", "acme", "--queue", "q")
    options = ("--args", '{"a": 1}', "--priority", "high", "--subject", "a report")
    added = await joex.done(*add, *options, "--submitter", "ann", "--starting-deadline", "90m")
    assert re.fullmatch(
        r"prod/nightly set: Mon\.\.Fri \*-\*-\* 03:00:00, zone Europe/Zurich, "
        r"next \w{3} \d{4}-\d\d-\d\d 03:00:00 CES?T \(in \w+\)",
        added,
    )
    listed, shown, as_json = await asyncio.gather(
        joex.done("periodic", "list", "--owner", "user"),
        joex.done("periodic", "show", "prod/nightly"),
        joex("periodic", "list", "--json"),
    )
    header, row = listed.splitlines()
    columns = ["ID", "QUEUE", "GROUP", "TASK", "TIMER", "ZONE", "NEXT", "LAST", "JOB", "OWNER", "STATUS"]
    assert header.split() == columns
    assert re.search(r"prod/nightly +q +acme +report +Mon\.\.Fri 3:00 +Europe/Zurich +in \w+ +- +- +user +enabled", row)
    assert re.search(r"^next +\w{3} .* 03:00:00 CES?T \(in \w+\)$", shown, re.MULTILINE)
    assert re.search(r"^starting deadline +1h30m$", shown, re.MULTILINE)
    nightly, retention = sorted(as_json.json, key=lambda task: task["owner"], reverse=True)
    assert (nightly["args"], nightly["starting_deadline"], nightly["submitter"]) == ({"a": 1}, "1h30m", "ann")
    assert (retention["id"], retention["owner"], retention["enabled"]) == ("joex.retention", "joex", False)

    assert await joex.done("periodic", "disable", "prod/nightly") == "prod/nightly disabled"
    again = await joex.done(*add)  # everything is set, except whether it is enabled
    assert again.endswith("zone Europe/Zurich, disabled")
    assert (await client.periodic.get("prod/nightly")).args == {}
    assert (await joex.done(*add)).startswith("prod/nightly unchanged: ")
    assert await joex.done("periodic", "enable", "prod/nightly") == "prod/nightly enabled"
    job_id = await joex.done("periodic", "run-now", "prod/nightly")
    assert (await joex("jobs", "--json")).json[0]["id"] == job_id
    overlapping = await joex("periodic", "run-now", "prod/nightly")
    assert (overlapping.code, overlapping.out) == (1, "")
    assert overlapping.complaint.startswith("periodic task 'prod/nightly': its last job is not finished")
    assert f"{job_id} (waiting)" in await joex.done("periodic", "show", "prod/nightly")
    assert (await joex.done(*add, "--disabled")).endswith(", disabled")
    assert await joex.done("periodic", "remove", "prod/nightly") == "prod/nightly removed"
    assert await joex.done("periodic", "list", "--owner", "user") == "no periodic tasks"


async def test_a_periodic_task_with_arguments_over_the_limit_is_refused_with_a_line_that_names_them(joex, connection):
    await connection.execute("SELECT joex.set_largest('args', 8192)")
    refused = await joex("periodic", "add", "a", "t", "daily", "--args", json.dumps({"x": "y" * 9000}))
    assert (refused.code, refused.out) == (2, "")
    assert refused.complaint.startswith("args: at most 8192 bytes; got 90")


async def test_what_others_own_is_changed_with_force_only(joex, client, connection):
    await connection.execute("SELECT joex.put_periodic_task('shop/a', 't', 'daily', owner => 'app:shop')")
    refused = await asyncio.gather(*(joex("periodic", verb, "shop/a") for verb in ("remove", "enable", "disable")))
    for answer in refused:
        assert (answer.code, answer.out) == (2, "")
        assert answer.complaint == (
            "periodic task 'shop/a': it is owned by app:shop: change it in the code of the app; or add --force"
        )
    added = await joex("periodic", "add", "shop/a", "t", "daily")
    assert (added.code, added.complaint) == (
        2,
        "periodic task 'shop/a': it is owned by app:shop: choose another id",
    )
    assert (await client.periodic.get("shop/a")).enabled is True
    assert await joex.done("periodic", "disable", "shop/a", "--force") == "shop/a disabled"
    assert (await client.periodic.get("shop/a")).enabled is False
    assert await joex.done("periodic", "remove", "shop/a", "--force") == "shop/a removed"
    assert await client.periodic.get("shop/a") is None
    own = await joex("periodic", "remove", "joex.retention", "--force")
    assert (own.code, own.complaint) == (
        2,
        "periodic task 'joex.retention': it is owned by joex: only Joex removes it: disable it instead",
    )


async def test_an_id_that_occurs_twice_is_named_with_its_queue_and_group_on_the_command_line(joex, client):
    for group in ("acme", "shop"):
        assert "nightly set" in await joex.done("periodic", "add", "nightly", "t", "daily", "--group", group)
    for verb in ("show", "remove", "enable", "disable", "run-now"):
        refused = await joex("periodic", verb, "nightly")
        assert (refused.code, refused.out) == (2, "")
        assert refused.complaint == (
            'id: several periodic tasks have the id "nightly": name the queue and the group too, '
            'such as queue "default" and group "acme"'
        )
    assert "shop" in await joex.done("periodic", "show", "nightly", "--group", "shop")
    job_id = await joex.done("periodic", "run-now", "nightly", "--queue", "default", "--group", "shop")
    assert (await client.get(UUID(job_id))).group == "shop"
    assert await joex.done("periodic", "disable", "nightly", "--group", "shop") == "nightly disabled"
    assert await joex.done("periodic", "enable", "nightly", "--group", "shop") == "nightly enabled"
    assert await joex.done("periodic", "remove", "nightly", "--group", "acme") == "nightly removed"
    assert [one.group for one in await client.periodic.list("user")] == ["shop"]


async def test_tenants_whose_periodic_tasks_have_one_id_reach_each_its_own_on_the_command_line(
    folder, client, connection, database_url
):
    """And none can tell that there is another: the answers are those of a database without it."""
    groups = ("acme", "shop")
    tenants = {one: Joex(folder, database_url.replace("//postgres@", f"//joex_test_{one}@")) for one in groups}
    try:
        for group in groups:
            await connection.execute(f"CREATE ROLE joex_test_{group} LOGIN")
            await roles.set_scopes(
                connection, RoleScopes(f"joex_test_{group}", ["view", "payloads", "operate"], [group], None)
            )
            joex = tenants[group]
            assert await joex.done("periodic", "list") == "no periodic tasks"
            for verb in ("show", "remove", "enable", "disable", "run-now"):
                refused = await joex("periodic", verb, "nightly")
                assert refused.complaint == "there is no periodic task 'nightly'; 'joex periodic list' lists them"
            added = await joex.done("periodic", "add", "nightly", "t", "daily", "--group", group)
            assert added.startswith("nightly set: ")
            job_id = await joex.done("periodic", "run-now", "nightly")
            assert (await client.get(UUID(job_id))).group == group
            assert await joex.done("periodic", "disable", "nightly") == "nightly disabled"
            [shown] = (await joex("periodic", "list", "--json")).json
            assert (shown["group"], shown["enabled"]) == (group, False)
        assert await tenants["shop"].done("periodic", "remove", "nightly", "--force") == "nightly removed"
        refused = await tenants["shop"]("periodic", "remove", "nightly", "--force", "--group", "acme")
        assert refused.complaint.startswith("there is no periodic task 'nightly'")
        assert [one.group for one in await client.periodic.list("user")] == ["acme"]
    finally:
        for group in groups:
            await connection.execute(f"DROP OWNED BY joex_test_{group}; DROP ROLE joex_test_{group}")


async def test_periodic_tasks_are_listed_page_by_page_and_say_why_they_can_not_run(joex, connection):
    await connection.execute("SELECT joex.put_periodic_task(id, 't', '25:00') FROM unnest('{a,b,c}'::text[]) g(id)")
    await connection.execute("UPDATE joex_private.periodic_task SET error = 'it is wrong' WHERE id = 'b'")
    first = await joex("periodic", "list", "--owner", "user", "--limit", "2")
    after = '["b", "default", "default"]'
    assert first.complaint == f"there are more: add --after '{after}'"
    a, b = first.out.splitlines()[1:]
    assert (a.split()[-1], b.partition("user")[2].strip()) == ("enabled", "it is wrong")
    assert "it is wrong" in await joex.done("periodic", "show", "b")
    rest = await joex.done("periodic", "list", "--owner", "user", "--after", after)
    assert [line.split()[0] for line in rest.splitlines()] == ["ID", "c"]


async def test_a_timer_is_checked_without_a_database(folder):
    joex = Joex(folder, "postgresql://127.0.0.1:1/none")
    said = await joex.done("periodic", "check", "Mon..Fri 8:00", "--zone", "Europe/Zurich")
    normal, *times = said.splitlines()
    assert normal == "Mon..Fri *-*-* 08:00:00, zone Europe/Zurich"
    assert len(times) == 5
    for time in times:
        assert re.fullmatch(r"  (Mon|Tue|Wed|Thu|Fri) \d{4}-\d\d-\d\d 08:00:00 CES?T \(in \w+\)", time)
    never, cron = await asyncio.gather(
        joex.done("periodic", "check", "2001-01-01"), joex("periodic", "check", "30 2 * * *", "--json")
    )
    assert never == "2001-01-01 00:00:00, zone UTC\n  never"
    assert (cron.json["normal"], cron.json["zone"]) == ("30 2 * * *", "UTC")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT02:30:00Z", time) for time in cron.json["next"])


def test_bad_input_is_one_line_that_names_the_mend_and_exit_code_2(monkeypatch, capfd, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the library sets its own
    monkeypatch.setenv("JOEX_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    wrong = {
        ("sumbit",): "No such command 'sumbit'. Did you mean 'submit'? (see 'joex --help')",
        ("jobs", "--stat", "x"): "No such option: --stat",
        ("jobs", "--state", "x"): "Invalid value for '--state': 'x' is not one of 'waiting'",
        ("jobs", "--after", "x"): "cursor: expected the cursor of a previous page; got 'x'",
        ("show", "x"): "Invalid value for 'ID': Input should be a valid UUID",
        ("submit",): "Missing argument 'TASK' (see 'joex submit --help')",
        ("submit", ""): "task: must not be empty",
        ("submit", "t", "--args", "{"): "--args: this is not JSON: ",
        ("submit", "t", "--args", "[1]"): '--args: expected a JSON object, such as {"path": "/tmp/a"}; got [1]',
        ("submit", "t", "--args", "{}", "--args-file", "-"): "give either --args or --args-file",
        ("submit", "t", "--args-file", "nowhere"): "--args-file nowhere: [Errno 2] No such file",
        ("submit", "t", "--arg", "x"): "--arg: expected NAME=TEXT or NAME:=JSON; got 'x'",
        ("submit", "t", "--arg", "x=1", "--arg", "x=2"): "--arg x: given twice; write a list as x:='[1, 2]'",
        ("submit", "t", "--arg", "x:=y"): "--arg x: this is not JSON: ",
        (
            "submit",
            "t",
            "--not-before",
            "2026-01-31",
        ): "--not-before: expected a delay, such as '10m', or a time",
        ("submit", "t", "--priority", "mid"): "Invalid value for '--priority': 'mid' is not one of 'high', 'low'",
        ("args", NOWHERE, "[1]"): 'JSON: expected a JSON object, such as {"path": "/tmp/a"}; got [1]',
        ("submit", "t", "--retries", "-1"): "retries: expected 0 to 1000000; got -1",
        ("retry",): "retry: give either ids of jobs, or --failed",
        ("retry", NOWHERE, "--queue", "q"): "retry: --queue, --group, --task and --most go with --failed",
        ("pools", "--since", "1h"): "pools: --since goes with --steps",
        ("pools", "--steps", "docs", "--since", "x"): "--since: expected a duration, such as 1h, or a time",
        ("drain",): "drain: give either an app-id ('joex executors' lists them) or --all",
        ("groups", "set", "g"): "groups set: say what to change: --weight,",
        ("groups", "set", "g", "--max-running", "1", "--no-limit"): "groups set: give --max-running or --no-limit",
        ("groups", "--queue", "q", "set", "g", "--pause"): "groups set: give its options after it",
        ("periodic", "add", "a", "t"): "Missing argument 'TIMER' (see 'joex periodic add --help')",
        ("periodic", "add", "a", "t", "25:00"): "timer '25:00': hour: expected 0 to 23; got '25'",
        ("periodic", "add", "a", "t", "daily", "--zone", "Moon"): "time zone: expected a name like 'Europe/Zurich'",
        ("periodic", "add", "a", "t", "daily", "--args", "[]"): "--args: expected a JSON object,",
        ("periodic", "add", "a", "t", "daily", "--starting-deadline", "x"): "starting_deadline: expected",
        ("periodic", "check", "25:00"): "timer '25:00': hour: expected 0 to 23; got '25'",
        ("periodic", "show", ""): "id: must not be empty",
        ("stats", "5"): "stats: SECONDS goes with --watch",
        ("stats", "--watch", "soon"): "stats --watch: expected something like '30s'",
        ("stats", "--watch", "0"): "stats --watch: expected 0.1 seconds or more; got '0'",
        ("stats", "--trace", "--watch"): "stats: --trace does not go with --watch",
        ("stats", "5", "--trace"): "stats: --trace does not go with --watch",
        ("stats", "--queue", "q"): "stats: --queue goes with --trace",
        ("stats", "--anonymous"): "stats: --anonymous goes with --trace",
        ("stats", "--trace", "--since", "soon"): "--since: expected how long ago, such as '24h', or a time",
        (
            "stats",
            "--trace",
            "--since",
            "2026-01-31T03:00:00",
        ): "--since: expected how long ago, such as '24h', or a time",
        ("stats", "--database-url", "mysql://u:secret@h/d"): "--database-url: expected postgresql://",
        ("migrate", "postgresql://u:secret@h/d"): "Got unexpected extra argument(s) (postgresql://...@h/d)",
        ("executor",): "Missing option '--app' (see 'joex executor --help')",
        ("executor", "--app", "tasks:app", "--pool-size", "x"): "--pool-size: Input should be a valid integer",
    }
    for command, expected in wrong.items():
        # In this process, because there are so many; the other tests show that a separate process answers the same.
        answer = Answer(call("joex", command), *capfd.readouterr())
        assert (answer.code, answer.out) == (2, ""), command
        assert answer.complaint.startswith(expected), command
        assert "secret" not in answer.err


async def test_a_setting_that_is_wrong_is_named_with_its_place(joex, folder):
    answer = await joex("stats", JOEX_POOL_SIZE="x")
    assert (answer.code, answer.complaint.partition(":")[0]) == (2, "JOEX_POOL_SIZE")
    (folder / "joex.toml").write_text("pol_size = 2")
    answer = await joex("stats")
    assert (answer.code, answer.complaint) == (2, "pol_size (joex.toml): there is no such setting")


async def test_an_app_that_cannot_be_found_is_explained_part_by_part(joex, folder):
    (folder / "lacks.py").write_text("import os\nimport numpie\n")
    (folder / "wrong.py").write_text("def f(:")
    (folder / "twice.py").write_text(TASKS + "\napp.add(echo)\n")
    (folder / "typo.py").write_text(TASKS + "\n@app.task('z', retrys=3)\ndef z(ctx): ...\n")
    (folder / "deep.py").write_text("import json\njson.loads('[')\n")
    (folder / "bare.py").write_text("import joex\n\napp = joex.App()\n\n\n@app.task\ndef send(ctx): ...\n")
    typo_at = TASKS.count("\n") + 2
    wrong = {
        "tasks": "--app: expected module:attribute, such as shop.tasks:app; got 'tasks'",
        "nowhere:app": f"--app: there is no module 'nowhere' (looked in {folder} and the installed packages)",
        "tasks.nowhere:app": "--app: there is no module 'tasks.nowhere'",
        "./tasks:app": "--app: './tasks' is not the name of a module",
        "lacks:app": f"--app: importing lacks failed: No module named 'numpie' ({folder}/lacks.py, line 2; ",
        "wrong:app": f"--app: {folder}/wrong.py, line 1: invalid syntax",
        "tasks:ap": "--app: module tasks has no 'ap'; it has app",
        "tasks:not_an_app": "--app: tasks:not_an_app is a str, not a joex.App; it has app",
        "twice:app": "task 'echo': the app already has one with this name",
        "typo:app": "--app: importing typo failed: TypeError: App.task() got an unexpected keyword argument 'retrys' "
        f"({folder}/typo.py, line {typo_at}; python -c 'import typo' shows the traceback)",
        "deep:app": "--app: importing deep failed: JSONDecodeError: Expecting value: line 1 column 2 (char 1) "
        f"({folder}/deep.py, line 2; ",
        "bare:app": 'task: expected a name; write @app.task("name"); got <function send',
    }
    answers = await asyncio.gather(*(joex("executor", "--app", place) for place in wrong))
    for (place, expected), answer in zip(wrong.items(), answers, strict=True):
        assert (answer.code, answer.out) == (2, ""), place
        assert answer.complaint.startswith(expected), place


async def test_an_executor_of_an_app_without_tasks_says_so_at_its_start(joex, folder):
    (folder / "empty.py").write_text("import joex\n\napp = joex.App()\n")
    answer = await joex("executor", "--app", "empty:app", "--database-url", "postgresql://127.0.0.1:1/d")
    assert "the app has no tasks" in answer.err
    some = await joex("executor", "--app", "tasks:app", "--database-url", "postgresql://127.0.0.1:1/d")
    assert "the app has no tasks" not in some.err


async def test_what_cannot_be_done_is_one_line_and_exit_code_1(joex, client):
    job_id = await client.submit("t")
    nowhere = f"there is no job {NOWHERE}; 'joex jobs' lists them"
    no_task = "there is no periodic task 'x'; 'joex periodic list' lists them"
    refused = "the database is not available: "
    wrong = {
        ("show", NOWHERE): nowhere,
        ("logs", NOWHERE, "-f"): nowhere,
        ("why", NOWHERE): nowhere,
        ("priority", NOWHERE, "high"): nowhere,
        ("args", NOWHERE, "{}"): nowhere,
        ("remove", NOWHERE): nowhere,
        ("retry", NOWHERE): nowhere,
        ("periodic", "show", "x"): no_task,
        ("periodic", "remove", "x", "--force"): no_task,
        ("periodic", "enable", "x"): no_task,
        ("periodic", "disable", "x"): no_task,
        ("periodic", "run-now", "x"): no_task,
        ("pools", "--steps", "none"): "no pool 'none' had a step within a day; 'joex pools' lists them",
        ("drain", "nobody"): "no living executor has the app-id 'nobody'; 'joex executors' lists them",
        ("stats", "--database-url", "postgresql://127.0.0.1:1/d"): refused,
        ("executor", "--app", "tasks:app", "--database-url", "postgresql://127.0.0.1:1/d"): refused,
    }
    answers = await asyncio.gather(*(joex(*command) for command in wrong))
    for (command, expected), answer in zip(wrong.items(), answers, strict=True):
        assert (answer.code, answer.out) == (1, ""), command
        assert answer.complaint.startswith(expected), command
    some = await joex("cancel", NOWHERE, str(job_id))  # the others are cancelled nevertheless
    assert (some.code, some.out, some.complaint) == (1, f"{job_id} cancelled\n", nowhere)


async def test_an_empty_database_is_refused_until_it_is_migrated(folder, empty_database_url):
    joex = Joex(folder, None)
    url = ("--database-url", empty_database_url)
    refused = await asyncio.gather(joex("stats", *url), joex("executor", "--app", "tasks:app", *url))
    for answer in refused:
        assert (answer.code, answer.out) == (2, "")
        assert "no Joex schema" in answer.complaint
        assert "run 'joex migrate'" in answer.complaint
    assert "applied 0001_jobs" in await joex.done("migrate", *url)
    assert await joex.done("migrate", *url) == "the schema is up to date"
    assert await joex.done("stats", *url) == "no unfinished jobs"


async def test_without_a_database_url_an_embedded_server_is_used_and_migrated(folder, folder_for_a_server):
    joex = Joex(folder, None)
    submitted = await joex("submit", "t", JOEX_EMBEDDED_DIR=str(folder_for_a_server))
    assert submitted.code == 0
    assert submitted.complaint == (f"no database URL is given: using the embedded PostgreSQL in {folder_for_a_server}")
    listed = await joex("jobs", "--json", JOEX_EMBEDDED_DIR=str(folder_for_a_server))
    assert [job["id"] for job in listed.json] == [submitted.out.strip()]


async def test_a_client_reaches_the_embedded_server_by_the_folder_of_its_data(folder_for_a_server):
    server = EmbeddedServer(folder_for_a_server)
    try:
        connection = await connect(f"postgresql://postgres@/postgres?host={folder_for_a_server}/pg18/data")
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
    finally:
        server.close()


async def test_an_executor_runs_jobs_until_it_is_asked_to_drain(joex, client):
    async with joex.executor() as executor:
        echo, boom = await client.submit("echo", {"text": "hey", "times": 2}), await client.submit("boom")
        done, failed = await asyncio.gather(joex("logs", "-f", str(echo)), joex("logs", "--json", "-f", str(boom)))
        assert (done.code, done.complaint) == (0, "the job is finished: success")
        assert re.fullmatch(rf"{TIME.pattern} \[1\] INFO    hey\n{TIME.pattern} \[1\] INFO    succeeded\n", done.out)
        assert failed.complaint == "the job is finished: failed, ValueError: broken"
        trace, end = map(json.loads, failed.out.splitlines())
        assert "ValueError: broken" in trace["message"]
        assert end["message"].startswith("failed: ValueError: broken; ")
        assert '"heyhey"' in await joex.done("show", str(echo))
        (living,) = (await joex("executors", "--json")).json
        assert (living["app_id"], living["pid"]) == ("it", executor.process.pid)
        assert not living["http_address"].endswith(":0")  # the port that it found

        asked, nobody = await asyncio.gather(joex.done("notify"), joex.done("notify", "mail"))
        assert asked == "1 executor of the queue default asked to look for work"
        assert nobody == "no executor takes from the queue mail"

        drained = await joex("drain", "it", "--wait")
        assert (drained.code, drained.out, drained.err) == (0, "it drains\nit has exited\n", "")
        assert await asyncio.wait_for(executor.process.wait(), PATIENCE) == 0
    assert await joex.done("executors") == "no executors are alive; --all shows those that have exited"
    assert [e["state"] for e in (await joex("executors", "--all", "--json")).json] == ["left"]
    assert await joex.done("drain", "--all", "--wait") == "no living executors"


async def test_a_submission_waits_for_the_result_where_it_is_told_to(joex, client):
    async with joex.executor():
        good, bad = await asyncio.gather(
            joex("submit", "echo", "--arg", "text=hü", "--arg", "times:=2", "--wait"), joex("submit", "boom", "--wait")
        )
    assert (good.code, good.out) == (0, '"hühü"\n')
    job_id = good.complaint.removeprefix("job ")
    assert (await client.get(job_id)).state == "success"
    assert (bad.code, bad.out) == (1, "")
    first, second = bad.err.splitlines()
    assert second == f"{first}: failed, ValueError: broken"


async def test_a_submission_that_waits_reports_a_failed_run_and_goes_on(joex, client):
    async with joex.executor(), joex.started("submit", "second", "--wait") as waits:

        async def line() -> str:
            printed: bytes = await asyncio.wait_for(waits.stderr.readline(), PATIENCE)
            return printed.decode()

        job_id = (await line()).removeprefix("joex: job ").strip()
        failed = "joex: run 1 failed: ValueError: not at the first time; retry at TIME\n"
        assert TIME.sub("TIME", await line()) == failed
        assert await client.retry(job_id)
        out, err = await asyncio.wait_for(waits.communicate(), PATIENCE)
        assert (waits.returncode, out, err) == (0, b"2\n", b"")
    assert re.search(r"^last error +ValueError: not at the first time$", await joex.done("show", job_id), re.MULTILINE)


async def test_a_submission_that_waits_fails_where_the_job_is_cancelled_removed_or_skipped(joex, client, pool):
    async def when_submitted(tracker, end):
        job_id = await eventually(lambda: pool.fetchval("SELECT id FROM joex_private.job WHERE tracker = $1", tracker))
        await pool.fetchval(end, job_id)

    await client.submit("t", tracker="three")
    cancelled, removed, skipped, *_ = await asyncio.gather(
        *(joex("submit", "t", "--wait", "--tracker", tracker) for tracker in ("one", "two", "three")),
        when_submitted("one", "SELECT joex.cancel($1)"),
        when_submitted("two", "SELECT joex.remove($1)"),
    )
    assert [(answer.code, answer.out) for answer in (cancelled, removed, skipped)] == [(1, "")] * 3
    assert cancelled.err.endswith(": cancelled\n")
    assert removed.err.endswith(": it was removed\n")
    assert skipped.complaint == "skipped: an unfinished job of its group has the tracker 'three'"


async def test_the_first_signal_drains_and_the_second_gives_the_runs_back(joex, client):
    async with joex.executor() as executor:
        job_id = await client.submit("wait")
        await eventually(lambda: _is(client, job_id, "running"))
        executor.process.send_signal(signal.SIGTERM)
        assert f"wait {job_id}" in await executor.line("SIGTERM: waiting for the runs: ")
        executor.process.send_signal(signal.SIGINT)
        await executor.line("SIGINT again: giving back the runs: ")
        assert await asyncio.wait_for(executor.process.wait(), PATIENCE) == 0
    job = await client.get(job_id)
    assert (job.state, job.failures, job.losses) == ("waiting", 0, 0)


async def test_a_running_job_that_is_cancelled_is_told_to_end(joex, client):
    async with joex.executor() as executor:
        job_id = await client.submit("wait")
        await eventually(lambda: _is(client, job_id, "running"))
        assert await joex.done("cancel", str(job_id)) == f"{job_id} is running, and was asked to end"
        await eventually(lambda: _is(client, job_id, "cancelled"))
        executor.process.send_signal(signal.SIGTERM)
        # (The database knows of the end of a job a moment before the executor does: its run may still be named here.)
        await executor.line("SIGTERM: waiting for the runs: ")
        assert await asyncio.wait_for(executor.process.wait(), PATIENCE) == 0


async def test_ctrl_c_ends_a_command_quietly_with_130(joex, client, pool):
    job_id = await client.submit("t")
    await _log_a_line(pool, job_id, "hello")
    process = await joex.start("logs", "-f", str(job_id))
    assert process.stdout is not None
    assert b"hello" in await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (process.returncode, err) == (130, b"")


async def test_stats_are_watched_in_blocks_until_ctrl_c(joex, client):
    await client.submit("t", queue="mail")
    async with joex.started("stats", "--watch", "100ms") as process:
        lines = [(await line_of(process)).rstrip() for _ in range(14)]
        assert await interrupted(process) == (130, "")
    first, second = lines[:7], lines[7:]
    assert first[0] < second[0]
    for block, ended in ((first, "-"), (second, "0\\.0")):
        assert TIME.fullmatch(block[0])
        assert block[1] == "QUEUE  GROUPS  WAITING  DEFERRED  STUCK  SCHEDULED  RUNNING  OLDEST  PAUSED  ENDED/S"
        assert re.fullmatch(rf"mail +1 +1 +0 +0 +0 +0 +\S+ +no +{ended}", block[2])
        assert block[4] == "QUEUE  ACTIVE  BEHIND  MEDIAN WAIT  LONGEST WAIT  LARGEST"
        assert re.fullmatch(r"mail +1 +0 +\S+ +\S+ +-", block[5])
        assert block[3] == block[6] == ""


async def test_watched_stats_say_how_many_jobs_have_ended(joex, client):
    job_id = await client.submit("t", queue="mail")
    async with joex.started("stats", "--watch", "100ms", "--json") as process:
        first = json.loads(await line_of(process))
        assert TIME.fullmatch(first["at"])
        assert [(q["queue"], q["waiting"], q["ended_per_second"]) for q in first["queues"]] == [("mail", 1, None)]
        await client.cancel(job_id)
        before, look = first, json.loads(await line_of(process))
        async with asyncio.timeout(PATIENCE):
            while not any(queue["ended_per_second"] for queue in look["queues"]):
                before, look = look, json.loads(await line_of(process))
        assert await interrupted(process) == (130, "")
    (mail,) = look["queues"]  # it is shown, though it has no unfinished jobs
    assert (mail["queue"], mail["waiting"], mail["groups"]) == ("mail", 0, 0)
    took = datetime.fromisoformat(look["at"]) - datetime.fromisoformat(before["at"])
    assert mail["ended_per_second"] == pytest.approx(1 / took.total_seconds(), abs=0.1)


async def test_stats_are_watched_in_place_on_a_terminal(joex, client):
    await client.submit("t", queue="mail")
    terminal, end = os.openpty()
    async with joex.started("stats", "--watch", "100ms", stdout=end) as process:
        os.close(end)
        shown = ""
        while shown.count("ENDED/S") < 2:
            shown += (await asyncio.to_thread(os.read, terminal, 4096)).decode()
        assert await interrupted(process) == (130, "")
    os.close(terminal)
    assert "\x1b[1A" in shown.split("ENDED/S")[1]  # back to the line above


async def test_watching_goes_on_when_the_database_was_away(folder, client, postgres, database_name):
    await client.submit("t")
    async with Proxy(postgres.port) as proxy:
        joex = Joex(folder, postgres.tcp_url(database_name, port=proxy.port))
        async with joex.started("stats", "--watch", "100ms", "--json") as process:
            await line_of(process)
            await proxy.refuse()
            assert process.stderr is not None
            told = (await asyncio.wait_for(process.stderr.readline(), PATIENCE)).decode()
            await some_calls(proxy.port)  # it retries in vain, and reports it once
            await proxy.accept()
            await client.submit("t")
            while json.loads(await line_of(process))["queues"][0]["waiting"] < 2:
                pass
            assert await interrupted(process) == (130, "")
        assert re.fullmatch(
            r"joex: the (database is not available|connection to .* is closed): .*; trying again\n", told
        )
        await proxy.refuse()
        assert (await joex("stats", "--watch")).code == 1  # it was never there


async def some_calls(port: int) -> None:
    """Wait until a client has tried to connect a few times, each time in vain."""
    tried = asyncio.Semaphore(0)

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        tried.release()

    async with await asyncio.start_server(hang_up, "127.0.0.1", port), asyncio.timeout(PATIENCE):
        for _ in range(6):
            await tried.acquire()


@pytest.mark.parametrize("jobs", [1, 100])  # less, and more, than the output is buffered
async def test_a_pipe_that_nobody_reads_is_quiet(joex, client, jobs):
    await client.submit_many([{"task": "t", "subject": "x" * 500}] * jobs)
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
            [sys.executable, "-m", "joex", "jobs", "--json", "--limit", "100"],
            stdout=write,
            stderr=subprocess.PIPE,
            env=joex.environment,
            cwd=joex.folder,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


async def test_a_queue_is_paused_and_resumed(joex, client):
    job_id = await client.submit("t", queue="mail")
    assert await joex.done("queues") == "no queue is paused"
    assert await joex.done("queues", "set", "mail", "--pause") == "queue mail: paused"
    [paused] = (await joex("queues", "--json")).json
    assert (paused["queue"], bool(paused["since"]), bool(paused["by"])) == ("mail", True, True)
    assert "its queue 'mail' is paused since" in await joex.done("why", str(job_id))
    columns, mail = (await joex.done("stats")).splitlines()[:2]
    assert (columns.split()[-1], mail.split()[-1]) == ("PAUSED", "yes")
    assert await joex.done("queues", "set", "mail", "--resume") == "queue mail: not paused"
    assert (await joex("queues", "set", "mail")).complaint == "queues set: say what to change: --pause or --resume"


async def test_the_help_names_every_command_and_every_setting(joex):
    overview, without, executor = await asyncio.gather(
        joex.done("--help"), joex.done(), joex.done("executor", "--help")
    )
    assert without == overview
    commands = (
        "migrate executor submit jobs show logs cancel remove retry priority args queues groups periodic stats "
        "executors notify drain version"
    )
    for name in commands.split():
        assert re.search(rf"^│ {name} +\w", overview, re.MULTILINE), name
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in executor
        assert str(field.description)[:30] in executor
    assert "(default: 4,1)" in executor
    assert "(default: 30m)" in executor


def test_the_command_line_loads_nothing_heavy_before_it_is_needed():
    command = "import sys; from joex.cli.app import app; app(['jobs', '--help'], standalone_mode=False)"
    assert not {"joex.cli.submit", "joex.cli.executor", "joex_operator"} & _modules(command)
    found = _modules("import sys, joex.cli.executor, joex.cli.console, joex.cli.dev, joex.cli.jobs, joex.cli.stats")
    assert not {"fastapi", "uvicorn", "uvloop", "rich.table", "prometheus_client", "structlog"} & found


def _modules(code: str) -> set[str]:
    """The modules that a program loads."""
    command = [sys.executable, "-c", f"{code}; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


async def test_an_executor_whose_http_interface_can_not_be_loaded_loses_no_job(joex: Joex, client: Client):
    """Jobs begin before it is loaded. If the executor just exited, each of them would have a loss."""
    (joex.folder / "slow.py").write_text("""
import asyncio, pathlib
import joex
app = joex.App()
@app.task("slow")
async def slow(ctx):
    await asyncio.to_thread(pathlib.Path("begun").write_text, "now")
    await asyncio.Event().wait()
""")
    (joex.folder / "fastapi.py").write_text("""
import pathlib
pathlib.Path("begun").read_text()
raise ImportError("an image that is broken")
""")
    os.mkfifo(joex.folder / "begun")  # the import waits in its thread until the job has begun
    job_id = await client.submit("slow")
    assert job_id is not None
    process = await joex.start("executor", "--app", "slow:app", "--http-address", "127.0.0.1:0")
    _, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    last = err.decode().splitlines()[-1]
    assert last.startswith("joex: JOEX_HTTP_ADDRESS: the HTTP interface can't be loaded: ImportError: an image that is")
    assert process.returncode == 2
    job = await client.get(job_id)
    assert job is not None
    assert (job.state, job.losses) == ("waiting", 0)


def test_an_executor_takes_jobs_without_waiting_for_what_its_http_interface_loads():
    code = "import sys, joex.cli.executor, joex.http.listening, joex.runtime.executor; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"fastapi", "uvicorn", "starlette"} & set(found)


async def _is(client: Client, job_id: Any, state: str) -> bool:
    job = await client.get(job_id)
    return job is not None and job.state == state


async def _log_a_line(pool: Any, job_id: Any, message: str) -> None:
    await pool.execute(
        "INSERT INTO joex_private.job_log (job_id, attempt, at, level, message) VALUES ($1, 1, now(), 'info', $2)",
        job_id,
        message,
    )


async def _register_somebody(pool: Any) -> None:
    me = NewExecutor(
        app_id="somebody",
        pod_uid=None,
        host="here",
        boot_id="",
        pid=1,
        process_start="",
        version="0",
        queues=["default"],
        tasks=[],
        pool_size=1,
        most_losses=5,
        http_address=None,
        lease=timedelta(seconds=60),
        locks=False,
    )
    async with pool.acquire() as connection:
        await register(connection, me)


# Tokens


async def test_a_token_is_shown_once_and_listed_without_itself(joex, connection):
    answer = await joex("tokens", "create", "shop", "--scope", "submit", "--scope", "view", "--group", "acme")
    assert answer.code == 0
    assert re.fullmatch(r"joex_[A-Za-z0-9_-]{43}\n", answer.out)
    assert "only time" in answer.err
    token = answer.out.strip()
    await joex("tokens", "create", "board", "--scope", "view", "--queue", "a", "--queue", "b", "--expires", "90d")
    stored = await connection.fetch("SELECT api_token::text FROM joex_private.api_token")
    assert token not in str(stored)
    listed = json.loads(await joex.done("tokens", "list", "--json"))
    assert [(one["name"], one["scopes"], one["groups"], one["queues"]) for one in listed] == [
        ("board", ["view"], None, ["a", "b"]),
        ("shop", ["view", "submit"], ["acme"], None),
    ]
    assert all(TIME.fullmatch(one["created_at"]) and one["last_used_at"] is None for one in listed)
    expires, created = (datetime.fromisoformat(listed[0][name]) for name in ("expires_at", "created_at"))
    assert timedelta(days=90) - timedelta(minutes=5) < expires - created < timedelta(days=90) + timedelta(minutes=5)
    assert listed[1]["expires_at"] is None
    plain = await joex.done("tokens")
    assert plain == await joex.done("tokens", "list")
    head, board, shop = (re.split("  +", line.strip()) for line in plain.splitlines())
    assert head == ["NAME", "SCOPES", "GROUPS", "QUEUES", "CREATED", "EXPIRES", "LAST USED"]
    assert (board[:4], board[6]) == (["board", "view", "all", "a,b"], "never")
    assert (shop[:4], shop[5:]) == (["shop", "view,submit", "acme", "all"], ["never", "never"])
    assert token not in plain + str(listed)


async def test_a_token_is_revoked_by_its_name_which_is_free_again(joex):
    first = (await joex("tokens", "create", "shop", "--scope", "view")).out
    again = await joex("tokens", "create", "shop", "--scope", "view")
    taken = "joex: NAME: there is a token 'shop' already: choose another name, or revoke that one first\n"
    assert (again.code, again.out, again.err) == (2, "", taken)
    assert await joex.done("tokens", "revoke", "shop") == "token shop is revoked"
    assert await joex.done("tokens", "list") == "there are no tokens"
    gone = await joex("tokens", "revoke", "shop")
    assert (gone.code, gone.err) == (1, "joex: there is no token 'shop'\n")
    assert (await joex("tokens", "create", "shop", "--scope", "view")).out != first


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("a",), "--scope: say what the token may do: some of view, payloads, submit, work, operate"),
        (("a", "--scope", "all"), "--scope: expected some of view, payloads, submit, work, operate; got 'all'"),
        (("a", "--scope", "payloads"), "--scope: payloads adds arguments, results and logs to what view or submit"),
        (("a", "--scope", "work", "--group", "acme"), "--group: a worker accepts jobs of all groups of a queue"),
        (("a", "--scope", "view", "--group", ""), "--group: must not be empty"),
        (("a", "--scope", "view", "--queue", "q" * 255), "--queue: at most 254 bytes; got 255"),
        (("", "--scope", "view"), "NAME: must not be empty"),
        (("a", "--scope", "view", "--expires", "soon"), "--expires: expected something like '30s'"),
        (("a", "--scope", "view", "--expires", "0s"), "--expires: expected more than 0; got '0s'"),
        (("a", "--scope", "view", *("--group=x", *(f"--group={nr}" for nr in range(100)))), "--group: at most 100;"),
    ],
)
async def test_a_token_that_makes_no_sense_is_refused_in_a_line_that_names_the_option(joex, arguments, line):
    answer = await joex("tokens", "create", *arguments)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith(f"joex: {line}"), answer.err
    assert await joex.done("tokens", "list") == "there are no tokens"
