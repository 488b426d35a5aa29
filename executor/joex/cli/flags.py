"""A flag for each setting, generated from the settings, so that none can be missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from joex.config import SECRETS, Settings
from joex.core.duration import format_duration

_PANEL = "Settings: a flag, or JOEX_<FLAG> in the environment, or a key of joex.toml"


def with_settings(
    command: Callable[..., None], model: type[BaseSettings] = Settings, panel: str = _PANEL
) -> Callable[..., None]:
    """Add a flag for each setting to a command, and pass them to it as ``flags`` (None: not given).

    The flags are strings: `joex.config.load` parses them like environment variables, and names a wrong one.
    """

    def run(**values: Any) -> None:
        flags = {name: values.pop(name) for name in model.model_fields}
        command(**values, flags=flags)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    parameters = [*own, *(_flag(name, field, panel) for name, field in model.model_fields.items())]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _flag(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    default = _default(field.default)
    flag, variable = f"--{name.replace('_', '-')}", f"JOEX_{name.upper()}"
    warning = f"; other users see it in the process list: prefer {variable}, or {flag}-file" if name in SECRETS else ""
    option = typer.Option(
        flag,
        metavar=_metavar(field),
        help=f"{field.description}{f' (default: {default})' if default else ''}{warning}",
        show_default=False,
        rich_help_panel=panel,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def _metavar(field: FieldInfo) -> str:
    if field.annotation is int:
        return "NUMBER"
    return "DURATION" if "timedelta" in str(field.annotation) else "TEXT"


def _default(value: object) -> str:
    """Return a default as a user would write it."""
    if value is None or isinstance(value, SecretStr):
        return ""
    if isinstance(value, timedelta):
        return format_duration(value)
    return ",".join(value) if isinstance(value, list) else str(value)
