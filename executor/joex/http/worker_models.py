"""The request bodies of calls about keyed jobs, and of workers.

`joex.client.keyed_model` checks opts, and its messages name the field.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, Self
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from joex.core.duration import parse_duration
from joex.http.models import Body, Name, Object, Text, Whole
from joex.http.values import Type, Value

MOST_LISTED = 1000
"""The most jobs in one answer."""
MOST_LINES = 1000
"""The most log lines in one call."""
LONGEST_WAIT = timedelta(seconds=60)
_SHORTEST_TIMEOUT = timedelta(milliseconds=1)

_ONE_NAME: dict[str, Any] = {
    "oneOf": [
        {"required": ["job"], "properties": {"type": False, "id": False}},
        {"required": ["type", "id"], "properties": {"job": False}},
    ]
}
_ONE_TIMEOUT: dict[str, Any] = {
    "anyOf": [{"properties": {"activity": {"type": "null"}}}, {"properties": {"visibility": {"type": "null"}}}]
}


def _left_out() -> Any:
    """The value of a field that was left out. Not None, because null is a value like others here."""


def _duration(value: Any) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected a text such as '30s', or a number of seconds")  # noqa: TRY004 - pydantic wants it
    return parse_duration(value)


def _at_most(duration: timedelta) -> timedelta:
    if duration > LONGEST_WAIT:
        raise ValueError("at most 60 seconds")
    return duration


def _at_least(duration: timedelta) -> timedelta:
    if duration < _SHORTEST_TIMEOUT:
        raise ValueError("at least 1 ms")
    return duration


def _documented(pattern: str, least: float, most: float) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "number", "minimum": least, "maximum": most}]}
    )


Id = Annotated[UUID, Field(strict=False)]  # a string in JSON
Wait = Annotated[
    timedelta, BeforeValidator(_duration), AfterValidator(_at_most), _documented(r"^([0-9]|[1-5][0-9]|60)s$", 0, 60)
]
Timeout = Annotated[
    timedelta,
    BeforeValidator(_duration),
    AfterValidator(_at_least),
    _documented(r"^[1-9][0-9]{0,3}(s|m|h)$", 0.001, 3650 * 86400),
]


class Opts(BaseModel):
    """The options of a job. All other fields are yours."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", strict=True)

    data: Object | None = Field(None, description="the arguments; an update replaces all of them")
    priority: Value = Field(default_factory=_left_out, description="its place in line: the lowest first")
    resubmit: bool = Field(default=False, description="run the job once more when its run ends")

    _free: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _leave_free_fields(cls, value: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        # (As `Object`: Pydantic would check the name of each of them, and copy it.)
        if not isinstance(value, dict):
            return check(value)
        free = value.copy()
        made = check({name: free.pop(name) for name in cls.model_fields if name in free})
        made._free = free  # noqa: SLF001
        return made

    def given(self) -> dict[str, Any]:
        """Only the fields that the caller gave."""
        ours = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return {**self._free, **ours}


class NewOpts(Opts):
    """The options of a new job. All other fields are yours."""

    cancel: bool = Field(default=False, description="don't run the job until a client resubmits it")


class TypeBody(Body):
    """A type."""

    type: Type = Field(description="a type; or the name of a task")


class JobNameBody(Body):
    """A job: its type and id, or its UUID."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=_ONE_NAME)

    type: Type = Field(default_factory=_left_out, description="its type, with its id")
    id: Value = Field(default_factory=_left_out, description="its id, with its type")
    job: Id = Field(default_factory=_left_out, description="its UUID, instead of type and id")

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if self.model_fields_set & {"type", "id", "job"} not in ({"type", "id"}, {"job"}):
            raise ValueError("name the job: by 'type' and 'id', or by 'job'")
        return self

    @property
    def uuid(self) -> UUID | None:
        """Its UUID, if the caller named it so."""
        return self.job if "job" in self.model_fields_set else None


class AddBody(TypeBody):
    """A new job."""

    id: Value = Field(description="its id, unique within the type")
    opts: NewOpts = Field(default_factory=NewOpts)
    group: Name | None = Field(None, description="the tenant; null: all jobs of the type are one group")
    queue: Name | None = Field(None, description="the queue; null: a separate queue for the type")
    subject: Text | None = Field(None, description="what the job is about; Joex only shows it; null: its id")
    submitter: Text = Field("", description="the submitter; Joex only shows it")


class ResubmitBody(JobNameBody):
    """A job to run once more."""

    lock_id: Id | None = Field(None, description="the lock id of the run, if the run itself calls")


class ActiveBody(TypeBody):
    """Which running jobs of a type."""

    after: Value = Field(default_factory=_left_out, description="the id of the last job of the previous page")
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED), Whole] = Field(MOST_LISTED, description="at most this many")


class ListBody(ActiveBody):
    """Which jobs of a type."""

    state: Literal["pending", "running", "finished"] | None = Field(None, description="only in this state")
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED), Whole] = Field(100, description="at most this many")


class CountBody(TypeBody):
    """Which jobs of a type to count."""

    max_priority: Value = Field(default_factory=_left_out, description="only jobs whose priority is not above this")


class AcceptBody(TypeBody):
    """Which job a worker wants."""

    type: Type = Field(description="a type; or the name of any queue")
    max_priority: Value = Field(default_factory=_left_out, description="accept no job with a priority above this")
    worker: Name = Field("worker", description="the name of the worker; Joex only shows it")
    wait: Wait = Field(timedelta(0), description="how long to wait for a job: '20s', or seconds; at most 60 s")


class RunBody(JobNameBody):
    """A run."""

    lock_id: Id = Field(description="the lock id that accept returned")


class UpdateBody(RunBody):
    """A report of a run. Fields that are left out stay as they are."""

    opts: Opts = Field(default_factory=Opts)
    progress: float | None = Field(None, ge=0, le=100, description="per cent")
    message: Text | None = Field(None, description="the progress in words")
    log: list[Text] = Field([], max_length=MOST_LINES, description="lines for the log of the job")


class FinishBody(RunBody):
    """The end of a run."""

    opts: Opts = Field(default_factory=Opts)
    result: Any = Field(None, description="what came out")
    message: Text | None = Field(None, description="the result in words")
    error: Text | None = Field(None, description="the run has failed, for this reason")
    retry: bool = Field(default=True, description="false: the job fails for good, because no retry can help")
    log: list[Text] = Field([], max_length=MOST_LINES, description="the last lines for the log of the job")


class TimeoutBody(TypeBody):
    """When Joex puts back runs of a type. Neither activity nor visibility: no timeout."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=_ONE_TIMEOUT)

    activity: Timeout | None = Field(None, description="the longest time between two reports: '30s', or seconds")
    visibility: Timeout | None = Field(None, description="the longest time of a run: '5m', or seconds")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.activity is not None and self.visibility is not None:
            raise ValueError("activity, visibility: a type has one timeout")
        return self
