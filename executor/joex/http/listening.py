"""The port of the web server, open before FastAPI is imported, because that is slow."""

from __future__ import annotations

import errno
import socket
import sys

from joex.config import split_address
from joex.errors import ConfigError

READ_WITHIN = 60.0
"""Seconds in which a caller must read an answer, or at least `joex.http.slow_callers.LEAST_READ` bytes of it."""

_UNSENT = 16_384
"""Bytes of an answer that the system takes though it can't send them yet, so that they count as read."""

_BACKLOG = 1024


def address_of(listener: socket.socket) -> str:
    """Return the address that it listens on, with the port that was found if the setting says 0."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(
    address: str,
    setting: str = "JOEX_HTTP_ADDRESS",
    mend: str = "set another port (0: any free one), or an empty string to run without HTTP",
) -> socket.socket:
    """Open the port, so that calls wait there until `joex.http.server.serve` answers them. Port 0: any free one.

    Args:
        address: host:port.
        setting: where the address comes from, for messages.
        mend: what to do where it can't listen there, likewise.

    Raises:
        ConfigError: the port is in use, or not available; the message names the setting and the fix.
    """
    parts = split_address(address)
    if parts is None:
        raise ConfigError(f"{setting}: expected host:port, such as 127.0.0.1:7878; got {address!r}")
    host, port = parts
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dual = host == "::" and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    except (OSError, UnicodeError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "another program listens there" if in_use else " ".join(str(error).split())
        raise ConfigError(f"{setting}: can't listen on {address}: {reason}; {mend}") from error
    _limit_unread(listener)
    return listener


def _limit_unread(listener: socket.socket) -> None:
    """Let the system keep little of the answers of its connections, and end these if their callers read none of it.

    By itself it takes answers of some megabytes at once, and keeps them for as long as their callers take no part and
    confirm that, also when the connections have ended here. (Each connection has the options of its listener.)
    """
    if sys.platform == "linux":  # elsewhere the numbers of these options mean others, or nothing
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(READ_WITHIN * 1000))
