"""Values of FoundationDB's tuple layer: the types, ids and priorities that callers give to keyed jobs.

Any value that the tuple layer can order: None, bytes, text, integers of up to 255 bytes, floats, booleans, UUIDs,
versionstamps, and tuples of these, nested at will. Packed, their bytes order as the values do (``fdb.tuple`` of the
FoundationDB client does it).

They have two more forms. In JSON (HTTP) most values are themselves, tuples are arrays, and a value that JSON lacks is
an object with one name: ``{"bytes": "aGk="}``, ``{"uuid": "..."}``, ``{"double": "7ff0000000000000"}`` (only if it
is not finite), ``{"single": "3fc00000"}``, ``{"versionstamp": "..."}`` (24 hexadecimal digits), ``{"packed": "ff"}``
(`Packed`). And as a name
(of a task, a queue) a text is itself, and each other value a ``#`` and its JSON. (A text that is such a name of another
value is a ``#`` and its JSON too.)
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from joex.core.json_values import shown
from joex.extras import needs

with needs("keyed", "keyed jobs need"):
    from fdb.tuple import SingleFloat
    from fdb.tuple import Versionstamp as _Versionstamp
    from fdb.tuple import pack as _pack
    from fdb.tuple import unpack as _unpack

LONGEST = 1000
"""Bytes of a packed id or priority."""
_DEEPEST = 100  # so that JSON readers can read every value back
_ABOVE_ALL = b"\xff"
"""joex_client.highest_rank: takes that have no limit go up to there."""
_INCOMPLETE = b"\xff" * 10
"""The transaction version of a versionstamp that FoundationDB has still to complete. The library reads it as None."""


class Versionstamp(_Versionstamp):  # type: ignore[misc] # the library has no types
    """A versionstamp that packs without FoundationDB's native library, which the original class asks."""

    def to_bytes(self) -> bytes:
        """Its 12 bytes."""
        return struct.pack(">10sH", self.tr_version or _INCOMPLETE, self.user_version)


@dataclass(frozen=True, slots=True)
class Packed:
    """Bytes that no value packs into, which a client has stored by SQL.

    They stand for themselves, so that a worker can end the job that has them as its id or priority, and a list shows
    it. Nothing but a whole id, priority or type can be one, and no priority that begins with the byte ff.
    """

    packed: bytes


def pack(field: str, value: Any) -> bytes:
    """A value as bytes that order as the values do.

    Args:
        field: the name of the field, for the message.
        value: the value.

    Raises:
        ValueError: the tuple layer has no such value, or it has more than 1,000 bytes; the message names the field.
    """
    try:
        packed = value.packed if isinstance(value, Packed) else bytes(_pack((_packable(value),)))
    except (ValueError, TypeError, RecursionError, struct.error) as error:
        raise ValueError(f"{field}: not a value that FoundationDB's tuple layer orders: {_shown(error)}") from error
    if len(packed) > LONGEST:
        raise ValueError(f"{field}: at most {LONGEST} bytes when packed; got {len(packed)}")
    return packed


def pack_priority(value: Any) -> bytes:
    """A priority as bytes that order as the values do; see `pack`.

    Raises:
        ValueError: as with `pack`; or they begin with the byte ff, as those of no value do: no priority is so high.
    """
    packed = pack("priority", value)
    if packed >= _ABOVE_ALL:
        raise ValueError(f"priority: packed, it must not begin with the byte ff; got {packed[:20].hex()}")
    return packed


def _packable(value: Any, depth: int = 0) -> Any:
    if isinstance(value, tuple | list):
        if depth == _DEEPEST:
            raise ValueError(f"at most {_DEEPEST} tuples within each other")
        return tuple(_packable(part, depth + 1) for part in value)
    if isinstance(value, Packed):
        raise ValueError("packed: not a part of a tuple")  # noqa: TRY004 - all refusals here are of this type
    if isinstance(
        value, _Versionstamp
    ):  # None: the library refuses to pack it, so no job gets an id that it can't read
        return Versionstamp(None if value.tr_version == _INCOMPLETE else value.tr_version, value.user_version)
    return value


