"""The image of joex, as far as tests can run it without a Docker engine.

The script that the Dockerfile runs installs into a folder; its programs run as a user without rights, which can't write
into the folder.
"""

import asyncio
import base64
import contextlib
import re
import ssl
import tempfile
import tomllib
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.cluster.pki import Authority
from tests.support.image import NOBODY, ROOT, FirstProcess, Image
from tests.support.postgres import TestServer
from tests.support.waiting import PATIENCE, eventually

HELM_TEST = ROOT / "charts" / "joex" / "files" / "a_job_succeeds.py"


@pytest.fixture(scope="module")
def image(installed_image: Image) -> Iterator[Image]:
    """The installed image; check at the end that no file below its folder has changed."""
    before = installed_image.tree()
    yield installed_image
    assert installed_image.tree() == before


async def test_the_image_has_joex_and_nothing_that_installs_more(image: Image) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert await image.run("joex", "--version") == f"joex {version}\n"
    assert "--app" in await image.run("joex", "executor", "--help", COLUMNS="120")
    assert "--namespaces" in await image.run("joex", "operator", "--help", COLUMNS="120")
    assert not (image.folder / "bin" / "pip").exists()
    [packages] = image.folder.glob("lib/python*/site-packages")
    sources = {path.with_suffix("") for path in packages.rglob("*.py")}
    assert {path.parents[1] / path.name.split(".")[0] for path in packages.rglob("*.pyc")} == sources, "its bytecode"
    assert not list(image.folder.rglob("core_v1_api.*")), "the Kubernetes client's classes, which are never used"
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
    await until_line(process, "can't reach the API server")
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


@pytest.fixture
def nowhere() -> Iterator[Path]:
    """A kubeconfig of a missing cluster, readable for all users."""
    with tempfile.TemporaryDirectory(prefix="joex-tests-image-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        path = Path(made) / "kubeconfig"
        _write(path, KUBECONFIG)
        path.chmod(0o644)
        yield path


def _write(path: Path, text: str) -> None:
    path.write_text(text)


EXECUTOR = ("joex", "executor", "--app", "joex.examples.documents:app", "--http-address", "127.0.0.1:0")
OPERATOR = ("joex", "operator", "--http-address", "127.0.0.1:0")
NO_SERVER = "postgresql://joex@127.0.0.1:1/joex"
TOLD_TO_END = 128 + 15


@asynccontextmanager
async def first_process(image: Image, *command: str, **environment: str) -> AsyncIterator[FirstProcess]:
    process = await image.start_first(*command, **environment)
    try:
        yield process
    finally:
        await process.close()


async def until_it_minds_sigterm(process: FirstProcess) -> None:
    await eventually(lambda: process.minds_sigterm, why="SIGTERM is delivered")


@pytest.mark.parametrize("command", [EXECUTOR, OPERATOR])
async def test_the_first_process_of_a_container_ends_at_a_sigterm_before_it_has_imported_anything(
    image: Image, nowhere: Path, command: tuple[str, ...]
) -> None:
    async with first_process(image, *command, JOEX_DATABASE_URL=NO_SERVER, KUBECONFIG=str(nowhere)) as process:
        await until_it_minds_sigterm(process)
        assert await process.terminate() == TOLD_TO_END
        assert process.said == "", "the signal came before any output"


async def test_the_first_process_of_a_container_ends_at_a_sigterm_while_it_waits_for_its_database(image: Image) -> None:
    async with first_process(image, *EXECUTOR, "--startup-wait", "1h", JOEX_DATABASE_URL=NO_SERVER) as process:
        await process.says("trying again")
        assert await process.terminate() == 0


async def test_an_operator_ends_at_a_sigterm_while_it_has_no_api_server(image: Image, nowhere: Path) -> None:
    async with first_process(image, *OPERATOR, KUBECONFIG=str(nowhere)) as process:
        await process.says("can't reach the API server")
        assert await process.terminate() == 0


async def test_an_executor_ends_at_a_sigterm_while_another_one_has_its_app_id(
    image: Image, postgres: TestServer, database_name: str
) -> None:
    url = {"JOEX_DATABASE_URL": postgres.tcp_url(database_name), "JOEX_APP_ID": "same"}
    async with image.executor(JOEX_HTTP_ADDRESS="127.0.0.1:0", **url), first_process(image, *EXECUTOR, **url) as second:
        await second.says("app-id")
        assert await second.terminate() == 0


def test_the_user_of_the_image_has_a_name_and_a_group() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"\nUSER {NOBODY}:{NOBODY}\n" in dockerfile
    assert re.search(rf"'joex:x:{NOBODY}:{NOBODY}:[^']*:/tmp:[^']*' >>/etc/passwd", dockerfile)
    assert re.search(rf"'joex:x:{NOBODY}:' >>/etc/group", dockerfile)


@pytest.fixture
async def old_certificates(nowhere: Path) -> AsyncIterator[str]:
    """The path of a kubeconfig for an API server with certificates of an old kind. It answers 404 to each request."""
    authority = Authority(nowhere.parent / "pki", old=True)
    served = authority.server("api", "IP:127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(served.certificate, served.key)
    async with await asyncio.start_server(_know_nothing, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        ca = base64.b64encode(authority.own.certificate.read_bytes()).decode()
        there = f'server: "https://127.0.0.1:{port}", certificate-authority-data: {ca}'
        _write(nowhere, KUBECONFIG.replace('server: "https://127.0.0.1:1"', there))
        yield str(nowhere)


async def _know_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"message": "nothing is known here"}'
        head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
    writer.close()


async def test_certificates_of_an_old_kind_are_accepted_by_a_setting_that_their_error_names(
    image: Image, old_certificates: str
) -> None:
    refuses = (await image.run("python", "-c", "import sys; print(sys.version_info >= (3, 13))")).strip() == "True"
    expected = "STRICT_X509=false (operator.strictX509 of the chart)" if refuses else "nothing is known here"
    for strict, said in (("true", expected), ("false", "nothing is known here")):
        process = await image.start(*OPERATOR, "--strict-x509", strict, KUBECONFIG=old_certificates)
        lines = await until_line(process, "the Lease ")
        assert said in lines[-1]
        process.terminate()
        await process.communicate()


async def until_line(process: Process, what: str) -> list[str]:
    assert process.stdout is not None
    said: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not said or what not in said[-1]:
            said.append((await process.stdout.readline()).decode())
            assert said[-1], "".join(said)
    return said
