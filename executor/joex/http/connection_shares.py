"""The connections to the database that calls share: a tenant leaves some to others, and each has its turn.

A call whose turn has come is judged once more: it may have waited for half a minute, here or to be parsed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from joex.client.client import Client
from joex.client.connections import Connections
from joex.store.drivers import AnyConnection
from joex.store.statement import Connection

MOST_SHARED = 6
"""Connections for the calls of known callers."""
MOST = MOST_SHARED + 11
"""With those of what has a bound of its own, so that none of it waits for the calls of tenants: two lists and four
changes (see `joex.http.turns`), four look-ups of tokens, and what listens, or reads the snapshots of the console."""
_FOR_OTHERS = 2
"""Of them, those that a tenant who has one leaves to those who have none."""


class Holder(NamedTuple):
    """For whom connections count: a tenant, whose tokens may be bound."""

    tenant: Hashable
    is_bound: bool = False


_HOLDER: ContextVar[Holder | None] = ContextVar("holder", default=None)
_JUDGE: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("judge", default=None)


@contextmanager
def holding_as(holder: Holder | None) -> Iterator[None]:
    """Connections that are taken in this block count for this holder; None: for nobody, and they wait for none."""
    token = _HOLDER.set(holder)
    try:
        yield
    finally:
        _HOLDER.reset(token)


@contextmanager
def judged_by(judge: Callable[[], Awaitable[None]] | None) -> Iterator[None]:
    """Who takes a connection in this block is judged when its turn has come; None: no more, to end what it began."""
    token = _JUDGE.set(judge)
    try:
        yield
    finally:
        _JUDGE.reset(token)


def judge_no_more() -> None:
    """As in a block of `judged_by` with None, for the rest of this context, which only ends what it began."""
    _JUDGE.set(None)


class Shares:
    """Who has how many connections, and whose turn is next: among those who may have one, of whoever has fewest.

    Tenants that are bound leave one to those who are not: the owner finds it however many tenants there are.
    """

    def __init__(self) -> None:
        self._free = MOST_SHARED
        self._of: Counter[Hashable] = Counter()
        self._waiting: dict[asyncio.Future[None], Holder] = {}

    @asynccontextmanager
    async def turn_of(self, holder: Holder) -> AsyncIterator[None]:
        """Held while a call has a connection."""
        # (This passes over nobody: none of those that wait may have one now, as `_give_back` gives on what it can.)
        if self._may(holder):
            self._take(holder)
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = holder
            try:
                await turn
            except asyncio.CancelledError:
                if self._waiting.pop(turn, None) is None:  # its turn has just come
                    self._give_back(holder)
                raise
        try:
            yield
        finally:
            self._give_back(holder)

    def _may(self, holder: Holder) -> bool:
        return self._free > _FOR_OTHERS * (holder.tenant in self._of) + holder.is_bound

    def _take(self, holder: Holder) -> None:
        self._free -= 1
        self._of[holder.tenant] += 1

    def _give_back(self, holder: Holder) -> None:
        self._free += 1
        self._of[holder.tenant] -= 1
        if not self._of[holder.tenant]:
            del self._of[holder.tenant]
        while able := [turn for turn, one in self._waiting.items() if not turn.done() and self._may(one)]:
            turn = min(able, key=lambda one: self._of[self._waiting[one].tenant])  # the first one of equals
            self._take(self._waiting.pop(turn))
            turn.set_result(None)


class _SharedConnections(Connections):
    """Connections for the calls of many callers."""

    most = MOST

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._shares = Shares()

    @asynccontextmanager
    async def using(self, given: AnyConnection | None = None, *, patiently: bool = True) -> AsyncIterator[Connection]:
        """As the client's, when it is the caller's turn."""
        holder, used = _HOLDER.get(), super().using(given, patiently=patiently)
        if given is not None or holder is None:
            async with used as connection:
                yield connection
            return
        async with self._shares.turn_of(holder):
            if (judge := _JUDGE.get()) is not None:  # (before it keeps a connection: the look-up needs one)
                await judge()
            async with used as connection:
                yield connection


class SharingClient(Client):
    """A client whose callers share its connections."""

    _connections_class = _SharedConnections
