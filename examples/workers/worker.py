"""A worker without an executor: with only a client, it delivers parcels beside executors that do the same.

It needs a table, and jobs whose data have a parcel and the seconds of its delivery::

    CREATE TABLE delivery (
        run uuid PRIMARY KEY, job uuid NOT NULL, worker text NOT NULL, began timestamptz NOT NULL, ended timestamptz
    );
    SELECT joex.submit('deliver', '{"parcel": 7, "seconds": 20}', queue => 'deliver');

    $ python worker.py deliver

Each parcel is delivered once, even if a process dies: one transaction writes the delivery and ends the run.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress

import joex

DATABASE = os.environ.get("JOEX_DATABASE_URL", "postgresql://localhost/shop")
NAME = os.environ.get("JOEX_WORKER", "python")
REPORT_EVERY = float(os.environ.get("JOEX_REPORT_EVERY", "10"))
"""Seconds; well below the activity timeout of the type (60 s by default)."""


class Stop(Exception):
    """The run has lost its job, or the job was cancelled: an open transaction rolls back."""


async def deliver(client: joex.Client, job: joex.KeyedJob) -> None:
    """The work of a run."""
    async with client.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO delivery VALUES ($1, $2, $3, clock_timestamp())", job.lock_id, job.job, NAME
        )
        go_on(await client.keyed.update(job.type, job.id, {}, job.lock_id, progress=10, connection=connection))

    await asyncio.sleep(job.data["seconds"])

    async with client.acquire() as connection, connection.transaction():
        await connection.execute("UPDATE delivery SET ended = clock_timestamp() WHERE run = $1", job.lock_id)
        go_on(await client.keyed.finish(job.type, job.id, {}, job.lock_id, connection=connection))


async def report(client: joex.Client, job: joex.KeyedJob) -> None:
    """Report that the run goes on, so that no other worker gets its job."""
    while True:
        await asyncio.sleep(REPORT_EVERY)
        try:
            go_on(await client.keyed.update(job.type, job.id, {}, job.lock_id))
        except joex.DatabaseUnavailable as error:
            print(f"not reported: {error}", flush=True)


def go_on(answer: str) -> None:
    """Raise Stop unless the run may continue."""
    if answer != "ok":
        raise Stop(answer)


async def run(client: joex.Client, job: joex.KeyedJob) -> str:
    """Work and report, until the work is done or must stop; returns the answer to the end of the run."""
    tasks = [asyncio.create_task(deliver(client, job)), asyncio.create_task(report(client, job))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except asyncio.CancelledError:  # this program was asked to stop
        await client.keyed.give_back(job.type, job.id, job.lock_id)
        raise
    except Stop:  # if the job was cancelled, this reports that its run has stopped
        return await client.keyed.finish(job.type, job.id, {}, job.lock_id)
    except Exception as error:  # noqa: BLE001 - any error fails the run
        return await client.keyed.finish(job.type, job.id, {}, job.lock_id, error=repr(error))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return "ok"


async def main(job_type: str) -> None:
    """Accept jobs and run them, one after the other, until SIGTERM or Ctrl-C."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    async with joex.Client(DATABASE) as client:
        while True:
            try:
                job = await client.keyed.accept(job_type, wait="30s", worker=NAME)
                if job is not None:
                    print(await run(client, job), job.job, flush=True)
            except joex.DatabaseUnavailable as error:  # the timeout puts a job back whose run was cut off
                print(error, flush=True)
                await asyncio.sleep(2)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(main(sys.argv[1]))
