"""Texts for people are cut to a length that harms no reader."""

import traceback
from uuid import UUID

import pytest

from joex.core.job import TakenJob
from joex.core.text import LONGEST_TEXT, ErrorTexts, cut
from joex.errors import Retry
from joex.runtime.judge import tell_handlers
from joex.runtime.text import error_line, error_trace, storable


@pytest.mark.parametrize("text", ["", "x", "x" * LONGEST_TEXT, "é" * LONGEST_TEXT])
def test_a_text_within_the_limit_stays_as_it_is(text):
    assert cut(text) == text


def test_a_longer_one_is_cut_to_the_limit_and_says_how_long_it_was():
    text = cut("x" * 9_000_000)
    assert text == "x" * 99_960 + "… (cut, 9,000,000 characters)"
    assert len(text) <= LONGEST_TEXT
    assert len(cut("x" * (LONGEST_TEXT + 1))) <= LONGEST_TEXT


def test_a_text_that_was_cut_is_not_cut_again():
    text = cut("x" * 9_000_000)
    assert cut(text) == text


def test_what_a_run_sends_is_cut_before_it_is_sent():
    assert storable("x" * 9_000_000).endswith("… (cut, 9,000,000 characters)")
    assert storable("\0" * 2000, 1000) == "\N{REPLACEMENT CHARACTER}" * 960 + "… (cut, 2,000 characters)"
    assert len(error_line(ValueError("x" * 9_000_000))) <= 2000
    assert len(error_trace(ValueError("x" * 9_000_000))) <= LONGEST_TEXT


JOB = TakenJob(UUID(int=1), UUID(int=2), 1, "default", "a", "t", "{}", "low", "", "", 0, 0, None, 0.0)


def chain(length: int) -> Exception:
    """An error with as many causes."""
    error = ValueError("first")
    for nr in range(length):
        following = ValueError(nr)
        following.__cause__ = following.__context__ = error
        error = following
    return error


def deep(tracebacks: int) -> Exception:
    """Errors of as many endless recursions."""

    def endless() -> None:
        endless()

    errors = []
    for _ in range(tracebacks):
        try:
            endless()
        except RecursionError as error:
            errors.append(error)
    return ExceptionGroup("deep", errors)


def noted(note: str) -> Exception:
    """An error with a note."""
    error = ValueError("x")
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x\n" * LONGEST_TEXT),
        noted("x\n" * LONGEST_TEXT),
        chain(250),
        ExceptionGroup("many", [ValueError(nr) for nr in range(250)]),
        deep(5),
    ],
    ids=["message", "note", "causes", "members", "frames"],
)
def test_a_traceback_that_would_take_long_is_made_without_what_takes_long(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the event loop, whose other runs wait for it."""
    assert "The above exception was the direct cause" in error_trace(chain(20))
    with monkeypatch.context() as patched:
        patched.setattr(traceback, "format_exception", None)
        trace = error_trace(error)
    assert error_line(error)[:10] in trace
    tell_handlers(ErrorTexts(error), error_line(error), JOB)
    assert f"task t failed in attempt 1: {error_line(error)}" in caplog.text


class OutOfStockError(Exception):
    """An error of a task."""


class HostileError(Exception):
    """An error whose message is one more."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no\nluck"), "ValueError: no luck"),
        (OutOfStockError("tea"), f"{__name__}.OutOfStockError: tea"),
        (OutOfStockError(), f"{__name__}.OutOfStockError"),
        (Retry("later"), "Retry: later"),
        (HostileError(), f"{__name__}.HostileError: (its message can't be shown)"),
    ],
    ids=error_line,
)
def test_an_error_is_named_as_in_a_traceback(error: Exception, line: str) -> None:
    assert error_line(error) == line
