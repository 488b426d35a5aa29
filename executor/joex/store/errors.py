"""Translates the errors of asyncpg and the operating system into Joex's, one for each reaction of callers."""

from __future__ import annotations

import os
import re
import socket
import ssl
from contextlib import AbstractContextManager
from types import TracebackType

import asyncpg

from joex.errors import ConfigError, DatabaseUnavailable, InvalidJob, JoexError, LeaseLost, SchemaError

LEASE_LOST = "JX001"
"""The SQLSTATE with which joex_private.take refuses an executor whose lease has ended."""
OLD_SNAPSHOT = "JX002"
"""The SQLSTATE of functions that can't work above READ COMMITTED (see joex_private.must_see_the_latest)."""
TOO_LARGE = "JX003"
"""The SQLSTATE with which joex_private.check_size refuses arguments, or a result; users see its message."""

_OURS: dict[str | None, type[JoexError]] = {LEASE_LOST: LeaseLost, OLD_SNAPSHOT: ConfigError, TOO_LARGE: InvalidJob}
_UNAVAILABLE = (
    OSError,  # refused, reset, no such host, no such socket; TimeoutError too
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby, during a fail-over
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
)
_WRONG_DATABASE = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)
_NOT_PREPARED = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)
_NO_SCHEMA = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedColumnError,
)
_WRONG_DATA = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.exceptions.CharacterNotInRepertoireError,
)


NO_MESSAGE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The errors of reading a notification that is not Joex's: any client can send anything on any channel."""

_FOREIGN = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


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
    """Joex's error for an error of the database layer."""
    text = reason(error)
    if isinstance(error, _UNAVAILABLE):
        return DatabaseUnavailable(f"the database is not available: {text}")
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in _OURS:
        return _OURS[error.sqlstate](text)
    if isinstance(error, _WRONG_DATABASE):
        return ConfigError(f"database URL: {text}")
    if isinstance(error, _NOT_PREPARED):
        return ConfigError(
            "the connection goes through a pooler such as PgBouncer, and was not made for one: make it with "
            f"statement_cache_size=0, or give Joex the URL ({text})"
        )
    if isinstance(error, _NO_SCHEMA) and "joex" in text:
        return SchemaError(f"the database has no Joex schema, or an older one: run 'joex migrate' ({text})")
    if isinstance(error, _WRONG_DATA):
        return InvalidJob(_data_error(error, text))
    if isinstance(error, asyncpg.InternalClientError):  # the driver's confusion about a connection that is lost
        return DatabaseUnavailable("the connection to the database was lost")
    # An interface error that is not about data is about a connection that is closed or busy being closed.
    if isinstance(error, asyncpg.InterfaceError):
        return DatabaseUnavailable(f"the connection to the database is closed: {text}")
    return JoexError(f"the database refused a statement: {text}")


def reason(error: BaseException) -> str:
    """The message of an error of the database layer, in one line."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    # Each event loop words the system's errors in its own way, and names the address (which our messages have).
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return str(error.strerror) if isinstance(error, socket.gaierror) else os.strerror(error.errno)
    return " ".join((str(error) or type(error).__name__).split())


def is_about_the_statement(error: JoexError) -> bool:
    """Whether the database refused this very statement: others may succeed, and this one hardly ever will.

    An unavailable database may be back soon; a missing lease, right or schema concerns every statement.
    """
    return type(error) is JoexError or isinstance(error, InvalidJob)


def _data_error(error: BaseException, text: str) -> str:
    constraint: str = getattr(error, "constraint_name", None) or ""
    if ": " in constraint:  # one that says what is expected (see migrations/0001_jobs.sql)
        return constraint
    field = re.fullmatch(r"(?:job|group_setting|executor|queue)_(\w+?)_check\d*", constraint)
    if field is not None:
        name = {"grp": "group", "name": "queue"}.get(field[1], field[1])
        return f"{name}: not allowed: {text}"
    if constraint == "job_one_unfinished_per_tracker":
        return f"tracker: an unfinished job has it already: {text}"
    if "\\u0000" in text or "unicode escape" in text.lower() or "0x00" in text:
        return f"args: must not contain a NUL character (PostgreSQL can't store it): {text}"
    return text
