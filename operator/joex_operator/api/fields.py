"""The types of fields: how each is parsed, and its schema in the CRD.

The API server checks what it can: bounds and patterns by the schema, the rest by CEL rules. pydantic checks all of it
again, because ``joex up`` reads the same files without an API server.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from joex.core.duration import format_duration, parse_duration
from joex.core.job import check_name
from joex.core.priority_turns import CountingScheme
from joex.core.timers import Timer, parse_zone

_DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
_TURNS = "(1000|[1-9][0-9]{0,2})"
_SHARE = "^(0|[1-9][0-9]?|100)%$"
_LONGEST = timedelta(days=3650)
_LARGEST_TEMPLATE = 256_000
"""Bytes of JSON. The largest of honest users have 30 kB, with hundreds of variables; the API server takes 1.5 MB."""


class Part(BaseModel):
    """A part of an object: camelCase outside, snake_case inside, no unknown fields, no implicit conversions."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        arbitrary_types_allowed=True,
    )


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """Validation rules for the API server, each a CEL expression and its message."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


def between(least: timedelta, most: timedelta = _LONGEST) -> dict[str, Any]:
    """The bounds of a duration, as arguments of `pydantic.Field`."""
    low, high = format_duration(least), f"{most.total_seconds() / 3600:g}h"
    rule = f"duration(self) >= duration('{low}') && duration(self) <= duration('{high}')"
    return {"ge": least, "le": most, "json_schema_extra": rules((rule, f"expected {low} to {high}"))}


def _read_duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str) or re.fullmatch(_DURATION, value) is None:
        raise ValueError("expected a duration such as '30s', '1m' or '1h30m'")
    return parse_duration(value)


def _read_scheme(value: object) -> CountingScheme:
    if isinstance(value, CountingScheme):
        return value
    if not isinstance(value, str):
        raise ValueError("expected two numbers like '4,1' (high,low)")  # noqa: TRY004 - pydantic expects ValueError
    return CountingScheme.parse(value)


def _read_share(value: object) -> object:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_number or (isinstance(value, str) and re.fullmatch(_SHARE, value)):
        return value
    raise ValueError("expected a number of at least 0, or a share such as '25%'")


def _checked(value: str) -> str:
    check_name("name", value)  # as for jobs: a limit in bytes, no NUL
    return value


def _checked_timer(value: str) -> str:
    try:
        Timer.parse(value)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("timer: ").removeprefix(f"timer {value!r}: ")) from None
    return value


def _checked_zone(value: str) -> str:
    try:
        parse_zone(value)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("time zone: ")) from None
    return value


def _checked_template(value: dict[str, Any]) -> dict[str, Any]:
    # (A file for `joex up` may have values that JSON has not.)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), skipkeys=True, default=str)
    except RecursionError:
        raise ValueError("has too many levels") from None
    size = len(text.encode(errors="surrogatepass"))
    if size > _LARGEST_TEMPLATE:
        raise ValueError(
            f"expected at most {_LARGEST_TEMPLATE // 1000} kB of JSON; got {size // 1000} kB; large values belong in a "
            "ConfigMap, which envFrom or a volume names"
        )
    return value


Duration = Annotated[
    timedelta,
    BeforeValidator(_read_duration),
    WithJsonSchema({"type": "string", "pattern": _DURATION, "maxLength": 32}),
]
"""The units are those of CEL durations."""

Scheme = Annotated[
    CountingScheme,
    BeforeValidator(_read_scheme),
    WithJsonSchema({"type": "string", "pattern": f"^{_TURNS}, ?{_TURNS}$", "maxLength": 16}),
]

IntOrShare = Annotated[
    int | str,
    BeforeValidator(_read_share),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": _SHARE, "minimum": 0}),
]

Name = Annotated[str, Field(min_length=1, max_length=254), AfterValidator(_checked)]

Queue = Annotated[str, Field(min_length=1, max_length=254, pattern=r"^[^,\s]([^,]*[^,\s])?$"), AfterValidator(_checked)]
"""No commas, because executors get their queues in one variable, separated by commas."""

_TIMER_RULE = (
    r"self.matches('^\\s*[A-Za-z0-9*@][A-Za-z0-9*@:.,~/#_+\\s-]*$')",
    "expected a systemd calendar event such as 'Mon..Fri 08:30', or a cron line such as '30 8 * * 1-5'",
)
_ZONE_RULE = ("self.matches('^[A-Za-z][A-Za-z0-9_+/-]*$')", "expected a name such as 'Europe/Zurich', or 'UTC'")

TimerText = Annotated[
    str, Field(min_length=1, max_length=254, json_schema_extra=rules(_TIMER_RULE)), AfterValidator(_checked_timer)
]
"""The API server checks the characters only; the parser checks the rest."""

Zone = Annotated[
    str, Field(min_length=1, max_length=64, json_schema_extra=rules(_ZONE_RULE)), AfterValidator(_checked_zone)
]

AnyObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]

Template = Annotated[AnyObject, AfterValidator(_checked_template)]
"""The API server can't check its size: a CEL rule sees no fields that the schema does not know."""
