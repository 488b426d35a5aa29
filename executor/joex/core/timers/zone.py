"""Time zones by their names."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def parse_zone(name: str) -> ZoneInfo:
    """The zone with this name in the time zone database, such as ``Europe/Zurich``; ``UTC`` is always known.

    Raises:
        ValueError: the database of this machine does not know it.
    """
    try:
        return ZoneInfo("UTC" if name.upper() == "UTC" else name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: it names a folder of the database
        raise ValueError(f"time zone: expected a name like 'Europe/Zurich' or 'UTC'; got {name!r}") from None
