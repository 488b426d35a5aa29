"""Types, ids and priorities of jobs (`joex.core.tuples`) in JSON, in requests and in answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, ValidationInfo, WithJsonSchema
from typing_extensions import TypeAliasType

from joex.core import tuples

_HEXADECIMAL = "^[0-9a-fA-F]{%d}$"
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_OBJECT = {
    "type": "object",
    "title": "What JSON lacks",
    "properties": {
        "bytes": {"type": "string", "pattern": _BASE64, "description": "base64"},
        "uuid": {"type": "string", "format": "uuid"},
        "double": {"type": "string", "pattern": _HEXADECIMAL % 16, "description": "big-endian, such as infinity"},
        "single": {"type": "string", "pattern": _HEXADECIMAL % 8, "description": "big-endian"},
        "versionstamp": {"type": "string", "pattern": _HEXADECIMAL % 24},
        "packed": {
            "type": "string",
            "pattern": "^([0-9a-fA-F]{2})+$",
            "description": "bytes that a client has stored by SQL and that no value packs into",
        },
    },
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
}


def _read(value: Any, info: ValidationInfo) -> Any:
    field = info.field_name or ""
    try:
        return tuples.from_json(field, value)
    except RecursionError as error:
        raise ValueError("too many nested arrays") from error
    except ValueError as error:  # the caller adds the name of the field
        raise ValueError(str(error).removeprefix(f"{field}: ")) from error


# Only for the documentation: `joex.core.tuples` does the check.
_Object = Annotated[dict[str, str], WithJsonSchema(_OBJECT)]
TupleValue = TypeAliasType("TupleValue", "bool | int | float | str | list[TupleValue] | _Object | None")
"""A value of FoundationDB's tuple layer."""
TypeValue = TypeAliasType(
    "TypeValue", bool | int | float | Annotated[str, Field(min_length=1)] | list[TupleValue] | _Object | None
)
"""A value that is also the name of a task, so it has at least one character."""

Value = Annotated[Any, PlainValidator(_read, json_schema_input_type=TupleValue)]
"""A value in a body."""
Type = Annotated[Any, PlainValidator(_read, json_schema_input_type=TypeValue)]
"""A type in a body."""
Shown = Annotated[Any, PlainSerializer(tuples.to_json, return_type=TupleValue)]
"""A value in an answer."""
