"""An operator counts how long something has lasted by the clock that says since when, whatever its own clock says."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import asyncpg
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from joex.store import pools
from joex_operator.api.objects import Pool, Ref, parse_pool
from joex_operator.cluster import kubernetes_api
from joex_operator.cluster.fleet import ClusterFleet
from joex_operator.cluster.kubernetes_api import ApiError, KubernetesApi
from joex_operator.control.periodic_reconciler import PeriodicReconciler
from joex_operator.decide.plan import DatabaseProblem
from joex_operator.decide.replicas import Replica
from joex_operator.local.fleet import ProcessFleet
from joex_operator.metrics import OperatorMetrics
from tests.integration.conftest import Bench
from tests.support.reconciles import Reconciles, reconciles
from tests.unit.joex_operator.builders import manifest


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Reconciles]:
    async with reconciles(database_url, replicas=0, drain={"timeout": "5m", "onTimeout": "Terminate"}) as operator:
        yield operator


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The replicas that the operator has deleted, of which there is one."""
    deleted: list[str] = []

    async def delete(_fleet: ProcessFleet, _pool: Pool, replica: str, _uid: str) -> None:
        deleted.append(replica)

    def replicas(fleet: ProcessFleet, pool: Pool) -> list[Replica]:
        return [Replica("documents-0", 0, uid="uid", template=fleet.template(pool), ready_since=datetime.now(UTC))]

    monkeypatch.setattr(ProcessFleet, "replicas", replicas)
    monkeypatch.setattr(ProcessFleet, "delete", delete)
    return deleted


async def test_a_drain_has_its_time_though_the_clock_of_the_operator_is_ahead(
    operator: Reconciles,
    bench: Bench,
    connection: asyncpg.Connection,
    deleted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProcessFleet, "now", lambda _: datetime.now(UTC) + timedelta(minutes=10))
    await bench.submit()
    await bench.take(await bench.executor("prod/documents-0"))
    assert await pools.retire(connection, "prod/documents-0", only_if_idle=False) == "draining"
    await operator.reconcile()
    assert deleted == []
    await connection.execute("UPDATE joex_private.retired SET retired_at = clock_timestamp() - interval '6 minutes'")
    await operator.reconcile()
    assert deleted == ["documents-0"]


