"""A cluster of containers, by kind: its node runs the image of joex, built from this checkout.

Wanted: a Docker engine that answers, and ``kind`` on the PATH. The cluster is called ``joex-tests``. One that exists is
used and kept: ``kind create cluster --name joex-tests`` before many runs saves the time of its start. One that was made
here is deleted at the end.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.cluster.go_build import Report

NAME = "joex-tests"
IMAGE = "joex:test"
_ROOT = Path(__file__).parents[3]
_ANSWERS_WITHIN = 10.0
_LIMIT = 1800.0


class KindError(Exception):
    """kind, or the Docker engine that it needs, does not do what is asked of it."""


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
        report(f"docker builds {IMAGE}")
        _run("docker", "build", "--tag", IMAGE, str(_ROOT))
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
            report(f"kind loads {IMAGE}")
            _run("kind", "load", "docker-image", IMAGE, "--name", NAME)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Delete the cluster if it was made here."""
        if self._is_ours:
            _run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", str(self.kubeconfig))
        self._folder.cleanup()


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
