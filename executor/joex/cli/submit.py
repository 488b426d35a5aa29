"""``joex submit``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from joex.cli.database import with_client
from joex.cli.options import DatabaseUrl, time_or_duration
from joex.cli.output import iso, note, print_json, say
from joex.client.client import Client
from joex.core.job import Priority, State
from joex.errors import ConfigError, JoexError


def submit(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of the task.")],
    *,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object.")] = None,
    args_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with this object; '-' is stdin.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="An argument: NAME=TEXT, or NAME:=JSON. May be repeated."),
    ] = None,
    group: Annotated[str, typer.Option(metavar="NAME", help="The tenant that the job belongs to.")] = "default",
    queue: Annotated[str, typer.Option(metavar="NAME", help="The queue that executors take it from.")] = "default",
    priority: Annotated[Priority, typer.Option(case_sensitive=False, help="Within its group.")] = Priority.LOW,
    subject: Annotated[str, typer.Option(metavar="TEXT", help="What the job is about; Joex only shows it.")] = "",
    submitter: Annotated[str, typer.Option(metavar="TEXT", help="The submitter; Joex only shows it.")] = "",
    not_before: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Don't run it before: '10m', or 2026-01-31T03:00:00Z.")
    ] = None,
    tracker: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Skip it while an unfinished job of its group has the same tracker."),
    ] = None,
    retries: Annotated[int | None, typer.Option(help="How often to retry the job.", show_default="the task's")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is finished, and print its result; fail if the job failed.")
    ] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Submit a job, and print its id."""
    begin = None if not_before is None else time_or_duration("--not-before", "a delay, such as '10m'", not_before)
    fields: dict[str, Any] = {
        "args": _arguments(args, args_file, arg or ()),
        "group": group,
        "queue": queue,
        "priority": priority,
        "subject": subject,
        "submitter": submitter,
        "not_before": begin,
        "tracker": tracker,
        "retries": retries,
    }

    async def work(client: Client) -> None:
        job_id = await client.submit(task, **fields)
        if job_id is None:
            skipped = f"skipped: an unfinished job of its group has the tracker {tracker!r}"
            if wait:
                raise JoexError(skipped)
            note(skipped)
        elif wait:
            note(f"job {job_id}")
            print_json(await _result(client, job_id))
        else:
            say(str(job_id))

    with_client(database_url, work)


_ENDED_OR_STUCK = [state for state in State if state.is_final or state == State.STUCK]
_NOT_STUCK = [state for state in State if state != State.STUCK]


async def _result(client: Client, job_id: UUID) -> Any:
    """Wait for the result of a job, and report the runs that fail meanwhile.

    Raises:
        JoexError: the job did not succeed.
    """
    while True:
        job = await client.wait(job_id, states=_ENDED_OR_STUCK)
        if job is None:
            raise JoexError(f"job {job_id}: it was removed")
        if job.state != State.STUCK:
            break
        error, *_ = (job.error or "").splitlines() or [""]
        note(f"run {job.attempt} failed: {error}; retry {f'at {iso(job.due_at)}' if job.due_at else 'now'}")
        await client.wait(job_id, states=_NOT_STUCK)
    if job.state != State.SUCCESS:
        raise JoexError(f"job {job_id}: {job.state}{f', {job.error}' if job.error else ''}")
    return job.result


def _arguments(text: str | None, file: str | None, pairs: Sequence[str]) -> dict[str, Any]:
    """Merge the arguments; an ``--arg`` overrides the object."""
    if text is not None and file is not None:
        raise ConfigError("give either --args or --args-file")
    arguments: dict[str, Any] = {}
    if text is not None:
        arguments = json_object("--args", text)
    elif file is not None:
        arguments = json_object("--args-file", _read(file))
    given: dict[str, Any] = {}
    for pair in pairs:
        name, value = _argument(pair)
        if name in given:
            raise ConfigError(f"--arg {name}: given twice; write a list as {name}:='[1, 2]'")
        given[name] = value
    return arguments | given


def json_object(flag: str, text: str) -> dict[str, Any]:
    """Read the JSON object that a flag gives.

    Raises:
        ConfigError: it is not a JSON object; the message names the flag.
    """
    value = _json(flag, text)
    if not isinstance(value, dict):
        raise ConfigError(f'{flag}: expected a JSON object, such as {{"path": "/tmp/a"}}; got {text.strip()[:80]}')
    return value


def _argument(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    is_json = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise ConfigError(f"--arg: expected NAME=TEXT or NAME:=JSON; got {pair!r}")
    return name, _json(f"--arg {name}", text) if is_json else text


def _json(flag: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag}: this is not JSON: {error}; got {text.strip()[:80]!r}") from error


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--args-file {file}: {error}") from error
