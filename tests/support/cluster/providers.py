"""The providers of the tests' cluster: processes of this machine, kind, or a context that the user named explicitly."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cluster import build, kind, kubeconfig
from tests.support.cluster.api import Api
from tests.support.cluster.connection import ApiError, Object
from tests.support.cluster.go_build import BuildError, Report
from tests.support.cluster.kubeconfig import KubeconfigError
from tests.support.cluster.local import LocalCluster
from tests.support.cluster.resources import Resources
from tests.support.postgres import Network, TestServer

IMAGE_VARIABLE = "JOEX_TEST_IMAGE"


class Unavailable(Exception):
    """This machine can't have such a cluster; the message says what is missing."""


@dataclass
class Cluster:
    """A cluster for tests, of any provider."""

    provider: str
    """``local``, ``kind`` or ``context``."""
    kubeconfig: Path
    """With one context, the cluster's administrator."""
    helm: Path
    image: str
    """The image of joex in this cluster; empty: none was given."""
    network: Network | None = None
    """The network by which pods reach this machine; None: they reach it as this machine does itself."""
    local: LocalCluster | None = None
    """The controls of nodes and of the control plane, if this is a cluster of processes."""
    close: Callable[[], None] = lambda: None
    _resources: Resources = field(default_factory=Resources)

    def database_url(self, server: TestServer, name: str) -> str:
        """The URL of a test's database, for pods and for this machine."""
        return server.url(name) if self.network is None else server.url_in(self.network, name)

    async def log(self, api: Api, pod: Object, container: str = "") -> str:
        """The log of a container of a pod, by default the first; or why it can't be read."""
        if self.local is not None:
            return self.local.log(pod, container)
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
        try:
            return await api.text(path, container=container or pod["spec"]["containers"][0]["name"])
        except ApiError as error:  # there is no container yet
            return str(error)

    def api(self, path: Path | None = None) -> Api:
        """A client for the running event loop: the administrator's, or that of another kubeconfig."""
        return Api(path or self.kubeconfig, resources=self._resources)


def make(choice: str, report: Report) -> Cluster:
    """Create the requested cluster: ``auto``, ``local``, ``kind``, ``context`` or ``context:NAME``.

    Raises:
        Unavailable: this machine can't have it.
    """
    name, _, context = choice.partition(":")
    makers = {"auto": _auto, "local": _local, "kind": _kind, "context": lambda told: _context(context, told)}
    if name not in makers:
        raise Unavailable(f"--cluster={choice}: there are {', '.join(makers)} and context:NAME")
    try:
        return makers[name](report)
    except (BuildError, KubeconfigError, kind.KindError) as error:
        raise Unavailable(str(error)) from error


def _auto(report: Report) -> Cluster:
    if kind.is_usable():
        try:
            return _kind(report)
        except kind.KindError as error:  # as where there is an engine, and no way to its images
            report(f"kind does not work here: {error}")
    return _local(report)


def _local(report: Report) -> Cluster:
    programs = build.control_plane(report)
    helm = build.helm(report)
    local = LocalCluster(programs)
    return Cluster("local", local.control_plane.kubeconfig, helm, "joex:test", None, local, local.close)


def _kind(report: Report) -> Cluster:
    helm = build.helm(report)
    made = kind.KindCluster(report)
    return Cluster("kind", made.kubeconfig, helm, made.image, made.network, close=made.close)


def _context(name: str, report: Report) -> Cluster:
    paths = kubeconfig.paths_of_user()
    access = kubeconfig.read(*paths, context=name or None)
    report(f"the tests run in {access.server}, context {name or '(the current one)'}")
    folder = tempfile.TemporaryDirectory(prefix="joex-tests-cluster-")
    path = kubeconfig.write(Path(folder.name) / "kubeconfig", access)
    image = os.environ.get(IMAGE_VARIABLE, "")
    return Cluster("context", path, build.helm(report), image, close=folder.cleanup)
