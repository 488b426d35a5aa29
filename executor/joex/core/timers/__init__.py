"""The timers of periodic tasks: systemd's calendar events and cron lines. See docs/reference/timers.md."""

from joex.core.timers.timer import Timer
from joex.core.timers.zone import parse_zone

__all__ = ["Timer", "parse_zone"]
