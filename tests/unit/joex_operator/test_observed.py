"""Replicas as observed from Deployments and pods, and the cache of these."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from joex_operator.cluster import cache as cache_module
from joex_operator.cluster import object_parts
from joex_operator.cluster.cache import Cache
from joex_operator.control.fleet import FleetError
from joex_operator.decide import observed
from joex_operator.decide.replicas import ObservedExecutor, Phase, Replica

LABELS = {"joex.dev/pool": "p", "joex.dev/replica": "p-0"}


def seen(body: dict[str, Any]) -> dict[str, Any]:
    """The object as the operator has it of a list."""
    found: dict[str, Any]
    [found] = object_parts.read_list(json.dumps({"items": [body]}).encode())["items"]
    return found


def deployment(name: str = "p-0", *, version: int = 1, owner: str = "pool-uid", **more: Any) -> dict[str, Any]:
    metadata = {
        "namespace": "prod",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "labels": {**LABELS, "joex.dev/replica": name},
        "annotations": {"joex.dev/template-hash": "t1"},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    return seen({"metadata": {**metadata, **more.pop("metadata", {})}, "spec": {"replicas": 1}, **more})


def pod(
    uid: str = "pod-1", *, replica: str = "p-0", version: int = 1, metadata: Any = None, **status: Any
) -> dict[str, Any]:
    return seen(
        {
            "metadata": {
                "namespace": "prod",
                "name": f"{replica}-{uid}",
                "uid": uid,
                "resourceVersion": str(version),
                "labels": {**LABELS, "joex.dev/replica": replica},
                **(metadata or {}),
            },
            "spec": {"nodeName": "node-1"},
            "status": {"phase": "Running", **status},
        }
    )


def container(*, ready: bool = True, last: Any = None, **state: Any) -> dict[str, Any]:
    return {"ready": ready, "state": state or {"running": {}}, "lastState": last or {}}


DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
ENDED: dict[str, Any] = {"terminated": {"exitCode": 0}}


def replica_of(*bodies: dict[str, Any]) -> Replica:
    cache = Cache()
    for body in bodies:
        (cache.deployments if "spec" in body and "replicas" in body["spec"] else cache.pods).put(body)
    (replica,) = cache.replicas("prod", "p", "pool-uid")
    return replica


def test_a_replica_is_its_deployment_and_its_pods() -> None:
    assert replica_of(deployment(), pod()) == Replica("p-0", 0, uid="uid-p-0", template="t1", pods=("pod-1",))


def test_a_deployment_that_is_being_deleted_counts_as_a_pod_until_it_is_gone() -> None:
    replica = replica_of(deployment(metadata=DELETED))
    assert (replica.uid, replica.pods) == (None, ("uid-p-0",))


def test_so_does_that_of_an_earlier_pool_of_this_name() -> None:
    assert replica_of(deployment(owner="earlier")).uid is None


def test_one_that_an_earlier_pool_has_left_without_an_owner_serves_on_until_it_is_replaced() -> None:
    body = deployment()
    del body["metadata"]["ownerReferences"]
    replica = replica_of(body)
    assert (replica.uid, replica.template) == ("uid-p-0", "")


def test_a_deployment_of_another_name_is_no_replica() -> None:
    cache = Cache()
    cache.deployments.put(deployment("p-x"))
    assert cache.replicas("prod", "p", "pool-uid") == []


@pytest.mark.parametrize("deleted", [{}, DELETED])
def test_a_deployment_says_for_which_database_it_was_made_until_it_is_gone(deleted: dict[str, str]) -> None:
    body = deployment(metadata={"annotations": {"joex.dev/database": "db/shop"}, **deleted})
    assert replica_of(body).database == "db/shop"


@pytest.mark.parametrize(
    ("manager", "fields", "template"),
    [
        ("kubectl-edit", {"f:spec": {"f:template": {"f:spec": {}}}}, ""),
        ("joex-operator", {"f:spec": {"f:template": {"f:spec": {}}}}, "t1"),
        ("kube-controller-manager", {"f:metadata": {}, "f:status": {}}, "t1"),
        ("kubectl-scale", {"f:spec": {"f:replicas": {}}}, "t1"),
    ],
)
def test_a_deployment_whose_template_somebody_else_has_changed_is_outdated(
    manager: str, fields: dict[str, Any], template: str
) -> None:
    changed = deployment(metadata={"managedFields": [{"manager": manager, "fieldsV1": fields}]})
    assert replica_of(changed).template == template


def test_a_deletion_that_is_told_late_takes_no_successor_with_it() -> None:
    cache = Cache()
    first, second = deployment(), deployment(version=3, metadata={"uid": "second"})
    cache.deployments.put(first)
    cache.deployments.put(second)
    cache.deployments.drop(first)
    assert [one.uid for one in cache.replicas("prod", "p", "pool-uid")] == ["second"]
    cache.deployments.put(first)
    cache.deployments.drop(second)
    assert cache.replicas("prod", "p", "pool-uid") == []


def test_an_object_that_gets_its_label_back_is_there_again() -> None:
    """The API server tells the loss of the label as a deletion."""
    cache = Cache()
    cache.deployments.put(deployment())
    cache.deployments.drop(deployment(version=2))
    assert cache.replicas("prod", "p", "pool-uid") == []
    cache.deployments.put(deployment(version=3))
    assert [one.uid for one in cache.replicas("prod", "p", "pool-uid")] == ["uid-p-0"]


REFUSED = {"terminated": {"reason": "Error", "exitCode": 2, "message": "joex: use a newer joex"}}


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"restartCount": 2, "started": False}, "Error: exit code 2: joex: use a newer joex"),
        ({"restartCount": 2, "started": True}, None),
        ({"restartCount": 1, "started": False}, None),
    ],
)
def test_a_container_that_fails_again_and_again_keeps_its_last_words_while_it_starts_once_more(
    more: dict[str, Any], problem: str | None
) -> None:
    """Its pool would tell in turn that it fails and that it starts."""
    executor = {"name": "executor", **container(ready=False, last=REFUSED), **more}
    assert replica_of(deployment(), pod(containerStatuses=[executor])).problem == problem


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_is_gone_though_its_object_stays(phase: str) -> None:
    replica = replica_of(deployment(), pod(phase=phase))
    assert (replica.pods, replica.gone) == ((), ("pod-1",))


class TestGonePods:
    def gone(self, body: dict[str, Any]) -> tuple[str, ...]:
        cache = Cache()
        cache.deployments.put(deployment())
        cache.pods.put(body)
        cache.pod_deleted(body)
        (replica,) = cache.replicas("prod", "p", "pool-uid")
        assert replica.pods == ()
        return replica.gone

    def test_one_whose_containers_had_ended_is_certainly_gone(self) -> None:
        assert self.gone(pod(metadata=DELETED, containerStatuses=[container(**ENDED)])) == ("pod-1",)

    def test_one_that_was_removed_by_force_may_still_run(self) -> None:
        assert self.gone(pod(metadata=DELETED, containerStatuses=[container()])) == ()
        assert self.gone(pod(containerStatuses=[container()])) == ()

    @pytest.mark.parametrize("state", [{"running": {}}, {"waiting": {"reason": "ContainerCreating"}}, None])
    def test_one_that_the_cluster_has_given_up_with_its_node_may_still_run(self, state: dict[str, Any] | None) -> None:
        containers = [] if state is None else [container(**state)]
        given_up = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
        failed = pod(phase="Failed", containerStatuses=containers, conditions=[given_up])

        assert replica_of(deployment(), failed).pods == ("pod-1",)
        assert self.gone(failed) == ()

    def test_one_with_a_container_that_runs_may_still_run_whatever_its_phase(self) -> None:
        ended, runs = container(**ENDED), container()

        assert self.gone(pod(phase="Failed", containerStatuses=[runs])) == ()
        assert self.gone(pod(phase="Failed", containerStatuses=[ended], initContainerStatuses=[runs])) == ()

    @pytest.mark.parametrize(
        "containers", [[container(**ENDED)], [container(waiting={"reason": "PodInitializing"})], []]
    )
    def test_one_that_its_node_has_evicted_is_certainly_gone(self, containers: list[dict[str, Any]]) -> None:
        evicted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}

        assert self.gone(pod(phase="Failed", containerStatuses=containers, conditions=[evicted])) == ("pod-1",)

    def test_those_of_pools_that_are_gone_too_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr(cache_module, "time", SimpleNamespace(monotonic=lambda: now))
        cache = Cache()
        for number in range(10):
            body = pod(metadata={**DELETED, "uid": f"uid-{number}"}, containerStatuses=[container(**ENDED)])
            body["metadata"]["labels"] = {**body["metadata"]["labels"], "joex.dev/pool": f"pool-{number}"}
            cache.pod_deleted(body)
            now += 400.0
        assert [pool for _, pool in cache._gone] == ["pool-8", "pool-9"]

    def test_a_pod_that_goes_costs_the_same_however_many_went_before_and_a_thousand_of_a_pool_are_kept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The author of pods that come and go took all of the operator's time: it copied those of ten minutes."""

        class Moment(float):
            compared = 0

            def __lt__(self, other: float) -> bool:
                Moment.compared += 1
                return float(self) < other

            def __gt__(self, other: float) -> bool:
                Moment.compared += 1
                return float(self) > other

        monkeypatch.setattr(cache_module, "time", SimpleNamespace(monotonic=lambda: Moment(1000.0)))
        cache, costs = Cache(), []
        cache.deployments.put(deployment())
        for number in range(1001):
            Moment.compared = 0
            cache.pod_deleted(pod(metadata={**DELETED, "uid": f"uid-{number}"}, containerStatuses=[container(**ENDED)]))
            costs.append(Moment.compared)
        assert set(costs) == {costs[0]}
        (replica,) = cache.replicas("prod", "p", "pool-uid")
        assert set(replica.gone) == {f"uid-{number}" for number in range(1, 1001)}

    def test_one_that_never_had_a_node_never_ran(self) -> None:
        body = pod(metadata=DELETED, phase="Pending")
        del body["spec"]["nodeName"]
        assert self.gone(body) == ("pod-1",)