def unpack(packed: bytes) -> Any:
    """The value from its bytes. Lists have become tuples; bytes that no value packs into are `Packed`."""
    with suppress(ValueError, TypeError, IndexError, RecursionError, struct.error):
        value = _packable(_unpack(packed)[0])
        if bytes(_pack((value,))) == packed:
            return value
    return Packed(packed)


def to_name(field: str, value: Any) -> str:
    """A value as a name: of a task, a queue, a group. Two different values never have the same name.

    Raises:
        ValueError: as with `pack`.
    """
    pack(field, value)
    if isinstance(value, str) and "\0" not in value and from_name(value) == value:
        return value
    return "#" + json.dumps(to_json(value), separators=(",", ":"), sort_keys=True)


def from_name(name: str) -> Any:
    """The value with this name: each text is the name of one value."""
    if name.startswith("#"):
        with suppress(ValueError, RecursionError):
            value = from_json("name", json.loads(name[1:]))
            if to_name("name", value) == name:
                return value
    return name


def to_json(value: Any) -> Any:
    """The JSON form of a value."""
    if isinstance(value, tuple | list):
        return [to_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"double": struct.pack(">d", value).hex()}
    for name, (kind, write, _) in _OBJECTS.items():
        if isinstance(value, kind):
            return {name: write(value)}
    return value


_MOST_PARTS = 1000


def from_json(field: str, value: Any) -> Any:
    """The value from its JSON form.

    Raises:
        ValueError: it has none of the forms above, or more parts or packed bytes than fit; the message names the field.
    """
    _refuse_large(field, value)
    return _from_json(field, value)


def _refuse_large(field: str, value: Any) -> None:
    """Refuse millions of parts, or of packed bytes, before they are read one by one, which would take seconds."""
    left, packed, lists = _MOST_PARTS + 1, 0, [[value]]
    while lists:
        parts = lists.pop()
        left -= len(parts)
        if left < 0:
            raise ValueError(f"{field}: expected at most {_MOST_PARTS} parts, in all lists together")
        lists += [part for part in parts if isinstance(part, list)]
        said = (part.get("packed") for part in parts if isinstance(part, dict))
        packed += sum(len(text) // 2 for text in said if isinstance(text, str))
    if packed > LONGEST:
        raise ValueError(f"{field}: at most {LONGEST} bytes when packed; got {packed}")


def _from_json(field: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(field, part) for part in value)
    if not isinstance(value, dict):
        return value
    name, said = next(iter(value.items())) if len(value) == 1 else ("", None)
    if name not in _OBJECTS or not isinstance(said, str):
        known, names = ", ".join(_OBJECTS), [shown(name) for name in islice(value, 3)]  # (it may have millions)
        got = type(said).__name__ if name in _OBJECTS else ", ".join(names + ["..."] * (len(value) > len(names)))
        raise ValueError(f"{field}: an object here has one name of {known}, and a text; got {got or 'no name'}")
    try:
        return _OBJECTS[name][2](said)
    except (ValueError, binascii.Error, struct.error) as error:
        raise ValueError(f"{field}: not a {name}: {said[:100]!r}") from error


def _packed(text: str) -> Any:
    if not text:
        raise ValueError("expected at least one byte")
    return unpack(bytes.fromhex(text))


def _versionstamp(text: str) -> Versionstamp:
    return Versionstamp(*struct.unpack(">10sH", bytes.fromhex(text)))


_OBJECTS: dict[str, tuple[Any, Callable[[Any], str], Callable[[str], Any]]] = {
    "bytes": (bytes, lambda v: base64.b64encode(v).decode(), lambda s: base64.b64decode(s, validate=True)),
    "uuid": (UUID, str, UUID),
    "double": ((), str, lambda s: struct.unpack(">d", bytes.fromhex(s))[0]),
    "single": (
        SingleFloat,
        lambda v: struct.pack(">f", v.value).hex(),
        lambda s: SingleFloat(struct.unpack(">f", bytes.fromhex(s))[0]),
    ),
    "packed": (Packed, lambda v: v.packed.hex(), _packed),
    "versionstamp": (Versionstamp, lambda v: v.to_bytes().hex(), _versionstamp),
}


def _shown(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
