"""The specs of JoexPool and PeriodicTask, from which `crd` makes the CRDs.

Each description is the field's text in ``kubectl explain``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from joex.core.priority_turns import CountingScheme
from joex_operator.api.fields import (
    AnyObject,
    Duration,
    IntOrShare,
    Name,
    Part,
    Queue,
    Scheme,
    Template,
    TimerText,
    Zone,
    between,
    rules,
)
from joex_operator.api.names import LABEL, LONGEST_POOL, MOST_REPLICAS

_ZERO, _MINUTE, _HOUR = timedelta(0), timedelta(minutes=1), timedelta(hours=1)
_SURGE_IS_NONE, _MISSING_IS_NONE = (
    f"type(self.{name}) == string ? self.{name} == '0%' : self.{name} == 0" for name in ("maxSurge", "maxUnavailable")
)
_NO_ROLLOUT = "maxSurge and maxUnavailable must not both be 0"
_PLACE = "[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*"


class DatabaseRef(Part):
    """The secret with the database's URL."""

    secret_name: str = Field(
        min_length=1,
        max_length=253,
        # No slash: in a request to the API server, "../" would lead to a secret of another namespace.
        pattern=f"^{LABEL}([.]{LABEL})*$",
        description="name of the secret, in the pool's namespace",
    )
    secret_key: str = Field("url", min_length=1, max_length=253, description="key of the postgresql:// URL")


class ScalingPolicy(Part):
    """A limit on change: a number or a percentage of executors within a period."""

    type: Literal["Executors", "Percent"] = Field(description="unit of the value")
    value: int = Field(ge=1, le=MOST_REPLICAS, description="most executors to add or remove within a period")
    period_seconds: int = Field(ge=1, le=1800, description="length of the period")


class _Rules(Part):
    policies: list[ScalingPolicy] = Field([], max_length=10, description="limits on change; none: no limit")
    select_policy: Literal["Max", "Min", "Disabled"] = Field(
        "Max", description="which policy applies: that of the largest change, that of the smallest, or no change at all"
    )


class ScaleUp(_Rules):
    """How quickly a pool grows."""

    stabilization_window_seconds: int = Field(
        0, ge=0, le=3600, description="grow only to the smallest size wanted within this time"
    )


class ScaleDown(_Rules):
    """How quickly a pool shrinks."""

    stabilization_window_seconds: int = Field(
        300, ge=0, le=3600, description="shrink only to the largest size wanted within this time"
    )


class Behavior(Part):
    """How quickly a pool grows and shrinks, as in HorizontalPodAutoscaler."""

    scale_up: ScaleUp = Field(ScaleUp(), description="how quickly the pool grows")
    scale_down: ScaleDown = Field(ScaleDown(), description="how quickly the pool shrinks")


class Fallback(Part):
    """What to do when the database has been down for long, so that the demand is unknown."""

    after: Duration = Field(5 * _MINUTE, description="how long the database must be down", **between(_ZERO))
    replicas: int = Field(
        ge=0, le=MOST_REPLICAS, description="grow to this size; a pool never shrinks while its demand is unknown"
    )


class Target(Part):
    """How long jobs may wait, so that short ones share slots."""

    wait: Duration = Field(
        description="have slots for the work of the waiting jobs within this time, by the measured run times of their "
        "tasks; a job of a task that was not measured counts as a slot",
        **between(timedelta(seconds=1), 24 * _HOUR),
    )


class Scaling(Part):
    """Size by demand: runnable and running jobs over the slots of an executor."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra=rules(
            # The API server applies rules to the default of the object too, which is empty.
            *(
                (f"!has(self.{name}) || self.{field} <= self.maxReplicas", f"{field} must not be above maxReplicas")
                for name, field in (
                    ("minReplicas", "minReplicas"),
                    ("idleReserve", "idleReserve"),
                    ("fallback", "fallback.replicas"),
                )
            )
        )
    )
    min_replicas: int = Field(0, ge=0, le=MOST_REPLICAS, description="minimum of executors")
    max_replicas: int = Field(
        10, ge=1, le=MOST_REPLICAS, description="maximum of executors; draining ones do not count"
    )
    idle_reserve: int = Field(0, ge=0, le=MOST_REPLICAS, description="executors beyond the demand, ready for more")
    tolerance: float = Field(
        0.0, ge=0, le=0.5, description="keep the size while it differs from the wanted one by no more than this share"
    )
    target_utilization: int = Field(100, ge=1, le=100, description="desired percentage of slots in use")
    target: Target | None = Field(None, description="how long jobs may wait; none: a slot for each job")
    behavior: Behavior = Field(Behavior(), description="how quickly the pool grows and shrinks")
    fallback: Fallback | None = Field(None, description="what to do when the demand is unknown; none: keep the size")

    @model_validator(mode="after")
    def _check_bounds(self) -> Scaling:
        given = {"minReplicas": self.min_replicas, "idleReserve": self.idle_reserve}
        if self.fallback is not None:
            given["fallback.replicas"] = self.fallback.replicas
        for name, value in given.items():
            if value > self.max_replicas:
                raise ValueError(f"{name} must not be above maxReplicas")
        return self


class Drain(Part):
    """How long a draining executor may finish its jobs."""

    timeout: Duration = Field(
        _HOUR, description="how long; also the grace period of a pod that a user deletes", **between(_ZERO)
    )
    on_timeout: Literal["Wait", "Terminate"] = Field(
        "Wait", description="at the timeout: go on waiting, or interrupt the runs and give their jobs back"
    )


class Rollout(Part):
    """How a changed template reaches the executors, as in a Deployment."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra=rules(
            (
                f"!has(self.maxSurge) || !has(self.maxUnavailable) || !({_SURGE_IS_NONE}) || !({_MISSING_IS_NONE})",
                _NO_ROLLOUT,
            )
        )
    )
    max_surge: IntOrShare = Field(
        "25%", description="number or share of new executors that may start before old ones drain; rounded up"
    )
    max_unavailable: IntOrShare = Field(
        "25%", description="number or share of executors that may be missing during a rollout; rounded down"
    )
    min_ready_seconds: int = Field(
        0, ge=0, le=3600, description="how long a new executor must have been ready before old ones drain for it"
    )
    paused: bool = Field(False, description="leave outdated executors as they are")  # noqa: FBT003 - a default

    @model_validator(mode="after")
    def _check_progress(self) -> Rollout:
        if {self.max_surge, self.max_unavailable} <= {0, "0%"}:
            raise ValueError(_NO_ROLLOUT)
        return self


