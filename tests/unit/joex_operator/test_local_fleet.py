"""The processes of all pools of a `joex up`."""

import asyncio

import pytest

from joex_operator.api.objects import parse_pool
from joex_operator.local import fleet
from joex_operator.local.fleet import ProcessFleet
from joex_operator.local.output import ConsoleOutput


def pool(name):
    spec = {"app": "shop.tasks:app", "database": {"secretName": "db"}}
    metadata = {"name": name, "namespace": "laptop"}
    return parse_pool({"apiVersion": "joex.dev/v1alpha1", "kind": "JoexPool", "metadata": metadata, "spec": spec})


async def test_its_end_waits_for_all_processes_whatever_one_of_them_raises(monkeypatch):
    left = []

    class Process:
        """Of the pool `bad` one whose end raises; any other takes some turns of the loop to leave."""

        has_ended = False

        def __init__(self, replica, *_):
            self.replica = replica

        def end(self, within):
            del within

        async def ended(self):
            if self.replica == "bad-0":
                raise RuntimeError("broken")
            for _ in range(100):
                await asyncio.sleep(0)
            left.append(self.replica)

    monkeypatch.setattr(fleet, "ReplicaProcess", Process)
    processes = ProcessFleet({}, "postgresql://db", log_format="json", output=ConsoleOutput(), changed=lambda *_: None)
    for name in ("good", "bad", "other"):
        processes.add_pool(name)
        await processes.create(pool(name), 0)
    with pytest.raises(RuntimeError, match="broken"):
        await processes.end()
    assert left == ["good-0", "other-0"]
