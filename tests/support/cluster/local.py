"""A cluster of processes on this machine: a control plane, and nodes whose containers are processes."""

import os
import random
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support import loaded
from tests.support.cluster.build import Programs
from tests.support.cluster.components import Component
from tests.support.cluster.control_plane import ControlPlane, Timing
from tests.support.cluster.kubelet import images
from tests.support.cluster.kubelet.images import Image
from tests.support.cluster.nodes import LocalNode
from tests.support.cluster.postgres_image import postgres_image
from tests.support.cluster.processes import Guard

FIRST_NODE = "node-1"
_MOST_NODES = 127  # the network above them is that of services
_HERE = Path(__file__).parent
_ROOT = _HERE.parents[2]
_TIMING = Timing()


class LocalCluster:
    """The constructor starts it; `close`, or the end of this process, ends all of it and removes its folder."""

    def __init__(self, programs: Programs, timing: Timing = _TIMING) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="joex-tests-cluster-", dir="/var/tmp"))
        self._closing = ExitStack()
        self._closing.callback(Guard(self.folder).close)
        self.nodes: dict[str, LocalNode] = {}
        self._images: dict[str, Image] = {}
        self._hosts = self.folder / "hosts"
        self._network = f"127.{random.randrange(16, 240)}"
        self._made_nodes = 0
        try:
            self.set_image("joex", self._joex_image())
            self.set_image("postgres", postgres_image())
            self.control_plane = ControlPlane(self.folder, programs, self._network, timing)
            self._closing.callback(self.control_plane.stop)
            self.control_plane.start()
            self._start_service_proxy()
            self.add_node(FIRST_NODE)
        except BaseException:
            self.close()
            raise

    def add_node(self, name: str, labels: Mapping[str, str] | None = None, **kubelet: Any) -> LocalNode:
        """Start another node; ``kubelet``: of its `Settings`."""
        assert self._made_nodes < _MOST_NODES
        self._made_nodes += 1
        network = f"{self._network}.{self._made_nodes}"
        node = LocalNode(self.control_plane, self.folder, name, network, labels or {}, **kubelet)
        self.nodes[name] = node
        self._closing.callback(node.crash)
        node.start()
        return node

    def drop_node(self, name: str) -> None:
        """Let a node crash, and forget it. The caller deletes its object in the API."""
        self.nodes.pop(name).crash()

    def node_of(self, pod: Mapping[str, Any]) -> LocalNode:
        """The node that a pod runs on."""
        return self.nodes[pod["spec"]["nodeName"]]

    def log(self, pod: Mapping[str, Any], container: str = "") -> str:
        """The log of a container (by default the first), of all its runs."""
        name = container or pod["spec"]["containers"][0]["name"]
        path = self.folder / "nodes" / pod["spec"].get("nodeName", "") / pod["metadata"]["uid"] / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def set_image(self, name: str, image: Image) -> None:
        """Configure an image, for containers that start from now on."""
        self._images[name] = image
        images.write(self.folder / "images.json", self._images)

    def repair(self) -> None:
        """Repair the leftovers of a failed test: a stopped API server, a silent node."""
        if not self.control_plane.api_server.is_running:
            self.control_plane.start_api()
        node = self.nodes[FIRST_NODE]
        if node.is_running:
            node.resume()
        else:
            node.start()

    def _joex_image(self) -> Image:
        """The image of joex: ``joex`` is that of this checkout, on loops that know the cluster's services.

        As the program of a container or of a hook it is forked; elsewhere, as in a shell, it is on the PATH.
        """
        self._hosts.touch()
        file = str(_HERE / "joex_program.py")
        program = self.folder / "bin" / "joex"
        program.parent.mkdir()
        # -P: the folder of the file does not come before installed packages.
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{file}" "$@"\n')
        program.chmod(0o755)
        path = os.pathsep.join([str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = {"PATH": path, "JOEX_TEST_HOSTS": str(self._hosts)}
        return Image(["joex"], environment=variables, forked={"joex": [loaded.address(), file]})

    def _start_service_proxy(self) -> None:
        path = self.control_plane.kubeconfig_for("joex-tests-service-proxy", "system:masters")
        command = ("-m", "tests.support.cluster.service_proxy", str(path), str(self._hosts))
        variables = {"PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        proxy = Component(self.folder, Path(sys.executable), *command, name="service-proxy", variables=variables)
        self._closing.callback(proxy.stop, 0)
        proxy.start()

    def close(self) -> None:
        """End all processes and remove the folder."""
        self._closing.close()
