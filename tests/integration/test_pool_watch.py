"""When a pool is reconciled next, as its growth watch asks."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from joex_operator.api.objects import Ref, parse_pool
from joex_operator.control.database import Databases
from joex_operator.control.periodic_scheduler import SchedulerService
from joex_operator.control.pool_reconciler import PoolReconciler
from joex_operator.local.fleet import ProcessFleet
from joex_operator.metrics import OperatorMetrics
from tests.unit.joex_operator.builders import manifest

POLL = 60.0
POOL = parse_pool(manifest())


class Operator:
    """Reconciles one pool."""

    def __init__(self, url: str) -> None:
        metrics, nothing = OperatorMetrics(), lambda *_: None
        output: Any = type("Output", (), {"event": nothing})()
        start = partial(SchedulerService, worker="me", poll=POLL, metrics=metrics)
        self.databases = Databases(nothing, migrate=False, start_scheduler=start)
        fleet = ProcessFleet({}, url, log_format="json", output=output, changed=nothing)
        self.reconciler = PoolReconciler(fleet, self.databases, metrics, poll=POLL)

    async def reconcile(self, **spec: Any) -> float:
        return await self.reconciler.reconcile(Ref("JoexPool", POOL.namespace, POOL.name), parse_pool(manifest(**spec)))


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Operator]:
    operator = Operator(database_url)
    yield operator
    await operator.databases.close()


async def test_a_pool_that_can_not_grow_is_reconciled_once_for_a_notification(operator: Operator) -> None:
    await operator.reconcile(scaling={"maxReplicas": 100})
    operator.reconciler.notified(POOL)
    assert await operator.reconcile(suspend=True) == POLL


async def test_a_pool_whose_database_went_away_is_tried_again_after_the_poll(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operator.reconcile(scaling={"maxReplicas": 100})
    operator.reconciler.notified(POOL)
    monkeypatch.setattr(operator.databases, "get", Mock(side_effect=ConnectionRefusedError))
    assert await operator.reconcile(scaling={"maxReplicas": 100}) == POLL
