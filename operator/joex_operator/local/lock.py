"""The lock of a ``joex up`` on its name: two of one name would each start all executors of the file.

It holds between processes of one user that share a temporary folder. A container has a folder of its own, and so has a
service of systemd with ``PrivateTmp``, which may see no other folder that a login can write to either.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from joex.errors import ConfigError, JoexError


@contextmanager
def only_one(name: str, what: str) -> Iterator[None]:
    """Hold the lock on a name during the block. The kernel releases it however the process ends.

    Args:
        name: to lock.
        what: describes this process to another one that wants the lock.

    Raises:
        ConfigError: the file of the lock can't be used; the message names it.
        JoexError: another process holds the lock; the message says which.
    """
    with os.fdopen(_open(f"up-{name}.lock"), "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read().strip()
            raise JoexError(f"joex up already runs under the name {name!r}: {holder}; give another --name") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, {what}")
        file.flush()
        yield


def _open(name: str) -> int:
    """Open a file in a folder of this user.

    All users may write into the temporary folder: what one of them has put there, such as a link to a file of this
    user, is refused before anything is written.
    """
    folder = Path(tempfile.gettempdir()) / f"joex-{os.geteuid()}"
    path = folder / name
    try:
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        found = folder.lstat()
        if not (stat.S_ISDIR(found.st_mode) and _is_own(found)) or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _unusable(folder, "a folder of this user, closed to other users")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; set TMPDIR to another folder") from error
    found = os.fstat(file)
    if not (stat.S_ISREG(found.st_mode) and _is_own(found)):
        os.close(file)
        raise _unusable(path, "a file of this user")
    return file


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid()


def _unusable(path: Path, expected: str) -> ConfigError:
    return ConfigError(f"{path}: expected {expected}: remove it, or set TMPDIR to another folder")
