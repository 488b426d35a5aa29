"""Tasks for whole executor processes, which record their runs in their own tables; and how tests read these.

A task writes past Joex: on connections of its own, straight to the server (``JOEX_TEST_EFFECTS_URL``), so that a test
sees what its code does while the executor's own links are cut. A run is one row of ``effects``, with its start and its
end; a job that runs twice at a time shows as two rows that overlap. A task that waits does so until a row appears in
``flags``, so that tests can hold a job in a phase.
"""

import asyncio
import atexit
import ctypes
import math
import os
import queue
import signal
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import asyncpg

import joex
from tests.support.waiting import PATIENCE, eventually

EFFECTS_URL = "JOEX_TEST_EFFECTS_URL"
ENDS = "JOEX_TEST_ENDS"
"""A folder in which a process also records the ends of its runs, in case it dies before it writes them to the table."""

_TABLES = """
CREATE TABLE flags (name text PRIMARY KEY);
CREATE TABLE effects (
    id       uuid PRIMARY KEY,
    job_id   uuid NOT NULL,
    attempt  integer NOT NULL,
    lock_id  uuid NOT NULL,
    pid      integer NOT NULL,                                  -- of the executor
    kind     text NOT NULL,                                     -- run, committed, cancelled
    started  timestamptz NOT NULL,                              -- by the clock of the process, as its end: what it has
    ended    timestamptz                                        -- sent may be written when it does not exist any more
);
CREATE INDEX ON effects (job_id);
CREATE TABLE deaths (pid integer PRIMARY KEY, at timestamptz NOT NULL);
"""
_IS_FLAGGED = "SELECT EXISTS (SELECT FROM flags WHERE name = $1)"
_PAUSE = 0.1
TROUBLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

app = joex.App()

AnyClient: TypeAlias = Any
"""A `joex.Client` for tests, which know that a job exists when they read it."""


class Effects:
    """The records of the tasks, for the tests."""

    def __init__(self, pool: asyncpg.Pool, url: str) -> None:
        self._pool = pool
        self.url = url
        self.ends: Path | None = None

    async def prepare(self) -> None:
        """Make the tables."""
        await self._pool.execute(_TABLES)

    async def flag(self, *names: str) -> None:
        """Release the tasks that wait for these flags."""
        await self._pool.executemany(
            "INSERT INTO flags VALUES ($1) ON CONFLICT DO NOTHING", [(name,) for name in names]
        )

    def note(self, name: str) -> None:
        """Release the tasks that wait for the file of this name, also while the server is away."""
        assert self.ends is not None
        (self.ends / name).touch()

    async def of(self, job_id: UUID, kind: str = "run") -> list[asyncpg.Record]:
        """The effects of a job, in order."""
        return await self._pool.fetch(
            "SELECT * FROM effects WHERE job_id = $1 AND kind = $2 ORDER BY started", job_id, kind
        )

    async def begun(
        self,
        job_id: UUID,
        *,
        runs: int = 1,
        pid: int | None = None,
        timeout: float = PATIENCE,  # noqa: ASYNC109 - it fails the test, no more
    ) -> asyncpg.Record:
        """Wait until this many runs of a job have begun (in this executor); returns the last of them."""

        async def enough() -> asyncpg.Record | None:
            found = [run for run in await self.of(job_id) if pid in (None, run["pid"])]
            return found[runs - 1] if len(found) >= runs else None

        begun: asyncpg.Record = await eventually(
            enough, timeout, why=f"run {runs} of job {job_id} begins in process {pid}"
        )
        return begun

    async def overlapping(self) -> list[asyncpg.Record]:
        """The runs that began while another run of the same job had not ended."""
        return await self._pool.fetch("""
            SELECT a.job_id, a.pid, a.started, a.ended, b.pid AS other_pid, b.started AS other_started
            FROM effects a LEFT JOIN deaths ON deaths.pid = a.pid
            JOIN effects b ON b.job_id = a.job_id AND b.id <> a.id
            WHERE a.kind = 'run' AND b.kind = 'run' AND b.started >= a.started
                  AND b.started < coalesce(a.ended, deaths.at, 'infinity')
        """)

    async def committed(self) -> dict[UUID, int]:
        """How often the transaction of each job was committed."""
        rows = await self._pool.fetch("SELECT job_id, count(*) FROM effects WHERE kind = 'committed' GROUP BY 1")
        return {row[0]: row[1] for row in rows}

    async def executor_of(self, pid: int) -> int | None:
        """The executor of a process."""
        found: int | None = await self._pool.fetchval(
            "SELECT id FROM joex_private.executor WHERE pid = $1 AND left_at IS NULL", pid
        )
        return found

    async def end_of(self, pid: int, at: datetime | None = None) -> None:
        """Record the end of a process: its runs have ended at the times in its folder, or now.

        This includes runs whose start is not in the table yet, because the server may still execute that statement.
        """
        at = at or datetime.now(UTC)
        notes = self.ends and self.ends / str(pid)
        if notes and notes.exists():
            ends = [line.split() for line in notes.read_text().splitlines()]
            await self._pool.executemany(
                "UPDATE effects SET ended = $2 WHERE id = $1 AND ended IS NULL",
                [(UUID(run), datetime.fromisoformat(ended)) for run, ended in ends],
            )
        await self._pool.execute("INSERT INTO deaths VALUES ($1, $2) ON CONFLICT DO NOTHING", pid, at)
        await self._pool.execute("UPDATE effects SET ended = $2 WHERE pid = $1 AND ended IS NULL", pid, at)

    async def all_finished(
        self,
        job_ids: Iterable[UUID | None],
        timeout: float = PATIENCE,  # noqa: ASYNC109 - it fails the test, no more
        *,
        why: str = "",
    ) -> dict[str, int]:
        """Wait until these jobs are finished; returns how many ended in each state."""
        ids = list(job_ids)

        async def states() -> tuple[dict[str, int]] | None:
            rows = await self._pool.fetch(
                "SELECT state::text, count(*) FROM joex_private.job WHERE id = ANY ($1) AND finished_at IS NOT NULL "
                "GROUP BY 1",
                ids,
            )
            found = {row[0]: row[1] for row in rows}
            return (found,) if sum(found.values()) == len(ids) else None  # (of no jobs, too)

        finished: dict[str, int]
        (finished,) = await eventually(states, timeout, why=f"{len(ids)} jobs are finished {why}")
        return finished


