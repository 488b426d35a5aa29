"""``python -m joex.cli.process_server MODULE:APP FD``: the server of an executor's processes, with the app loaded.

The executor starts it; the file descriptor is the server's end of their socket.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass

from joex.cli.load import load_app
from joex.core.events import RunStarted
from joex.errors import JoexError
from joex.runtime.process_channel import Channel
from joex.runtime.process_server import ignore_signals, serve
from joex.runtime.process_worker import Worker


@dataclass(frozen=True)
class _LogSettings:
    log_format: str
    log_level: str


def main() -> None:
    """Load the app, and serve."""
    ignore_signals()
    place, control = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    settings = Channel(control).receive()
    if settings is None:  # the executor is gone
        return
    try:
        app = load_app(place)
    except JoexError as error:
        sys.exit(f"joex: the server of processes: {error}")
    # After the app, as `joex executor` does it.
    from joex.observe.log_lines import bind_run, capture_logging, capture_structlog  # noqa: PLC0415

    log_settings = _LogSettings(settings["log_format"], settings["log_level"])
    capture_logging(log_settings)
    capture_structlog(log_settings)
    worker = Worker(app, settings["url"], settings["name"], lambda job: bind_run(RunStarted(job)))
    serve(control, worker, settings["pid"])


if __name__ == "__main__":
    main()
