"""The names of replicas and of their executors, and the labels and annotations.

A replica's name is stable and contains its pool, so that a Deployment, a pod or an executor identifies its replica, and
a repeated creation creates the same replica.
"""

from __future__ import annotations

import re

GROUP = "joex.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

POOL_LABEL = f"{GROUP}/pool"
REPLICA_LABEL = f"{GROUP}/replica"
TEMPLATE_ANNOTATION = f"{GROUP}/template-hash"
DATABASE_ANNOTATION = f"{GROUP}/database"
SCHEME_ANNOTATION = f"{GROUP}/scheme"
"""Of pods that serve HTTPS, for Prometheus."""
ALLOWED = f"{GROUP}/pools", "allowed"
"""The label by which the owner of a secret lets pools use it."""
FIELD_MANAGER = "joex-operator"

LONGEST_POOL = 40
"""Kubernetes truncates the prefix of a generated pod name to 58 characters, and must not cut the replica's name: a
pool's name of 40, an index of 5 digits, a hash of 10 characters and three dashes make 58."""
MOST_REPLICAS = 10_000
_TELLING = 8
"""Characters of a UID that tell it from others: with 32 random bits, a thousand namespaces of one name are a chance of
one in ten thousand that two are taken for one."""
LONGEST_TASK = 63
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""The characters of names, as a regular expression that Python and the API server read alike."""

_REPLICA = re.compile(r"(.+)-(0|[1-9][0-9]*)")


def replica_name(pool: str, index: int) -> str:
    """The name of a replica: of its Deployment, its label, and its executor's app-id.

    >>> replica_name("documents", 3)
    'documents-3'
    """
    return f"{pool}-{index}"


def replica_index(pool: str, replica: str) -> int | None:
    """The index of a replica of this pool; None: the name is not that of a replica.

    >>> replica_index("documents", "documents-3"), replica_index("documents", "documents-old-3")
    (3, None)
    """
    match = _REPLICA.fullmatch(replica)
    return int(match[2]) if match is not None and match[1] == pool else None


def home_of(namespace: str, uid: str) -> str:
    """Where executors run, for all who share their database: a namespace, and which of this name.

    >>> home_of("prod", "3f2a9c1e-0b7d-4f0e-9d39-0a4b8a2f6f11")
    'prod.3f2a9c1e'
    """
    return f"{namespace}.{uid[:_TELLING]}"


def app_id(home: str, replica: str) -> str:
    """The app-id of the executor in a replica.

    >>> app_id("prod.3f2a9c1e", "documents-3")
    'prod.3f2a9c1e/documents-3'
    """
    return f"{home}/{replica}"


def replica_of(home: str, pool: str, executor: str) -> int | None:
    """The index of the replica whose executor has this app-id; None: it is not in a replica of this pool.

    >>> replica_of("prod.3f2a9c1e", "documents", "prod.3f2a9c1e/documents-3")
    3
    >>> replica_of("prod.3f2a9c1e", "documents", "prod.77777777/documents-3")
    """
    owner, _, replica = executor.partition("/")
    return replica_index(pool, replica) if owner == home else None


def pools_named(executor: str) -> list[tuple[str, str]]:
    """The namespace and the name of each pool that an app-id may be of: the namespace of ``joex up`` may have a dot.

    >>> pools_named("prod.3f2a9c1e/documents-3")
    [('prod.3f2a9c1e', 'documents'), ('prod', 'documents')]
    """
    home, _, replica = executor.partition("/")
    pool = replica.rpartition("-")[0]
    return [(namespace, pool) for namespace in (home, home.rpartition(".")[0]) if namespace]


def selector(pool: str) -> str:
    """The label selector of a pool's pods, for the scale subresource."""
    return f"{POOL_LABEL}={pool}"


def replica_labels(pool: str, index: int) -> dict[str, str]:
    """The labels of a replica's Deployment and pods."""
    return {
        "app.kubernetes.io/name": "joex",
        "app.kubernetes.io/component": "executor",
        "app.kubernetes.io/instance": pool,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        **replica_selector(pool, index),
    }


def replica_selector(pool: str, index: int) -> dict[str, str]:
    """The labels by which a replica's Deployment selects its pods. They are immutable."""
    return {POOL_LABEL: pool, REPLICA_LABEL: replica_name(pool, index)}
