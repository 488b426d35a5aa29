"""The image of joex, as far as it can be tried without a Docker engine.

The very script that the Dockerfile runs installs into a folder; what is installed there runs as a user without rights,
who can't write into it.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.postgres import TestServer
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
HELM_TEST = ROOT / "charts" / "joex" / "files" / "a_job_succeeds.py"
NOBODY = "65532"
# The Python of these tests may lie where only root may look, so one right is left: to read whatever there is.
AS_NOBODY = [
    *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--no-new-privs"),
    *("--bounding-set", "-all,+dac_read_search"),
    *("--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"),
]

_LAST_STAGE = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
# What the Dockerfile sets beside PATH.
_ENVIRONMENT = dict(re.findall(r"^(?:ENV|   ) (\w+)=([^$\s]+)(?: \\)?$", _LAST_STAGE, re.MULTILINE))

Tree = dict[str, tuple[int, int, int]]


class Image:
    """What the image has in it, and how its containers start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def start(self, *command: str, **environment: str) -> Process:
        """Start a command as a container of the image does, with a file system that can't be written."""
        variables = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", **_ENVIRONMENT, **environment}
        return await asyncio.create_subprocess_exec(
            *(AS_NOBODY if os.geteuid() == 0 else ()),
            *command,
            cwd="/",
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )

    async def run(self, *command: str, **environment: str) -> str:
        """Run a command to its success; returns what it printed."""
        process = await self.start(*command, **environment)
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 0, out.decode()
        return out.decode()

    @asynccontextmanager
    async def executor(self, **environment: str) -> AsyncIterator[Process]:
        """An executor that has registered. Killed in the end, if it is still there."""
        process = await self.start("joex", "executor", "--app", "joex.examples.documents:app", **environment)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                seen = b""
                while b"registered" not in seen:
                    seen = await process.stdout.readline()
                    assert seen, "the executor has ended"
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    def tree(self) -> Tree:
        """All files, with mode, time and size."""
        found = {path: path.lstat() for path in self.folder.rglob("*")}
        return {str(path): (stat.st_mode, stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """Installed once; nothing below its folder may be written, nor was in the end."""
    with tempfile.TemporaryDirectory(prefix="joex-tests-image-", dir="/var/tmp") as made:
        folder = Path(made) / "joex"
        subprocess.run(
            ["sh", ROOT / "scripts" / "install_image.sh", folder],
            env={**os.environ, "PYTHON": sys.executable},
            check=True,
        )
        paths = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
        for path in paths:
            path.chmod(path.stat().st_mode & ~0o222)
        image = Image(folder)
        before = image.tree()
        yield image
        assert image.tree() == before
        for path in paths:
            path.chmod(path.stat().st_mode | 0o200)


async def test_the_image_has_joex_and_nothing_that_installs_more(image: Image) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert await image.run("joex", "--version") == f"joex {version}\n"
    assert "--app" in await image.run("joex", "executor", "--help", COLUMNS="120")
    assert "--namespaces" in await image.run("joex", "operator", "--help", COLUMNS="120")
    assert not (image.folder / "bin" / "pip").exists()
    where = await image.run("python", "-c", "import joex_operator, joex; print(joex_operator.__file__, joex.__file__)")
    assert where.count(str(image.folder)) == 2


async def test_nobody_can_write_into_what_is_installed(image: Image) -> None:
    for path in (image.folder / "bin" / "joex", image.folder / "bin" / "new"):
        process = await image.start("python", "-c", "open(__import__('sys').argv[1], 'a')", str(path))
        said, _ = await process.communicate()
        assert b"PermissionError" in said


async def test_an_executor_of_the_image_runs_the_job_of_helm_test_and_leaves_in_order(
    image: Image, postgres: TestServer, database_name: str
) -> None:
    url = {"JOEX_DATABASE_URL": postgres.tcp_url(database_name)}
    async with image.executor(JOEX_QUEUES="images", JOEX_HTTP_ADDRESS="127.0.0.1:0", **url) as executor:
        said = await image.run("python", "-c", HELM_TEST.read_text(), "images", **url)
        assert ": success, by" in said
        executor.terminate()
        await asyncio.wait_for(executor.communicate(), PATIENCE)
        assert executor.returncode == 0


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: nobody, user: {token: none}}]
"""


async def test_an_operator_of_the_image_starts_and_waits_for_its_api_server(image: Image, nowhere: Path) -> None:
    process = await image.start("joex", "operator", "--http-address", "127.0.0.1:0", KUBECONFIG=str(nowhere))
    assert process.stdout is not None
    said: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while "the API server can't be reached" not in "".join(said):
            said.append((await process.stdout.readline()).decode())
            assert said[-1], "".join(said)
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


@pytest.fixture
def nowhere() -> Iterator[Path]:
    """A kubeconfig of a cluster that is not there, for everybody to read."""
    with tempfile.TemporaryDirectory(prefix="joex-tests-image-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        path = Path(made) / "kubeconfig"
        path.write_text(KUBECONFIG)
        path.chmod(0o644)
        yield path