class TestLostPods:
    NOT_READY = ({"type": "Ready", "status": "False"},)

    def test_a_pod_that_is_not_ready_though_its_node_said_so_is_lost(self) -> None:
        lost = pod(conditions=self.NOT_READY, containerStatuses=[container()])
        assert replica_of(deployment(), lost).lost
        assert replica_of(deployment(metadata=DELETED), lost).lost, "until its Deployment is gone"

    def test_a_pod_that_is_not_ready_by_its_own_word_is_not(self) -> None:
        assert not replica_of(
            deployment(), pod(conditions=self.NOT_READY, containerStatuses=[container(ready=False)])
        ).lost

    def test_one_with_a_successor_elsewhere_is_not_what_the_replica_is_about(self) -> None:
        lost = pod("old", metadata=DELETED, conditions=self.NOT_READY, containerStatuses=[container()])
        assert not replica_of(deployment(), lost, pod("new")).lost


class TestUnreadyPods:
    BEGAN, CHANGED = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"

    def since(self, changed: str = CHANGED, **more: Any) -> datetime | None:
        executor = {"name": "executor", "started": True, **container(ready=False, running={"startedAt": self.BEGAN})}
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": changed}
        return replica_of(
            deployment(), pod(conditions=(condition,), containerStatuses=[{**executor, **more}])
        ).unready_since

    def test_a_started_executor_whose_probe_fails_is_unready_since_then_or_its_start(self) -> None:
        assert self.since() == datetime.fromisoformat(self.CHANGED)
        assert self.since("2025-12-31T23:59:00Z") == datetime.fromisoformat(self.BEGAN)

    def test_one_that_is_ready_or_starts_or_waits_is_not(self) -> None:
        assert self.since(ready=True) is None
        assert self.since(started=False) is None
        assert self.since(state={"waiting": {}}) is None


