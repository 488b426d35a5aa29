"""What a run breaks: a primary and its standby, a link for each process, and the processes."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import asyncpg
import psutil
import yaml

from joex.store.migrate import migrate
from tests.support.apps import TROUBLE
from tests.support.chaos.app import HISTORY, TYPE
from tests.support.chaos.history import Writer
from tests.support.clock import make_settable
from tests.support.postgres import VERSIONS, Standby, TestServer
from tests.support.processes import Process
from tests.support.proxy import Proxy
from tests.support.schedulers import RECORD
from tests.support.waiting import eventually

DATABASE = "chaos"
LEASE = 4
SLOTS = 6
_SEGMENT = 2**20
_APP = "tests.support.chaos.app"
_RESTART_AFTER = 1.0
_SCHEMA = """
    CREATE SCHEMA chaos;
    CREATE TABLE chaos.effect (job uuid NOT NULL, lock uuid NOT NULL);
    CREATE TABLE chaos.purchase (id uuid PRIMARY KEY, job uuid NOT NULL);
    CREATE TABLE chaos.job_end (job uuid NOT NULL, state text NOT NULL, lock uuid, result text);
    CREATE FUNCTION chaos.note_end() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO chaos.job_end VALUES (NEW.id, NEW.state, NEW.lock_id, NEW.result #>> '{}');
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_end AFTER UPDATE ON joex_private.job FOR EACH ROW
    WHEN (OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL) EXECUTE FUNCTION chaos.note_end();
    UPDATE joex_private.periodic_task SET enabled = false;
"""


class Server(TestServer):
    """The first primary. Its WAL has small segments, so that a limit of the size of files need not stop it."""

    def _fill(self) -> None:
        segments = f"--wal-segsize={_SEGMENT // 2**20}"
        self._run("initdb", "--no-sync", "--no-locale", "--encoding=utf8", "--auth=trust", "-U", "postgres", segments)


class Link:
    """The way of one process to both servers."""

    def __init__(self) -> None:
        self._proxies = [Proxy(0), Proxy(0)]

    async def open(self, ports: list[int]) -> Self:
        """Listen."""
        self.point_to(ports)
        for proxy in self._proxies:
            await proxy.accept()
        return self

    @property
    def url(self) -> str:
        """The URL of the database by this link."""
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self._proxies)
        return f"postgresql://postgres@{hosts}/{DATABASE}?target_session_attrs=read-write"

    def point_to(self, ports: list[int]) -> None:
        """Lead new connections to servers at these ports."""
        for proxy, port in zip(self._proxies, ports, strict=True):
            proxy.target = port

    async def cut(self) -> None:
        """End all connections."""
        await asyncio.gather(*(proxy.cut() for proxy in self._proxies))

    async def refuse(self) -> None:
        """End all connections, and refuse new ones."""
        await asyncio.gather(*(proxy.refuse() for proxy in self._proxies))

    async def accept(self) -> None:
        """Accept connections again."""
        for proxy in self._proxies:
            await proxy.accept()

    def freeze(self) -> None:
        """Go silent."""
        for proxy in self._proxies:
            proxy.freeze()

    def thaw(self) -> None:
        """Go on, with what was held back."""
        for proxy in self._proxies:
            proxy.thaw()

    def slow(self, seconds: float) -> None:
        """Hold each piece up for this long."""
        for proxy in self._proxies:
            proxy.slowness = seconds


class Member:
    """A process that is started again when it ends; `pids` are its executors, or it itself."""

    def __init__(self, name: str, link: Link, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.link = link
        self.exits: list[int] = []
        self._command = command
        self._environment = environment
        self._log = log
        self._process: Process | None = None
        self._start_at = 0.0

    def keep_running(self) -> None:
        """Start it, or start it again a moment after its end."""
        if self._process is not None and not self._process.is_alive:
            self.exits.append(self._process.exit_code or 0)
            self._process.close()
            self._process = None
            self._start_at = time.monotonic() + _RESTART_AFTER
        if self._process is None and time.monotonic() >= self._start_at:
            with self._log.open("a") as output:
                self._process = Process(self._command, self._environment, output.fileno())

    @property
    def pids(self) -> list[int]:
        """The processes that run jobs."""
        if self._process is None or not self._process.is_alive:
            return []
        if "up" not in self._command:
            return [self._process.pid]
        with suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self._process.pid).children()]
        return []

    def close(self) -> None:
        """Kill it."""
        pids = self.pids
        if self._process is not None:
            self._process.close()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)


class World:
    """The servers, links and processes of a run.

    Attributes:
        primary: the server that takes writes.
        standby: the one that follows it; None: it is just being made.
        is_synchronous: whether commits wait for the standby.
        replication: the link from the standby to the primary.
        clients: the link of the clients.
        members: the processes.
        history: what the driver writes down.
    """

    def __init__(self, folder: Path, *, executors: int, is_synchronous: bool) -> None:
        self.folder = folder
        self.is_synchronous = is_synchronous
        self.clients = Link()
        self.replication = Proxy(0)
        self.members: list[Member] = []
        self.history = Writer(self.history_file)
        self.standby: Standby | None = None
        self.primary: TestServer
        self._sites: list[TestServer] = []
        self._names = [f"executor-{number + 1}" for number in range(executors)]
        self._stack = AsyncExitStack()

    @property
    def history_file(self) -> Path:
        """The file of the history."""
        return self.folder / "history.jsonl"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = "checkpoint_timeout = 1min\nmin_wal_size = 8MB\nmax_wal_size = 256MB\n"
        self.primary = await asyncio.to_thread(Server, VERSIONS[-1], settings=settings)
        self._sites = [self.primary, self.primary]
        stack.push_async_callback(self._close_servers)
        async with self.primary.administrator() as administrator:
            await administrator.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
        async with self.primary.administrator(DATABASE) as administrator:
            await migrate(administrator)
            await administrator.execute(_SCHEMA + RECORD)
            await make_settable(administrator)
        self.replication.target = self.primary.port
        await stack.enter_async_context(self.replication)
        stack.push_async_callback(self._refuse_all)
        await self.clients.open(self._ports)
        await self.make_standby()
        stack.callback(self._close_members)
        for name in self._names:
            await self._add(name, "joex", "executor", "--app", f"{_APP}:app")
        await self._add("up", "joex", "up", "-f", str(self._write_pool()), "--name", "chaos", "--json")
        await self._add("worker", _APP)

    async def make_standby(self) -> None:
        """Make a standby of the primary, in the place of the server that is not the primary."""
        primary = self.primary
        standby = await asyncio.to_thread(lambda: Standby(primary, port=self.replication.port))
        self._sites[1 - self._sites.index(primary)] = standby
        for link in self.links:
            link.point_to(self._ports)
        if self.is_synchronous:
            await standby.become_synchronous()
        self.standby = standby

    async def promote(self) -> None:
        """Promote the standby; the primary has gone."""
        assert self.standby is not None
        await self.standby.promote()
        before, self.primary, self.standby = self.primary, self.standby, None
        self.replication.target = self.primary.port
        await asyncio.to_thread(self._close_server, before)

    @property
    def links(self) -> list[Link]:
        """The links of all processes."""
        return [self.clients, *(member.link for member in self.members)]

    @asynccontextmanager
    async def administrator(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection to the primary by no link."""
        async with self.primary.administrator(DATABASE) as administrator:
            yield administrator

    async def mended(self) -> None:
        """Wait until the servers are up, and the standby follows."""
        await eventually(self._is_up, why="the primary answers")
        if self.standby is not None:
            await self.standby.has_all()

    async def _is_up(self) -> bool:
        with suppress(*TROUBLE):
            async with self.primary.administrator():
                return True
        return False

    async def _add(self, name: str, *command: str) -> None:
        link = await Link().open(self._ports)
        temporary = self.folder / f"tmp-{name}"
        temporary.mkdir()
        environment = {each: value for each, value in os.environ.items() if not each.startswith(("JOEX_", "PG"))}
        settings = {
            "app_id": name,
            "database_url": link.url,
            "queues": f"default,{TYPE}",
            "pool_size": SLOTS,
            "lease": LEASE,
            "retries": 100,
            "retry_delay": 0.1,
            "most_losses": 1000,
            "http_address": "",
        }
        if name == "up":
            settings = {"database_url": link.url, "most_losses": 1000}
        environment |= {f"JOEX_{each.upper()}": str(value) for each, value in settings.items()}
        environment |= {HISTORY: str(self.history_file), "TMPDIR": str(temporary)}
        member = Member(name, link, [sys.executable, "-m", *command], environment, self.folder / f"{name}.log")
        self.members.append(member)

    def _write_pool(self) -> Path:
        spec = {
            "app": f"{_APP}:app",
            "database": {"secretName": "db"},
            "queues": ["default", TYPE],
            "poolSize": SLOTS,
            "lease": f"{LEASE}s",
            "retries": 100,
            "retryDelay": "100ms",
            "scaling": {
                "minReplicas": 1,
                "maxReplicas": 2,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}},
            },
        }
        pool = {"apiVersion": "joex.dev/v1alpha1", "kind": "JoexPool", "metadata": {"name": "chaos"}, "spec": spec}
        path = self.folder / "pool.yaml"
        path.write_text(yaml.safe_dump(pool))
        return path

    @property
    def _ports(self) -> list[int]:
        return [server.port for server in self._sites]

    async def _refuse_all(self) -> None:
        for link in self.links:
            await link.refuse()

    def _close_members(self) -> None:
        for member in self.members:
            member.close()

    async def _close_servers(self) -> None:
        for server in {*self._sites, self.primary}:
            await asyncio.to_thread(self._close_server, server)

    def _close_server(self, server: TestServer) -> None:
        """Keep the log of a server, and remove it; once."""
        if server.folder.exists():
            (self.folder / f"postgresql-{server.port}.log").write_text(server.log)
            server.close()
