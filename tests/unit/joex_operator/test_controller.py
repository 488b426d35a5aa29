"""The controller: an object that can't be reconciled never stops another one."""

import asyncio
import gc
import weakref
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from joex.errors import JoexError
from joex.garbage import collection_paused
from joex_operator.api.names import API_VERSION
from joex_operator.api.objects import SpecError, reference
from joex_operator.control import periodic_reconciler
from joex_operator.control.controller import PERIODIC, POOL, Controller, Key
from joex_operator.control.fleet import FleetError, UrlUnknown
from joex_operator.decide.actions import DeleteReplica, ForgetReplica
from joex_operator.decide.history import History
from joex_operator.decide.plan import decide
from joex_operator.decide.replicas import Phase
from joex_operator.local.fleet import ProcessFleet
from tests.support.waiting import PATIENCE, eventually
from tests.unit.joex_operator.builders import NOW, manifest, pool, replicas, seen


class Broken(ProcessFleet):
    """A fleet whose pools can't be reconciled; notes which it was asked for."""

    def __init__(self) -> None:
        nothing: Any = None  # no executor is started, and no Event recorded
        super().__init__({}, "postgresql:///x", log_format="json", output=nothing, changed=lambda *_: None)
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.told = asyncio.Event()

    def template(self, pool):
        self.asked.put_nowait(pool.name)
        raise FleetError(f"{pool.name}: refused")

    async def record_events(self, *_):
        self.told.set()


@pytest.fixture
async def controller():
    controller = Controller(Broken(), worker="the operator")
    running = asyncio.create_task(controller.run())
    yield controller
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()


async def test_a_pool_that_has_failed_thousands_of_times_stops_no_other(controller):
    for number in range(1, 1200):
        controller.put(manifest("broken", poolSize=number))
        assert await asked(controller) == "broken"
    controller.put(manifest("other"))
    while await asked(controller) != "other":
        pass


async def test_a_pool_that_has_become_invalid_is_not_ready_in_the_metrics(controller):
    controller.put(manifest("broken", poolSize=0))
    async with asyncio.timeout(PATIENCE):
        await controller._fleet.told.wait()
    page, _ = controller.metrics.render()
    assert b'joex_pool_condition{namespace="prod",pool="broken",type="Ready"} 0.0' in page


class Weak(list[Any]):
    """A part of a spec that tells whether anything has it still."""


async def test_nothing_of_a_pool_that_is_refused_stays_in_memory():
    """Twelve of 1 MB would take more than the memory of the operator, as would one that changes all the time.

    The garbage collector comes by the number of objects, and not by their sizes.
    """
    controller = Controller(Broken(), worker="the operator")
    part = Weak(["x" * 300_000])
    there = weakref.ref(part)
    with collection_paused():
        controller.put(manifest("large", template={"spec": {"x": part}}))
        assert "256 kB" in str(controller._refused[Key(POOL, "prod", "large")])
        del part
        assert there() is None


async def test_a_pool_whose_status_has_changed_is_in_memory_once():
    controller = Controller(Broken(), worker="the operator")
    part = Weak(["x"])
    controller.put(manifest("documents", template={"spec": {"x": ["x"]}}))
    there = weakref.ref(part)
    controller.put(manifest("documents", template={"spec": {"x": part}}))
    del part
    gc.collect()
    assert there() is None


class Gone(Broken):
    """A fleet whose pools are deleted while they are reconciled."""

    controller: Controller

    def template(self, pool):
        self.controller.remove("JoexPool", pool.namespace, pool.name)
        raise SpecError("spec.template: wrong")


async def test_a_pool_that_is_deleted_while_it_is_reconciled_leaves_nothing_behind():
    """Else the pools of others that serve its queues would leave it a part of the jobs for ever."""
    fleet = Gone()
    fleet.controller = controller = Controller(fleet, worker="the operator")
    running = asyncio.create_task(controller.run())
    controller.put(manifest("broken"))
    async with asyncio.timeout(PATIENCE):
        await fleet.told.wait()
    await eventually(lambda: not controller._under_way, why="the reconcile has ended")
    page, _ = controller.metrics.render()
    assert b'pool="broken"' not in page
    running.cancel()
    await asyncio.wait({running})