class JoexPoolSpec(Part):
    """Executors that serve the same queues with the same app, and bounds on their number."""

    app: str = Field(
        max_length=254, pattern=f"^{_PLACE}:{_PLACE}$", description="the app with the tasks: module:attribute"
    )
    image: str | None = Field(None, min_length=1, max_length=1024, description="none: the image of the operator")
    queues: list[Queue] = Field(
        ["default"],
        min_length=1,
        max_length=64,
        description="queues to serve in turn",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    database: DatabaseRef = Field(
        description="where the database's URL is; immutable, because executors drain by means of their database",
        json_schema_extra=rules(("self == oldSelf", "database can't be changed: make another pool")),
    )
    pool_size: int = Field(2, ge=1, le=100_000, description="slots of an executor: jobs that it runs at a time")
    counting_scheme: Scheme = Field(CountingScheme(4, 1), description="turns for high and low priority")
    retries: int = Field(5, ge=0, le=1_000_000, description="retries of a failed job")
    retry_delay: Duration = Field(
        _MINUTE, description="delay before the first retry; doubles with each retry", **between(_ZERO)
    )
    most_losses: int = Field(5, ge=0, le=1000, description="a job fails when more executors than this died holding it")
    timeout: Duration | None = Field(
        None, description="limit on the duration of a run; none: no limit", **between(timedelta(milliseconds=10))
    )
    log_buffer_size: int = Field(
        500, ge=1, le=1_000_000, description="log lines of jobs buffered before they are stored"
    )
    wakeup_period: Duration = Field(
        30 * _MINUTE, description="poll for jobs at least this often", **between(timedelta(milliseconds=10))
    )
    lease: Duration = Field(
        timedelta(seconds=6),
        description="silence after which a dead executor's jobs move on",
        **between(timedelta(milliseconds=300), _HOUR),
    )
    outage_patience: Duration = Field(
        _MINUTE,
        description="the longest outage of the database that interrupts no run, except of exclusive tasks; 0: none",
        **between(_ZERO),
    )
    replicas: int | None = Field(
        None,
        ge=0,
        le=MOST_REPLICAS,
        description="a fixed number of executors, as kubectl scale sets it, instead of scaling by demand",
    )
    suspend: bool = Field(False, description="drain all executors, and keep none")  # noqa: FBT003 - a default
    scaling: Scaling = Field(Scaling(), description="size by demand, unless replicas is set")
    drain: Drain = Field(Drain(), description="how executors leave")
    rollout: Rollout = Field(Rollout(), description="how a changed template reaches the executors")
    template: Template = Field(
        {},
        description="PodTemplateSpec merged over the operator's: containers, variables, volumes by name; null removes; "
        "at most 256 kB of JSON",
    )

    @model_validator(mode="after")
    def _check_queues(self) -> JoexPoolSpec:
        if len(set(self.queues)) < len(self.queues):
            raise ValueError("queues: each queue once")
        return self


class PeriodicTaskSpec(Part):
    """A job that is submitted at each time of a timer."""

    pool: str = Field(
        max_length=LONGEST_POOL,
        pattern=f"^{LABEL}$",
        description="the pool of this namespace in whose database the jobs run; immutable",
        json_schema_extra=rules(("self == oldSelf", "pool can't be changed: make another PeriodicTask")),
    )
    task: Name = Field(description="name of the task")
    timer: TimerText = Field(
        description="when to submit: a systemd calendar event such as '*-*-* 03:00', or a cron line"
    )
    time_zone: Zone = Field("UTC", description="time zone of a timer that names none")
    suspend: bool = Field(False, description="submit no jobs")  # noqa: FBT003 - a default
    group: Name = Field("default", description="group of the jobs")
    args: AnyObject = Field({}, description="arguments of the task, by name")
    subject: str = Field("", max_length=1000, description="subject of the jobs, for people")
    submitter: str = Field("", max_length=254, description="submitter of the jobs, for people")
    priority: Literal["high", "low"] = Field("low", description="priority of the jobs within the group")
    queue: Queue | None = Field(None, description="queue of the jobs, one of the pool's; none: its first")
    starting_deadline: Duration | None = Field(
        None, description="skip a time missed by more than this; none: catch up with one job", **between(_ZERO)
    )
