"""Namespaces of a test: created on demand, deleted after it, and reported if it failed."""

import secrets
from collections.abc import Mapping

from tests.support.cluster.api import Api
from tests.support.cluster.connection import Object
from tests.support.cluster.providers import Cluster

_LONGEST_LOG = 3000


class Namespaces:
    """The namespaces of one test."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self._cluster = cluster
        self._api = api
        self._made: list[str] = []

    async def make(self, labels: Mapping[str, str] | None = None) -> str:
        """A new namespace, in which tests can make pods at once; returns its name."""
        name = f"test-{secrets.token_hex(4)}"
        metadata = {"name": name, "labels": dict(labels or {})}
        await self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self._made.append(name)
        # Pods are refused before these are there.
        await self._api.until("serviceaccounts", "default", bool, name)
        await self._api.until("configmaps", "kube-root-ca.crt", bool, name)
        return name

    async def delete(self) -> None:
        """Delete them all, without waiting, because that takes seconds."""
        for name in self._made:
            await self._api.delete("namespaces", name)

    async def tell(self) -> str:
        """Return the content of these namespaces, to debug a failure."""
        told = []
        for name in self._made:
            for pod in await self._api.get_all("pods", name):
                told.append(f"pod {pod['metadata']['name']}: {pod.get('status')}")
                told += [await self._log(pod, container["name"]) for container in pod["spec"]["containers"]]
            for event in await self._api.get_all("events", name):
                told.append(f"event {event['involvedObject']['name']}: {event['reason']}: {event.get('message')}")
        return "\n".join(told)

    async def _log(self, pod: Object, container: str) -> str:
        log = await self._cluster.log(self._api, pod, container)
        return f"log of {container}:\n{log[-_LONGEST_LOG:]}"
