"""The primary is lost, and its standby is promoted: clients and executors, whose URL names both, go on there.

To try a fail-over of this many seconds under a thousand runs, on ten executors with the default settings::

    JOEX_TEST_OUTAGE=60 .venv/bin/pytest -s tests/faults/test_promotion.py -k fleet
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

import joex.sync
from joex import Client
from joex.errors import DatabaseUnavailable
from tests.support.apps import TROUBLE, AnyClient, Effects
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import Standby, TestServer
from tests.support.processes import SHORT, ExecutorProcess, ExecutorProcesses
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE, eventually


class Pair:
    """A primary and its standby, which follows through a link that a test can cut."""

    def __init__(self, primary: TestServer, standby: Standby, link: Proxy) -> None:
        self.primary = primary
        self.standby = standby
        self.link = link

    async def lose_primary(self, how: str = "kill") -> None:
        """Kill the primary, or stop it in this mode; it does not come back."""
        await asyncio.to_thread(self.primary.kill if how == "kill" else lambda: self.primary.stop(how))

    async def restore_primary(self) -> None:
        """Start the primary again."""
        await asyncio.to_thread(self.primary.start)

    async def part(self) -> None:
        """Cut the link, when the standby has everything: it gets nothing any more."""
        await self.standby.has_all()
        await self.link.refuse()


@pytest.fixture
async def pair(postgres: TestServer, database_name: str) -> AsyncIterator[Pair]:
    """The test's server with a standby, asynchronous."""
    del database_name  # it is there before the copy is made, and dropped after the copy has gone
    async with Proxy(postgres.port) as link:
        standby = await asyncio.to_thread(lambda: Standby(postgres, port=link.port))
        try:
            yield Pair(postgres, standby, link)
        finally:
            await standby.leave()


@pytest.fixture
def database_url(pair: Pair, postgres: TestServer, database_name: str) -> str:
    """The URL of the test's database on both servers, for all fixtures."""
    hosts = f"127.0.0.1:{postgres.port},127.0.0.1:{pair.standby.port}"
    return f"postgresql://postgres@{hosts}/{database_name}?target_session_attrs=read-write"


async def _undisturbed(client: AnyClient, effects: Effects, job_ids: list[Any]) -> None:
    """These jobs have run once, and Joex has counted once."""
    assert await effects.all_finished(job_ids) == {"success": len(job_ids)}
    jobs = [await client.get(job_id) for job_id in job_ids]
    assert [(job.attempt, job.losses, job.failures) for job in jobs] == [(1, 0, 0)] * len(jobs)
    assert [len(await effects.of(job_id)) for job_id in job_ids] == [1] * len(jobs)


