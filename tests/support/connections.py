"""Connections as programs have them, of each library that clients take: each begins and rolls back in its own way."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections as django_connections
from django.db import transaction as django_transaction
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

INSERT, COUNT = "INSERT INTO orders VALUES ('tea')", "SELECT count(*) FROM orders"


class Held(NamedTuple):
    """A connection, and what its owner does with it."""

    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    savepoint: Callable[[], Any]
    """A block that rolls back what it did when it raises."""


# ---- synchronous ones


@contextmanager
def psycopg_connection(url: str) -> Iterator[Held]:
    with psycopg.connect(url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as held:
        yield Held(held, held.execute, held.commit, held.rollback, held.transaction)
        held.rollback()


@contextmanager
def psycopg_in_autocommit(url: str) -> Iterator[Held]:
    with psycopg.connect(url, autocommit=True) as held:
        held.execute("BEGIN")
        yield Held(held, held.execute, held.commit, held.rollback, held.transaction)
        held.rollback()


def give_loaders(held: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Let a connection load ids as text, and JSON and rows in another way than psycopg."""
    held.adapters.register_loader("uuid", TextLoader)
    set_json_loads(lambda text: ("loaded", text), held)
    held.row_factory = namedtuple_row


@contextmanager
def psycopg_with_loaders(url: str) -> Iterator[Held]:
    with psycopg_connection(url) as made:
        give_loaders(made.connection)
        yield made


def sqlalchemy_url(url: str, driver: str) -> sqlalchemy.URL:
    given = conninfo_to_dict(url)
    host, port = given.pop("host"), given.pop("port", "5432")
    return sqlalchemy.URL.create(
        f"postgresql+{driver}", str(given["user"]), host=str(host), port=int(str(port)), database=str(given["dbname"])
    )


@contextmanager
def engine(url: str, driver: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(sqlalchemy_url(url, driver), poolclass=sqlalchemy.NullPool, **options)
    yield made
    made.dispose()


def sqlalchemy_connection(driver: str) -> Callable[[str], AbstractContextManager[Held]]:
    @contextmanager
    def held_connection(url: str) -> Iterator[Held]:
        with engine(url, driver) as made, made.connect() as held:
            yield Held(held, held.exec_driver_sql, held.commit, held.rollback, held.begin_nested)

    return held_connection


def sqlalchemy_session(factory: Callable[[Any], Any]) -> Callable[[str], AbstractContextManager[Held]]:
    @contextmanager
    def held_session(url: str) -> Iterator[Held]:
        with engine(url, "psycopg") as made:
            held = factory(made)
            yield Held(
                held, lambda sql: held.execute(sqlalchemy.text(sql)), held.commit, held.rollback, held.begin_nested
            )
            held.close()

    return held_session


@contextmanager
def django_alias(url: str) -> Iterator[Any]:
    """Django's connection of this thread to a database, by an alias of its own; not opened yet."""
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True, TIME_ZONE="Europe/Zurich")
        django.setup()
    given = conninfo_to_dict(url)
    name = given.pop("dbname")
    alias = f"shop of {name}"
    made = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": name, "OPTIONS": given}}
    django_connections.settings[alias] = django_connections.configure_settings(made)["default"]
    held = django_connections[alias]
    yield held
    if held.connection is not None:
        held.close()
    del django_connections[alias]
    del django_connections.settings[alias]


@contextmanager
def django_connection(url: str) -> Iterator[Held]:
    """Django's connection, in a transaction."""
    with django_alias(url) as held:
        held.set_autocommit(False)

        def execute(sql: str) -> Any:
            with held.cursor() as cursor:
                cursor.execute(sql)

        yield Held(held, execute, held.commit, held.rollback, lambda: django_transaction.atomic(using=held.alias))
        held.rollback()


SYNC: dict[str, Callable[[str], AbstractContextManager[Held]]] = {
    "psycopg": psycopg_connection,
    "psycopg in autocommit": psycopg_in_autocommit,
    "psycopg with loaders": psycopg_with_loaders,
    "SQLAlchemy connection": sqlalchemy_connection("psycopg"),
    "SQLAlchemy connection, psycopg2": sqlalchemy_connection("psycopg2"),
    "SQLAlchemy session": sqlalchemy_session(Session),
    "SQLAlchemy scoped session": sqlalchemy_session(lambda made: scoped_session(sessionmaker(made))),
    "Django": django_connection,
}


# ---- those that need an event loop


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Held]:
    held = await asyncpg.connect(url)
    transaction = held.transaction()
    await transaction.start()
    yield Held(held, held.execute, transaction.commit, transaction.rollback, held.transaction)
    await held.close()


async def give_codecs(held: Any) -> None:
    """Let a connection have ids as text, and JSON in another way than asyncpg."""
    await held.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str, format="text")
    for name in ("json", "jsonb"):
        await held.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)


@asynccontextmanager
async def asyncpg_with_codecs(url: str) -> AsyncIterator[Held]:
    async with asyncpg_connection(url) as made:
        await give_codecs(made.connection)
        yield made


@asynccontextmanager
async def async_psycopg_with_loaders(url: str) -> AsyncIterator[Held]:
    async with async_psycopg_connection(url) as made:
        give_loaders(made.connection)
        yield made


@asynccontextmanager
async def async_psycopg_connection(url: str) -> AsyncIterator[Held]:
    async with await psycopg.AsyncConnection.connect(url, row_factory=dict_row) as held:
        yield Held(held, held.execute, held.commit, held.rollback, held.transaction)
        await held.rollback()


def async_sqlalchemy_connection(driver: str) -> Callable[[str], AbstractAsyncContextManager[Held]]:
    @asynccontextmanager
    async def held_connection(url: str) -> AsyncIterator[Held]:
        made = create_async_engine(sqlalchemy_url(url, driver), poolclass=sqlalchemy.NullPool)
        async with made.connect() as held:
            yield Held(held, held.exec_driver_sql, held.commit, held.rollback, held.begin_nested)
        await made.dispose()

    return held_connection


def async_sqlalchemy_session(factory: Callable[[Any], Any]) -> Callable[[str], AbstractAsyncContextManager[Held]]:
    @asynccontextmanager
    async def held_session(url: str) -> AsyncIterator[Held]:
        made = create_async_engine(sqlalchemy_url(url, "asyncpg"), poolclass=sqlalchemy.NullPool)
        held = factory(made)
        yield Held(held, lambda sql: held.execute(sqlalchemy.text(sql)), held.commit, held.rollback, held.begin_nested)
        await held.close()
        await made.dispose()

    return held_session


ASYNC: dict[str, Callable[[str], AbstractAsyncContextManager[Held]]] = {
    "asyncpg": asyncpg_connection,
    "asyncpg with codecs": asyncpg_with_codecs,
    "psycopg": async_psycopg_connection,
    "psycopg with loaders": async_psycopg_with_loaders,
    "SQLAlchemy connection": async_sqlalchemy_connection("asyncpg"),
    "SQLAlchemy connection, psycopg": async_sqlalchemy_connection("psycopg"),
    "SQLAlchemy session": async_sqlalchemy_session(AsyncSession),
    "SQLAlchemy scoped session": async_sqlalchemy_session(
        lambda made: async_scoped_session(async_sessionmaker(made), scopefunc=lambda: None)
    ),
}
