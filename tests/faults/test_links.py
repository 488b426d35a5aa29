"""The network between an executor and the server: cut, silent, or losing an answer at the worst moment."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
import pytest

from joex.runtime.lease import EXIT_CODE
from tests.support.apps import AnyClient, Effects
from tests.support.processes import SHORT, ExecutorProcess, ExecutorProcesses
from tests.support.proxy import At, Proxy
from tests.support.waiting import eventually

_STATEMENTS = (
    "joex_private.take(",
    "joex_private.start_many(",
    "joex_private.finish_many(",
    "joex.finish(",
    "COMMIT",
    "joex_private.note_many(",
    "joex_private.sleep_state(",
    "joex_private.heartbeat(",
    "joex_private.check_runs(",
    "joex_private.has_work(",
    "joex_private.rescue(",
    "pg_try_advisory_lock(",
    "LISTEN",
)

_SILENT_AT = (
    "joex_private.take(",
    "joex_private.note_many(",
    "joex_private.finish_many(",
    "joex_private.heartbeat(",
    "joex_private.check_runs(",
    "joex_private.has_work(",
    "joex_private.rescue(",
    "pg_try_advisory_lock(",
    "LISTEN",
)
"""The statements of the executor's own services, without those of tasks, which may take any time."""


@pytest.mark.parametrize("at", [At.CUT, At.CUT_ANSWER])
async def test_a_link_that_breaks_at_a_statement_loses_no_job_and_stops_no_executor(
    at: At, client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy
) -> None:
    """At each statement of an executor in turn: as it arrives, or as its answer comes back."""
    executor = await executors.start("one", url=proxy.url, pool_size=4, lease=3)
    for number, statement in enumerate(_STATEMENTS):
        await proxy.cut()  # so that the executor prepares all statements again
        trap = proxy.trap(statement, at)
        flag = f"flag {number}"
        held = await client.submit("hold", {"flag": flag})
        ids = await client.submit_many([{"task": task} for task in ("transaction", "transaction", "log")])
        await eventually(trap.sprung.is_set, why=f"the executor says {statement}")
        await effects.begun(held)
        await effects.flag(flag)
        assert await effects.all_finished([held, *ids], why=statement) == {"success": 4}, statement
        assert executor.is_alive, statement
    committed = await effects.committed()
    assert set(committed.values()) == {1}
    assert len(committed) == 2 * len(_STATEMENTS)
    assert await effects.overlapping() == []


async def test_links_that_go_silent_at_a_statement_lose_no_job_and_stop_no_executor(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy
) -> None:
    """One link for each statement. Neither side gets an error, and other links work all the time."""
    executor = await executors.start("one", url=proxy.url, pool_size=4, lease=3)
    await proxy.cut()
    traps = [
        proxy.trap(statement, (At.FREEZE_ANSWER, At.FREEZE)[number % 2]) for number, statement in enumerate(_SILENT_AT)
    ]
    ids = []

    async def all_sprung() -> bool:
        batch = await client.submit_many([{"task": task} for task in ("effect", "transaction", "log")])
        held = await client.submit("hold", {"flag": "go"})
        ids.extend([*batch, held])
        await effects.begun(held)
        return all(trap.sprung.is_set() for trap in traps)

    await eventually(all_sprung, why=f"the executor says {', '.join(_SILENT_AT)}")
    await effects.flag("go")
    assert await effects.all_finished(ids) == {"success": len(ids)}
    assert await effects.overlapping() == []
    assert executor.is_alive


async def test_a_take_that_arrives_after_it_was_given_up_takes_nothing(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy
) -> None:
    """The network delivers the statement late: the executor, which has given it up, would not know of the job."""
    await executors.start("one", url=proxy.url, pool_size=1, lease=3)
    await proxy.cut()
    trap = proxy.trap("joex_private.take(", At.DELAY)
    first = await client.submit("hold", {"flag": "go"})
    await eventually(trap.sprung.is_set)
    await effects.begun(first)  # by another take
    second = await client.submit("effect")
    proxy.thaw()
    await trap.is_late_answered.wait()
    assert (await client.get(second)).state == "waiting"
    await effects.flag("go")
    assert await effects.all_finished([first, second]) == {"success": 2}


async def test_a_give_back_that_arrives_after_it_was_given_up_takes_no_run_from_its_executor(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy, connection: asyncpg.Connection
) -> None:
    """The executor has taken the job since, so the statement says that it does not know it."""
    await executors.start("one", url=proxy.url, pool_size=2)
    # (It is in doubt when its heartbeats were cut off. They may begin after its registration.)
    beats = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name ~ '^joex lease' AND datname = $1)"
    name = await connection.fetchval("SELECT current_database()::text")
    await eventually(lambda: connection.fetchval(beats, name))
    trap = proxy.trap("joex_private.give_back_unknown(", At.DELAY)
    await proxy.cut()
    await eventually(trap.sprung.is_set)
    job_id = await client.submit("hold.exclusive", {"flag": "go"})
    await effects.begun(job_id)
    proxy.thaw()
    await trap.is_late_answered.wait()
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert len(await effects.of(job_id)) == 1


