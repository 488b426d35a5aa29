"""The examples in the operator's docstrings are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["cluster.api", "local.slot", "manifests.environment", "names", "rows"])
def test_the_examples_of_a_module_are_true(name):
    result = doctest.testmod(importlib.import_module(f"joex_operator.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
