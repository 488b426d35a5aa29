"""Cases that one test tries in one database: a database for each of them takes longer than most cases."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Name the case in a failure of this block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(repr, what))}")
        raise
