"""Groups, between which Joex is fair: ``client.groups``."""

from __future__ import annotations

from collections.abc import Sequence

from joex.client.patience import PatientConnections
from joex.client.submissions import invalid
from joex.core.arguments import HIGHEST, check_flag, check_number
from joex.core.job import check_name
from joex.store import stats
from joex.store.drivers import AnyConnection
from joex.store.stats import GroupSetting, GroupStats

_HEAVIEST = 100
_MOST_WAITING = 100_000


class Groups:
    """The groups of a database: ``client.groups``.

    With ``connection``, a call works in that connection's transaction. Wrong values raise `InvalidJob`, which names the
    field.
    """

    def __init__(self, connections: PatientConnections) -> None:
        self._connections = connections

    async def list(
        self, queue: str | None = None, *, most: int = 100, connection: AnyConnection | None = None
    ) -> Sequence[GroupStats]:
        """The groups that have unfinished jobs, those with the most first.

        Args:
            queue: only in this queue.
            most: at most this many.
            connection: read in this connection's transaction.
        """
        _check(queue, most)
        async with self._connections.using(connection) as used:
            return await stats.group_stats(used, queue, most)

    async def settings(
        self, queue: str | None = None, *, most: int = 1000, connection: AnyConnection | None = None
    ) -> Sequence[GroupSetting]:
        """The groups that have settings of their own; the arguments are those of `list`."""
        _check(queue, most)
        async with self._connections.using(connection) as used:
            return await stats.group_settings(used, queue, most)

    async def set(
        self,
        group: str,
        *,
        queue: str = "default",
        weight: int | None = None,
        paused: bool | None = None,
        max_running: int | None = None,
        max_waiting: int | None = None,
        connection: AnyConnection | None = None,
    ) -> None:
        """Change settings of a group in a queue, at once; None leaves one as it is.

        Args:
            group: the group.
            queue: the queue.
            weight: its slots in proportion to those of other groups, 1 to 100; initially 1.
            paused: whether none of its jobs begins.
            max_running: how many of its jobs may run at a time; -1: any number.
            max_waiting: how many of its jobs may wait, so that Joex refuses further submissions; -1: any number.
            connection: set it in this connection's transaction.

        Raises:
            InvalidJob: a value is wrong; the message names the field.
        """
        with invalid():
            check_name("group", group)
            check_name("queue", queue)
            if paused is not None:
                check_flag("paused", paused)
            for field, number, least, highest in (
                ("weight", weight, 1, _HEAVIEST), ("max_running", max_running, -1, HIGHEST),
                ("max_waiting", max_waiting, -1, _MOST_WAITING),
            ):  # fmt: skip
                if number is not None:
                    check_number(field, number, least, highest)
        async with self._connections.using(connection) as used:
            await stats.set_group(
                used, group, queue, weight=weight, paused=paused, max_running=max_running, max_waiting=max_waiting
            )


def _check(queue: str | None, most: int) -> None:
    with invalid():
        if queue is not None:
            check_name("queue", queue)
        check_number("most", most)
