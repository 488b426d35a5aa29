"""A connection that receives notifications, and the loop that keeps one open while waits need it."""

from __future__ import annotations

import asyncio
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

_ANSWER_WITHIN = 10.0
_FAREWELL_WITHIN = 2.0
_FIRST_RETRY, _LONGEST_RETRY = timedelta(seconds=0.1), timedelta(seconds=5)


class Listener:
    """A connection that receives notifications, with a time limit for each answer.

    Args:
        connection: a connection that no other code uses meanwhile.
        wakeup: set when there is something to do, also when the connection is lost.

    Attributes:
        is_pooled: the connection leads through a pooler, so no notification comes, and the caller must poll.
        is_lost: the connection is lost.
    """

    def __init__(self, connection: Connection, wakeup: asyncio.Event) -> None:
        self.connection = connection
        self._wakeup = wakeup
        self._heard: dict[str, Callable[..., None]] = {}
        self.is_lost = False
        self.is_pooled = False

    async def start(self) -> None:
        """Notice a lost connection from now on, and find out whether notifications come at all."""
        with translated():
            self.connection.add_termination_listener(self._lose)
        self.is_pooled = await self.ask(is_pooled(self.connection))

    @asynccontextmanager
    async def held(self, farewell: Callable[[Connection], Awaitable[None]]) -> AsyncIterator[None]:
        """Use a pool's connection for the time of a block. Leaves it clean: ``farewell`` ends announcements."""
        try:
            await self.start()
            yield
        finally:
            await self._leave(farewell)

    async def listen(self, channel: str, hear: Callable[[str], None]) -> None:
        """Call ``hear`` with the payload of each notification on a channel; through a pooler none comes."""
        if self.is_pooled:
            return

        def heard(_connection: object, _pid: int, _channel: str, payload: object) -> None:
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
                async with asyncio.timeout(_ANSWER_WITHIN):
                    return await answer
        except DatabaseUnavailable:
            self.is_lost = True  # the server would not answer a farewell either
            raise

    async def check(self) -> None:
        """Find out whether the link is silent: a listener that only listens would not notice.

        Raises:
            DatabaseUnavailable: the connection is lost, or silent.
        """
        await self.ask(answers(self.connection))

    async def woken(self, until: float) -> bool:
        """Wait for the wakeup, at most until this time of the loop's clock; returns whether it has come.

        Raises:
            DatabaseUnavailable: the connection is lost.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wakeup.wait()
        if self.is_lost:
            raise DatabaseUnavailable("the connection to the database is lost")
        return self._wakeup.is_set()

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
