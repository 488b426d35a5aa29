"""The operator on a real Kubernetes control plane: growth, the cost of a reconcile, and its idle requests.

The control plane is that of the tests (etcd, API server, controllers, scheduler); there is no node, so pods are
created and never run: this measures the operator, not how fast this machine starts executors.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import yaml

from benchmarks.report import Figure, quantile
from benchmarks.support import fresh_database, say, until
from joex.client.client import Client
from joex.store.database import connect
from joex_operator.api.names import home_of
from tests.support.cluster import build
from tests.support.cluster.api import Api
from tests.support.cluster.control_plane import ControlPlane, Timing
from tests.support.cluster.objects import FOR_POOLS
from tests.support.cluster.processes import Guard
from tests.support.cluster.system import OperatorProcess

_ROOT = Path(__file__).parent.parent
_NAMESPACE = "bench"
_SECRET = "joex-db"
_POOLS, _DEPLOYMENTS = "joexpools.joex.dev", "deployments.apps"
_PATIENCE, _LONG = 600.0, 3600.0
_MOST_MEMORY = 500.0
"""MiB, with a thousand pools."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """A control plane with the CRDs, and a database."""

    control_plane: ControlPlane
    api: Api
    url: str
    client: Client
    connection: asyncpg.Connection[Any]

    async def pool(self, name: str, **spec: Any) -> None:
        """Make a pool with its own queue."""
        spec = {
            "app": "bench:app",
            "image": "joex:bench",
            "database": {"secretName": _SECRET},
            "queues": [name],
            **spec,
        }
        kind = {"apiVersion": "joex.dev/v1alpha1", "kind": "JoexPool"}
        await self.api.create({**kind, "metadata": {"name": name}, "spec": spec}, _NAMESPACE)

    async def until_told(self, pools: int) -> None:
        """Wait until the operator has reconciled this many pools."""
        await self.api.until_all(
            _POOLS,
            lambda found: sum("conditions" in one.get("status", {}) for one in found) >= pools,
            _NAMESPACE,
            timeout=_PATIENCE,
            why=f"{pools} pools have been looked at",
        )


@asynccontextmanager
async def _stage(server_url: str) -> AsyncIterator[_Stage]:
    programs = build.control_plane(lambda line: say(f"cluster: {line}"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="joex-bench-cluster-", dir="/var/tmp")))
        stack.callback(Guard(folder).close)
        control_plane = ControlPlane(folder, programs, "127.12", Timing())
        stack.callback(control_plane.stop)
        control_plane.start()
        async with Api(control_plane.kubeconfig) as api, fresh_database(server_url) as url, Client(url) as client:
            for path in sorted((_ROOT / "crds").glob("*.yaml")):
                await api.apply(yaml.safe_load(path.read_text()))
            await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}})
            metadata = {"name": _SECRET, "labels": FOR_POOLS}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"url": url}}
            await api.create(secret, _NAMESPACE)
            connection = await connect(url)
            yield _Stage(control_plane, api, url, client, connection)
            await connection.close()


@asynccontextmanager
async def _operator(stage: _Stage, **settings: Any) -> AsyncIterator[OperatorProcess]:
    """An operator with its default settings."""
    given = {"poll_interval": "15s", "resync_period": "5m", **settings}
    process = OperatorProcess(stage.control_plane.kubeconfig, _NAMESPACE, f"bench-{secrets.token_hex(2)}", given)
    try:
        yield process
        await process.stop()
    finally:
        process.close()


async def measure_growth(server_url: str, *, quick: bool) -> list[Figure]:
    """From a submission to a pool at zero to its Deployment."""
    rounds = 20 if quick else 60
    say(f"growth: {rounds} pools at zero, a submission to each")
    async with _stage(server_url) as stage, _operator(stage):
        for number in range(rounds):
            await stage.pool(f"pool-{number}")
        await stage.until_told(rounds)
        latencies = [await _one_growth(stage, f"pool-{number}") for number in range(rounds)]
    p95 = quantile(latencies, 0.95)
    return [
        Figure("submit to Deployment from zero, p50", quantile(latencies, 0.5) * 1000, "ms"),
        Figure("submit to Deployment from zero, p95", p95 * 1000, "ms", "below 500", p95 < 0.5),
        Figure("beside it, as documented: KEDA polls every (at best every 1,000)", 30_000, "ms"),
    ]


async def _one_growth(stage: _Stage, pool: str) -> float:
    await until(stage.connection, "EXISTS (SELECT FROM joex_private.watch WHERE queue = $1 AND until > now())", pool)
    made = asyncio.create_task(stage.api.until(_DEPLOYMENTS, f"{pool}-0", bool, _NAMESPACE, timeout=_PATIENCE))
    await asyncio.sleep(0.2)  # the watch is armed, and the machine quiet
    begin = time.perf_counter()
    await stage.client.submit("bench.noop", queue=pool)
    await made
    return time.perf_counter() - begin


async def measure_pools(server_url: str, *, quick: bool, pools: int | None = None) -> list[Figure]:
    """Many pools with many executors: how long one reconcile takes, the operator's memory, and its requests at rest.

    Kubernetes' controllers and scheduler are stopped, so that the operator's Deployments get no pods: for 10,000 the
    controllers take most of an hour at their default rates.
    """
    replicas, window, rest = (5, 20.0, 20.0) if quick else (10, 60.0, 300.0)
    pools = pools or (20 if quick else 1000)
    say(f"pools: {pools} pools of {replicas} executors, {pools * replicas:,} Deployments")
    async with _stage(server_url) as stage:
        stage.control_plane.controller_manager.stop(0)
        stage.control_plane.scheduler.stop(0)
        for number in range(pools):
            await stage.pool(f"pool-{number}", replicas=replicas)
        began = time.monotonic()
        async with _operator(stage) as operator:
            await stage.api.until_all(
                _DEPLOYMENTS, lambda found: len(found) >= pools * replicas, _NAMESPACE, timeout=_LONG, why="Deployments"
            )
            say(f"pools: Deployments after {time.monotonic() - began:.0f} s")
            await _register_all(stage, pools, replicas)
            await stage.api.until_all(
                _POOLS,
                lambda found: all(one.get("status", {}).get("readyReplicas") == replicas for one in found),
                _NAMESPACE,
                timeout=_LONG,
                why="all executors are known",
            )
            taken = time.monotonic() - began
            say(f"pools: ready after {taken:.0f} s; measuring for {window:.0f} s, with news of ten executors a second")
            before, busy = _buckets(operator), _processor_seconds(operator)
            await _news(stage.connection, window)
            after, busy = _buckets(operator), _processor_seconds(operator) - busy
            say(f"pools: measuring for {rest:.0f} s, at rest")
            sent, idle = _sent(operator), _processor_seconds(operator)
            await asyncio.sleep(rest)
            sent, idle = _sent(operator) - sent, _processor_seconds(operator) - idle
            memory = psutil.Process(operator.pid).memory_info().rss / 2**20
    p95 = _quantile({edge: after[edge] - before.get(edge, 0.0) for edge in after}, 0.95)
    size = f"{pools:,} pools with {pools * replicas:,} executors"
    return [
        Figure(f"an operator starts with {size}, and makes their Deployments", taken, "s"),
        Figure(f"reconcile one of {size}, p95", p95 * 1000, "ms", "below 1,000", p95 < 1),
        Figure("operator's memory then", memory, "MiB", "below 500", memory < _MOST_MEMORY),
        Figure("one processor's time that it takes, with news of ten executors a second", busy / window * 100, "%"),
        Figure("the same, at rest", idle / rest * 100, "%"),
        Figure("its API requests at rest, watches aside", sent * 3600 / rest, "per hour"),
    ]


async def _news(connection: asyncpg.Connection[Any], seconds: float) -> None:
    """Send news of an executor ten times a second."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await connection.execute(
            "SELECT joex_private.notify_operators(app_id) FROM joex_private.executor ORDER BY random() LIMIT 1"
        )
        await asyncio.sleep(0.1)


