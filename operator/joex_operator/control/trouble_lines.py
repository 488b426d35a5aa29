"""The log lines of the operator about its own trouble with a database."""

from __future__ import annotations

import logging
from collections.abc import Callable

from joex.core.events import DatabaseTrouble, Event, TroubleOver

_log = logging.getLogger("joex.operator")


def trouble_lines(what: str) -> Callable[[Event], None]:
    """Receives the events of a `joex.trouble.Trouble`, and logs those that are worth a line. ``what``: what fails."""

    def emit(event: Event) -> None:
        match event:
            case DatabaseTrouble(is_news=True):
                lasts = f" (for {event.seconds:.0f} s)" if event.seconds >= 1 else ""
                _log.warning("%s: %s%s", what, event.error, lasts)
            case TroubleOver():
                _log.info("%s: works again, after %.1f s", what, event.seconds)

    return emit
