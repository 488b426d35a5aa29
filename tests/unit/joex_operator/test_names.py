"""Names of replicas, and of their executors."""

import random

import pytest

from joex.config import load_settings
from joex_operator.api.names import (
    LONGEST_POOL,
    MOST_REPLICAS,
    app_id,
    home_of,
    replica_index,
    replica_labels,
    replica_name,
    replica_of,
    replica_selector,
    selector,
)

SAFE = "bcdfghjklmnpqrstvwxz2456789"  # the letters of Kubernetes for generated names


def pod_name(replica, hashed, chance):
    """A pod's name as Kubernetes makes it: ReplicaSet name and five letters, cut after 58 characters."""
    replica_set = replica + "-" + "".join(SAFE[ord(digit) % len(SAFE)] for digit in str(hashed))
    return f"{replica_set}-"[:58] + "".join(chance.choices(SAFE, k=5))


@pytest.fixture(autouse=True)
def _no_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_replica_is_found_again_from_its_name():
    assert replica_index("documents", replica_name("documents", 12)) == 12


@pytest.mark.parametrize(
    "name", ["documents", "documents-", "documents-01", "documents--1", "documents-a", "doc-1", "documents-1-2", ""]
)
def test_the_name_of_something_else_is_no_replica(name):
    assert replica_index("documents", name) is None


def test_two_pools_never_share_a_replicas_name():
    assert replica_index("a", "a-1-2") is None
    assert replica_index("a-1", "a-1-2") == 2


def test_the_replica_of_an_executor_is_found_from_its_app_id():
    assert replica_of("prod", "documents", app_id("prod", "documents-3")) == 3
    assert replica_of("test", "documents", app_id("prod", "documents-3")) is None
    assert replica_of("prod", "mail", app_id("prod", "documents-3")) is None
    assert replica_of("prod", "documents", "laptop") is None


def test_the_executors_of_two_clusters_on_one_database_are_not_taken_for_each_other():
    here, there = (home_of("prod", uid) for uid in ("3f2a9c1e-0b7d-4f0e-9d39-0a4b8a2f6f11", "77777777-0b7d-4f0e"))
    assert replica_of(here, "documents", app_id(here, "documents-3")) == 3
    assert replica_of(here, "documents", app_id(there, "documents-3")) is None


def test_an_executor_without_an_operator_derives_its_app_id_from_its_pod():
    chance = random.Random(1)
    for pool in ("documents", "a", "a-1", "mail-2-7f9c", "x" * LONGEST_POOL):
        for index in (0, 3, MOST_REPLICAS - 1):
            replica = replica_name(pool, index)
            name = pod_name(replica, chance.randrange(10_000, 2**32), chance)
            settings = load_settings({"pod_name": name, "pod_namespace": "prod"})
            assert settings.effective_app_id == f"prod/{replica}", name


def test_the_longest_pod_name_is_not_cut_short():
    replica = replica_name("x" * LONGEST_POOL, 99_999)
    assert pod_name(replica, 2**32 - 1, random.Random(1)).startswith(f"{replica}-")
    assert len(pod_name(replica, 2**32 - 1, random.Random(1))) == 63


def test_labels_fit_and_contain_the_selector():
    labels = replica_labels("x" * LONGEST_POOL, 99_999)
    assert all(len(value) <= 63 for value in labels.values())
    assert replica_selector("x" * LONGEST_POOL, 99_999).items() <= labels.items()


def test_the_selector_of_a_pool_finds_the_pods_of_all_its_replicas():
    label, _, value = selector("documents").partition("=")
    assert replica_labels("documents", 7)[label] == value
