"""The test of ``helm test``: submits a job to the first pool, waits for its end, and fails unless it succeeds."""  # noqa: INP001 - not a package

import asyncio
import os
import sys
from uuid import UUID

import joex
from joex.examples import documents

AGAIN_AFTER = 0.5


async def main(queue: str) -> int:
    """Submit the job and wait for it; returns the exit code. The deadline of the pod limits the wait."""
    client = joex.Client(os.environ["JOEX_DATABASE_URL"])
    try:
        job = await client.wait(await submitted(client, queue))
    finally:
        await client.close()
    if job is None:
        say("the job is gone")
        return 1
    say(f"{job.task} {job.id}: {job.state}, by {job.app_id}: {job.error or job.result}")
    return 0 if job.state == joex.State.SUCCESS else 1


async def submitted(client: joex.Client, queue: str) -> UUID:
    """Submit the job; try again while the database or its schema is not ready."""
    while True:
        try:
            args = {"path": documents.__file__}
            job_id = await client.submit("documents.count", args, group="helm-test", queue=queue)
            if job_id is not None:  # None only for a job with a tracker
                return job_id
        except joex.JoexError as error:
            say(f"not yet: {error}")
            await asyncio.sleep(AGAIN_AFTER)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


sys.exit(asyncio.run(main(*sys.argv[1:])))
