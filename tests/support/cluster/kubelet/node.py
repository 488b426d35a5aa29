"""The node as the API knows it: registered, with a lease that is renewed and conditions that are reported."""

import asyncio
import contextlib
import os
import platform
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import httpx

from tests.support.cluster.connection import MERGE_PATCH, STRATEGIC_PATCH, ApiError, Connection
from tests.support.cluster.kubelet.container import now
from tests.support.cluster.kubelet.environment import Json
from tests.support.cluster.kubelet.settings import Settings
from tests.support.cluster.objects import is_ready

T = TypeVar("T")

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_SECONDS = 40
_AGAIN = 0.1
_CAPACITY = {"cpu": "64", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "200"}
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


class Node:
    """Reports this node."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings = settings
        self._connection = connection
        self._since = now()

    async def report(self) -> None:
        """Register, then renew the lease, for ever; report when the node is not known to be ready."""
        uid = await self._insist(self._register)
        await self._insist(lambda: self._make_lease(uid))
        while True:
            # At this pace the node is ready again soon after its connection is back.
            await self._insist(self._renew)
            await self._insist(self._report_if_not_ready)
            await asyncio.sleep(self._settings.lease_seconds)

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except (ApiError, httpx.TransportError):
                await asyncio.sleep(_AGAIN)

    async def _register(self) -> str:
        labels = {"kubernetes.io/hostname": self._settings.node, "kubernetes.io/os": "linux", **self._settings.labels}
        metadata = {"name": self._settings.node, "labels": labels}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": self._status()}
        with contextlib.suppress(ApiError):
            return str((await self._connection.request("POST", "/api/v1/nodes", node))["metadata"]["uid"])
        return str((await self._connection.request("GET", self._path))["metadata"]["uid"])

    async def _make_lease(self, uid: str) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._settings.node, "uid": uid}
        metadata = {"name": self._settings.node, "ownerReferences": [owner]}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": self._lease()}
        try:
            await self._connection.request("POST", _LEASES, lease)
        except ApiError as error:
            if error.code != httpx.codes.CONFLICT:
                raise

    async def _report_if_not_ready(self) -> None:
        # As kubelets do: a report costs all controllers, while a renewed lease costs none of them.
        if not is_ready(await self._connection.request("GET", self._path, resourceVersion="0")):  # it may be old
            status = {"status": self._status()}
            await self._connection.request("PATCH", f"{self._path}/status", status, media=STRATEGIC_PATCH)

    async def _renew(self) -> None:
        path = f"{_LEASES}/{self._settings.node}"
        await self._connection.request("PATCH", path, {"spec": self._lease()}, media=MERGE_PATCH)

    def _lease(self) -> Json:
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self._settings.node, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": time}

    def _status(self) -> Json:
        true = self._condition("Ready", "True", "KubeletReady")
        false = [self._condition(kind, "False", "KubeletHasSufficient") for kind in _PRESSURES]
        addresses = (("InternalIP", self._settings.address), ("Hostname", self._settings.node))
        return {
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "conditions": [true, *false],
            "addresses": [{"type": kind, "address": address} for kind, address in addresses],
            "nodeInfo": _info(self._settings.node),
        }

    def _condition(self, kind: str, status: str, reason: str) -> Json:
        times = {"lastHeartbeatTime": now(), "lastTransitionTime": self._since}
        return {"type": kind, "status": status, "reason": reason, "message": "a process kubelet", **times}

    @property
    def _path(self) -> str:
        return f"/api/v1/nodes/{self._settings.node}"


def _info(name: str) -> Json:
    return {
        "machineID": name,
        "systemUUID": name,
        "bootID": f"{name}-{os.getpid()}",
        "kernelVersion": platform.release(),
        "osImage": "processes",
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": "v1.36.0-process",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }
