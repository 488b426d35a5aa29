"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import joex
import joex_operator

MODULES = [
    module.name
    for package in (joex, joex_operator)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith("__main__")  # importing it runs it
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_there_are_examples():
    found = doctest.DocTestFinder().find(importlib.import_module("joex.core.priority_turns"))
    assert any(test.examples for test in found)
