"""What ``joex up`` prints: on stdout what happens to pools, on stderr what their executors say."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

from joex.cli.output import print_json_line, printable, say
from joex_operator.decide.events import Event

_BROKEN = (OSError, ValueError)
"""A stream that is gone takes no lines, and nobody else suffers from it."""


class ConsoleOutput:
    """For people: one line for each event, and the executors' lines with their names in front."""

    log_format = "console"

    def event(self, kind: str, name: str, event: Event) -> None:
        """Print an event."""
        del kind
        mark = "!" if event.type == "Warning" else " "
        time = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        with suppress(*_BROKEN):
            say(f"{time} {mark} {name:<12}  {event.reason:<14}  {event.message}")
            sys.stdout.flush()

    def log_line(self, slot: str, line: str) -> None:
        """Print a line of an executor."""
        _write(sys.stderr, f"{slot} | {printable(line)}")


class JsonOutput:
    """For programs: one JSON object for each event; the executors' lines, JSON too, as they are."""

    log_format = "json"

    def event(self, kind: str, name: str, event: Event) -> None:
        """Print an event."""
        told = {"at": datetime.now(UTC), "kind": kind, "name": name}
        with suppress(*_BROKEN):
            print_json_line({**told, "type": event.type, "reason": event.reason, "message": event.message})

    def log_line(self, slot: str, line: str) -> None:
        """Print a line of an executor."""
        del slot
        _write(sys.stderr, line)


def _write(stream: TextIO, line: str) -> None:
    with suppress(*_BROKEN):
        stream.write(f"{line}\n")
        stream.flush()
