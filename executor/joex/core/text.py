"""Texts for people: errors, messages, log lines."""

from __future__ import annotations

import traceback

LONGEST_TEXT = 100_000
"""The most characters of such a text. `joex_private.cut` in sql/10_common.sql has the same limit, and the same mark."""

_MOST_CAUSES = 200  # with the members of exception groups
_MARK = 40  # characters that the mark may have


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text, cut to this many characters, with a mark that says how many it had.

    >>> cut("x" * 9_000_000, 42)
    'xx… (cut, 9,000,000 characters)'
    """
    return text if len(text) <= longest else f"{text[: longest - _MARK]}… (cut, {len(text):,} characters)"


def said(error: BaseException) -> str:
    """The message of an error."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - an error class of a task may raise here, and must not end the executor
        return "(its message can't be shown)"


def is_long(error: BaseException) -> bool:
    """Whether a traceback with all messages, notes and causes takes long: for some megabytes of lines, seconds."""
    seen, size, following = set[int](), 0, [error]
    while following:
        one = following.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        notes = getattr(one, "__notes__", None)
        size += len(said(one))
        size += sum(len(note) for note in notes if isinstance(note, str)) if isinstance(notes, list) else 0
        if len(seen) > _MOST_CAUSES or size > LONGEST_TEXT:
            return True
        others = (one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ()))
        following += [other for other in others if other is not None]
    return False


def traced(error: BaseException) -> str:
    """An error with its traceback; of one that `is_long`, without its causes, and with the beginning of its message."""
    if not is_long(error):
        return "".join(traceback.format_exception(error)).rstrip()
    message = cut(said(error), LONGEST_TEXT // 10)
    return f"{''.join(traceback.format_tb(error.__traceback__))}{type(error).__qualname__}: {message}"


def printable(text: str) -> str:
    r"""Show control characters as escapes, except tabs and line ends.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