@pytest.mark.parametrize(
    ("status", "seconds", "least", "fresh"),
    [
        ("True", 59, 60, True),
        ("True", 60, 60, False),
        ("False", 3600, 60, True),
        ("True", 0, 0, False),
        ("False", 0, 0, False),
    ],
)
def test_an_executor_is_fresh_until_it_has_been_ready_for_as_long_as_its_pool_says(
    status: str, seconds: int, least: int, *, fresh: bool
) -> None:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    now = datetime.fromisoformat("2026-01-01T00:00:00+00:00") + timedelta(seconds=seconds)
    found = replica_of(deployment(), pod(conditions=(ready,)))
    assert observed.judged(found, (), now, timedelta(seconds=least)).fresh is fresh


class TestUnscheduledPods:
    SINCE = "2026-01-01T00:00:00Z"

    def judged(self, seconds: int, status: str = "False") -> Replica:
        condition = {"type": "PodScheduled", "status": status, "lastTransitionTime": self.SINCE}
        found = replica_of(deployment(), pod(phase="Pending", conditions=(condition,)))
        at = datetime.fromisoformat(self.SINCE) + timedelta(seconds=seconds)
        return replace(observed.judged(found, (), at, timedelta(0)), executor=ObservedExecutor())

    def test_one_that_no_node_has_had_room_for_in_five_minutes_is_no_capacity(self) -> None:
        assert self.judged(299).phase is Phase.PENDING
        assert self.judged(300).phase is Phase.UNSCHEDULED

    def test_one_that_has_a_node_is_starting_however_long_that_takes(self) -> None:
        assert self.judged(3600, "True").phase is Phase.PENDING