# The tasks.


@app.task("quick")
async def quick(ctx: joex.Context) -> int:
    return ctx.attempt


@app.task("log")
async def log(ctx: joex.Context) -> None:
    ctx.log.info("a line")


@app.task("effect")
async def effect(ctx: joex.Context) -> None:
    async with _recorded(ctx):
        pass


@app.task("sleep")
async def sleep(ctx: joex.Context, milliseconds: int) -> None:
    async with _recorded(ctx):
        await asyncio.sleep(milliseconds / 1000)


@app.task("second.time")
async def succeed_the_second_time(ctx: joex.Context) -> None:
    async with _recorded(ctx):
        if ctx.attempt == 1:
            raise RuntimeError("the first time")


@app.task("hold")
async def hold(ctx: joex.Context, flag: str) -> None:
    async with _recorded(ctx):
        await _flagged(flag)


@app.task("hold.thread")
def hold_thread(ctx: joex.Context, flag: str) -> None:
    """Does not look at ctx.cancelled."""
    asyncio.run(hold.function(ctx, flag))


@app.task("hold.exclusive", exclusive=True)
async def hold_exclusively(ctx: joex.Context, flag: str) -> None:
    await hold.function(ctx, flag)


@app.task("hold.clean.exclusive", exclusive=True)
async def hold_and_clean_exclusively(ctx: joex.Context, flag: str) -> None:
    await hold.function(ctx, flag)


@hold_and_clean_exclusively.on_cancel
async def clean_for_ever(ctx: joex.Context, flag: str) -> None:
    """Makes the file of the flag's name when it is interrupted."""
    await _execute(*_begin(ctx, "cancelled"))
    try:
        await asyncio.Event().wait()
    finally:
        Path(os.environ[ENDS], flag).touch()  # noqa: ASYNC240 - it is quick


@app.task("hold.thread.exclusive", exclusive=True)
def hold_thread_exclusively(ctx: joex.Context, flag: str) -> None:
    hold_thread.function(ctx, flag)


