"""Translates the errors of drivers and the operating system into Joex's, one for each reaction of callers.

An error of the server has the same SQLSTATE in each driver, and so the same meaning, and the same text, here.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType

import asyncpg
from asyncpg.pgproto import pgproto

from joex.core.text import cut
from joex.errors import ConfigError, DatabaseUnavailable, GroupFull, InvalidJob, JoexError, LeaseLost, SchemaError

LEASE_LOST = "JX001"
"""The SQLSTATE with which joex_private.take refuses an executor whose lease has ended."""
OLD_SNAPSHOT = "JX002"
"""The SQLSTATE of functions that can't work above READ COMMITTED (see joex_private.must_see_the_latest)."""
TOO_LARGE = "JX003"
"""The SQLSTATE with which joex_private.check_size refuses arguments, or a result; users see its message."""

GROUP_FULL = "JX004"
"""The SQLSTATE with which joex.submit refuses a job of a group that has as many waiting jobs as it may."""
SCHEMA_TOO_NEW = "JX005"
"""The SQLSTATE with which joex_private.register refuses an executor that is too old for the schema."""

READ_ONLY = "it is read-only (a standby, or set to be)"
"""Why a server that answers does not count as available."""

_OURS: dict[str, Callable[[str], JoexError]] = {
    LEASE_LOST: LeaseLost,
    OLD_SNAPSHOT: ConfigError,
    TOO_LARGE: InvalidJob,
    GROUP_FULL: GroupFull,
    SCHEMA_TOO_NEW: partial(SchemaError, reason="SchemaTooNew"),
}
_LONGEST_REASON = 2000
"""Characters: a server that is none, or one of somebody else, may send any number, which would fill a log."""
_READ_ONLY = "25006"
_TO_REPEAT = ("40001", "40P01")  # serialization failure; deadlock
# SQLSTATEs, or their beginnings: a class has two characters.
_UNAVAILABLE = (
    "08",  # connection exception
    "53",  # insufficient resources; too many connections
    _READ_ONLY,  # a standby, during a fail-over
    *_TO_REPEAT,
    "57014",  # query cancelled
    "57P01",  # admin shutdown
    "57P02",  # crash shutdown
    "57P03",  # cannot connect now
)
_LOCKED = "55P03"  # lock not available
_WRONG_DATABASE = ("28", "3D000")  # invalid authorization; invalid catalog name
_NO_RIGHT = "42501"
_NOT_PREPARED = ("26000", "42P05")  # no such prepared statement; it exists already
_NO_SCHEMA = ("3F000", "42P01", "42703", "42883")  # no such schema; table; column; function
_WRONG_DATA = ("22", "23")  # data exception; integrity constraint violation
_STORED_MEANWHILE = "another attempt of this submission has just stored it: repeat it once more to get its id"


class Locked(DatabaseUnavailable):
    """Another transaction holds what a statement would have changed, and has held it for as long as that may wait."""


NO_MESSAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The errors of reading what makes no sense: any client can send anything on any channel, and any server at a login."""

OUT_OF_STEP = pgproto.BufferError
"""asyncpg's: a message of the server is shorter than what it has to tell. What comes next may be read as anything."""

_FOREIGN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, OUT_OF_STEP)


class _Translation:
    """Translates for the time of a block (no generator: this surrounds each statement)."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, _FOREIGN) and not isinstance(error, JoexError):
            raise translate(error) from error


_TRANSLATION = _Translation()


def translated() -> AbstractContextManager[None]:
    """Translate what the database layer raises; the original is the ``__cause__``."""
    return _TRANSLATION


def translate(error: BaseException) -> JoexError:  # noqa: PLR0911 - one line for each meaning
    """Joex's error for one of a driver, which SQLAlchemy or Django may have wrapped, or of the operating system."""
    error = _of_driver(error)
    state, text = _sqlstate(error), reason(error)
    if isinstance(error, OSError) or state.startswith(_UNAVAILABLE):  # (TimeoutError is an OSError, too)
        return DatabaseUnavailable(f"{'try again' if state in _TO_REPEAT else 'the database is not available'}: {text}")
    if state == _LOCKED:
        return Locked("another transaction holds what this changes: try again")
    if state in _OURS:
        return _OURS[state](text)
    if isinstance(error, asyncpg.ClientConfigurationError) or state.startswith(_WRONG_DATABASE):
        return ConfigError(f"database URL: {text}")
    if state == _NO_RIGHT:
        return ConfigError(f"database role: {text} (the owner of the schema grants rights with 'joex roles grant')")
    if state in _NOT_PREPARED:
        return ConfigError(
            "the connection goes through a pooler such as PgBouncer, and was not made for one: make it with "
            f"statement_cache_size=0 (psycopg: prepare_threshold=None), or give Joex the URL ({text})"
        )
    if state in _NO_SCHEMA and "joex" in text:
        return SchemaError(f"the database has no Joex schema, or an older one: run 'joex migrate' ({text})")
    if state.startswith(_WRONG_DATA):
        return _data_error(error, text)
    if not state and (found := _of_connection(error, text)):
        return found
    return JoexError(f"the database refused a statement: {text}")