@pytest.mark.parametrize(
    ("name", "more", "phase"),
    [
        ("executor", {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, Phase.CRASHING),
        ("executor", {"state": {"waiting": {"reason": "ContainerCreating"}}}, Phase.PENDING),
        ("executor", {"restartCount": 1, "ready": False}, Phase.PENDING),
        ("executor", {"restartCount": 2, "ready": False}, Phase.CRASHING),
        ("executor", {"restartCount": 2, "ready": True}, Phase.PENDING),
        ("sidecar", {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}, Phase.PENDING),
    ],
)
def test_a_replica_crashes_when_its_executor_is_started_again_only_after_a_while_until_it_is_ready(
    name: str, more: dict[str, Any], phase: Phase
) -> None:
    one = {**container(), "name": name, **more}
    found = replica_of(deployment(), pod(containerStatuses=[one]))
    assert replace(found, executor=ObservedExecutor()).phase is phase


class TestProblems:
    @pytest.mark.parametrize(
        ("status", "problem"),
        [
            ({}, None),
            ({"containerStatuses": [container(waiting={"reason": "ContainerCreating"})]}, None),
            (
                {"containerStatuses": [container(waiting={"reason": "ErrImagePull", "message": "no such image"})]},
                "ErrImagePull: no such image",
            ),
            (
                {
                    "containerStatuses": [
                        container(
                            waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"},
                            last={"terminated": {"reason": "Error", "exitCode": 2, "message": "one\njoex: wrong\n"}},
                        )
                    ]
                },
                "Error: exit code 2: joex: wrong",
            ),
            (
                {"containerStatuses": [container(terminated={"reason": "OOMKilled", "exitCode": 137})]},
                "OOMKilled: exit code 137",
            ),
            (
                {"containerStatuses": [container(last={"terminated": {"reason": "Error", "exitCode": 2}})]},
                None,  # it runs again
            ),
            (
                {
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "reason": "Unschedulable",
                            "message": "0/3 nodes are available",
                        }
                    ]
                },
                "Unschedulable: 0/3 nodes are available",
            ),
        ],
    )
    def test_why_a_pod_does_not_start(self, status: dict[str, Any], problem: str | None) -> None:
        assert replica_of(deployment(), pod(**status)).problem == problem

    def test_why_there_is_no_pod(self) -> None:
        found = replica_of(without_pod())
        assert (found.problem, found.refused) == ("FailedCreate: exceeded quota", True)


def without_pod(reason: str = "FailedCreate") -> dict[str, Any]:
    """A Deployment whose pod the API server refuses, or can't delete."""
    at = "2026-11-20T12:00:00Z"
    failure = {"type": "ReplicaFailure", "status": "True", "reason": reason, "lastTransitionTime": at}
    return deployment(status={"conditions": [{**failure, "message": "exceeded quota"}]})


