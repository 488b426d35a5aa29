"""Queues: ``client.queues``."""

from __future__ import annotations

from collections.abc import Sequence

from joex.client.patience import PatientConnections
from joex.client.submissions import invalid
from joex.core.arguments import check_flag
from joex.core.job import check_name
from joex.store import stats
from joex.store.drivers import AnyConnection
from joex.store.stats import PausedQueue


class Queues:
    """The queues of a database: ``client.queues``.

    With ``connection``, a call works in that connection's transaction.
    """

    def __init__(self, connections: PatientConnections) -> None:
        self._connections = connections

    async def paused(self, *, connection: AnyConnection | None = None) -> Sequence[PausedQueue]:
        """The queues that are paused."""
        async with self._connections.using(connection) as used:
            return await stats.paused_queues(used)

    async def set(self, queue: str, *, paused: bool, connection: AnyConnection | None = None) -> None:
        """Pause a queue, or resume it, for all takes that begin from now on.

        Args:
            queue: the queue.
            paused: whether none of its jobs begins. Runs go on, and submissions are accepted.
            connection: set it in this connection's transaction.

        Raises:
            InvalidJob: a value is wrong; the message names the field.
        """
        with invalid():
            check_name("queue", queue)
            check_flag("paused", paused)
        async with self._connections.using(connection) as used:
            await stats.set_queue(used, queue, paused=paused)
