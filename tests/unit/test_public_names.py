"""The names that users build on."""

import inspect

import pytest

import joex

NAMES = [
    "App",
    "AppIdInUse",
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