@pytest.mark.parametrize(
    ("bodies", "seconds", "phase"),
    [
        ([without_pod()], 299, Phase.PENDING),
        ([without_pod()], 300, Phase.UNSCHEDULED),
        ([without_pod(), pod(metadata=DELETED)], 300, Phase.UNSCHEDULED),
        ([without_pod(), pod()], 300, Phase.PENDING),
        ([without_pod("FailedDelete")], 300, Phase.PENDING),
    ],
)
def test_one_whose_pod_the_api_server_has_refused_for_five_minutes_is_no_capacity(
    bodies: list[dict[str, Any]], seconds: int, phase: Phase
) -> None:
    now = datetime.fromisoformat("2026-11-20T12:00:00+00:00") + timedelta(seconds=seconds)
    found = observed.judged(replica_of(*bodies), (), now, timedelta(0))
    assert replace(found, executor=ObservedExecutor()).phase is phase


def judged(*bodies: dict[str, Any]) -> Replica:
    """A replica whose executor is idle, with a `minReadySeconds`."""
    now = datetime.fromisoformat("2026-11-20T12:00:00+00:00")
    found = observed.judged(replica_of(*bodies), (), now, timedelta(minutes=1))
    return replace(found, executor=ObservedExecutor(alive=True))


@pytest.mark.parametrize("at", ["0000-01-02T00:00:00Z", "10000-01-02T00:00:00Z"])
class TestTimesOutsideOfTheCalendar:
    """The API server takes years that Python's calendar does not have."""

    def test_no_room_since_then_is_told_and_is_not_that_of_minutes(self, at: str) -> None:
        refusal = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "lastTransitionTime": at}
        found = judged(deployment(status={"conditions": [refusal]}))
        assert (found.problem, found.unscheduled) == ("FailedCreate", False)
        no_node = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": at}
        found = judged(deployment(), pod(conditions=[no_node]))
        assert (found.problem, found.unscheduled) == ("Unschedulable", False)

    def test_an_executor_that_is_ready_since_then_proves_no_template(self, at: str) -> None:
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": at}
        assert judged(deployment(), pod(conditions=[ready])).fresh

    def test_an_executor_that_is_not_ready_since_then_is_not_taken_for_ready(self, at: str) -> None:
        not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": at}
        for started_at in ("2026-11-20T11:00:00Z", at):
            running = {"name": "executor", "started": True, **container(ready=False, running={"startedAt": started_at})}
            assert judged(deployment(), pod(conditions=[not_ready], containerStatuses=[running])).is_deaf


def _event(body: dict[str, Any]) -> Any:
    return json.loads(object_parts.of_event(json.dumps({"type": "MODIFIED", "object": body}).encode()))["object"]


@pytest.mark.parametrize("read", [seen, _event], ids=["list", "event"])
def test_nothing_that_the_author_of_a_deployment_writes_takes_memory_beyond_what_the_operator_looks_at(
    read: Callable[[dict[str, Any]], Any],
) -> None:
    """An object may have 1.5 MB, which takes ten times as much memory as values of Python."""
    fat = {f"x{nr}": "x" for nr in range(10_000)}
    metadata = {
        "labels": LABELS | fat,
        "annotations": {"joex.dev/template-hash": "t" * 100_000, "joex.dev/database": "d" * 100_000, **fat},
        "ownerReferences": [{"uid": str(nr)} for nr in range(10_000)],
        "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {"f:template": fat}, "f:metadata": fat}}],
        "finalizers": [*fat],
    }
    body = {"metadata": {"name": "p-0", **metadata}, "spec": {"replicas": 1, "template": fat}, "status": {"x": fat}}
    assert len(json.dumps(read(body))) < 1500


ODD: dict[str, Any] = {"conditions": [{"status": "True"}]}
"""A status that can't be read."""