@pytest.mark.parametrize("how", ["immediate", "kill"])
async def test_when_a_standby_is_promoted_runs_go_on_and_end_once(
    how: str, pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    both = await executors.start_all("first", "second", pool_size=3, lease=SHORT)
    held = [await client.submit(task, {"flag": "go"}) for task in ("hold", "hold.thread", "hold.thread.polite")]
    ending = [await client.submit("until.away") for _ in range(3)]
    for job_id in held + ending:
        await effects.begun(job_id)
    waiting = await client.submit_many([{"task": "effect", "group": f"g{n % 3}"} for n in range(12)])
    await pair.standby.has_all()
    await pair.lose_primary(how)
    await _leases_are_over(both)
    await pair.standby.promote()
    await _undisturbed(client, effects, ending)
    assert [(await client.get(job_id)).result for job_id in ending] == ["over"] * 3
    # Slots are free again, so the waiting jobs run beside those that go on.
    await _undisturbed(client, effects, waiting)
    await effects.flag("go")
    await _undisturbed(client, effects, held)
    assert await effects.overlapping() == []
    for executor in both:
        assert executor.is_alive
        assert "interrupting all runs" not in executor.log
        assert "had lost its job" not in executor.log
    assert await _registrations(client) == {"first": 1, "second": 1}


async def test_after_a_promotion_jobs_keep_their_order_though_sequences_have_jumped(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """PostgreSQL logs sequences up to 32 values ahead: those of the jobs, and the ring's cursor."""
    await executors.start("one", pool_size=1, lease=60)
    held = await client.submit("hold", {"flag": "go"}, group="g0")
    await effects.begun(held)
    jobs = [{"task": "effect", "group": f"g{n % 3}"} for n in range(9)]
    before = await client.submit_many(jobs)
    latest = (await client.get(before[-1])).seq
    await pair.standby.has_all()
    await pair.lose_primary()
    await pair.standby.promote()
    after = await client.submit_many(jobs)
    assert (await client.get(after[0])).seq > latest + 1
    await effects.flag("go")
    await _undisturbed(client, effects, [held, *before, *after])
    begun = {job_id: (await effects.of(job_id))[0]["started"] for job_id in [*before, *after]}
    order = sorted(begun, key=lambda job_id: begun[job_id])
    for group in range(3):
        of_group = [*before[group::3], *after[group::3]]
        assert [job_id for job_id in order if job_id in of_group] == of_group, "the oldest job of a group comes first"
    groups = [[*before, *after].index(job_id) % 3 for job_id in order]
    assert [len({*groups[n : n + 3]}) for n in range(0, 18, 3)] == [3] * 6, "the groups take turns"


async def test_after_a_promotion_locks_and_notifications_are_there_again_and_waits_go_on(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """A sleeping executor hears of a new job: it looks by itself only every hour."""
    both = await executors.start_all("first", "second", lease=SHORT, wakeup_period=3600)
    held = await client.submit("hold", {"flag": "go"})
    await effects.begun(held)
    wait = asyncio.ensure_future(client.wait(held, timeout=PATIENCE))
    await pair.standby.has_all()
    await pair.lose_primary()
    await _leases_are_over(both)
    await pair.standby.promote()
    await eventually(lambda: _locks(effects), why="both executors hold their locks")
    new = await client.submit("effect")
    await _undisturbed(client, effects, [new])
    await effects.flag("go")
    assert (await wait).state == "success"
    await _undisturbed(client, effects, [held])


@pytest.mark.parametrize("how", ["restart", "promotion"])
async def test_patient_submissions_and_all_waits_go_on_over_a_restart_and_a_promotion(
    pair: Pair, database_url: str, how: str
) -> None:
    client: AnyClient = Client(database_url, patience=PATIENCE)
    async with client, asyncio.timeout(PATIENCE):
        waited, watched = await client.submit("a", queue="none"), await client.submit("a", queue="none")
        await client.keyed.add("type", 1)
        changes: asyncio.Queue[Any] = asyncio.Queue()

        async def subscribe() -> None:
            async with client.subscribe(watched) as jobs:
                async for _, job in jobs:
                    changes.put_nowait(job.state)

        async def subscribe_keyed() -> None:
            async with client.keyed.subscribe("type", 1) as jobs:
                async for _, job in jobs:
                    changes.put_nowait(job.state)

        async with asyncio.TaskGroup() as group:
            subscriptions = [group.create_task(subscribe()), group.create_task(subscribe_keyed())]
            assert {await changes.get(), await changes.get()} == {"waiting", "pending"}
            wait = group.create_task(client.wait(waited))
            keyed = group.create_task(client.keyed.wait("type", 1))
            worker = group.create_task(client.keyed.accept("later", wait=PATIENCE))
            await pair.standby.has_all()
            await pair.lose_primary("immediate")
            calls = [
                group.create_task(client.submit("a", queue="none")),
                group.create_task(client.keyed.add("later", 1)),
            ]
            late = group.create_task(client.wait(watched))
            _, pending = await asyncio.wait([wait, keyed, worker, late, *calls], timeout=0.5)
            assert len(pending) == 6
            await (pair.standby.promote() if how == "promotion" else pair.restore_primary())
            assert (await client.get(await calls[0])).state == "waiting"
            for job_id in (waited, watched):
                await client.cancel(job_id)
            await client.keyed.cancel("type", 1)
            assert [(await wait).state, (await late).state, (await keyed).state] == [
                "cancelled",
                "cancelled",
                "finished",
            ]
            assert (await worker).id == 1
            assert {await changes.get(), await changes.get()} == {"cancelled", "finished"}
            for subscription in subscriptions:
                subscription.cancel()


async def test_a_standby_that_is_not_promoted_yet_is_not_taken_for_the_primary(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses, database_name: str
) -> None:
    """It answers, and refuses to write. A second executor, whose URL names it alone, waits until it takes writes."""
    one = await executors.start("one", lease=SHORT)
    held = await client.submit("hold", {"flag": "go"})
    await effects.begun(held)
    await pair.standby.has_all()
    await pair.lose_primary()
    late = executors.launch("late", url=pair.standby.tcp_url(database_name), startup_wait=60)
    await _leases_are_over([one])
    with pytest.raises(TROUBLE):
        await asyncpg.connect(effects.url)
    await pair.standby.promote()
    await executors.registered(late)
    await effects.flag("go")
    await _undisturbed(client, effects, [held])
    assert one.is_alive


@pytest.mark.parametrize("where", ["before the database", "after the question mark"])
async def test_of_several_hosts_the_one_that_takes_writes_is_used(
    pair: Pair, postgres: TestServer, database_name: str, where: str
) -> None:
    """The standby is the first in a URL that names no kind of server. To read from it, a URL says so."""
    ports = pair.standby.port, postgres.port
    url = f"postgresql://postgres@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{database_name}?"
    if where == "after the question mark":
        url = f"postgresql://postgres@/{database_name}?host=127.0.0.1,127.0.0.1&port={ports[0]},{ports[1]}&"
    await pair.standby.has_all()
    async with Client(url.rstrip("?&")) as client, Client(f"{url}target_session_attrs=any") as reader:
        job_id = await client.submit("a")
        await pair.standby.has_all()
        assert job_id is not None
        assert await reader.get(job_id) is not None
        with pytest.raises(DatabaseUnavailable, match="it is read-only"):
            await reader.submit("a")
    with joex.sync.Client(url.rstrip("?&")) as one, joex.sync.Client(f"{url}target_session_attrs=any") as other:
        assert one.get(one.submit("a")) is not None
        with pytest.raises(DatabaseUnavailable, match="it is read-only"):
            other.submit("a")


async def test_a_server_that_takes_no_writes_is_told_of_in_plain_words(
    pair: Pair, postgres: TestServer, database_name: str
) -> None:
    ports = pair.standby.port, postgres.port
    await pair.standby.has_all()
    await pair.lose_primary()
    async with Client(f"postgresql://postgres@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/{database_name}") as client:
        with pytest.raises(DatabaseUnavailable) as both:
            await client.submit("a")
    assert str(both.value).removeprefix("the database is not available: ") == (
        f"127.0.0.1:{ports[0]}: it is read-only (a standby, or set to be); 127.0.0.1:{ports[1]}: Connection refused"
    )
    async with Client(pair.standby.tcp_url(database_name)) as client:
        with pytest.raises(
            DatabaseUnavailable, match=r"available: it is read-only \(a standby, or set to be\): cannot"
        ):
            await client.submit("a")


async def test_an_executor_that_is_killed_during_a_promotion_is_noticed_after_it(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    both = await executors.start_all("first", "second", pool_size=1, lease=SHORT)
    ids = await client.submit_many([{"task": "hold", "args": {"flag": "go"}}] * 2)
    runs = {(await effects.begun(job_id))["pid"]: job_id for job_id in ids}
    victim, survivor = both
    await pair.standby.has_all()
    await pair.lose_primary()
    os.kill(victim.pid, signal.SIGKILL)
    await eventually(lambda: not victim.is_alive)
    await _leases_are_over([survivor])
    await pair.standby.promote()
    await victim.exited()
    free = await executors.start("free", pool_size=1)
    await effects.begun(runs[victim.pid], pid=free.pid)
    await effects.flag("go")
    assert await effects.all_finished(ids) == {"success": 2}
    await _undisturbed(client, effects, [runs[survivor.pid]])
    assert await effects.overlapping() == []


async def test_an_end_that_asynchronous_replication_lost_makes_the_whole_job_run_again(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """With the end, its task's own writes are lost, in one transaction. The first run can't end the job any more."""
    both = await executors.start_all("first", "second", lease=SHORT)
    job_id = await client.submit("transaction", {"flag": "go"})
    first = await effects.begun(job_id)
    await pair.part()
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.committed() == {job_id: 1}
    await pair.lose_primary()
    await _leases_are_over(both)
    await pair.standby.promote()
    await effects.begun(job_id, runs=2)
    assert await effects.committed() == {}
    async with client.acquire() as connection:
        answer = await connection.fetchval("SELECT joex.finish($1, $2)", job_id, first["lock_id"])
    assert answer == "worker_conflict"
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.committed() == {job_id: 1}
    assert (await client.get(job_id)).losses == 0


async def test_a_run_whose_lost_commit_had_ended_the_job_does_not_end_it_again_without_its_writes(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """Its code goes on after the transaction, so that its executor reports its end to the promoted server."""
    await executors.start("first", lease=SHORT)
    job_id = await client.submit("transaction", {"flag": "go", "name": "over"})
    first = await effects.begun(job_id)
    await pair.part()
    await effects.flag("go")
    await eventually(lambda: effects.of(job_id, "goes on"), why="its executor knows of the commit")
    assert await effects.committed() == {job_id: 1}
    await pair.lose_primary()
    await pair.standby.promote()
    effects.note("over")
    second = await effects.begun(job_id, runs=2)
    assert second["lock_id"] != first["lock_id"]
    assert await effects.committed() == {}
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    assert await effects.committed() == {job_id: 1}
    job = await client.get(job_id)
    assert (job.attempt, job.losses, job.failures) == (1, 0, 0)


async def test_a_take_that_asynchronous_replication_lost_leaves_a_run_whose_end_is_refused(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """Its job waits again on the standby, and runs there as if for the first time.

    Its group is paused until the standby gets nothing any more: no take can have begun before.
    """
    executor = await executors.start("first", lease=SHORT)
    await _set_paused(client, paused=True)
    job_id = await client.submit("hold.thread", {"flag": "go"}, group="paused")
    await pair.part()
    await _set_paused(client, paused=False)
    first = await effects.begun(job_id)
    await pair.lose_primary()
    await _leases_are_over([executor])
    await pair.standby.promote()
    await _set_paused(client, paused=False)
    # (The record of the first run is lost as well, so this is the second run.)
    second = await effects.begun(job_id)
    assert second["lock_id"] != first["lock_id"]
    await effects.flag("go")
    assert await effects.all_finished([job_id]) == {"success": 1}
    await eventually(lambda: "had lost its job" in executor.log, why="the end of the first run is refused")
    assert [(await client.get(job_id)).attempt, len(await effects.of(job_id))] == [1, 1]


async def test_a_job_whose_end_was_lost_runs_again_though_the_slots_of_its_executor_are_full(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """The slot has the lost run of another job, whose code does not stop."""
    ended = await client.submit("transaction", {"flag": "end"})
    first = await executors.start("first", pool_size=1, lease=SHORT)
    await effects.begun(ended, pid=first.pid)
    stubborn = await client.submit("hold.thread", {"flag": "go"})
    await pair.part()
    await effects.flag("end")
    await effects.begun(stubborn, pid=first.pid)
    await pair.lose_primary()
    await pair.standby.promote()
    other = await executors.start("other", pool_size=2)
    await effects.begun(ended, pid=other.pid)
    await effects.flag("end", "go")
    assert await effects.all_finished([ended, stubborn]) == {"success": 2}
    assert await effects.committed() == {ended: 1}
    assert [(await client.get(job_id)).losses for job_id in (ended, stubborn)] == [0, 0]


async def test_an_end_that_was_lost_behind_a_pooler_makes_the_job_run_again(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses, database_name: str
) -> None:
    """The pooler keeps the sessions of its clients: between two heartbeats, the executor does not notice the promotion.

    Its slot has a run, so it takes nothing, and no take fails meanwhile.
    """
    async with Proxy(pair.primary.port) as way, PgBouncer(pair.primary, sessions=5, way=way.port) as pgbouncer:
        first = await executors.start("first", url=pgbouncer.url(database_name), pool_size=1, lease=30)
        ended = await client.submit("hold", {"flag": "end"})
        await effects.begun(ended, pid=first.pid)
        held = await client.submit("hold", {"flag": "go"})
        await pair.part()
        beat = await _latest_beat(client)
        await eventually(lambda: _beats_after(client, beat), why="it has just renewed its lease")
        await effects.flag("end")
        assert await effects.all_finished([ended]) == {"success": 1}
        await effects.begun(held, pid=first.pid)
        way.reaches.clear()  # (new links wait for the promoted server)
        await pair.lose_primary()
        await pair.standby.promote()
        way.target = pair.standby.port
        way.reaches.set()
        await executors.start("other")
        await effects.begun(ended, runs=2)
        await effects.flag("end", "go")
        assert await effects.all_finished([ended, held]) == {"success": 2}


async def test_an_executor_whose_registration_asynchronous_replication_lost_shares_nothing_with_a_newcomer(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """The newcomer registers before the other executor finds the promoted server and starts over."""
    ids = await client.submit_many([{"task": "hold", "args": {"flag": "go"}}] * 2)
    await pair.part()
    async with Proxy(pair.standby.port) as way:
        await way.refuse()
        url = effects.url.replace(str(pair.standby.port), str(way.port))
        old = await executors.start("old", url=url, lease=SHORT)
        for job_id in ids:
            await effects.begun(job_id, pid=old.pid)
        await pair.lose_primary()
        await pair.standby.promote()
        new = await executors.start("new")
        for job_id in ids:
            await effects.begun(job_id, pid=new.pid)
        await way.accept()
        await executors.registered(old)
        await effects.flag("go")
        await _undisturbed(client, effects, ids)
        assert await _registrations(client) == {"new": 1, "old": 1}


async def test_a_promotion_under_a_fleet_interrupts_loses_and_repeats_no_run(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """Some runs end while the database is away, the others after that; all report meanwhile."""
    seconds = float(os.environ.get("JOEX_TEST_OUTAGE", "0"))
    number, slots, settings = (10, 100, {}) if seconds else (3, 20, {"lease": SHORT})
    fleet = await executors.start_all(*(f"e{n}" for n in range(number)), pool_size=slots, **settings)
    jobs = [
        {"task": "hold.away", "args": {"name": ("early", "late")[n % 2]}, "group": f"g{n % 7}"}
        for n in range(number * slots)
    ]
    ids = await client.submit_many(jobs)
    await eventually(lambda: _have_begun(client, len(ids)), why="all runs have begun")
    waiting = await client.submit_many([{"task": "effect"}] * slots)
    await pair.standby.has_all()
    begin = time.monotonic()
    await pair.lose_primary()
    effects.note("away")
    effects.note("early")
    await asyncio.sleep(begin + seconds - time.monotonic())  # (a developer asks for the length of the outage)
    await _leases_are_over(fleet)
    await pair.standby.promote()
    back = time.monotonic()
    ended = ids[::2] + waiting
    assert await effects.all_finished(ended) == {"success": len(ended)}
    written = time.monotonic()
    effects.note("late")
    assert await effects.all_finished(ids) == {"success": len(ids)}
    async with client.acquire() as connection:
        counts = await connection.fetchrow("""
            SELECT sum(attempt) AS runs, sum(losses) AS losses, sum(failures) AS failures,
                   (SELECT count(*) FROM effects WHERE kind = 'run') AS begun,
                   (SELECT count(*) FROM joex_private.job_log WHERE message = 'it is away') AS lines
            FROM joex_private.job WHERE task LIKE 'hold.%' OR task = 'effect'""")
    print(
        f"{len(ids)} runs, {number} executors, {back - begin:.1f} s without a database; {written - back:.1f} s later "
        f"half of them had ended, and {len(waiting)} jobs that had waited: {dict(counts)}"
    )
    total = len(ids) + len(waiting)
    assert tuple(counts) == (total, 0, 0, total, len(ids))
    assert await effects.overlapping() == []
    assert await _registrations(client) == {executor.app_id: 1 for executor in fleet}
    for executor in fleet:
        assert executor.is_alive
        assert "interrupting all runs" not in executor.log
        assert "had lost its job" not in executor.log


async def test_synchronous_replication_loses_no_end_that_was_acknowledged(
    pair: Pair, client: AnyClient, effects: Effects, executors: ExecutorProcesses
) -> None:
    """The primary is killed while jobs end: each that a client saw ended is ended, and each that was submitted runs."""
    await pair.standby.become_synchronous()
    both = await executors.start_all("first", "second", pool_size=4, lease=SHORT)
    ids = await client.submit_many([{"task": "transaction", "group": f"g{n % 5}"} for n in range(300)])

    async def ended() -> list[Any]:
        async with client.acquire() as connection:
            rows = await connection.fetch("SELECT id, lock_id, attempt FROM joex_private.job WHERE state = 'success'")
            return rows if len(rows) > 20 else []

    seen: list[Any] = await eventually(ended, why="some jobs have ended")
    await pair.lose_primary()
    await pair.standby.promote()
    assert await effects.all_finished(ids) == {"success": len(ids)}
    assert await effects.committed() == dict.fromkeys(ids, 1)
    assert await effects.overlapping() == []
    for row in seen:
        assert [run["attempt"] for run in await effects.of(row["id"])] == [1]
    assert all(executor.is_alive for executor in both)


async def _leases_are_over(executors: list[ExecutorProcess]) -> None:
    """Wait until these executors do not trust their leases."""
    await eventually(lambda: all("taking no jobs" in executor.log for executor in executors), why="trust has ended")


async def _latest_beat(client: AnyClient) -> int:
    async with client.acquire() as connection:
        return int(await connection.fetchval("SELECT max(beat) FROM joex_private.lease"))


async def _beats_after(client: AnyClient, beat: int) -> bool:
    return await _latest_beat(client) > beat


async def _set_paused(client: AnyClient, *, paused: bool) -> None:
    async with client.acquire() as connection:
        await connection.execute("SELECT joex.set_group('paused', paused => $1)", paused)


async def _have_begun(client: AnyClient, runs: int) -> bool:
    async with client.acquire() as connection:
        begun: int = await connection.fetchval("SELECT count(*) FROM effects")
        return begun == runs


async def _registrations(client: AnyClient) -> dict[str, int]:
    async with client.acquire() as connection:
        rows = await connection.fetch("SELECT app_id, count(*) FROM joex_private.executor GROUP BY 1")
        return {row[0]: row[1] for row in rows}


async def _locks(effects: Effects) -> bool:
    connection = await asyncpg.connect(effects.url)
    try:
        held = await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785685001 AND granted"
        )
        return bool(held == 2)
    finally:
        await connection.close()
