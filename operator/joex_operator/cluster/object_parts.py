"""JSON of Deployments and pods, of which only the parts that the operator looks at become objects of Python.

Whoever may create a Deployment can give it the label of a pool, and 1.5 MB. Python would make four times as much of its
texts, and ten times as much of small values: fifty such objects took the operator over its memory. The parser reads
over all else where it lies.
"""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import CoreSchema, SchemaValidator, core_schema

from joex_operator.api.names import DATABASE_ANNOTATION, POOL_LABEL, REPLICA_LABEL, TEMPLATE_ANNOTATION
from joex_operator.cluster import shallow_json

_LISTS = re.compile(r"(?:/api|/apis/apps)/v1(?:/namespaces/[^/]+)?/(?:deployments|pods)$")
_LONGEST = 300
"""Characters of an annotation. What the operator has written is shorter."""


def _of(**parts: CoreSchema) -> CoreSchema:
    """The schema of an object of which nothing but these parts, if they are there, is read."""
    fields = {name: core_schema.typed_dict_field(part, required=False) for name, part in parts.items()}
    return core_schema.nullable_schema(core_schema.typed_dict_schema(fields))


def _each(part: CoreSchema) -> CoreSchema:
    return core_schema.nullable_schema(core_schema.list_schema(part))


def _start(text: Any) -> Any:
    return text[:_LONGEST] if isinstance(text, str) else text


def _controllers(owners: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [owner for owner in owners or [] if owner.get("controller")]


_ALL = core_schema.any_schema()
_START = core_schema.no_info_after_validator_function(_start, _ALL)
_METADATA = _of(
    name=_ALL, namespace=_ALL, uid=_ALL, resourceVersion=_ALL, deletionTimestamp=_ALL,
    labels=_of(**{POOL_LABEL: _ALL, REPLICA_LABEL: _ALL}),
    annotations=_of(**{TEMPLATE_ANNOTATION: _START, DATABASE_ANNOTATION: _START}),
    ownerReferences=core_schema.no_info_after_validator_function(_controllers, _each(_of(uid=_ALL, controller=_ALL))),
    managedFields=_each(_of(manager=_ALL, fieldsV1=_of(**{"f:spec": _of(**{"f:template": _of()})}))),
)  # fmt: skip
_OBJECT: dict[str, CoreSchema] = {
    "kind": _ALL,
    "apiVersion": _ALL,
    "metadata": _METADATA,
    "spec": _of(replicas=_ALL, nodeName=_ALL),
    "status": _of(phase=_ALL, conditions=_ALL, initContainerStatuses=_ALL, containerStatuses=_ALL),
}
_LIST = SchemaValidator(_of(kind=_ALL, apiVersion=_ALL, metadata=_ALL, items=core_schema.list_schema(_of(**_OBJECT))))
_EVENT = SchemaValidator(_of(type=_ALL, object=_of(**_OBJECT)))


def are_at(path: str) -> bool:
    """Whether this is the path of lists and watches of Deployments, or of pods.

    >>> are_at("/apis/apps/v1/deployments"), are_at("/api/v1/namespaces/pods/pods"), are_at("/api/v1/namespaces/pods")
    (True, True, False)
    """
    return _LISTS.search(path) is not None


def read_list(text: bytes | bytearray) -> Any:
    """The parts of a list that matter; all of it, if it is none.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return _LIST.validate_json(text)
    except ValueError:
        return shallow_json.read(text)


def of_event(line: bytes) -> bytes:
    """The event of a watch, but no error, with the parts of its object that matter; the line, if it is none."""
    try:
        return json.dumps(_EVENT.validate_json(line)).encode()
    except ValueError:
        return bytes(shallow_json.shallow(line))
