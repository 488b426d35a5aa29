"""Events -> log lines: everything that an executor writes to stderr. The logs of jobs are in the database."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from dataclasses import fields
from typing import Any, Protocol, TextIO
from uuid import UUID

import structlog
from structlog.typing import EventDict, Processor

from joex.config import Settings
from joex.core import events
from joex.core.job import State
from joex.core.text import printable

# The message of each event, beside its own fields.
_LINES: dict[type[events.Event], tuple[str, str]] = {
    events.Registered: ("info", "registered"),
    events.AppIdInUse: (
        "warning",
        "another executor with this app-id is alive: waiting until it has exited; give each its own: JOEX_APP_ID",
    ),
    events.AppIdRetired: ("info", "this app-id is retired and takes no more jobs: waiting to be stopped"),
    events.Taken: ("debug", "took jobs"),
    events.RunStarted: ("debug", "run started"),
    events.WorkerConflict: ("warning", "a run had lost its job: its result is dropped"),
    events.RunNotWritten: (
        "error",
        "the database refuses the start or the end of a run: given up (after an end, its job stays held)",
    ),
    events.Rescued: ("warning", "an executor has died: its jobs wait again"),
    events.Overdue: ("warning", "runs did not report within their task's timeout: their jobs wait again"),
    events.FellAsleep: ("debug", "fell asleep"),
    events.Woken: ("debug", "woken"),
    events.PeriodicNotRegistered: (
        "warning",
        "a periodic task of the app is not registered: its id has another owner, or an open transaction holds its row",
    ),
    events.Repeated: ("info", "a periodic task was due"),
    events.LogLinesDropped: ("warning", "log lines of jobs are dropped"),
    events.TrustEnded: (
        "warning",
        "the lease could not be renewed in time: taking no jobs, and interrupting exclusive runs",
    ),
    events.PatienceEnded: ("warning", "the database is away for longer than outage_patience: interrupting all runs"),
    events.LeaseEnded: ("warning", "another executor has declared this one dead: starting over"),
    events.DatabaseTrouble: ("warning", "the database can't be reached: trying again"),
    events.TroubleOver: ("info", "the database can be reached again"),
    events.Draining: ("info", "draining: taking no more jobs"),
    events.Left: ("info", "left"),
}
_NOT_SHOWN = ("is_news", "taken")
_ENDED = {
    State.SUCCESS: ("debug", "job succeeded"),
    State.STUCK: ("warning", "run failed: the job is retried"),
    State.FAILED: ("warning", "job failed"),
    State.CANCELLED: ("info", "job cancelled"),
    State.WAITING: ("info", "run interrupted: the job waits again"),
}


def fan_out(*emits: events.Emit) -> events.Emit:
    """Combine receivers: each event goes to all of them."""

    def emit(event: events.Event) -> None:
        for one in emits:
            one(event)

    return emit


class LogSettings(Protocol):
    """The settings of logging."""

    @property
    def log_format(self) -> str:
        """``console`` or ``json``."""

    @property
    def log_level(self) -> str:
        """``debug``, ``info``, ``warning`` or ``error``."""


class LogLines:
    """Writes a line for each event that is worth one. A `joex.core.events.Emit`.

    Args:
        settings: give the format and the level.
        stream: written to instead of stderr.
    """

    def __init__(self, settings: Settings, stream: TextIO | None = None) -> None:
        to = sys.stderr if stream is None else stream
        level = _level(settings)
        self._log = structlog.wrap_logger(
            structlog.WriteLogger(to),
            processors=[*_PREPARE, *_render(settings, to)],
            wrapper_class=structlog.make_filtering_bound_logger(level),
        )
        # Most events deserve a line only in debugging, and there are thousands of them a second.
        self._says_debug = level <= logging.DEBUG

    def __call__(self, event: events.Event) -> None:
        """Write a line about an event, if it deserves one. A broken stream disturbs nothing else."""
        if isinstance(event, events.RunEnded):
            level, text = _ENDED[event.verdict.state]
        else:
            level, text = _LINES[type(event)]
        if level == "debug" and not self._says_debug:
            return
        if isinstance(event, events.DatabaseTrouble) and not event.is_news:
            return
        with suppress(OSError, ValueError):
            getattr(self._log, level)(text, **_details(event))


def bind_run(event: events.Event) -> None:
    """Let each line that the code of a run logs name the run. A `joex.core.events.Emit`."""
    if isinstance(event, events.RunStarted):
        job = event.job
        structlog.contextvars.bind_contextvars(job=str(job.id), task=job.task, group=job.group, attempt=job.attempt + 1)


def capture_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Write what libraries and tasks log (with the standard library) in the same form, to the same stream."""
    to = sys.stderr if stream is None else stream
    handler = _Handler(to)
    handler.addFilter(_name_run)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_PREPARE, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.contextvars.merge_contextvars,
                *_render(settings, to),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_level(settings))


