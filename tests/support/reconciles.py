"""An operator that reconciles pools on a database, when a test says so, and starts no executor unless the plan asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from joex_operator.api.objects import Ref, parse_pool
from joex_operator.control.database import Databases
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.control.pool_reconciler import PoolReconciler
from joex_operator.local.fleet import ProcessFleet
from joex_operator.metrics import OperatorMetrics
from tests.unit.joex_operator.builders import manifest

POLL = 60.0
"""Seconds after which it reconciles a pool without a reason."""


class Reconciles:
    """The reconciles of pools in the namespace ``prod``, whose specs have these fields unless a test says otherwise."""

    def __init__(self, url: str, **defaults: Any) -> None:
        self._url, self._defaults = url, defaults
        metrics, nothing = OperatorMetrics(), lambda *_: None
        output: Any = type("Output", (), {"event": nothing})()
        start = partial(SchedulerService, worker="me", poll=POLL, metrics=metrics)
        self.databases = Databases(nothing, migrate=False, start_scheduler=start)
        self.fleet = ProcessFleet({}, url, log_format="json", output=output, changed=nothing)
        self.reconciler = PoolReconciler(self.fleet, self.databases, metrics, poll=POLL)

    async def reconcile(self, name: str = "documents", *, url: str = "", **spec: Any) -> float:
        """Reconcile a pool with this spec, and this URL if it is another; returns the seconds until the next one."""
        pool = parse_pool(manifest(name, **{**self._defaults, **spec}))
        return await self.reconciler.reconcile(Ref("JoexPool", pool.namespace, name), pool, url or self._url)


@asynccontextmanager
async def reconciles(url: str, **defaults: Any) -> AsyncIterator[Reconciles]:
    """An operator on this database."""
    operator = Reconciles(url, **defaults)
    try:
        yield operator
    finally:
        await operator.databases.close()
