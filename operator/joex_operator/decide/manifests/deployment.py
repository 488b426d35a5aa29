"""The Deployment of a replica: one executor, under a stable name.

`strategy: Recreate`, because two pods with one app-id never help each other: the second waits for the first. The
operator drains a replica before it changes its Deployment, so the strategy only matters when a user changes one.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import timedelta
from typing import Any

from joex_operator.api.names import (
    API_VERSION,
    DATABASE_ANNOTATION,
    SCHEME_ANNOTATION,
    TEMPLATE_ANNOTATION,
    replica_labels,
    replica_name,
    replica_selector,
)
from joex_operator.api.objects import Pool
from joex_operator.decide.manifests.environment import HTTP_PORT, environment, literal, signal_timeout
from joex_operator.decide.manifests.overlay import EXECUTOR, overlay

_TLS = "JOEX_HTTP_TLS_CERTIFICATE"
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_GRACE_AFTER_DRAIN = 30
"""Seconds beyond drain.timeout in which an executor gives its jobs back and deregisters."""
_KUBERNETES_GRACE = 30
"""Seconds that a pod has by Kubernetes' default."""

_MOVABLE = {"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "tmp"}
"""The autoscaler of a cluster removes no node with a pod that has an emptyDir, unless the pod says it can lose it."""

_ABOUT_THE_POOL = {"replicas", "suspend", "scaling", "rollout"}
"""Fields of a pool that change none of its pods."""

_REQUESTS = {"cpu": "50m", "memory": "128Mi"}
_RESTRICTED_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def replica_deployment(
    pool: Pool, index: int, image: str, home: str, *, secret: str = "", database: str = ""
) -> dict[str, Any]:
    """The Deployment of a replica.

    Args:
        pool: of the replica.
        index: of the replica.
        image: of a pool that names none: the operator's own.
        home: the first part of its executor's app-id.
        secret: a digest of the URL of the database, which its executor reads at its start.
        database: the name of that database.

    Raises:
        SpecError: spec.template is invalid; the message names the field.
    """
    spec = _deployment_spec(pool, index, image, home)
    template = template_hash(pool, image, home, secret)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": replica_name(pool.name, index),
            "namespace": pool.namespace,
            "labels": replica_labels(pool.name, index),
            "annotations": {TEMPLATE_ANNOTATION: template, DATABASE_ANNOTATION: database},
            "ownerReferences": [_owner(pool)],
        },
        "spec": spec,
    }


def template_hash(pool: Pool, image: str, home: str, secret: str = "") -> str:
    """The hash of a pool's template: the same for all replicas, and another whenever its users have changed their pods.

    It covers what users write (the spec, the image, the URL), and not what the operator adds: another version of the
    operator may add something else, and must not replace every executor. A field with its default value counts as
    absent, because an upgrade of the CRD adds fields to all pools.

    Raises:
        SpecError: as `replica_deployment`.
    """
    _deployment_spec(pool, 0, image, home)  # raises SpecError
    given = pool.spec.model_dump(by_alias=True, exclude_defaults=True, exclude=_ABOUT_THE_POOL)
    text = json.dumps([given, pool.spec.image or image, secret], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _deployment_spec(pool: Pool, index: int, image: str, home: str) -> dict[str, Any]:
    return {
        "replicas": 1,
        "revisionHistoryLimit": 0,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": replica_selector(pool.name, index)},
        "template": _with_tls(
            _within_grace(
                _with_requests(overlay(_pod_template(pool, index, image, home), pool.spec.template)),
                pool.spec.drain.timeout,
            )
        ),
    }


def _with_tls(template: dict[str, Any]) -> dict[str, Any]:
    """Let probes and Prometheus speak HTTPS where the pool gives its executors a certificate."""
    for container in template["spec"]["containers"]:
        if container["name"] == EXECUTOR and any(one.get("name") == _TLS for one in container["env"]):
            for probe in _PROBES:
                if call := (container.get(probe) or {}).get("httpGet"):
                    call.setdefault("scheme", "HTTPS")
            template["metadata"].setdefault("annotations", {})[SCHEME_ANNOTATION] = "https"
    return template


def _with_requests(template: dict[str, Any]) -> dict[str, Any]:
    """Request what an idle executor needs, unless the pool sets resources.

    A node evicts a pod without requests first, and the scheduler takes it for free. Resources of the pool replace these
    as a whole: limits without requests are requests too, and the API server refuses a request above a limit.
    """
    for container in template["spec"]["containers"]:
        if container["name"] == EXECUTOR and not container.get("resources"):
            container["resources"] = {"requests": dict(_REQUESTS)}
    return template


def _within_grace(template: dict[str, Any], drain_timeout: timedelta) -> dict[str, Any]:
    """Let the executor give its jobs back before the kubelet kills it, where the pool sets a shorter grace period.

    What the kubelet kills counts as a loss of each of its jobs. A variable of the pool's own stays.
    """
    grace = template["spec"].get("terminationGracePeriodSeconds", _KUBERNETES_GRACE)
    built = signal_timeout(drain_timeout)
    if isinstance(grace, int):  # (the API server refuses others)
        # (A timedelta does not hold any number of seconds.)
        seconds = min(max(grace - _GRACE_AFTER_DRAIN, 0), math.ceil(drain_timeout.total_seconds()))
        shorter = signal_timeout(min(drain_timeout, timedelta(seconds=seconds)))
        for container in template["spec"]["containers"]:
            if container["name"] == EXECUTOR:
                container["env"] = [shorter if variable == built else variable for variable in container["env"]]
    return template


def _pod_template(pool: Pool, index: int, image: str, home: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": replica_labels(pool.name, index), "annotations": dict(_MOVABLE)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": math.ceil(pool.spec.drain.timeout.total_seconds()) + _GRACE_AFTER_DRAIN,
            "securityContext": _RESTRICTED_POD,
            "containers": [_container(pool, index, image, home)],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


def _container(pool: Pool, index: int, image: str, home: str) -> dict[str, Any]:
    return {
        "name": EXECUTOR,
        "image": pool.spec.image or image,
        "command": ["joex"],
        "args": ["executor", "--app", literal(pool.spec.app)],
        "env": environment(pool, index, home),
        "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        # The delay lets the executor open its port first: a refused probe is a warning Event at each start.
        "startupProbe": {**_probe("/healthz", every=1, failures=300, patience=5), "initialDelaySeconds": 2},
        # A task that blocks the event loop must not get its executor killed, unless it does so for minutes.
        "livenessProbe": _probe("/healthz", every=15, failures=20, patience=10),
        "readinessProbe": _probe("/readyz", every=5, failures=2, patience=5),
        # The kernel drops a SIGTERM that comes while it starts the first process (see scripts/install_image.sh): the
        # pod would stay for all of its grace period. A second later the process blocks or handles the signal.
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",  # kubectl describe shows why it ended
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
    # Without blockOwnerDeletion: the API server refuses it for half a minute after the CRD was created.
    return {
        "apiVersion": API_VERSION,
        "kind": "JoexPool",
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
    }
