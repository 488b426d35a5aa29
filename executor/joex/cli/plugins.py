"""Plugins: commands of other packages, by the entry points ``joex.commands``.

The command line looks plugins up only to run one or to print the help, so that other commands don't wait for them. The
help lists a plugin even if its libraries are missing.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from typer._click import Command, Context

PANEL = "Run"


class Commands(TyperGroup):
    """The commands of this package, and then the plugins."""

    def list_commands(self, ctx: Context) -> list[str]:
        """All names."""
        return [*super().list_commands(ctx), *_plugins()]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """The command of this name; None: there is none."""
        command = super().get_command(ctx, cmd_name)
        return _load(_plugins()[cmd_name]) if command is None and cmd_name in _plugins() else command


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group="joex.commands"))}


def _load(entry: EntryPoint) -> Command:
    try:
        function = entry.load()
    except ImportError as error:
        return _unloadable(entry.name, error)
    app = typer.Typer(add_completion=False)
    app.command(entry.name, rich_help_panel=PANEL)(function)
    return get_command(app)


def _unloadable(name: str, error: ImportError) -> Command:
    def complain() -> None:
        raise error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    why = f"Not installed: {error}."
    return TyperCommand(name, callback=complain, context_settings=anything, help=why, rich_help_panel=PANEL)
