"""When a pool is reconciled next, as its growth watch asks."""

from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from joex_operator.api.objects import parse_pool
from joex_operator.control.database import Database
from tests.support.reconciles import POLL, Reconciles, reconciles
from tests.unit.joex_operator.builders import manifest


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Reconciles]:
    """An operator whose pool has just been notified of a job."""
    async with reconciles(database_url) as operator:
        await operator.reconcile()
        operator.reconciler.notified(parse_pool(manifest()))
        yield operator


async def test_a_pool_that_can_not_grow_is_reconciled_once_for_a_notification(operator: Reconciles) -> None:
    assert await operator.reconcile(suspend=True) == POLL


async def test_a_pool_whose_database_went_away_is_tried_again_after_the_poll(
    operator: Reconciles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Database, "connection", Mock(side_effect=ConnectionRefusedError))
    assert await operator.reconcile() == POLL
