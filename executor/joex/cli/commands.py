"""The table of the commands. The module of a command is imported to run it or to print its help, not before.

Other packages bring commands by the entry points ``joex.commands``. The help lists one of these even if its libraries
are missing. No other package replaces a command of this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from joex.errors import ConfigError
from joex.extras import needs

if TYPE_CHECKING:
    from typer._click import Command

_RUN, _JOBS, _QUEUES, _MORE = "Run", "Jobs", "Queues, groups, executors", "More"


class _Place(NamedTuple):
    """Where a command is, a function or a group with commands of its own, and the part of the help that lists it."""

    target: str
    panel: str


_COMMANDS = {
    "migrate": _Place("migrate:migrate", _RUN),
    "executor": _Place("executor:executor", _RUN),
    "dev": _Place("dev:dev", _RUN),
    "console": _Place("console:console", _RUN),
    "submit": _Place("submit:submit", _JOBS),
    "jobs": _Place("jobs:jobs", _JOBS),
    "show": _Place("show:show", _JOBS),
    "logs": _Place("show:logs", _JOBS),
    "why": _Place("why:why", _JOBS),
    "cancel": _Place("steer:cancel", _JOBS),
    "remove": _Place("steer:remove", _JOBS),
    "retry": _Place("steer:retry", _JOBS),
    "priority": _Place("steer:priority", _JOBS),
    "args": _Place("steer:args", _JOBS),
    "stats": _Place("stats:stats", _QUEUES),
    "executors": _Place("executors:executors", _QUEUES),
    "pools": _Place("pools:pools", _QUEUES),
    "notify": _Place("executors:notify", _QUEUES),
    "drain": _Place("executors:drain", _QUEUES),
    "audit": _Place("audit:audit", _QUEUES),
    "queues": _Place("queues:queues_app", _QUEUES),
    "groups": _Place("groups:groups_app", _QUEUES),
    "timeouts": _Place("timeouts:timeouts_app", _QUEUES),
    "roles": _Place("roles:roles_app", _QUEUES),
    "periodic": _Place("periodic:periodic_app", _QUEUES),
    "tokens": _Place("tokens:tokens_app", _MORE),
    "version": _Place("version:version", _MORE),
}


class Commands(TyperGroup):
    """The commands of this package, and then those that other packages bring."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]  # (typer only reads it)


class _Commands(Mapping[str, "Command"]):
    """The commands by name; whatever asks for one loads it."""

    @cached_property
    def _brought(self) -> Mapping[str, EntryPoint]:
        # (Only if it is needed: this reads files of all installed packages.)
        found = sorted(entry_points(group="joex.commands"), key=lambda entry: (not _is_ours(entry), entry.name))
        brought: dict[str, EntryPoint] = {}
        for entry in found:
            if entry.name not in _COMMANDS:
                brought.setdefault(entry.name, entry)
        return brought

    def __getitem__(self, name: str) -> Command:
        if name not in _COMMANDS:
            return _load(self._brought[name])
        place = _COMMANDS[name]
        with needs("cli", f'the command "{name}" needs'):
            return _command(name, resolve_name(f"joex.cli.{place.target}"), place.panel)

    def __iter__(self) -> Iterator[str]:
        return iter([*_COMMANDS, *self._brought])

    def __len__(self) -> int:
        return len(_COMMANDS) + len(self._brought)


def _load(entry: EntryPoint) -> Command:
    try:
        return _command(entry.name, entry.load(), _RUN)
    except ImportError as error:
        return _unloadable(entry, error)


def _command(name: str, target: object, panel: str) -> Command:
    app = typer.Typer(add_completion=False)
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name, rich_help_panel=panel)
    else:
        app.command(name, rich_help_panel=panel)(target)  # type: ignore[type-var]
    return get_group(app).commands[name]


def _is_ours(entry: EntryPoint) -> bool:
    return _package(entry) == "joex"


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else ""


def _unloadable(entry: EntryPoint, error: ImportError) -> Command:
    def complain() -> None:
        if _is_ours(entry):  # the caller names the extra
            raise error
        what = f'the command "{entry.name}" of the package "{_package(entry)}" can\'t be loaded'
        raise ConfigError(f"{what}: {error}") from error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    why = f"Not installed: {error}."
    return TyperCommand(entry.name, callback=complain, context_settings=anything, help=why, rich_help_panel=_RUN)
