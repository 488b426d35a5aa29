"""The listening connection of an executor, and the loop of the thread in which it lives."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from joex.core.lease import Lease
from joex.runtime import wakeups
from joex.runtime.lease import LeaseKeeper
from joex.runtime.lease_callbacks import LeaseCallbacks, Notifier
from joex.runtime.wakeups import Wakeups


def nothing(*_args: object) -> None:
    """Do nothing, as each callback here."""


CALLBACKS = LeaseCallbacks(**{field.name: nothing for field in fields(LeaseCallbacks)})


class EndsAtOnce:
    """A connection that the server ends as soon as it has answered, as a pooler or a proxy may do."""

    is_pooled = False

    def add_termination_listener(self, lost: Callable[[Any], None]) -> None:
        self.lost = lost

    async def add_listener(self, _channel: str, _heard: object) -> None:
        self.lost(self)

    def terminate(self) -> None:
        """It has ended already."""


async def test_a_listening_connection_that_ends_at_once_is_opened_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def connect(*_args: object, **_named: object) -> EndsAtOnce:
        return EndsAtOnce()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            raise asyncio.CancelledError

    monkeypatch.setattr(wakeups, "connect", connect)
    monkeypatch.setattr("asyncio.sleep", pause)
    listening = Wakeups(
        "postgresql://",
        executor=1,
        queues=["default"],
        check_every=3600,
        notifier=Notifier(CALLBACKS),
        check_soon=lambda: None,
    )
    with pytest.raises(asyncio.CancelledError):
        await listening.receive()
    assert pauses[-1] >= 1


class Flood(asyncio.Protocol):
    """Receives from a socket that has more to read whenever it has been read."""

    def __init__(self, sender: socket.socket) -> None:
        self._sender = sender
        self.reads = 0

    def connection_made(self, _transport: asyncio.BaseTransport) -> None:
        self._fill()

    def data_received(self, _data: bytes) -> None:
        self.reads += 1
        self._fill()

    def _fill(self) -> None:
        with suppress(BlockingIOError):
            self._sender.send(bytes(2**20))


async def reads_while_others_wait() -> int:
    """How often, at most, this loop reads from a flooded socket before anything else has its turn."""
    receiver, sender = socket.socketpair()
    for one in (receiver, sender):
        one.settimeout(0)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    flood = Flood(sender)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: flood, sock=receiver)
    reads = []
    for _ in range(20):
        before = flood.reads
        await asyncio.sleep(0)
        reads.append(flood.reads - before)
    transport.close()
    sender.close()
    return max(reads)


async def test_after_each_read_of_a_flood_of_notifications_the_heartbeats_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop reads thirty-two times a quarter of a megabyte first: with Joex's notifications, that took seconds."""
    keeper = LeaseKeeper(
        "postgresql://",
        executor=1,
        queues=["default"],
        lease=Lease(timedelta(seconds=6)),
        outage_patience=0,
        pooled=False,
        held=list,
        executing=int,
        executing_exclusively=int,
        since=0,
        watchdog=None,
        callbacks=CALLBACKS,
    )
    reads = []

    async def keep() -> None:
        reads.append(await reads_while_others_wait())

    monkeypatch.setattr(keeper, "_keep", keep)
    keeper.start()
    await keeper.stop()
    assert reads == [1]
