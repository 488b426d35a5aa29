"""The session of a connection: what Joex sets in it, and how the pool resets it for its next user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

_SESSION = {
    "default_transaction_isolation": "'read committed'",
    # The same for the server's end, which holds the locks of a transaction whose client has vanished. (It waits
    # longer for acknowledgements of what it sends: a client that computes does not read.)
    "tcp_keepalives_idle": "'5'",
    "tcp_keepalives_interval": "'5'",
    "tcp_keepalives_count": "'3'",
    "tcp_user_timeout": "'60s'",
    # A statement does not outlive its client for long; a server on Windows can't check for that.
    "client_connection_check_interval": "CASE WHEN version() ~* 'visual c|msvc|mingw|windows' THEN '0' ELSE '1s' END",
}
OLDEST_WITH_SETUP = 14
"""The oldest version that has these. (`check_schema` and `migrate` refuse older servers, with a reason.)"""

# What RESET ALL leaves. (A role may have its own default for ``role``, which comes back.) All else needs the rights of
# the login, so these two come first; the drop of temporary tables may take a while, so it comes after RESET ALL, which
# ends a timeout that the last user has set.
_AS_LOGGED_IN = "SET SESSION AUTHORIZATION DEFAULT; RESET ROLE;"
_DISCARDS = "DISCARD TEMP; DISCARD SEQUENCES;"
_LOOKED_UP = 2000  # characters of a statement that is remembered, so that none keeps memory
_PREPARE, _TEMPORARY = re.compile(r"PREPARE\b"), re.compile(r"TEMP(?:ORARY)?\b")


def session_setup(pid: int, settings: Mapping[str, str]) -> str:
    """A statement that sets up a session; it gives a row only in the session of this server process.

    Through a pooler, ``pid``, which the connection was told at its start, is none of the server's.
    """
    calls = ", ".join(f"set_config('{name}', {value}, false)" for name, value in _parameters(settings).items())
    return f"SELECT {calls} WHERE pg_backend_pid() = {pid}"


def session_again(settings: Mapping[str, str]) -> str:
    """Statements that set up the session again. SET costs the server a third of the same in a SELECT."""
    return "; ".join(
        f"SET {name} = {value}" if value.startswith("'") else f"SELECT set_config('{name}', {value}, false)"
        for name, value in _parameters(settings).items()
    )


def _parameters(settings: Mapping[str, str]) -> dict[str, str]:
    """The parameters of a session, with SQL expressions for their values."""
    return _SESSION | {name: f"'{value}'" for name, value in settings.items()}


def reset_query(general: str, again: str, *, drops_prepared: bool) -> str:
    """The statements that reset a session to its state after the setup, in one message.

    Args:
        general: asyncpg's own reset.
        again: of `session_again`.
        drops_prepared: whether to drop all prepared statements, too.
    """
    more = "DEALLOCATE ALL;" if drops_prepared else ""
    return f"{_AS_LOGGED_IN}\n{general}\n{_DISCARDS}{more}\n{again}"


def names_something(query: str) -> bool:
    """Whether a statement may prepare one by SQL, or make something temporary."""
    return _found(query) if len(query) <= _LOOKED_UP else _found.__wrapped__(query)


@lru_cache(maxsize=500)
def _found(query: str) -> bool:
    text = query.upper()
    return bool(_PREPARE.search(text) or _TEMPORARY.search(text))
