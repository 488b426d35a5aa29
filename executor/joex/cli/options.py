"""Options that several commands share, and their values."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, TypeAlias
from uuid import UUID

import typer

from joex.core.duration import parse_duration
from joex.errors import ConfigError

DatabaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="PostgreSQL URL. Other users see it in the process list: for a URL with a password, use "
        "JOEX_DATABASE_URL, JOEX_DATABASE_URL_FILE or joex.toml. Without a URL: the embedded server.",
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, with times in ISO 8601 (UTC).")]
JobId: TypeAlias = Annotated[UUID, typer.Argument(metavar="ID", help="Id of the job.")]

OfQueue: TypeAlias = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only this queue.")]
OfGroup: TypeAlias = Annotated[str | None, typer.Option("--group", metavar="NAME", help="Only this group.")]
OfTask: TypeAlias = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Only this task.")]
MOST_BYTES = 4_000_000
"""Of the payloads in a list."""
Limit: TypeAlias = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Show at most this many.")]


def time_or_duration(flag: str, expected: str, text: str) -> datetime | timedelta:
    """Parse a time with its zone, or a duration. ``expected``: the meaning of a duration, for the message.

    Raises:
        ConfigError: it is neither; the message names the flag.
    """
    try:
        moment = datetime.fromisoformat(text) if "-" in text else parse_duration(text)  # no duration has a '-'
    except ValueError:
        moment = None
    if moment is None or (isinstance(moment, datetime) and moment.tzinfo is None):
        example = "a time with its zone, such as 2026-01-31T03:00:00Z"
        raise ConfigError(f"{flag}: expected {expected}, or {example}; got {text!r}")
    return moment


def read_since(text: str, now: datetime, expected: str) -> datetime:
    """Parse a time in the past: a time with its zone, or a duration before now, with its meaning for the message.

    >>> str(read_since("24h", datetime.fromisoformat("2026-02-01T00:00Z"), "a duration"))
    '2026-01-31 00:00:00+00:00'

    Raises:
        ConfigError: it is neither.
    """
    given = time_or_duration("--since", expected, text)
    return given if isinstance(given, datetime) else now - given


def is_alone(context: typer.Context, *options: object) -> bool:
    """Whether the user called a group of commands without any of them: it then lists, with these options.

    Raises:
        ConfigError: one of the options came before a command.
    """
    if context.invoked_subcommand is not None and any(option not in (None, False) for option in options):
        raise ConfigError(f"{context.info_name} {context.invoked_subcommand}: give its options after it")
    return context.invoked_subcommand is None
