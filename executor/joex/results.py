"""Reads the results of jobs as the types that the functions of their tasks return."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from joex.bounded_validation import BoundedValidator, first_problem
from joex.core.job import State
from joex.errors import ConfigError, JoexError

if TYPE_CHECKING:
    from joex.store.jobs import Job


class NoResult(JoexError):
    """A job has no result: it failed, was cancelled or is gone, or its result is not of the type that its task returns.

    Attributes:
        job: the job as it is stored; None: it is gone.
    """

    def __init__(self, message: str, job: Job | None) -> None:
        super().__init__(message)
        self.job = job


class Results:
    """The results of a task: values of the type that its function's annotation names."""

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self._function = function
        self._task = task

    def read(self, job_id: UUID, job: Job | None) -> Any:
        """The result of a finished job of this task; None: the job is gone.

        Raises:
            NoResult: the job has none of this type.
            ConfigError: the job is of another task, or pydantic can't check values against the annotation.
        """
        if job is None:
            raise NoResult(f"job {job_id} is gone, or its submission has not committed", None)
        if job.task != self._task:
            raise ConfigError(f"job {job_id} is of task {job.task!r}, not of {self._task!r}")
        if job.state != State.SUCCESS:
            why = f": {job.error}" if job.error else ""
            raise NoResult(f"job {job_id} of task {job.task!r} is {job.state}{why}", job)
        try:
            return self._validator.validate_json(to_json(job.result))
        except ValidationError as error:
            where, what = first_problem(error)
            where = f"result.{where}" if where else "result"
            raise NoResult(f"job {job_id} of task {job.task!r}: {where}: {what}", job) from None

    @cached_property
    def _validator(self) -> BoundedValidator:
        """What checks values; made at the first use, because most programs read no results."""
        try:
            kind = get_type_hints(self._function, include_extras=True).get("return", Any)
            return BoundedValidator(TypeAdapter(kind))
        except Exception as error:
            why, *_ = str(error).splitlines() or [type(error).__name__]
            raise ConfigError(f"task {self._task!r}: pydantic can't check its result: {why}") from error
