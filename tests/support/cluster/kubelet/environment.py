"""The environment of a container, from the image, the API and the pod's manifest."""

import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.support.cluster.kubelet.rewriting import expand

Json = dict[str, Any]
Fetch = Callable[[str, str], Awaitable[Json | None]]
"""Gives an object of the pod's namespace by plural and name; None: there is none."""

_MAP_ENTRY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigProblem(Exception):
    """The container can't start yet: an object that it refers to is missing."""

    reason = "CreateContainerConfigError"


class ImageProblem(ConfigProblem):
    """The container can't start: its image has no command."""

    reason = "ErrImagePull"


def pod_field(pod: Json, path: str) -> str:
    """A field of a pod as the downward API gives it.

    Raises:
        ConfigProblem: the downward API has no such field.
    """
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    if found := _MAP_ENTRY.fullmatch(path):
        return str(metadata.get(found[1], {}).get(found[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = metadata.get(path.partition(".")[2], {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    scope, _, name = path.partition(".")
    known = {
        "metadata": {name: metadata.get(name) for name in ("name", "namespace", "uid")},
        "spec": {name: spec.get(name) for name in ("nodeName", "serviceAccountName")},
        "status": {name: status.get(name) for name in ("podIP", "hostIP")}
        | {f"{name}s": ",".join(entry["ip"] for entry in status.get(f"{name}s", [])) for name in ("podIP", "hostIP")},
    }
    if name not in known.get(scope, {}):
        raise ConfigProblem(f"the downward API has no field {path}")
    return str(known[scope][name] or "")


def content(found: Json) -> dict[str, bytes]:
    """The content of a Secret or a ConfigMap."""
    if found.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    plain = {key: value.encode() for key, value in (found.get("data") or {}).items()}
    return plain | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}


async def read(fetch: Fetch, plural: str, reference: Mapping[str, Any]) -> dict[str, bytes] | None:
    """The content of a Secret or ConfigMap; None: it is missing, and optional.

    Raises:
        ConfigProblem: it is missing.
    """
    name = reference.get("name") or reference.get("secretName", "")
    found = await fetch(plural, name)
    if found is not None:
        return content(found)
    if reference.get("optional"):
        return None
    raise ConfigProblem(f'{plural.removesuffix("s")} "{name}" not found')


async def resolve(container: Json, pod: Json, fetch: Fetch, variables: Mapping[str, str]) -> dict[str, str]:
    """All variables of a container; later ones may refer to earlier ones.

    Raises:
        ConfigProblem: an object that they refer to is missing.
    """
    resolved = dict(variables)
    for source in container.get("envFrom", []):
        for kind, plural in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if kind in source:
                entries = await read(fetch, plural, source[kind]) or {}
                prefix = source.get("prefix", "")
                resolved |= {f"{prefix}{key}": value.decode() for key, value in entries.items()}
    for entry in container.get("env", []):
        value = await _value(entry, pod, fetch, resolved)
        if value is not None:
            resolved[entry["name"]] = value
    return resolved


async def _value(entry: Json, pod: Json, fetch: Fetch, known: Mapping[str, str]) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return expand(entry.get("value", ""), known)
    if "fieldRef" in source:
        return pod_field(pod, source["fieldRef"]["fieldPath"])
    for kind, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if kind in source:
            return await _key(fetch, plural, source[kind])
    raise ConfigProblem(f"the variable {entry['name']} has a source that this kubelet does not know")


async def _key(fetch: Fetch, plural: str, reference: Mapping[str, Any]) -> str | None:
    entries = await read(fetch, plural, reference)
    if entries is not None and reference["key"] in entries:
        return entries[reference["key"]].decode()
    if reference.get("optional"):
        return None
    raise ConfigProblem(f"couldn't find key {reference['key']} in {plural.removesuffix('s')} {reference['name']}")
