"""The events of an executor, as data.

One mechanism serves log lines, metrics, and the tests, which wait for events. (The events of
runs are tuples, which Python makes faster: there are thousands a second.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from joex.core.job import TakenJob
from joex.core.outcome import Verdict


@dataclass(frozen=True, slots=True)
class Registered:
    """The executor has registered; ``reclaimed`` jobs of its previous registrations wait again."""

    app_id: str
    executor: int
    reclaimed: int


@dataclass(frozen=True, slots=True)
class AppIdInUse:
    """Another executor with this app-id is alive; this one waits until it has exited. ``other`` names it."""

    app_id: str
    other: str


@dataclass(frozen=True, slots=True)
class AppIdRetired:
    """The app-id is retired: it may take no more jobs; this executor waits to be stopped."""

    app_id: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The executor took jobs (maybe none), in this many seconds; ``taken`` are the jobs."""

    asked: int
    jobs: int
    seconds: float
    taken: Sequence[TakenJob] = ()


class RunStarted(NamedTuple):
    """The code of a task starts. What a receiver sets in context variables, the code and its threads find there."""

    job: TakenJob


class RunEnded(NamedTuple):
    """A run has ended, and the end is written. ``seconds`` since its code started; None if it had not started."""

    job: TakenJob
    verdict: Verdict
    seconds: float | None


@dataclass(frozen=True, slots=True)
class WorkerConflict:
    """A run lost its job before its end could be written; its result was dropped."""

    job_id: UUID
    task: str


@dataclass(frozen=True, slots=True)
class RunNotWritten:
    """The database refuses to store the start or the end of a run, and the executor gives it up.

    ``what``: ``start`` (the job stays scheduled until its run ends), or ``end`` (its executor holds the job, without a
    run, until it leaves; then the job waits again).
    """

    job_id: UUID
    task: str
    what: str
    error: str


@dataclass(frozen=True, slots=True)
class Rescued:
    """This executor declared another one dead, and put its jobs back."""

    app_id: str
    executor: int
    jobs: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """Runs did not report within their tasks' timeouts: their jobs wait again. ``app_id``: the executor, or worker."""

    app_id: str
    jobs: int


@dataclass(frozen=True, slots=True)
class FellAsleep:
    """There is nothing to do; a job is due in ``next_due`` seconds; None if none is."""

    next_due: float | None


@dataclass(frozen=True, slots=True)
class Woken:
    """A notification arrived."""

    queue: str


@dataclass(frozen=True, slots=True)
class PeriodicNotRegistered:
    """A periodic task of the app is not set: the row with this id has another owner, or a transaction holds it."""

    id: str


@dataclass(frozen=True, slots=True)
class Repeated:
    """A periodic task was due; ``outcome`` is the decision.

    ``submitted`` (as this job), ``started`` (Joex's own work, by this executor), ``overlapping`` (the job before is not
    finished), ``late`` (missed by more than its starting deadline), ``refused`` (it can't run: ``error`` here, or in
    the task's row, says why), ``trouble`` (the executor tries again).
    """

    id: str
    queue: str
    group: str
    outcome: str
    job: UUID | None
    error: str | None


@dataclass(frozen=True, slots=True)
class LogLinesDropped:
    """Log lines of jobs were not written: the buffer was full, or their runs had lost their jobs."""

    lines: int
    reason: str


@dataclass(frozen=True, slots=True)
class TrustEnded:
    """The lease could not be renewed in time: the executor takes no jobs, and interrupts exclusive runs."""

    runs: int


@dataclass(frozen=True, slots=True)
class PatienceEnded:
    """The outage is longer than `outage_patience`: the executor interrupts all runs."""

    runs: int


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """Another executor has declared this registration dead; it starts over as a new one."""

    executor: int


@dataclass(frozen=True, slots=True)
class DatabaseTrouble:
    """A service could not reach the database, or was refused, and tries again after ``retry_in`` seconds.

    Its tries have failed for ``seconds``. ``is_news``: that is worth a log line (see `joex.trouble`).
    """

    service: str
    error: str
    retry_in: float
    seconds: float
    is_news: bool


@dataclass(frozen=True, slots=True)
class TroubleOver:
    """A service has reached the database again; before that its tries failed for ``seconds``."""

    service: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Draining:
    """The executor takes no more jobs, and waits for ``runs``."""

    runs: int


@dataclass(frozen=True, slots=True)
class Left:
    """The executor has exited; ``given_back`` jobs wait again."""

    executor: int
    given_back: int


Event: TypeAlias = (
    Registered
    | AppIdInUse
    | AppIdRetired
    | Taken
    | RunStarted
    | RunEnded
    | WorkerConflict
    | RunNotWritten
    | Rescued
    | Overdue
    | FellAsleep
    | Woken
    | PeriodicNotRegistered
    | Repeated
    | LogLinesDropped
    | TrustEnded
    | PatienceEnded
    | LeaseEnded
    | DatabaseTrouble
    | TroubleOver
    | Draining
    | Left
)
Emit: TypeAlias = Callable[[Event], None]
"""Receives events. Called on the executor's loop; must neither block nor raise."""
