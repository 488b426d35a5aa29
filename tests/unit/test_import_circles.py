"""No two modules import each other, not even through others or for annotations: import contracts see packages only."""

import graphlib
from collections.abc import Collection

import grimp
import pytest


def circle(packages: Collection[str]) -> list[str]:
    """The modules of a circle of imports, those under ``TYPE_CHECKING`` included; empty: there is none."""
    graph = grimp.build_graph("joex", "joex_operator", exclude_type_checking_imports=False, cache_dir=None)
    modules = [module for module in graph.modules if module.partition(".")[0] in packages]
    try:
        graphlib.TopologicalSorter({one: graph.find_modules_directly_imported_by(one) for one in modules}).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", ["joex_operator"])
def test_no_two_modules_import_each_other_not_even_for_annotations(package):
    assert circle([package]) == []
