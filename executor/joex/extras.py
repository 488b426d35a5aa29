"""The extras of the package, which bring the libraries of its parts: ``pip install 'joex[executor]'``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from joex.errors import MissingExtra

_OURS = ("joex", "joex_operator")


@contextmanager
def needs(extra: str, part: str) -> Iterator[None]:
    """Import, within the block, libraries that an extra brings.

    Args:
        extra: the extra, or several, separated by commas.
        part: what needs them, and a verb: for the message.

    Raises:
        MissingExtra: a library is not installed; one line that names the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:  # a bug, which must show as it is
            raise
        raise missing(extra, part) from error


def missing(extra: str, part: str) -> MissingExtra:
    """The error that names a missing extra; the arguments are those of `needs`."""
    return MissingExtra(f"{part} the extra: pip install 'joex[{extra}]'")
