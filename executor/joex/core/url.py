"""Database URLs: their form, and the servers that they name.

A reserved character in a password that is not percent-encoded makes a URL ambiguous: a parser then takes a part of the
password for a host, a port, a database or a parameter, which messages show. So an ambiguous URL is refused, with a
message that shows no part of it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote, urlsplit

_EXPECTED = "expected postgresql://user:password@host:port/database"
_LOGIN = (
    "the user name or the password has a reserved character, or there is an @ or # after the host: "
    "percent-encode it: %2F (/), %40 (@), %23 (#), %3F (?), %5B ([), %5D (])"
)
_HOSTS = "a host or a port can't be read: expected host:port, or several of them, separated by commas"
_PARAMETERS = "the parameters after the ? can't be read: expected name=value, separated by &"
_RESERVED = re.compile(r"[@/?#\[\]\t\r\n]")
_LAST_PORT = 65535
_LONGEST = 4096
ANY, READ_WRITE = "any", "read-write"
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
_SESSIONS = (ANY, "primary", "standby", "prefer-standby", READ_WRITE, "read-only")


def check_database_url(url: str) -> None:
    """Check the form of a database URL.

    Raises:
        ValueError: the text is not a PostgreSQL URL, is ambiguous, or has an unknown ``target_session_attrs``. The
            message says which part is wrong, and never shows a part that may be a password.
    """
    if len(url) > _LONGEST:
        raise ValueError(f"expected a URL of at most {_LONGEST} characters; got {len(url)}")
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in ("postgresql", "postgres"):
        got = f"a URL with the scheme {scheme!r}" if re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) else "something else"
        raise ValueError(f"{_EXPECTED}; got {got}")
    database_hosts(url)
    given = parameters(url)
    wanted = given.get("target_session_attrs", ANY)
    if wanted not in _SESSIONS:
        got = f"; got {wanted!r}" if may_show_parameters(url) else ""
        raise ValueError(f"target_session_attrs: expected one of {', '.join(_SESSIONS)}{got}")
    if not re.fullmatch(r"\d{1,5}(,\d{1,5})*", given.get("port", "5432")):
        raise ValueError("port: expected a number, or several, separated by commas")
    if not all(given.get("host", "localhost").split(",")):
        raise ValueError("host: expected a host, or several, separated by commas")


def parameters(url: str) -> dict[str, str]:
    """The parameters after the question mark of a valid database URL; the last one of each name."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}


def named_files(url: str) -> dict[str, str]:
    """The files that a valid database URL names, by their parameters."""
    return {name: path for name, path in parameters(url).items() if name in _FILES}


def may_show_parameters(url: str) -> bool:
    """Whether messages may show parameters of a valid URL: if one is a password, another may be a part of it."""
    return not {"password", "sslpassword"} & parameters(url).keys()


def database_hosts(url: str) -> list[tuple[str, int | None]]:
    """The servers in the host part of a database URL: host, and port if there is one.

    Raises:
        ValueError: the hosts can't be read, or what comes before or after them.

    >>> database_hosts("postgresql://joex:secret@a:5432,b/shop?target_session_attrs=read-write")
    [('a', 5432), ('b', None)]
    >>> database_hosts("postgresql://joex@/shop?host=/run/postgresql")
    []
    """
    login, _, others = url.partition("://")[2].rpartition("@")
    if _RESERVED.search(login) or "#" in others:
        raise _unreadable(_LOGIN)
    hosts = re.split("[/?]", others, maxsplit=1)[0]
    found = [_host(spec) for spec in hosts.split(",")] if hosts else []
    if problem := _not_read_by_asyncpg(url):
        raise _unreadable(problem)
    return found


def _host(spec: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[^\[\]]*\]|[^:@\[\]]*)(?::(\d{0,5}))?", spec)
    if match is None or int(match[2] or 0) > _LAST_PORT:
        raise _unreadable(_HOSTS)
    return unquote(match[1].strip("[]")), int(match[2]) if match[2] else None


def _not_read_by_asyncpg(url: str) -> str | None:
    """What is wrong if Python's parser, which asyncpg uses, refuses a URL; its own errors may quote the password."""
    try:
        query = urlsplit(url).query
    except ValueError:  # about brackets, or a character that Unicode takes for one of "/?#@:"
        return _HOSTS if url.isascii() else _LOGIN
    try:
        parse_qs(query, strict_parsing=bool(query))
    except ValueError:
        return _PARAMETERS
    return None


def _unreadable(problem: str) -> ValueError:
    return ValueError(f"{_EXPECTED}; {problem}")
