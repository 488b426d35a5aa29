"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import joex
import joex_operator
from tests.support.in_django import IN_DJANGO

MODULES = [
    module.name
    for package in (joex, joex_operator)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")  # importing it runs it
]

OF_DJANGO = [name for name in MODULES if name.startswith("joex.django.")]

# Settings of Django hold for a process, so its modules have one of their own.
EXAMPLES_IN_DJANGO = f"""{IN_DJANGO}
import doctest, importlib
sys.exit(sum(doctest.testmod(importlib.import_module(name)).failed for name in sys.argv[1:]))
"""


@pytest.mark.parametrize("name", [name for name in MODULES if name not in OF_DJANGO])
def test_the_examples_of_a_module_are_true(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_the_examples_of_the_modules_for_django_are_true():
    command = [sys.executable, "-c", EXAMPLES_IN_DJANGO, *OF_DJANGO]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_there_are_examples():
    found = doctest.DocTestFinder().find(importlib.import_module("joex.core.priority_turns"))
    assert any(test.examples for test in found)
