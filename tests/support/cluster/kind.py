"""A cluster of containers, by kind: its node runs the image of joex, built from this checkout.

It needs a running Docker engine, and ``kind`` on the PATH. The cluster is called ``joex-tests``. The tests use and keep
an existing one: ``kind create cluster --name joex-tests`` before many runs saves the time of its start. They delete one
that they have made.

Pods reach the tests' PostgreSQL by this machine's address in the network of kind's containers, its gateway. That needs
an engine on this machine itself, on Linux, without a firewall between them. This module has not run yet: its authors
had no Docker.
"""

import ipaddress
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

from tests.support.cluster.chart import CHART
from tests.support.cluster.go_build import Report
from tests.support.postgres import Network

NAME = "joex-tests"
IMAGE = "joex:test"
_DOCKER_NETWORK = "kind"
_ROOT = Path(__file__).parents[3]
_ANSWERS_WITHIN = 10.0
_LIMIT = 1800.0


class KindError(Exception):
    """kind, or the Docker engine that it needs, has failed."""


def is_usable() -> bool:
    """Whether kind is installed and a Docker engine answers."""
    return _why_not() == ""


class KindCluster:
    """The cluster, with the image of joex loaded; made if it does not exist."""

    def __init__(self, report: Report) -> None:
        if why := _why_not():
            raise KindError(why)
        self.image = IMAGE
        self._folder = tempfile.TemporaryDirectory(prefix="joex-tests-cluster-")
        self.kubeconfig = Path(self._folder.name) / "kubeconfig"
        own, trial = _images_of_the_chart()
        report(f"docker builds {IMAGE}")
        _run("docker", "build", "--tag", IMAGE, "--tag", own, str(_ROOT))
        self._is_ours = NAME not in _run("kind", "get", "clusters").split()
        try:
            if self._is_ours:
                report(f"kind makes the cluster {NAME}")
                _run(
                    "kind", "create", "cluster", "--name", NAME, "--kubeconfig", str(self.kubeconfig), "--wait", "120s"
                )
            else:
                report(f"taking the cluster {NAME} of kind as it is")
                _run("kind", "export", "kubeconfig", "--name", NAME, "--kubeconfig", str(self.kubeconfig))
            report(f"kind loads {IMAGE} and {own}")
            _run("kind", "load", "docker-image", IMAGE, own, "--name", NAME)
            for node in _run("kind", "get", "nodes", "--name", NAME).split():
                report(f"{node} pulls {trial}")  # now, because no test waits that long
                _run("docker", "exec", node, "crictl", "pull", trial)
            self.network = _network()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Delete the cluster if it was made here."""
        if self._is_ours:
            _run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", str(self.kubeconfig))
        self._folder.cleanup()


def _images_of_the_chart() -> tuple[str, str]:
    """The images of joex and of the trial PostgreSQL, by the chart's default names."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    return f"{values['image']['repository']}:{version}", values["postgresql"]["image"]


def _network() -> Network:
    """The network of the nodes, in which the gateway is this machine."""
    format_ = "{{json .IPAM.Config}}"
    for part in json.loads(_run("docker", "network", "inspect", _DOCKER_NETWORK, "--format", format_)):
        subnet = ipaddress.ip_network(part["Subnet"])
        if subnet.version == 4:
            return Network(part.get("Gateway") or str(subnet[1]), str(subnet))
    raise KindError(f"the network {_DOCKER_NETWORK} of Docker has no IPv4 addresses")


def _why_not() -> str:
    for program in ("docker", "kind"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    try:
        done = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWERS_WITHIN,
        )
    except subprocess.TimeoutExpired:
        return "the Docker engine does not answer"
    return f"the Docker engine does not answer: {done.stderr.strip()}" if done.returncode else ""


def _run(*command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT, env=environment)
    if done.returncode:
        raise KindError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
