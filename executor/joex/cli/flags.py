"""A flag for each setting, generated from the settings, so that none can be missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from joex.config import Settings
from joex.core.duration import format_duration

_PANEL = "Settings: a flag, or JOEX_<FLAG> in the environment, or a key of joex.toml"


def with_settings(
    command: Callable[..., None], model: type[BaseSettings] = Settings, panel: str = _PANEL
) -> Callable[..., None]:
    """Add a flag for each setting to a command, and pass the given ones to it as ``flags``.

    The flags are strings: `load_settings` parses them like environment variables, and names a wrong one.
    """

    def run(**values: Any) -> None:
        command(**{name: value for name, value in values.items() if name not in names}, flags=_given(values, names))

    names = set(model.model_fields)
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    parameters = [*own, *(_flag(name, field, panel) for name, field in model.model_fields.items())]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _given(values: Mapping[str, Any], names: set[str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name in names and value is not None}


def _flag(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    default = _default(field.default)
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=_metavar(field),
        help=f"{field.description}{f' (default: {default})' if default else ''}",
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
