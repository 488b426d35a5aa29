"""The event loop of executors and operators: uvloop's where there is one, which is not the case on Windows."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop."""
    try:
        import uvloop  # noqa: PLC0415 - the other commands do without
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
