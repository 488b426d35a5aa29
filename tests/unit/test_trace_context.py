"""Trace contexts, as they come in headers and as jobs carry them."""

import subprocess
import sys

import pytest

from joex.core.trace_context import headers_of, trace_context_of

IDS = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
PARENT = f"00-{IDS}-01"


def test_a_trace_context_comes_back_as_the_headers_that_it_was_made_of():
    assert headers_of(trace_context_of(PARENT) or "") == {"traceparent": PARENT}
    with_state = trace_context_of(PARENT, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7") or ""
    assert headers_of(with_state) == {"traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"}


def test_a_later_version_is_read_as_this_one():
    assert trace_context_of(f"cc-{IDS}-01-what-the-future-brings") == PARENT


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00",
        IDS,
        f"ff-{IDS}-01",
        f"00-{IDS}-01-more",
        f"00-{IDS.upper()}-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)
def test_an_invalid_traceparent_is_ignored(header):
    assert trace_context_of(header, "congo=1") is None


@pytest.mark.parametrize("state", ["", " ", "x" * 513, "ü=1", "a=1\nb=2"])
def test_a_tracestate_that_can_not_be_kept_is_dropped(state):
    assert trace_context_of(PARENT, state) == PARENT


def test_joex_does_not_import_opentelemetry_by_itself():
    program = """
import sys
import joex.client.client, joex.cli.executor, joex.observe.spans, joex.runtime.executor, joex.sync
from joex import tracing
from joex.core.text import ErrorTexts
with tracing.submitting("t", "q", "g"), tracing.receiving(None):
    tracing.record_error(ErrorTexts(ValueError()))
assert not tracing.is_on()
print(sorted(name for name in sys.modules if name.partition(".")[0] == "opentelemetry"))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
