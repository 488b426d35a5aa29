"""The environment of an executor as a local process, and the fields of its pool that only a cluster can honour.

Settings without a field in the pool (the API token, retention, the log level) come from the environment of ``joex up``
and from ``joex.toml`` in its folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from joex_operator.api.names import app_id, replica_name
from joex_operator.api.objects import Pool, SpecError
from joex_operator.api.spec import JoexPoolSpec
from joex_operator.decide.manifests.environment import settings
from joex_operator.decide.manifests.overlay import EXECUTOR, overlay

_LOCAL = {
    "http_address": "127.0.0.1:0",  # many executors share a machine: each takes a free port
    "startup_wait": "4m",  # while the database is down, restarts with their back-off would take longer
}
_BARE: dict[str, Any] = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {"containers": [{"name": EXECUTOR, "env": []}]},
}
_CONTAINER = f"spec.template.spec.containers[{EXECUTOR}]"


def environment(pool: Pool, index: int, *, uid: str, url: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of the executor in a replica.

    Args:
        pool: of the replica.
        index: of the replica.
        uid: of the replica, under which a restarted process gets the jobs of its predecessor at once.
        url: of the pool's database.
        inherited: the environment of ``joex up``.

    Raises:
        SpecError: spec.template is invalid; the message names the field.
    """
    given = {f"JOEX_{name.upper()}": value for name, value in {**settings(pool), **_LOCAL}.items()}
    own = {
        "JOEX_APP_ID": app_id(pool.namespace, replica_name(pool.name, index)),
        "JOEX_POD_UID": uid,
        "JOEX_DATABASE_URL": url,
        "JOEX_DATABASE_URL_FILE": "",  # the file of joex up itself is another database's
    }
    return {**inherited, **given, **variables(pool.spec), **own}


def variables(spec: JoexPoolSpec) -> dict[str, str]:
    """The variables of spec.template that have a value.

    Raises:
        SpecError: spec.template is invalid; the message names the field.
    """
    merged = overlay(_BARE, spec.template)
    return dict(_values(merged))


def template_hash(pool: Pool) -> str:
    """The hash of a pool's template: another one whenever its processes change.

    Raises:
        SpecError: as `variables`.
    """
    text = json.dumps([pool.spec.app, settings(pool), variables(pool.spec)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unused(spec: JoexPoolSpec) -> Iterator[str]:
    """The fields that have no effect on a local process."""
    if spec.image is not None:
        yield "spec.image"
    template = spec.template
    yield from (f"spec.template.{key}" for key in template if key != "spec")
    yield from (f"spec.template.spec.{key}" for key in template.get("spec") or {} if key != "containers")
    for name, container in _containers(template).items():
        if name != EXECUTOR:
            yield f"spec.template.spec.containers[{name}]"
            continue
        yield from (f"{_CONTAINER}.{key}" for key in container if key not in ("name", "env"))
        for variable in container.get("env") or []:
            if "valueFrom" in variable:
                yield f"{_CONTAINER}.env[{variable['name']}].valueFrom"


def _values(template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for variable in _containers(template).get(EXECUTOR, {}).get("env") or []:
        value = variable.get("value", "")
        if not isinstance(value, str):
            raise SpecError(f"{_CONTAINER}.env: {variable['name']}: expected a text; got {value!r}")
        if "valueFrom" not in variable:
            yield variable["name"], value


def _containers(template: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = (template.get("spec") or {}).get("containers") or []
    return {container["name"]: container for container in found}
