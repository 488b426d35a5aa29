"""Makes the CRDs from the models in `spec`.

pydantic writes JSON Schema; the API server expects a structural schema: no ``$ref``, no ``anyOf`` with null, defaults
at each level. `_structural` converts the one into the other, and raises for keywords that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from joex.core.duration import format_duration
from joex.core.priority_turns import CountingScheme
from joex_operator.api.fields import Part, rules
from joex_operator.api.names import GROUP, LABEL, LONGEST_POOL, LONGEST_TASK, VERSION
from joex_operator.api.spec import JoexPoolSpec, PeriodicTaskSpec

_KEPT = (
    "description", "type", "format", "enum", "default", "pattern", "minLength", "maxLength", "minimum", "maximum",
    "minItems", "maxItems", "items", "properties", "required", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type", "x-kubernetes-validations",
)  # fmt: skip
_DROPPED = {"title", "additionalProperties", "$defs", "ge", "le"}  # the bounds of durations are CEL rules
_INT32 = 2**31

_TIME = {"type": "string", "format": "date-time"}
_COUNT = {"type": "integer", "format": "int32"}


def pool_crd() -> dict[str, Any]:
    """The CRD of JoexPool."""
    return _crd(
        "JoexPool",
        "A pool of executors that grows and shrinks with the demand, and never stops a busy executor.",
        short_name="jpool",
        longest_name=LONGEST_POOL,
        spec=JoexPoolSpec,
        status=_POOL_STATUS,
        columns=[
            _column("Desired", "integer", ".status.desiredReplicas", "desired number of executors"),
            _column("Ready", "integer", ".status.readyReplicas", "executors that take jobs"),
            _column("Draining", "integer", ".status.drainingReplicas", "executors that finish their jobs", wide=True),
            _column("Min", "integer", ".spec.scaling.minReplicas", "minimum of executors", wide=True),
            _column("Max", "integer", ".spec.scaling.maxReplicas", "maximum of executors", wide=True),
            *_READY_COLUMNS,
        ],
        # While a pool scales by demand, the field has no value, and the API server answers 500 to a GET of the scale. A
        # default would have to be a number of executors: the API server refuses negative ones.
        scale={
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    )


def periodic_crd() -> dict[str, Any]:
    """The CRD of PeriodicTask."""
    return _crd(
        "PeriodicTask",
        "Submits a job at each time of a timer: never twice, and never while the previous job is unfinished.",
        short_name="ptask",
        longest_name=LONGEST_TASK,
        spec=PeriodicTaskSpec,
        status=_PERIODIC_STATUS,
        columns=[
            _column("Task", "string", ".spec.task", "name of the task"),
            _column("Timer", "string", ".spec.timer", "when it submits a job"),
            _column("Zone", "string", ".spec.timeZone", "time zone of the timer", wide=True),
            _column("Suspended", "boolean", ".spec.suspend", "whether it submits no jobs"),
            # No date: kubectl shows one in the future as invalid.
            _column("Next", "string", ".status.nextRun", "when it is due next"),
            _column("Last", "date", ".status.lastRun", "how long ago it was due last"),
            _column("Outcome", "string", ".status.lastOutcome", "outcome of that time"),
            _column("Job", "string", ".status.lastJob.state", "state of the latest job", wide=True),
            *_READY_COLUMNS,
        ],
    )


def _crd(
    kind: str,
    description: str,
    *,
    short_name: str,
    longest_name: int,
    spec: type[Part],
    status: Mapping[str, Any],
    columns: list[dict[str, Any]],
    scale: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(spec),
            "status": dict(status),
        },
        **rules(
            (f"self.metadata.name.size() <= {longest_name}", f"metadata.name: at most {longest_name} characters"),
            (f"self.metadata.name.matches('^{LABEL}$')", "metadata.name: only a-z, 0-9 and '-', no dots"),
        ),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": ["joex"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, **({"scale": scale} if scale else {})},
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def spec_schema(model: type[Part]) -> dict[str, Any]:
    """The structural schema of a model."""
    schema = model.model_json_schema(schema_generator=_Generator)
    return _structural(schema, schema.get("$defs", {}))


class _Generator(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """Write a default as a user would. That of an object is empty, because its fields have their own."""
        if isinstance(dft, BaseModel):
            return {}
        if isinstance(dft, timedelta):
            return format_duration(dft)
        return str(dft) if isinstance(dft, CountingScheme) else super().encode_default(dft)


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    flat = _flat(schema, definitions)
    if unknown := flat.keys() - _DROPPED - set(_KEPT):
        raise ValueError(f"a structural schema has no {sorted(unknown)}")
    if flat.get("type") == "integer":
        flat["format"] = "int32" if flat.get("maximum", _INT32) < _INT32 else "int64"
    if "properties" in flat:
        flat["properties"] = {name: _structural(part, definitions) for name, part in flat["properties"].items()}
    if "items" in flat:
        flat["items"] = _structural(flat["items"], definitions)
    return {key: flat[key] for key in _KEPT if key in flat}


def _flat(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its references resolved. Keywords beside a reference belong to the field itself, and win."""
    flat = dict(schema)
    if "anyOf" in flat:
        (only,) = [option for option in flat.pop("anyOf") if option != {"type": "null"}]
        flat = {**only, **flat}
    if "$ref" in flat:
        flat = {**definitions[flat.pop("$ref").removeprefix("#/$defs/")], **flat}
    if flat.get("default", "") is None:
        del flat["default"]
    return flat


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": 1} if wide else column


_READY_COLUMNS = [
    _column("State", "string", '.status.conditions[?(@.type=="Ready")].reason', "Ready, or the reason why not"),
    _column(
        "Message",
        "string",
        '.status.conditions[?(@.type=="Ready")].message',
        "message of the condition Ready",
        wide=True,
    ),
    _column("Age", "date", ".metadata.creationTimestamp", "age"),
]

_CONDITIONS = {
    "description": "present conditions",
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": _TIME,
            "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
            "message": {"type": "string", "maxLength": 32768},
        },
    },
}


def _status(**properties: Mapping[str, Any]) -> dict[str, Any]:
    generation = {
        "type": "integer",
        "format": "int64",
        "description": "generation of the spec that this status is about",
    }
    return {
        "type": "object",
        "description": "state that the operator has observed",
        "properties": {"observedGeneration": generation, "conditions": _CONDITIONS, **properties},
    }


_POOL_STATUS = _status(
    replicas={**_COUNT, "description": "number of executors, draining ones included"},
    desiredReplicas={**_COUNT, "description": "desired number of executors"},
    readyReplicas={**_COUNT, "description": "executors that take jobs"},
    updatedReplicas={**_COUNT, "description": "executors with the present template"},
    drainingReplicas={**_COUNT, "description": "executors that take no more jobs and finish those they have"},
    selector={"type": "string", "description": "label selector of the pods, for the scale subresource"},
    history={
        "type": "object",
        "description": "history for the stabilization windows and policies",
        "x-kubernetes-preserve-unknown-fields": True,
    },
)
_PERIODIC_STATUS = _status(
    nextRun={**_TIME, "description": "when it is due next"},
    lastRun={**_TIME, "description": "the latest time of its timer that a scheduler has decided about"},
    lastOutcome={
        "type": "string",
        "description": "outcome of that time: submitted; overlapping: skipped, as the previous job was unfinished; "
        "late: skipped, as the time was missed by more than startingDeadline",
    },
    lastJob={
        "type": "object",
        "description": "the latest job",
        "properties": {
            "id": {"type": "string", "description": "id of the job"},
            "state": {"type": "string", "description": "state of the job; none: it has been deleted"},
        },
    },
)
