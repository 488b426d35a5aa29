"""The user who has opened a connection from this machine: an address of loopback says nothing about that.

Linux lists the TCP sockets of this network namespace with their owners, and any process may read the list. To read it
takes longer the more sockets there are, and any user may open many. So a thread of its own reads it, one call at a
time, and once for each connection that needs it: no caller holds up the event loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from starlette.types import Scope

from joex.http.state import PEER

_UNMAPPED = 65534
"""The uid that a user namespace shows instead of each one that it does not have: it may stand for any user."""
_ESTABLISHED = 1
_NO_INODE = "0"
_TRIES = 3

_reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="joex peer")


class Peer:
    """The process at the other end of a connection.

    Args:
        transport: of the connection.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._uid: int | None = None

    async def uid(self) -> int | None:
        """The uid of the process, on this machine; None: the kernel does not tell, or the connection has ended."""
        if self._uid is None:
            client, server = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
            if client is None or server is None:  # the caller has gone at once
                return None
            reading = partial(uid_of, client[:2], server[:2], lambda: not self._transport.is_closing())
            found = await asyncio.get_running_loop().run_in_executor(_reader, reading)
            if self._is_open():  # (else another process may have got its port meanwhile)
                self._uid = found
        return self._uid

    def _is_open(self) -> bool:
        if sys.platform != "linux" or self._transport.is_closing():
            return False
        state = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return bool(state[0] == _ESTABLISHED)


async def is_own_user(scope: Scope) -> bool:
    """Whether a call comes from a process of this process's user, or of root, on this machine.

    Only Linux tells, and only of connections of Joex's own server. On other systems each user of the machine counts as
    this one.
    """
    if sys.platform != "linux":
        return True
    peer: Peer | None = scope.get("state", {}).get(PEER)
    uid = None if peer is None else await peer.uid()
    return uid == 0 or (uid == os.geteuid() and uid != _UNMAPPED)


def uid_of(client: tuple[str, int], server: tuple[str, int], is_there: Callable[[], bool] = lambda: True) -> int | None:
    """The uid of the process that has connected from one address and port of this machine to another.

    None: the kernel does not tell. Nor does it for a socket that its process has closed: that is listed as one of root.

    Args:
        client: the address and port of the caller.
        server: those of the other end.
        is_there: whether the caller still is. Others wait meanwhile, and to find nothing takes longest.
    """
    places = _places(client, server)
    for _ in range(_TRIES):  # a list that changes while it is read may lack a line
        for path, ends in places:
            if not is_there():
                return None
            try:
                found = Path(path).read_text(encoding="ascii")
            except OSError:
                continue
            start = found.find(f" {ends} {_ESTABLISHED:02X} ")
            if start >= 0:
                fields = found[start:].split(maxsplit=9)
                return int(fields[6]) if fields[8] != _NO_INODE else None
    return None


def _places(client: tuple[str, int], server: tuple[str, int]) -> list[tuple[str, str]]:
    """The files that may list the client's socket, with its two ends as they are written there."""
    ends = [(ip_address(host), port) for host, port in (client, server)]
    ends = [(getattr(host, "ipv4_mapped", None) or host, port) for host, port in ends]
    places = [("/proc/net/tcp6", " ".join(_end(_in_ipv6(host), port) for host, port in ends))]
    if all(isinstance(host, IPv4Address) for host, _ in ends):
        places.insert(0, ("/proc/net/tcp", " ".join(_end(host, port) for host, port in ends)))
    return places


def _in_ipv6(host: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An address as a socket of IPv6 has it, which may be connected to one of IPv4."""
    return IPv6Address(f"::ffff:{host}") if isinstance(host, IPv4Address) else host


def _end(host: IPv4Address | IPv6Address, port: int) -> str:
    """An address and a port as the kernel writes them: in words of 32 bits, in the order of bytes of the machine."""
    words = [host.packed[at : at + 4] for at in range(0, len(host.packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
