"""What comes back from JSON as it was, and what does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from math import isfinite
from pathlib import PurePath
from types import NoneType
from typing import Any
from uuid import UUID

# (After the first three: what is written as text, from which an annotation of a task makes the value again.)
_KNOWN = (str, int, NoneType, date, time, timedelta, UUID, PurePath, IPv4Address, IPv4Network, IPv6Address, IPv6Network)
_MENDS: Mapping[type, str] = {
    **dict.fromkeys((bytes, bytearray, memoryview), ": write bytes as text, such as base64"),
    **dict.fromkeys((set, frozenset), ": give a list"),
}


def find_fault(value: Any) -> tuple[str, str] | None:
    """The first part of a value that JSON would change: its path (``.scores[2]``), and what is wrong with it.

    None: there is none. Names and scalars come back as they are, tuples as lists, objects with fields (dataclasses and
    pydantic models) by the names of their fields, members of an enum as their values, dates, times, durations, UUIDs,
    decimals, paths and addresses as texts.
    """
    return next(_faults("", value, is_judged=True), None)


def _faults(path: str, value: Any, *, is_judged: bool) -> Iterator[tuple[str, str]]:
    """The faults of a value; of a pydantic model, which says how its fields are written, only its numbers."""
    said = _say_fault(value, is_judged=is_judged)
    if said is not None:
        yield path, said
    is_judged = is_judged and not _is_model(value)
    for step, part in _parts(value):
        yield from _faults(path + step, part, is_judged=is_judged)


def _say_fault(value: Any, *, is_judged: bool) -> str | None:
    if isinstance(value, float | Decimal):
        return None if isfinite(value) else f"got {value}, and numbers in JSON are finite"
    if not is_judged or isinstance(value, _KNOWN):
        return None
    if isinstance(value, dict):
        wrong = [name for name in value if not isinstance(name, str)]
        return f"expected texts as names; got {wrong[0]!r}" if wrong else None
    if isinstance(value, list | tuple | Enum) or _is_model(value) or _is_dataclass(value):
        return None
    return f"got {type(value).__name__}{_MENDS.get(type(value), '')}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Enum):
        yield "", value.value
    elif isinstance(value, dict):
        yield from ((f".{name}", each) for name, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{nr}]", each) for nr, each in enumerate(value))
    elif _is_model(value):
        yield from ((f".{name}", each) for name, each in vars(value).items())
    elif _is_dataclass(value):
        yield from ((f".{one.name}", getattr(value, one.name)) for one in fields(value))


def _is_model(value: Any) -> bool:
    return hasattr(value, "__pydantic_serializer__") and not isinstance(value, type)


def _is_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
