"""Callers take turns for what would keep connections to the database from the calls of others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import NoReturn
from weakref import WeakValueDictionary

from fastapi import HTTPException, Request

from joex.http.caller import acting, caller_of, refuse_if_gone, refuse_if_revoked
from joex.http.connection_shares import holding_as
from joex.http.errors import RETRY_AFTER
from joex.store.statement import Connection

MOST_REPORTS = 2
"""Lists and reports that read at a time, one of each caller, so that other calls find a connection."""
MOST_ACTING = 4
"""Callers who change something at a time: what another transaction holds keeps such a call, and its connection."""
MOST_ACCEPTING = 2
"""Calls of a tenant that is bound that look for a job at a time: beside many paused groups that takes a second each."""
ANSWERED_AT_ONCE, ANSWERED_PER_SECOND = 8_000_000, 2_000_000
"""Bytes of answers to a bound tenant, and of its bodies: others' calls and runs wait while they are read."""
OF_BODY = 0.25
"""What a byte of a body counts as: a program may submit 10,000 small jobs in a call, some times in a second."""
_OF_PART, _OF_OBJECT = 10, 50
"""Bytes that a comma or a bracket, and a brace, count as besides their own: the time goes to values, of which a
megabyte may have 300,000, and most of all to objects."""
MOST_IN_LINE = 50
"""Calls of a caller with those that wait for their turn, in each line: each has a place that other calls need."""


class Turns:
    """At most so many of each caller at a time: of each, so that no tenant keeps others waiting."""

    def __init__(self) -> None:
        self._of: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, caller: Hashable, most: int) -> asyncio.Semaphore:
        """Held during a turn of the caller, or the tenant, with this key."""
        return self._of.setdefault(caller, asyncio.Semaphore(most))

    @asynccontextmanager
    async def beginning(self, caller: Hashable, closing: asyncio.Event) -> AsyncIterator[None]:
        """Held before a call of this caller goes on: one in each pass of the event loop.

        So the calls of others go on before the next one, also where none of these waits for anything.

        Raises:
            HTTPException: 503: see `held`.
        """
        async with held(self.of(caller, 1), closing):
            await asyncio.sleep(0)
            yield


@asynccontextmanager
async def held(turn: asyncio.Semaphore, closing: asyncio.Event) -> AsyncIterator[None]:
    """Held during a turn, for which a call waits no longer than until the server stops.

    Raises:
        HTTPException: 503: it stops, and the turn is not free. The server would soon cut the call off, with no answer
            that says whether it was done.
    """
    taking, stopping = (asyncio.create_task(one) for one in (turn.acquire(), closing.wait()))
    try:
        await asyncio.wait([taking, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            refuse("this server stops: try again")
        yield
    finally:
        stopping.cancel()
        if not taking.cancel():  # it is done
            turn.release()


class Pace:
    """Lets each tenant have so many bytes of bodies and answers in a second, and so many more at once."""

    def __init__(self) -> None:
        self._paid_at: dict[Hashable, float] = {}  # when the seconds of these will have passed

    def count(self, tenant: Hashable, text: bytes, of_byte: float = 1.0, *, passed: int = 0) -> None:
        """Count a body, or an answer, JSON; with so many bytes whose parts count nothing (`joex.http.passed_on`)."""
        parts = _OF_PART * (text.count(b",") + text.count(b"[")) + _OF_OBJECT * text.count(b"{")
        cost = of_byte * (len(text) + parts) + passed
        now = asyncio.get_running_loop().time()
        self._paid_at[tenant] = max(now, self._paid_at.get(tenant, now)) + cost / ANSWERED_PER_SECOND

    def early(self, tenant: Hashable) -> float:
        """In how many seconds the tenant may have another body read, or an answer; now: 0, or less."""
        within = ANSWERED_AT_ONCE / ANSWERED_PER_SECOND
        return self._paid_at.get(tenant, 0) - within - asyncio.get_running_loop().time()

    async def wait(self, tenant: Hashable, closing: asyncio.Event) -> None:
        """Wait until the tenant may have another one.

        Raises:
            HTTPException: 503: see `held`.
        """
        while (early := self.early(tenant)) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), early)
                refuse("this server stops: try again")


