"""Periodic tasks, which create jobs whenever their timers are due: their fields, and the decision when one is due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from joex.core.job import NewJob, Priority, check_name
from joex.core.timers import Timer, parse_zone

SYSTEM_OWNER = "joex"
"""The owner of Joex's own periodic tasks, which create no jobs."""
USER = "user"
"""The owner of periodic tasks that users set: on the command line, over HTTP, in SQL."""
_LONGEST_ID = 240
_LONGEST_DEADLINE = timedelta(days=365_000)
_TICK = timedelta(microseconds=1)  # `Timer.next` is strictly later than its argument


@dataclass(frozen=True, slots=True)
class NewPeriodicTask:
    """A periodic task as its owner sets it.

    Attributes:
        id: its name, unique in its queue and group.
        task: the task that its jobs run.
        timer: when: a systemd calendar event, or a cron line.
        zone: the time zone of a timer that names none.
        args, group, queue, priority, subject, submitter: of its jobs; the default subject is its id.
        starting_deadline: skip a time missed by more than this; None: always catch up on the latest.
        enabled: None: unchanged; a new one is enabled.
    """

    id: str
    task: str
    timer: str
    zone: str = "UTC"
    args: Mapping[str, Any] = field(default_factory=dict)
    group: str = "default"
    queue: str = "default"
    priority: Priority = Priority.LOW
    subject: str = ""
    submitter: str = ""
    starting_deadline: timedelta | None = None
    enabled: bool | None = None

    def __post_init__(self) -> None:
        check_name("id", self.id)
        if len(self.id.encode()) > _LONGEST_ID:
            raise ValueError(f"id: at most {_LONGEST_ID} bytes; got {len(self.id.encode())}")
        job = NewJob(self.task, self.args, self.group, self.queue, self.priority, self.subject, self.submitter)
        object.__setattr__(self, "priority", job.priority)  # in small letters
        Timer.parse(self.timer)
        parse_zone(self.zone)
        if self.starting_deadline is not None and not timedelta(0) <= self.starting_deadline <= _LONGEST_DEADLINE:
            raise ValueError(f"starting_deadline: expected 0 to 1,000 years; got {self.starting_deadline}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The state of a periodic task for a decision.

    Attributes:
        timer, zone: as set.
        nextrun: when it is due; None: not computed yet.
        last_run: the latest time of its timer that a scheduler decided; None: none so far.
        starting_deadline: see `NewPeriodicTask`.
    """

    timer: str
    zone: str
    nextrun: datetime | None
    last_run: datetime | None
    starting_deadline: timedelta | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision: ``fire``, the time of the timer that is due (None: none is); ``next``, the time after it.

    ``next`` is None if there is none. ``error``: why it can't run.
    """

    fire: datetime | None = None
    next: datetime | None = None
    error: str | None = None


def decide(schedule: Schedule, now: datetime) -> Decision:
    """Decide about a periodic task that has no next time yet, or whose time has come.

    However many times were missed, at most one is caught up: the first that is not older than the starting deadline.
    The next time is after now, and after each decided time: if the clock was set back, none comes twice.
    A wrong timer is an error of this task alone.
    """
    try:
        return _decide(schedule, now)
    except ValueError as error:
        return Decision(error=str(error))
    except Exception as error:  # noqa: BLE001 - the caller goes on with the other tasks
        return Decision(error=f"timer {schedule.timer!r}: {type(error).__name__}: {error}")


def _decide(schedule: Schedule, now: datetime) -> Decision:
    timer, zone = _read_timer(schedule.timer), parse_zone(schedule.zone)
    fire = schedule.nextrun
    deadline = schedule.starting_deadline
    if fire is not None and deadline is not None and now - fire > deadline:
        fire = timer.next(now - deadline - _TICK, zone)
        fire = None if fire is None or fire > now else fire
    decided = [time for time in (now, schedule.last_run, fire) if time is not None]
    return Decision(fire, timer.next(max(decided), zone))


@lru_cache(maxsize=1024)
def _read_timer(text: str) -> Timer:
    """Parse a timer, cached: parsing takes longer than finding its next time."""
    return Timer.parse(text)
