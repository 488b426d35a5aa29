"""The environment of an executor: the fields of its pool that are settings of `joex.config.Settings`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from joex.core.duration import format_duration
from joex_operator.api.names import app_id, replica_name
from joex_operator.api.objects import Pool

HTTP_PORT = 7878

_IN_POD = {
    "http_address": f"0.0.0.0:{HTTP_PORT}",
    "log_format": "json",
    "startup_wait": "4m",  # while the database is down, restarts with their back-off would take longer
}

RESERVED = frozenset(
    {
        "JOEX_APP_ID", "JOEX_DATABASE_URL", "JOEX_DATABASE_URL_FILE", "JOEX_POD_NAME", "JOEX_POD_NAMESPACE",
        "JOEX_POD_UID", "JOEX_POOL_SIZE", "JOEX_QUEUES",
    }
)  # fmt: skip
"""Variables that a template may not change, because the operator relies on them."""


def environment(pool: Pool, index: int, home: str) -> list[dict[str, Any]]:
    """The environment variables of the executor in a replica. ``home``: the first part of its app-id."""
    url = {"name": pool.spec.database.secret_name, "key": pool.spec.database.secret_key}
    return [
        # Explicit, so that executor and operator have the same app-id, whatever the name of the pod.
        _value("JOEX_APP_ID", app_id(home, replica_name(pool.name, index))),
        _from_pod("JOEX_POD_NAME", "metadata.name"),
        _from_pod("JOEX_POD_NAMESPACE", "metadata.namespace"),
        _from_pod("JOEX_POD_UID", "metadata.uid"),
        {"name": "JOEX_DATABASE_URL", "valueFrom": {"secretKeyRef": url}},
        *(_value(f"JOEX_{name.upper()}", value) for name, value in {**settings(pool), **_IN_POD}.items()),
    ]


def signal_timeout(limit: timedelta) -> dict[str, Any]:
    """The variable that says after how long an executor gives its jobs back, for a pod that must go."""
    return _value("JOEX_SIGNAL_TIMEOUT", format_duration(limit))


def settings(pool: Pool) -> dict[str, str]:
    """The settings that a pool gives its executors, as text, for a pod and a process alike."""
    spec = pool.spec
    given = {
        "queues": ",".join(spec.queues),
        "pool_size": str(spec.pool_size),
        "counting_scheme": str(spec.counting_scheme),
        "retries": str(spec.retries),
        "retry_delay": format_duration(spec.retry_delay),
        "most_losses": str(spec.most_losses),
        "log_buffer_size": str(spec.log_buffer_size),
        "wakeup_period": format_duration(spec.wakeup_period),
        "lease": format_duration(spec.lease),
        "outage_patience": format_duration(spec.outage_patience),
        # For a pod that a user deletes or a node evicts: its executor gives its jobs back within the grace period.
        "signal_timeout": format_duration(spec.drain.timeout),
    }
    if spec.timeout is not None:
        given["timeout"] = format_duration(spec.timeout)
    if spec.drain.on_timeout == "Terminate":  # the executor itself interrupts its jobs and gives them back
        given["drain_timeout"] = format_duration(spec.drain.timeout)
    return given


def literal(text: str) -> str:
    """Text with ``$(NAME)`` escaped, which Kubernetes would replace by the value of a variable.

    >>> literal("price$(usd)")
    'price$$(usd)'
    """
    return text.replace("$", "$$") if "$(" in text else text


def _value(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": literal(value)}


def _from_pod(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
