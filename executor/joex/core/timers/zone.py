"""Time zones by their names."""

from __future__ import annotations

from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from joex.extras import missing


def parse_zone(name: str) -> ZoneInfo:
    """The zone with this name in the time zone database, such as ``Europe/Zurich``; ``UTC`` is always known.

    Raises:
        ValueError: the database of this machine does not know it.
        MissingExtra: this machine has no such database (as Windows).
    """
    try:
        return ZoneInfo("UTC" if name.upper() == "UTC" else name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: it names a folder of the database
        if not _has_zones():
            raise missing("executor", "time zones need, on this machine,") from None
        raise ValueError(f"time zone: expected a name like 'Europe/Zurich' or 'UTC'; got {name!r}") from None


@cache
def _has_zones() -> bool:
    """Whether this machine has a time zone database: to list it takes milliseconds."""
    return bool(available_timezones())