class GoneWithoutSecret(Broken):
    """A fleet whose pools are deleted while their secrets, which are missing, are read."""

    controller: Controller

    async def database_url(self, pool):
        self.controller.remove("JoexPool", pool.namespace, pool.name)
        raise UrlUnknown("SecretMissing", "there is no secret", is_withdrawn=True)


async def test_a_pool_that_is_deleted_while_its_missing_secret_is_read_for_periodic_tasks_leaves_nothing_behind():
    fleet = GoneWithoutSecret()
    fleet.controller = controller = Controller(fleet, worker="the operator")
    controller.put(manifest("gone"))
    await controller._reconcile_periodic_tasks(Key(PERIODIC, "prod"))
    assert not controller._unknown


class WithoutSecret(Broken):
    """A fleet whose pools have a URL until there is a reason why they have none."""

    URL = "postgresql://nobody@127.0.0.1:1/none"
    reason: UrlUnknown | None = None

    async def database_url(self, *_):
        if self.reason is not None:
            raise self.reason
        return self.URL


@pytest.mark.parametrize(
    ("reason", "stays"),
    [
        (UrlUnknown("SecretNotAllowed", "it has no label", is_refusal=True, is_withdrawn=True), False),
        (UrlUnknown("SecretMissing", "it is gone", is_withdrawn=True), False),
        (UrlUnknown("SecretUnreadable", "the API server is away"), True),
        (UrlUnknown("SecretKeyMissing", "somebody is changing it"), True),
    ],
)
async def test_nobody_logs_in_any_more_by_the_url_of_a_secret_that_is_not_for_pools_any_more(reason, stays):
    fleet = WithoutSecret()
    controller = Controller(fleet, worker="the operator", poll=0.02)
    running = asyncio.create_task(controller.run())
    controller.put(manifest("one"))
    await asked(controller)
    controller.databases.get(fleet.URL)
    fleet.reason = reason
    controller.enqueue("prod", "one")
    await eventually(lambda: controller._unknown, why="the pool has no URL")
    if not stays:
        await eventually(lambda: not controller.databases.opened(), why="its database is closed")
    await controller._reconcile_periodic_tasks(Key(PERIODIC, "prod"))
    assert (fleet.URL in controller.databases.opened()) == stays
    fleet.reason = None
    controller.enqueue("prod", "one")
    await eventually(lambda: not controller._unknown, why="the pool has a URL again")
    assert list(controller._urls.values()) == [fleet.URL]
    running.cancel()
    await asyncio.wait({running})


class MadeAgain(WithoutSecret):
    """A fleet whose secrets are made again, and read for another reconcile, before one is told that they are gone."""

    controller: Controller

    async def database_url(self, pool):
        if self.reason is None:
            return self.URL
        reason, self.reason = self.reason, None
        await self.controller._note_url(Key("JoexPool", pool.namespace, pool.name), pool)
        raise reason


async def test_a_reconcile_that_learns_late_that_a_secret_was_gone_drops_no_newer_url():
    fleet = MadeAgain()
    fleet.controller = controller = Controller(fleet, worker="the operator")
    controller.put(manifest("one"))
    fleet.reason = UrlUnknown("SecretMissing", "it is gone", is_withdrawn=True)
    [(key, one)] = controller._pools.items()
    await controller._note_url(key, one)
    assert list(controller._urls.values()) == [fleet.URL]


