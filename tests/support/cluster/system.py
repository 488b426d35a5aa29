"""Joex on a cluster, for tests: the CRDs, an operator as a process of this machine, and pools.

Executors run the tasks of `tests.support.apps`, which come to their pods in a ConfigMap, and record their runs.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import asyncpg
import httpx

from joex import Client
from tests.support.apps import EFFECTS_URL, Effects
from tests.support.cluster.api import Api
from tests.support.cluster.connection import Object
from tests.support.cluster.definitions import FILES
from tests.support.cluster.objects import FOR_POOLS
from tests.support.cluster.providers import Cluster
from tests.support.processes import Process
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[3]
SECRET = "joex-db"
APP = "joex-test-app"
POOLS = "joexpools.joex.dev"
DEPLOYMENTS = "deployments.apps"
POOL_LABEL = "joex.dev/pool"

_QUICK = str(Path(__file__).parent / "quick_operator.py")
_FILES = ("tests/support/__init__.py", "tests/support/apps.py", "tests/support/waiting.py")


class OperatorProcess(Process):
    """``joex operator`` as a process of this machine, as the cluster's administrator.

    ``times``: other times than a user's operator has, in seconds, for `quick_operator.py`.
    """

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        name: str,
        settings: dict[str, Any],
        times: Mapping[str, float] | None = None,
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("JOEX_", "KUBE"))}
        given = {
            "namespace": namespace,
            "namespaces": namespace,
            "identity": name,
            "image": "joex:test",
            "http_address": "127.0.0.1:0",
            "poll_interval": "1s",
            "resync_period": "10s",
            **settings,
        }
        environment |= {f"JOEX_OPERATOR_{name.upper()}": str(value) for name, value in given.items()}
        environment["KUBECONFIG"] = str(kubeconfig)
        self.name = name
        command = [sys.executable, "-m", "joex", "operator"]
        if times:
            super().__init__(command, {**environment, "JOEX_TEST_TIMES": json.dumps(times)}, joex=_QUICK)
        else:
            super().__init__(command, environment)

    @property
    def address(self) -> str:
        """The address of its probes and metrics."""
        return self.log.split("probes and metrics on ")[1].split()[0]

    async def get(self, path: str) -> str:
        """A page of its probes and metrics, whatever the status."""
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=PATIENCE) as client:  # noqa: S501 - no TLS
            return (await client.get(f"{self.address}{path}")).text

    async def stop(self) -> int:
        """Ask it to end (SIGTERM), and return its exit code."""
        self.terminate()
        return await self.exited()


class System:
    """Joex in one namespace of a cluster, on one database."""

    def __init__(self, cluster: Cluster, api: Api, namespace: str, pool: asyncpg.Pool, url: str) -> None:
        self.cluster = cluster
        self.api = api
        self.namespace = namespace
        self.url = url
        self.client = Client(pool)
        self.effects = Effects(pool, url)
        self.db = pool
        self._operators: list[OperatorProcess] = []

    async def __aenter__(self) -> Self:
        await self.effects.prepare()
        for definition in FILES.values():
            await self.api.apply(definition)
        await self.set_url(self.url)
        files = {path.replace("/", "-"): (ROOT / path).read_text() for path in _FILES}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": APP}, "data": files}
        await self.api.apply(config_map, self.namespace)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for operator in self._operators:
            print(f"operator {operator.name}:\n{operator.log}")  # pytest shows it if a test fails
            operator.close()
        for pod in await self.api.get_all("pods", self.namespace):
            print(f"pod {pod['metadata']['name']}:\n{await self.cluster.log(self.api, pod)}")
        # Before the database goes, because these processes would only complain. In a namespace that ends, nothing makes
        # them anew: not even a Deployment of a pool, which outlives it for a minute if its definition is new.
        await self.api.delete("namespaces", self.namespace)
        for pod in await self.api.get_all("pods", self.namespace):
            await self.api.delete("pods", pod["metadata"]["name"], self.namespace, grace=0)

    async def set_url(self, url: str, secret: str = SECRET) -> None:
        """Store a database URL in a secret."""
        metadata = {"name": secret, "labels": FOR_POOLS}
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"url": url}}
        await self.api.apply(manifest, self.namespace)

    def operator(
        self, name: str = "operator", *, times: Mapping[str, float] | None = None, **settings: Any
    ) -> OperatorProcess:
        """Start an operator; ``times``: see `OperatorProcess`."""
        made = OperatorProcess(self.cluster.kubeconfig, self.namespace, name, settings, times)
        self._operators.append(made)
        return made

    def manifest(self, name: str = "pool", *, template: Object | None = None, **spec: Any) -> Object:
        """A pool that serves the default queue with the tasks of the tests, and shrinks at once."""
        scaling = {
            "maxReplicas": 3,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            **spec.pop("scaling", {}),
        }
        items = [{"key": path.replace("/", "-"), "path": path} for path in _FILES]
        container = {
            "name": "executor",
            "env": [{"name": "PYTHONPATH", "value": "/app"}, {"name": EFFECTS_URL, "value": self.url}],
            "volumeMounts": [{"name": "app", "mountPath": "/app"}],
        }
        volume = {"name": "app", "configMap": {"name": APP, "items": items}}
        return {
            "apiVersion": "joex.dev/v1alpha1",
            "kind": "JoexPool",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "app": "tests.support.apps:app",
                "image": self.cluster.image,
                "database": {"secretName": SECRET},
                "poolSize": 1,
                "retryDelay": "100ms",
                "scaling": scaling,
                "template": {"spec": {"containers": [container], "volumes": [volume], **(template or {})}},
                **spec,
            },
        }

    async def pool(self, name: str = "pool", **spec: Any) -> Object:
        """Make a pool, or change it."""
        return await self.api.apply(self.manifest(name, **spec))

    async def change(self, name: str = "pool", **spec: Any) -> Object:
        """Change some fields of a pool; None removes a field."""
        return await self.api.patch(POOLS, name, {"spec": spec}, self.namespace)

    async def scale(self, replicas: int, name: str = "pool") -> Object:
        """Do as ``kubectl scale`` does."""
        return await self.api.patch(POOLS, name, {"spec": {"replicas": replicas}}, self.namespace, part="scale")

    async def until_pool(self, predicate: Callable[[Object], Any], name: str = "pool", *, why: str = "") -> Object:
        """Wait until a condition holds for a pool, once it has a status."""

        def holds(found: Object | None) -> bool:
            return bool(found is not None and "status" in found and predicate(found))

        found: Object = await self.api.until(POOLS, name, holds, self.namespace, why=why or f"pool {name}")
        return found

    async def until_reason(self, reason: str, kind: str = "Ready", name: str = "pool") -> Object:
        """Wait until a condition has a reason."""
        return await self.until_pool(
            lambda pool: condition(pool, kind, what="reason") == reason, name, why=f"pool {name}: {kind}: {reason}"
        )

    async def until_ready(self, executors: int, name: str = "pool") -> Object:
        """Wait until exactly this many executors take jobs."""
        return await self.until_pool(
            lambda pool: pool["status"]["readyReplicas"] == executors, name, why=f"pool {name}: {executors} are ready"
        )

    async def executors(self) -> dict[str, asyncpg.Record]:
        """The living executors, by replica: ``id``, ``pod_uid``, ``pid``, ``draining``, and ``held``: how many jobs."""
        rows = await self.db.fetch("""
            SELECT split_part(e.app_id, '/', 2) AS replica, e.id, e.pod_uid, e.pid, e.draining,
                   (SELECT count(*) FROM joex_private.job j WHERE j.executor_id = e.id) AS held
            FROM joex_private.executor e WHERE e.left_at IS NULL
        """)
        return {row["replica"]: row for row in rows}

    async def until_replicas(self, *names: str) -> None:
        """Wait until pools have exactly these Deployments."""

        def just_these(found: list[Object]) -> bool:
            return {one["metadata"]["name"] for one in found} == set(names)

        await self.api.until_all(DEPLOYMENTS, just_these, self.namespace, labels=POOL_LABEL, why=f"replicas {names}")

    async def replicas(self) -> set[str]:
        """The Deployments of pools."""
        found = await self.api.get_all(DEPLOYMENTS, self.namespace, labels=POOL_LABEL)
        return {one["metadata"]["name"] for one in found}

    async def pod_of(self, replica: str) -> Object:
        """Wait until the executor of a replica takes jobs, and return its pod."""

        def ready(found: list[Object]) -> bool:
            return any(condition(pod, "Ready", of="pod") == "True" for pod in found)

        pods = await self.api.until_all(
            "pods", ready, self.namespace, labels=f"joex.dev/replica={replica}", why=f"{replica} is ready"
        )
        return next(pod for pod in pods if condition(pod, "Ready", of="pod") == "True")

    async def submit(self, task: str = "effect", **args: Any) -> UUID:
        """Submit a job."""
        job_id = await self.client.submit(task, args)
        assert job_id is not None
        return job_id

    async def executor_of(self, job_id: UUID) -> str:
        """Wait until a job runs, and return the replica whose executor runs it."""
        await self.effects.begun(job_id)
        app_id = await self.db.fetchval("SELECT app_id FROM joex_private.job WHERE id = $1", job_id)
        return str(app_id).partition("/")[2]

    async def events(self, reason: str) -> list[Object]:
        """The Events with a reason."""
        found = await self.api.get_all("events", self.namespace, fields=f"reason={reason}")
        return [one for one in found if one["involvedObject"]["kind"] in ("JoexPool", "PeriodicTask")]

    async def until_event(self, reason: str) -> Object:
        """Wait until there is an Event with a reason."""
        found: list[Object] = await eventually(lambda: self.events(reason), why=f"an Event {reason}")
        return found[0]

    async def check(self) -> None:
        """Check that no job has ever run twice at a time."""
        overlapping = await self.effects.overlapping()
        assert overlapping == [], overlapping


def condition(found: Object, kind: str, *, of: str = "pool", what: str = "status") -> str:
    """The status (or the reason, or the message) of a condition; empty if there is none."""
    conditions = found.get("status", {}).get("conditions") or []
    return next((str(one.get(what, "")) for one in conditions if one["type"] == kind), "")
