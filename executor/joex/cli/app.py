"""The command line, as typer runs it."""

from __future__ import annotations

from typing import Annotated

import typer

from joex.cli.commands import Commands
from joex.cli.output import say

app = typer.Typer(
    name="joex",
    cls=Commands,
    help="A fair job executor for PostgreSQL.",
    context_settings={"help_option_names": ["-h", "--help"]},
    # A bug in Joex shows Python's plain traceback, which users can copy into an issue.
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def joex(
    context: typer.Context,
    *,
    with_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Run a fair job executor on PostgreSQL, and submit, manage and watch its jobs."""
    if with_version:
        from joex.cli.version import version  # noqa: PLC0415 - no other command needs it

        version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())
