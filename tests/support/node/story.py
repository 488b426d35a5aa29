"""The steps of a story on the node: commands out of the documents, jobs in the trial database, pods and pools."""

import base64
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import asyncpg

from tests.support.cluster.api import Api
from tests.support.cluster.connection import Object
from tests.support.cluster.objects import FOR_POOLS
from tests.support.node.images import SHOPS
from tests.support.node.node import ROOT, Node
from tests.support.pages import DOCS, Command, File, console, steps
from tests.support.shell import Shell
from tests.support.waiting import eventually

JOBS = "jobs"
"""The namespace of the stories' own pools; restricted, as is that of the chart."""
PATIENCE = 120.0
"""Seconds after which a story fails. It makes no story faster or slower."""
_PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md")))
_FINISHED = ("success", "failed", "cancelled")


class Times:
    """Durations, for people."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, float]] = []
        self.remarks: list[str] = []

    def add(self, story: str, what: str, seconds: float) -> None:
        """Note a time."""
        self._rows.append((story, what, seconds))

    def lines(self) -> list[str]:
        """A line for each time, and the remarks."""
        rows = [
            f"{seconds:7.2f} s  {story.removeprefix('test_').replace('_', ' ')}: {what}"
            for story, what, seconds in self._rows
        ]
        return rows + self.remarks


class Story:
    """One story."""

    def __init__(self, node: Node, times: Times, name: str) -> None:
        self.node = node
        self._times = times
        self._name = name
        self._database: asyncpg.Connection[Any] | None = None
        self.api: Api

    async def __aenter__(self) -> Self:
        self.api = self.node.api()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.tell())
        if self._database is not None:
            self._database.terminate()
        await self.api.__aexit__(None, None, None)

    def tell(self) -> str:
        """The state of the cluster, for a story that has failed."""
        what = "get pods,deployments,joexpools,periodictasks --all-namespaces --output wide"
        return self.node.sh(f"""
            kubectl {what} || true
            kubectl get events --all-namespaces --sort-by=.lastTimestamp | tail -n 60
            kubectl logs deployment/joex-operator --tail=60 || true
        """)

    def documented(self, beginning: str, **names: str) -> str:
        """Run the command that begins so, as it stands in a console block of the README or of a page.

        ``names`` replace words that stand for names of the reader's own.
        """
        found = [command for page in _PAGES for command in console(page) if command.text.startswith(beginning)]
        assert found, f"no document has a command that begins so: {beginning}"
        return self.sh(
            re.sub("|".join(rf"\b{word}\b" for word in names) or "$^", lambda word: names[word[0]], found[0].text)
        )

    async def follow(self, page: str) -> None:
        """Execute the steps of a page of docs/ for a cluster, in a new folder of a clone.

        This node replaces the node of kind, and it has the images already.
        """
        folder = self.node.folder / "clone" / "tutorial"
        folder.mkdir(parents=True)
        (folder.parent / "charts").symlink_to(ROOT / "charts")
        async with Shell(folder, self.node.environment, "kind", "docker") as shell:
            try:
                for step in steps(DOCS / page):
                    if isinstance(step, File):
                        await shell.write(step.name, step.text)
                    elif isinstance(step, Command) and step.on_cluster:
                        await shell.follow(step)
            except BaseException:
                print(self.tell())
                self.sh("""
                    kubectl delete --ignore-not-found joexpools.joex.dev --all || true
                    helm uninstall joex || true
                    kubectl delete --ignore-not-found pod/shell secret/joex-db
                """)
                raise

    def sh(self, command: str, folder: Path = ROOT) -> str:
        """Run a command in a shell."""
        return self.node.sh(command, folder)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Note how long a block takes."""
        began = time.monotonic()
        yield
        self._times.add(self._name, what, time.monotonic() - began)

    async def make_namespace(self) -> None:
        """Make the namespace of the stories' own pools, whose pods must be restricted, with the database's secret.

        The operator watches it from now on, beside that of its release.
        """
        self.sh(f"""
            kubectl create namespace {JOBS}
            kubectl label namespace {JOBS} pod-security.kubernetes.io/enforce=restricted
            helm upgrade joex charts/joex --reuse-values --wait --timeout 120s \
                --set 'watchNamespaces={{default,{JOBS}}}'
        """)
        await self.secret("joex-db", await self.url())

    async def url(self) -> str:
        """The URL of the trial database, for pods."""
        secret = await self.api.get("secrets", "joex-postgresql", "default")
        return base64.b64decode(secret["data"]["url"]).decode()

    async def secret(self, name: str, url: str) -> None:
        """Store a database URL in a secret of the pools' namespace."""
        metadata = {"name": name, "labels": FOR_POOLS}
        manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"url": url}}
        await self.api.apply(manifest, JOBS)

    async def sql(self, statement: str) -> None:
        """Execute a statement in the trial database."""
        await (await self._connected()).execute(statement)

    async def pool(self, name: str, **spec: Any) -> None:
        """Make a pool of the shop, which shrinks soon, or change it."""
        template = {
            "containers": [
                {
                    "name": "executor",
                    "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}, "limits": {"memory": "256Mi"}},
                }
            ]
        }
        manifest = {
            "apiVersion": "joex.dev/v1alpha1",
            "kind": "JoexPool",
            "metadata": {"name": name, "namespace": JOBS},
            "spec": {
                "app": "tasks:app",
                "image": SHOPS[0],
                "queues": [name],
                "database": {"secretName": "joex-db"},
                "poolSize": 2,
                "drain": {"timeout": "60s"},
                "template": {"spec": template},
                **spec,
                "scaling": {
                    "minReplicas": 0,
                    "maxReplicas": 5,
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}},
                    **spec.get("scaling", {}),
                },
            },
        }
        await self.api.apply(manifest)

    async def drop(self, name: str) -> None:
        """Delete a pool, and wait until all its objects are gone."""
        await self.api.delete("joexpools.joex.dev", name, JOBS)
        await self.until_pods(name, 0)

    async def until_pool(self, name: str, holds: Callable[[Object], Any], namespace: str = JOBS) -> Object:
        """Wait until a condition holds for a pool that has a status."""

        def is_so(found: Object | None) -> bool:
            return bool(found is not None and found.get("status") and holds(found))

        found: Object = await self.api.until("joexpools.joex.dev", name, is_so, namespace, timeout=PATIENCE)
        return found

    async def until_ready(self, name: str, executors: int, namespace: str = JOBS) -> None:
        """Wait until this many executors of a pool take jobs."""
        await self.until_pool(name, lambda pool: pool["status"].get("readyReplicas") == executors, namespace)

    async def until_pods(self, name: str, count: int, namespace: str = JOBS) -> list[Object]:
        """Wait until a pool has this many pods, including pods that end."""
        labels = f"joex.dev/pool={name}"
        return await self.api.until_all(
            "pods", lambda found: len(found) == count, namespace, labels=labels, timeout=PATIENCE
        )

    async def pod(self, name: str, namespace: str = JOBS) -> Object:
        """Wait for a ready pod of a pool that does not end."""

        def is_ready(pod: Object) -> bool:
            conditions = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", [])}
            return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]

        found = await self.api.until_all(
            "pods", lambda pods: any(map(is_ready, pods)), namespace, labels=f"joex.dev/pool={name}", timeout=PATIENCE
        )
        return next(pod for pod in found if is_ready(pod))

    async def submit(self, task: str, queue: str, group: str = "acme", **args: Any) -> UUID:
        """Submit a job."""
        database = await self._connected()
        made: UUID = await database.fetchval(
            "SELECT joex.submit($1, $2::jsonb, grp => $3, queue => $4)", task, json.dumps(args), group, queue
        )
        return made

    async def busy(self, name: str, *, seconds: float) -> tuple[str, UUID]:
        """Make a pool of one executor that has begun a job of this many seconds; returns its pod and that job."""
        await self.pool(name, scaling={"minReplicas": 1})
        pod = await self.pod(name)
        job_id = await self.submit("shop.hold", name, seconds=seconds)
        await self.begun(job_id)
        return pod["metadata"]["name"], job_id

    async def job(self, job_id: UUID) -> asyncpg.Record:
        """The present state of a job."""
        database = await self._connected()
        row: asyncpg.Record | None = await database.fetchrow(
            "SELECT *, state::text AS now FROM joex.jobs WHERE id = $1", job_id
        )
        assert row is not None
        return row

    async def begun(self, job_id: UUID) -> asyncpg.Record:
        """Wait until a job runs."""
        return await self._until(job_id, lambda job: job["now"] == "running")

    async def finished(self, *job_ids: UUID) -> list[asyncpg.Record]:
        """Wait until jobs are finished."""
        return [await self._until(job_id, lambda job: job["now"] in _FINISHED) for job_id in job_ids]

    async def finished_undisturbed(self, *job_ids: UUID) -> None:
        """Wait until jobs have succeeded, each in its first run."""
        for job in await self.finished(*job_ids):
            assert (job["now"], job["attempt"], job["losses"]) == ("success", 1, 0)

    def note_job(self, what: str, job: asyncpg.Record) -> None:
        """Note how long a job waited for its start."""
        self._times.add(self._name, what, (job["started_at"] - job["submitted_at"]).total_seconds())

    async def note_unhealthy(self) -> None:
        """Note how many containers of executors the kubelet has started, and its warnings about probes."""
        events = [*await self.api.get_all("events", JOBS), *await self.api.get_all("events", "default")]
        counts: Counter[str] = Counter()
        for event in events:
            if event["involvedObject"].get("fieldPath", "").endswith("{executor}"):
                # such as: Startup probe failed: Get "http://10.88.0.7:7878/healthz": dial tcp ... connection refused
                said = f"{event['message'].split(':')[0]}: {event['message'].rsplit(': ')[-1]}"
                counts[said if event["reason"] == "Unhealthy" else event["reason"]] += event.get("count") or 1
        self._times.remarks.append(f"the kubelet's events of executors: {dict(counts)}")

    async def nothing_hangs(self) -> None:
        """Check that no pod has outlived its grace period."""

        async def none() -> bool:
            pods = [*await self.api.get_all("pods", JOBS), *await self.api.get_all("pods", "default")]
            return not [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]

        await eventually(none, PATIENCE, why="no pod is left Terminating")

    async def _until(self, job_id: UUID, holds: Callable[[asyncpg.Record], bool]) -> asyncpg.Record:
        async def looked() -> asyncpg.Record | None:
            job = await self.job(job_id)
            return job if holds(job) else None

        found: asyncpg.Record = await eventually(looked, PATIENCE, why=f"job {job_id}")
        return found

    async def _connected(self) -> "asyncpg.Connection[Any]":
        """A connection to the trial database, by the address of its Service; opened again if it was lost."""
        if self._database is None or self._database.is_closed():
            service = await self.api.get("services", "joex-postgresql", "default")
            url = await self.url()
            address = service["spec"]["clusterIP"]

            async def connect() -> "asyncpg.Connection[Any] | None":
                try:
                    return await asyncpg.connect(url.replace("joex-postgresql.default.svc", address), timeout=5)
                except (OSError, TimeoutError, asyncpg.PostgresError):
                    return None

            self._database = await eventually(connect, PATIENCE, why="the trial database answers")
        return self._database
