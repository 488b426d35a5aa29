"""Fixtures and order of all tests.

A test's folder under ``tests/`` is its tier and its marker. Tests run on the newest supported version of PostgreSQL,
and those of the SQL on the oldest as well: ``pytestmark = pytest.mark.postgres(16, 18)``. `make soak` runs all of the
tier ``integration`` on both, except tests that name their versions, and each test that is marked ``postgres``.
"""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import hypothesis
import hypothesis.internal.conjecture.optimiser  # (an example imports it else: Python 3.11 can't always parse there)
import psycopg
import pytest

from joex import Client
from joex.store.database import connect, create_pool
from tests.support.cluster.option import pytest_addoption  # noqa: F401 - pytest looks for it here
from tests.support.image import Image, installed
from tests.support.postgres import VERSIONS, TestServer, TestServers
from tests.support.proxy import Proxy
from tests.support.soak import SOAK, examples
from tests.support.waiting import eventually

TIERS = ("unit", "property", "integration", "acceptance", "faults", "browser", "cluster", "node")
_HERE = Path(__file__).parent
_OUR_LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid BETWEEN 1785685000 AND 1785685099 \
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and restore SIGINT."""
    # A shell that starts the tests in the background makes them ignore SIGINT, and their processes would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "postgres(*versions): the versions of PostgreSQL that a test runs on")
    # No test measures time. `make test` has the same examples each time, `make soak` has others.
    hypothesis.settings.register_profile(
        "joex",
        max_examples=examples(100),
        derandomize=not SOAK,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        print_blob=True,
    )
    hypothesis.settings.load_profile("joex")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each of its versions of PostgreSQL."""
    if "pg_version" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("postgres")
    default = VERSIONS if SOAK and (marker or _tier(metafunc.definition) == "integration") else VERSIONS[-1:]
    named = marker.args if marker else ()
    metafunc.parametrize("pg_version", named or default, ids=lambda version: f"pg{version}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test with its tier, before pytest applies ``-m``."""
    if tier := _tier(item):
        item.add_marker(tier)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tiers in order, the quick ones first. Only `make test-node` makes a real node, only `make soak` soaks."""
    asked_for = {"node": config.option.markexpr == "node", "soak": SOAK or "soak" in config.option.markexpr}
    left_out = {item for item in items for mark, is_ in asked_for.items() if item.get_closest_marker(mark) and not is_}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: TIERS.index(_tier(item) or TIERS[0]))


def _tier(item: Any) -> str | None:
    parts = item.path.relative_to(_HERE).parts if item.path.is_relative_to(_HERE) else ()
    return parts[0] if parts and parts[0] in TIERS else None


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[TestServers]:
    """The servers of this session, by version."""
    servers = TestServers()
    yield servers
    servers.close()


@pytest.fixture
def pg_version() -> int:
    """The version of PostgreSQL that a test runs on."""
    return VERSIONS[-1]  # never called: pytest_generate_tests gives the value


@pytest.fixture
def postgres(postgres_servers: TestServers, pg_version: int) -> Iterator[TestServer]:
    """A running server. A test may stop and restart it."""
    server = postgres_servers[pg_version]
    yield server
    if not server.is_running:
        server.start()


@pytest.fixture(scope="session")
def installed_image() -> Iterator[Image]:
    """The image of joex, installed."""
    with installed() as image:
        yield image


@pytest.fixture
async def empty_database_url(postgres: TestServer) -> AsyncIterator[str]:
    """The URL of an empty database for this test."""
    name = await postgres.create_database(migrated=False)
    yield postgres.url(name)
    await postgres.drop_database(name)


@pytest.fixture
async def database_name(request: pytest.FixtureRequest, postgres: TestServer) -> AsyncIterator[str]:
    """The name of a database for this test, with the schema of Joex. After the test it must have no lock."""
    name = await postgres.create_database()
    yield name
    if not postgres.is_running:
        postgres.start()
    # An executor in a pod may connect once more after its pod was deleted: not to the database of another test.
    is_clusters = request.node.get_closest_marker("cluster") is not None
    await postgres.release_database(name, _nothing_leaked, may_be_kept=not is_clusters)


@pytest.fixture
def database_url(postgres: TestServer, database_name: str) -> str:
    """The URL of a database for this test, with the schema of Joex."""
    return postgres.url(database_name)


@pytest.fixture
async def proxy(postgres: TestServer, database_name: str) -> AsyncIterator[Proxy]:
    """A proxy in front of the test's database."""
    async with Proxy(postgres.port) as proxy:
        proxy.url = postgres.tcp_url(database_name, port=proxy.port)
        yield proxy


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the test's database."""
    connection = await connect(database_url, name="joex test")
    yield connection
    await connection.close()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool of connections to the test's database."""
    pool = await create_pool(database_url, most=10, name="joex test pool")
    yield pool
    await pool.close()


@pytest.fixture
async def client(pool: asyncpg.Pool) -> AsyncIterator[Client]:
    """A client on the test's database."""
    client = Client(pool)
    yield client
    await client.close()


async def _nothing_leaked(session: psycopg.Connection[Any]) -> None:
    """Check for leaks: closed sessions are gone a moment later, so an advisory lock that stays is a leak."""
    await eventually(
        lambda: session.execute(_OUR_LOCKS).fetchone() == (0,), why="no advisory lock of Joex is left after the test"
    )