async def _register_all(stage: _Stage, pools: int, replicas: int) -> None:
    """Register executors in the database, with a lease that lasts."""
    namespace = await stage.api.get("namespaces", _NAMESPACE)
    await stage.connection.execute(
        """
        SELECT joex_private.register(format('%s/pool-%s-%s', $1::text, p, s), NULL, 'bench', '', 1, '', '0',
                                     ARRAY['pool-' || p], '{}', 1, NULL, '1 hour', false, 5)
        FROM generate_series(0, $2::int - 1) p, generate_series(0, $3::int - 1) s
        """,
        home_of(_NAMESPACE, namespace["metadata"]["uid"]), pools, replicas,
    )  # fmt: skip


async def measure_quiet(server_url: str, *, quick: bool) -> list[Figure]:
    """The operator's requests to the API server while nothing happens.

    Watches do not count: each controller of Kubernetes restarts its watches after five to ten minutes, all at about the
    same time after the start, so more of them while the operator runs than before. The operator restarts only a few.
    """
    window = 60.0 if quick else 300.0
    async with _stage(server_url) as stage:
        for number in range(10):
            await stage.pool(f"pool-{number}")
        say(f"quiet: {window:.0f} s without an operator")
        without = await _requests(stage, window)
        async with _operator(stage):
            await stage.until_told(10)
            await asyncio.sleep(15)  # it lists everything twice at its start
            say(f"quiet: {window:.0f} s with one")
            with_one = await _requests(stage, window)
    return [
        Figure(
            "API requests of an idle operator with 10 pools, watches aside",
            (with_one - without) * 3600 / window,
            "per hour",
        )
    ]


async def _requests(stage: _Stage, window: float) -> float:
    before = await _total(stage.api)
    await asyncio.sleep(window)
    return await _total(stage.api) - before


async def _total(api: Api) -> float:
    """All requests that the API server has answered, except watches."""
    page = await api.text("/metrics")
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("apiserver_request_total{") and 'verb="WATCH"' not in line
    )


def _metrics(operator: OperatorProcess) -> str:
    with urllib.request.urlopen(f"{operator.address}/metrics") as answer:  # noqa: S310 - it is our own process
        page: str = answer.read().decode()
        return page


def _sent(operator: OperatorProcess) -> float:
    """All requests of the operator to the API server, except watches."""
    found = re.findall(r"^joex_operator_api_requests_total\{.*\} (\S+)", _metrics(operator), re.MULTILINE)
    return sum(map(float, found))


def _processor_seconds(operator: OperatorProcess) -> float:
    times = psutil.Process(operator.pid).cpu_times()
    return float(times.user + times.system)


def _buckets(operator: OperatorProcess) -> dict[float, float]:
    """The histogram of the operator's reconciles: how many took no longer than each edge."""
    found = re.findall(
        r'^joex_operator_reconcile_seconds_bucket\{le="([^"]+)"\} (\S+)', _metrics(operator), re.MULTILINE
    )
    return {float(edge): float(count) for edge, count in found}


def _quantile(buckets: dict[float, float], share: float) -> float:
    """The upper edge of the bucket that has this quantile of the reconciles."""
    total = max(buckets.values())
    return min(edge for edge, count in buckets.items() if count >= share * total)