def reason(error: BaseException) -> str:
    """The message of an error of a driver or the operating system, in one line."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    # Each event loop words the system's errors in its own way, and names the address (which our messages have).
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return str(error.strerror) if isinstance(error, socket.gaierror) else os.strerror(error.errno)
    text = str(error) or type(error).__name__
    told = getattr(error, "diag", None)
    if told is not None and told.message_primary:  # (the text of psycopg has more: the line of SQL, the context)
        parts = {"": told.message_primary, "DETAIL: ": told.message_detail, "HINT: ": told.message_hint}
        text = " ".join(f"{name}{part}" for name, part in parts.items() if part)
    text = " ".join(cut(text, _LONGEST_REASON).split())
    return f"{READ_ONLY}: {text}" if _sqlstate(error) == _READ_ONLY else text


def _of_driver(error: BaseException) -> BaseException:
    """The driver's own error, out of those of SQLAlchemy and Django around it."""
    while type(error).__module__.startswith(("sqlalchemy.", "django.")):
        inner = getattr(error, "orig", None) or error.__cause__
        if inner is None:
            break
        error = inner
    return error


def _of_connection(error: BaseException, text: str) -> DatabaseUnavailable | None:
    """Joex's error for one of a driver itself: there is no connection, or it is lost or closed."""
    if isinstance(error, (asyncpg.InternalClientError, OUT_OF_STEP)):  # its confusion about one that is lost
        return DatabaseUnavailable("the connection to the database was lost")
    kinds = {one.__name__ for one in type(error).__mro__}  # (The drivers name theirs as Python's DB API does.)
    if "OperationalError" in kinds:
        return DatabaseUnavailable(f"the database is not available: {text}")
    if "InterfaceError" in kinds:
        return DatabaseUnavailable(f"the connection to the database is closed: {text}")
    return None


def _sqlstate(error: BaseException) -> str:
    """The SQLSTATE of an error of asyncpg or psycopg, or nothing."""
    told = getattr(error, "diag", None)  # psycopg's classes know the SQLSTATEs of PostgreSQL alone
    return getattr(told, "sqlstate", None) or getattr(error, "sqlstate", None) or ""


def is_about_the_statement(error: JoexError) -> bool:
    """Whether the database refused this very statement: others may succeed, and this one hardly ever will.

    An unavailable database may be back soon; a missing lease, right or schema concerns every statement.
    """
    return type(error) is JoexError or isinstance(error, InvalidJob)


def _data_error(error: BaseException, text: str) -> JoexError:
    constraint: str = getattr(getattr(error, "diag", error), "constraint_name", None) or ""
    if constraint == "job_pkey":
        return DatabaseUnavailable(_STORED_MEANWHILE)
    if ": " in constraint:  # one that says what is expected (see migrations/0001_jobs.sql)
        return InvalidJob(constraint)
    field = re.fullmatch(r"(?:job|group_setting|executor|queue)_(\w+?)_check\d*", constraint)
    if field is not None:
        name = {"grp": "group", "name": "queue"}.get(field[1], field[1])
        return InvalidJob(f"{name}: not allowed: {text}")
    if constraint == "job_one_unfinished_per_tracker":
        return InvalidJob(f"tracker: an unfinished job of the group has it already: {text}")
    if "\\u0000" in text or "unicode escape" in text.lower() or "0x00" in text:
        return InvalidJob(f"args: must not contain a NUL character (PostgreSQL can't store it): {text}")
    return InvalidJob(text)
