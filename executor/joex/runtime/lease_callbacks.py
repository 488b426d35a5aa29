"""The callbacks of a lease's thread, and how its loop calls them on the executor's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from joex.core.events import Emit, Event


@dataclass(frozen=True, slots=True)
class LeaseCallbacks:
    """The callbacks of the lease's thread, each called on the executor's loop."""

    on_event: Emit  # logs and counts an event
    on_wake: Callable[[], None]  # looks for work: there may be some
    on_aside: Callable[[], None]  # falls asleep anew: the loop was blocked, so submissions have woken others meanwhile
    on_reconnect: Callable[[], None]  # looks for jobs that the database, maybe another one, believes to run here
    on_crowd: Callable[[], None]  # raises floors: takes have to walk over dead rows that vacuum has not cleared
    on_periodic: Callable[[], None]  # reads the periodic tasks: one has changed
    on_drain: Callable[[], None]  # drains: a client or operator asks for it
    on_cancel: Callable[[UUID], None]  # cancels a job that this executor holds, by its id
    on_lost: Callable[[list[UUID]], None]  # interrupts the runs with these lock ids: they have lost their jobs
    on_job_ended: Callable[[list[UUID]], None]  # counts the runs with these lock ids: they go on after their jobs
    on_trust: Callable[[], None]  # trusts the lease again
    on_distrust: Callable[[], None]  # stops trusting the lease
    on_patience_end: Callable[[], None]  # interrupts all runs: the outage is longer than `outage_patience`
    on_ended: Callable[[], None]  # ends this registration: another executor has declared it dead


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