class Late(WithoutSecret):
    """A fleet whose secrets are read late, and whose pools can be reconciled."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def database_url(self, pool):
        self.asked.put_nowait(pool.name)
        await self.may_answer.wait()
        return self.URL

    def template(self, _):
        return "1"


async def test_the_secret_of_a_pool_that_goes_while_those_of_others_are_read_is_not_read():
    """The fleet has forgotten the pool, and would keep what it names."""
    fleet = Late()
    controller = Controller(fleet, worker="the operator")
    controller.put(manifest("one"))
    controller.put(manifest("gone"))
    reconcile = asyncio.create_task(controller._reconcile_periodic_tasks(Key(PERIODIC, "prod")))
    assert await asked(controller) == "one"
    controller.remove(POOL, "prod", "gone")
    fleet.may_answer.set()
    await reconcile
    assert fleet.asked.empty()
    await controller.databases.close()


async def test_a_pool_that_is_deleted_while_its_secret_is_read_leaves_no_database_open():
    fleet = Late()
    controller = Controller(fleet, worker="the operator")
    controller.put(manifest("one"))
    [key] = controller._pools
    reconcile = asyncio.create_task(controller._reconcile(key))
    await asked(controller)
    controller.remove(*key)
    await controller._reconcile_periodic_tasks(Key(PERIODIC, "prod"))  # which closes what no pool uses
    fleet.may_answer.set()
    await reconcile
    left = controller.databases.opened()
    await controller.databases.close()
    assert left == {}


class Silent(Broken):
    """A fleet on which nothing of the namespace ``prod`` ever gets an answer."""

    async def database_url(self, pool):
        if pool.namespace == "prod":
            await asyncio.Event().wait()
        return await super().database_url(pool)


async def test_a_namespace_with_many_pools_that_get_no_answer_holds_up_no_other():
    controller = Controller(Silent(), worker="the operator")
    running = asyncio.create_task(controller.run())
    for number in range(1000):
        controller.put(manifest(f"silent-{number}"))
    controller.put(manifest("served", metadata={"namespace": "other"}))
    assert await asked(controller) == "served"
    running.cancel()
    await asyncio.wait({running})


async def test_a_reconcile_that_does_not_end_fails_and_asks_for_no_restart(monkeypatch, caplog):
    """An operator that restarts for it stops the pools of all."""
    monkeypatch.setattr("joex_operator.control.controller._WITHIN", 0.05)
    controller = Controller(Silent(), worker="the operator")
    running = asyncio.create_task(controller.run())
    controller.put(manifest("silent"))
    await eventually(lambda: "silent: not done within" in caplog.text, why="it has failed")
    await eventually(lambda: not controller._under_way, why="none is under way")
    running.cancel()
    await asyncio.wait({running})


async def test_pages_of_periodic_tasks_without_an_end_are_an_error(monkeypatch):
    """Whoever owns a database may have its view repeat a page."""
    page = [SimpleNamespace(owner="a", key="k")] * 1000

    async def list_tasks(*_, **__):
        await asyncio.sleep(0)
        return page

    monkeypatch.setattr("joex.store.periodic.list_tasks", list_tasks)
    connection: Any = None
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(JoexError, match="more than 100000 periodic tasks"):
            await periodic_reconciler._rows(connection, {"a"})


async def test_a_row_that_is_no_answer_to_the_question_for_the_rows_of_these_owners_is_none_of_theirs(monkeypatch):
    """Whoever owns a database may have its view say anything: the namespace's tasks in other databases go on."""
    ours, another = (SimpleNamespace(owner=owner, key="k") for owner in ("a", "another"))

    async def list_tasks(*_, **__):
        return [another, ours]

    monkeypatch.setattr("joex.store.periodic.list_tasks", list_tasks)
    connection: Any = None
    assert await periodic_reconciler._rows(connection, {"a"}) == {"a": [ours]}


