"""What ``helm test`` runs: submit a job of the first pool's app, wait for its end, and fail unless it is a success."""  # noqa: INP001 - not a package

import asyncio
import os
import sys
from uuid import UUID

import joex
from joex.examples import documents

AGAIN_AFTER = 0.5


async def main(queue: str) -> int:
    """Submit the job, and wait; the pod's deadline ends a wait in vain. Returns the exit code."""
    client = joex.Client(os.environ["JOEX_DATABASE_URL"])
    try:
        job = await finished(client, await submitted(client, queue))
    finally:
        await client.close()
    say(f"{job.task} {job.id}: {job.state}, by {job.app_id}: {job.error or job.result}")
    return 0 if job.state == joex.State.SUCCESS else 1


async def submitted(client: joex.Client, queue: str) -> UUID:
    """Submit it; again and again, as long as the database or its schema is not there yet."""
    while True:
        try:
            args = {"path": documents.__file__}
            job_id = await client.submit("documents.count", args, group="helm-test", queue=queue)
            if job_id is not None:  # it is None for a job with a tracker alone, and this has none
                return job_id
        except joex.JoexError as error:
            say(f"not yet: {error}")
            await asyncio.sleep(AGAIN_AFTER)


async def finished(client: joex.Client, job_id: UUID) -> joex.Job:
    """The job, once it is finished."""
    while True:
        job = await client.get(job_id)
        if job is not None and joex.State(job.state).is_final:
            return job
        await asyncio.sleep(AGAIN_AFTER)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


sys.exit(asyncio.run(main(*sys.argv[1:])))
