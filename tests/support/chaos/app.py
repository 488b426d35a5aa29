"""The tasks of a run, which write their history; and a worker with its own loop."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import joex
from tests.support.chaos.history import Writer

HISTORY = "JOEX_TEST_CHAOS_HISTORY"
TYPE = "typed"
"""The type of the jobs that workers run, and executors as well."""
ORDERED = "order"
COMMITS = frozenset({"commit", ORDERED, TYPE})
PATIENT = "patient"
"""The jobs of a client that submits again when its connection is lost; their argument ``mark`` names the submission."""
PERIODIC = "tick"
_BEAT = 0.1

app = joex.App()
_history = Writer(os.environ[HISTORY]) if HISTORY in os.environ else None


class Broken(Exception):
    """The failure of a task that is to fail."""


@app.task("work")
async def work(ctx: joex.Context, seconds: float) -> str:
    with _recorded(ctx):
        await _beat(ctx.lock_id, seconds)
        ctx.log.info("worked for %s s", seconds)
    return str(ctx.lock_id)


@app.task("exclusive", exclusive=True)
async def work_exclusively(ctx: joex.Context, seconds: float) -> str:
    with _recorded(ctx, is_exclusive=True):
        await _beat(ctx.lock_id, seconds)
    return str(ctx.lock_id)


@app.task(PERIODIC, exclusive=True)
async def tick(ctx: joex.Context, seconds: float) -> str:
    with _recorded(ctx, is_exclusive=True):
        await _beat(ctx.lock_id, seconds)
    return str(ctx.lock_id)


@app.task("thread")
def work_in_thread(ctx: joex.Context, seconds: float) -> str:
    with _recorded(ctx):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if ctx.wait_cancelled(min(_BEAT, left)):
                ctx.check_cancelled()
            ctx.progress(100 * (1 - left / seconds))
    return str(ctx.lock_id)


@app.task("commit")
async def commit(ctx: joex.Context, seconds: float) -> None:
    with _recorded(ctx):
        await _beat(ctx.lock_id, seconds)
        async with ctx.transaction(result=str(ctx.lock_id)) as connection:
            await store_effect(connection, ctx.job_id, ctx.lock_id)


@app.task(PATIENT)
async def work_marked(ctx: joex.Context, seconds: float, mark: str) -> str:
    with _recorded(ctx):
        await _beat(ctx.lock_id, seconds)
        ctx.log.info("the submission %s", mark)
    return str(ctx.lock_id)


@app.task(TYPE)
async def commit_typed(ctx: joex.Context, seconds: float) -> None:
    await commit.function(ctx, seconds)


@app.task(ORDERED)
async def commit_order(ctx: joex.Context, seconds: float) -> None:
    await commit.function(ctx, seconds)


@app.task("flaky")
async def fail_twice(ctx: joex.Context, seconds: float) -> str:
    with _recorded(ctx):
        await _beat(ctx.lock_id, seconds / 2)
        if ctx.attempt <= 2:
            raise Broken(f"the attempt {ctx.attempt}")
    return str(ctx.lock_id)


@app.task("fail", retries=1)
async def fail(ctx: joex.Context, seconds: float) -> None:
    with _recorded(ctx):
        await _beat(ctx.lock_id, seconds / 2)
        raise Broken("always")


async def store_effect(connection: Any, job_id: UUID, lock_id: UUID) -> None:
    """What a run does in the transaction of its end."""
    await connection.execute("INSERT INTO chaos.effect VALUES ($1, $2)", job_id, lock_id)


async def accept_jobs(url: str) -> None:
    """Run typed jobs in a loop of its own, until killed."""
    async with joex.Client(url, timeout="5s") as client:
        while True:
            try:
                job = await client.keyed.accept(TYPE, wait="5s", worker=f"worker {os.getpid()}")
                if job is not None:
                    await _run(client, job)
            except joex.DatabaseUnavailable:
                await asyncio.sleep(_BEAT)


async def _run(client: joex.Client, job: joex.KeyedJob) -> None:
    assert job.lock_id is not None
    with _noted(job.lock_id, job=job.job, task=TYPE, group=TYPE, is_exclusive=False):
        await _beat(job.lock_id, job.data["seconds"])
        if await client.keyed.update(TYPE, job.id, {}, job.lock_id) != "ok":
            await client.keyed.finish(TYPE, job.id, {}, job.lock_id)  # (a cancelled run has to end, too)
            return
        async with client.acquire() as connection, connection.transaction():
            await store_effect(connection, job.job, job.lock_id)
            answer = await client.keyed.finish(
                TYPE, job.id, {}, job.lock_id, result=str(job.lock_id), connection=connection
            )
            if answer != "ok":
                raise joex.DatabaseUnavailable(answer)  # rolls back


@contextmanager
def _recorded(ctx: joex.Context, *, is_exclusive: bool = False) -> Iterator[None]:
    with _noted(ctx.lock_id, job=ctx.job_id, task=ctx.task, group=ctx.group, is_exclusive=is_exclusive):
        yield


@contextmanager
def _noted(lock: UUID, **run: Any) -> Iterator[None]:
    assert _history is not None
    _history.note("begin", lock=lock, pid=os.getpid(), **run)
    how = "returned"
    try:
        yield
    except BaseException as error:
        how = type(error).__name__
        raise
    finally:
        _history.note("end", lock=lock, how=how)


async def _beat(lock: UUID, seconds: float) -> None:
    """Work, and write down now and then that this run is still at work."""
    assert _history is not None
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(_BEAT, left))
        _history.note("beat", lock=lock)


if __name__ == "__main__":
    asyncio.run(accept_jobs(os.environ["JOEX_DATABASE_URL"]))
