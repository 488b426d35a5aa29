"""The output of ``joex up``: Events on stdout, the lines of executors on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime

from joex.cli.output import print_json_line, say
from joex.core.text import printable
from joex_operator.decide.events import Event

_BROKEN = (OSError, ValueError)
"""The errors of a closed stream, which ``joex up`` ignores."""


class ConsoleOutput:
    """For a terminal: a line for each Event, and the executors' lines after the names of their replicas."""

    log_format = "console"

    def event(self, kind: str, name: str, event: Event) -> None:
        """Print an Event."""
        del kind
        mark = "!" if event.type == "Warning" else " "
        time = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        with suppress(*_BROKEN):
            say(f"{time} {mark} {name:<12}  {event.reason:<14}  {event.message}")
            sys.stdout.flush()

    def log_line(self, replica: str, line: str) -> None:
        """Print a line of an executor."""
        _write(f"{replica} | {printable(line)}")


class JsonOutput:
    """For programs: a JSON object for each Event, and the executors' lines unchanged, which are JSON too."""

    log_format = "json"

    def event(self, kind: str, name: str, event: Event) -> None:
        """Print an Event."""
        common = {"at": datetime.now(UTC), "kind": kind, "name": name}
        with suppress(*_BROKEN):
            print_json_line({**common, "type": event.type, "reason": event.reason, "message": event.message})

    def log_line(self, replica: str, line: str) -> None:
        """Print a line of an executor."""
        del replica
        _write(line)


def _write(line: str) -> None:
    with suppress(*_BROKEN):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
