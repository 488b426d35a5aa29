"""Readers follow the README and the pages of docs/ word for word, and each page does what it says.

The README and the tour of docs/learn begin in a clone, in an environment in which nothing is installed. Other pages
begin in a folder with the examples of a clone; ``joex`` is installed, ``JOEX_DATABASE_URL`` is set, and a job has run.
There ``joex`` is forked with Joex loaded (tests/support/loaded); the README and the tour start what they install.
"""

import ast
import asyncio
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import TypeGuard

import asyncpg
import pytest

import joex.examples.documents
from benchmarks.__main__ import parse
from joex import Client
from joex.testing import drain
from joex_operator.local.files import read_files
from tests.support import loaded
from tests.support.pages import (
    DOCS,
    ROOT,
    Command,
    File,
    Foreign,
    Manifest,
    Session,
    Statements,
    Step,
    UnclassifiedError,
    is_as_shown,
    pages,
    steps,
)
from tests.support.shell import Shell
from tests.support.soak import SOAK
from tests.support.waiting import eventually

LEARN, HOW_TO = pages("learn"), pages("how-to")
SQL_REFERENCE = DOCS / "reference" / "sql.md"  # signatures: a test compares them with the catalogue
README, CONTRIBUTING = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
REFERENCE = [page for page in sorted((DOCS / "reference").glob("*.md")) if page != SQL_REFERENCE]
WHY = sorted((DOCS / "why").rglob("*.md"))
ALL = [README, CONTRIBUTING, *LEARN, *HOW_TO, *REFERENCE, *WHY]
PYTHONPATH = f"{ROOT / 'executor'}:{ROOT / 'operator'}"
STORIES = (ROOT / "tests" / "node" / "test_stories.py").read_text()
RUN_BY = {"Dockerfile": "docker build", "test": "pytest", "conftest.py": "pytest", "pyproject.toml": "pytest"}
POOL = ROOT / "examples" / "joexpool.yaml"


def page_id(page: Path) -> str:
    return str(page.relative_to(DOCS if DOCS in page.parents else ROOT))


# ---- the pages, and their tests


@pytest.mark.parametrize(
    "fence",
    [
        "python\nx = 1",
        "yaml\nkind: Pod",
        "console\nno prompt",
        "console later\n$ ls",
        "sql later\nSELECT 1",
        "bash\nls",
    ],
)
def test_a_block_that_no_test_would_run_is_refused(fence: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```{fence}\n```\n")
    with pytest.raises(UnclassifiedError, match=r"page\.md:3: no test would run"):
        steps(page)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("job 01a2044a-b310-7e11-9942-81c079912e73 5s", "job 01a2044b-b310-7e11-9942-81c079912e00 12ms"),
        ("a\nb\nc\n", "a\n...\n"),
        ("STATE    success", "STATE success"),
        ("joex: pool.yaml: 20,000 of 23,331 jobs have arrived\nPOLICY\n", "POLICY\n"),
    ],
)
def test_ids_times_and_widths_may_differ_from_what_the_page_shows(printed: str, shown: str) -> None:
    assert is_as_shown(printed, shown)


@pytest.mark.parametrize(("printed", "shown"), [("STATE failed", "STATE success"), ("a\nb\n", "a\n"), ("", "a\n")])
def test_nothing_else_may_differ(printed: str, shown: str) -> None:
    assert not is_as_shown(printed, shown)


@pytest.mark.parametrize("page", [*LEARN, *HOW_TO], ids=page_id)
def test_each_file_of_a_page_is_used_by_a_command_or_a_test(page: Path) -> None:
    found = steps(page)
    text = "".join(step.text for step in found if not isinstance(step, Foreign))
    for step in found:
        if isinstance(step, File):
            word = RUN_BY.get(step.name.split("_")[0], Path(step.name).stem)
            used = len(re.findall(rf"\b{re.escape(word)}\b", text)) > text.count(f"# {step.name}\n")
            assert used or step.name in _of_other_tests(page), f"neither the page nor a test uses {step.name}"


@pytest.mark.parametrize("page", ALL, ids=page_id)
def test_a_real_node_runs_each_command_for_a_cluster(page: Path) -> None:
    on_cluster = [step for step in steps(page) if isinstance(step, Command) and step.on_cluster]
    followed = f'story.follow("{page_id(page)}")' in STORIES
    beginnings = [
        "docker build --tag joex:",
        *re.findall(r"story\.documented\(\"([^\"]+)\"", STORIES),
    ]  # the node's image
    for step in on_cluster:
        assert followed or step.text.startswith(tuple(beginnings)), f"no story runs: {step.text}"


