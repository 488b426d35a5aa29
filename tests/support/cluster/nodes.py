"""The tests' side of a node that runs processes: its start, and its failures."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.cluster.control_plane import ControlPlane
from tests.support.cluster.kubelet.settings import Settings
from tests.support.cluster.processes import MARK, NODE_MARK, kill_marked
from tests.support.waiting import PATIENCE

_ROOT = Path(__file__).parents[3]

Pod = Mapping[str, Any]
"""A pod, as the API returns it."""


class LocalNode:
    """A node of the local cluster: a kubelet and the processes of its pods."""

    def __init__(
        self,
        control_plane: ControlPlane,
        folder: Path,
        name: str,
        network: str,
        labels: Mapping[str, str],
        **kubelet: Any,
    ) -> None:
        self.name = name
        self._mark = f"{NODE_MARK}={folder / name}"
        self._folder = folder / "nodes" / name
        self._folder.mkdir(parents=True)
        marks = {MARK: str(folder), NODE_MARK: str(folder / name)}
        self._settings = Settings(
            node=name,
            kubeconfig=str(control_plane.kubeconfig_for(f"system:node:{name}", "system:nodes")),
            folder=str(self._folder),
            network=network,
            images=str(folder / "images.json"),
            path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            marks=marks,
            labels=dict(labels),
            **kubelet,
        )
        self._process: subprocess.Popen[str] | None = None

    @property
    def pod_selector(self) -> dict[str, str]:
        """The ``nodeSelector`` of pods for this node."""
        return {"kubernetes.io/hostname": self.name}

    @property
    def is_running(self) -> bool:
        """Whether there is a kubelet."""
        return self._process is not None and self._process.poll() is None

    @property
    def kubelet_log(self) -> str:
        """The kubelet's log."""
        return (self._folder / "kubelet.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the node, or start it again after a crash: then it restarts the containers of its pods."""
        assert not self.is_running, f"the node {self.name} runs"
        with (self._folder / "kubelet.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.cluster.kubelet", self._settings.dump()],
                cwd=_ROOT,
                env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **self._settings.marks},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._order("ping")

    def silence(self) -> None:
        """Cut the node off from the API; its processes continue."""
        self._order("silence")

    def resume(self) -> None:
        """End the silence."""
        self._order("resume")

    def crash(self) -> None:
        """Let the machine crash: all its processes die at once, without a report to the API."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
        kill_marked(self._mark)

    def kill(self, pod: Pod, container: str = "", *, out_of_memory: bool = False) -> None:
        """Kill a container (by default the first) as the kernel does, for example when memory is short."""
        self._order("kill", pod=pod["metadata"]["uid"], container=container, out_of_memory=out_of_memory)

    def evict(self, pod: Pod, message: str = "The node was low on resource: memory.", grace: float = 0) -> None:
        """Evict a pod. Its object stays, as failed, with the reason Evicted."""
        self._order("evict", pod=pod["metadata"]["uid"], message=message, grace=grace)

    def pid(self, pod: Pod, container: str = "") -> int:
        """The process of a container, by default the first."""
        pid: int | None = self._order("pid", pod=pod["metadata"]["uid"], container=container)
        if pid is None:
            raise LookupError(f"the container has no process now: {pod['metadata']['name']}")
        return pid

    def _order(self, name: str, **arguments: Any) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"order": name, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"the kubelet of {self.name} has ended:\n{self.kubelet_log[-3000:]}") from None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise RuntimeError(f"the kubelet of {self.name} does not answer:\n{self.kubelet_log[-3000:]}")
        answer = json.loads(self._process.stdout.readline() or '{"error": "it has ended"}')
        if "error" in answer:
            raise LookupError(f"{name} on {self.name}: {answer['error']}\n{self.kubelet_log[-3000:]}")
        return answer["result"]
