"""The connections to the database that calls share: a tenant leaves some to others, and each has its turn.

A call whose turn has come is judged once more: it may have waited for half a minute, here or to be parsed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from joex.client.client import Client
from joex.client.connections import Connections
from joex.places import Places
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


def _may(holder: Holder, has: int, free: int) -> bool:
    """Whether this one may have another: bound tenants leave one to others, as the owner must find it in any case."""
    return free > _FOR_OTHERS * bool(has) + holder.is_bound


class _SharedConnections(Connections):
    """Connections for the calls of many callers."""

    most = MOST

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._places: Places[Holder] = Places(MOST_SHARED, _may)

    @asynccontextmanager
    async def using(self, given: AnyConnection | None = None, *, patiently: bool = True) -> AsyncIterator[Connection]:
        """As the client's, when it is the caller's turn."""
        holder, used = _HOLDER.get(), super().using(given, patiently=patiently)
        if given is not None or holder is None:
            async with used as connection:
                yield connection
            return
        async with self._places.one_of(holder):
            if (judge := _JUDGE.get()) is not None:  # (before it keeps a connection: the look-up needs one)
                await judge()
            async with used as connection:
                yield connection


class SharingClient(Client):
    """A client whose callers share its connections."""

    _connections_class = _SharedConnections
