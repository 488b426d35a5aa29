"""A connection that receives notifications, and the loop that keeps one open while waits need it."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from joex.core.backoff import retry_delay
from joex.errors import DatabaseUnavailable, JoexError
from joex.store.database import answers, is_pooled
from joex.store.errors import translated
from joex.store.statement import Connection

T = TypeVar("T")
Connect = Callable[[], AbstractAsyncContextManager[Connection]]
"""Returns a connection for the time of a block, with errors translated."""

LINGER = 1.0
"""Seconds for which an idle listener stays open: a caller that waits for one thing after the other needs it again."""

_HEARD_AT_ONCE, _HEARD_PER_SECOND = 2_000_000, 1_000_000
"""Bytes of notifications that are no flood. (A client also hears of the jobs of others: of thousands a second.)"""
_OF_EACH = 100
"""Bytes that a notification counts as, besides its payload: it takes some ten microseconds of the event loop."""
_DEAF_FOR = 60.0
"""Seconds from a flood on in which a program does not listen."""
_UNREAD = 65_536
"""Bytes that the system takes of the server before they are read: the event loop reads all that are there before it
turns to anything else, and by itself the system takes megabytes of a flood."""
_ANSWER_WITHIN = 10.0
_FAREWELL_WITHIN = 2.0
_FIRST_RETRY, _LONGEST_RETRY = timedelta(seconds=0.1), timedelta(seconds=5)


_log = logging.getLogger("joex")


class Floods:
    """Notices floods of notifications, on one connection after the other.

    Any role that can connect can notify, as often as it likes. A flood would take all the time of the event loop, and
    the server sends a session its notifications before its answers. So the listener gives the connection up, polls on
    the next one, and listens again when a flood should be over.

    Attributes:
        over_at: until this time of the loop's clock, listen to none that everybody can send.
    """

    def __init__(self) -> None:
        self.over_at = -math.inf
        self._quiet_at = -math.inf  # when those that have come are no more than may come in their time

    def is_one(self, channel: str, payload: str) -> bool:
        """Count a notification; whether it is one too many."""
        now = asyncio.get_running_loop().time()
        self._quiet_at = max(now, self._quiet_at) + (_OF_EACH + len(payload)) / _HEARD_PER_SECOND
        if self._quiet_at - now <= _HEARD_AT_ONCE / _HEARD_PER_SECOND:
            return False
        self.over_at, self._quiet_at = now + _DEAF_FOR, now
        _log.warning(
            "a flood of notifications on the channel %s: polling for %g s; find who sends them (NOTIFY, pg_notify)",
            channel,
            _DEAF_FOR,
        )
        return True


class Listener:
    """A connection that receives notifications, with a time limit for each answer.

    Args:
        connection: a connection that no other code uses meanwhile.
        wakeup: set when there is something to do, also when the connection is lost.
        floods: of notifications, after which it is deaf for a while; None: the event loop has nothing else to do.

    Attributes:
        is_pooled: the connection leads through a pooler, so no notification comes.
        is_deaf: likewise, or there is a flood of them: the caller must poll.
        is_lost: the connection is lost.
    """

    def __init__(self, connection: Connection, wakeup: asyncio.Event, floods: Floods | None = None) -> None:
        self.connection = connection
        self._wakeup = wakeup
        self._floods = floods
        self._deaf_until = math.inf
        self._asking: asyncio.Timeout | None = None
        self._heard: dict[str, Callable[..., None]] = {}
        self.is_lost = False
        self.is_pooled = self.is_deaf = False

    async def start(self) -> None:
        """Notice a lost connection from now on, and find out whether notifications come at all."""
        with translated():
            self.connection.add_termination_listener(self._lose)
        self.is_pooled = self.is_deaf = await self.ask(is_pooled(self.connection))
        if self._floods is not None:
            self._limit_unread()
            if asyncio.get_running_loop().time() < self._floods.over_at:
                self.is_deaf, self._deaf_until = True, self._floods.over_at

    @asynccontextmanager
    async def held(self, farewell: Callable[[Connection], Awaitable[None]]) -> AsyncIterator[None]:
        """Use a pool's connection for the time of a block. Leaves it clean: ``farewell`` ends announcements."""
        try:
            await self.start()
            yield
        finally:
            await self._leave(farewell)

    async def listen(self, channel: str, hear: Callable[[str], None], *, is_secret: bool = False) -> None:
        """Call ``hear`` with the payload of each notification on a channel; none comes while the listener is deaf.

        ``is_secret``: only Joex knows the channel, so no flood can come on it.
        """
        if self.is_pooled or (self.is_deaf and not is_secret):
            return
        floods = None if is_secret else self._floods

        def heard(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            if self.is_lost:
                return  # the rest of a flood
            if floods is not None and floods.is_one(channel, str(payload)):
                self._lose(self.connection)
                if self._asking is not None and not self._asking.expired():
                    self._asking.reschedule(0)  # the answer would come after the flood
                return
            hear(str(payload))

        await self.ask(self.connection.add_listener(channel, heard))
        self._heard[channel] = heard

    async def unlisten(self, channel: str) -> None:
        """Stop listening on this channel."""
        await self.ask(self.connection.remove_listener(channel, self._heard.pop(channel)))

    async def ask(self, answer: Awaitable[T]) -> T:
        """Wait for an answer of the server. Without one in time, the link counts as silent.

        Raises:
            DatabaseUnavailable: the connection is lost, or silent.
        """
        try:
            with translated():
                async with asyncio.timeout(_ANSWER_WITHIN) as self._asking:
                    return await answer
        except DatabaseUnavailable:
            self.is_lost = True  # the server would not answer a farewell either
            raise
        finally:
            self._asking = None

    async def check(self) -> None:
        """Find out whether the link is silent: a listener that only listens would not notice.

        Raises:
            DatabaseUnavailable: the connection is lost, or silent.
        """
        await self.ask(answers(self.connection))

    async def woken(self, until: float) -> bool:
        """Wait for the wakeup, at most until this time of the loop's clock; returns whether it has come.

        Raises:
            DatabaseUnavailable: the connection is lost, or a flood should be over: listen on another one.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(until, self._deaf_until)):
                await self._wakeup.wait()
        self.is_lost |= asyncio.get_running_loop().time() >= self._deaf_until
        if self.is_lost:
            raise DatabaseUnavailable("the connection to the database is lost")
        return self._wakeup.is_set()

    def _limit_unread(self) -> None:
        transport: Any = getattr(self.connection, "_transport", None)  # asyncpg has no other way to its socket
        link = None if transport is None else transport.get_extra_info("socket")
        if link is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD)

    async def _leave(self, farewell: Callable[[Connection], Awaitable[None]]) -> None:
        is_left = False
        try:
            with suppress(JoexError), translated():
                self.connection.remove_termination_listener(self._lose)
                async with asyncio.timeout(0 if self.is_lost else _FAREWELL_WITHIN):
                    await farewell(self.connection)
                    for channel, heard in self._heard.items():
                        await self.connection.remove_listener(channel, heard)
                is_left = True
        finally:
            if not is_left:
                with suppress(JoexError), translated():
                    self.connection.terminate()

    def _lose(self, _connection: object) -> None:
        self.is_lost = True
        self._wakeup.set()


class ListenerLoop:
    """An asyncio task that serves waits on one connection after the other, while there are any.

    Args:
        name: the name of the asyncio task.
        connect: lends the connections.
        serve: serves with a connection until no wait is left; raises `DatabaseUnavailable` when the connection is lost.
        is_needed: whether there are waits.
        fail: called with a permanent error (a wrong URL, no schema): all waits must end with it.
    """

    def __init__(
        self,
        name: str,
        connect: Connect,
        serve: Callable[[Connection], Awaitable[None]],
        is_needed: Callable[[], Any],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._connect = connect
        self._serve = serve
        self._is_needed = is_needed
        self._fail = fail
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task for a new wait, unless it runs already."""
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """End the task. Open waits get an error."""
        self._fail(JoexError("the client was closed"))
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await asyncio.wait([work])

    async def _run(self) -> None:
        failures, clock = 0, asyncio.get_running_loop().time
        while self._is_needed():
            begun = clock()
            try:
                async with self._connect() as connection:
                    begun = clock()
                    await self._serve(connection)
            except DatabaseUnavailable:
                has_worked = clock() - begun > _LONGEST_RETRY.total_seconds()
                failures = 1 if has_worked else failures + 1
                await asyncio.sleep(retry_delay(_FIRST_RETRY, failures, _LONGEST_RETRY).total_seconds())
            except Exception as error:  # noqa: BLE001 - after any error, no wait may last forever
                self._fail(error)
                return
