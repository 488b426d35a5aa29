"""`make demo`, as its user runs it."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from examples.demo import app, story
from examples.demo.orders import make_orders
from examples.demo.summary import Summary
from tests.support.pages import DOCS, console, is_as_shown
from tests.support.postgres import TestServer
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "examples.demo"]
SMALL = ("acme", "globex", "initech")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the embedded server can reach, which runs as another user if we are root."""
    name = Path(tempfile.mkdtemp(prefix="joex-test-demo-", dir="/var/tmp"))
    name.chmod(0o755)
    (name / "tmp").mkdir()
    yield name
    shutil.rmtree(name)


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """The demo makes all its files in the folder, and must ignore other settings."""
    mine = {"JOEX_EMBEDDED_DIR": str(folder), "TMPDIR": str(folder / "tmp")}
    others = {"JOEX_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing", "JOEX_QUEUES": "other"}
    return {**os.environ, **others, **mine}


def test_the_library_has_every_file_unless_fewer_are_asked_for(tmp_path):
    whole, part = (make_orders(tmp_path / str(most), most).library for most in (None, 150))
    assert len(part) == 150 < len(whole)
    assert {str(Path(json.__file__)), os.__file__} <= {order.args["path"] for order in whole}


@pytest.mark.heavy
def test_nothing_is_lost_and_small_tenants_wait_less_than_in_line(environment, folder, monkeypatch):
    make = ("make", "--dry-run", "demo", "ARGS=--files 150 --json")
    command = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    done = subprocess.run(shlex.split(command), cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    tenants = {tenant["name"]: tenant for tenant in summary["tenants"]}

    assert (summary["lost"], summary["jobs"]) == (0, 150 + 3 * 20)
    assert {name: t["done"] + t["failed"] for name, t in tenants.items()} == {"library": 150} | dict.fromkeys(SMALL, 20)
    for name in SMALL:
        assert tenants[name]["joex"]["mean_wait"] < tenants[name]["fifo"]["mean_wait"], tenants[name]

    assert re.search(r"watch it in the console: http://127\.0\.0\.1:\d+/", done.stderr)
    assert 1 <= summary["recovery"]["jobs"] <= 2
    assert 0 < summary["recovery"]["in_line_after"] <= summary["recovery"]["ended_after"]
    assert tenants["globex"]["retried"] == 3
    assert [tenants[name]["failed"] for name in tenants] == [0, 0, 0, 1]
    assert "invoice.py" in summary["errors"][0]
    assert summary["counted"]["files"] == 150
    assert all(summary["counted"].values())
    assert "kill -9" in done.stderr

    sizes = [change["executors"] for change in summary["pool"]]
    assert (sizes[0], sizes[-1]) == (0, 0)
    assert 1 <= max(sizes) <= 3
    assert "kind: JoexPool" in done.stderr
    # (One event covers all executors that a reconcile adds or removes.)
    for event in (
        r"Added .*documents-0\b.*: demand",
        "ExecutorEnded documents-",
        r"Removed .*documents-0\b.*: retired",
    ):
        assert re.search(f"joex up: {event}", done.stderr), done.stderr
    assert not list((folder / "tmp").glob("joex*"))

    # Without --json, the same results are told as the tour shows them.
    async def played(*_: object, **__: object) -> Summary:
        return TypeAdapter(Summary).validate_python(summary)

    monkeypatch.setattr(story, "play", played)
    [shown] = [step.shown for step in console(DOCS / "learn" / "first-job.md") if step.text == "make demo\n"]
    told = CliRunner().invoke(app, ["--database-url", "postgresql://localhost/"])
    assert is_as_shown(told.output, shown or ""), told


async def test_what_a_killed_demo_leaves_is_cleaned_by_the_next_one_and_ctrl_c_cleans_at_once(
    environment, folder, postgres: TestServer
):
    await run(postgres, "CREATE DATABASE joex_demo_00c0ffee")  # of a demo that was killed before it had made the schema

    killed = start(environment, postgres)
    orphans = processes_of(killed)
    killed.kill()
    killed.communicate()
    assert len(await databases(postgres)) == 1
    assert list((folder / "tmp").glob("joex*"))

    interrupted = start(environment, postgres)
    processes = processes_of(interrupted)
    assert len(await databases(postgres)) == 1
    await eventually(lambda: not any(map(is_running, orphans)), why="the processes of the killed demo have left")

    interrupted.send_signal(signal.SIGINT)
    output, _ = interrupted.communicate(timeout=PATIENCE)
    assert interrupted.returncode == 130, output
    assert "Traceback" not in output
    assert not any(map(is_running, processes))
    assert await databases(postgres) == []
    assert not list((folder / "tmp").glob("joex*"))


def start(environment: dict[str, str], server: TestServer) -> subprocess.Popen:
    return subprocess.Popen(
        [*DEMO, "--database-url", server.url()],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(demo: subprocess.Popen) -> list[psutil.Process]:
    """Wait until the demo has an executor, and return all its processes: `joex up` and its children."""
    assert demo.stdout is not None
    lines: list[str] = []
    while "●" not in "".join(lines[-1:]):
        line = demo.stdout.readline()
        assert line, f"the demo ended: {lines}"
        lines.append(line)
    found = psutil.Process(demo.pid).children(recursive=True)
    assert len(found) >= 2
    return found


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def databases(server: TestServer) -> list[Any]:
    return await run(server, r"SELECT datname FROM pg_database WHERE datname LIKE 'joex\_demo\_%'")


async def run(server: TestServer, sql: str) -> list[Any]:
    connection = await asyncpg.connect(server.url())
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()