def capture_structlog(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Write what tasks log with structlog in the same form, to the same stream, unless the app has configured it."""
    to = sys.stderr if stream is None else stream
    if not structlog.is_configured():
        structlog.configure(
            processors=[structlog.contextvars.merge_contextvars, *_PREPARE, *_render(settings, to)],
            wrapper_class=structlog.make_filtering_bound_logger(_level(settings)),
            logger_factory=structlog.WriteLoggerFactory(to),
        )


class _Handler(logging.StreamHandler[TextIO]):
    """Says on its own stream what goes wrong: to write to a ``sys.stderr`` that a task has closed raises an error.

    It would do so in any code that logs; in the handler of exceptions of an event loop it ends the loop.
    """

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if logging.raiseExceptions:
            with suppress(Exception):
                self.stream.write(
                    f"--- Logging error ---\n{printable(traceback.format_exc())}"
                    f"Message: {record.msg!r}, arguments: {record.args!r}, of {record.pathname}:{record.lineno}\n"
                )
                self.flush()


def _name_run(record: logging.LogRecord) -> bool:
    """Add the run to a record, for others that read it later, such as Sentry; write it unless the job's log has it."""
    run = structlog.contextvars.get_contextvars()
    for name in ("job", "task", "group", "attempt"):
        if name in run:
            record.__dict__.setdefault(name, run[name])
    return record.name != "joex.run"


_PREPARE: list[Processor] = [
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _level(settings: LogSettings) -> int:
    return logging.getLevelNamesMapping()[settings.log_level.upper()]


def _render(settings: LogSettings, stream: TextIO) -> list[Processor]:
    if settings.log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        structlog.processors.format_exc_info,
        _disarm,
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,
            repr_native_str=True,
        ),
    ]


def _disarm(_: Any, __: str, line: EventDict) -> EventDict:
    """Names, and what tasks log and raise, come from submitters: they must not steer the terminal."""
    texts = ("event", "exception")  # (the renderer writes the values of other fields as Python does)
    return {printable(name): printable(str(value)) if name in texts else value for name, value in line.items()}


def _details(event: events.Event) -> dict[str, Any]:
    if isinstance(event, events.RunStarted | events.RunEnded):
        return _of_run(event)
    return {field.name: _plain(getattr(event, field.name)) for field in fields(event) if field.name not in _NOT_SHOWN}


def _of_run(event: events.RunStarted | events.RunEnded) -> dict[str, Any]:
    job = event.job
    details: dict[str, Any] = {
        "job": str(job.id),
        "task": job.task,
        "group": job.group,
        "queue": job.queue,
        "attempt": job.attempt + 1,  # as the task sees it: a taken job counts the attempts before this one
    }
    if isinstance(event, events.RunEnded):
        verdict = event.verdict
        details["seconds"] = _plain(event.seconds)
        details["error"] = verdict.error
        details["retry_in"] = None if verdict.delay is None else verdict.delay.total_seconds()
    return {name: value for name, value in details.items() if value is not None}


def _plain(value: object) -> object:
    if isinstance(value, UUID):
        return str(value)
    return round(value, 3) if isinstance(value, float) else value
