"""``joex jobs``: lists of jobs, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from joex.cli.database import with_connection
from joex.cli.options import MOST_BYTES, AsJson, DatabaseUrl, Limit, OfGroup, OfQueue, OfTask
from joex.cli.output import ago, note, print_json, print_table, say
from joex.core.job import State
from joex.store.bounded import NOTHING
from joex.store.job_pages import check_cursor
from joex.store.jobs import Job
from joex.store.listing import Filter, list_jobs

_COLUMNS = ("ID", "STATE", "TASK", "GROUP", "QUEUE", "PRIO", "TRY", "DONE", "AGE", "SUBJECT")
_STATES = f"In this state only: {', '.join(State)}. May be repeated."


def jobs(
    *,
    state: Annotated[list[State] | None, typer.Option(metavar="STATE", help=_STATES)] = None,
    queue: OfQueue = None,
    group: OfGroup = None,
    task: OfTask = None,
    limit: Limit = 50,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after the cursor that a page printed.")
    ] = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List jobs.

    Jobs that executors hold come first, then runnable jobs group by group, jobs that are not due yet, and finished
    jobs, the latest first. With --json a page has 4 MB of arguments and results, but one job at least.
    """
    check_cursor(after)
    wanted = Filter(queue, group, task, state)
    most_bytes = MOST_BYTES if as_json else NOTHING
    page = with_connection(database_url, lambda connection: list_jobs(connection, wanted, after, limit, most_bytes))
    if as_json:
        print_json(page.jobs)
    elif page.jobs:
        print_table(_COLUMNS, map(_row, page.jobs), numbers=("TRY", "DONE", "AGE"))
    else:
        say("no jobs")
    if page.next is not None:
        note(f"there are more: add --after {page.next}")


def _row(job: Job) -> Sequence[object]:
    state = f"{job.state}, cancelling" if job.cancel_requested and job.finished_at is None else job.state
    done = f"{job.progress}%" if job.started_at else None
    age = ago(job.submitted_at)
    return (job.id, state, job.task, job.group, job.queue, job.priority, job.attempt, done, age, job.subject)