async def test_a_take_whose_answer_is_lost_as_its_executor_begins_to_drain_keeps_its_job_from_no_other(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy
) -> None:
    """The drain lasts for as long as another run, and the executor does not know the taken job."""
    one = await executors.start("one", url=proxy.url, pool_size=2)
    long, short = [await client.submit("hold", {"flag": flag}) for flag in ("long", "short")]
    for held in (long, short):
        await effects.begun(held)
    await proxy.cut()  # so that the executor prepares all statements again
    trap = proxy.trap("joex_private.take(", At.FREEZE_ANSWER)
    job_id = await client.submit("effect")
    await effects.flag("short")
    await trap.sprung.wait()
    assert (await client.get(job_id)).state == "scheduled"
    one.terminate()
    await eventually(lambda: "draining: taking no more jobs" in one.log)
    other = await executors.start("other")
    await effects.begun(job_id, pid=other.pid)
    assert await effects.all_finished([short, job_id]) == {"success": 2}
    assert (await client.get(long)).state == "running"
    await effects.flag("long")
    assert await one.exited() == 0
    assert await effects.all_finished([long]) == {"success": 1}
    assert await effects.overlapping() == []


@pytest.mark.parametrize("task", ["hold", "hold.thread.polite", "transaction", "hold.exclusive"])
async def test_an_executor_without_a_link_ends_its_exclusive_runs_before_another_one_begins_them(
    task: str, client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy
) -> None:
    """The server sees its sessions end, so its jobs move on as soon as the lease is over."""
    cut_off = await executors.start("cut off", url=proxy.url, lease=SHORT, outage_patience=_patience(task))
    job_id = await client.submit(task, {"flag": "go"})
    await effects.begun(job_id, pid=cut_off.pid)
    other = await executors.start("other", lease=SHORT)
    await proxy.refuse()
    await effects.begun(job_id, pid=other.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await _all_ended(effects, job_id)
    assert await effects.overlapping() == []
    assert (await client.get(job_id)).app_id == "other"
    await _works_again_with(proxy.accept, cut_off, other, client, effects)


@pytest.mark.parametrize("task", ["hold", "hold.thread.polite", "hold.exclusive"])
async def test_an_executor_behind_a_silent_link_ends_its_exclusive_runs_before_another_one_begins_them(
    task: str, client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy
) -> None:
    """The server still sees its sessions, so other executors wait longer."""
    cut_off = await executors.start("cut off", url=proxy.url, lease=SHORT, outage_patience=_patience(task))
    job_id = await client.submit(task, {"flag": "go"})
    await effects.begun(job_id, pid=cut_off.pid)
    other = await executors.start("other", lease=SHORT)
    proxy.freeze()
    await effects.begun(job_id, pid=other.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await _all_ended(effects, job_id)
    assert await effects.overlapping() == []

    async def thaw() -> None:
        proxy.thaw()

    await _works_again_with(thaw, cut_off, other, client, effects)
    assert (await client.get(job_id)).app_id == "other"


async def test_an_executor_behind_a_silent_link_exits_where_its_exclusive_code_does_not_react(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy
) -> None:
    cut_off = await executors.start("cut off", url=proxy.url, lease=SHORT)
    job_id = await client.submit("hold.thread.exclusive", {"flag": "go"})
    await effects.begun(job_id, pid=cut_off.pid)
    other = await executors.start("other", lease=SHORT)
    proxy.freeze()
    assert await cut_off.exited() == EXIT_CODE
    assert len(await effects.of(job_id)) == 1
    await effects.begun(job_id, pid=other.pid)
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.overlapping() == []


async def test_a_run_without_a_link_goes_on_beside_the_next_one_and_its_late_end_is_dropped_and_counted(
    client: AnyClient, effects: Effects, executors: ExecutorProcesses, proxy: Proxy
) -> None:
    """The executor can't know that the database is there for others, and that they run its job."""
    cut_off = await executors.start("cut off", url=proxy.url, lease=SHORT)
    job_id = await client.submit("hold", {"flag": "go"})
    await effects.begun(job_id, pid=cut_off.pid)
    other = await executors.start("other", lease=SHORT)
    await proxy.refuse()
    await effects.begun(job_id, pid=other.pid)
    assert [run["ended"] for run in await effects.of(job_id)] == [None, None]
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await _all_ended(effects, job_id)
    job = await client.get(job_id)
    assert (job.app_id, job.losses) == ("other", 1)
    await _works_again_with(proxy.accept, cut_off, other, client, effects)
    assert cut_off.log.count("a run had lost its job: its result is dropped") == 1
    assert await client.get(job_id) == job


async def test_a_silent_link_delays_no_other_executor(
    client: AnyClient,
    effects: Effects,
    executors: ExecutorProcesses,
    proxy: Proxy,
) -> None:
    """The jobs of the silent executor wait for the end of its lease; no other job does."""
    cut_off = await executors.start("cut off", url=proxy.url, lease="1h")
    held = await client.submit("transaction", {"flag": "go"})
    await effects.begun(held, pid=cut_off.pid)
    proxy.freeze()
    await executors.start("other")
    ids = await client.submit_many([{"task": "transaction", "group": f"g{n % 5}"} for n in range(50)])
    assert await effects.all_finished(ids) == {"success": 50}
    async with client.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM joex_private.executor WHERE left_at IS NULL") == 2


def _patience(task: str) -> str:
    """A setting with which the runs of this task end before another executor may begin them."""
    return "1h" if "exclusive" in task else "0"


async def _all_ended(effects: Effects, job_id: UUID) -> bool:
    async def ended() -> bool:
        return all(run["ended"] for run in await effects.of(job_id))

    return bool(await eventually(ended, why="all runs of the job have ended"))


async def _works_again_with(
    mend: Callable[[], Awaitable[None]],
    cut_off: ExecutorProcess,
    other: ExecutorProcess,
    client: AnyClient,
    effects: Effects,
) -> None:
    """Once its link is mended, an executor is back without help."""
    await mend()
    assert cut_off.is_alive
    other.terminate()
    assert await other.exited() == 0
    after = await client.submit("effect")
    await effects.begun(after, pid=cut_off.pid)
    assert await effects.all_finished([after]) == {"success": 1}
