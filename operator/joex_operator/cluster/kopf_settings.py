"""The settings of kopf, whose defaults are for operators that it alone runs."""

from __future__ import annotations

import kopf

from joex_operator.api.names import POOL_LABEL
from joex_operator.cluster.kubernetes_api import PAGE

_STREAM = 600
"""Seconds after which each watch is renewed. The API server takes whole numbers only."""
_TRY_AGAIN_IN = (1.0, 1.0, 2.0, 3.0)
"""Seconds between tries to reach the API server. A longer back-off would outlast most outages."""


def kopf_settings() -> kopf.OperatorSettings:
    """The settings of the watches."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True  # the CRDs exist, and the operator may not watch all CRDs
    settings.watching.server_timeout = _STREAM
    settings.watching.client_timeout = _STREAM + 60.0
    settings.watching.connect_timeout = 30.0
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = 0.1  # the worker of each object keeps the object's last event until then
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = _TRY_AGAIN_IN
    settings.watching.label_selectors["deployments"] = POOL_LABEL
    settings.watching.label_selectors["pods"] = POOL_LABEL
    settings.execution.max_workers = 1  # no handler is synchronous
    return settings
