"""The programs of a cluster: those of `KUBEBUILDER_ASSETS` if they fit, otherwise built ones.

``python -m tests.support.cluster.build`` builds them, for example in the background of other tests; tests that need
them wait for that build.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.cluster.go_build import BuildError, GoModule, Report, report_on_stderr

_COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
KUBERNETES = GoModule(
    "kubernetes",
    "k8s.io/kubernetes",
    {"etcd": "go.etcd.io/etcd/server/v3", **{name: f"k8s.io/kubernetes/cmd/{name}" for name in _COMPONENTS}},
    ("k8s.io/component-base/version.gitVersion",),
)
KUBERNETES_NODE = replace(
    KUBERNETES, packages={name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kubelet", "kube-proxy", "kubectl")}
)
"""More programs for a real node, which the tier ``node`` builds."""
HELM = GoModule(
    "helm", "helm.sh/helm/v3", {"helm": "helm.sh/helm/v3/cmd/helm"}, ("helm.sh/helm/v3/internal/version.version",)
)


@dataclass(frozen=True)
class Programs:
    """The programs of a control plane."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path


def control_plane(report: Report = report_on_stderr) -> Programs:
    """The programs of a control plane, built if they must be.

    Raises:
        BuildError: there is none, and it can't be built.
    """
    assets = _assets(report)
    found = {**KUBERNETES.build([name for name in KUBERNETES.packages if name not in assets], report), **assets}
    return Programs(**{name.replace("-", "_"): path for name, path in found.items()})


def helm(report: Report = report_on_stderr) -> Path:
    """Helm: the pinned version, or the installed one if the build fails.

    Raises:
        BuildError: there is none, and it can't be built.
    """
    try:
        return HELM.build(report=report)["helm"]
    except BuildError:
        if installed := shutil.which("helm"):
            report(f"helm {HELM.version} can't be built here; taking {installed}")
            return Path(installed)
        raise


def _assets(report: Report) -> dict[str, Path]:
    """The programs in the folder that setup-envtest made: at least etcd and kube-apiserver.

    The components that we build may have the version of the API server or one minor version less, not more.
    """
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    found = {name: Path(folder, name) for name in KUBERNETES.packages if os.access(Path(folder, name), os.X_OK)}
    if not {"etcd", "kube-apiserver"} <= set(found):
        report(f"KUBEBUILDER_ASSETS={folder} has no etcd and kube-apiserver")
        return {}
    theirs, ours = _minor(_version(found["kube-apiserver"])), _minor(KUBERNETES.version)
    if len(found) < len(KUBERNETES.packages) and theirs not in (ours, ours + 1):
        report(f"KUBEBUILDER_ASSETS={folder} is Kubernetes 1.{theirs}; the rest would be built of 1.{ours}")
        return {}
    return found


def _version(program: Path) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout


def _minor(version: str) -> int:
    found = re.search(r"v1\.(\d+)", version)
    return int(found[1]) if found else 0


def main() -> int:
    """Build all programs; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with the compiler that is at work
    try:
        control_plane()
        helm()
    except BuildError as error:
        report_on_stderr(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    report_on_stderr(f"the programs are in {KUBERNETES.cache} and {HELM.cache}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
