"""Cleans text from tasks for the database."""

from __future__ import annotations

import traceback

_LONGEST_ERROR = 2000
_LONGEST_LINE = 100_000


def storable(text: str, longest: int = _LONGEST_LINE) -> str:
    """The text without what PostgreSQL can't store (NUL, lone surrogates), cut if it is very long."""
    if len(text) > longest:
        text = f"{text[:longest]} ... ({len(text) - longest} more characters)"
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def error_line(error: BaseException) -> str:
    """An error in one line: its type and its message."""
    said = " ".join(_said(error).split())
    name = type(error).__name__
    return storable(f"{name}: {said}" if said else name, _LONGEST_ERROR)


def error_trace(error: BaseException) -> str:
    """An error with its traceback, for the job's log."""
    return storable("".join(traceback.format_exception(error)).rstrip())


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a task's error class may fail at anything; it must not take the executor along
        return "(its message can't be shown)"