@pytest.mark.parametrize("step", ["desired_row", "condition"])
async def test_ten_thousand_periodic_tasks_of_a_namespace_leave_time_for_all_else(monkeypatch, step):
    """To read one takes a millisecond: an operator that read them all at once would lose its lease."""
    done, most = 0, 0
    original = getattr(periodic_reconciler, step)

    def counted(*given):
        nonlocal done
        done += 1
        return original(*given)

    monkeypatch.setattr(periodic_reconciler, step, counted)
    controller = Controller(Broken(), worker="the operator")
    for number in range(100):
        metadata = {"name": f"task-{number}", "namespace": "prod"}
        spec = {"pool": "none", "task": "a", "timer": "*-*-* 03:00"}
        controller.put({"apiVersion": API_VERSION, "kind": "PeriodicTask", "metadata": metadata, "spec": spec})
    running = asyncio.create_task(controller.run())
    async with asyncio.timeout(PATIENCE):
        while done < 100:
            before = done
            await asyncio.sleep(0)
            most = max(most, done - before)
    assert most <= 2
    running.cancel()
    await asyncio.wait({running})


class Counting(Broken):
    """A fleet whose executors have a home with a dot; counts how often it is asked for one."""

    def __init__(self) -> None:
        super().__init__()
        self.homes = 0

    def home(self, namespace):
        self.homes += 1
        return f"{namespace}.3f2a9c1e"


async def test_news_of_an_executor_concerns_its_pool_and_costs_the_same_with_many_pools(monkeypatch):
    monkeypatch.setattr("joex_operator.control.controller._FIRST_RETRY", timedelta(hours=1))
    monkeypatch.setattr("joex_operator.control.controller._LAST_RETRY", timedelta(hours=1))
    fleet = Counting()
    controller = Controller(fleet, worker="the operator")
    running = asyncio.create_task(controller.run())
    for number in range(100):
        controller.put(manifest(f"pool-{number}"))
    for _ in range(100):
        await asked(controller)
    fleet.homes = 0
    for url, executor in (
        ("postgresql:///x", "prod.77777777/pool-8-0"), ("postgresql:///y", "prod.3f2a9c1e/pool-8-0"),
        ("postgresql:///x", "prod.3f2a9c1e/pool-8"), ("postgresql:///x", "pool-8-0"),
        ("postgresql:///x", "prod.3f2a9c1e/pool-7-0"),
    ):  # fmt: skip
        controller._on_notification(url, "executor", executor)
    assert fleet.homes <= 4
    assert await asked(controller) == "pool-7"
    running.cancel()
    await asyncio.wait({running})


class Together(Broken):
    """A fleet that answers when ``number`` requests wait for an answer."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._barrier = asyncio.Barrier(number)

    async def delete(self, *_):
        await self._barrier.wait()

    async def is_clear(self, *_):
        await self._barrier.wait()
        return False

    async def set_status(self, *_):
        await self._barrier.wait()


async def test_replicas_leave_ten_at_a_time_so_that_an_api_server_that_is_slow_holds_up_no_growth_for_long():
    reconciler = Controller(Together(10), worker="the operator")._pool_reconciler
    found = seen(*replicas(6, Phase.RETIRED, pods=()), *replicas(4, Phase.GOING, first=6, pods=()))
    plan = decide(pool(), found, History(), NOW)
    assert [type(action) for action in plan.actions] == [DeleteReplica] * 6 + [ForgetReplica] * 4
    database: Any = "not asked, because none is clear"
    async with asyncio.timeout(PATIENCE):
        await reconciler._act(reference(manifest()), pool(), found, plan, database)


async def test_the_statuses_of_ten_periodic_tasks_are_stored_at_a_time_because_an_api_server_may_be_slow():
    fleet = Together(10)
    controller = Controller(fleet, worker="the operator")
    for number in range(20):
        metadata = {"name": f"task-{number}", "namespace": "prod"}
        spec = {"pool": "none", "task": "a", "timer": "*-*-* 03:00"}
        controller.put({"apiVersion": API_VERSION, "kind": "PeriodicTask", "metadata": metadata, "spec": spec})
    async with asyncio.timeout(PATIENCE):
        await controller._reconcile_periodic_tasks(Key(PERIODIC, "prod"))


async def asked(controller):
    """The name of the pool that is reconciled next."""
    async with asyncio.timeout(PATIENCE):
        return await controller._fleet.asked.get()
