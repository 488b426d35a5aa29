"""Database URLs: their form, and the servers that they name."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote, urlsplit

_EXPECTED = "expected postgresql://user:password@host:port/database"
_LAST_PORT = 65535
_SESSIONS = ("any", "primary", "standby", "prefer-standby", "read-write", "read-only")


def check_database_url(url: str) -> None:
    """Check the form of a database URL.

    Raises:
        ValueError: the text is not a PostgreSQL URL, or has an unknown ``target_session_attrs``. The message never
            shows a part that may be a password.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in ("postgresql", "postgres"):
        got = f"a URL with the scheme {scheme!r}" if re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) else "something else"
        raise ValueError(f"{_EXPECTED}; got {got}")
    database_hosts(url)
    wanted = parameters(url).get("target_session_attrs", "any")
    if wanted not in _SESSIONS:
        raise ValueError(f"target_session_attrs: expected one of {', '.join(_SESSIONS)}; got {wanted!r}")


def parameters(url: str) -> dict[str, str]:
    """The parameters after the question mark of a valid database URL; the last one of each name."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}


def database_hosts(url: str) -> list[tuple[str, int | None]]:
    """The servers in the host part of a database URL: host, and port if there is one.

    Raises:
        ValueError: the hosts, or what follows them, can't be read.

    >>> database_hosts("postgresql://joex:secret@a:5432,b/shop?target_session_attrs=read-write")
    [('a', 5432), ('b', None)]
    >>> database_hosts("postgresql://joex@/shop?host=/run/postgresql")
    []
    """
    try:
        parts = urlsplit(url)
        parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise _unreadable() from None
    specs = parts.netloc.partition("@")[2] if "@" in parts.netloc else parts.netloc
    return [_host(spec) for spec in specs.split(",")] if specs else []


def _host(spec: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[^\[\]]*\]|[^:@\[\]]*)(?::(\d{0,5}))?", spec)
    if match is None or int(match[2] or 0) > _LAST_PORT:
        raise _unreadable()
    return unquote(match[1].strip("[]")), int(match[2]) if match[2] else None


def _unreadable() -> ValueError:
    # This may be part of a password: with a / or # in it, the parser takes its beginning for a host and a port.
    return ValueError(
        f"{_EXPECTED}, or several host:port, separated by commas; "
        "special characters of a password are written as %2F (/), %40 (@), %23 (#), %3A (:), %3F (?)"
    )
