"""The control plane of Kubernetes as processes: with RBAC and its own authority, ready in seconds."""

from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.cluster import kubeconfig
from tests.support.cluster.audit import AuditLog
from tests.support.cluster.build import Programs
from tests.support.cluster.components import Component
from tests.support.cluster.kubeconfig import Access
from tests.support.cluster.pki import Authority, Certificate, SigningKey
from tests.support.cluster.processes import free_port
from tests.support.waiting import PATIENCE

_LOOPBACK = "127.0.0.1"
_NO_ENDPOINTS = ",-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"


@dataclass(frozen=True)
class Timing:
    """How fast the control plane detects a failed node. Kubernetes itself waits 50 and 300 seconds."""

    node_silence: int = 8
    """Seconds without a renewed lease, after which a node is not ready."""
    eviction: int = 10
    """Seconds on such a node, after which a pod is deleted, unless it tolerates more."""


class ControlPlane:
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler in a folder. A guard ends the processes.

    Services have the upper half of the addresses of a network, such as ``127.20``. On loopback they have no endpoints,
    because the API refuses these there. ``address``: at which pods with their own network reach the API server.
    """

    def __init__(
        self, folder: Path, programs: Programs, network: str, timing: Timing, address: str = _LOOPBACK
    ) -> None:
        self._folder = folder
        self._services = f"{network}.128"
        self._address = address
        self._authority = Authority(folder / "pki")
        self.audit_log = AuditLog(folder)
        self._port = free_port()
        self.server = f"https://127.0.0.1:{self._port}"
        self.kubeconfig = self.kubeconfig_for("joex-tests-admin", "system:masters")
        self._http = self._client()
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        signer = self._authority.signing_key("service-accounts")
        self.etcd = self._etcd(programs)
        self.api_server = self._api_server(programs, signer, timing)
        self.controller_manager = self._controller_manager(programs, signer, timing)
        self.scheduler = self._scheduler(programs)

    def start(self) -> None:
        """Start all, and wait until the API accepts pods.

        Raises:
            StartError: a program does not get ready.
        """
        self.etcd.start()
        self.etcd.wait_until(lambda: "true" in self._answer(f"{self._etcd_url}/health"), PATIENCE)
        self.api_server.start()
        self.wait_for_api()
        # Not sooner: if the API server needs ten seconds to get ready, the controller manager gives up.
        self.controller_manager.start()
        self.scheduler.start()
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self.controller_manager.wait_until(lambda: '"uid"' in self._answer(f"{self.server}{account}"), PATIENCE)

    def wait_for_api(self) -> None:
        """Wait until the API server is ready."""
        self.api_server.wait_until(lambda: self._answer(f"{self.server}/readyz") == "ok", PATIENCE)

    def stop_api(self, grace: float = 2.0) -> None:
        """Stop the API server. It keeps its watches open, so the grace ends with SIGKILL; 0 kills it at once."""
        self.api_server.stop(grace)

    def start_api(self) -> None:
        """Start the API server again, on the same port, and wait until it is ready.

        This restarts the controllers, because they would wait ever longer between their tries to connect.
        """
        self.api_server.start()
        self.wait_for_api()
        for component in (self.controller_manager, self.scheduler):
            component.stop(0)
            component.start()

    def restart_api(self, grace: float = 2.0) -> None:
        """Stop the API server and start it again."""
        self.stop_api(grace)
        self.start_api()

    def stop(self) -> None:
        """Stop all."""
        for component in (self.scheduler, self.controller_manager, self.api_server, self.etcd):
            component.stop(0)
        self._http.close()

    def kubeconfig_for(self, user: str, *groups: str) -> Path:
        """A kubeconfig file for a user of this cluster, with a certificate."""
        certificate = self._authority.client(user, *groups)
        shown = {"client-certificate": str(certificate.certificate), "client-key": str(certificate.key)}
        access = Access(self.server, {"certificate-authority": str(self._authority.own.certificate)}, shown)
        return kubeconfig.write(certificate.certificate.with_suffix(".kubeconfig"), access)

    @property
    def authority(self) -> Path:
        """The certificate of the authority that the cluster trusts."""
        return self._authority.own.certificate

    @property
    def _is_on_loopback(self) -> bool:
        return self._address == _LOOPBACK

    def _client(self) -> httpx.Client:
        access = kubeconfig.read(self.kubeconfig)
        return httpx.Client(verify=access.ssl_context(), trust_env=False, timeout=PATIENCE)

    def _answer(self, url: str) -> str:
        try:
            return self._http.get(url).text
        except httpx.TransportError:
            return ""

    def _etcd(self, programs: Programs) -> Component:
        # Without fsync: data survives a crash of the server, not of the machine.
        peers = f"http://127.0.0.1:{free_port()}"
        return Component(
            self._folder,
            programs.etcd,
            "--name=joex-tests",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=joex-tests={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _api_server(self, programs: Programs, signer: SigningKey, timing: Timing) -> Component:
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        alternatives = [*(f"DNS:{name}" for name in names), "IP:127.0.0.1", f"IP:{self._services}.1"]
        own = self._authority.server("kube-apiserver", *alternatives)
        kubelets = self._authority.client("kube-apiserver-kubelet-client", "system:masters")
        authority = self._authority.own.certificate
        return Component(
            self._folder,
            programs.kube_apiserver,
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={_LOOPBACK if self._is_on_loopback else '0.0.0.0'}",  # noqa: S104 - a network of its own
            f"--secure-port={self._port}",
            f"--advertise-address={self._address}",
            f"--endpoint-reconciler-type={'none' if self._is_on_loopback else 'lease'}",
            f"--kubelet-client-certificate={kubelets.certificate}",
            f"--kubelet-client-key={kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-cluster-ip-range={self._services}.0/17",
            f"--client-ca-file={authority}",
            *_tls(own),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signer.public}",
            f"--service-account-signing-key-file={signer.private}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            *self.audit_log.arguments,
            f"--default-not-ready-toleration-seconds={timing.eviction}",
            f"--default-unreachable-toleration-seconds={timing.eviction}",
            "--allow-privileged=true",
            "--profiling=false",
            "--shutdown-delay-duration=0s",
            f"--requestheader-client-ca-file={authority}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        )

    def _controller_manager(self, programs: Programs, signer: SigningKey, timing: Timing) -> Component:
        return Component(
            self._folder,
            programs.kube_controller_manager,
            *self._identity("system:kube-controller-manager"),
            f"--service-account-private-key-file={signer.private}",
            f"--root-ca-file={self._authority.own.certificate}",
            "--use-service-account-credentials=true",
            "--concurrent-namespace-syncs=20",
            f"--controllers=*{_NO_ENDPOINTS if self._is_on_loopback else ''}",
            "--node-monitor-period=1s",
            f"--node-monitor-grace-period={timing.node_silence}s",
        )

    def _scheduler(self, programs: Programs) -> Component:
        return Component(self._folder, programs.kube_scheduler, *self._identity("system:kube-scheduler"))

    def _identity(self, user: str) -> list[str]:
        path = self.kubeconfig_for(user)
        names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        own = self._authority.server(f"{user.removeprefix('system:')}-server", "IP:127.0.0.1")
        return [
            *(f"--{name}={path}" for name in names),
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            *_tls(own),
            "--authentication-skip-lookup=true",  # it starts before the objects that it would look up exist
            "--leader-elect=false",
            "--profiling=false",
        ]


def _tls(certificate: Certificate) -> list[str]:
    return [f"--tls-cert-file={certificate.certificate}", f"--tls-private-key-file={certificate.key}"]
