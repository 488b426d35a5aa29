"""kubelet, kube-proxy and kubectl: built from the same module as the control plane, into the same cache."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.cluster import build
from tests.support.cluster.build import Programs
from tests.support.cluster.go_build import Report


@dataclass(frozen=True)
class NodePrograms:
    """The programs of a cluster with a node."""

    control_plane: Programs
    kubelet: Path
    kube_proxy: Path
    kubectl: Path
    helm: Path


def node_programs(report: Report) -> NodePrograms:
    """The programs, built if they are not in the cache.

    Raises:
        BuildError: one can't be built.
    """
    control_plane = build.control_plane(report)
    built = build.KUBERNETES_NODE.build(report=report)
    return NodePrograms(control_plane, built["kubelet"], built["kube-proxy"], built["kubectl"], build.helm(report))
