"""The request bodies, and the values of their fields.

The limits of a submission's texts are in the schema only as documentation: `joex.core.job.NewJob` checks them, and its
messages name the field.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from joex.core.duration import parse_duration
from joex.core.job import check_name, check_text, priority_of
from joex.core.json_values import shown
from joex.errors import InvalidJob
from joex.http.errors import cut

T = TypeVar("T")
MOST_AT_ONCE = 10_000
"""Jobs in one call."""

_MOST_FIELDS = 100
"""More than any body has."""
_STORABLE = r"^[^\x00]*$"
_NOT_BLANK = r"^[^\x00]*[^\s\x00][^\x00]*$"
_INT32 = 2**31 - 1


def _text(longest: int, *, least: int = 0) -> dict[str, Any]:
    return {"minLength": least, "maxLength": longest, "pattern": _STORABLE}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _judged(check: Callable[[str, str], T]) -> AfterValidator:
    """A check of the core, without the field in its message, because the answer names the field."""

    def judge(text: str) -> T | str:
        try:
            return check("", text) or text
        except ValueError as error:
            raise ValueError(str(error).removeprefix(": ").removeprefix("priority: ")) from error

    return AfterValidator(judge)


def _as_it_is(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, dict) else check(value)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Object = Annotated[dict[str, Any], WrapValidator(_as_it_is)]
"""An object of any values: JSON has no other names than texts, and to check them all, and copy them, takes the event
loop a third of a second for an object of 9 MB."""
Name = Annotated[str, Field(json_schema_extra=_text(254, least=1)), _judged(check_name)]
"""The name of a queue, a group or a task: 1 to 254 bytes."""
Text = Annotated[str, Field(json_schema_extra={"pattern": _STORABLE}), _judged(check_text)]
"""A text of any length."""
GivenPriority = Annotated[
    str,
    Field(json_schema_extra={"pattern": "^([Hh][Ii][Gg][Hh]|[Ll][Oo][Ww])$", "examples": ["high", "low"]}),
    _judged(lambda _, text: priority_of(text)),
]
"""A priority, in upper or lower case."""
Whole = BeforeValidator(_whole)
"""An integer, also as 5.0: JSON has only one kind of number."""


class Body(BaseModel):
    """The base of all bodies: an unknown field, or one of another type, is refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_many(cls, value: Any) -> Any:
        # Pydantic makes an error of each unknown field, all at once: of a million, in seconds and gigabytes.
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            unknown = next(name for name in value if name not in cls.model_fields)
            raise ValueError(f"{len(value)} fields, and there is no {cut(unknown)!r}")
        return value


class WorkBody(Body):
    """A job: its task, its arguments, and its place in line."""

    task: str = Field(description="the name of the task", json_schema_extra=_text(254, least=1))
    args: Object = Field({}, description="its arguments by name")
    group: str = Field(
        "default", description="the tenant; Joex is fair between groups", json_schema_extra=_text(254, least=1)
    )
    queue: str = Field("default", description="the queue to take it from", json_schema_extra=_text(254, least=1))
    priority: GivenPriority = Field("low", description="high or low, within its group")
    subject: str = Field("", description="what the job is about; Joex only shows it", json_schema_extra=_text(1000))
    submitter: str = Field("", description="the submitter; Joex only shows it", json_schema_extra=_text(254))


class JobBody(WorkBody):
    """A submission."""

    not_before: str | None = Field(
        None,
        description="don't run the job before: a time with a zone (ISO 8601), or a delay",
        examples=["2026-12-24T18:00:00Z", "10m"],
    )
    tracker: str | None = Field(
        None,
        description="skip this submission while an unfinished job of its group has the same tracker",
        json_schema_extra=_text(254, least=1),
    )
    retries: Annotated[int, Field(ge=0, le=1_000_000), Whole] | None = Field(
        None, description="how often to retry the job; null: the default"
    )

    def fields(self) -> dict[str, Any]:
        """The arguments of `joex.Client.submit`, which checks them.

        Raises:
            InvalidJob: ``not_before`` is not a time or a delay.
        """
        return {**dict(self), "not_before": _not_before(self.not_before)}


class JobberBody(Body):
    """A submission as Jobber makes it: the type names the task and the queue."""

    type: Annotated[Name, AfterValidator(_not_blank)] = Field(
        description="the name of the task and of the queue",
        json_schema_extra=_text(254, least=1) | {"pattern": _NOT_BLANK},
    )
    payload: Any = Field(
        default_factory=dict,
        description="an object: the arguments of the task by name; any other JSON value: its argument 'payload'; "
        "left out: no arguments",
    )

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of the task."""
        return self.payload if isinstance(self.payload, dict) else {"payload": self.payload}


class PriorityBody(Body):
    """A new priority."""

    priority: GivenPriority = Field(description="high or low")


class ArgsBody(Body):
    """New arguments."""

    args: Object = Field(description="all new arguments, by name")


class QueueBody(Body):
    """Settings of a queue."""

    paused: bool = Field(description="executors and workers take no job of the queue")


class GroupBody(Body):
    """Settings of a group in a queue. A field that you leave out stays as it is."""

    queue: Name = "default"
    weight: Annotated[int, Field(ge=1, le=100), Whole] | None = Field(
        None, description="its share of the slots against other groups"
    )
    paused: bool | None = Field(None, description="executors take no job of the group")
    max_running: Annotated[int, Field(ge=0, le=_INT32), Whole] | None = Field(
        None, description="at most this many of its jobs run at a time; null removes the limit"
    )

    max_waiting: Annotated[int, Field(ge=0, le=100_000), Whole] | None = Field(
        None, description="refuse submissions while this many of its jobs wait in line; null removes the limit"
    )

    @property
    def limits(self) -> dict[str, int | None]:
        """``max_running`` and ``max_waiting`` as the store takes them: -1 removes one, None leaves it as it is."""
        given = {"max_running": self.max_running, "max_waiting": self.max_waiting}
        return {name: -1 if limit is None and name in self.model_fields_set else limit for name, limit in given.items()}


def _not_before(text: str | None) -> datetime | timedelta | None:
    """Return a time, or a delay.

    Raises:
        InvalidJob: it is neither.
    """
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        with suppress(ValueError):
            return parse_duration(text)
    else:
        with suppress(OverflowError):  # its zone takes it out of the calendar
            if time.tzinfo is not None:
                return time.astimezone(UTC)
    raise InvalidJob(
        f"not_before: expected a time with a zone ('2026-12-24T18:00:00Z') or a delay ('10m'); got {shown(text)}"
    )
