"""Runs the coroutines of calls where every connection is synchronous: without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def blocking(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits for an event loop, because whatever it awaits blocks instead."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    call.close()
    raise RuntimeError(f"{call!r} waits for an event loop")
