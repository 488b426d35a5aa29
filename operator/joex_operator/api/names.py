"""Names: of slots, of the executors in them, of labels and annotations.

A slot's name is stable and says where it belongs, so that whoever sees a Deployment, a pod or an executor knows the
slot without asking, and making a slot a second time makes the same one.
"""

from __future__ import annotations

import re

GROUP = "joex.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

POOL_LABEL = f"{GROUP}/pool"
SLOT_LABEL = f"{GROUP}/slot"
TEMPLATE_ANNOTATION = f"{GROUP}/template-hash"
FIELD_MANAGER = "joex-operator"

LONGEST_POOL = 40
"""Kubernetes cuts a generated pod name after 58 characters, which would tear the slot's name: a name of 40, an index of
5 digits, a hash of 10 characters, and three dashes are just that."""
MOST_SLOTS = 10_000
LONGEST_TASK = 63
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""What names are made of, as a regular expression that Python and the API server read alike."""

_SLOT = re.compile(r"(.+)-(0|[1-9][0-9]*)")


def slot_name(pool: str, index: int) -> str:
    """The name of a slot: of its Deployment, its label, and its executor's app-id.

    >>> slot_name("documents", 3)
    'documents-3'
    """
    return f"{pool}-{index}"


def slot_index(pool: str, slot: str) -> int | None:
    """The index of a slot of this pool; None: the name is that of something else.

    >>> slot_index("documents", "documents-3"), slot_index("documents", "documents-old-3")
    (3, None)
    """
    match = _SLOT.fullmatch(slot)
    return int(match[2]) if match is not None and match[1] == pool else None


def app_id(namespace: str, slot: str) -> str:
    """The app-id of the executor in a slot: what `joex.config.Settings` derives from its pod's name.

    >>> app_id("prod", "documents-3")
    'prod/documents-3'
    """
    return f"{namespace}/{slot}"


def slot_of(namespace: str, pool: str, executor: str) -> int | None:
    """The index of the slot whose executor has this app-id; None: it belongs to no slot of this pool.

    >>> slot_of("prod", "documents", "prod/documents-3"), slot_of("prod", "documents", "laptop")
    (3, None)
    """
    owner, _, slot = executor.partition("/")
    return slot_index(pool, slot) if owner == namespace else None


def selector(pool: str) -> str:
    """The label selector of a pool's pods, as the scale subresource wants it."""
    return f"{POOL_LABEL}={pool}"


def pool_labels(pool: str) -> dict[str, str]:
    """The labels of everything that belongs to a pool."""
    return {
        "app.kubernetes.io/name": "joex",
        "app.kubernetes.io/component": "executor",
        "app.kubernetes.io/instance": pool,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        POOL_LABEL: pool,
    }


def slot_labels(pool: str, index: int) -> dict[str, str]:
    """The labels of a slot's Deployment and pods."""
    return {**pool_labels(pool), SLOT_LABEL: slot_name(pool, index)}


def slot_selector(pool: str, index: int) -> dict[str, str]:
    """The labels by which a slot's Deployment knows its pods; they can never be changed."""
    return {POOL_LABEL: pool, SLOT_LABEL: slot_name(pool, index)}