@app.task("until.away")
async def wait_until_away(ctx: joex.Context, flag: str | None = None) -> str:
    """Reports as soon as the server is away, and ends then, or with the flag."""
    async with _recorded(ctx):
        with suppress(*TROUBLE):
            connection = await asyncpg.connect(os.environ[EFFECTS_URL])
            await connection.execute("SELECT pg_sleep(600)")
        ctx.log.warning("it is away")
        ctx.progress(50, "half")
        if flag:
            await _flagged(flag)
    return "over"


@app.task("hold.away")
async def hold_away(ctx: joex.Context, name: str) -> str:
    """Needs no database: waits for the file "away", reports, and ends with the file of this name."""
    async with _recorded(ctx):
        await _noted("away")
        ctx.log.warning("it is away")
        ctx.progress(50, "half")
        await _noted(name)
    return "over"


@app.task("hold.thread.polite")
def hold_thread_politely(ctx: joex.Context, flag: str) -> None:
    asyncio.run(_hold_politely(ctx, flag))


@app.task("hold.loop")
async def hold_loop(ctx: joex.Context, flag: str) -> None:
    """Blocks the executor's loop."""
    thread = threading.Thread(target=lambda: asyncio.run(hold.function(ctx, flag)), daemon=True)
    thread.start()
    thread.join()


@app.task("close.stderr")
async def close_standard_error(ctx: joex.Context) -> None:
    """Closes both it and its file, and lets the event loop log an exception."""
    sys.stderr.close()
    os.close(2)
    asyncio.get_running_loop().call_soon(next, iter(()))


@app.task("hold.lock")
async def hold_lock(ctx: joex.Context) -> None:
    """Holds Python's lock, so that nothing else of its process runs, for a minute."""
    async with _recorded(ctx):
        ctypes.PyDLL(None).sleep(60)


@app.task("hold.stubborn")
async def hold_stubbornly(ctx: joex.Context, flag: str) -> None:
    """Goes on when it is cancelled."""
    async with _recorded(ctx):
        while True:
            try:
                await _flagged(flag)
            except asyncio.CancelledError:
                continue
            return


@hold.on_cancel
async def hold_cancelled(ctx: joex.Context, flag: str) -> None:
    await _execute(*_begin(ctx, "cancelled"))


@app.task("transaction")
async def transaction(ctx: joex.Context, flag: str | None = None, name: str | None = None) -> None:
    """Its own write and the job's end commit together. With a name, the run goes on until the file of this name."""
    async with _recorded(ctx):
        async with ctx.transaction() as connection:
            await connection.execute(*_begin(ctx, "committed"))
            if flag:
                await _flagged(flag)
        if name:
            await _execute(*_begin(ctx, "goes on"))
            await _noted(name)


@app.task("transaction.thread")
def transaction_in_thread(ctx: joex.Context, flag: str | None = None) -> str:
    """The same with a driver of its own, in SQL."""
    return asyncio.run(_finish_by_sql(ctx, flag))


@app.task("kill")
async def kill(ctx: joex.Context) -> None:
    """A poison pill."""
    await _execute(*_begin(ctx))
    os.kill(os.getpid(), signal.SIGKILL)


@app.task("exit")
async def leave(ctx: joex.Context) -> None:
    sys.exit(1)


@app.task("exit.thread")
def leave_thread(ctx: joex.Context) -> None:
    sys.exit(1)


@app.task("exit.child")
async def leave_in_a_child(ctx: joex.Context) -> None:
    """The child is an asyncio task that it awaits."""
    await asyncio.gather(leave.function(ctx))


