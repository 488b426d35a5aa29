"""Bootstrap pools: the first pools of the chart, in a ConfigMap from which the operator creates them.

They can't be manifests of the release: Helm refuses objects whose CRD is part of the same release. The ConfigMap owns
them, so uninstalling the release deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from joex.errors import ConfigError
from joex_operator.api.names import FIELD_MANAGER
from joex_operator.api.objects import SpecError, parse_pool
from joex_operator.api.yaml_documents import read_documents
from joex_operator.cluster.kubernetes_api import APPLY, ApiError, KubernetesApi, Object, path_of

_log = logging.getLogger("joex.operator")


async def apply_bootstrap_pools(api: KubernetesApi, namespace: str, config_map: str) -> bool:
    """Apply the pools of a ConfigMap. An invalid one is logged, and stops no other.

    Returns whether the API server has accepted them: right after the creation of the CRD it refuses them for a moment.
    """
    are_accepted = True
    try:
        source = await api.get(path_of(namespace, "configmaps", config_map))
    except ApiError as error:
        _log.error("can't read the ConfigMap of the bootstrap pools: %s", error)
        return False
    for key, manifest in _manifests(source):
        try:
            if not isinstance(manifest, dict):
                raise SpecError("expected an object")  # noqa: TRY301 - as parse_pool raises it
            pool = parse_pool(manifest)
            body = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [_owner(source)]}}
            path = path_of(namespace, "joexpools", pool.name)
            await api.patch(path, body, APPLY, fieldManager=FIELD_MANAGER, force="true")
        except (SpecError, ApiError) as error:
            _log.error("ConfigMap %s, %s: %s", config_map, key, error)
            are_accepted = are_accepted and isinstance(error, SpecError)
    return are_accepted


def _manifests(source: Object) -> Iterator[tuple[str, Any]]:
    for key, text in (source.get("data") or {}).items():
        try:
            documents = read_documents(text)
        except ConfigError as error:
            _log.error("ConfigMap %s, %s: %s", source["metadata"]["name"], key, error)
            continue
        yield from ((key, manifest) for manifest in documents if manifest is not None)


def _owner(source: Object) -> dict[str, Any]:
    metadata = source["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]}
