"""Pools that serve the same queues share their jobs."""

from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from joex_operator.api.objects import Pool, Ref, parse_pool
from joex_operator.control import pool_reconciler
from joex_operator.control.database import Databases
from joex_operator.control.fleet import FleetError
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.control.pool_reconciler import PoolReconciler
from joex_operator.decide.history import History
from joex_operator.decide.plan import ObservedPool, Plan, decide
from joex_operator.local.fleet import ProcessFleet
from joex_operator.metrics import OperatorMetrics
from tests.integration.conftest import Bench
from tests.unit.joex_operator.builders import manifest

BY_DEMAND: dict[str, Any] = {"poolSize": 1, "scaling": {"maxReplicas": 100}}


@pytest.fixture
async def reconciler(database_url: str) -> AsyncIterator[PoolReconciler]:
    """Reconciles pools on the test's database."""
    metrics, nothing = OperatorMetrics(), lambda *_: None
    output: Any = type("Output", (), {"event": nothing})()
    start = partial(SchedulerService, worker="me", poll=60.0, metrics=metrics)
    databases = Databases(nothing, migrate=False, start_scheduler=start)
    fleet = ProcessFleet({}, database_url, log_format="json", output=output, changed=nothing)
    yield PoolReconciler(fleet, databases, metrics, poll=60.0)
    await databases.close()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The jobs that count for a pool, of each reconcile."""
    counts: list[int] = []

    def counted(pool: Pool, observed: ObservedPool, history: History, now: datetime) -> Plan:
        assert observed.demand is not None
        counts.append(observed.demand.runnable)
        return decide(pool, observed, history, now)

    monkeypatch.setattr(pool_reconciler, "decide", counted)
    return counts


async def test_each_job_of_a_queue_counts_for_one_of_its_pools_and_for_none_that_takes_no_more(
    reconciler: PoolReconciler, counts: list[int], bench: Bench
) -> None:
    async def reconcile(name: str, **spec: Any) -> None:
        await reconciler.reconcile(Ref("JoexPool", "prod", name), parse_pool(manifest(name, **BY_DEMAND, **spec)))

    async def counted(**second: Any) -> list[int]:
        counts.clear()
        await reconcile("second", **second)
        await reconcile("first")
        return counts

    for _ in range(100):
        await bench.submit()
    await reconcile("first")
    assert counts == [100]
    assert await counted() == [50, 50]
    await bench.take(await bench.executor("prod/second-0"), 40)
    assert await counted() == [10, 50]
    assert await counted(queues=["default", "mail"]) == [60, 60]
    assert await counted(suspend=True) == [0, 60]
    await counted()
    reconciler.refused("prod", "second")
    await reconcile("first")
    assert counts == [10, 50, 60]


async def test_no_job_counts_for_a_pool_whose_executors_can_not_be_created(
    reconciler: PoolReconciler, counts: list[int], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (parse_pool(manifest(name, **BY_DEMAND)) for name in ("first", "second"))

    async def refuse(self: ProcessFleet, pool: Pool, index: int) -> None:
        del self, index
        if pool.name == "second":
            raise FleetError("exceeded quota: count/deployments.apps")

    monkeypatch.setattr(ProcessFleet, "create", refuse)
    for _ in range(2):
        await bench.submit()
    await bench.take(await bench.executor("prod/first-0"), 1)  # and it runs for hours
    with pytest.raises(FleetError):
        await reconciler.reconcile(Ref("JoexPool", "prod", "second"), second)
    await reconciler.reconcile(Ref("JoexPool", "prod", "first"), first)
    assert counts[-1] == 1
