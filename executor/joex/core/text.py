"""Texts for people: errors, messages, log lines."""

from __future__ import annotations

import builtins
import traceback
from contextlib import suppress

LONGEST_TEXT = 100_000
"""The most characters of such a text. `joex_private.cut` in sql/10_common.sql has the same limit, and the same mark."""

_MOST_CAUSES = 200  # with the members of exception groups
_MOST_FRAMES = 3000  # of all of them: an endless recursion has 1000
_LAST_FRAMES = 100
_FEW, _FEW_FRAMES, _SHORT = 5, 50, 1000
_OF_PYTHON = frozenset(
    one
    for one in vars(builtins).values()
    if isinstance(one, type)
    and issubclass(one, BaseException)
    and one.__str__ in (BaseException.__str__, KeyError.__str__, OSError.__str__)
    and not issubclass(
        one, AttributeError | NameError
    )  # (a traceback suggests names that an object has, which it asks)
)
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
        return "".join((str(error),))  # (a plain text, where a class gives one of a class of its own)
    except BaseException:  # noqa: BLE001 - an error class of a task may raise here, and must not end the executor
        return "(its message can't be shown)"


def is_quick(error: BaseException) -> bool:
    """Whether the texts of an error are made quickly, as those of most are.

    It is one of Python's own classes then, whose text has no parts but a few plain values, with a short traceback, and
    no other errors.
    """
    with suppress(BaseException):  # of the error's own attributes, and of those of its class
        frame, frames = error.__traceback__, 0
        while frame is not None and frames <= _FEW_FRAMES:
            frame, frames = frame.tb_next, frames + 1
        is_alone = error.__cause__ is None and error.__context__ is None and not hasattr(error, "__notes__")
        is_own = type(error) in _OF_PYTHON and frames <= _FEW_FRAMES and len(error.args) <= _FEW
        parts = error.args
        if isinstance(error, OSError):
            parts = (*parts, error.errno, error.strerror, error.filename, error.filename2)
        return is_alone and is_own and all(map(_is_plain, parts))
    return False


def _is_plain(value: object) -> bool:
    if type(value) is str:
        return len(value) <= _SHORT
    return value is None or type(value) is bool or (type(value) is int and value.bit_length() < _SHORT)


class ErrorTexts:
    """The texts of an error of a task, whatever its own code does; each is made once, as that may take long.

    Attributes:
        error: the error.
        message: its message.
        is_long: whether a traceback with all messages, notes and causes takes long (for some megabytes of lines, or
            100,000 frames, seconds), or can't be made.
    """

    __slots__ = ("_trace", "error", "is_long", "message")

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException = error
        self.message: str = said(error)
        self._trace: str | None = None
        self.is_long: bool = True
        with suppress(BaseException):  # of the error's own attributes
            self.is_long = self._is_long()

    def _is_long(self) -> bool:
        seen, size, frames, following = set[int](), 0, 0, [self.error]
        while following:
            one = following.pop()
            if id(one) in seen:
                continue
            seen.add(id(one))
            notes = getattr(one, "__notes__", None)
            size += len(self.message if one is self.error else said(one))
            size += sum(len(note) for note in notes if isinstance(note, str)) if isinstance(notes, list) else 0
            frame = one.__traceback__
            while frame is not None and frames <= _MOST_FRAMES:
                frame, frames = frame.tb_next, frames + 1
            if len(seen) > _MOST_CAUSES or size > LONGEST_TEXT or frames > _MOST_FRAMES:
                return True
            others = (one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ()))
            following += [other for other in others if other is not None]
        return False

    def trace(self) -> str:
        """The error with its traceback; of one that is long, the last frames and the beginning of its message."""
        if self._trace is None:
            self._trace = self._traced()
        return self._trace

    def _traced(self) -> str:
        if not self.is_long:
            with suppress(BaseException):  # of the error's own attributes, which `traceback` reads too
                return "".join(traceback.format_exception(self.error)).rstrip()
        frames, kind = "", "error"
        with suppress(BaseException):
            frames = "".join(traceback.format_tb(self.error.__traceback__, -_LAST_FRAMES))
            kind = type(self.error).__qualname__  # (which a class of the class may give)
        return f"{frames}{kind}: {cut(self.message, LONGEST_TEXT // 2)}"


def printable(text: str) -> str:
    r"""Show control characters as escapes, except tabs and line ends.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
