"""``joex cancel``, ``joex remove``, ``joex retry``, ``joex priority`` and ``joex args``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated
from uuid import UUID

import typer

from joex.cli.database import with_client
from joex.cli.options import DatabaseUrl, JobId, OfGroup, OfQueue, OfTask
from joex.cli.output import note, say
from joex.cli.show import get_job, no_such_job
from joex.cli.submit import json_object
from joex.client.client import Client
from joex.core.job import Priority
from joex.errors import ConfigError, JoexError

JobIds = Annotated[list[UUID], typer.Argument(metavar="ID...", help="Ids of jobs.")]


def cancel(job_ids: JobIds, *, database_url: DatabaseUrl = None) -> None:
    """Cancel jobs.

    A waiting job is cancelled at once; a running one is asked to end.
    """

    async def one(client: Client, job_id: UUID) -> str:
        answer = await client.cancel(job_id)
        if answer == "cancelled":
            return "cancelled"
        if answer == "requested":
            return "is running, and was asked to end"
        raise JoexError(f"job {job_id}: can't be cancelled: {(await get_job(client, job_id)).state} already")

    with_client(database_url, lambda client: _each(client, job_ids, one))


def remove(job_ids: JobIds, *, database_url: DatabaseUrl = None) -> None:
    """Remove jobs with their logs.

    A running job is asked to end, and removed when its run has ended.
    """

    async def one(client: Client, job_id: UUID) -> str:
        if await client.remove(job_id) == "ok":
            return "removed now, or when its run has ended"
        raise no_such_job(job_id)

    with_client(database_url, lambda client: _each(client, job_ids, one))


def retry(
    job_ids: Annotated[list[UUID] | None, typer.Argument(metavar="[ID...]", help="Ids of jobs.")] = None,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="All failed jobs that match, the oldest first.")] = False,
    queue: OfQueue = None,
    group: OfGroup = None,
    task: OfTask = None,
    most: Annotated[int | None, typer.Option(min=1, help="Retry at most this many.", show_default="10000")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Run failed, cancelled or stuck jobs again, and jobs that are not due now.

    Failed and cancelled jobs wait in line again, with all their retries. Stuck jobs are retried now instead of later,
    and waiting jobs don't wait for their time.
    """
    if bool(job_ids) == failed:
        raise ConfigError("retry: give either ids of jobs, or --failed (with --queue, --group, --task, --most)")
    if not failed and any(value is not None for value in (queue, group, task, most)):
        raise ConfigError("retry: --queue, --group, --task and --most go with --failed")
    if not failed:
        with_client(database_url, lambda client: _each(client, job_ids or (), _retry_one))
        return
    count = with_client(
        database_url, lambda client: client.retry_failed(queue=queue, group=group, task=task, most=most or 10_000)
    )
    say(f"{count} {'job waits' if count == 1 else 'jobs wait'} again")


def priority(
    job_id: JobId,
    value: Annotated[
        Priority, typer.Argument(metavar="PRIORITY", case_sensitive=False, help="The new priority: high or low.")
    ],
    *,
    database_url: DatabaseUrl = None,
) -> None:
    """Change the priority of a waiting job, within its group."""

    async def one(client: Client, job_id: UUID) -> str:
        if await client.set_priority(job_id, value):
            return f"{value} priority"
        state = (await get_job(client, job_id)).state
        raise JoexError(f"job {job_id}: it is {state}; only the priority of a waiting job can be changed")

    with_client(database_url, lambda client: _each(client, [job_id], one))


def args(
    job_id: JobId,
    value: Annotated[str, typer.Argument(metavar="JSON", help="All new arguments, as a JSON object.")],
    *,
    database_url: DatabaseUrl = None,
) -> None:
    """Replace the arguments of a waiting job."""
    new = json_object("JSON", value)

    async def one(client: Client, job_id: UUID) -> str:
        if await client.set_args(job_id, new):
            return "new arguments"
        state = (await get_job(client, job_id)).state
        raise JoexError(f"job {job_id}: it is {state}; only the arguments of a waiting job can be changed")

    with_client(database_url, lambda client: _each(client, [job_id], one))


async def _retry_one(client: Client, job_id: UUID) -> str:
    if await client.retry(job_id):
        return "waits again"
    state = (await get_job(client, job_id)).state
    raise JoexError(
        f"job {job_id}: it is {state}; only jobs that failed, were cancelled, are stuck or not due can be retried"
    )


async def _each(client: Client, job_ids: Sequence[UUID], one: Callable[[Client, UUID], Awaitable[str]]) -> None:
    """Change each job, and print the outcome; an error with one job does not stop the others."""
    wrong: list[JoexError] = []
    for job_id in job_ids:
        try:
            say(f"{job_id} {await one(client, job_id)}")
        except JoexError as error:
            wrong.append(error)
    if wrong:
        *others, last = wrong
        for other in others:
            note(str(other))
        raise last