class PacedTurn:
    """A turn of a tenant, which begins when it may also have another answer (`joex.client.accepting_worker.Turn`)."""

    def __init__(self, turn: asyncio.Semaphore, pace: Pace, tenant: Hashable, closing: asyncio.Event) -> None:
        self._turn, self._pace, self._tenant, self._closing = turn, pace, tenant, closing

    def locked(self) -> bool:
        """Whether a call would wait."""
        return self._turn.locked() or self._pace.early(self._tenant) > 0

    async def acquire(self) -> None:
        """Wait for the turn.

        Raises:
            HTTPException: 503: see `held`.
        """
        await self._turn.acquire()
        try:
            await self._pace.wait(self._tenant, self._closing)
        except BaseException:
            self._turn.release()
            raise

    def release(self) -> None:
        """End the turn."""
        self._turn.release()


class Line:
    """Lets so many have their turn at a time, in the order of their coming: no caller waits for all calls of another.

    Args:
        what: whose line it is, for messages.
        most: turns at a time.
        of_each: of them, those of one caller.
        of_reads: it is a line of reads: a caller that has hung up needs none.
        pace: of the answers: calls that wait here have begun together, before it counted an answer to one of them.
    """

    def __init__(self, what: str, most: int, of_each: int, *, of_reads: bool, pace: Pace | None = None) -> None:
        self._what, self._of_each, self._of_reads, self._pace = what, of_each, of_reads, pace
        self._turns, self._all = Turns(), asyncio.Semaphore(most)
        self._of: Counter[Hashable] = Counter()

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        """Held while this request is at work.

        Raises:
            HTTPException: 400: it is a read, and its caller has hung up. 401: the token was revoked meanwhile. 503:
                too many of this caller wait, or the server stops.
        """
        key, closing = (await caller_of(request)).tenant, request.app.state.closing
        if self._of[key] >= MOST_IN_LINE:
            refuse(f"{MOST_IN_LINE} of your {self._what} wait for their turn: try again")
        with counted(self._of, key):
            async with AsyncExitStack() as turn:
                await turn.enter_async_context(held(self._turns.of(key, self._of_each), closing))
                if self._pace is not None:
                    await self._pace.wait(key, closing)
                await turn.enter_async_context(held(self._all, closing))
                await refuse_if_revoked(request)
                await refuse_if_gone(request, is_read=self._of_reads)
                # (As its caller, whose other calls may wait for locks, it would keep the turn from others. It needs no
                # share: there are connections for as many as have their turn.)
                with holding_as(None):
                    yield

    @asynccontextmanager
    async def turn_of(self, caller: Hashable) -> AsyncIterator[None]:
        """Held while something is done for this tenant, beyond its requests."""
        async with self._turns.of(caller, self._of_each), self._all:
            with holding_as(None):  # (likewise)
                yield


def line_of_reports(pace: Pace | None = None) -> Line:
    """The line for what passes over the jobs or periodic tasks of others: a caller with long lists has one turn."""
    return Line("lists", MOST_REPORTS, 1, of_reads=True, pace=pace)


def line_of_acts() -> Line:
    """The line for acts, which the audit notes: what programs do all day (resubmissions of keyed jobs) has no turn."""
    return Line("changes", MOST_ACTING, 1, of_reads=False)


@asynccontextmanager
async def acting_in_turn(request: Request) -> AsyncIterator[Connection]:
    """A transaction in which the caller of this request changes something, when it is its turn.

    Raises:
        HTTPException: 401, 503: see `Line.turn`.
    """
    state = request.app.state
    async with state.acts.turn(request), acting(state.client, await caller_of(request)) as connection:
        yield connection


@contextmanager
def counted(calls: Counter[Hashable], caller: Hashable) -> Iterator[None]:
    """While a call of this caller counts."""
    calls[caller] += 1
    try:
        yield
    finally:
        calls[caller] -= 1
        if not calls[caller]:
            del calls[caller]


def refuse(detail: str) -> NoReturn:
    """Refuse a call for now.

    Raises:
        HTTPException: 503.
    """
    raise HTTPException(503, detail, RETRY_AFTER | {"Connection": "close"})
