"""The notifications that wake an executor, on a connection that nothing else needs.

Any role that can connect to the database can notify, as often as it likes, and the server sends a session its
notifications before its answers. So a flood delays wake-ups, and nothing else: heartbeats, takes and ends have other
connections, and the chores ask with each heartbeat for what a lost notification would have said.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Hashable
from typing import Never

from joex.core.events import Woken
from joex.errors import JoexError
from joex.notifications.listener import Listener
from joex.runtime.lease_callbacks import Notifier
from joex.store import periodic
from joex.store.database import connect
from joex.store.errors import NO_MESSAGE
from joex.trouble import Trouble


class Wakeups:
    """Listens for one registration, in the thread of its lease.

    Args:
        url: the database.
        executor: the id of the registration.
        queues: the queues that it serves.
        check_every: seconds until the link is checked again.
        notifier: notifies the executor.
        check_soon: called when the database wants something of this executor or its runs.
    """

    def __init__(
        self,
        url: str,
        *,
        executor: int,
        queues: Collection[str],
        check_every: float,
        notifier: Notifier,
        check_soon: Callable[[], None],
    ) -> None:
        self._url = url
        self._executor = executor
        self._queues = queues
        self._check_every = check_every
        self._notifier = notifier
        self._check_soon = check_soon
        self._trouble = Trouble("listener", notifier.emit)
        self._undelivered: set[Hashable] = set()  # what the executor's loop has yet to hear

    async def receive(self) -> Never:
        """Listen, on one connection after the other, until cancelled."""
        while True:
            try:
                await self._session()
            except (JoexError, OSError) as error:
                await asyncio.sleep(self._trouble.failed(error))

    async def _session(self) -> Never:
        connection = await connect(self._url, name=f"joex listener {self._executor}")
        try:
            listener = Listener(connection, asyncio.Event())
            await listener.start()
            if not listener.is_pooled:
                await listener.listen("joex_wake", self._hear_wake)
                await listener.listen("joex_control", self._hear_control)
                await listener.listen(periodic.CHANNEL, self._hear_periodic)
                # Notifications from before this session listened do not come again.
                self._notifier.notify_executor(self._notifier.callbacks.on_wake)
                self._check_soon()
                self._hear_periodic("")
            while True:
                await listener.woken(asyncio.get_running_loop().time() + self._check_every)
                if not listener.is_pooled:
                    await listener.check()
                self._trouble.over()
        finally:
            connection.terminate()

    def _hear_wake(self, payload: str) -> None:
        try:
            message = json.loads(payload)
            queue = message["queue"]
            is_meant = queue in self._queues and (not message["executors"] or self._executor in message["executors"])
        except NO_MESSAGE:
            return
        if is_meant:
            self._deliver(("wake", queue), lambda: self._wake(queue))

    def _wake(self, queue: str) -> None:
        self._notifier.callbacks.on_event(Woken(queue))
        self._notifier.callbacks.on_wake()

    def _hear_control(self, payload: str) -> None:
        try:
            is_meant = json.loads(payload)["executor"] == self._executor
        except NO_MESSAGE:
            return
        if is_meant:
            self._check_soon()

    def _hear_periodic(self, _payload: str) -> None:
        self._deliver("periodic", self._notifier.callbacks.on_periodic)

    def _deliver(self, what: Hashable, call: Callable[[], None]) -> None:
        """Make this call on the executor's loop, once for all notifications that come until the loop gets to it.

        A task may block that loop for long, and a flood must not fill the memory meanwhile.
        """
        if what not in self._undelivered:
            self._undelivered.add(what)
            self._notifier.notify_executor(self._delivered, what, call)

    def _delivered(self, what: Hashable, call: Callable[[], None]) -> None:
        self._undelivered.discard(what)  # first: what comes from now on is news
        call()
