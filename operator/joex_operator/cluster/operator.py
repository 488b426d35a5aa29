"""The operator on a cluster: it stands by, and works while it leads."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from joex.cli.signals import reacting_to_signals
from joex.errors import ConfigError
from joex.http.certificate import certificate_of
from joex_operator.cluster.bootstrap_pools import apply_bootstrap_pools
from joex_operator.cluster.fleet import ClusterFleet
from joex_operator.cluster.kopf_watches import KopfWatches
from joex_operator.cluster.kubernetes_api import KubernetesApi
from joex_operator.cluster.leader_election import LeaderElection
from joex_operator.cluster.namespace_claims import NamespaceClaims
from joex_operator.cluster.probes import LastingProblem, probes
from joex_operator.cluster.settings import OperatorSettings
from joex_operator.control.controller import Controller
from joex_operator.control.fleet import FleetError
from joex_operator.control.queue_metrics import refresh_queue_metrics
from joex_operator.metrics import OperatorMetrics

_log = logging.getLogger("joex.operator")

_BEGUN_AFTER = 10.0
"""Seconds after which the operator goes on with the namespaces that it has claimed, or listed: others may be slow."""
_FIRST_RESYNC_AFTER = 10.0
"""Seconds until the first resync: the watches never report deletions from before they began."""
_RESYNC_AGAIN_IN = 10.0
"""Seconds after which a resync that failed is tried again."""
_QUERY_EVERY = 15.0
_START_OVER_IN = 2.0
_LONGEST_RECONCILE = 300.0
_CONNECTIONS = 30
"""To the API server. A namespace has twenty at most: two pools that grow use that many."""
_STOP_WITHIN = 7.0
"""Seconds from SIGTERM to the exit: the release of the Lease may take five of them."""
_LONGEST_UNREADY = 600.0
"""Seconds after which an operator that is not ready asks for a restart. After this time the kubelet restarts a
container without a back-off."""


class Operator:
    """An operator process."""

    def __init__(self, settings: OperatorSettings, client: ApiClient) -> None:
        self._settings = settings
        self._metrics = OperatorMetrics()
        self._api = KubernetesApi(client, self._metrics)
        self._controller: Controller | None = None
        self._watches: KopfWatches | None = None
        self._claims: NamespaceClaims | None = None
        self._listed_at: float | None = None
        self._failure = ""
        # With connections of its own: the requests of dozens of namespaces may hold all of the others.
        self._leases = KubernetesApi(ApiClient(client.configuration), self._metrics)
        self._election = LeaderElection(
            self._leases,
            name=settings.lease_name,
            namespace=settings.own_namespace,
            identity=settings.own_identity,
        )
        self._readiness = LastingProblem(self._not_ready, _LONGEST_UNREADY)

    async def run(self) -> None:
        """Run until cancelled."""
        settings = self._settings
        certificate = certificate_of(settings.http_tls_certificate, settings.http_tls_key, "JOEX_OPERATOR_")
        serving = probes(
            settings.http_address, self._metrics, certificate, health=self.health, readiness=self.readiness
        )
        async with self._leases.client, serving as where:
            if where:
                _log.info("probes and metrics on %s", where)
            while True:
                self._metrics.leading(value=False)
                try:
                    await self._election.lead(self._work)
                    self._failure = "the Lease could not be renewed"
                except (FleetError, ExceptionGroup) as error:
                    self._failure = _one_line(error)
                    _log.error("starting over: %s", self._failure)
                await asyncio.sleep(_START_OVER_IN)

    def health(self) -> str | None:
        """Why a restart would help, in one line; None: it would not. A blocked event loop does not even answer."""
        controller = self._controller
        if controller is not None and controller.longest_reconcile > _LONGEST_RECONCILE:
            return f"a reconcile has lasted {controller.longest_reconcile:.0f} seconds"
        overdue = 3 * self._settings.resync_period.total_seconds() + 60
        if self._listed_at is not None and time.monotonic() - self._listed_at > overdue:
            return "the operator has not listed the cluster for too long"
        return self._readiness.for_too_long()

    def readiness(self) -> str | None:
        """Why this operator does not do all that it should, in one line; None: it does."""
        wrong = self._readiness.now()
        # What follows is no reason for a restart.
        if wrong is None and self._watches is not None:
            wrong = self._watches.left_out()
        if wrong is None and self._claims is not None:
            wrong = self._claims.problem()
        return wrong

    def _not_ready(self) -> str | None:
        """Why this operator neither leads with a complete view of the cluster nor stands by; None: it does."""
        wrong = self._election.problem() or self._not_at_work()
        if wrong is None:
            self._failure = ""
        return wrong

    def _not_at_work(self) -> str | None:
        before = f"; it started over after {self._failure}" if self._failure else ""
        if self._watches is None:
            return None if self._election.is_standby or not before else f"does not lead{before}"
        if self._listed_at is None:
            return f"leads, and has not listed the cluster yet{before}"
        wrong = self._watches.problem()
        return None if wrong is None else wrong + before

    async def _work(self) -> None:
        """Lead: watch, reconcile, query metrics."""
        settings = self._settings
        self._metrics.leading(value=True)
        claims = self._claims = NamespaceClaims(self._leases, settings.release)
        fleet = ClusterFleet(self._api, image=settings.image, identity=settings.own_identity, uid_of=claims.uid_of)
        controller = self._controller = Controller(
            fleet,
            worker=settings.own_identity,
            poll=settings.poll_interval.total_seconds(),
            migrate=settings.migrate,
            metrics=self._metrics,
        )
        watches = self._watches = KopfWatches(
            self._api,
            fleet,
            controller,
            settings.namespaces,
            claims=claims,
            identity=settings.own_identity,
            binding=f"{settings.own_namespace}:{settings.lease_name}",
        )
        try:
            await watches.wait_for_crds()
            with suppress(TimeoutError):  # (`claims.run` goes on with the others)
                async with asyncio.timeout(_BEGUN_AFTER):
                    own = [settings.own_namespace] if settings.pools_config_map else []
                    await claims.claim({*settings.namespaces, *own})
            # First, so that an upgrade of the chart replaces executors once, for the new image and the new spec.
            are_applied = await self._apply_bootstrap_pools()
            async with asyncio.TaskGroup() as group:
                first = group.create_task(self._resync(watches))
                await asyncio.wait({first}, timeout=_BEGUN_AFTER)
                group.create_task(controller.run())
                group.create_task(watches.run())
                group.create_task(claims.run(watches.request_resync))
                group.create_task(refresh_queue_metrics(controller.databases, self._metrics.databases, _QUERY_EVERY))
                await first
                group.create_task(self._keep_resyncing(watches, are_applied=are_applied))
        finally:
            self._controller = self._watches = self._claims = self._listed_at = None

    async def _apply_bootstrap_pools(self) -> bool:
        settings = self._settings
        if not settings.pools_config_map:
            return True
        if self._claims is None or not self._claims.holds(settings.own_namespace):
            return False
        return await apply_bootstrap_pools(self._api, settings.own_namespace, settings.pools_config_map)

    async def _keep_resyncing(self, watches: KopfWatches, *, are_applied: bool) -> None:
        period = self._settings.resync_period.total_seconds()
        pause = min(_FIRST_RESYNC_AFTER, period)
        while True:
            try:
                async with asyncio.timeout(pause):
                    await watches.missed()
            except TimeoutError:
                # Not sooner: in an upgrade the old operator would replace executors for the new spec with its own
                # image.
                if not are_applied or pause == period:
                    are_applied = await self._apply_bootstrap_pools()
                pause = period
            try:
                await self._resync(watches)
            except FleetError as error:
                _log.warning("listing the cluster: %s", error)
                pause = min(_RESYNC_AGAIN_IN, period)

    async def _resync(self, watches: KopfWatches) -> None:
        await watches.resync()
        self._listed_at = time.monotonic()


async def run(settings: OperatorSettings) -> None:
    """Run an operator until SIGTERM or Ctrl-C. Executors go on without it."""
    async with _connected(settings) as client:
        running = asyncio.create_task(Operator(settings, client).run())
        stop = asyncio.Event()
        waiting = asyncio.create_task(stop.wait())
        with reacting_to_signals(lambda _: stop.set()):
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        for task in (running, waiting):
            task.cancel()
        await asyncio.wait([running], timeout=_STOP_WITHIN)
        if not running.done():
            # A library has swallowed the cancellation. At its end, the loop cancels all tasks once more.
            _log.error("still running %.0f s after the signal to stop: %s", _STOP_WITHIN, _where(asyncio.all_tasks()))
        elif not running.cancelled():
            running.result()


def _where(tasks: Iterable[asyncio.Task[Any]]) -> str:
    """Where each of these tasks waits, in one line."""
    frames = [(task, task.get_stack(limit=1)) for task in tasks]
    return "; ".join(
        f"{task.get_name()} at {stack[0].f_code.co_filename}:{stack[0].f_lineno}" for task, stack in frames if stack
    )


@asynccontextmanager
async def _connected(settings: OperatorSettings) -> AsyncIterator[ApiClient]:
    """A client with the credentials of the pod, or of a kubeconfig.

    Raises:
        ConfigError: there are none.
    """
    configuration = Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            _check_kubeconfig()
            await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        message = " ".join(str(error).split())
        raise ConfigError(
            f"no Kubernetes API: neither a pod's, nor one of KUBECONFIG or ~/.kube/config: {message}"
        ) from error
    configuration.connection_pool_maxsize = _CONNECTIONS
    configuration.disable_strict_ssl_verification = not settings.strict_x509
    async with ApiClient(configuration) as client:
        yield client


def _check_kubeconfig() -> None:
    """Name a missing file, where the client would complain about a missing key in it."""
    path = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if not any(Path(one).expanduser().exists() for one in path.split(os.pathsep) if one):
        raise ConfigError(f"no Kubernetes API: this is no pod, and there is no file {path} (KUBECONFIG)")


def _one_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
