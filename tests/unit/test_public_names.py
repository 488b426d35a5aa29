"""The names that users build on."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import joex

NAMES = [
    "App",
    "AppIdInUse",
    "Attempt",
    "Cancel",
    "Client",
    "ConfigError",
    "Context",
    "DatabaseUnavailable",
    "Fail",
    "InvalidJob",
    "Job",
    "JobLog",
    "JoexError",
    "LeaseLost",
    "LogEntry",
    "NewJob",
    "Priority",
    "Retry",
    "SchemaError",
    "State",
    "Task",
    "WorkerConflict",
]


def test_the_public_names_are_these_and_none_is_lost():
    assert sorted(joex.__all__) == joex.__all__
    assert set(NAMES) <= set(joex.__all__)


@pytest.mark.parametrize("name", joex.__all__)
def test_a_public_name_is_there_and_documented(name):
    assert inspect.getdoc(getattr(joex, name))


def test_the_version_is_the_installed_one():
    assert joex.__version__.count(".") == 2


def test_type_checkers_and_users_see_the_same_names():
    shown = ast.parse(Path(str(joex.__file__)).read_text())
    [block] = [node for node in shown.body if isinstance(node, ast.If)]
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == joex._MODULES
    assert sorted(imported) == joex.__all__
    assert {*joex.__all__, "__version__"} <= set(dir(joex))


def test_another_name_is_missing_as_in_any_module():
    with pytest.raises(AttributeError, match="module 'joex' has no attribute 'Jober'"):
        getattr(joex, "Jober")  # noqa: B009 - a type checker would say so


def test_the_command_line_handles_sigterm_before_it_imports_anything_that_takes_long():
    """Imports before the call of `joex.cli.main` delay it: see joex/cli/sigterm.py."""
    looks = "import sys, joex.cli; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", looks], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not {"asyncio", "asyncpg", "importlib.metadata", "logging", "pydantic", "typer"} & loaded
