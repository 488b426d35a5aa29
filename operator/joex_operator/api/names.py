"""The names of slots and of their executors, and the labels and annotations.

A slot's name is stable and contains its pool, so that a Deployment, a pod or an executor identifies its slot, and a
repeated creation creates the same slot.
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
"""Kubernetes truncates the prefix of a generated pod name to 58 characters, and must not cut the slot's name: a pool's
name of 40, an index of 5 digits, a hash of 10 characters and three dashes make 58."""
MOST_SLOTS = 10_000
LONGEST_TASK = 63
LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""The characters of names, as a regular expression that Python and the API server read alike."""

_SLOT = re.compile(r"(.+)-(0|[1-9][0-9]*)")


def slot_name(pool: str, index: int) -> str:
    """The name of a slot: of its Deployment, its label, and its executor's app-id.

    >>> slot_name("documents", 3)
    'documents-3'
    """
    return f"{pool}-{index}"


def slot_index(pool: str, slot: str) -> int | None:
    """The index of a slot of this pool; None: the name is not that of a slot.

    >>> slot_index("documents", "documents-3"), slot_index("documents", "documents-old-3")
    (3, None)
    """
    match = _SLOT.fullmatch(slot)
    return int(match[2]) if match is not None and match[1] == pool else None


def app_id(namespace: str, slot: str) -> str:
    """The app-id of the executor in a slot, which `joex.config.Settings` derives from its pod's name too.

    >>> app_id("prod", "documents-3")
    'prod/documents-3'
    """
    return f"{namespace}/{slot}"


def slot_of(namespace: str, pool: str, executor: str) -> int | None:
    """The index of the slot whose executor has this app-id; None: it is not in a slot of this pool.

    >>> slot_of("prod", "documents", "prod/documents-3"), slot_of("prod", "documents", "laptop")
    (3, None)
    """
    owner, _, slot = executor.partition("/")
    return slot_index(pool, slot) if owner == namespace else None


def selector(pool: str) -> str:
    """The label selector of a pool's pods, for the scale subresource."""
    return f"{POOL_LABEL}={pool}"


def slot_labels(pool: str, index: int) -> dict[str, str]:
    """The labels of a slot's Deployment and pods."""
    return {
        "app.kubernetes.io/name": "joex",
        "app.kubernetes.io/component": "executor",
        "app.kubernetes.io/instance": pool,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        **slot_selector(pool, index),
    }


def slot_selector(pool: str, index: int) -> dict[str, str]:
    """The labels by which a slot's Deployment selects its pods. They are immutable."""
    return {POOL_LABEL: pool, SLOT_LABEL: slot_name(pool, index)}
