"""The bodies of calls about jobs with types and ids of their callers' own, and of workers' calls.

What opts may say is judged by `joex.client.keyed_model`, whose messages name the field.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from joex.core.duration import parse_duration
from joex.http.models import Body, Name, Text, Whole
from joex.http.values import Type, Value

MOST_LISTED = 1000
"""Jobs in one answer."""
MOST_LINES = 1000
"""Lines for a log in one call."""
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
    """What a value is when it is left out. A default would be documented: here null is a value like others."""


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


Id = Annotated[UUID, Field(strict=False)]  # in JSON it is a text
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
    """What a job says. All other fields are free."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", strict=True)

    data: dict[str, Any] | None = Field(None, description="the arguments; a run's report replaces all of them")
    priority: Value = Field(default_factory=_left_out, description="its place in line: the lowest first")
    resubmit: bool = Field(default=False, description="it goes round once more when its run ends")

    def given(self) -> dict[str, Any]:
        """What was said, and no more."""
        ours = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return {**(self.model_extra or {}), **ours}


class NewOpts(Opts):
    """What a new job says. All other fields are free."""

    cancel: bool = Field(default=False, description="it is not to run until it is resubmitted")


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
        """Its UUID, where it was named so."""
        return self.job if "job" in self.model_fields_set else None


class AddBody(TypeBody):
    """A new job."""

    id: Value = Field(description="its id, unique within the type")
    opts: NewOpts = Field(default_factory=NewOpts)
    group: Name | None = Field(None, description="the tenant; null: all jobs of the type are one group")
    queue: Name | None = Field(None, description="the lane of work; null: the type has one of its own")
    subject: Text | None = Field(None, description="what it is about, for people; null: its id")
    submitter: Text = Field("", description="who adds it, for people")


class ResubmitBody(JobNameBody):
    """A job to run once more."""

    lock_id: Id | None = Field(None, description="said by the run itself")


class ListBody(TypeBody):
    """Which jobs of a type."""

    state: Literal["pending", "running", "finished"] | None = Field(None, description="in this state only")
    after: Value = Field(default_factory=_left_out, description="the id of the last job of the page before")
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED), Whole] = Field(100, description="at most so many")


class CountBody(TypeBody):
    """Which jobs of a type count."""

    max_priority: Value = Field(default_factory=_left_out, description="none above it")


class AcceptBody(TypeBody):
    """What a worker wants to do."""

    type: Type = Field(description="a type; or the name of any queue")
    max_priority: Value = Field(default_factory=_left_out, description="nothing above it")
    worker: Name = Field("worker", description="the name of the worker, for people")
    wait: Wait = Field(timedelta(0), description="wait so long for a job: '20s', or seconds; at most 60 s")


class RunBody(JobNameBody):
    """A run."""

    lock_id: Id = Field(description="as accept has answered")


class UpdateBody(RunBody):
    """A report of a run. What is left out stays as it is."""

    opts: Opts = Field(default_factory=Opts)
    progress: float | None = Field(None, ge=0, le=100, description="per cent")
    message: Text | None = Field(None, description="the progress in words")
    log: list[Text] = Field([], max_length=MOST_LINES, description="lines for the log of the job")


class FinishBody(RunBody):
    """The end of a run."""

    opts: Opts = Field(default_factory=Opts)
    result: Any = Field(None, description="what came out")
    message: Text | None = Field(None, description="what came out, in words")
    error: Text | None = Field(None, description="the run has failed, and why")
    retry: bool = Field(default=True, description="false: the job fails for good, no try can help")
    log: list[Text] = Field([], max_length=MOST_LINES, description="the last lines for the log of the job")


class TimeoutBody(TypeBody):
    """When runs of a type are put back. Neither activity nor visibility: its timeout is taken away."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=_ONE_TIMEOUT)

    activity: Timeout | None = Field(None, description="the longest time between two reports: '30s', or seconds")
    visibility: Timeout | None = Field(None, description="the longest time of a run: '5m', or seconds")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.activity is not None and self.visibility is not None:
            raise ValueError("activity, visibility: a type has one timeout")
        return self
