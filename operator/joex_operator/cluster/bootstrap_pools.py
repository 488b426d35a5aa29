"""Pools that come with the chart: the operator makes them from a ConfigMap.

They can't be plain manifests of the release: helm refuses objects whose CRD is of the same release. They are owned by
the ConfigMap, and so they go with it when the release is uninstalled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import yaml

from joex_operator.api.names import FIELD_MANAGER
from joex_operator.api.objects import SpecError, parse_pool
from joex_operator.cluster.kubernetes_api import APPLY, ApiError, KubernetesApi, Object, path_of

_log = logging.getLogger("joex.operator")


async def apply_bootstrap_pools(api: KubernetesApi, namespace: str, config_map: str) -> bool:
    """Bring the pools of a ConfigMap in line with it. What is wrong is logged, and stops nothing else.

    Returns whether the API server has taken them: one that has just got the definition of pools refuses them for a
    moment.
    """
    are_taken = True
    try:
        source = await api.get(path_of(namespace, "configmaps", config_map))
    except ApiError as error:
        _log.error("the ConfigMap of the first pools can't be read: %s", error)
        return False
    for key, manifest in _manifests(source):
        try:
            pool = parse_pool(manifest)
            body = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [_owner(source)]}}
            path = path_of(namespace, "joexpools", pool.name)
            await api.patch(path, body, APPLY, fieldManager=FIELD_MANAGER, force="true")
        except (SpecError, ApiError) as error:
            _log.error("ConfigMap %s, %s: %s", config_map, key, error)
            are_taken = are_taken and isinstance(error, SpecError)
    return are_taken


def _manifests(source: Object) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, text in (source.get("data") or {}).items():
        try:
            manifest = yaml.safe_load(text)
        except yaml.YAMLError as error:
            _log.error("ConfigMap %s, %s: %s", source["metadata"]["name"], key, " ".join(str(error).split()))
            continue
        if isinstance(manifest, dict):
            yield key, manifest


def _owner(source: Object) -> dict[str, Any]:
    metadata = source["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]}
