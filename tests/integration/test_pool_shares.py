"""Pools that serve the same queues share their jobs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from joex.store.database import create_pool
from joex_operator.api.objects import Pool
from joex_operator.control import database, pool_reconciler
from joex_operator.control.fleet import FleetError
from joex_operator.decide.history import History
from joex_operator.decide.plan import ObservedPool, Plan, decide
from joex_operator.local.fleet import ProcessFleet
from tests.integration.conftest import Bench
from tests.support.reconciles import Reconciles, reconciles


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Reconciles]:
    """Reconciles pools on the test's database."""
    async with reconciles(database_url, poolSize=1, scaling={"maxReplicas": 100}) as operator:
        yield operator


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
    operator: Reconciles, counts: list[int], bench: Bench
) -> None:
    async def counted(**second: Any) -> list[int]:
        counts.clear()
        await operator.reconcile("second", **second)
        await operator.reconcile("first")
        return counts

    for _ in range(100):
        await bench.submit()
    await operator.reconcile("first")
    assert counts == [100]
    assert await counted() == [50, 50]
    await bench.take(await bench.executor("prod/second-0"), 40)
    assert await counted() == [10, 50]
    assert await counted(queues=["default", "mail"]) == [60, 60]
    assert await counted(suspend=True) == [0, 60]
    await counted()
    operator.reconciler.refused("prod", "second")
    await operator.reconcile("first")
    assert counts == [10, 50, 60]


async def test_no_job_counts_for_a_pool_that_has_yet_to_log_in_to_the_database(
    operator: Reconciles, counts: list[int], bench: Bench, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names the database of another namespace, and has no login there, could have its pools not grow."""
    parts, logging_in = urlsplit(database_url), asyncio.Event()
    url = parts._replace(netloc=f"stranger@{parts.netloc.rpartition('@')[2]}").geturl()

    async def hang(at: str, **more: Any) -> Any:
        if at == url:
            logging_in.set()
            await asyncio.Event().wait()
        return await create_pool(at, **more)

    monkeypatch.setattr(database, "create_pool", hang)
    for _ in range(100):
        await bench.submit()
    second = asyncio.create_task(operator.reconcile("second", url=url, poolSize=1000))
    await logging_in.wait()
    await operator.reconcile("first")
    assert counts == [100]
    second.cancel()
    await asyncio.wait({second})


async def test_no_job_counts_for_a_pool_whose_executors_can_not_be_created(
    operator: Reconciles, counts: list[int], bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: ProcessFleet, pool: Pool, index: int) -> None:
        del self, index
        if pool.name == "second":
            raise FleetError("exceeded quota: count/deployments.apps")

    monkeypatch.setattr(ProcessFleet, "create", refuse)
    for _ in range(2):
        await bench.submit()
    await bench.take(await bench.executor("prod/first-0"), 1)  # and it runs for hours
    with pytest.raises(FleetError):
        await operator.reconcile("second")
    await operator.reconcile("first")
    assert counts[-1] == 1
