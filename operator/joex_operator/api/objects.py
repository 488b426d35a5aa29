"""Parses JoexPool and PeriodicTask objects from the API server or from a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import ValidationError

from joex.errors import ConfigError
from joex_operator.api.fields import Part
from joex_operator.api.names import API_VERSION, LABEL, LONGEST_POOL, LONGEST_TASK
from joex_operator.api.spec import JoexPoolSpec, PeriodicTaskSpec


class SpecError(ConfigError):
    """An object is invalid. The message is one line that names each wrong field and what is expected.

    Attributes:
        reason: one word, for a condition.
    """

    def __init__(self, message: str, reason: str = "InvalidSpec") -> None:
        super().__init__(message)
        self.reason = reason


_REASONS: dict[tuple[int | str, ...], str] = {("timer",): "InvalidTimer", ("timeZone",): "UnknownZone"}
"""The reasons where only this field is wrong."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Identifies an object, valid or not."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    generation: int = 1


_Spec = TypeVar("_Spec", bound=Part)


@dataclass(frozen=True, slots=True)
class Resource(Generic[_Spec]):
    """A valid object: its identity and its spec."""

    name: str
    namespace: str
    spec: _Spec
    uid: str = ""
    generation: int = 1
    deleted_at: datetime | None = None


Pool: TypeAlias = Resource[JoexPoolSpec]
Periodic: TypeAlias = Resource[PeriodicTaskSpec]


def reference(manifest: Mapping[str, Any]) -> Ref:
    """The identity of a manifest's object."""
    metadata = manifest["metadata"]
    return Ref(
        kind=manifest["kind"],
        namespace=metadata.get("namespace") or "default",
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 1),
    )


def parse_pool(manifest: Mapping[str, Any], *, stored: bool = False) -> Pool:
    """Parse a JoexPool.

    ``stored``: it has been checked where it was stored, and unknown fields are ignored: the API server keeps those of
    its definition only, which belongs to a newer version while this operator is being upgraded.

    Raises:
        SpecError: it is invalid; the message is one line that names each wrong field.
    """
    return _parse(manifest, "JoexPool", JoexPoolSpec, LONGEST_POOL, stored=stored)


def parse_periodic(manifest: Mapping[str, Any], *, stored: bool = False) -> Periodic:
    """Parse a PeriodicTask. As `parse_pool`."""
    return _parse(manifest, "PeriodicTask", PeriodicTaskSpec, LONGEST_TASK, stored=stored)


def _parse(
    manifest: Mapping[str, Any], kind: str, model: type[_Spec], longest: int, *, stored: bool
) -> Resource[_Spec]:
    for field, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if manifest.get(field) != expected:
            raise SpecError(f"{field}: expected {expected}; got {manifest.get(field)!r}")
    metadata = manifest.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise SpecError("metadata: expected an object, with a name")
    name = metadata.get("name")
    if not isinstance(name, str) or len(name) > longest or re.fullmatch(LABEL, name) is None:
        raise SpecError(f"metadata.name: expected 1 to {longest} of a-z, 0-9 and '-'; got {name!r}")
    try:
        spec = model.model_validate(manifest.get("spec"))
    except ValidationError as error:
        unknown = [problem["loc"] for problem in error.errors() if problem["type"] == "extra_forbidden"]
        if stored and unknown:
            known = {**manifest, "spec": _without(manifest["spec"], unknown)}
            return _parse(known, kind, model, longest, stored=False)
        # (The errors of a validator lead to this frame by their tracebacks. Were they in a variable of it, all of the
        # manifest would stay in memory until a pass of the garbage collector.)
        raise _refusal(error) from error
    return Resource(
        name=name,
        namespace=metadata.get("namespace") or "default",
        spec=spec,
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 1),
        deleted_at=_deleted_at(metadata.get("deletionTimestamp")),
    )


def _refusal(error: ValidationError) -> SpecError:
    problems = error.errors(include_url=False)
    reasons = {_REASONS.get(problem["loc"], "InvalidSpec") for problem in problems}
    reason = reasons.pop() if len(reasons) == 1 else "InvalidSpec"
    return SpecError("; ".join(problem_line(one, "spec") for one in problems), reason)


def _deleted_at(value: object) -> datetime | None:
    if value is None:
        return None
    with suppress(TypeError, ValueError):
        deleted_at = datetime.fromisoformat(value)  # type: ignore[arg-type]
        if deleted_at.tzinfo is not None:
            return deleted_at
    raise SpecError(f"metadata.deletionTimestamp: expected a time such as '2026-11-20T12:00:00Z'; got {value!r}")


def _without(spec: Any, fields: Iterable[tuple[int | str, ...]]) -> Any:
    """A copy of a spec without these fields, each given by its path."""
    copy = deepcopy(spec)
    for *path, name in fields:
        part = copy
        for step in path:
            part = part[step]
        del part[name]
    return copy


def problem_line(problem: Any, root: str = "") -> str:
    """An error of pydantic about a field, in one line: the field, what is expected, and the value."""
    path = root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])
    where = f"{path.removeprefix('.')}: " if path else ""
    if problem["type"] == "missing":
        return f"{where}required"
    if problem["type"] == "extra_forbidden":
        return f"{where}there is no such field"
    message = problem["msg"].removeprefix("Value error, ")
    is_plain = isinstance(problem["input"], str | int | float | bool | None)
    return f"{where}{message}; got {problem['input']!r}" if is_plain and "got" not in message else f"{where}{message}"
