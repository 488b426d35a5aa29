"""`joex simulate`, as its user runs it: on a workload, and on a trace of real executors."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from joex import Client
from joex.store import stats
from tests.acceptance.test_cli import Joex
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
POOL = ROOT / "examples" / "joexpool.yaml"
WORKLOAD = """
period: 10m
tenants:
  - {name: shop, count: 12, rate: 30/min, duration: {median: 1s, p95: 5s}, high: 20%, failures: 1%}
  - {name: archive, bursts: [{jobs: 200, at: 2m}], duration: 5s, weight: 2}
"""
TASKS = """
import asyncio
import joex

app = joex.App()


@app.task("sleep")
async def sleep(ctx, seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task("fail")
async def fail(ctx) -> None:
    raise ValueError("no")
"""


@pytest.fixture
def joex(tmp_path: Path) -> Joex:
    """The command without a database: only the trace needs one."""
    (tmp_path / "load.yaml").write_text(WORKLOAD)
    (tmp_path / "tasks.py").write_text(TASKS)
    return Joex(tmp_path, None)


async def simulated(joex: Joex, *arguments: str) -> str:
    """The output of a simulation. (On a slow machine it prints its progress on stderr.)"""
    answer = await joex(*arguments)
    assert answer.code == 0, answer
    return answer.out.strip()


async def test_a_workload_on_a_pool_is_told_in_tables(joex):
    out = await simulated(joex, "simulate", "load.yaml", "-f", str(POOL), "--price", "0.05", "--limit", "3")
    assert re.search(r"^[\d,]+ jobs in \w+: [\d,]+ success, \d+ failed$", out, re.MULTILINE)
    for head in ("QUEUE .* P50 +P95 +P99 +MAX +JAIN", "GROUP +QUEUE +WEIGHT .* OF SLOTS", "POOL .* HOURS +COST"):
        assert re.search(rf"^{head}$", out, re.MULTILINE), out
    assert "These waited longest, of 13 groups. The busiest:" in out
    assert re.search(r"^documents +[\d.]+ +\d+ +4 .* [\d.]+%? +[\d.]+ +\d+\.\d\d$", out, re.MULTILINE), out


async def test_as_json_it_says_everything_and_the_same_each_time(joex):
    command = ("simulate", "load.yaml", "-f", str(POOL), "--json")
    first, second, other = await asyncio.gather(
        simulated(joex, *command), simulated(joex, *command), simulated(joex, *command, "--seed", "2")
    )
    assert first == second != other
    [policy] = json.loads(first)["policies"]
    assert policy["policy"] == str(POOL)
    assert len(policy["groups"]) == 13
    assert policy["success"] + policy["failed"] == policy["jobs"] > 3000
    assert sum(group["slot_share"] for group in policy["groups"]) == pytest.approx(1)
    assert policy["waits"]["p50"] <= policy["waits"]["p95"] <= policy["waits"]["max"]
    assert policy["pools"][0]["executors_max"] == 4
    assert policy["cost"] is None


async def test_policies_are_compared(joex):
    (joex.folder / "large.yaml").write_text(POOL.read_text().replace("maxReplicas: 4", "maxReplicas: 40"))
    sizes = ("-f", str(POOL), "--compare", "large.yaml", "--executors", "20", "--executors", "50", "--pool-size", "1")
    out = await simulated(joex, "simulate", "load.yaml", *sizes, "--price", "1")
    assert out.splitlines()[0].split()[:6] == ["POLICY", "MEAN", "P50", "P95", "P99", "MAX"]
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == [str(POOL), "large.yaml", "20 of 1", "50 of 1"]
    found = json.loads(await simulated(joex, "simulate", "load.yaml", *sizes, "--price", "1", "--json"))["policies"]
    assert found[1]["waits"]["p95"] < found[0]["waits"]["p95"]
    assert found[3]["cost"] == pytest.approx(50 * found[3]["seconds"] / 3600)


@pytest.mark.parametrize("suffix", ["svg", "png"])
async def test_it_draws(joex, suffix):
    await simulated(joex, "simulate", "load.yaml", "-f", str(POOL), "--executors", "4", "--plot", f"out.{suffix}")
    begins = {"svg": b"<?xml", "png": b"\x89PNG"}[suffix]
    assert (joex.folder / f"out.{suffix}").read_bytes().startswith(begins)


async def test_where_the_library_that_draws_is_missing_one_line_names_the_extra(joex):
    (joex.folder / "matplotlib").mkdir()
    (joex.folder / "matplotlib" / "__init__.py").write_text("raise ModuleNotFoundError('none', name='matplotlib')")
    answer = await joex(*("simulate", "load.yaml", "-f", str(POOL), "--plot", "out.svg"), PYTHONPATH=str(joex.folder))
    assert (answer.code, answer.out) == (2, "")
    assert answer.complaint == "--plot needs the extra: pip install 'joex[plot]'"


async def test_a_wrong_call_or_file_says_what_to_mend(joex):
    write = lambda name, text: (joex.folder / name).write_text(text)  # noqa: E731 - a short word for it
    write("wrong.yaml", WORKLOAD.replace("30/min", "often"))
    write("broken.yaml", "period: [")
    write("two.yaml", "period: 1h\n---\nperiod: 1h\n")
    write("none.yaml", "period: 1s\ntenants: [{name: a, bursts: [{jobs: 1, at: 1h}], duration: 1s}]\n")
    write("wrong.jsonl", '{"at": "2026-01-31T03:00:00Z"}\n')
    write("other.yaml", WORKLOAD.replace("name: archive,", "name: archive, queue: slow,"))
    pool = ("-f", str(POOL))
    wrong = {
        ("load.yaml",): "simulate: expected pools with --file, or a number with --executors",
        ("wrong.yaml", *pool): "wrong.yaml: tenants[0].rate: expected jobs per time, such as '2/s'",
        ("broken.yaml", *pool): "broken.yaml, line 1, column 10: ",
        ("two.yaml", *pool): "two.yaml: expected one document, with period and tenants; got 2",
        ("none.yaml", *pool): "none.yaml: no jobs",
        ("missing.yaml", *pool): "missing.yaml: No such file or directory",
        ("missing.jsonl", *pool): "missing.jsonl: No such file or directory",
        ("wrong.jsonl", *pool): "wrong.jsonl, line 1: group: required",
        ("other.yaml", *pool): f"{POOL}: no pool serves queue 'slow', which has jobs; served: default",
        ("load.yaml", "-f", "load.yaml"): "load.yaml, document 1: kind: expected JoexPool",
        ("load.yaml", *pool, "--plot", "out.txt"): "--plot: expected a name that ends in .svg, .png, .pdf; got",
        ("load.yaml", *pool, "--start-up", "soon"): "--start-up: expected something like '30s'",
        ("load.yaml", *pool, "--overhead", "2h"): "--overhead: expected at most 1h; got '2h'",
        ("load.yaml", "--executors", "0"): "Invalid value for '--executors'",
    }
    answers = await asyncio.gather(*(joex("simulate", *command) for command in wrong))
    for answer, (command, expected) in zip(answers, wrong.items(), strict=True):
        assert (answer.code, answer.out) == (2, ""), command
        assert answer.complaint.startswith(expected), (command, answer.complaint)


async def test_jobs_that_never_run_are_told(joex):
    (joex.folder / "idle.yaml").write_text(
        POOL.read_text().replace("  poolSize: 2 ", "  suspend: true\n  poolSize: 2 ")
    )
    answer = await joex("simulate", "load.yaml", "-f", "idle.yaml")
    assert answer.code == 0
    assert re.search(r"idle.yaml: [\d,]+ jobs never ran: no executor was left", answer.complaint)


# The trace of a real run.


async def test_what_was_really_run_is_exported_and_simulated(joex, database_url, client: Client, connection):
    """Counts, ends and settings are the same; the benchmark compares waits, because no test measures time."""
    joex.environment["JOEX_DATABASE_URL"] = database_url
    await stats.set_group(connection, "heavy", "default", weight=2)
    jobs: list[dict[str, Any]] = [
        {"task": "sleep", "args": {"seconds": 0.05}, "group": group} for group in ["heavy"] * 30 + ["light"] * 20
    ]
    jobs += [{"task": "fail", "group": "light", "retries": 1}] * 3
    await client.submit_many(jobs)
    async with joex.executor("--pool-size", "4", "--retry-delay", "100ms"):
        open_jobs = "SELECT count(*) FROM joex_private.job WHERE finished_at IS NULL"
        await eventually(lambda: _is_zero(connection, open_jobs), why="all jobs have ended")
    plain, hidden, later = await asyncio.gather(
        joex.done("stats", "--trace"),
        joex.done("stats", "--trace", "--anonymous", "--queue", "default", "--since", "1h"),
        joex.done("stats", "--trace", "--since", "2100-01-01T00:00:00Z"),
    )
    lines = list(map(json.loads, plain.splitlines()))
    assert Counter((line["group"], line["state"]) for line in lines) == {
        ("heavy", "success"): 30,
        ("light", "success"): 20,
        ("light", "failed"): 3,
    }
    assert {line["weight"] for line in lines if line["group"] == "heavy"} == {2}
    assert all(line["waited"] >= 0 and line["seconds"] > 0 for line in lines)
    assert "heavy" not in hidden
    assert sorted(Counter(json.loads(line)["group"] for line in hidden.splitlines()).values())[-2:] == [23, 30]
    assert later == ""
    answer = await joex("simulate", "-", "--executors", "1", "--pool-size", "4", "--json", given=plain)
    [policy] = json.loads(answer.out)["policies"]
    groups = {group["group"]: group for group in policy["groups"]}
    assert (policy["failed"], policy["not_run"]) == (3, 0)
    assert groups["heavy"]["waits"]["runs"] == 30
    assert groups["light"]["waits"]["runs"] == 20 + 2 * 3
    assert groups["light"]["was"]["runs"] == 23
    table = (await joex("simulate", "-", "--executors", "1", given=plain)).out
    assert re.search(r"^as it was +- ", table, re.MULTILINE)
    assert "WAS P95" in table


async def _is_zero(connection, question):
    return await connection.fetchval(question) == 0
