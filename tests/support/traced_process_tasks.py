"""A task in processes that makes spans, which a batch processor exports to a file."""

import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import joex

SPANS = "JOEX_TEST_SPANS"
"""The variable with the path of the file."""

app = joex.App()


class _ToFile(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ[SPANS]).open("a") as file:
            file.writelines(
                f"{span.context.trace_id} {span.parent.span_id if span.parent else None}\n" for span in spans
            )
        return SpanExportResult.SUCCESS


@app.task("trace", process=True)
def traced(ctx: joex.Context) -> int:
    with trace.get_tracer("shop").start_as_current_span("computes"):
        return os.getpid()


if SPANS in os.environ:  # in the server
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_ToFile(), schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)
