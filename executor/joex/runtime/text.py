"""Cleans text from tasks for the database."""

from __future__ import annotations

from joex.core.text import LONGEST_TEXT, ErrorTexts, cut, said

_LONGEST_ERROR = 2000


def storable(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text without what PostgreSQL can't store (NUL, lone surrogates), cut if it is very long."""
    return cut(text, longest).replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def error_line(error: BaseException, message: str | None = None) -> str:
    """An error in one line: its type, with its module as in a traceback (except Joex's own), and its message.

    ``message``: if it has been made already.
    """
    kind = type(error)
    is_bare = str(kind.__module__).partition(".")[0] in ("builtins", "__main__", "joex")
    name = kind.__name__ if is_bare else f"{kind.__module__}.{kind.__qualname__}"
    message = said(error) if message is None else message
    # (First cut, then split: a message may have millions of lines.)
    message = " ".join(cut(message, max(_LONGEST_ERROR - len(name) - 2, 100)).split())
    return storable(f"{name}: {message}" if message else name, _LONGEST_ERROR)


def error_trace(error: BaseException) -> str:
    """An error with its traceback, for the job's log."""
    return storable(ErrorTexts(error).trace())
