"""Joex as the chart installs it: the operator in a pod, under its own service account."""

import json
from pathlib import Path
from typing import Any

from tests.support.cluster.api import Api
from tests.support.cluster.audit import Request
from tests.support.cluster.chart import CHART, sets
from tests.support.cluster.connection import Object
from tests.support.cluster.helm import Helm
from tests.support.cluster.objects import is_ready
from tests.support.cluster.providers import Cluster
from tests.support.cluster.system import SECRET

NAME = "joex"
OPERATOR = "joex-operator"
"""The operator's Deployment, service account and Lease."""
_REFUSED = (401, 403)
_ENDS_WITHIN = 20.0
"""Seconds: well before the end of its grace period, when the kubelet would kill it."""


def own_database(pool: Object) -> dict[str, Any]:
    """Values for the database of the tests, and for a first pool in the form of a `System.manifest`."""
    spec = {key: value for key, value in pool["spec"].items() if key != "database"}
    spec["scaling"] = {"minReplicas": 0, **spec["scaling"]}  # the chart's own pool has at least one
    return {
        "database": {"existingSecret": SECRET},
        "pool": {"name": pool["metadata"]["name"], "spec": spec},
        "operator": {"pollInterval": "1s"},
    }


class Release:
    """A release, by the name ``joex``, in a namespace."""

    def __init__(self, cluster: Cluster, api: Api, helm: Helm, namespace: str) -> None:
        self.namespace = namespace
        self._cluster = cluster
        self._api = api
        self._helm = helm
        self._is_there = False
        self._asked_before = 0

    async def install(self, values: dict[str, Any] | None = None, *, chart: Path = CHART) -> None:
        """Install it, without waiting for anything."""
        self._asked_before = len(self.requests())
        await self._run("install", NAME, chart, "--values", "-", given=json.dumps(values or {}))
        self._is_there = True

    async def upgrade(self, *pairs: str) -> None:
        """Upgrade it to this chart with some other values, and wait for the new operator."""
        await self._run("upgrade", NAME, CHART, "--reset-then-reuse-values", *sets(*pairs))
        await self.until_operator()

    async def test(self) -> str:
        """Run ``helm test``; returns its output.

        Raises:
            HelmError: it failed.
        """
        return await self._run("test", NAME)

    def let_go(self) -> None:
        """Check that the operator was refused nothing so far; from now on the release may go, with its rights."""
        refused = [request for request in self.requests()[self._asked_before :] if request.code in _REFUSED]
        assert refused == [], refused
        self._is_there = False

    async def uninstall(self) -> None:
        """Uninstall it, if it is installed, and wait until the operator has ended by itself."""
        if self._is_there:
            self.let_go()
            await self._run("uninstall", NAME)
            try:
                await self._api.until_all(
                    "pods", lambda found: not found, self.namespace, labels=OPERATORS, timeout=_ENDS_WITHIN
                )
            except AssertionError as error:
                error.add_note(await self.logs())
                raise

    async def until_operator(self) -> list[Object]:
        """Wait until the operators are ready, all of the newest template, and others are gone; returns their pods."""
        deployment = await self._api.until("deployments", OPERATOR, _is_rolled_out, self.namespace)

        def no_other(found: list[Object]) -> bool:
            return len(found) == deployment["spec"]["replicas"] and all(map(is_ready, found))

        return await self._api.until_all("pods", no_other, self.namespace, labels=OPERATORS)

    async def logs(self) -> str:
        """The output of the present operators."""
        pods = await self._api.get_all("pods", self.namespace, labels=OPERATORS)
        return "\n".join([await self._cluster.log(self._api, pod) for pod in pods])

    def requests(self) -> list[Request]:
        """The operator's requests to the API server; empty if that keeps no log for the tests."""
        local = self._cluster.local
        return local.control_plane.audit_log.requests(OPERATOR, self.namespace) if local else []

    async def _run(self, *arguments: str | Path, given: str | None = None) -> str:
        return await self._helm(*arguments, namespace=self.namespace, given=given)


OPERATORS = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component=operator"
"""Selects the operator's pods."""


def _is_rolled_out(found: Object | None) -> bool:
    if found is None or found.get("status", {}).get("observedGeneration") != found["metadata"]["generation"]:
        return False
    counts = [found["status"].get(f"{kind}eplicas", 0) for kind in ("r", "updatedR", "availableR")]
    return counts == [found["spec"]["replicas"]] * 3
