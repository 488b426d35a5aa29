"""Durations as people write them: ``90s``, ``1m``, ``1h30m``, ``30 minutes``, ``1 minute``, ``250ms``, ``7d``."""

from __future__ import annotations

import re
from datetime import timedelta

from joex.core.json_values import shown

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
    "w": 604800.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_LONGEST = timedelta(days=3650)
_MOST_CHARACTERS = 100
"""Of a text: a tenant may send ten million over HTTP."""
_MOST_PARTS = 10
"""Likewise: there are six units, and a tenant may send thousands of texts."""


def parse_duration(value: str | float | timedelta) -> timedelta:
    """Convert text, a number of seconds, or a timedelta into a duration.

    >>> parse_duration("1h30m"), parse_duration("30 minutes"), parse_duration(0.5)
    (datetime.timedelta(seconds=5400), datetime.timedelta(seconds=1800), datetime.timedelta(microseconds=500000))

    Raises:
        ValueError: the value can't be read, is negative, or is longer than ten years.
    """
    duration = value if isinstance(value, timedelta) else timedelta(seconds=_seconds(value))
    if not timedelta(0) <= duration <= _LONGEST:
        raise ValueError(f"expected 0 to 3650 days; got {shown(value)}")
    return duration


def format_duration(duration: timedelta) -> str:
    """The shortest way to write a duration.

    >>> format_duration(timedelta(minutes=90)), format_duration(timedelta(milliseconds=250))
    ('1h30m', '250ms')
    """
    rest = round(duration.total_seconds() * 1000)
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def span(seconds: float | None) -> str:
    """Return how long something took or has lasted, in its two largest units.

    >>> span(3725.2), span(0.25), span(None)
    ('1h2m', '250ms', '-')
    """
    if seconds is None:
        return "-"
    rest = max(seconds, 0.0)
    for unit, finer in ((86400, 3600), (3600, 60), (60, 1)):
        if rest >= unit:
            return format_duration(timedelta(seconds=rest // finer * finer))
    return format_duration(timedelta(seconds=round(rest, 3 if rest < 1 else 0)))


def _seconds(value: str | float) -> float:
    if isinstance(value, bool) or not isinstance(value, str | float | int):
        raise ValueError(f"expected a duration such as '30s', or seconds; got {shown(value)}")  # noqa: TRY004 - one error for callers
    if not isinstance(value, str):
        if value != value or abs(value) > _LONGEST.total_seconds():  # noqa: PLR0124 - not a number is not itself
            raise ValueError(f"expected 0 to 3650 days; got {shown(value)}")
        return float(value)
    if len(value) > _MOST_CHARACTERS:
        raise ValueError(f"expected something like '30s', '1m', '1h30m' or '7d'; got {shown(value)}")
    text, at, parts, total = value.strip(), 0, 0, 0.0
    while at < len(text) or not text:
        match = _PART.match(text, at) if parts < _MOST_PARTS else None
        unit = match and match[2].lower()
        if match is None or unit is None or (unit and unit not in _UNITS) or (not unit and match[0] != text):
            raise ValueError(f"expected something like '30s', '1m', '1h30m' or '7d'; got {shown(value)}")
        total += float(match[1]) * _UNITS.get(unit, 1.0)
        at, parts = match.end(), parts + 1
        if total > _LONGEST.total_seconds():
            raise ValueError(f"expected 0 to 3650 days; got {shown(value)}")
    return total
