"""The cache of pools and periodic tasks, if older lists come after newer events."""

import pytest
from kubernetes.aio.client import ApiClient, Configuration

from joex_operator.api.objects import Ref
from joex_operator.cluster.fleet import ClusterFleet
from joex_operator.cluster.kubernetes_api import KubernetesApi
from joex_operator.metrics import OperatorMetrics

PLACE = ("prod", "documents")


def body(version, name="documents", namespace="prod", **status):
    metadata = {"namespace": namespace, "name": name, "resourceVersion": str(version)}
    return {"kind": "JoexPool", "metadata": metadata, "status": status}


@pytest.fixture
async def cluster():
    async with ApiClient(Configuration()) as client:  # nothing here asks an API server
        yield ClusterFleet(KubernetesApi(client, OperatorMetrics()), image="joex", identity="operator", uid_of=str)


def test_what_is_older_than_what_is_known_is_not_taken(cluster):
    assert cluster.keep_status(body(5, replicas=5))
    assert not cluster.keep_status(body(4, replicas=4))
    assert cluster.keep_status(body(5, replicas=5))
    assert cluster.status(Ref("JoexPool", *PLACE)) == {"replicas": 5}


def test_an_object_that_is_gone_does_not_come_back_with_an_older_list(cluster):
    cluster.keep_status(body(5, replicas=5))
    cluster.mark_deleted(body(7, replicas=5))
    assert not cluster.keep_status(body(6, replicas=5))
    assert cluster.status(Ref("JoexPool", *PLACE)) == {}
    assert cluster.keep_status(body(8)), "another one of this name"


def test_a_deletion_that_is_told_late_is_not_that_of_another_one_of_this_name(cluster):
    cluster.keep_status(body(8, replicas=8))
    assert not cluster.mark_deleted(body(7))
    assert cluster.status(Ref("JoexPool", *PLACE)) == {"replicas": 8}
    assert cluster.mark_deleted(body(9))


def test_an_object_that_is_newer_than_a_list_is_not_missing_in_it(cluster):
    cluster.keep_status(body(5))
    assert cluster.forget_absent("JoexPool", (), 4, "") == []
    assert cluster.forget_absent("JoexPool", {PLACE}, 6, "") == []
    assert cluster.forget_absent("JoexPool", (), 5, "test") == []
    assert cluster.forget_absent("PeriodicTask", (), 5, "") == []
    assert cluster.forget_absent("JoexPool", (), 5, "prod") == [PLACE]
    assert cluster.forget_absent("JoexPool", (), 5, "") == []
