"""The format of a workload: kinds of tenants, the arrivals of their jobs, and their durations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from joex.errors import ConfigError
from joex_operator.api.fields import Duration, Name, Part, Queue, between
from joex_operator.api.objects import problem_line

_ZERO, _MILLISECOND = timedelta(0), timedelta(milliseconds=1)
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|min|h|day)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")
_HOURS = 24
_MOST_TENANTS = 100_000


def _read_rate(value: object) -> float:
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected jobs per time, such as '2/s', '30/min', '0.5/h' or '10/day'")
    return float(match[1]) / _SECONDS[match[2]]


def _read_share(value: object) -> float:
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match is None or float(match[1]) > 100:  # noqa: PLR2004 - percent
        raise ValueError("expected a share such as '20%'")
    return float(match[1]) / 100


def _read_spread(value: object) -> object:
    return {"constant": value} if isinstance(value, str) else value


Rate = Annotated[float, BeforeValidator(_read_rate)]
"""Jobs per second."""
Share = Annotated[float, BeforeValidator(_read_share)]


class Spread(Part):
    """The duration of runs: constant; around a mean (exponential); or mostly short, some long (lognormal)."""

    constant: Duration | None = None
    mean: Duration | None = Field(None, **between(_MILLISECOND))
    median: Duration | None = Field(None, **between(_MILLISECOND))
    p95: Duration | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Spread:
        given = {name for name in ("constant", "mean", "median", "p95") if getattr(self, name) is not None}
        if given not in ({"constant"}, {"mean"}, {"median", "p95"}):
            raise ValueError("expected a duration such as '5s', or a mean, or a median and its p95")
        if self.median is not None and self.p95 is not None and self.p95 < self.median:
            raise ValueError("p95 must not be below median")
        return self


class Burst(Part):
    """Many jobs at once, at a time after the beginning, and optionally at intervals."""

    jobs: int = Field(ge=1, le=10_000_000)
    at: Duration = _ZERO
    every: Duration | None = Field(None, **between(_MILLISECOND))


class Tenant(Part):
    """A group, or ``count`` groups, each with this load."""

    name: Name
    count: int = Field(1, ge=1, le=_MOST_TENANTS)
    queue: Queue = "default"
    rate: Rate | None = None
    arrivals: Literal["poisson", "constant"] = "poisson"
    daily: Annotated[list[float], Field(min_length=_HOURS, max_length=_HOURS)] | None = None
    bursts: list[Burst] = Field([])
    duration: Annotated[Spread, BeforeValidator(_read_spread)]
    high: Share = 0.0
    failures: Share = 0.0
    retries: int | None = Field(None, ge=0, le=1_000_000)
    retry_delay: Duration | None = None
    weight: int = Field(1, ge=1, le=100)
    max_running: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _check_load(self) -> Tenant:
        if self.rate is None and not self.bursts:
            raise ValueError("expected a rate, or bursts")
        if self.daily is not None and (min(self.daily) < 0 or not any(self.daily)):
            raise ValueError("daily: expected 24 factors of the rate, none below 0 and one above")
        if self.daily is not None and self.rate is None:
            raise ValueError("daily: expected only with a rate")
        return self

    def names(self) -> Sequence[str]:
        """The names of its groups."""
        return [self.name] if self.count == 1 else [f"{self.name}-{nr}" for nr in range(1, self.count + 1)]


class Workload(Part):
    """Tenants, and the period in which their jobs arrive. The same seed gives the same jobs."""

    period: Duration = Field(**between(timedelta(seconds=1)))
    seed: int = 1
    tenants: list[Tenant] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_names(self) -> Workload:
        names = [(tenant.queue, name) for tenant in self.tenants for name in tenant.names()]
        if len(set(names)) < len(names):
            twice = next(name for nr, (_, name) in enumerate(names) if names[nr] in names[:nr])
            raise ValueError(f"tenants: duplicate group {twice!r}")
        return self


def parse_workload(document: Any) -> Workload:
    """Parse a workload from a YAML document.

    Raises:
        ConfigError: it is invalid; the message is one line that names each wrong field.
    """
    try:
        return Workload.model_validate(document)
    except ValidationError as error:
        raise ConfigError("; ".join(problem_line(one) for one in error.errors(include_url=False))) from error
