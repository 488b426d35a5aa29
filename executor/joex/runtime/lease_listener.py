"""What the thread of a lease tells its executor, and how the words cross from its loop to the executor's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol
from uuid import UUID

from joex.core.events import DatabaseTrouble, Event
from joex.runtime.clock import clock


class Listener(Protocol):
    """Is told; each call comes on the executor's loop."""

    def on_event(self, event: Event) -> None:
        """Something to log and count."""

    def on_wake(self) -> None:
        """There may be work."""

    def on_crowd(self) -> None:
        """Takes have to walk over what vacuum has not cleared."""

    def on_periodic(self) -> None:
        """A periodic task has changed."""

    def on_drain(self) -> None:
        """This executor is asked to drain."""

    def on_cancel(self, job_id: UUID) -> None:
        """A job that this executor holds is to be cancelled."""

    def on_lost(self, lock_ids: list[UUID]) -> None:
        """These runs have lost their jobs."""

    def on_trust(self, *, trusted: bool) -> None:
        """The lease can't be trusted any more, or can be again."""

    def on_ended(self) -> None:
        """The lease has ended: another executor has declared this incarnation dead."""


class Teller:
    """Tells the listener from another thread's loop.

    Args:
        listener: is told, on the loop that is running while this object is made.
        news_for: seconds for which a trouble that was told of is not told of again.
    """

    def __init__(self, listener: Listener, *, news_for: float) -> None:
        self.listener = listener
        self._news_for = news_for
        self._loop = asyncio.get_running_loop()
        self._told_at: dict[tuple[str, str], float] = {}  # of troubles

    def tell(self, what: Callable[..., None], *args: Any) -> None:
        """Call this method of the listener on its loop, soon; nothing happens where that loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(what, *args)

    def tell_event(self, event: Event) -> None:
        """Tell of an event."""
        self.tell(self.listener.on_event, event)

    def tell_trouble(self, service: str, error: str, retry_in: float) -> None:
        """Tell of a trouble with the database, unless the same was told of lately."""
        now = clock()
        self._told_at = {told: at for told, at in self._told_at.items() if now - at < self._news_for}
        if self._told_at.setdefault((service, error), now) == now:
            self.tell_event(DatabaseTrouble(service, error, retry_in))
