"""The callbacks of a lease's thread, and how its loop calls them on the executor's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from uuid import UUID

from joex.core.events import Event


class LeaseCallbacks(Protocol):
    """The callbacks of the lease's thread, each called on the executor's loop."""

    def on_event(self, event: Event) -> None:
        """Log and count an event."""

    def on_wake(self) -> None:
        """Look for work: there may be some."""

    def on_aside(self) -> None:
        """Fall asleep anew: this loop was blocked, so submissions have woken others meanwhile."""

    def on_reconnect(self) -> None:
        """Look for jobs that the database believes to run here: it may be another server than before."""

    def on_crowd(self) -> None:
        """Raise floors: takes have to walk over dead rows that vacuum has not cleared."""

    def on_periodic(self) -> None:
        """Read the periodic tasks: one has changed."""

    def on_drain(self) -> None:
        """Drain: a client or operator asks for it."""

    def on_cancel(self, job_id: UUID) -> None:
        """Cancel a job that this executor holds."""

    def on_lost(self, lock_ids: list[UUID]) -> None:
        """Interrupt these runs: they have lost their jobs."""

    def on_trust(self, *, trusted: bool) -> None:
        """Stop trusting the lease, or trust it again."""

    def on_patience_end(self) -> None:
        """Interrupt all runs: the outage is longer than `outage_patience`."""

    def on_ended(self) -> None:
        """End this registration: another executor has declared it dead."""


class Notifier:
    """Calls the callbacks from another thread's loop.

    Args:
        callbacks: called on the loop that runs while this object is made.
    """

    def __init__(self, callbacks: LeaseCallbacks) -> None:
        self.callbacks = callbacks
        self._loop = asyncio.get_running_loop()

    def notify_executor(self, what: Callable[..., None], *args: Any) -> None:
        """Call this callback on the executor's loop, soon; does nothing if that loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what, *args)

    def emit(self, event: Event) -> None:
        """Emit an event of the executor."""
        self.notify_executor(self.callbacks.on_event, event)
