"""The trace context of a submission (W3C Trace Context), as a job stores it.

That is one text: the ``traceparent``, and if there is a ``tracestate``, a space and that.
"""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})(?P<ids>-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(?P<more>-.*)?"
)
_TRACESTATE = re.compile(r"[ -~]{1,512}")


def trace_context_of(traceparent: str | None, tracestate: str | None = None) -> str | None:
    """The trace context in these headers; None: they have none.

    W3C wants a receiver to ignore an invalid ``traceparent``, to read one of a later version as one of this version,
    and allows it to drop a ``tracestate`` that is longer than 512 characters.
    """
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
    if found is None or (found["version"] == "00" and found["more"]):
        return None
    state = (tracestate or "").strip()
    return f"00{found['ids']} {state}" if _TRACESTATE.fullmatch(state) else f"00{found['ids']}"


def headers_of(trace_context: str) -> dict[str, str]:
    """A trace context as headers: ``traceparent``, and ``tracestate`` if there is one."""
    traceparent, _, tracestate = trace_context.partition(" ")
    return {"traceparent": traceparent} | ({"tracestate": tracestate} if tracestate else {})
