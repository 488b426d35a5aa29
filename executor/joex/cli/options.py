"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated, TypeAlias
from uuid import UUID

import typer

DatabaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="PostgreSQL URL; also JOEX_DATABASE_URL, or joex.toml. Without one: the embedded server.",
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, with times in ISO 8601 (UTC).")]
JobId: TypeAlias = Annotated[UUID, typer.Argument(metavar="ID", help="Id of the job.")]

OfQueue: TypeAlias = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only this queue.")]
OfGroup: TypeAlias = Annotated[str | None, typer.Option("--group", metavar="NAME", help="Only this group.")]
OfTask: TypeAlias = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Only this task.")]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Show at most this many.")]