@pytest.mark.parametrize(
    ("kind", "odd", "good"),
    [
        ("deployments", partial(deployment, status=ODD), deployment),
        ("pods", partial(pod, **ODD), pod),
    ],
)
class TestUnreadableObjects:
    def test_an_object_that_can_not_be_read_stops_the_reconciles_of_its_pool_and_of_no_other(
        self, kind: str, odd: Any, good: Any
    ) -> None:
        """Without it, the pool would get another executor in its place, and another one."""
        cache = Cache()
        other = good()
        other["metadata"] |= {"name": "q-0", "labels": {"joex.dev/pool": "q", "joex.dev/replica": "q-0"}}
        assert getattr(cache, kind).put_all([good(), odd(version=2), other]) == {("prod", "p"), ("prod", "q")}
        with pytest.raises(FleetError, match=r"^(Deployment|pod) prod/p-0\S* can't be read: KeyError: 'type'$"):
            cache.replicas("prod", "p", "pool-uid")
        assert [replica.name for replica in cache.replicas("prod", "q", "pool-uid")] == ["q-0"]

    def test_it_is_told_once(self, kind: str, odd: Any, good: Any, caplog: pytest.LogCaptureFixture) -> None:
        indexer = getattr(Cache(), kind)
        assert indexer.put_all([odd()]) == {("prod", "p")}
        assert indexer.put_all([odd(version=2)]) == set()
        assert len(caplog.records) == 1
        indexer.put(good(version=3))
        indexer.put(odd(version=4))
        assert len(caplog.records) == 2

    def test_its_pool_goes_on_when_it_can_be_read_again_or_is_gone(self, kind: str, odd: Any, good: Any) -> None:
        cache = Cache()
        indexer = getattr(cache, kind)
        indexer.put(odd())
        assert indexer.put_all([good(version=2)]) == {("prod", "p")}
        assert cache.replicas("prod", "p", "pool-uid") != []
        indexer.put(odd(version=3))
        cache.pod_deleted(odd(version=4)) if kind == "pods" else indexer.drop(odd(version=4))
        assert cache.replicas("prod", "p", "pool-uid") == []
        indexer.put(odd(version=5))
        assert indexer.forget_absent((), 6, "") == {("prod", "p")}
        assert cache.replicas("prod", "p", "pool-uid") == []


class TestMirror:
    def test_older_news_change_nothing(self) -> None:
        cache = Cache()
        assert cache.deployments.put(deployment(version=5)) is not None
        assert cache.deployments.put(deployment(version=4, metadata=DELETED)) is None

    def test_what_is_gone_does_not_come_back_by_older_news(self) -> None:
        cache = Cache()
        cache.pods.put(pod())
        cache.pods.drop(pod(version=2))
        assert cache.pods.put(pod(version=1)) is None
        assert cache.replicas("prod", "p", "pool-uid") == []

    def test_what_a_list_does_not_have_is_gone_unless_it_is_newer(self) -> None:
        cache = Cache()
        cache.deployments.put(deployment("p-0", version=5))
        cache.deployments.put(deployment("p-1", version=20))
        assert cache.deployments.forget_absent((), 10, "") == {("prod", "p")}
        assert [replica.name for replica in cache.replicas("prod", "p", "pool-uid")] == ["p-1"]

    def test_a_list_of_one_namespace_says_nothing_of_others(self) -> None:
        cache = Cache()
        cache.deployments.put(deployment(version=5))
        assert cache.deployments.forget_absent((), 10, "test") == set()
        assert cache.deployments.forget_absent((), 10, "prod") == {("prod", "p")}

    def test_a_list_that_says_nothing_new_wakes_nobody(self) -> None:
        cache = Cache()
        cache.deployments.put(deployment(version=5))
        assert cache.deployments.put_all([deployment(version=6)]) == set()

    def test_one_that_gets_the_label_of_another_pool_is_none_of_the_first_any_more(self) -> None:
        cache = Cache()
        cache.deployments.put(deployment())
        cache.deployments.put(deployment(version=2, metadata={"labels": {"joex.dev/pool": "q"}}))
        assert cache.replicas("prod", "p", "pool-uid") == []

    def test_pools_do_not_mix(self) -> None:
        cache = Cache()
        cache.deployments.put(deployment())
        assert cache.replicas("prod", "q", "pool-uid") == []
        assert cache.replicas("test", "p", "pool-uid") == []


def test_a_deployment_without_a_pool_of_ours_is_read_too() -> None:
    body = deployment()
    del body["metadata"]["ownerReferences"], body["metadata"]["annotations"]
    assert observed.deployment(body).owner == ""
