"""A cluster of one real node, inside its own machine: the constructor starts it, and it ends with the machine.

The control plane is that of the tier ``cluster``, on an address that pods can reach. Pods have their own network
(CNI ptp), kube-proxy provides Services (nftables), and `dns.py` answers for their names.
"""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.cluster.api import Api
from tests.support.cluster.components import Component
from tests.support.cluster.connection import ApiError
from tests.support.cluster.control_plane import ControlPlane, Timing
from tests.support.cluster.go_build import cache_folder, report_on_stderr
from tests.support.node.dns import NameServer
from tests.support.node.programs import node_programs

NAME = "node-1"
ROOT = Path(__file__).parents[3]

_NETWORK = "10.96"  # pods in its lowest 256 addresses, Services in its upper half
_PODS = f"{_NETWORK}.0.0/24"
_ADDRESS = "10.88.0.1"
_PATIENCE = 90.0
_COMMAND_WITHIN = 300.0
_KUBERNETES_OWN = Timing(node_silence=50, eviction=300)


class CommandError(Exception):
    """A command of a story failed; the message is its output."""


class Node:
    """The node, and the actions of stories on it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="joex-tests-node-", dir="/var/tmp"))
        cache = cache_folder() / "node"
        self._archives = cache / "images" / "archives"
        self._kept = cache / "containerd"
        self._packages = cache / "packages" / "node"
        self._programs = node_programs(report_on_stderr)
        _run(["ip", "link", "add", "node0", "type", "bridge"])
        _run(["ip", "addr", "add", f"{_ADDRESS}/32", "dev", "node0"])
        _run(["ip", "link", "set", "node0", "up"])
        _run(["ip", "route", "add", "default", "dev", "node0"])
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.control_plane = ControlPlane(
            self.folder, self._programs.control_plane, _NETWORK, _KUBERNETES_OWN, _ADDRESS
        )
        self.kubeconfig = self.control_plane.kubeconfig
        self._make_tools()
        self.containerd = self._containerd()
        self.kubelet = self._kubelet()
        self.kube_proxy = self._kube_proxy()

    def start(self) -> None:
        """Start all, and wait until the node is ready.

        Raises:
            StartError: a program does not get ready.
        """
        self.control_plane.start()
        threading.Thread(target=self._serve_names, name="dns", daemon=True).start()
        self.start_runtime()
        self._import_images()
        self.kubelet.start()
        self.kube_proxy.start()
        self.kubelet.wait_until(self._is_ready, _PATIENCE)

    def start_runtime(self) -> None:
        """Start containerd, and wait until it answers."""
        self.containerd.start()
        self.containerd.wait_until(lambda: self._ctr("version").returncode == 0, _PATIENCE)

    def stop(self) -> None:
        """End the programs; the rest ends with the machine."""
        for component in (self.kube_proxy, self.kubelet, self.containerd):
            component.stop(0)
        self.control_plane.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def sh(self, command: str, folder: Path = ROOT) -> str:
        """Run a command as it stands in the documents, in a shell; returns what it prints.

        Raises:
            CommandError: it failed.
        """
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_WITHIN,
        )
        if done.returncode:
            raise CommandError(f"$ {command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def process_of(self, pod: str, container: str = "executor") -> int:
        """The process of a container, by its id on this machine."""
        for line in self._ctr("tasks", "list").stdout.splitlines()[1:]:
            name, pid = line.split()[:2]
            labels = json.loads(self._ctr("containers", "info", name).stdout)["Labels"]
            if (labels.get("io.kubernetes.pod.name"), labels.get("io.kubernetes.container.name")) == (pod, container):
                return int(pid)
        raise LookupError(f"no process of {container} in {pod}")

    def api(self) -> Api:
        """A client for the running event loop, as the administrator."""
        return Api(self.kubeconfig)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a shell that uses the cluster."""
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.kubeconfig),
        }

    def _make_tools(self) -> None:
        tools = self.folder / "bin"
        tools.mkdir()
        for name, program in (("kubectl", self._programs.kubectl), ("helm", self._programs.helm)):
            (tools / name).symlink_to(program)

    def _variables(self) -> dict[str, str]:
        """The paths of the unpacked programs, for programs that call others."""
        usr = self._packages / "usr"
        return {
            "PATH": f"{usr / 'bin'}:{usr / 'sbin'}:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH": str(usr / "lib" / f"{os.uname().machine}-linux-gnu"),
        }

    def _containerd(self) -> Component:
        configuration = self.folder / "containerd.toml"
        configuration.write_text(_CONTAINERD.format(folder=self.folder, kept=self._kept, packages=self._packages))
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "subnet": _PODS,
                        "routes": [{"dst": "0.0.0.0/0"}],
                        "dataDir": str(self.folder / "addresses"),
                    },
                }
            ],
        }
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        program = self._packages / "usr/bin/containerd"
        return Component(self.folder, program, "--config", str(configuration), variables=self._variables())

    def _kubelet(self) -> Component:
        configuration = self.folder / "kubelet.json"
        configuration.write_text(json.dumps(self._kubelet_configuration()))
        return Component(
            self.folder,
            self._programs.kubelet,
            f"--config={configuration}",
            f"--kubeconfig={self.control_plane.kubeconfig_for(f'system:node:{NAME}', 'system:nodes')}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-pki'}",
            f"--hostname-override={NAME}",
            f"--node-ip={_ADDRESS}",
            variables=self._variables(),
        )

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": _ADDRESS,
            "readOnlyPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.control_plane.authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            "podLogsDir": str(self.folder / "pod-logs"),
            "clusterDNS": [_ADDRESS],
            "clusterDomain": "cluster.local",
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "100Mi"},
            # No registry has these images, so the node must not remove them.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "resolvConf": "",
            "volumePluginDir": str(self.folder / "volume-plugins"),
        }

    def _kube_proxy(self) -> Component:
        configuration = self.folder / "kube-proxy.json"
        kubeconfig = self.control_plane.kubeconfig_for("system:kube-proxy")
        described = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": _PODS,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "hostnameOverride": NAME,
            "healthzBindAddress": "127.0.0.1:10256",
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
        configuration.write_text(json.dumps(described))
        program = self._programs.kube_proxy
        return Component(self.folder, program, f"--config={configuration}", variables=self._variables())

    def _import_images(self) -> None:
        """Import the archives that containerd does not have yet; the cache keeps its earlier images."""
        for archive in sorted(self._archives.glob("*.tar")):
            imported = self._kept / f"{archive.stem}.imported"
            if not imported.exists():
                done = self._ctr("images", "import", str(archive))
                if done.returncode:
                    raise CommandError(f"containerd does not take {archive}: {done.stderr}")
                imported.touch()

    def _ctr(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        program = self._packages / "usr/bin/ctr"
        address = f"{self.folder}/containerd.sock"
        command = [str(program), "--address", address, "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_WITHIN)

    def _is_ready(self) -> bool:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        try:
            return self.sh(f"kubectl get node {NAME} --output jsonpath='{path}'") == "True"
        except CommandError:
            return False

    def _serve_names(self) -> None:
        asyncio.run(self._names())

    async def _names(self) -> None:
        async with self.api() as api:

            async def lookup(name: str, namespace: str) -> str | None:
                try:
                    found = await api.get("services", name, namespace)
                except ApiError:
                    return None
                return str(found["spec"]["clusterIP"])

            make: Callable[[], NameServer] = lambda: NameServer(lookup)  # noqa: E731
            await asyncio.get_running_loop().create_datagram_endpoint(make, local_addr=(_ADDRESS, 53))
            await asyncio.Event().wait()


_CONTAINERD = """
version = 3
root = '{kept}/root'
state = '{folder}/containerd'
disabled_plugins = [
    'io.containerd.nri.v1.nri', 'io.containerd.tracing.processor.v1.otlp', 'io.containerd.internal.v1.tracing',
    'io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.zfs',
    'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.erofs', 'io.containerd.differ.v1.erofs',
]
[grpc]
  address = '{folder}/containerd.sock'
[ttrpc]
  address = '{folder}/containerd.sock.ttrpc'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = 'node.test/pause:1'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = '{packages}/usr/sbin/runc'
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{packages}/usr/lib/cni']
    conf_dir = '{folder}/cni'
"""


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(command)}: {done.stderr}")
