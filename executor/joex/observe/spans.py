"""Events -> spans of OpenTelemetry, by its conventions for messaging.

Each run has a span in the trace of its submission, and a link to it, because the conventions want one whatever the
parent is; its end has another one, below it. A take has a span of its own, with a link to each submission.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from joex.core import events
from joex.core.job import State, TakenJob
from joex.tracing import attributes_of, context_of, tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span

_log = logging.getLogger("joex")


class _RunSpan(NamedTuple):
    """The span of a run, and when it started, in nanoseconds."""

    job_id: UUID
    span: Span
    started: int


class Spans:
    """Makes spans of takes, runs and their ends. A `joex.core.events.Emit`; only where tracing is on.

    Args:
        app_id: of the executor.
    """

    def __init__(self, app_id: str) -> None:
        from opentelemetry import context, trace  # noqa: PLC0415 - only an application with it has one

        self._context = context
        self._trace = trace
        self._tracer = tracer()
        self._app_id = app_id
        self._runs: dict[UUID, _RunSpan] = {}  # by lock id

    def __call__(self, event: events.Event) -> None:
        """Start or end the spans that an event is about. An error of the application's span processors ends no run."""
        try:
            self._receive(event)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("the application's provider of traces has failed")

    def _receive(self, event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            self._start(event.job)
        elif isinstance(event, events.RunEnded):
            self._end(event)
        elif isinstance(event, events.Taken):
            self._take(event)
        elif isinstance(event, events.WorkerConflict):
            self._give_up(event.job_id, "the run had lost its job")
        elif isinstance(event, events.RunNotWritten) and event.what == "end":
            self._give_up(event.job_id, event.error)

    def _start(self, job: TakenJob) -> None:
        now = time.time_ns()
        parent = self._context.Context() if job.trace_context is None else context_of(job.trace_context)
        span = self._tracer.start_span(
            f"run {job.task}",
            parent,
            self._trace.SpanKind.CONSUMER,
            self._attributes("run", "process", job),
            self._links([job]),
            now,
        )
        self._runs[job.lock_id] = _RunSpan(job.id, span, now)
        # The code of the task starts in this context, which is the run's own, and ends with it.
        self._context.attach(self._trace.set_span_in_context(span))

    def _end(self, event: events.RunEnded) -> None:
        job, verdict = event.job, event.verdict
        run = self._runs.pop(job.lock_id, None)
        if run is None:  # its code has not started
            return
        span, ended = run.span, run.started + int((event.seconds or 0) * 1e9)
        finish = self._tracer.start_span(
            f"finish {job.task}",
            self._trace.set_span_in_context(span, self._context.Context()),
            self._trace.SpanKind.CLIENT,
            self._attributes("finish", "settle", job) | {"joex.state": str(verdict.state)},
            start_time=ended,
        )
        finish.end()
        span.set_attribute("joex.state", str(verdict.state))
        if verdict.state in (State.STUCK, State.FAILED):
            span.set_status(self._trace.StatusCode.ERROR, verdict.error)
        span.end(ended)

    def _give_up(self, job_id: UUID, error: str) -> None:
        """End the span of a run whose end is not written; of several runs of a job here, the first has lost it."""
        for lock_id, run in self._runs.items():
            if run.job_id == job_id:
                del self._runs[lock_id]
                run.span.set_status(self._trace.StatusCode.ERROR, error)
                run.span.end()
                break

    def _take(self, event: events.Taken) -> None:
        if not event.taken:
            return
        now = time.time_ns()
        queues = {job.queue for job in event.taken}
        queue = queues.pop() if len(queues) == 1 else None
        self._tracer.start_span(
            "take" if queue is None else f"take {queue}",
            self._context.Context(),
            self._trace.SpanKind.CLIENT,
            attributes_of(
                "take",
                "receive",
                messaging__destination__name=queue,
                messaging__client__id=self._app_id,
                messaging__batch__message_count=event.jobs,
                joex__queue=queue,
            ),
            self._links(event.taken),
            now - int(event.seconds * 1e9),
        ).end(now)

    def _links(self, jobs: Sequence[TakenJob]) -> list[Link]:
        return [
            self._trace.Link(
                self._trace.get_current_span(context_of(job.trace_context)).get_span_context(),
                {"messaging.message.id": str(job.id)},
            )
            for job in jobs
            if job.trace_context is not None
        ]

    def _attributes(self, operation: str, kind: str, job: TakenJob) -> dict[str, Any]:
        return attributes_of(
            operation,
            kind,
            messaging__destination__name=job.queue,
            messaging__message__id=str(job.id),
            messaging__client__id=self._app_id,
            joex__queue=job.queue,
            joex__task=job.task,
            joex__group=job.group,
            joex__attempt=job.attempt + 1,
        )
