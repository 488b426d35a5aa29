"""Load the user's tasks: ``--app module:app``."""

from __future__ import annotations

import importlib
import sys
import traceback
from operator import attrgetter
from pathlib import Path
from types import ModuleType

from joex.app import App
from joex.errors import ConfigError, JoexError


def load_app(place: str) -> App:
    """Import the `joex.App` that ``module:attribute`` names; the current folder comes first on the path.

    Raises:
        ConfigError: there is none, or importing its module fails; the message says which part is wrong, and why.
    """
    module_name, colon, attribute = place.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(f"--app: expected module:attribute, such as shop.tasks:app; got {place!r}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = _import(module_name)
    try:
        app = attrgetter(attribute)(module)
    except AttributeError:
        raise ConfigError(f"--app: module {module_name} has no {attribute!r}; {_apps_of(module)}") from None
    if not isinstance(app, App):
        raise ConfigError(f"--app: {place} is a {type(app).__name__}, not a joex.App; {_apps_of(module)}")
    app.name = app.name or place
    return app


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            looked = f"looked in {Path.cwd()} and the installed packages"
            raise ConfigError(f"--app: there is no module {error.name!r} ({looked})") from error
        raise _failed(name, error) from error
    except SyntaxError as error:
        raise ConfigError(f"--app: {error.filename}, line {error.lineno}: {error.msg}") from error
    except JoexError:  # its message names the task and the fix
        raise
    except Exception as error:
        if isinstance(error, ValueError | TypeError) and (name.startswith(".") or ".." in name or name.endswith(".")):
            raise ConfigError(f"--app: {name!r} is not the name of a module") from error
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> ConfigError:
    """Explain why importing the user's module fails, with the line of the user's own package that raises."""
    package = name.partition(".")[0]
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            where = f" ({frame.f_code.co_filename}, line {line}; python -c 'import {name}' shows the traceback)"
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return ConfigError(f"--app: importing {name} failed: {kind}{error}{where}")


def _apps_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"it has {', '.join(names)}" if names else "it has no joex.App"
