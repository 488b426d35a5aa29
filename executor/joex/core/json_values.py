"""Finds values that JSON would change on the way to the database and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import islice, repeat
from math import isfinite
from pathlib import PurePath
from types import NoneType
from typing import Any
from uuid import UUID

from pydantic_core import to_json

# (The types after the first three are written as text; a task's annotation turns it back into the value.)
_KNOWN = (str, int, NoneType, date, time, timedelta, UUID, PurePath, IPv4Address, IPv4Network, IPv6Address, IPv6Network)
_MENDS: Mapping[type, str] = {
    **dict.fromkeys((bytes, bytearray, memoryview), ": write bytes as text, such as base64"),
    **dict.fromkeys((set, frozenset), ": give a list"),
}


_MOST_DIGITS = 4300
"""Python's JSON readers refuse longer integers."""
_TOO_LONG = 10**_MOST_DIGITS
_DIGITS_OF_INFINITY = 309
"""A number with fewer is in the range of doubles."""
_STARS = b'"**********"'
_LONGEST = 100
"""The most characters of a name, or of a path, in a message."""
_CONTAINERS = frozenset((list, tuple, dict))
_WITH_LENGTH = _CONTAINERS | {str}
LOOKED_INTO = 100_000
"""The parts of a value that are counted within a few milliseconds."""


def find_fault(value: Any, most: int | None = None) -> tuple[str, str] | None:
    """The first part of a value that JSON would change: its path (``.scores[2]``), and what is wrong with it.

    None: there is none. Names and scalars come back as they are, tuples as lists, mappings as dicts, objects with
    fields (dataclasses and pydantic models) by the names of their fields, members of an enum as their values, dates,
    times, durations, UUIDs, decimals, paths and addresses as texts.

    Args:
        value: with all its parts.
        most: how many parts it looks at; None: all. A million take two seconds.
    """
    try:
        return next(_faults("", value, None, repeat(None) if most is None else iter(range(most))), None)
    except _EnoughError:
        return None


class _EnoughError(Exception):
    """As many parts have been looked at as may be."""


def is_longer(value: Any, most: int, look_into: int = LOOKED_INTO) -> bool:
    """Whether a value certainly has more than so many bytes as jsonb, by the lengths of its lists, dicts and texts.

    It costs little where the text would take seconds: it does not look into more parts than ``look_into``.
    """
    least, left, level = 0, look_into, [value] if type(value) in _CONTAINERS else []
    while level:
        inner: list[Any] = []
        for part in level:
            kind = type(part)
            # (A list or object has four bytes, and four for each value and each name, besides what these have.)
            least += len(part) if kind is str else 4 + len(part) * (8 if kind is dict else 4)
            if least > most:
                return True
            if kind is not str and left > 0:
                parts = part.values() if kind is dict else part
                inner += [each for each in islice(parts, left) if type(each) in _WITH_LENGTH]
                left -= len(part)
        level = inner
    return False


def listed(value: Any) -> Any:
    """A value with lists in place of its tuples, as JSON gives it back."""
    if type(value) is dict:
        return {name: listed(each) if type(each) in _CONTAINERS else each for name, each in value.items()}
    if type(value) in _CONTAINERS:
        return [listed(each) if type(each) in _CONTAINERS else each for each in value]
    return value


def shown(value: object) -> str:
    """A value as one line of a message, cut if it is long."""
    is_long = False
    if isinstance(value, str) and len(value) > _LONGEST:  # (it may have millions of characters)
        value, is_long = value[:_LONGEST], True
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST and not is_long else f"{text[: _LONGEST - 2]}..."


class Written(dict[str, Any]):
    """A value, not an empty object, that is here as its JSON text alone: as parts, 10 MB would take 300."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def __bool__(self) -> bool:
        return True


def as_dict(value: Any) -> dict[Any, Any]:
    """Convert a mapping of a type that the JSON encoder does not know.

    Raises:
        TypeError: the value is no mapping.
    """
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"got {type(value).__name__}")


def _faults(path: str, value: Any, model: Any, left: Iterator[object]) -> Iterator[tuple[str, str]]:
    """The faults of a value. A pydantic model writes its values its own way: in it, only lost values are faults."""
    if next(left, left) is left:
        raise _EnoughError
    said = _say_fault(value, model)
    if said is not None:
        yield path if len(path) <= 2 * _LONGEST else f"{path[: 2 * _LONGEST]}...", said
    if model is None and _is_model(value):
        model = value
    for step, part in _parts(value):
        yield from _faults(path + step, part, model, left)


def _say_fault(value: Any, model: Any) -> str | None:  # noqa: PLR0911 - one line for each kind
    if isinstance(value, float | Decimal):
        is_finite = value.is_finite() if isinstance(value, Decimal) else isfinite(value)
        return None if is_finite else f"got {value}, and numbers in JSON are finite"
    if isinstance(value, int) and abs(value) >= _TOO_LONG:
        return f"got an integer of more than {_MOST_DIGITS} digits: give it as text"
    if hasattr(value, "get_secret_value"):
        if model is not None and _STARS not in to_json(model, serialize_unknown=True):
            return None  # the model leaves it out, or shows it
        return "got a secret, of which only stars would be stored: give value.get_secret_value()"
    if model is not None or isinstance(value, _KNOWN):
        return None
    if isinstance(value, Mapping):
        wrong = [name for name in value if not isinstance(name, str)]
        return f"expected texts as names; got {shown(wrong[0])}" if wrong else None
    if isinstance(value, list | tuple | Enum) or _is_model(value) or _is_dataclass(value):
        return None
    return f"got {type(value).__name__}{_MENDS.get(type(value), '')}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Enum):
        yield "", value.value
    elif isinstance(value, Mapping):
        yield from ((_step(name), each) for name, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{nr}]", each) for nr, each in enumerate(value))
    elif _is_dataclass(value):  # (some are models too, and have no `__dict__`)
        yield from ((f".{one.name}", getattr(value, one.name)) for one in fields(value))
    elif _is_model(value):
        yield from ((f".{name}", each) for name, each in vars(value).items())


def _step(name: object) -> str:
    text = str(name)
    return f".{text}" if len(text) <= _LONGEST and text.isprintable() else f"[{shown(text)}]"


def _is_model(value: Any) -> bool:
    return hasattr(value, "__pydantic_serializer__") and not isinstance(value, type)


def _is_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def has_infinity(text: str) -> bool:
    """Whether JSON readers take a number of this text, which PostgreSQL has written, for infinity.

    That is one with a fraction beyond the range of a double: SQL can store it.
    """
    # (Any 309 digits in a row have one at one of these places, and half of them on one side of it.)
    for at in range(_DIGITS_OF_INFINITY - 1, len(text), _DIGITS_OF_INFINITY):
        if text[at].isdigit() and (text[at - 154 : at + 1].isdigit() or text[at : at + 155].isdigit()):
            break
    else:
        return False
    try:
        json.loads(text, parse_float=_finite)
    except (ValueError, RecursionError):
        return True
    return False


def _finite(number: str) -> float:
    if not isfinite(found := float(number)):
        raise ValueError
    return found
