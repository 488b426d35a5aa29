"""The lock of a ``joex up`` on its name: two of one name would end each other's executors."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joex.errors import ConfigError, JoexError


@contextmanager
def only_one(name: str, what: str) -> Iterator[None]:
    """Hold the lock on a name during the block. The kernel releases it however the process ends.

    Args:
        name: to lock.
        what: describes this process to another one that wants the lock.

    Raises:
        JoexError: another process holds the lock; the message says which.
    """
    path = _folder() / f"up-{name}.lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise JoexError(f"joex up already runs under the name {name!r}: {holder}; give another --name") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, {what}")
        file.flush()
        yield


def _folder() -> Path:
    """A folder of this user, the same in a login and in a service, and deleted at the next boot at the latest."""
    folder = Path(tempfile.gettempdir()) / f"joex-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        is_own = folder.stat().st_uid == os.geteuid()
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; set TMPDIR to another folder") from error
    if not is_own:
        raise ConfigError(f"{folder}: belongs to another user; set TMPDIR to another folder")
    return folder
