"""Merges a user's spec.template over the pod template that the operator builds.

- Objects merge key by key; null removes a key that an executor can do without.
- Containers, their ports and their mounts merge item by item, matched by name (mounts by path).
- Variables and volumes are matched by name too, but replaced as a whole, because an item has one source only.
- Any other list or value is replaced.

A template can't change what the operator relies on: its labels, and the variables in `environment.RESERVED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joex_operator.api.names import GROUP
from joex_operator.api.objects import SpecError
from joex_operator.decide.manifests.environment import RESERVED

EXECUTOR = "executor"
"""The name of the container that runs the executor."""

_MERGED = {"containers": "name", "ports": "name", "volumeMounts": "mountPath"}
_REPLACED = {"env": "name", "volumes": "name"}
_NEEDED = {"metadata", "labels", "spec", "containers", "image", "command", "args", "env"}
"""Keys of the pod template, and of the executor's container, that null can't remove."""


def overlay(built: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The pod template with the given one merged over it. Neither argument is changed.

    Raises:
        SpecError: a part has the wrong form, or would change what the operator relies on; the message names it.
    """
    merged = _merge(built, given, "spec.template")
    _check_labels(given)
    _check_variables(given)
    return merged


def _merge(built: Mapping[str, Any], given: Mapping[str, Any], path: str) -> dict[str, Any]:
    merged = dict(built)
    for key, value in given.items():
        if value is None:
            if key in _NEEDED and key in built:
                raise SpecError(f"{path}.{key}: null would remove what an executor needs; leave the field out")
            merged.pop(key, None)
        else:
            merged[key] = _merged(built.get(key), value, key, f"{path}.{key}")
    return merged


def _merged(old: Any, new: Any, key: str, path: str) -> Any:
    if isinstance(old, Mapping):
        if not isinstance(new, Mapping):
            raise SpecError(f"{path}: expected an object; got {new!r}")
        return _merge(old, new, path)
    name = _MERGED.get(key) or _REPLACED.get(key)
    if isinstance(old, list) and name is not None:
        return _merge_list(old, new, name, path, whole=key in _REPLACED)
    return new


def _merge_list(old: list[Any], new: Any, name: str, path: str, *, whole: bool) -> list[Any]:
    if not isinstance(new, list) or not all(isinstance(item, Mapping) for item in new):
        raise SpecError(f"{path}: expected a list of objects; got {new!r}")
    items = {item[name]: item for item in old}
    for number, item in enumerate(new):
        if not isinstance(item.get(name), str):
            raise SpecError(f"{path}[{number}].{name}: required, to match the item by")
        before = items.get(item[name])
        is_new = before is None or whole
        items[item[name]] = dict(item) if is_new else _merge(before or {}, item, f"{path}[{number}]")
    return list(items.values())


def _check_labels(given: Mapping[str, Any]) -> None:
    for kind in ("labels", "annotations"):
        for key in _at(given, "metadata", kind):
            if str(key).startswith(f"{GROUP}/"):
                raise SpecError(f"spec.template.metadata.{kind}: {key} is the operator's own")


def _check_variables(given: Mapping[str, Any]) -> None:
    path = f"spec.template.spec.containers[{EXECUTOR}].env"
    for container in _at(given, "spec", "containers"):
        if container["name"] != EXECUTOR:
            continue
        for variable in container.get("env") or []:
            name = variable["name"]
            if name in RESERVED:
                raise SpecError(f"{path}: {name} follows the spec")
            if not name or "=" in name or not _fits(name):
                raise SpecError(f"{path}: {name!r}: no variable can have this name")
            if not _fits(str(variable.get("value", ""))):
                raise SpecError(f"{path}: {name!r}: no variable can have a NUL or a lone surrogate in its value")


def _fits(text: str) -> bool:
    """Whether the environment of a process can hold this text."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _at(given: Mapping[str, Any], *path: str) -> Any:
    found: Any = given
    for number, key in enumerate(path, 1):
        found = found.get(key) or {}
        if not isinstance(found, Mapping | list):
            raise SpecError(f"spec.template.{'.'.join(path[:number])}: expected an object; got {found!r}")
    return found
