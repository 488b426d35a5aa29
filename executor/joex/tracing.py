"""Traces by OpenTelemetry: the spans of submissions, and the trace contexts that travel with jobs.

Joex imports OpenTelemetry only after the application has configured it. So it costs nothing where it is not used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from joex.core.text import ErrorTexts
from joex.core.trace_context import headers_of, trace_context_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

_received: ContextVar[str | None] = ContextVar("joex_received_trace_context", default=None)


def is_on() -> bool:
    """Whether the application has a provider of traces."""
    api: Any = sys.modules.get("opentelemetry.trace")
    # (Another thread may be importing the module, so that it has not all of its names yet.)
    provider = getattr(api, "get_tracer_provider", None)
    return provider is not None and type(provider()) is not api.ProxyTracerProvider


def tracer() -> Tracer:
    """The tracer of Joex. Only where tracing is on."""
    from opentelemetry import trace  # noqa: PLC0415 - see above

    return trace.get_tracer("joex")


def attributes_of(operation: str, kind: str, **more: str | int | None) -> dict[str, str | int]:
    """The attributes of a span, by the conventions for messaging; ``kind``: send, receive, process or settle.

    In the names of ``more``, a double underscore stands for a dot. A value of None is left out.
    """
    given = {"messaging.system": "joex", "messaging.operation.name": operation, "messaging.operation.type": kind}
    return given | {name.replace("__", "."): value for name, value in more.items() if value is not None}


def context_of(trace_context: str) -> Context:
    """A trace context, as a parent of spans."""
    from opentelemetry.context import Context  # noqa: PLC0415 - see above
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator().extract(headers_of(trace_context), Context())


def current() -> str | None:
    """The trace context of the present span, for another process; None: there is none."""
    if not is_on():
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - see above

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return trace_context_of(carrier.get("traceparent"), carrier.get("tracestate"))


def go_on_in(trace_context: str | None) -> None:
    """Make this the parent of the spans that the code with these context variables makes."""
    if trace_context is not None and is_on():
        from opentelemetry import context  # noqa: PLC0415 - see above

        context.attach(context_of(trace_context))


@contextmanager
def receiving(trace_context: str | None) -> Iterator[None]:
    """Submit, within the block, on behalf of a caller whose request came with this trace context.

    Where the server of the request has a span of its own, as instrumented servers do, that one counts.
    """
    token = _received.set(trace_context)
    try:
        yield
    finally:
        _received.reset(token)


def flush() -> None:
    """Export the spans that the provider of traces has kept for a batch."""
    if is_on():
        from opentelemetry import trace  # noqa: PLC0415 - see above

        force_flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if force_flush is not None:
            force_flush()


def record_error(texts: ErrorTexts) -> None:
    """Note an exception in the span of the run whose code has raised it."""
    if is_on():
        from opentelemetry import trace  # noqa: PLC0415 - see above

        span = trace.get_current_span()
        span.set_attribute("error.type", type(texts.error).__qualname__)
        if not texts.is_long:
            with suppress(BaseException):  # of the error's own attributes
                span.record_exception(texts.error)


class Submission:
    """The time in which a client submits: no span, as tracing is off.

    Attributes:
        trace_context: what the jobs carry.
    """

    __slots__ = ("trace_context",)

    def __init__(self, trace_context: str | None) -> None:
        self.trace_context = trace_context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def stored(self, job_id: UUID | None) -> None:
        """Note the id of the job. None: its tracker skipped it."""


class _Traced(Submission):
    """The span of a submission."""

    __slots__ = ("_active", "_span")

    def __init__(self, name: str, attributes: dict[str, str | int]) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - see above
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        received, parent = _received.get(), None
        if received is not None and not trace.get_current_span().get_span_context().is_valid:
            parent = context_of(received)
        self._span = tracer().start_span(name, parent, trace.SpanKind.PRODUCER, attributes)
        self._active = trace.use_span(self._span, end_on_exit=True)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(self._span))
        super().__init__(trace_context_of(carrier.get("traceparent"), carrier.get("tracestate")))

    def __enter__(self) -> Self:
        self._active.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._span.set_attribute("error.type", kind.__qualname__)
        self._active.__exit__(kind, error, trace)

    def stored(self, job_id: UUID | None) -> None:
        if job_id is not None:
            self._span.set_attribute("messaging.message.id", str(job_id))


_UNTRACED = Submission(None)


def submitting(task: str, queue: str, group: str) -> Submission:
    """The submission of a job, for the time of a block."""
    if not is_on():
        received = _received.get()
        return _UNTRACED if received is None else Submission(received)
    given = attributes_of(
        "submit", "send", messaging__destination__name=queue, joex__queue=queue, joex__task=task, joex__group=group
    )
    return _Traced(f"submit {task}", given)


def submitting_many(jobs: int, queue: str | None) -> Submission:
    """The submission of many jobs, for the time of a block; ``queue``: the one of all of them."""
    if not is_on():
        received = _received.get()
        return _UNTRACED if received is None else Submission(received)
    given = attributes_of(
        "submit", "send", messaging__destination__name=queue, joex__queue=queue, messaging__batch__message_count=jobs
    )
    return _Traced("submit" if queue is None else f"submit {queue}", given)
