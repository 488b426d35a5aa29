"""Adapters: connections of psycopg, SQLAlchemy and Django with the methods of asyncpg's that the store calls.

An adapter returns rows and values as asyncpg does. It works in the transaction of the connection, and begins and
commits none of its own, except around several statements where the connection commits each one.

The methods of an adapter are coroutines. Those of a synchronous connection never wait for an event loop:
`joex.client.blocking` runs them without one.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, KeysView, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from inspect import isawaitable
from typing import Any, Self

from joex.errors import ConfigError, DatabaseUnavailable
from joex.store.errors import translate

_PARAMETER = re.compile(r"\$(\d+)")


class Row:
    """A row with the access of asyncpg's records: by position and by name; iteration gives the values."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: dict[str, int], values: Iterable[Any]) -> None:
        self._places = places
        self._values = [_value(one) for one in values]

    def __getitem__(self, key: str | int) -> Any:
        return self._values[self._places[key] if isinstance(key, str) else key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def keys(self) -> KeysView[str]:
        """The names of the columns."""
        return self._places.keys()


Result = tuple[Iterable[str], Iterable[Iterable[Any]]]
"""The names of columns, and rows."""


class Adapter(ABC):
    """A connection with those methods of asyncpg's that the store calls; they raise Joex's errors.

    Args:
        given: the connection.
        errors: what its library raises.
    """

    def __init__(self, given: Any, *errors: type[Exception]) -> None:
        self._given = given
        self._errors = errors

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        """The rows of a statement."""
        with self._errors_translated():
            # (Only asyncpg takes a tuple for an array.)
            names, rows = await self._run(sql, [list(one) if isinstance(one, tuple) else one for one in args])
        places = {name: nr for nr, name in enumerate(names)}
        return [Row(places, row) for row in rows]

    async def fetchrow(self, sql: str, *args: Any) -> Row | None:
        """The first row, or None."""
        return next(iter(await self.fetch(sql, *args)), None)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """The first value of the first row, or None."""
        row = await self.fetchrow(sql, *args)
        return None if row is None else row[0]

    async def execute(self, sql: str, *args: Any) -> None:
        """Execute a statement; asyncpg also returns how many rows it has changed."""
        await self.fetch(sql, *args)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A savepoint for the time of a block; a transaction if the connection commits each statement."""
        with self._errors_translated():
            block = await self._block()
            if hasattr(block, "__aenter__"):
                async with block:
                    yield
            else:
                with block:
                    yield

    def is_in_transaction(self) -> bool:
        """Whether the next statement is in a transaction, an open one or one that begins with it."""
        with self._errors_translated():
            return self._is_in_transaction()

    @abstractmethod
    def _is_in_transaction(self) -> bool:
        """As `is_in_transaction`."""

    @abstractmethod
    async def _run(self, sql: str, args: Sequence[Any]) -> Result:
        """Execute a statement."""

    @abstractmethod
    async def _block(self) -> Any:
        """The context manager of `transaction`, synchronous or not."""

    def _errors_translated(self) -> AbstractContextManager[None]:
        return _translated(*self._errors)


class PsycopgAdapter(Adapter):
    """A connection of psycopg, synchronous or not."""

    def __init__(self, given: Any) -> None:
        self._psycopg = sys.modules["psycopg"]
        super().__init__(given, self._psycopg.Error)
        if given.pgconn.pipeline_status != self._psycopg.pq.PipelineStatus.OFF:  # a cursor has no answer there yet
            raise ConfigError(
                "connection: expected one that is not in pipeline mode, because each call waits for its answer: call "
                "outside the block of pipeline()"
            )

    def _is_in_transaction(self) -> bool:
        return not (self._given.autocommit and self._is_idle())

    async def _run(self, sql: str, args: Sequence[Any]) -> Result:
        # (The connection may have classes of cursors and rows of its own. A raw cursor takes parameters as asyncpg.)
        is_async = isinstance(self._given, self._psycopg.AsyncConnection)
        kind = self._psycopg.AsyncRawCursor if is_async else self._psycopg.RawCursor
        cursor = kind(self._given, row_factory=self._psycopg.rows.tuple_row)
        await _settled(cursor.execute(sql, args))
        if cursor.description is None:
            return (), ()
        return [column.name for column in cursor.description], await _settled(cursor.fetchall())

    async def _block(self) -> Any:
        if not self._given.autocommit and self._is_idle():
            await self.execute("SELECT")  # begins the transaction: the block would begin it, and then commit it
        return self._given.transaction()

    def _is_idle(self) -> bool:
        return bool(self._given.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE)


class SQLAlchemyAdapter(Adapter):
    """A connection of SQLAlchemy, synchronous or not; its own execution begins a transaction if none is open."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        with _sqlalchemy_translated():
            name = given.dialect.name
        if name != "postgresql":
            raise _other_database(name)

    @classmethod
    async def of_session(cls, session: Any) -> Self:
        """The adapter of a session's connection, which the session opens."""
        with _sqlalchemy_translated():
            connection = await _settled(session.connection())
        return cls(connection)

    def _is_in_transaction(self) -> bool:
        connection = getattr(self._given, "sync_connection", self._given)
        return not connection.connection.dbapi_connection.autocommit

    async def _run(self, sql: str, args: Sequence[Any]) -> Result:
        if self._given.dialect.paramstyle != "numeric_dollar":
            sql, args = _formatted(sql, args)
        result = await _settled(self._given.exec_driver_sql(sql, tuple(args)))
        return (result.keys(), result.all()) if result.returns_rows else ((), ())

    async def _block(self) -> Any:
        if not self._is_in_transaction():
            raise ConfigError(
                "connection: expected one that does not commit each statement (AUTOCOMMIT), because these jobs need "
                "several, in one transaction"
            )
        return self._given.begin_nested()

    def _errors_translated(self) -> AbstractContextManager[None]:
        return _sqlalchemy_translated()


class DjangoAdapter(Adapter):
    """A connection of Django."""

    def __init__(self, given: Any) -> None:
        super().__init__(given, sys.modules["django.db"].Error)
        if given.vendor != "postgresql":
            raise _other_database(given.vendor)

    def _is_in_transaction(self) -> bool:
        return not self._given.get_autocommit()

    async def _run(self, sql: str, args: Sequence[Any]) -> Result:
        with self._given.cursor() as cursor:
            cursor.execute(*_formatted(sql, args))
            return ([column[0] for column in cursor.description], cursor.fetchall()) if cursor.description else ((), ())

    async def _block(self) -> Any:
        return import_module("django.db.transaction").atomic(using=self._given.alias)

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            with super()._errors_translated():
                yield
        except sys.modules["django.core.exceptions"].SynchronousOnlyOperation as error:
            raise ConfigError(
                "connection: Django's works only in threads without an event loop: use joex.sync.Client there"
            ) from error


def _other_database(name: str) -> ConfigError:
    return ConfigError(f"connection: expected one to PostgreSQL; got one to {name}")


@contextmanager
def _sqlalchemy_translated() -> Iterator[None]:
    """Translate SQLAlchemy's own errors, and those of drivers, which it wraps (but not those of asyncpg's connects)."""
    exc = sys.modules["sqlalchemy"].exc
    try:
        with _translated(exc.DBAPIError, OSError):
            yield
    except exc.TimeoutError as error:
        raise DatabaseUnavailable(
            f"the database is not available: {error.args[0]}: expected a pool with a free connection: let the engine "
            "have more of them (pool_size), or give back those that you don't use"
        ) from error
    except exc.SQLAlchemyError as error:
        why = str(*error.args[:1])
        if isinstance(error, exc.MissingGreenlet):
            why = (
                "expected a synchronous one; this one is of an async engine: pass its AsyncConnection or "
                "AsyncSession to joex.Client"
            )
        elif isinstance(error, exc.ResourceClosedError):
            why = "expected an open one; this one is closed: call before you close it, inside its with block"
        elif isinstance(error, exc.UnboundExecutionError):
            why = "expected a session that has an engine, such as Session(engine)"
        raise ConfigError("connection: " + " ".join(why.split())) from error


@contextmanager
def _translated(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise translate(error) from error


async def _settled(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _value(value: Any) -> Any:
    """A value as asyncpg returns it, whatever the session's time zone and the driver are."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # (Without USE_TZ, Django returns local times.)
    if isinstance(value, memoryview):  # psycopg2's bytea
        return bytes(value)
    return [_value(one) for one in value] if isinstance(value, list) else value


def _formatted(sql: str, args: Sequence[Any]) -> tuple[str, list[Any]]:
    """A statement with %s instead of $1, and its arguments in this order."""
    text, places = _with_percents(sql)
    return text, [args[place] for place in places]


@cache
def _with_percents(sql: str) -> tuple[str, list[int]]:
    return _PARAMETER.sub("%s", sql.replace("%", "%%")), [int(number) - 1 for number in _PARAMETER.findall(sql)]
