"""No two modules import each other, not even through others or for annotations.

(Import contracts check only packages.)
"""

import graphlib

import grimp


def test_no_two_modules_import_each_other_not_even_for_annotations():
    graph = grimp.build_graph("joex", "joex_operator", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, with the modules of a circle
