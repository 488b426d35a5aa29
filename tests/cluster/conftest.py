"""The cluster that the tests of this folder share, and the fixtures of each test.

A test has its own namespace, for any use. A test that breaks nodes adds a node for that; a test that stops the API
server starts it again.
"""

import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster.api import Api
from tests.support.cluster.helm import Helm
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.namespaces import Namespaces
from tests.support.cluster.nodes import LocalNode
from tests.support.cluster.objects import is_ready
from tests.support.cluster.option import VARIABLE
from tests.support.cluster.providers import Cluster, Unavailable, make
from tests.support.cluster.system import System
from tests.support.lanes import END_CLUSTER
from tests.support.postgres import TestServer

_HERE = Path(__file__).parent
_WANTED = """
Wanted: Docker with kind; or Go and its module proxy; or a cluster that you name, --cluster=context:NAME."""
_NOT_RUN = pytest.StashKey[str]()
_FAILED = pytest.StashKey[bool]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the programs here, which may take minutes, so that this does not count as the time of the first test."""
    for item in session.items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.timeout(func_only=True))
            break


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report at the end if these tests did not run."""
    if reason := config.stash.get(_NOT_RUN, ""):
        terminalreporter.section("the tier cluster was NOT run", red=True, bold=True)
        terminalreporter.line(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Remember whether a test failed, because its namespace then reports its state."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of this session, see `tests.support.cluster`.

    Without one, its tests fail, or are skipped with a warning at the end.
    """
    config = request.config
    choice = config.getoption("--cluster", None) or os.environ.get(VARIABLE) or "auto"
    terminal = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(f"cluster: {line}")

    made, why_not = None, ""
    try:
        made = make(choice, report)
    except Unavailable as error:
        why_not = f"no Kubernetes cluster ({choice}): {error}{_WANTED if choice == 'auto' else ''}"
    if made is None:
        if _is_wanted(config, choice):
            pytest.fail(why_not, pytrace=False)
        config.stash[_NOT_RUN] = why_not
        pytest.skip(why_not)
    with ExitStack() as stack:
        stack.callback(made.close)
        config.stash[END_CLUSTER] = stack.close
        yield made


def _is_wanted(config: pytest.Config, choice: str) -> bool:
    """Whether the user asked for these tests: by their name, by naming a cluster, or in continuous integration."""
    by_marker = re.search(r"(?<!not )\bcluster\b", config.option.markexpr or "")
    by_path = any("tests/cluster" in argument for argument in config.invocation_params.args)
    return bool(choice != "auto" or os.environ.get("CI") or by_marker or by_path)


@pytest.fixture
def local_cluster(cluster: Cluster) -> LocalCluster:
    """The controls of a cluster of processes; other clusters can't simulate these faults."""
    if cluster.local is None:
        pytest.skip(f"the cluster is of the kind {cluster.provider}; this needs one of processes: --cluster=local")
    return cluster.local


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    """A client, as the cluster's administrator."""
    async with cluster.api() as api:
        yield api


@pytest.fixture
def helm(cluster: Cluster) -> Iterator[Helm]:
    """Runs helm: ``await helm("install", "name", chart, namespace=namespace)``."""
    helm = Helm(cluster.helm, cluster.kubeconfig)
    yield helm
    helm.close()


@pytest.fixture
async def namespaces(request: pytest.FixtureRequest, cluster: Cluster, api: Api) -> AsyncIterator[Namespaces]:
    """Makes namespaces for a test, with labels if wanted: ``await namespaces.make({...})``."""
    namespaces = Namespaces(cluster, api)
    yield namespaces
    if cluster.local is not None:
        cluster.local.repair()
    if request.node.stash.get(_FAILED, False):
        print(await namespaces.tell())
    await namespaces.delete()


@pytest.fixture
async def namespace(namespaces: Namespaces) -> str:
    """The name of a namespace for this test."""
    return await namespaces.make()


@pytest.fixture
async def own_node(request: pytest.FixtureRequest, local_cluster: LocalCluster, api: Api) -> AsyncIterator[LocalNode]:
    """A node for this test, which may break it; the parameter has settings of its kubelet.

    Pods select it by its `pod_selector`.
    """
    name = f"node-{secrets.token_hex(4)}"
    node = local_cluster.add_node(name, **getattr(request, "param", {}))
    await api.until("nodes", name, is_ready)
    yield node
    local_cluster.drop_node(name)
    await api.delete("nodes", name)


@pytest.fixture
def database_url(cluster: Cluster, postgres: TestServer, database_name: str) -> str:
    """The URL of a database for this test, with the schema of Joex: for pods, and for this machine."""
    return cluster.database_url(postgres, database_name)


@pytest.fixture
async def system(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    api: Api,
    namespaces: Namespaces,
    *,
    namespace: str,
    pool: asyncpg.Pool,
    database_url: str,
) -> AsyncIterator[System]:
    """Joex in the test's namespace, on the test's database; without an operator."""
    async with System(cluster, api, namespace, pool, database_url) as system:
        yield system
        if request.node.stash.get(_FAILED, False):
            print(await namespaces.tell())  # here, because the namespace ends with the system
