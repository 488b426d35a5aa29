"""The connections that clients take: those of asyncpg, psycopg, SQLAlchemy and Django; which of them a value is.

No module here imports a library for its kind of connections: a program that passes one has imported its library.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from joex.errors import ConfigError
from joex.store.adapters import DjangoAdapter, PsycopgAdapter, SQLAlchemyAdapter
from joex.store.statement import Connection

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
    from sqlalchemy.orm import Session, scoped_session


class DjangoConnection(Protocol):
    """Django's ``connection``, or one of its ``connections``."""

    vendor: str
    alias: str

    def cursor(self) -> Any:
        """A cursor."""

    def get_autocommit(self) -> bool:
        """Whether each statement is a transaction."""


if TYPE_CHECKING:
    SyncConnection: TypeAlias = (
        psycopg.Connection[Any] | sqlalchemy.Connection | Session | scoped_session[Any] | DjangoConnection
    )
    AnyConnection: TypeAlias = (
        Connection
        | SyncConnection
        | psycopg.AsyncConnection[Any]
        | sqlalchemy_asyncio.AsyncConnection
        | sqlalchemy_asyncio.AsyncSession
        | sqlalchemy_asyncio.async_scoped_session[Any]
    )
else:
    SyncConnection = AnyConnection = Any
"""The connections that clients take: the synchronous client the former ones, the other client all of them."""


class _Kind(NamedTuple):
    """A class of connections, by its name, because its library may be missing."""

    module: str
    name: str
    adapter: type[PsycopgAdapter | SQLAlchemyAdapter | DjangoAdapter]
    is_async: bool = False
    is_session: bool = False
    """Whether it has a connection, which it opens."""


_KINDS = (
    _Kind("psycopg", "Connection", PsycopgAdapter),
    _Kind("psycopg", "AsyncConnection", PsycopgAdapter, is_async=True),
    _Kind("sqlalchemy", "Connection", SQLAlchemyAdapter),
    _Kind("sqlalchemy.orm", "Session", SQLAlchemyAdapter, is_session=True),
    _Kind("sqlalchemy.orm", "scoped_session", SQLAlchemyAdapter, is_session=True),
    _Kind("sqlalchemy.ext.asyncio", "AsyncConnection", SQLAlchemyAdapter, is_async=True),
    _Kind("sqlalchemy.ext.asyncio", "AsyncSession", SQLAlchemyAdapter, is_async=True, is_session=True),
    _Kind("sqlalchemy.ext.asyncio", "async_scoped_session", SQLAlchemyAdapter, is_async=True, is_session=True),
    _Kind("django.db.backends.base.base", "BaseDatabaseWrapper", DjangoAdapter),
    _Kind("django.utils.connection", "ConnectionProxy", DjangoAdapter),
)


def is_sync(given: Any) -> bool:
    """Whether it is a connection that needs no event loop."""
    kind = _kind_of(given)
    return kind is not None and not kind.is_async


async def adapted(given: Any) -> Connection:
    """A connection as the store uses it: one of asyncpg as it is, another one in its adapter.

    Raises:
        ConfigError: it is no connection, or not to PostgreSQL.
    """
    if _is_asyncpg(given):
        return cast("Connection", given)
    kind = _kind_of(given)
    if kind is None:
        raise ConfigError(f"connection: expected one of asyncpg, psycopg, SQLAlchemy or Django; got {_name(given)}")
    adapter = await SQLAlchemyAdapter.of_session(given) if kind.is_session else kind.adapter(given)
    return cast("Connection", adapter)


async def adapted_sync(given: Any) -> Connection:
    """As `adapted`, for a connection that needs no event loop.

    Raises:
        ConfigError: it does need one, or as `adapted`.
    """
    if is_sync(given):
        return await adapted(given)
    other = ", which needs an event loop: use joex.Client" if _is_asyncpg(given) or _kind_of(given) else ""
    raise ConfigError(
        f"connection: expected a synchronous one of psycopg, SQLAlchemy or Django; got {_name(given)}{other}"
    )


def _is_asyncpg(given: Any) -> bool:
    return isinstance(given, (asyncpg.Connection, PoolConnectionProxy))


def _kind_of(given: Any) -> _Kind | None:
    for kind in _KINDS:
        module = sys.modules.get(kind.module)
        if module is not None and isinstance(given, getattr(module, kind.name)):
            return kind
    return None


def _name(given: Any) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"
