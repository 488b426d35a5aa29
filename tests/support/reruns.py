"""Second runs: `make test` runs a failed test once more, alone, when its lanes have ended.

A test that passes then is flaky: it is named, with its outputs, and the run is green. Three limits keep this honest.
More than `MOST` first failures are no accident: red at once. A test of a promise, which ``docs/why/guarantees.md``
names, runs again only if a wait ran out, or if Python warned of something left open, which the garbage collector finds
in any later test: every other failure may be a job that ran twice, and a second run would hide it. ``--flaky-is-red``
is for those who look for flaky tests.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.parent import die_with_parent
from tests.support.waiting import NotInTime

MOST = 3
FOLDER = Path("build/flaky")
PROMISES = Path("docs/why/guarantees.md")
_NO_BREACH = (
    *(NotInTime, TimeoutError, subprocess.TimeoutExpired),
    *(ResourceWarning, pytest.PytestUnraisableExceptionWarning),
)
_SEED = re.compile(r"^.*\bseed\b.*$", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """A failed test, or a file that was not finished.

    Attributes:
        test: what pytest calls it.
        argument: what makes pytest run it.
        text: all that it printed.
        reason: its assertion, and its seed if it has one.
        may_run_again: whether a second run may forgive it.
    """

    test: str
    argument: str
    text: str
    reason: str
    may_run_again: bool

    @classmethod
    def of(cls, item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> Failure:
        """The failure that a report tells of."""
        sections = "".join(f"--- {name} ---\n{text}" for name, text in report.sections)
        text = f"FAILED {report.nodeid} ({report.when})\n{report.longreprtext}\n{sections}"
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash is not None else report.longreprtext
        seeds = list(dict.fromkeys(line.strip()[:200] for line in _SEED.findall(sections)))
        first = next((line.strip() for line in message.splitlines() if line.strip()), "")
        name = getattr(item, "originalname", None) or item.name
        return cls(
            test=report.nodeid,
            argument=f"{item.path}::{report.nodeid.partition('::')[2]}",
            text=text,
            reason="; ".join([first[:300], *seeds[:2]]),
            may_run_again=_is_no_breach(error) or name not in _promised(),
        )

    @classmethod
    def unfinished(cls, name: str, path: str) -> Failure:
        """A file whose lane has died."""
        return cls(name, path, f"{name}: NOT finished\n", "NOT finished", may_run_again=True)


def run_again(failures: Sequence[Failure], say: Callable[[str], None]) -> tuple[list[Failure], list[Failure]]:
    """Run failed tests once more, each alone; returns those that are flaky, and those that have failed for good."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    # One entry a test: it may have failed in its fixtures as well.
    tests: dict[str, list[Failure]] = {}
    for failure in failures:
        tests.setdefault(failure.argument, []).append(failure)
    if len(tests) > MOST:
        say(f"test: {len(tests)} first failures are more than {MOST}: none runs again")
        return [], list(failures)
    flaky: list[Failure] = []
    bad: list[Failure] = []
    for number, (argument, firsts) in enumerate(tests.items(), 1):
        if not all(first.may_run_again for first in firsts):
            say(f"test: {firsts[0].test} is a promise, and this may be a breach: it does not run again")
            bad += firsts
            continue
        say(f"test: running once more, alone: {firsts[0].test}")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", argument]
        second = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_parent,
        )
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{number}-first.txt").write_text("\n".join(first.text for first in firsts))
        (FOLDER / f"{number}-second.txt").write_text(second.stdout)
        if second.returncode:
            say(second.stdout)
        (bad if second.returncode else flaky).extend(firsts)
    return flaky, bad


def tell(flaky: Sequence[Failure], bad: Sequence[Failure], say: Callable[[str], None]) -> None:
    """Name what is flaky and what has failed, last of all: who sees only the end of a log must know why it is red."""
    if flaky:
        say(f"flaky: {len({failure.argument for failure in flaky})}, with both outputs in {FOLDER}:")
    for word, failures in (("flaky", flaky), ("FAILED", bad)):
        for failure in failures:
            say(f"{word}: {failure.test}: {failure.reason}")


def _is_no_breach(error: BaseException | None) -> bool:
    """Whether a wait ran out, here, in one of several tasks, or of the test itself; or something was left behind."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_no_breach, error.exceptions))
    return isinstance(error, _NO_BREACH) or (
        isinstance(error, pytest.fail.Exception) and "from pytest-timeout" in str(error)
    )


def _promised() -> frozenset[str]:
    """The tests that the guarantees name."""
    return frozenset(re.findall(r"`(test_\w+)`", PROMISES.read_text())) if PROMISES.exists() else frozenset()
