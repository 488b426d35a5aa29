"""An operator deletes an executor that has drained for too long by the clock of the database, which says since when."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import asyncpg
import pytest

from joex.store import pools
from joex_operator.api.objects import Pool
from joex_operator.control import pool_observer, pool_reconciler
from joex_operator.decide.replicas import Replica
from joex_operator.local.fleet import ProcessFleet
from tests.integration.conftest import Bench
from tests.support.reconciles import Reconciles, reconciles


class TenMinutesAhead(datetime):
    """A clock that goes wrong."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Any:
        return datetime.now(tz) + timedelta(minutes=10)


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Reconciles]:
    async with reconciles(database_url, replicas=0, drain={"timeout": "5m", "onTimeout": "Terminate"}) as operator:
        yield operator


async def test_a_drain_has_its_time_though_the_clock_of_the_operator_is_ahead(
    operator: Reconciles, bench: Bench, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []

    async def delete(_fleet: ProcessFleet, _pool: Pool, replica: str, _uid: str) -> None:
        deleted.append(replica)

    def replicas(fleet: ProcessFleet, pool: Pool) -> list[Replica]:
        return [Replica("documents-0", 0, uid="uid", template=fleet.template(pool), ready_since=datetime.now(UTC))]

    monkeypatch.setattr(ProcessFleet, "replicas", replicas)
    monkeypatch.setattr(ProcessFleet, "delete", delete)
    for module in (pool_observer, pool_reconciler):
        monkeypatch.setattr(module, "datetime", TenMinutesAhead)
    await bench.submit()
    await bench.take(await bench.executor("prod/documents-0"))
    assert await pools.retire(connection, "prod/documents-0", only_if_idle=False) == "draining"
    await operator.reconcile()
    assert deleted == []
    await connection.execute("UPDATE joex_private.retired SET retired_at = clock_timestamp() - interval '6 minutes'")
    await operator.reconcile()
    assert deleted == ["documents-0"]
