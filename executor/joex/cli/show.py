"""``joex show`` and ``joex logs``: one job, and its log."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

import typer

from joex.cli.database import with_client
from joex.cli.options import AsJson, DatabaseUrl, JobId
from joex.cli.output import iso, note, print_json, print_json_line, say, shown
from joex.client.client import Client
from joex.core.duration import span
from joex.core.job import State
from joex.errors import JoexError
from joex.store.job_logs import Attempt, LogEntry
from joex.store.jobs import Job

_POLL_EVERY = 0.5
"""Seconds between two polls of ``logs --follow``."""


def show(job_id: JobId, *, as_json: AsJson = False, database_url: DatabaseUrl = None) -> None:
    """Show a job, with its attempts and its log."""

    async def work(client: Client) -> tuple[Job, list[Attempt], list[LogEntry]]:
        job = await get_job(client, job_id)
        return job, await client.attempts(job_id), [line async for line in _log(client, job_id)]

    job, attempts, log = with_client(database_url, work)
    if as_json:
        fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
        print_json({**fields, "attempts": attempts, "log": log})
        return
    for name, value in _facts(job):
        say(f"{name:<13} {value}")
    if attempts:
        say()
    for one in attempts:
        say(_attempt(one))
    if log:
        say()
    for line in log:
        say(_line(line))


def logs(
    job_id: JobId,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job is finished.")] = False,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Print the log of a job.

    The log has the lines of all attempts. With --follow, --json prints an object per line.
    """

    async def work(client: Client) -> list[LogEntry]:
        await get_job(client, job_id)
        if not follow:
            return [line async for line in _log(client, job_id)]
        async for line in _follow(client, job_id):
            if as_json:
                print_json_line(line)
            else:
                say(_line(line))
        return []

    lines = with_client(database_url, work)
    if follow:
        return
    if as_json:
        print_json(lines)
        return
    for line in lines:
        say(_line(line))


async def get_job(client: Client, job_id: UUID) -> Job:
    """Return the job.

    Raises:
        JoexError: there is none with this id.
    """
    job = await client.get(job_id)
    if job is None:
        raise no_such_job(job_id)
    return job


def no_such_job(job_id: UUID) -> JoexError:
    """The message when there is no job with this id."""
    return JoexError(f"there is no job {job_id}; 'joex jobs' lists them")


async def _log(client: Client, job_id: UUID, after: int = 0) -> AsyncIterator[LogEntry]:
    while lines := await client.log(job_id, after=after):
        for line in lines:
            yield line
        after = lines[-1].seq


async def _follow(client: Client, job_id: UUID) -> AsyncIterator[LogEntry]:
    """Yield the lines as they arrive. Executors may write the last ones after the job's end, hence one more poll."""
    last, was_finished = 0, False
    while True:
        job = await get_job(client, job_id)
        is_finished = State(job.state).is_final
        async for line in _log(client, job_id, last):
            yield line
            last = line.seq
        if is_finished and (was_finished or job.started_at is None):
            error = f", {job.error}" if job.state == State.FAILED else ""  # (that of an earlier run stays in the row)
            note(f"the job is finished: {job.state}{error}")
            return
        was_finished = is_finished
        await asyncio.sleep(_POLL_EVERY)


def _facts(job: Job) -> list[tuple[str, str]]:
    """Return the fields of a job that have a value."""
    took = (job.finished_at - job.started_at).total_seconds() if job.started_at and job.finished_at else None
    facts: dict[str, object] = {
        "id": job.id,
        "state": f"{job.state}, cancellation requested" if job.cancel_requested and not job.finished_at else job.state,
        "task": job.task,
        "subject": job.subject or None,
        "group": job.group,
        "queue": job.queue,
        "priority": job.priority,
        "submitter": job.submitter or None,
        "tracker": job.tracker,
        "submitted": job.submitted_at,
        "not before": job.due_at,
        "scheduled": job.scheduled_at,
        "started": job.started_at,
        "finished": job.finished_at and f"{iso(job.finished_at)}{f' (took {span(took)})' if took is not None else ''}",
        "executor": job.app_id,
        "attempt": job.attempt,
        "failures": job.failures or None,
        "losses": job.losses or None,
        "retries": job.retries,
        "progress": f"{job.progress}%  {job.progress_message or ''}".rstrip() if job.started_at else None,
        "arguments": json.dumps(job.args, ensure_ascii=False),
        "message": job.message,
        "result": None if job.result is None else json.dumps(job.result, ensure_ascii=False),
        # The job keeps the error of the latest failed run, also when a later run has succeeded.
        "last error" if job.state == State.SUCCESS else "error": job.error,
    }
    # An error may have many lines.
    return [
        (name, str(value) if name.endswith("error") else shown(value))
        for name, value in facts.items()
        if value is not None
    ]


def _attempt(one: Attempt) -> str:
    took = (
        None
        if one.started_at is None or one.ended_at is None
        else span((one.ended_at - one.started_at).total_seconds())
    )
    parts = [
        f"attempt {one.attempt}: {one.outcome.replace('_', ' ')}",
        one.app_id and f"on {one.app_id}",
        one.started_at and f"from {iso(one.started_at)}",
        one.ended_at and f"until {iso(one.ended_at)}",
        took and f"(took {took})",
    ]
    after = f"; retry at {iso(one.retry_at)}" if one.retry_at else ""
    return " ".join(part for part in parts if part) + after + (f": {one.error}" if one.error else "")


def _line(line: LogEntry) -> str:
    return f"{iso(line.at)} [{line.attempt}] {line.level.upper():<7} {line.message}"
