"""The worker in docs/how-to/workers.md does what the page says."""

import asyncio
import importlib
import sys

import pytest

from joex.store import timeouts
from tests.support.pages import DOCS, files
from tests.support.waiting import eventually

CODE = files(DOCS / "how-to" / "workers.md")["replication.py"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program."""
    (tmp_path / "replication.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("replication")
    del sys.modules["replication"]


@pytest.fixture
async def copied(connection):
    """The copies of each document, in order."""
    await connection.execute("CREATE TABLE copy (doc text, change text, nr bigint GENERATED ALWAYS AS IDENTITY)")

    async def read():
        rows = await connection.fetch("SELECT doc, array_agg(change ORDER BY nr) FROM copy GROUP BY doc")
        return {row[0]: row[1] for row in rows}

    return read


class Source:
    """A source of changes, two at a time. A test may hold a reader back before a sequence number."""

    def __init__(self, *changes: str) -> None:
        self.changes = list(changes)
        self.reads: list[int] = []
        self.held_at: int | None = None
        self.held, self.go_on = asyncio.Event(), asyncio.Event()

    async def fetch(self, _: str, seq: int) -> list[str]:
        self.reads.append(seq)
        if seq == self.held_at:
            self.held_at = None
            self.held.set()
            await self.go_on.wait()
        return self.changes[seq : seq + 2]


async def test_what_is_added_is_copied_and_copied_on_when_it_is_said_again(program, client, copied):
    source = Source("a", "b", "c")
    worker = asyncio.create_task(program.work(client, source.fetch))

    async def is_copied():
        job = await client.keyed.get_job(program.TYPE, "doc")
        return job.state == "finished" and job.data == {"source": "s", "seq": len(source.changes), "state": "completed"}

    await program.replicate(client, "doc", "s")
    await eventually(is_copied)
    source.changes.append("d")
    await program.replicate(client, "doc", "s")
    await eventually(is_copied)
    assert await copied() == {"doc": ["a", "b", "c", "d"]}
    worker.cancel()


async def test_a_worker_that_hangs_and_comes_back_late_copies_nothing_twice(program, client, connection, copied):
    source = Source("a", "b", "c", "d")
    source.held_at = 2
    await program.replicate(client, "doc", "s")
    late = await client.keyed.accept(program.TYPE)
    running = asyncio.create_task(program.run(client, late, source.fetch))
    await source.held.wait()
    await connection.execute("UPDATE joex_private.job SET overdue_at = clock_timestamp()")
    assert await timeouts.recover_overdue(connection) == [("worker", 1)]
    assert await program.run(client, await client.keyed.accept(program.TYPE), source.fetch) == "ok"
    source.go_on.set()
    assert await running == "worker_conflict"
    assert await copied() == {"doc": ["a", "b", "c", "d"]}
    assert source.reads == [0, 2, 2, 4], "the second run went on where the first had left off"


async def test_a_worker_whose_job_is_canceled_stops_and_says_so(program, client, copied):
    source = Source("a", "b", "c", "d")
    source.held_at = 2
    await program.replicate(client, "doc", "s")
    running = asyncio.create_task(program.run(client, await client.keyed.accept(program.TYPE), source.fetch))
    await source.held.wait()
    await client.keyed.cancel(program.TYPE, "doc")
    source.go_on.set()
    assert await running == "canceled"
    assert (await client.keyed.get_job(program.TYPE, "doc")).state == "finished"
    assert await copied() == {"doc": ["a", "b"]}


async def test_a_source_that_is_away_puts_its_job_off_and_keeps_no_other_waiting(program, client, copied):
    async def away(source, seq):
        raise ConnectionRefusedError(f"{source} is away")

    await program.replicate(client, "doc", "s")
    await program.replicate(client, "other", "s")
    assert await program.run(client, await client.keyed.accept(program.TYPE), away) == "ok"
    now = program.time.time()
    other = await client.keyed.accept(program.TYPE, now)
    assert other.id == "other"
    assert await client.keyed.accept(program.TYPE, now) is None
    later = await client.keyed.accept(program.TYPE, now + program.AN_HOUR)
    assert (later.id, later.data) == ("doc", {"source": "s", "seq": 0, "trouble": "s is away"})
