"""Fixtures for tests of code that submits jobs: ``joex_app``, ``joex_url``, ``joex_client`` and ``joex_drain``.

pytest loads this module in each of its runs, so the rest of Joex is imported only where a test asks for a fixture.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from joex import App, Client, Job
    from joex.store.statement import Connection

T = TypeVar("T")

_NAME = re.compile(r"joex_test_(\d+)_\d+")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the app."""
    parser.addini("joex_app", "The joex.App for the fixture joex_drain, as MODULE:APP, e.g. shop.tasks:app.")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Define the fixture that needs an event loop: pytest-asyncio, where it is, wants a decorator of its own."""
    fixture: Callable[..., Any] = pytest.fixture
    if config.pluginmanager.hasplugin("asyncio"):
        import pytest_asyncio  # noqa: PLC0415 - here it is imported already

        fixture = pytest_asyncio.fixture
    fixtures = ModuleType("joex_client")
    fixtures.joex_client = fixture(name="joex_client")(_client)  # type: ignore[attr-defined]
    config.pluginmanager.register(fixtures)


async def _client(joex_url: str) -> AsyncIterator[Client]:
    """A client on the database of the test."""
    from joex import Client  # noqa: PLC0415 - see above

    async with Client(joex_url) as client:
        yield client


@pytest.fixture(scope="session")
def joex_app(pytestconfig: pytest.Config) -> App:
    """The app whose tasks ``joex_drain`` runs: the one that the ini option ``joex_app`` names; or override this."""
    from joex.cli.load import load_app  # noqa: PLC0415 - see above

    place = pytestconfig.getini("joex_app")
    with _one_line():
        if not place:
            pytest.fail(
                "joex_app: name your app in pytest's configuration, such as joex_app = shop.tasks:app, "
                "or write a fixture joex_app that returns it",
                pytrace=False,
            )
        return load_app(place)


@pytest.fixture(scope="session")
def joex_databases() -> Iterator[Callable[[], str]]:
    """Makes databases with the schema of Joex, on an embedded server; gives the URL of a new one at each call."""
    if sys.platform == "win32":
        pytest.fail("joex_url: Windows has no embedded PostgreSQL: write a fixture joex_url of your own", pytrace=False)
    with _one_line():
        from joex.store.embedded import (  # type: ignore[attr-defined,unused-ignore] # noqa: PLC0415 - see above
            EmbeddedServer,
            default_folder,
        )

        server = EmbeddedServer(default_folder() / "pytest")
    try:
        databases = _Databases(server.url)
        _run(databases.open())
        yield lambda: _run(databases.make())
        _run(databases.drop_all())
    finally:
        server.close()


@pytest.fixture
def joex_url(joex_databases: Callable[[], str]) -> str:
    """The URL of a new database with the schema of Joex, for this test alone. Override it to use one of your own."""
    return joex_databases()


@pytest.fixture
def joex_drain(joex_app: App, joex_url: str) -> Callable[..., Coroutine[Any, Any, list[Job]]]:
    """A coroutine function that runs the jobs in the database of the test, as `joex.testing.drain` does."""

    async def drain(database: Connection | Client | None = None, **options: Any) -> list[Job]:
        from joex import Client, testing  # noqa: PLC0415 - see above

        if database is not None:
            return await testing.drain(joex_app, database, **options)
        async with Client(joex_url) as client:
            return await testing.drain(joex_app, client, **options)

    return drain


class _Databases:
    """The databases of a session of tests: copies of a template, whose names have the process id of the session."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()
        self._template = self._name()

    async def open(self) -> None:
        """Drop what sessions that were killed have left behind, and make the template."""
        from joex.store.database import connect  # noqa: PLC0415 - see above
        from joex.store.migrate import migrate  # noqa: PLC0415

        await self._drop(lambda pid: pid == os.getpid() or not _is_alive(pid))
        await self._execute(f"CREATE DATABASE {self._template}")
        connection = await connect(self._url_of(self._template), name="joex pytest")
        try:
            await migrate(connection)
        finally:
            await connection.close()

    async def make(self) -> str:
        """Make a database; returns its URL."""
        name = self._name()
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        return self._url_of(name)

    async def drop_all(self) -> None:
        """Drop the databases of this session."""
        await self._drop(lambda pid: pid == os.getpid())

    def _name(self) -> str:
        return f"joex_test_{os.getpid()}_{next(self._numbers)}"

    def _url_of(self, name: str) -> str:
        return self._url.replace("/postgres?", f"/{name}?")

    async def _execute(self, statement: str) -> list[str]:
        from joex.store.database import connect  # noqa: PLC0415 - see above

        connection = await connect(self._url, name="joex pytest")
        try:
            return [str(row[0]) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    async def _drop(self, chosen: Callable[[int], bool]) -> None:
        for name in await self._execute("SELECT datname FROM pg_database"):
            found = _NAME.fullmatch(name)
            if found and chosen(int(found[1])):
                await self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run this on an event loop of its own, in a thread: the thread of the tests may have one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def _one_line() -> Iterator[None]:
    """Fail with the message alone, which says what is wrong."""
    from joex.errors import JoexError  # noqa: PLC0415 - see above

    try:
        yield
    except JoexError as error:
        pytest.fail(str(error).replace("--app:", "joex_app:"), pytrace=False)
