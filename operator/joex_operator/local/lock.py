"""One ``joex up`` of a name on a machine: two would end each other's executors, and remove each other's tasks."""

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
    """Be the only one of this name, for the time of a block. The kernel lets go of the name however the process ends.

    Args:
        name: of which there is to be only one.
        what: what others are told of this one.

    Raises:
        JoexError: there is another; the message says which.
    """
    path = _folder() / f"up-{name}.lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip()
            raise JoexError(f"joex up is there already under the name {name!r}: {who}; --name gives another") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, {what}")
        file.flush()
        yield


def _folder() -> Path:
    """A folder of this user's own: the same in a login and in a service, and gone with the next boot at the latest."""
    folder = Path(tempfile.gettempdir()) / f"joex-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        is_own = folder.stat().st_uid == os.geteuid()
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; TMPDIR names another place for it") from error
    if not is_own:
        raise ConfigError(f"{folder}: belongs to somebody else; TMPDIR names another place for it")
    return folder