@pytest.mark.parametrize("page", ALL, ids=page_id)
def test_make_has_the_targets_of_a_page(page: Path) -> None:
    for step in steps(page):
        if is_make(step):
            made = subprocess.run(
                ["bash", "-c", f"make --dry-run {step.text[5:]}"], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert made.returncode == 0, made.stderr
            for arguments in re.findall(r"-m benchmarks\b(.*)", made.stdout):
                parse(shlex.split(arguments))


def is_make(step: Step) -> bool:
    """Whether a step runs a target of the Makefile; .ci/run does the same."""
    return isinstance(step, Command) and step.text.startswith("make ")


@pytest.mark.parametrize("page", HOW_TO, ids=page_id)
def test_programs_for_other_libraries_are_python(page: Path) -> None:
    for step in steps(page):
        if isinstance(step, Foreign) and step.language == "python":
            compile(step.text, page.name, "exec")


@pytest.mark.parametrize("page", [*LEARN, *HOW_TO], ids=page_id)
def test_a_pool_or_periodic_task_that_a_page_shows_is_accepted(page: Path, tmp_path: Path) -> None:
    shown = [step.text for step in steps(page) if isinstance(step, Manifest)]
    texts = [POOL.read_text(), *shown]
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(
            text.replace("name: documents", f"name: documents-{number}") if "JoexPool" in text else text
        )
    files[0].write_text(POOL.read_text())
    assert read_files(files, "default")


def _of_other_tests(page: Path) -> str:
    """The tests that import the programs of a page."""
    tests = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    return "".join(text for text in tests if f'"how-to" / "{page.name}"' in text)


# ---- docs/learn


@pytest.fixture
def home() -> Iterator[Path]:
    """A home folder that the embedded server can reach, which runs as another user if we are root."""
    name = Path(tempfile.mkdtemp(prefix="joex-test-pages-", dir="/var/tmp"))
    name.chmod(0o755)
    (name / "tmp").mkdir()
    yield name
    shutil.rmtree(name)


@pytest.fixture
def clone(home: Path) -> Path:
    """A clone of the repository. Instead of downloads, `make` and `pip` use those of the tests, pip among them."""
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    folder = home / "joex"
    for name in tracked.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    with_code = f"PYTHONPATH={folder / 'executor'}:{folder / 'operator'} exec {sys.executable}"
    write_program(folder / ".venv" / "bin" / "python", f'{with_code} "$@"')
    write_program(folder / ".venv" / "bin" / "joex", f'{with_code} -m joex "$@"')
    (folder / ".venv" / ".installed").touch()
    packages = sysconfig.get_paths()["purelib"]
    write_program(
        home / "bin" / "python3",
        f'[ "$2" = venv ] || exec {sys.executable} "$@"',
        f'{sys.executable} -m venv --without-pip "$3"',
        f'echo {packages} >"$(echo "$3"/lib/python*/site-packages)"/tests.pth',
        r"""printf '#!/bin/sh\nexec "%s" -m pip "$@"\n' "$3"/bin/python >"$3"/bin/pip""",
        'chmod +x "$3"/bin/pip',
    )
    return folder


@pytest.fixture
async def newcomer(home: Path, clone: Path) -> AsyncIterator[Shell]:
    """The shell of a reader who begins in the clone."""
    environment = {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),  # one `joex up` of a name has a lock there
        "JOEX_EMBEDDED_DIR": str(home / "embedded"),
        "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUNBUFFERED": "1",  # as in a terminal
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
        "LANG": "C.UTF-8",
    }
    async with Shell(clone, environment) as shell:
        yield shell


@pytest.mark.heavy
@pytest.mark.timeout(1800)
async def test_the_tour_leads_from_a_clone_to_a_pool(newcomer: Shell) -> None:
    for page in LEARN:
        for step in steps(page):
            if SOAK or not is_make(step):  # (test_demo.py plays a shorter demo.)
                await follow(newcomer, step)


