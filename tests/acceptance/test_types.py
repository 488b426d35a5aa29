"""What type checkers say about programs that use Joex, and about Joex itself: mypy and pyright.

In the programs of the folder ``typed``, each line with a mistake ends with ``type: ignore``. The checkers report such a
comment if there is nothing to ignore, so they have no complaint if they refuse these lines and accept all others.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import joex
from tests.support.pages import ROOT

TYPED = Path(__file__).parent / "typed"
PYRIGHT = {
    "include": [str(TYPED)],
    "extraPaths": [str(ROOT / "executor")],
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": True,
    "reportUnnecessaryTypeIgnoreComment": "error",
}


def run(*command: str | Path) -> str:
    """The output of a checker, which sees the sources of Joex as a user's checker sees the installed package."""
    sources = str(ROOT / "executor")
    # (With --verifytypes, pyright looks for libraries beside the first Python on the PATH.)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "MYPYPATH": sources, "PYTHONPATH": sources, "PATH": path}
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, env=environment
    ).stdout


def test_mypy_refuses_the_lines_with_mistakes_and_no_others(tmp_path):
    options = ("--strict", "--config-file=", "--follow-imports=silent", "--cache-dir", tmp_path)
    files = sorted(TYPED.glob("*.py"))
    assert run("mypy", *options, *files) == f"Success: no issues found in {len(files)} source files\n"


def test_pyright_refuses_the_lines_with_mistakes_and_no_others(tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    said = run("basedpyright", "--project", tmp_path, "--pythonpath", sys.executable, "--outputjson")
    report = json.loads(said)
    assert report["generalDiagnostics"] == []
    assert report["summary"]["filesAnalyzed"] == len(list(TYPED.glob("*.py")))


def test_the_types_of_all_public_names_are_known():
    public = [f"{module}.{name}" for name, module in joex._MODULES.items()]
    said = run("basedpyright", "--verifytypes", "joex", "--ignoreexternal", "--outputjson")
    symbols = [
        one
        for one in json.loads(said)["typeCompleteness"]["symbols"]
        if f"{one['name']}.".startswith(("joex.testing.", "joex.sync.", *(f"{name}." for name in public)))
    ]
    assert set(public) <= {one["name"] for one in symbols}
    assert [one["name"] for one in symbols if not one["isTypeKnown"] or one["isTypeAmbiguous"]] == []
