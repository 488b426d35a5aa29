"""The Deployment of a slot: one executor, under a name that stays.

`strategy: Recreate`, because two pods with one app-id never help each other: the second waits for the first. The
operator drains a slot before it touches its Deployment, so the strategy only matters where a person changes one.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from joex_operator.manifests.environment import HTTP_PORT, environment, literal
from joex_operator.manifests.overlay import EXECUTOR, overlay
from joex_operator.names import API_VERSION, TEMPLATE_ANNOTATION, slot_labels, slot_name, slot_selector
from joex_operator.objects import Pool

_GRACE_AFTER_DRAIN = 30
"""Seconds a pod has beyond its drain, to give jobs back and to say that it leaves."""

_REQUESTS = {"cpu": "50m", "memory": "128Mi"}
_RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def slot_deployment(pool: Pool, index: int, image: str) -> dict[str, Any]:
    """The Deployment of a slot.

    Args:
        pool: what is asked for.
        index: which slot.
        image: the image where the pool names none: the operator's own.

    Raises:
        SpecError: spec.template can't be merged; the message names the field.
    """
    spec = _deployment_spec(pool, index, image)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": slot_name(pool.name, index),
            "namespace": pool.namespace,
            "labels": slot_labels(pool.name, index),
            "annotations": {TEMPLATE_ANNOTATION: template_hash(pool, image)},
            "ownerReferences": [_owner(pool)],
        },
        "spec": spec,
    }


def template_hash(pool: Pool, image: str) -> str:
    """What tells one template from another: the same for all slots, and changed by whatever changes their pods.

    Raises:
        SpecError: as `slot_deployment`.
    """
    text = json.dumps(_deployment_spec(pool, 0, image), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _deployment_spec(pool: Pool, index: int, image: str) -> dict[str, Any]:
    return {
        "replicas": 1,
        "revisionHistoryLimit": 0,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": slot_selector(pool.name, index)},
        "template": _with_requests(overlay(_pod_template(pool, index, image), pool.spec.template)),
    }


def _with_requests(template: dict[str, Any]) -> dict[str, Any]:
    """Let the executor request what an idle one needs, unless the pool says anything of its resources.

    A pod that requests nothing is the first to be evicted, and the scheduler takes it for free. What a pool gives
    counts alone: limits without requests are requests too, and a request above a limit is refused.
    """
    for container in template["spec"]["containers"]:
        if container["name"] == EXECUTOR and not container.get("resources"):
            container["resources"] = {"requests": dict(_REQUESTS)}
    return template


def _pod_template(pool: Pool, index: int, image: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": slot_labels(pool.name, index)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": math.ceil(pool.spec.drain.timeout.total_seconds()) + _GRACE_AFTER_DRAIN,
            "securityContext": _RESTRICTED_POD,
            "containers": [_container(pool, index, image)],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def _container(pool: Pool, index: int, image: str) -> dict[str, Any]:
    return {
        "name": EXECUTOR,
        "image": pool.spec.image or image,
        "command": ["joex"],
        "args": ["executor", "--app", literal(pool.spec.app)],
        "env": environment(pool, index),
        "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        # (By then its port is open, as a rule, and the probe waits there: a refused one is a warning at each start.)
        "startupProbe": {**_probe("/healthz", every=1, failures=300, patience=5), "initialDelaySeconds": 2},
        # A task that holds up the loop must not get its executor killed, unless it does so for minutes.
        "livenessProbe": _probe("/healthz", every=15, failures=20, patience=10),
        "readinessProbe": _probe("/readyz", every=5, failures=2, patience=5),
        # The kernel drops a SIGTERM that comes while it starts the first process (see scripts/install_image.sh): the
        # pod would stay for all of its grace period. A second later the process blocks or handles the signal.
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",  # why it ended is shown where people look for it
        "securityContext": _RESTRICTED,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the pod's own
    }


def _probe(path: str, *, every: int, failures: int, patience: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": every,
        "failureThreshold": failures,
        "timeoutSeconds": patience,
    }


def _owner(pool: Pool) -> dict[str, Any]:
    # Without blockOwnerDeletion: an API server that has just got the definition of pools refuses it for half a minute.
    return {
        "apiVersion": API_VERSION,
        "kind": "JoexPool",
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
    }