async def test_a_deletion_waits_its_minute_for_the_database_though_the_clock_of_the_operator_is_ahead(
    operator: Reconciles, deleted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted_at = datetime.now(UTC) - timedelta(minutes=10)
    pool = parse_pool(manifest("documents", {"deletionTimestamp": deleted_at.isoformat()}))
    for seconds, gone in ((50, []), (60, ["documents-0"])):
        monkeypatch.setattr(ProcessFleet, "now", lambda _, age=timedelta(seconds=seconds): deleted_at + age)
        problem = DatabaseProblem("Unreachable", "no answer")
        await operator.reconciler.reconcile(Ref("JoexPool", pool.namespace, pool.name), pool, problem)
        assert deleted == gone


async def test_a_replica_is_unready_after_half_a_minute_though_the_clock_of_the_operator_is_ahead(
    operator: Reconciles, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = datetime.now(UTC) - timedelta(minutes=10)
    pool = parse_pool(manifest("documents", rollout={"minReadySeconds": 60}))
    found = [
        Replica("documents-0", 0, unready_since=since, unscheduled_since=since),
        Replica("documents-1", 1, ready_since=since),
    ]
    monkeypatch.setattr(ProcessFleet, "replicas", lambda *_: found)
    judged = []
    for seconds in (20, 40, 70, 400):
        monkeypatch.setattr(ProcessFleet, "now", lambda _, age=timedelta(seconds=seconds): since + age)
        [first, second] = (await operator.reconciler._observer.observe(pool, "", database_url))[0].replicas
        judged.append((first.unready, second.fresh, first.unscheduled))
    assert judged == [(False, True, False), (True, True, False), (True, False, False), (True, False, True)]


async def test_a_periodic_task_has_its_status_when_it_is_due_though_the_clock_of_the_operator_is_another(
    operator: Reconciles, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = datetime(2100, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(ProcessFleet, "now", lambda _: due - timedelta(seconds=40))
    task = manifest("once") | {"kind": "PeriodicTask"}
    task["spec"] = {"pool": "documents", "task": "a", "timer": "2100-01-01"}
    reconciler = PeriodicReconciler(operator.fleet, operator.databases, poll=1000.0)
    of = {"documents": parse_pool(manifest("documents"))}
    after = await reconciler.reconcile({"documents": "us"}, [task], of, {"documents": database_url}, set())
    assert after is not None
    assert 40 <= after < 41
    [ready] = operator.fleet.status(Ref("PeriodicTask", "prod", "once"))["conditions"]
    assert (ready["reason"], ready["lastTransitionTime"]) == ("Stored", "2099-12-31T23:59:20Z")


@pytest.mark.parametrize(
    ("status", "date"),
    [
        (502, "{:%a, %d %b %Y %H:%M:%S} GMT"),
        (200, "{:%a, %d %b %Y %H:%M:%S} +0200"),
        (200, "{:%a, %d %b %Y %H:%M:%S} +99999999999999"),
        (200, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (200, ""),
    ],
)
async def test_a_date_that_no_api_server_tells_does_not_set_the_clock(
    monkeypatch: pytest.MonkeyPatch, status: int, date: str
) -> None:
    """A proxy answers with its own, or anything."""
    monkeypatch.setattr(kubernetes_api, "time", SimpleNamespace(monotonic=lambda: 7.0))
    told = date.format(datetime.now(UTC) - timedelta(minutes=10))

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, status=status, headers={"Date": told})

    app = web.Application()
    app.router.add_get("/version", answer)
    async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")).rstrip("/"))) as client:
        api = KubernetesApi(client, OperatorMetrics())
        before = api.now()
        with suppress(ApiError):
            await api.get("/version")
        assert api.now() == before


async def test_the_operator_goes_by_the_clock_of_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is what gives deletions and conditions their times."""
    monkeypatch.setattr(kubernetes_api, "time", SimpleNamespace(monotonic=lambda: 7.0))
    there = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, headers={"Date": format_datetime(there, usegmt=True)})

    app = web.Application()
    app.router.add_get("/version", answer)
    async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")).rstrip("/"))) as client:
        api = KubernetesApi(client, OperatorMetrics())
        fleet = ClusterFleet(api, image="joex", identity="operator", uid_of=str)
        await api.get("/version")
        assert abs(fleet.now() - datetime.now(UTC)) < timedelta(minutes=5), "a first answer is not believed alone"
        await api.get("/version")
        assert fleet.now() == there
        told, there = there, there - timedelta(seconds=1)
        for _ in range(2):
            await api.get("/version")
            assert fleet.now() == told, "an answer that was on its way for a second does not set the clock back"


async def test_one_answer_with_another_time_does_not_set_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that of a proxy: by a clock that was set back for a moment, all windows since then have passed."""
    monkeypatch.setattr(kubernetes_api, "time", SimpleNamespace(monotonic=lambda: 7.0))
    true = datetime.now(UTC).replace(microsecond=0)
    dates = [true]

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, headers={"Date": format_datetime(dates[-1], usegmt=True)})

    app = web.Application()
    app.router.add_get("/version", answer)
    async with TestServer(app) as server, ApiClient(Configuration(host=str(server.make_url("")).rstrip("/"))) as client:
        api = KubernetesApi(client, OperatorMetrics())
        told = []
        for minutes in (0, 0, -10, 0, -10, -20, -10, -10, 0, 0):
            dates.append(true + timedelta(minutes=minutes))
            await api.get("/version")
            told.append(round((api.now() - true) / timedelta(minutes=1)))
    assert told == [0, 0, 0, 0, 0, 0, 0, -10, -10, 0]
