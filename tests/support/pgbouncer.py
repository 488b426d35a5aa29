"""PgBouncer in transaction mode in front of a test's server."""

import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psutil

from tests.support.parent import die_with_parent
from tests.support.postgres import TestServer, free_port
from tests.support.waiting import eventually

_ROOT = Path(__file__).parents[2]
# Round robin: each transaction gets another session of the server. All other settings are the defaults, max_client_conn
# too unless a benchmark needs more; above all, PgBouncer refuses an unknown startup parameter of a connection.
_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = {clients}
server_round_robin = 1
log_connections = 0
log_disconnections = 0
logfile = {folder}/log
"""


class PgBouncer:
    """A pooler with few sessions of the server for each database, so that its clients change sessions all the time.

    Args:
        server: the server.
        sessions: how many it has of the server for each database.
        clients: how many connections it takes.
        way: the port of a proxy that leads to the server.

    Attributes:
        port: on which it listens.
    """

    def __init__(self, server: TestServer, *, sessions: int, clients: int = 100, way: int | None = None) -> None:
        self.port = free_port()
        self._way = way or server.port
        self._server = server
        self._sessions = sessions
        self._clients = clients
        self._folder = server.folder / f"pgbouncer-{self.port}"
        self._process: subprocess.Popen | None = None

    def url(self, database: str) -> str:
        """The URL of a database, through the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database)}"

    def clients(self) -> int:
        """How many connections of clients are open."""
        assert self._process is not None
        found = psutil.Process(self._process.pid).net_connections("tcp")
        return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == self.port for one in found)

    async def __aenter__(self) -> Self:
        self._folder.mkdir()
        program, settings = self._program(), self._folder / "ini"
        settings.write_text(
            _SETTINGS.format(
                server=self._way,
                port=self.port,
                sessions=self._sessions,
                clients=self._clients,
                folder=self._folder,
            )
        )
        if self._server.user is not None:  # the tests run as root, PgBouncer can't
            shutil.chown(self._folder, self._server.user)
        self._process = self._started(program, settings)
        await eventually(self._is_there, why=f"PgBouncer listens; its log:\n{self._log}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
        print(self._log)  # pytest shows it
        shutil.rmtree(self._folder)

    def _program(self) -> Path:
        found = subprocess.run(
            [_ROOT / "scripts/get_program.sh", "pgbouncer"], check=False, capture_output=True, text=True, timeout=110
        )
        if found.returncode != 0:
            raise AssertionError(f"PgBouncer can't be had: {found.stderr}")
        program = Path(found.stdout.strip())
        if self._server.user is None or program.parts[1] == "usr":
            return program
        # Another user can't look into root's cache.
        copy = shutil.copytree(program.parent, self._folder / "program", symlinks=True)
        return Path(copy) / program.name

    def _started(self, program: Path, settings: Path) -> subprocess.Popen:
        return subprocess.Popen(
            [program, settings],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._server.user,
            cwd=self._folder,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no locks
        )

    def _is_there(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"PgBouncer has ended: {self._log}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    @property
    def _log(self) -> str:
        log = self._folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""
