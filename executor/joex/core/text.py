"""Texts for people: errors, messages, log lines."""

from __future__ import annotations

LONGEST_TEXT = 100_000
"""The most characters of such a text. `joex_private.cut` in sql/10_common.sql has the same limit, and the same mark."""

_MARK = 40  # characters that the mark may have


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text, cut to this many characters, with a mark that says how many it had.

    >>> cut("x" * 9_000_000, 42)
    'xx… (cut, 9,000,000 characters)'
    """
    return text if len(text) <= longest else f"{text[: longest - _MARK]}… (cut, {len(text):,} characters)"


def printable(text: str) -> str:
    r"""Show control characters as escapes, except tabs and line ends.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
