"""The commands, in the order of the help."""

from __future__ import annotations

from typing import Annotated

import typer

from joex.cli.audit import audit
from joex.cli.console import console
from joex.cli.dev import dev
from joex.cli.executor import executor
from joex.cli.executors import drain, executors, notify
from joex.cli.groups import groups_app
from joex.cli.jobs import jobs
from joex.cli.migrate import migrate
from joex.cli.options import AsJson
from joex.cli.output import print_json, say
from joex.cli.periodic import periodic_app
from joex.cli.plugins import PANEL, Commands
from joex.cli.roles import roles_app
from joex.cli.show import logs, show
from joex.cli.stats import stats
from joex.cli.steer import args, cancel, priority, remove, retry
from joex.cli.submit import submit
from joex.cli.timeouts import timeouts_app
from joex.cli.tokens import tokens_app
from joex.cli.why import why

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
        version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        say(context.get_help())


def version(*, as_json: AsJson = False) -> None:
    """Print the version of Joex."""
    from joex import __version__  # noqa: PLC0415 - this package belongs to it, and is imported by it in turn

    if as_json:
        print_json({"version": __version__})
    else:
        say(f"joex {__version__}")


def _add_commands() -> None:
    panels = {
        PANEL: (migrate, executor, dev, console),
        "Jobs": (submit, jobs, show, logs, why, cancel, remove, retry, priority, args),
        "Queues, groups, executors": (stats, executors, notify, drain, audit),
        "More": (version,),
    }
    for panel, commands in panels.items():
        for command in commands:
            app.command(rich_help_panel=panel)(command)
    app.add_typer(groups_app, name="groups", rich_help_panel="Queues, groups, executors")
    app.add_typer(timeouts_app, name="timeouts", rich_help_panel="Queues, groups, executors")
    app.add_typer(roles_app, name="roles", rich_help_panel="Queues, groups, executors")
    app.add_typer(periodic_app, name="periodic", rich_help_panel="Queues, groups, executors")
    app.add_typer(tokens_app, name="tokens", rich_help_panel="More")


_add_commands()