@app.task("interrupt.child")
async def interrupt_in_a_child(ctx: joex.Context) -> None:
    """The same with the exception of Ctrl-C, and a thread."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    await asyncio.gather(asyncio.to_thread(interrupt))


@app.task("threads.left")
async def leave_threads(ctx: joex.Context) -> None:
    """Occupies all threads of ``asyncio.to_thread`` for ever, and ends."""
    loop = asyncio.get_running_loop()
    for _ in range(32):  # as many as there can be by default
        loop.run_in_executor(None, threading.Event().wait)


@app.task("tasks.left")
async def leave_asyncio_task(ctx: joex.Context) -> None:
    """Leaves an asyncio task that never ends, whatever it is told."""

    async def stay() -> None:
        while True:
            with suppress(BaseException):
                await asyncio.sleep(3600)

    _left.append(asyncio.create_task(stay()))
    await asyncio.sleep(0)


_left: list[asyncio.Task[None]] = []


# How the tasks write.


@asynccontextmanager
async def _recorded(ctx: joex.Context) -> AsyncIterator[None]:
    begin = _begin(ctx)
    try:
        await _execute(*begin)  # the write may have succeeded though it was interrupted
        yield
    finally:
        _ends.put(begin[1])


class _EndWriter:
    """Writes the ends of runs in a separate thread, so that no run waits for the server."""

    def __init__(self) -> None:
        self._ends: queue.Queue[tuple[UUID, datetime]] = queue.Queue()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()), daemon=True)
        self._lock = threading.Lock()

    def put(self, run: UUID) -> None:
        """A run has ended now."""
        at = datetime.now(UTC)
        if folder := os.environ.get(ENDS):
            with Path(folder, str(os.getpid())).open("a") as notes:
                notes.write(f"{run} {at.isoformat()}\n")
        self._ends.put((run, at))
        with self._lock:
            if not self._thread.ident:
                self._thread.start()
                atexit.register(self._flush)

    async def _write(self) -> None:
        while True:
            run, at = self._ends.get()
            await _execute("UPDATE effects SET ended = $2 WHERE id = $1", run, at)
            self._ends.task_done()

    def _flush(self) -> None:
        with self._ends.all_tasks_done:
            self._ends.all_tasks_done.wait_for(lambda: not self._ends.unfinished_tasks, timeout=5)


_ends = _EndWriter()


def _begin(ctx: joex.Context, kind: str = "run") -> tuple[Any, ...]:
    statement = """INSERT INTO effects (id, job_id, attempt, lock_id, pid, kind, started)
                   VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING"""
    return statement, uuid4(), ctx.job_id, ctx.attempt, ctx.lock_id, os.getpid(), kind, datetime.now(UTC)


async def _flagged(name: str) -> None:
    while True:
        with suppress(*TROUBLE):
            async with _session() as session:
                await eventually(partial(session.fetchval, _IS_FLAGGED, name), math.inf)
                return
        await asyncio.sleep(_PAUSE)


async def _noted(name: str) -> None:
    while not await asyncio.to_thread(Path(os.environ[ENDS], name).exists):  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.2)


async def _hold_politely(ctx: joex.Context, flag: str) -> None:
    async with _recorded(ctx):
        held = asyncio.ensure_future(_flagged(flag))
        while not held.done():
            ctx.check_cancelled()
            await asyncio.wait({held}, timeout=0.01)


async def _finish_by_sql(ctx: joex.Context, flag: str | None) -> str:
    connection = await asyncpg.connect(os.environ[EFFECTS_URL])
    try:
        async with _recorded(ctx), _Rollback.unless_ok(connection) as answer:
            await connection.execute(*_begin(ctx, "committed"))
            if flag:
                await _flagged(flag)
            answer.append(await connection.fetchval("SELECT joex.finish($1, $2)", ctx.job_id, ctx.lock_id))
        return str(answer[0])
    finally:
        await connection.close()


class _Rollback(Exception):
    """Not an error: rolls back."""

    @classmethod
    @asynccontextmanager
    async def unless_ok(cls, connection: asyncpg.Connection) -> AsyncIterator[list[str]]:
        answer: list[str] = []
        try:
            async with connection.transaction():
                yield answer
                if answer != ["ok"]:
                    raise cls  # noqa: TRY301 - as the transaction must see it
        except cls:
            pass


_pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncpg.Pool] = weakref.WeakKeyDictionary()


async def _execute(statement: str, *arguments: Any) -> Any:
    """Execute a statement, however long the server is away."""
    while True:
        with suppress(*TROUBLE):
            async with _session() as session:
                return await session.fetchval(statement, *arguments)
        await asyncio.sleep(_PAUSE)


@asynccontextmanager
async def _session() -> AsyncIterator[asyncpg.Pool | asyncpg.Connection]:
    """What executes statements: a pool for the loop of the process, a connection for that of another thread."""
    if threading.current_thread() is threading.main_thread():
        yield await _pool()
        return
    connection = await asyncpg.connect(os.environ[EFFECTS_URL])
    try:
        yield connection
    finally:
        await connection.close()


async def _pool() -> asyncpg.Pool:
    loop = asyncio.get_running_loop()
    if loop not in _pools:
        _pools[loop] = asyncpg.create_pool(os.environ[EFFECTS_URL], min_size=0, max_size=5)
        await _pools[loop]
    return _pools[loop]
