"""The port of the web server, open before FastAPI is imported, because that is slow."""

from __future__ import annotations

import errno
import socket

from joex.config import split_address
from joex.errors import ConfigError

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
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    except (OSError, UnicodeError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "another program listens there" if in_use else " ".join(str(error).split())
        raise ConfigError(f"{setting}: can't listen on {address}: {reason}; {mend}") from error