@pytest.mark.heavy
@pytest.mark.timeout(1800)
async def test_the_readme_leads_to_a_first_job_and_to_a_pool(newcomer: Shell) -> None:
    for step in steps(README):
        if not is_make(step):
            await follow(newcomer, step)


# ---- docs/how-to, docs/reference


@pytest.fixture
async def roles(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """The role of an application, as the pages call it. Roles belong to the server, so no page may leave one."""
    roles = "SELECT array_agg(rolname::text) FROM pg_roles"
    before = await connection.fetchval(roles)
    await connection.execute("CREATE ROLE app LOGIN")
    yield
    for name in set(await connection.fetchval(roles)) - set(before):
        await connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.parametrize("page", [*HOW_TO, *REFERENCE], ids=page_id)
@pytest.mark.usefixtures("roles")
async def test_a_page_does_what_it_says(page, postgres, database_url, connection, home, tmp_path):  # noqa: PLR0917 - fixtures
    async with connection.transaction():
        await connection.execute(
            "SELECT joex.submit('documents.count', jsonb_build_object('path', $1::text))", __file__
        )
        await drain(joex.examples.documents.app, connection)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    programs = tmp_path / ".bin"
    write_program(programs / "joex", f'exec {shlex.join(loaded.command("joex"))} "$@"')
    for name in ("mypy", "pip", "pytest", "uvicorn"):
        write_program(programs / name, f'exec {sys.executable} -m {name} "$@"')
    write_program(programs / "python", f'exec {sys.executable} "$@"')
    environment = {
        "HOME": str(tmp_path),
        "TMPDIR": str(programs),
        "JOEX_DATABASE_URL": database_url,
        "JOEX_EMBEDDED_DIR": str(home / "embedded"),
        "TEST_DATABASE_URL": database_url,
        "PATH": f"{programs}:{postgres.binaries}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": PYTHONPATH,
        "MYPYPATH": PYTHONPATH,  # (mypy does not read the other one)
        "PYTHONUNBUFFERED": "1",  # as in a terminal
        "PIP_NO_INDEX": "1",
        "LANG": "C.UTF-8",
    }
    async with Shell(tmp_path, environment) as shell:
        for step in steps(page):
            if isinstance(step, Statements):
                await connection.execute(step.text.replace("019f...", str(uuid.uuid4())))
            elif isinstance(step, Session):
                await hold(step, database_url)
            elif is_simulation(step):
                # All figures are equal: the same seed gives the same. (A slow machine prints its progress on stderr.)
                code, printed = await shell.run(f"{step.text.rstrip()} 2>progress || (cat progress; false)")
                assert (code, printed.strip()) == (0, (step.shown or "").strip())
            else:
                await follow(shell, step)


def is_simulation(step: Step) -> TypeGuard[Command]:
    """Whether a step simulates a workload of the examples, and thus prints the same figures each time."""
    return isinstance(step, Command) and step.text.startswith("joex simulate examples")


def test_the_page_on_simulation_shows_three_whose_figures_are_compared() -> None:
    assert len([step for step in steps(DOCS / "how-to" / "simulation.md") if is_simulation(step)]) == 3


async def follow(shell: Shell, step: Step) -> None:
    """Execute a step of a page, unless it belongs to a cluster or to another library."""
    if isinstance(step, File):
        await shell.write(step.name, step.text)
    elif isinstance(step, Command) and not step.on_cluster:
        await shell.follow(step)


async def hold(session: Session, url: str) -> None:
    """Execute the lines of a session while jobs run, until it has printed something, or ends."""
    printed = asyncio.Event()
    async with Client(url) as client:
        a, b = ids = [await client.submit("documents.count", {"path": __file__}) for _ in range(2)]
        names = {
            "client": client,
            "url": url,
            "ids": ids,
            "a": a,
            "b": b,
            "job_id": a,
            "print": lambda *_: printed.set(),
        }
        code = compile(session.text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        reader = asyncio.ensure_future(FunctionType(code, names)())

        async def has_seen_jobs() -> bool:
            await client.submit("documents.count", {"path": __file__})
            await drain(joex.examples.documents.app, client, raise_failures=False)  # (of a task of the page)
            return printed.is_set() or reader.done()

        await eventually(has_seen_jobs, why="the session prints what it receives")
        reader.cancel()
        with suppress(asyncio.CancelledError):
            await reader


def write_program(path: Path, *lines: str) -> None:
    """A program for a shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
