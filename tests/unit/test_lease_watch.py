"""The lease counts the time in which its machine was suspended; the timers of an event loop don't."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from joex.core.lease import Lease
from joex.runtime.lease import LeaseKeeper
from joex.runtime.lease_callbacks import LeaseCallbacks

LEASE = Lease(timedelta(seconds=30))
SUSPENDED = 3600.0


class Over(Exception):
    """The test has seen enough."""


@pytest.fixture
def time(monkeypatch):
    """The clock of the lease; the machine is suspended at 5 s, in a sleep."""
    now = [0.0]
    sleep = asyncio.sleep

    async def elapse(seconds):
        await sleep(0)
        is_suspended = now[0] <= 5 < now[0] + seconds
        now[0] += seconds + SUSPENDED * is_suspended

    monkeypatch.setattr("joex.runtime.lease.asyncio.sleep", elapse)
    monkeypatch.setattr("joex.runtime.lease.clock", lambda: now[0])
    return now


def keeper() -> LeaseKeeper:
    nothing: Any = None
    return LeaseKeeper(
        "",
        executor=1,
        queues=[],
        lease=LEASE,
        outage_patience=0,
        pooled=True,
        held=list,
        executing=lambda: 0,
        executing_exclusively=lambda: 0,
        since=0.0,
        watchdog=None,
        callbacks=LeaseCallbacks(*[nothing] * 14),
    )


async def test_exclusive_runs_are_interrupted_soon_after_a_suspended_machine_goes_on(time):
    def interrupt():
        raise Over

    with pytest.raises(Over):
        await keeper()._watch(0, interrupt, lambda: 0)
    assert time[0] <= 5 + SUSPENDED + LEASE.show_life_every


async def test_a_drain_without_the_database_ends_soon_after_a_suspended_machine_goes_on(time):
    await keeper().until_over()
    assert time[0] <= 5 + SUSPENDED + LEASE.show_life_every
